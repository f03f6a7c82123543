package pane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

const (
	// queuedBatches is the number of batches that may wait before a worker. Feeding blocks beyond it.
	queuedBatches = 4
	// defaultCheckpointInterval is the time in which every shard is written once.
	defaultCheckpointInterval = 15 * time.Second
	// maxOutcomes is the number of barriers whose outcome is remembered for those who wait on them.
	maxOutcomes = 1024
)

// Options of a Projection. The zero value is usable.
type Options struct {
	Workers            int           // default GOMAXPROCS; content does not depend on it
	CheckpointInterval time.Duration // default 15s; every shard is written once in it. Negative: only at the end
	Logger             *slog.Logger  // default: discards
	// Heal finds what a heal event changes, see FindLate. Without it the projection stops at such an event.
	Heal func(context.Context, log.Heal) (*Healing, error)

	roundSamples int64 // default roundSamples
}

// Log is what the projection asks of the log besides its events.
type Log interface {
	Head() log.Seq
}

// Projection is the read model of panes. It implements projections.Projection, and is where queries read.
type Projection struct {
	events Log
	index  *series.Index
	store  *bucket.Store
	opts   Options
	logger *slog.Logger

	workers []*worker

	turn       chan struct{} // has room for one: who stands in it puts a batch or a cut into every queue (P6)
	dispatched atomic.Uint64 // last event that stands in every queue; written in turn

	changed projections.Signal
	failure atomic.Pointer[error]
	failed  chan struct{} // closed once failure is set

	orders    orders
	inUse     inUse
	recent    *recentWrites
	planNow   atomic.Pointer[plan.Plan]
	backfills backfills
	outcomes  outcomes
	ckpt      checkpointStats
	pacing    pacing
	waiting   atomic.Int64 // bytes of closed buckets that no checkpoint has written yet, but for those closed since the last try
}

// New returns a projection over the series index and the store of views. Restore, then Run.
func New(events Log, index *series.Index, store *bucket.Store, opts Options) *Projection {
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	opts.Workers = min(opts.Workers, Shards)
	if opts.CheckpointInterval == 0 {
		opts.CheckpointInterval = defaultCheckpointInterval
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.roundSamples == 0 {
		opts.roundSamples = roundSamples
	}
	p := &Projection{
		events: events, index: index, store: store, opts: opts, logger: opts.Logger,
		turn: make(chan struct{}, 1), failed: make(chan struct{}), pacing: pacing{due: make(chan struct{}, 1)},
	}
	p.pacing.step.Store(opts.roundSamples / Shards)
	index.Keep(p)
	return p
}

// Name implements projections.Projection.
func (p *Projection) Name() string { return "pane" }

// residents makes the series that a checkpoint names resident, and is where their label sets are found.
type residents struct {
	index *series.Index
	err   error // of the dictionary
}

// Labels implements LabelSource.
func (r *residents) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	ls, ok, err := r.index.Find(ref)
	if err != nil {
		r.err = err
		return labels.EmptyLabels(), false
	}
	if ok {
		r.index.Add(ref, ls)
	}
	return ls, ok
}

