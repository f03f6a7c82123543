package sample

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"tidemark/log"
	"tidemark/projections"
)

// Projection is the exact copy. It implements projections.Projection, and is where queries read samples themselves.
type Projection struct {
	dir    string
	events Log
	labels Labels
	opts   Options
	logger *slog.Logger

	db      *tsdb.DB // for whoever reads only while opened
	opened  atomic.Bool
	head    *headBound
	applied atomic.Uint64
	changed projections.Signal
	failure atomic.Pointer[error]

	// Apply's own.
	known       map[log.SeriesRef]storage.SeriesRef // what TSDB calls a series; it may have forgotten it meanwhile
	appliedFile *os.File

	appending sync.Mutex // held while an event is appended

	// Of maintenance (E5).
	maintaining    sync.Mutex // held by whatever moves chunks of the head; taken before appending, after checkpointing
	chunkFileBegun bool       // since TSDB was opened
	chunksBefore   map[string]bool
	stopCompaction context.CancelFunc
	blockMillis    int64
	due            chan struct{}
	keeping        sync.WaitGroup

	families families

	checkpointing sync.Mutex // one checkpoint at a time
	noting        sync.Mutex // held while CHECKPOINT is written; taken last
	durable       atomic.Uint64
	expired       atomic.Int64 // ms; see checkpoint
	refused       atomic.Int64
	synced        map[string]string // by directory of segments: the newest that was synced
	failures      atomic.Int64      // checkpoints that failed in a row
	compacted     uint64            // of counts.late, those that stand in blocks
	compactedAt   time.Time

	counts counts
}

// counts are of this process.
type counts struct {
	appended, late, repeated, refused, exemplars, exemplarsRefused atomic.Uint64
}

// New returns a copy of the log in dir. Restore opens it, which may take as long as its write-ahead log is; until then whoever reads
// waits.
func New(dir string, events Log, labels Labels, opts Options) *Projection {
	opts = opts.withDefaults()
	p := &Projection{dir: dir, events: events, labels: labels, opts: opts, logger: opts.Logger, due: make(chan struct{}, 1)}
	p.expired.Store(math.MinInt64)
	p.refused.Store(math.MinInt64)
	return p
}

// Name implements projections.Projection.
func (p *Projection) Name() string { return "sample" }

// Check reads the notes of the copy, which takes no time and changes nothing, and returns the newest event that the copy may reflect.
// It fails with ErrOtherLog where Restore would. Until Restore the copy counts as being where the notes say.
func (p *Projection) Check() (newest log.Seq, err error) {
	n, err := p.noted()
	if err != nil {
		return 0, fmt.Errorf("exact copy in %s: %w", p.dir, err)
	}
	p.durable.Store(uint64(n.Durable))
	p.applied.Store(uint64(n.Durable))
	return n.Newest, nil
}

// noted returns the notes of a copy of this log; none if there is none that can be used.
func (p *Projection) noted() (Notes, error) {
	n, identity, ok, err := readNotes(p.dir)
	if err != nil || !ok {
		return Notes{}, err
	}
	if !bytes.Equal(identity, p.events.Identity()) {
		return Notes{}, ErrOtherLog
	}
	return n, nil
}

// Restore implements projections.Projection: it opens the copy, or begins one where none can be used.
func (p *Projection) Restore() (projections.Restored, error) {
	at, err := p.resume()
	if err == nil {
		return at, nil
	}
	if !errors.Is(err, errDamaged) && !errors.Is(err, errBehind) {
		return at, fmt.Errorf("exact copy in %s: %w", p.dir, err)
	}
	p.logger.Warn("The exact copy cannot be used; it is discarded and folded again from the log", "dir", p.dir, "err", err)
	if err := Discard(p.dir); err != nil {
		return at, err
	}
	if at, err = p.resume(); err != nil {
		return at, fmt.Errorf("exact copy in %s: %w", p.dir, err)
	}
	return at, nil
}

// errBehind: the copy ends before the log begins.
var errBehind = errors.New("the log no longer holds what comes after the copy")

// Discard removes the copy in dir. It is then folded again.
func Discard(dir string) error {
	// First what says that there is one.
	for _, name := range []string{checkpointFile, appliedFile, metadataFile, tsdbDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("discard the exact copy: %w", err)
		}
	}
	return nil
}

// resume opens the copy that is there, or an empty one.
func (p *Projection) resume() (projections.Restored, error) {
	if err := os.MkdirAll(p.dir, 0o777); err != nil {
		return projections.Restored{}, err
	}
	at, newest, err := p.settle()
	if err != nil {
		return projections.Restored{}, err
	}
	if err := p.openTSDB(); err != nil {
		return projections.Restored{}, err
	}
	p.known = make(map[log.SeriesRef]storage.SeriesRef)
	p.applied.Store(uint64(at))
	p.appliedFile, err = os.OpenFile(filepath.Join(p.dir, appliedFile), os.O_CREATE|os.O_RDWR, 0o666)
	if err == nil {
		err = p.noteApplied(false) // from here on it is not closed
	}
	if err != nil {
		return projections.Restored{}, errors.Join(err, p.db.Close())
	}
	p.opened.Store(true)
	p.changed.Fire()
	return projections.Restored{From: at, Newest: newest}, nil
}

