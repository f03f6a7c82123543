package log

// The commit pipeline. Data path 2 of 6: make durable and acknowledge.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/oklog/ulid/v2"
)

// The naive picture: take an append, stamp it, write it, fsync, answer, take the next. At a few hundred fsyncs a second
// that is a few hundred appends a second. So three goroutines share the work:
//
//	callers ──queue──► committer ──unsynced──► syncer ──► answers, head, tail, subscribers
//	encode columns     gather, stamp, define,             SyncWait in order
//	                   chain, apply
//
// Order. There is one committer, so sequence, log time, predecessor hash and the order of the WAL are one order; the syncer
// takes batches in that order, and an fsync covers all of the WAL before it: the durable part of the log is a prefix.
// While an fsync is in flight the next batch fills; maxUnsynced bounds how many wait for theirs.
//
// Poison (L4). Pebble reports a failed WAL through Logger.Fatalf, which poisons before Apply or SyncWait returns, or as an
// error of SyncWait. The committer looks at the flag after each Apply: a batch that Pebble refused is never waited for, as
// nothing would end the wait. The syncer looks at it after each SyncWait: whatever the reason, nothing is acknowledged
// once the flag stands. A batch that was durable before the flag but not answered yet is refused too; its events may be
// found after a restart, like those of any append whose answer was lost.

type appendRequest struct {
	bodies  []Body
	encoded [][]byte // headerSize bytes of room, then the payload; of a write, without definitions
	size    int
	last    Seq
	err     error
	done    chan struct{} // closed when last or err is set
}

// unsynced is a batch that was applied and is not known to be durable.
type unsynced struct {
	batch    *pebble.Batch
	requests []*appendRequest
	events   []*Event
	sizes    []int
	defined  []*freshSeries
	hash     Hash // of the last event
	began    time.Duration
}

// Append puts body into the log and returns its sequence when it is durable. The log owns body from here on.
//
// It fails with ErrInvalid or ErrTooLarge, with what Options.Room says, with ErrPoisoned, or with ErrClosed when Run has ended first. If ctx ends first it
// returns ctx.Err(); an append that the committer has taken is not withdrawn, so the event may be durable all the same.
func (l *Log) Append(ctx context.Context, body Body) (Seq, error) {
	return l.AppendAll(ctx, body)
}

// AppendAll appends bodies with consecutive sequences and returns the last. They are durable together or not
// at all (L3). Without bodies it returns 0.
func (l *Log) AppendAll(ctx context.Context, bodies ...Body) (Seq, error) {
	if len(bodies) == 0 {
		return 0, nil
	}
	if l.readOnly {
		return 0, ErrReadOnly
	}
	r := &appendRequest{bodies: bodies, encoded: make([][]byte, len(bodies)), done: make(chan struct{})}
	for i, body := range bodies {
		if err := l.opts.Room(body); err != nil {
			return 0, err
		}
		b, err := l.encode(body)
		if err != nil {
			return 0, err
		}
		r.encoded[i] = b
		r.size += len(b)
	}
	if err := l.refusal(); err != nil {
		return 0, err
	}
	select {
	case l.queue <- r:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-l.stopping:
		return 0, l.endError()
	case <-l.poisonedCh:
		return 0, l.Err()
	case <-l.closing:
		return 0, l.endError()
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-l.poisonedCh:
		return 0, l.Err() // the store may never answer
	case <-l.runDone:
		select {
		case <-r.done:
		default:
			return 0, l.endError() // it came too late for the committer
		}
	case <-l.closing:
		if l.started.Load() {
			<-l.runDone
		}
		select {
		case <-r.done:
		default:
			return 0, l.endError()
		}
	}
	return r.last, r.err
}

// refusal says why nothing can be appended, if so.
func (l *Log) refusal() error {
	if err := l.Err(); err != nil {
		return err
	}
	select {
	case <-l.stopping:
		return ErrClosed
	case <-l.closing:
		return ErrClosed
	default:
		return nil
	}
}

