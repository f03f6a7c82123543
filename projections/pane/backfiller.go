package pane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/bits"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

const (
	defaultBackfillBatch = 64
	// defaultBackfillHeld is what the fold in the background closes before it writes it, in bytes; more where the state of the
	// series, which is written with it, is larger.
	defaultBackfillHeld = 16 << 20
	// backfillCommitInterval is the time after which it writes what it has, however little.
	backfillCommitInterval = 30 * time.Second
	// nearEvents is the number of events that are folded in turn, while nothing is dispatched to the live fold, at most. It is
	// doubled each time that the live fold has run away meanwhile, up to maxNear.
	nearEvents, maxNear = 16, 1024
	// laggingEvents is how far the live fold may be behind the log before the fold in the background makes way for it.
	laggingEvents = 256
	// After working for a time, the fold in the background rests as many times as long.
	restShare, restShareLagging = 1, 8
	// The first and the longest time until a backfill that failed is tried again.
	backfillRetry, maxBackfillRetry = time.Second, time.Minute
)

// BackfillOptions of a Backfiller. The zero value is usable.
type BackfillOptions struct {
	Held   int64            // default 16 MiB
	Batch  int              // events between two looks at what else there is to do, default 64
	Now    func() time.Time // default time.Now; it decides how fast and when, never what is folded
	Logger *slog.Logger     // default: discards
}

// Backfiller folds generations in the background: streams that a plan added when there was a history. It reads the log on its own,
// beside the live fold and never in front of it; when it has caught up, it hands a generation over to the workers, between two
// events. What is folded follows from the events alone (P1), so it does not matter when, how often or how far it came before a
// crash: its own checkpoints only save the way.
type Backfiller struct {
	panes   *Projection
	history projections.History
	opts    BackfillOptions

	jobs     map[log.Seq]*job
	failures map[log.Seq]*failed
	inMemory bool // nothing is written
}

// failed says when a generation is tried again.
type failed struct {
	times uint64
	until time.Time
}

// job is one generation as far as it is folded.
type job struct {
	gen     generation
	shards  group
	shelves [Shards]shelf // for what the shards evict
	sets    *foundLabels
	labels  map[log.SeriesRef]labels.Labels // of the series in memory, for the index; gathered when the end is near
	recent  *recentWrites
	reader  *log.Reader
	cursor  log.Seq // every shard reflects the events up to here
	near    log.Seq
	meter   *projections.Meter
	wrote   time.Time // when it was last written
}

// NewBackfiller returns a backfiller; Run starts it.
func NewBackfiller(p *Projection, history projections.History, opts BackfillOptions) *Backfiller {
	if opts.Held <= 0 {
		opts.Held = defaultBackfillHeld
	}
	if opts.Batch <= 0 {
		opts.Batch = defaultBackfillBatch
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Backfiller{panes: p, history: history, opts: opts, jobs: make(map[log.Seq]*job), failures: make(map[log.Seq]*failed)}
}

// Run folds whatever there is to fold until ctx ends, and returns nil then. It must not be started before what was in the log at
// the start is applied. A generation that fails is reported and tried again, while the others go on.
func (b *Backfiller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		planned := b.panes.backfills.changed.Wait()
		if err := b.tidy(ctx); err != nil && ctx.Err() == nil {
			b.opts.Logger.Error("what is left of streams that are no longer folded could not be removed", "err", err)
		}
		for ctx.Err() == nil {
			g, wait := b.next()
			if g == nil {
				b.sleep(ctx, wait, planned)
				break
			}
			begin := b.opts.Now()
			hurry, err := b.advance(ctx, g)
			switch perr := b.panes.err(); {
			case err == nil:
			case perr != nil:
				return perr
			case ctx.Err() != nil:
				delete(b.jobs, g.id) // it may have stopped between two shards
			default:
				b.fail(g, err)
			}
			if !hurry {
				b.rest(ctx, b.opts.Now().Sub(begin))
			}
		}
	}
	// What is folded so far is as good after a restart; the last flush of the projection makes it durable.
	for _, j := range b.jobs {
		if err := b.write(j, true); err != nil {
			b.opts.Logger.Warn("a backfill that was stopped begins again at its last checkpoint", "planned_at", j.gen.id, "err", err)
		}
	}
	return nil
}