// Restore implements projections.Projection: it loads every shard's checkpoint, and makes its series resident in the index, which must
// know the dictionary already.
func (p *Projection) Restore() (projections.Restored, error) {
	p.workers = make([]*worker, p.opts.Workers)
	p.ckpt.rooms = make([]atomic.Pointer[[]byte], p.opts.Workers)
	for i := range p.workers {
		p.workers[i] = newWorker(p)
	}
	plans := new(planCache)
	var oldest, newest log.Seq
	for id := range Shards {
		seq, state, ok, err := p.store.State(id)
		if err != nil {
			return projections.Restored{}, err
		}
		s := NewShard(id, p.index)
		s.plans, s.inUse = plans, &p.inUse
		if ok {
			from := residents{index: p.index}
			s, err = decodeShard(id, &from, state, plans)
			if err = cmp.Or(from.err, err); err != nil {
				return projections.Restored{}, fmt.Errorf("shard %d: %w", id, err)
			}
			s.labels, s.inUse = p.index, &p.inUse
			if s.seq != log.Seq(seq) {
				return projections.Restored{}, fmt.Errorf("shard %d: %w: state of %d under sequence %d", id, ErrCorruptState, s.seq, seq)
			}
			rows, err := p.store.Experiments(0, id)
			if err == nil {
				err = s.restoreExperiments(rows)
			}
			if err != nil {
				return projections.Restored{}, fmt.Errorf("shard %d: %w", id, err)
			}
		}
		if id == 0 || s.seq < oldest {
			oldest = s.seq
		}
		if s.seq >= newest {
			newest = s.seq
			p.planNow.Store(s.plan)
		}
		p.workers[id%len(p.workers)].own(s)
	}
	if at, err := p.restoreGenerations(); err != nil {
		return projections.Restored{}, err
	} else {
		newest = max(newest, at)
	}
	for _, w := range p.workers {
		w.applied.Store(uint64(oldest))
	}
	var err error
	if p.recent, err = restoreRecent(p.store, oldest); err != nil {
		return projections.Restored{}, err
	}
	p.dispatched.Store(uint64(oldest))
	p.ckpt.durable.Store(uint64(oldest))
	p.store.Durable(uint64(oldest))
	return projections.Restored{From: oldest, Newest: newest}, nil
}

// Apply implements projections.Projection: it hands a batch to every worker, and blocks while one has too much waiting.
func (p *Projection) Apply(ctx context.Context, events []*log.Event) error {
	if len(events) == 0 {
		return nil
	}
	if p.opts.CheckpointInterval > 0 && p.ckpt.failures.Load() == 0 {
		p.pacing.hold(ctx)
	}
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	healing, err := p.findHealing(ctx, events)
	if err != nil {
		return err
	}
	repeats := p.recent.judge(events)
	if err := p.send(ctx, message{events: events, repeats: repeats, healing: healing}); err != nil {
		return err
	}
	p.dispatched.Store(uint64(events[len(events)-1].Seq))
	p.pacing.feed(samplesIn(events))
	p.changed.Fire()
	return nil
}

// findHealing finds what the heals among the events change. It goes through the log for it, so nothing else is applied or read
// meanwhile; a heal is met only by a replay.
func (p *Projection) findHealing(ctx context.Context, events []*log.Event) (found map[log.Seq]*Healing, err error) {
	for _, ev := range events {
		h, ok := ev.Body.(*log.Heal)
		if !ok || p.opts.Heal == nil {
			continue
		}
		p.logger.Info("Finding the late samples that were healed", "heal", ev.Seq, "from", h.From, "through", h.Through)
		if found == nil {
			found = make(map[log.Seq]*Healing)
		}
		if found[ev.Seq], err = p.opts.Heal(ctx, *h); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, p.fail(fmt.Errorf("heal at %d: %w", ev.Seq, err))
		}
	}
	return found, nil
}

// enter waits for the turn. Unlike a mutex it gives up with ctx: a turn may last as long as a worker's queue is full.
func (p *Projection) enter(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-p.failed:
		return p.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Projection) leave() { <-p.turn }

