package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tidemark/log"
	"tidemark/transport/remotewrite"
)

const (
	// resumeAfter is how long all writes must have been refused before acceptance is marked in the log.
	resumeAfter = time.Second
	// watchInterval is how often the free space and the lag are looked at.
	watchInterval = time.Second
	// lookInterval is how often whoever writes looks at the free space at most: fast senders fill a reserve in less than a watchInterval.
	lookInterval = 20 * time.Millisecond
	// floorBytes is the free space, or the reserve if that is less, below which nothing at all is written: no barrier, tick, task or
	// checkpoint. A write that fails because the disk is full would end the log, and with it the process.
	floorBytes = 4 << 20
	// maxWaiting bounds the bytes of closed buckets that cannot be written to the views.
	maxWaiting = 512 << 20
	// lagRetry and diskRetry are what a refused sender is told to wait.
	lagRetry  = 5 * time.Second
	diskRetry = 30 * time.Second
)

// gate decides whether writes are taken now. It implements remotewrite.Gate and remotewrite.Appender.
//
// G1: what is appended through it stands before a drain's event, or is refused as sealed.
// G2: the first write after all were refused for resumeAfter comes behind a start event, and no tick is written in between, so
// that no bucket closes by the clock before what the senders hold back has arrived.
type gate struct {
	events  *log.Log
	lag     lagMeters
	ready   func() bool   // the panes have caught up once; before that lag refuses nothing
	maxLag  time.Duration // 0: any
	path    string        // of the log, for the free space
	minFree uint64        // bytes
	now     func() time.Time
	full    func() bool // the log has reached its cap; nil: never

	freeBytes func(path string) (uint64, error)
	ballast   *ballast // nil: none is kept
	failed    bool     // of the ballast, the last time; watch's own

	waiting    func() int64 // bytes of closed buckets that checkpoints fail to write
	maxWaiting int64

	open atomic.Bool   // the start stands in the log
	free atomic.Uint64 // bytes, as last seen
	over atomic.Bool   // the log was full when last seen

	began  time.Time    // of looked
	looked atomic.Int64 // ns since began, when a write last looked at the disk

	sealing sync.RWMutex // held for reading while an event is appended
	sealed  bool

	seen map[log.Hash]bool // of plantedDedupeAtDoor

	resume       sync.Mutex
	refusedSince time.Time // zero while writes are taken
}

// Admit implements remotewrite.Gate.
func (g *gate) Admit() error {
	g.sealing.RLock()
	sealed := g.sealed
	g.sealing.RUnlock()
	if sealed {
		return remotewrite.ErrSealed
	}
	g.lookNow()
	if err := g.unavailable(); err != nil {
		g.refuse()
		return err
	}
	return g.accept()
}

// lookNow looks at the disk unless somebody just has.
func (g *gate) lookNow() {
	now, last := int64(time.Since(g.began)), g.looked.Load()
	if now-last >= int64(lookInterval) && g.looked.CompareAndSwap(last, now) {
		_ = g.lookAtDisk() // as in watch
	}
}

// room says why the disk has no room for anything, or nil.
func (g *gate) room() error {
	g.lookNow()
	if g.free.Load() < min(g.minFree, floorBytes) {
		return &remotewrite.Unavailable{Reason: "the disk is full", RetryAfter: diskRetry}
	}
	return nil
}

// unavailable says why no write can be taken now, or nil.
func (g *gate) unavailable() error {
	if err := g.events.Err(); err != nil {
		return &remotewrite.Unavailable{Reason: "the log is not writable"}
	}
	if !g.open.Load() {
		return &remotewrite.Unavailable{Reason: "starting"}
	}
	if free := g.free.Load(); free < g.minFree {
		return &remotewrite.Unavailable{Reason: "disk is below its reserve", RetryAfter: diskRetry}
	}
	if g.waiting() > g.maxWaiting {
		return &remotewrite.Unavailable{Reason: "closed buckets cannot be written", RetryAfter: diskRetry}
	}
	if g.over.Load() {
		return &remotewrite.Unavailable{Reason: "the log has reached its size cap and cannot be truncated", RetryAfter: diskRetry}
	}
	if g.maxLag > 0 && g.ready() && g.lag.lag(g.now()) > g.maxLag {
		return &remotewrite.Unavailable{Reason: "projections lag behind the log", RetryAfter: lagRetry}
	}
	return nil
}