// settle says behind which event to go on, and which the TSDB may reflect, and gives up what cannot be trusted.
func (p *Projection) settle() (at, newest log.Seq, err error) {
	note, err := readFile(filepath.Join(p.dir, checkpointFile))
	if err != nil {
		return 0, 0, err
	}
	if note == nil {
		return p.begin()
	}
	c, err := decodeCheckpoint(note)
	if err != nil {
		return 0, 0, err
	}
	if !bytes.Equal(c.identity, p.events.Identity()) {
		return 0, 0, ErrOtherLog
	}
	at, newest = c.seq, c.seq
	refused, closed := c.refused, false
	p.durable.Store(uint64(c.seq))
	raw, err := readFile(filepath.Join(p.dir, appliedFile))
	if err != nil {
		return 0, 0, err
	}
	if a, bad := decodeApplied(raw); bad == nil {
		newest, refused = max(newest, a.seq), max(refused, a.refused)
		closed = a.closed && a.seq == c.seq
	}
	if !closed {
		for _, name := range []string{"wbl", "chunks_head"} {
			if err := os.RemoveAll(filepath.Join(p.dir, tsdbDir, name)); err != nil {
				return 0, 0, err
			}
		}
	}
	if floor, _ := p.events.Origin(); at+1 < floor {
		return 0, 0, fmt.Errorf("%w: the copy reflects it up to %d, and the log begins at %d", errBehind, at, floor)
	}
	p.expired.Store(c.expired)
	p.refused.Store(refused)
	p.families.load(nil)
	raw, err = readFile(filepath.Join(p.dir, metadataFile))
	if err != nil || raw == nil {
		return at, newest, err
	}
	all, err := decodeMetadata(raw)
	p.families.load(all)
	return at, newest, err
}

// begin begins a copy at the floor of the log. What the log no longer holds is a gap (E2).
func (p *Projection) begin() (at, newest log.Seq, err error) {
	if err := Discard(p.dir); err != nil {
		return 0, 0, err
	}
	floor, gap := p.events.Origin()
	at = floor - 1
	p.expired.Store(gap)
	p.refused.Store(math.MinInt64)
	p.durable.Store(uint64(at))
	p.families.load(nil)
	return at, at, p.writeCheckpoint(at)
}