// Fold folds whatever there is to fold and returns when all of it is handed over. With inMemory nothing is written. It is for tools:
// all events must have been given to the projection before.
func (p *Projection) Fold(ctx context.Context, history projections.History, inMemory bool) error {
	b := NewBackfiller(p, history, BackfillOptions{})
	b.inMemory = inMemory
	for {
		if more, err := b.Advance(ctx); err != nil || !more {
			return err
		}
	}
}

// Advance folds the next events of the first generation that waits for some, as Run does over and over, and says whether there was one.
// It is for who decides himself when that is done; Run must not run. What a failure leaves in memory is given up, as by a crash.
func (b *Backfiller) Advance(ctx context.Context) (more bool, err error) {
	g, _ := b.next()
	if g == nil {
		return false, b.tidyUnless(ctx, b.inMemory)
	}
	if _, err := b.advance(ctx, g); err != nil {
		delete(b.jobs, g.id)
		return true, fmt.Errorf("fold the streams planned at %d: %w", g.id, err)
	}
	return true, nil
}

func (b *Backfiller) tidyUnless(ctx context.Context, inMemory bool) error {
	if inMemory {
		return nil
	}
	return b.tidy(ctx)
}

// next returns the generation to go on with; if there is none, the time until a failed one is tried again, negative if there is
// none of those either.
func (b *Backfiller) next() (*generation, time.Duration) {
	wait := time.Duration(-1)
	now := b.opts.Now()
	pending := b.panes.backfills.pending()
	for i := range pending {
		g := &pending[i]
		f := b.failures[g.id]
		if f == nil || !now.Before(f.until) {
			return g, 0
		}
		if left := f.until.Sub(now); wait < 0 || left < wait {
			wait = left
		}
	}
	return nil, wait
}

// sleep waits until a plan is put in force, or for a time unless it is negative.
func (b *Backfiller) sleep(ctx context.Context, d time.Duration, planned <-chan struct{}) {
	var after <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-ctx.Done():
	case <-planned:
	case <-after:
	}
}