func (l *Log) endError() error {
	if err := l.Err(); err != nil {
		return err
	}
	return ErrClosed
}

func (l *Log) encode(body Body) ([]byte, error) {
	room := headerSize + 64
	if w, ok := body.(*Write); ok {
		if n := len(w.Refs); n > 0 && !l.dict.assigned(w.Refs[n-1]) {
			return nil, fmt.Errorf("%w: series %d was never resolved", ErrInvalid, w.Refs[n-1])
		}
		if len(w.Defs) > 0 {
			return nil, fmt.Errorf("%w: definitions are set by the log", ErrInvalid)
		}
		room += 6*len(w.Values) + 2*len(w.Refs)
	}
	b, err := appendBody(make([]byte, headerSize, room), body)
	if err != nil {
		return nil, err
	}
	if len(b) > l.opts.MaxEventBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), l.opts.MaxEventBytes)
	}
	return b, nil
}

// Run commits, syncs and notes the head until ctx is done or Close is called, and then answers all that was accepted. It
// returns nil, or the error by which the log was poisoned, or that of the last HEAD note. It may be called once.
func (l *Log) Run(ctx context.Context) error {
	if l.readOnly {
		return ErrReadOnly
	}
	if !l.started.CompareAndSwap(false, true) {
		return errors.New("log: Run was called before")
	}
	defer close(l.runDone)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	applied := make(chan *unsynced, maxUnsynced)
	var actors sync.WaitGroup
	actors.Go(func() {
		select {
		case <-l.closing:
		case <-l.poisonedCh:
		case <-ctx.Done():
		}
		cancel()
	})
	actors.Go(func() {
		defer close(applied)
		newCommitter(l).run(ctx, applied)
	})
	actors.Go(func() {
		if err := l.dict.keepKnown(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			l.opts.Logger.Warn("The definitions of series cannot be read at once; new series take longer", "err", err)
		}
	})
	synced := make(chan struct{})
	actors.Go(func() {
		defer close(synced)
		for b := range applied {
			l.sync(b)
		}
	})
	var noteErr error
	actors.Go(func() { noteErr = l.noteHeads(synced) })
	go func() {
		actors.Wait()
		close(l.idle)
	}()
	select {
	case <-l.idle:
	case <-l.poisonedCh:
		// The store may never answer again; then its goroutine is left behind, as the process is about to end.
		select {
		case <-l.idle:
		case <-time.After(poisonGrace):
		}
	}
	if err := l.Err(); err != nil {
		return err
	}
	return noteErr
}

// committer owns the end of the log.
type committer struct {
	l       *Log
	seq     Seq
	hash    Hash
	entropy *ulid.MonotonicEntropy
}

func newCommitter(l *Log) *committer {
	return &committer{l: l, seq: l.durable.head, hash: l.durable.hash, entropy: ulid.Monotonic(l.opts.Entropy, 0)}
}

func (c *committer) run(ctx context.Context, out chan<- *unsynced) {
	l := c.l
	stop := ctx.Done()
	for l.Err() == nil {
		var r *appendRequest
		select {
		case r = <-l.queue:
		case <-stop:
			stop = nil
			close(l.stopping)
			continue
		default:
			if stop == nil {
				return // nothing is left, and what comes now is refused by Append
			}
			select {
			case r = <-l.queue:
			case <-stop:
				stop = nil
				close(l.stopping)
				continue
			}
		}
		b := &unsynced{requests: c.admit(c.gather(r)), began: l.opts.Monotonic()}
		if len(b.requests) == 0 {
			continue
		}
		if err := c.commit(b); err != nil {
			l.setPoison(err)
			b.refuse(l.Err())
			break
		}
		out <- b
	}
	if stop != nil {
		close(l.stopping)
	}
}

// gather takes what else is waiting, within the bounds of a batch.
func (c *committer) gather(r *appendRequest) []*appendRequest {
	requests := []*appendRequest{r}
	events, size := len(r.bodies), r.size
	for events < maxBatchEvents && size < maxBatchBytes {
		select {
		case r := <-c.l.queue:
			requests = append(requests, r)
			events += len(r.bodies)
			size += r.size
		default:
			return requests
		}
	}
	return requests
}