// openTSDB opens the TSDB. What it had to repair may have lost what we count on: then it is damaged.
func (p *Projection) openTSDB() error {
	o := tsdb.DefaultOptions()
	o.RetentionDuration = p.opts.Retention.Milliseconds()
	o.OutOfOrderTimeWindow = o.RetentionDuration
	o.MaxBytes = p.opts.MaxBytes
	o.StripeSize = 1 << 12 // one appends
	o.MaxBlockDuration = max(o.MinBlockDuration, min(31*24*time.Hour.Milliseconds(), o.RetentionDuration/10))
	o.EnableExemplarStorage, o.MaxExemplars = true, maxExemplars
	o.NoLockfile = true // the log's lock stands for the whole storage
	p.blockMillis = o.MinBlockDuration
	p.stillTSDB(o)
	p.head = &headBound{limit: p.opts.MaxSeries}
	o.SeriesLifecycleCallback = p.head
	// TSDB asks for what to delete while it opens, too.
	var db atomic.Pointer[tsdb.DB]
	o.BlocksToDelete = func(blocks []*tsdb.Block) map[ulid.ULID]struct{} {
		if db.Load() == nil {
			return nil
		}
		return p.expire(db.Load(), blocks)
	}
	// A block with samples that came out of order may reach into the time that the head holds. Were it merged with one that came in
	// order, TSDB would take the result for the place where the head begins, and drop at the next start what it has before its end.
	o.BlockCompactionExcludeFunc = func(m *tsdb.BlockMeta) bool {
		return db.Load() == nil || m.Compaction.FromOutOfOrder() && m.MaxTime > db.Load().Head().MinTime()
	}
	metrics := prometheus.NewRegistry()
	opened, err := tsdb.Open(filepath.Join(p.dir, tsdbDir), p.logger, metrics, o, nil)
	if err != nil {
		if ofTheMachine(err) {
			return err
		}
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	opened.DisableCompactions() // of its own accord; see E5
	p.head.count.Store(opened.Head().NumSeries())
	corruptions, err := counter(metrics, "prometheus_tsdb_wal_corruptions_total", "prometheus_tsdb_mmap_chunk_corruptions_total")
	if err == nil && corruptions > 0 {
		err = fmt.Errorf("%w: %v of its files were cut short", errDamaged, corruptions)
	}
	if err == nil {
		p.chunkFileBegun = false
		p.chunksBefore, err = p.chunkFiles()
	}
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	db.Store(opened)
	p.db = opened
	return nil
}

// ofTheMachine says whether an error tells nothing about the bytes of the copy.
func ofTheMachine(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EDQUOT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// counter sums counters of a registry.
func counter(g prometheus.Gatherer, names ...string) (sum float64, err error) {
	families, err := g.Gather()
	for _, f := range families {
		for _, name := range names {
			if f.GetName() == name {
				for _, m := range f.Metric {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum, err
}

// expire chooses the blocks that go, and makes it known before they do (E2).
func (p *Projection) expire(db *tsdb.DB, blocks []*tsdb.Block) map[ulid.ULID]struct{} {
	gone := tsdb.DefaultBlocksToDelete(db)(blocks)
	end := p.expired.Load()
	for _, b := range blocks {
		m := b.Meta()
		if _, ok := gone[m.ULID]; ok && !m.Compaction.Deletable {
			end = max(end, m.MaxTime-1) // a block's end is not its own
		}
	}
	if end == p.expired.Load() {
		return gone
	}
	p.noting.Lock() // and not checkpointing, which a checkpoint holds while it has TSDB compact
	defer p.noting.Unlock()
	before := p.expired.Swap(end)
	if err := p.writeCheckpoint(log.Seq(p.durable.Load())); err != nil {
		p.expired.Store(before)
		p.logger.Error("The exact copy cannot note what retention would delete, and keeps it", "err", err)
		return nil
	}
	return gone
}

// headBound refuses series beyond a number in TSDB's head.
type headBound struct {
	limit uint64
	count atomic.Uint64
}

var errTooManySeries = errors.New("too many series at one time")

// PreCreation implements tsdb.SeriesLifecycleCallback.
func (h *headBound) PreCreation(seriesLabels) error {
	if h.count.Load() >= h.limit {
		return errTooManySeries
	}
	return nil
}

// PostCreation implements tsdb.SeriesLifecycleCallback.
func (h *headBound) PostCreation(seriesLabels) { h.count.Add(1) }

// PostDeletion implements tsdb.SeriesLifecycleCallback.
func (h *headBound) PostDeletion(gone deletedSeries) { h.count.Add(-uint64(len(gone))) }

// Apply implements projections.Projection: it appends what the events hold and returns when it can be read.
func (p *Projection) Apply(ctx context.Context, events []*log.Event) error {
	for _, ev := range events {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w, ok := ev.Body.(*log.Write)
		if ok {
			p.appending.Lock()
			err := p.write(context.WithoutCancel(ctx), w) // an event is applied whole
			p.appending.Unlock()
			if err != nil {
				return p.fail(fmt.Errorf("apply event %d: %w", ev.Seq, err))
			}
		}
		p.applied.Store(uint64(ev.Seq))
	}
	if err := p.noteApplied(false); err != nil {
		return p.fail(err)
	}
	p.changed.Fire()
	p.wake()
	return nil
}

// noteApplied overwrites APPLIED.
func (p *Projection) noteApplied(closed bool) error {
	a := applied{closed: closed, seq: log.Seq(p.applied.Load()), refused: p.refused.Load()}
	_, err := p.appliedFile.WriteAt(a.encode(), 0)
	return err
}

// Applied implements projections.Projection.
func (p *Projection) Applied() (log.Seq, error) { return log.Seq(p.applied.Load()), p.err() }

// Changed implements projections.Projection.
func (p *Projection) Changed() <-chan struct{} { return p.changed.Wait() }

// Stop ends the copy: whoever waits for it, now or later, is given err, or the one that has stopped it before.
func (p *Projection) Stop(err error) { _ = p.fail(err) }

func (p *Projection) fail(err error) error {
	p.failure.CompareAndSwap(nil, &err)
	p.changed.Fire()
	return p.err()
}

func (p *Projection) err() error {
	if e := p.failure.Load(); e != nil {
		return *e
	}
	return nil
}

// Run maintains the TSDB and writes checkpoints until ctx ends, and then a last one. Close waits for a compaction that still runs.
func (p *Projection) Run(ctx context.Context) error {
	p.keeping.Go(func() { p.keepUp(ctx) })
	if p.opts.CheckpointInterval > 0 {
		every := time.NewTicker(p.opts.CheckpointInterval)
		defer every.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-every.C:
				if err := p.Checkpoint(ctx); err != nil {
					p.logger.Error("The exact copy cannot write its checkpoint", "consecutive", p.failures.Load(), "err", err)
				}
			}
		}
	} else {
		<-ctx.Done()
	}
	return p.Checkpoint(context.WithoutCancel(ctx))
}

// Close closes the TSDB, after Run and all reads have ended, and notes that it was closed in order.
func (p *Projection) Close() error {
	if !p.opened.Load() {
		return nil
	}
	p.stopCompaction()
	p.keeping.Wait()
	if err := errors.Join(p.db.Close(), p.err()); err != nil {
		return errors.Join(err, p.appliedFile.Close())
	}
	p.checkpointing.Lock()
	defer p.checkpointing.Unlock()
	err := p.save(log.Seq(p.applied.Load()))
	if err == nil {
		err = p.noteApplied(true)
	}
	return errors.Join(err, p.appliedFile.Sync(), p.appliedFile.Close())
}