// rest makes way for the live fold.
func (b *Backfiller) rest(ctx context.Context, worked time.Duration) {
	share := time.Duration(restShare)
	if b.panes.events.Head()-log.Seq(b.panes.dispatched.Load()) > laggingEvents {
		share = restShareLagging
	}
	t := time.NewTimer(share * worked)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// fail reports a generation that does not go on, and gives up what is in memory: it is read again from its last checkpoint.
func (b *Backfiller) fail(g *generation, err error) {
	delete(b.jobs, g.id)
	f := b.failures[g.id]
	if f == nil {
		f = new(failed)
		b.failures[g.id] = f
	}
	f.times++
	f.until = b.opts.Now().Add(min(maxBackfillRetry, backfillRetry<<min(f.times-1, 6)))
	if bits.OnesCount64(f.times) == 1 { // ever more rarely
		b.opts.Logger.Error("backfill failed; it is tried again", "planned_at", g.id, "consecutive", f.times, "err", err)
	}
	if errors.Is(err, ErrCorruptState) || bucket.Damaged(err) {
		if derr := b.panes.store.DropGeneration(uint64(g.id)); derr == nil {
			b.panes.backfills.restarts(g.id)
		}
	}
	b.panes.backfills.report(g.id, func(p *Backfill) { p.Err, p.Failures, p.Left = err, f.times, -1 })
}

// tidy forgets generations that are gone, in memory and on disk.
func (b *Backfiller) tidy(ctx context.Context) error {
	var seq log.Seq
	known := make(map[log.Seq]struct{})
	if err := b.panes.visitShard(ctx, 0, func(s *Shard, _ *shelf) {
		if s.generation == 0 {
			seq = s.seq
			for i := range s.generations {
				known[s.generations[i].id] = struct{}{}
			}
		}
	}); err != nil {
		return err
	}
	gone := func(id log.Seq) bool {
		_, ok := known[id]
		return !ok && id <= seq
	}
	maps.DeleteFunc(b.jobs, func(id log.Seq, _ *job) bool { return gone(id) })
	maps.DeleteFunc(b.failures, func(id log.Seq, _ *failed) bool { return gone(id) })
	stored, err := b.panes.store.Generations()
	for _, id := range stored {
		if gone(log.Seq(id)) {
			err = errors.Join(err, b.panes.store.DropGeneration(id))
		}
	}
	return err
}

// advance folds the next events of a generation. hurry says that the end is near, and resting would only make it recede.
func (b *Backfiller) advance(ctx context.Context, g *generation) (hurry bool, err error) {
	j := b.jobs[g.id]
	if j == nil {
		if j, err = b.load(g); err != nil {
			return false, err
		}
		b.jobs[g.id] = j
	}
	j.gen = *g
	target := max(b.panes.events.Head(), j.cursor)
	if g.until != 0 {
		target = g.until
	}
	if err := b.fold(ctx, j, target, b.opts.Batch); err != nil {
		return false, err
	}
	if err := b.write(j, false); err != nil {
		return false, err
	}
	b.observe(j, target)
	switch {
	case g.until != 0 && j.cursor >= g.until:
		return false, b.end(ctx, j)
	case g.until == 0 && j.cursor+j.near >= target:
		return true, b.handOver(ctx, j)
	}
	return false, nil
}

// load reads how far a generation came.
func (b *Backfiller) load(g *generation) (*job, error) {
	p, err := planAt(b.history, g.id)
	if err != nil {
		return nil, err
	}
	store, index := b.panes.store, b.panes.index
	j := &job{gen: *g, sets: &foundLabels{sets: index}, recent: newRecentWrites(), cursor: g.from - 1, near: nearEvents, wrote: b.opts.Now()}
	at, note, ok, err := store.GenerationNote(uint64(g.id))
	if err != nil {
		return nil, err
	}
	if ok {
		j.cursor = log.Seq(at)
		if err := j.recent.decode(note, j.cursor); err != nil {
			return nil, err
		}
	}
	j.recent.savedTo = log.Seq(1<<64 - 1) // the note has what is remembered, and nothing else is ever asked for
	for i := range Shards {
		seq, state, ok, err := store.GenerationState(uint64(g.id), i)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			j.shards[i], err = newGenerationShard(i, j.sets, g, p)
		default:
			j.shards[i], err = b.panes.restoreGenerationShard(i, j.sets, g.id, seq, state)
		}
		if err = cmp.Or(j.sets.err(), err); err != nil {
			return nil, err
		}
		if j.shards[i].seq < j.cursor {
			return nil, fmt.Errorf("shard %d: %w: state of %d, and all reflect %d", i, ErrCorruptState, j.shards[i].seq, j.cursor)
		}
	}
	j.reader = b.history.NewReader(j.cursor + 1)
	j.meter = projections.NewMeter(j.cursor, b.panes.events.Head(), b.opts.Now)
	return j, nil
}

// planAt reads the plan that an event put in force.
func planAt(history History, seq log.Seq) (*plan.Plan, error) {
	ev, err := history.NewReader(seq).Next()
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	body, ok := ev.Body.(*log.Plan)
	if !ok {
		return nil, fmt.Errorf("event %d is no plan", seq)
	}
	p, err := plan.Decode(body.Spec)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", seq, err)
	}
	return p, nil
}