// send puts a message into every worker's queue, in turn.
func (p *Projection) send(ctx context.Context, m message) error {
	for _, w := range p.workers {
		if err := p.sendTo(ctx, w.queue, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *Projection) sendTo(ctx context.Context, to chan<- message, m message) error {
	select {
	case to <- m:
		return nil
	case <-p.failed:
		return p.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Applied implements projections.Projection.
func (p *Projection) Applied() (log.Seq, error) {
	least := log.Seq(p.workers[0].applied.Load())
	for _, w := range p.workers[1:] {
		least = min(least, log.Seq(w.applied.Load()))
	}
	return least, p.err()
}

// Changed implements projections.Projection.
func (p *Projection) Changed() <-chan struct{} { return p.changed.Wait() }

// Run runs the workers and writes checkpoints until ctx ends; then it writes a last checkpoint of every shard and makes it
// durable. It returns the error that stopped a worker, if one did.
func (p *Projection) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, w := range p.workers {
		g.Go(func() error { return w.run(gctx) })
	}
	g.Go(func() error { return p.index.Run(gctx) })
	if p.opts.CheckpointInterval > 0 {
		g.Go(func() error { return p.checkpointLoop(gctx) })
	}
	err := g.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return p.finalCheckpoint()
}

// fail stops the projection with an error; the first one stays.
func (p *Projection) fail(err error) error {
	if p.failure.CompareAndSwap(nil, &err) {
		close(p.failed)
		p.changed.Fire()
	}
	return p.err()
}

func (p *Projection) err() error {
	if e := p.failure.Load(); e != nil {
		return *e
	}
	return nil
}

// visit looks at one shard, in its worker, at one place in the order of events. It must be brief: the worker waits for it.
type visit func(*Shard, *shelf)

// cut visits every shard at one place in the order of events and returns the sequence there (P6). When cut fails, a visit
// may still run later and write to what it closes over.
func (p *Projection) cut(ctx context.Context, v visit) (log.Seq, error) {
	done := make(chan struct{}, len(p.workers))
	if err := p.enter(ctx); err != nil {
		return 0, err
	}
	err := p.send(ctx, message{visit: v, done: done})
	seq := log.Seq(p.dispatched.Load())
	p.leave()
	if err != nil {
		return 0, err
	}
	for range p.workers {
		select {
		case <-done:
		case <-p.failed:
			return 0, p.err()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return seq, nil
}

// waitDispatched blocks until everything up to seq stands in the workers' queues.
func (p *Projection) waitDispatched(ctx context.Context, seq log.Seq) error {
	for {
		changed := p.changed.Wait()
		if log.Seq(p.dispatched.Load()) >= seq {
			return nil
		}
		if err := p.err(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitApplied blocks until the workers have applied everything up to seq.
func (p *Projection) waitApplied(ctx context.Context, seq log.Seq) error {
	for {
		changed := p.changed.Wait()
		applied, err := p.Applied()
		if err != nil || applied >= seq {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Due reports whether a tick at the log time would close a bucket.
func (p *Projection) Due(ctx context.Context, logTime int64) (bool, error) {
	var due atomic.Bool
	_, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		if s.Due(logTime) {
			due.Store(true)
		}
	})
	return due.Load(), err
}

// Outcome is what a barrier or a drain did.
type Outcome struct {
	Closed          uint64 // buckets that it closed
	CompleteThrough int64  // ms: what all barriers so far prove
}

// Outcome returns what the barrier or drain at seq did, once Applied has reached it. Only the newest are remembered.
func (p *Projection) Outcome(seq log.Seq) (Outcome, bool) { return p.outcomes.get(seq) }

// outcomes remembers what the newest barriers did.
type outcomes struct {
	mu    sync.Mutex
	order []log.Seq
	bySeq map[log.Seq]Outcome
}

func (o *outcomes) add(seq log.Seq, closed uint64, proven int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bySeq == nil {
		o.bySeq = make(map[log.Seq]Outcome)
	}
	out, ok := o.bySeq[seq]
	if !ok {
		out.CompleteThrough = proven
		o.order = append(o.order, seq)
		if len(o.order) > maxOutcomes {
			delete(o.bySeq, o.order[0])
			o.order = o.order[1:]
		}
	}
	out.Closed += closed
	out.CompleteThrough = max(out.CompleteThrough, proven)
	o.bySeq[seq] = out
}

func (o *outcomes) get(seq log.Seq) (Outcome, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, ok := o.bySeq[seq]
	return out, ok
}