func (g *gate) refuse() {
	g.resume.Lock()
	defer g.resume.Unlock()
	if g.refusedSince.IsZero() {
		g.refusedSince = g.now()
	}
}

// accept marks in the log that writes are taken again, where that is due (G2).
func (g *gate) accept() error {
	g.resume.Lock()
	defer g.resume.Unlock()
	if g.refusedSince.IsZero() {
		return nil
	}
	if g.now().Sub(g.refusedSince) >= resumeAfter {
		if _, err := g.events.Append(context.Background(), &log.Start{Reason: log.StartResume}); err != nil {
			return &remotewrite.Unavailable{Reason: "the log is not writable"}
		}
	}
	g.refusedSince = time.Time{}
	return nil
}

// Append implements remotewrite.Appender.
func (g *gate) Append(ctx context.Context, body log.Body) (log.Seq, error) {
	g.sealing.RLock()
	defer g.sealing.RUnlock()
	if g.sealed {
		return 0, remotewrite.ErrSealed
	}
	if w, ok := body.(*log.Write); plantedDedupeAtDoor && ok {
		g.resume.Lock()
		defer g.resume.Unlock()
		if g.seen[w.Hash] {
			return g.events.Head(), nil
		}
		if g.seen == nil {
			g.seen = map[log.Hash]bool{}
		}
		g.seen[w.Hash] = true
	}
	return g.events.Append(ctx, body)
}

// tickLog is where the ticker writes. While no write is taken, no tick is written either, and the first one after that comes
// behind the start event: else buckets would close by the clock while the senders hold back what belongs into them (G2).
type tickLog struct{ *gate }

// LogTime implements pane.TickLog.
func (t tickLog) LogTime() int64 { return t.events.LogTime() }

// Append implements pane.TickLog. A tick that is not due to be written is let go; the next second brings another.
func (t tickLog) Append(ctx context.Context, body log.Body) (log.Seq, error) {
	if err := t.events.Err(); err != nil {
		return 0, err
	}
	if t.unavailable() != nil || t.accept() != nil {
		return 0, nil
	}
	return t.events.Append(ctx, body)
}

// drain seals input and appends the drain behind everything that was accepted before (G1). If the append fails for sure,
// input is open again.
func (g *gate) drain(ctx context.Context) (log.Seq, error) {
	g.sealing.Lock()
	defer g.sealing.Unlock()
	was := g.sealed
	g.sealed = true
	seq, err := g.events.Append(ctx, &log.Drain{})
	if err != nil && ctx.Err() == nil {
		g.sealed = was
	}
	return seq, err
}

// watch keeps the free space and the lag up to date until ctx ends.
func (g *gate) watch(ctx context.Context) error {
	every := time.NewTicker(watchInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
			// A disk that cannot be asked is not taken for a full one: the log itself will say.
			if g.lookAtDisk() == nil {
				g.keepBallast()
			}
			g.lag.look(g.now())
			g.lookAtSize()
		}
	}
}

// keepBallast makes the ballast again where there is room for it. What keeps it from being made is said once.
func (g *gate) keepBallast() {
	if g.ballast == nil {
		return
	}
	err := g.ballast.keep(g.free.Load(), g.minFree)
	if err != nil && !g.failed {
		g.ballast.logger.Warn("The ballast cannot be kept; a start on a full disk may fail", "err", err)
	}
	g.failed = err != nil
}

func (g *gate) lookAtDisk() error {
	free, err := g.freeBytes(g.path)
	if err != nil {
		return fmt.Errorf("free space of %s: %w", g.path, err)
	}
	g.free.Store(free)
	return nil
}

// statFree asks the file system under path how much may still be written.
func statFree(path string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

func (g *gate) lookAtSize() { g.over.Store(g.full != nil && g.full()) }

// reasons says in words why writes are refused.
func (g *gate) reasons() []string {
	var out []string
	var u *remotewrite.Unavailable
	g.sealing.RLock()
	sealed := g.sealed
	g.sealing.RUnlock()
	if sealed {
		out = append(out, remotewrite.ErrSealed.Error()+", until the next start; queries are answered")
	}
	if err := g.unavailable(); errors.As(err, &u) {
		out = append(out, u.Reason)
	}
	return out
}