// admit refuses the requests with a series that was forgotten since it was resolved.
func (c *committer) admit(requests []*appendRequest) []*appendRequest {
	return slices.DeleteFunc(requests, func(r *appendRequest) bool {
		if r.err = c.l.dict.admit(r.bodies); r.err == nil {
			return false
		}
		close(r.done)
		return true
	})
}

// commit stamps and applies a batch. Any error poisons.
func (c *committer) commit(b *unsynced) error {
	l := c.l
	wall := l.clock.wall().UnixMilli()
	b.batch = l.store.db.NewBatch()
	for _, r := range b.requests {
		for i, body := range r.bodies {
			e := &Event{Seq: c.seq + 1, LogTime: l.clock.now(), WallTime: wall, Prev: c.hash, Body: body}
			var err error
			if e.ID, err = c.newID(e.LogTime); err != nil {
				return err
			}
			encoded := r.encoded[i]
			r.encoded[i] = nil
			if w, ok := body.(*Write); ok {
				before := len(b.defined)
				if b.defined, err = l.dict.define(w, b.batch, b.defined); err != nil {
					return err
				}
				encoded = appendDefined(encoded, b.defined[before:])
			}
			putHeader(encoded, e)
			encoded = binary.LittleEndian.AppendUint32(encoded, checksum(e.Seq, encoded))
			if err := b.batch.Set(eventKey(e.Seq), encoded, nil); err != nil {
				return err
			}
			c.seq, c.hash = e.Seq, EventHash(encoded)
			b.events = append(b.events, e)
			b.sizes = append(b.sizes, len(encoded))
		}
		r.last = c.seq
	}
	b.hash = c.hash
	if err := l.apply(b.batch); err != nil {
		return err
	}
	l.dict.applied(b.defined)
	return nil
}

// apply hands a batch to the store, unless the log is poisoned: see storeGuard.
func (l *Log) apply(batch *pebble.Batch) error {
	l.guard.applying.Lock()
	defer l.guard.applying.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.store.db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
		return err
	}
	return l.Err()
}

// newID makes the ULID of an event. Its time is log time, so that IDs are in the order of the log.
func (c *committer) newID(logTime int64) (ulid.ULID, error) {
	ms := uint64(min(max(0, logTime), int64(ulid.MaxTime())))
	id, err := ulid.New(ms, c.entropy)
	if errors.Is(err, ulid.ErrMonotonicOverflow) {
		c.entropy = ulid.Monotonic(c.l.opts.Entropy, 0)
		id, err = ulid.New(ms, c.entropy)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return id, err
}

// sync waits for the fsync of a batch and then lets the world know.
func (l *Log) sync(b *unsynced) {
	if plantedHeadAhead {
		_ = writeHead(l.opts.FS, l.dir, headNote{seq: b.events[len(b.events)-1].Seq, hash: b.hash})
	}
	if plantedAckBeforeSync {
		l.durable.advance(b.events, b.sizes, b.hash)
		for _, r := range b.requests {
			close(r.done)
		}
		_ = b.batch.SyncWait()
		l.dict.synced(b.defined)
		return
	}
	if l.Err() == nil {
		if err := b.batch.SyncWait(); err != nil {
			l.setPoison(err)
		}
	}
	if err := l.Err(); err != nil {
		b.refuse(err)
		return
	}
	l.dict.synced(b.defined)
	l.counts.batch(b, l.opts.Monotonic()-b.began)
	l.durable.advance(b.events, b.sizes, b.hash)
	for _, r := range b.requests {
		close(r.done)
	}
	// Only now: closing returns the batch to a pool, and an error of it can no longer matter.
	_ = b.batch.Close()
}

func (b *unsynced) refuse(err error) {
	for _, r := range b.requests {
		r.err, r.last = err, 0
		close(r.done)
	}
}