// fold folds up to n events, none beyond through.
func (b *Backfiller) fold(ctx context.Context, j *job, through log.Seq, n int) error {
	samples := uint64(0)
	defer func() { j.meter.Observe(j.cursor, samples) }()
	for ; n > 0 && j.cursor < through; n-- {
		ev, err := j.reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if w, ok := ev.Body.(*log.Write); ok {
			samples += uint64(len(w.Times))
			err = j.admit(w, ev.Seq, b.panes.store)
		}
		var healing *Healing
		if h, ok := ev.Body.(*log.Heal); ok && ev.Seq > j.gen.id && b.panes.opts.Heal != nil {
			healing, err = b.panes.opts.Heal(ctx, *h)
		}
		if err == nil {
			repeats := j.recent.judge([]*log.Event{ev})
			_, err = j.shards.apply(ev, repeats != nil, healing)
		}
		if err = cmp.Or(j.sets.err(), err); err != nil {
			return fmt.Errorf("apply event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
		}
		for i, s := range j.shards {
			if len(s.evicted) > 0 {
				j.shelves[i].depart(s)
			}
		}
		j.cursor = ev.Seq
	}
	return nil
}

// admit has the records of the evicted series that a write names at hand.
func (j *job) admit(w *log.Write, at log.Seq, store *bucket.Store) error {
	for _, s := range j.shards {
		clear(s.returning)
	}
	for ref := range namedIn(w) {
		i := ShardOf(ref)
		if s := j.shards[i]; s.seq < at && s.slots.get(ref) == 0 {
			if err := s.remember(ref, j.shelves[i].gone, store); err != nil {
				return err
			}
		}
	}
	return nil
}

// gather looks up the label sets of the series in memory, for those who read them once they are handed over.
func (j *job) gather(index *series.Index) error {
	if j.labels == nil {
		j.labels = make(map[log.SeriesRef]labels.Labels)
	}
	for _, s := range j.shards {
		for i := range s.series {
			ref := s.series[i].ref
			if _, ok := j.labels[ref]; ok || ref == 0 {
				continue
			}
			ls, ok, err := index.Find(ref)
			if err != nil || !ok {
				return cmp.Or(err, errNoLabels(ref))
			}
			j.labels[ref] = ls
		}
	}
	return nil
}

// write makes a checkpoint of the generation if it is due.
func (b *Backfiller) write(j *job, now bool) error {
	if b.inMemory {
		return nil
	}
	var held, state int64
	for _, s := range j.shards {
		held += s.table.Memory()
		state += stateBytesPerSeries * int64(len(s.series))
	}
	if !now && held < max(b.opts.Held, state) && b.opts.Now().Sub(j.wrote) < backfillCommitInterval {
		return nil
	}
	c := bucket.GenerationCheckpoint{Generation: uint64(j.gen.id), Seq: uint64(j.cursor), Note: j.recent.encode()}
	for i, s := range j.shards {
		state, over := s, len(s.streams) == 0
		if over {
			state = s.ended()
		}
		evicted, _ := j.shelves[i].writing()
		c.Parts = append(c.Parts, bucket.GenerationPart{
			Shard: i, Seq: uint64(s.seq), State: state.Encode(), Table: s.table, Evicted: evicted, Experiments: state.experimentRows(), Ended: over,
		})
	}
	if err := b.panes.store.CommitGeneration(c); err != nil {
		return err
	}
	for i, s := range j.shards {
		s.table = bucket.NewTable()
		s.experimentsSaved(s.seq)
		j.shelves[i].stand(c.Parts[i].Evicted)
	}
	j.wrote = b.opts.Now()
	b.panes.backfills.wrote(j.gen.id, j.cursor)
	return nil
}

// observe reports how far a generation has come.
func (b *Backfiller) observe(j *job, target log.Seq) {
	left := time.Duration(-1)
	if rate := j.meter.Progress().EventsPerSecond; rate > 0 {
		left = time.Duration(float64(target-min(j.cursor, target)) / rate * float64(time.Second))
	}
	delete(b.failures, j.gen.id)
	b.panes.backfills.report(j.gen.id, func(p *Backfill) {
		p.Seq, p.Left, p.CatchingUp = j.cursor, left, j.cursor+j.near >= target
		p.Err, p.Failures = nil, 0
	})
}

// end hands over what a generation has published whose streams are no longer planned.
func (b *Backfiller) end(ctx context.Context, j *job) error {
	if err := b.write(j, true); err != nil {
		return err
	}
	if err := b.panes.enter(ctx); err != nil {
		return err
	}
	taken, err := b.hand(ctx, j, true)
	b.panes.leave()
	if err != nil {
		return err
	}
	return b.done(ctx, j, taken, true)
}

// handOver folds what is still missing, in turn, and hands the generation over to the workers; or does nothing, if that is too
// much to hold up the live fold for.
func (b *Backfiller) handOver(ctx context.Context, j *job) error {
	p := b.panes
	furthest := j.cursor // shards may be further on, after a crash
	for _, s := range j.shards {
		furthest = max(furthest, s.seq)
	}
	if err := p.waitDispatched(ctx, furthest); err != nil {
		return err
	}
	if err := j.gather(p.index); err != nil { // most of them, before anybody waits for it
		return err
	}
	taken, to, err := b.tryHandOver(ctx, j)
	switch {
	case err != nil:
		return err
	case taken != nil:
		return b.done(ctx, j, taken, false)
	}
	// Nothing is lost by waiting until the workers have what was dispatched: it may be the plan that ends the generation.
	return p.waitApplied(ctx, to)
}

// tryHandOver puts the generation into the workers' queues; taken is nil if it does not.
func (b *Backfiller) tryHandOver(ctx context.Context, j *job) (taken <-chan struct{}, to log.Seq, err error) {
	p := b.panes
	if err := p.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer p.leave()
	to = log.Seq(p.dispatched.Load())
	if to-j.cursor > j.near {
		j.near = min(2*j.near, maxNear)
		return nil, j.cursor, nil
	}
	if err := b.fold(ctx, j, to, int(j.near)); err != nil {
		return nil, 0, err
	}
	for _, s := range j.shards {
		if s.seq != to {
			return nil, 0, fmt.Errorf("shard %d stands at %d, not at %d", s.id, s.seq, to)
		}
		if len(s.streams) == 0 {
			return nil, to, nil
		}
	}
	if err := j.gather(p.index); err != nil {
		return nil, 0, err
	}
	taken, err = b.hand(ctx, j, false)
	return taken, to, err
}

// hand puts a generation into the workers' queues, in turn. From each comes a word when it has taken it over.
func (b *Backfiller) hand(ctx context.Context, j *job, over bool) (taken <-chan struct{}, err error) {
	delete(b.jobs, j.gen.id) // its shards are the workers' from here on
	done := make(chan struct{}, len(b.panes.workers))
	h := &handing{id: j.gen.id, from: j.gen.from, shards: j.shards, pieces: j.cursor, over: over, labels: j.labels}
	for i := range j.shelves {
		h.evicted[i] = j.shelves[i].evicted
	}
	return done, b.panes.send(ctx, message{handing: h, done: done})
}

// done waits until the workers have taken a generation over.
func (b *Backfiller) done(ctx context.Context, j *job, taken <-chan struct{}, over bool) error {
	p := b.panes
	for range p.workers {
		select {
		case <-taken:
		case <-p.failed:
			return p.err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.backfills.handedOver(j.gen.id, over)
	b.opts.Logger.Info("Backfill done", "planned_at", j.gen.id, "streams", len(j.gen.streams), "from", j.gen.from, "through", j.cursor,
		"took", j.meter.Progress().Elapsed.Round(time.Millisecond), "in_force", !over)
	return nil
}
