package pane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// findBatch is the number of events that the passes of FindLate take at a time.
const findBatch = 256

// History is the log as FindLate reads it.
type History interface {
	NewReader(from log.Seq) *log.Reader
}

// FindOptions of FindLate. The zero value is usable.
type FindOptions struct {
	Workers int                                        // default GOMAXPROCS; what is found does not depend on it
	Observe func(pass int, at log.Seq, samples uint64) // called after each batch, with the samples in it; pass is from 1; may be nil
}

// FindLate finds what a heal changes: what the fold has refused as late, and what the buckets are with it. It folds the events
// twice from base on, the views as of an event that is not after h.From; nil: from the first event. The first pass collects the refused
// samples, the second has only the series that they belong to and folds their buckets with them in place. So beside the state of
// the fold, memory grows with the late samples, and by a record for each series that has stopped. Two more passes follow for each
// later generation, or one if nothing of it is late. The label sets must be those of every series that the events name.
func FindLate(ctx context.Context, history History, sets LabelSets, base *bucket.Store, h log.Heal, opts FindOptions) (*Healing, error) {
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	opts.Workers = min(opts.Workers, Shards)
	if opts.Observe == nil {
		opts.Observe = func(int, log.Seq, uint64) {}
	}
	s := &search{
		history: history, sets: sets, base: base, heal: h, opts: opts,
		out: &Healing{Streams: make(map[plan.StreamID]HealCounts), buckets: make(map[log.Seq]*[Shards][]healedBucket)},
	}
	ended, err := s.look(ctx, generation{})
	if err != nil {
		return nil, err
	}
	s.out.Plan = ended.plan
	for _, gen := range ended.generations {
		if gen.until != 0 {
			continue
		}
		s.out.Later++
		if _, err := s.look(ctx, gen); err != nil {
			return nil, fmt.Errorf("streams planned at %d: %w", gen.id, err)
		}
	}
	return s.out, nil
}

// search is one call of FindLate.
type search struct {
	history History
	sets    LabelSets
	base    *bucket.Store
	heal    log.Heal
	opts    FindOptions
	passes  int
	out     *Healing
}

// look finds what a heal changes in one generation; the zero value is the first. It returns a shard of it as of the heal.
func (s *search) look(ctx context.Context, gen generation) (*Shard, error) {
	first, err := s.pass(ctx, gen, func(int) *shadow { return newShadow() })
	if err != nil {
		return nil, err
	}
	ended := first.shards[0]
	var seconds [Shards]*shadow
	late := false
	for id, sh := range first.shards {
		sh.shadow.lost(s.out)
		seconds[id] = sh.shadow.second()
		late = late || seconds[id] != nil
		first.shards[id] = nil // what it held is not needed beside the second pass
	}
	if !late {
		return ended, nil
	}
	second, err := s.pass(ctx, gen, func(id int) *shadow { return seconds[id] })
	if err != nil {
		return nil, err
	}
	for _, sh := range second.shards {
		if sh != nil {
			sh.shadow.healing(sh, s.out)
		}
	}
	return ended, nil
}

func (s *search) pass(ctx context.Context, gen generation, shadowOf func(int) *shadow) (*finder, error) {
	s.passes++
	f, err := s.newFinder(gen, shadowOf)
	if err != nil {
		return nil, err
	}
	return f, f.run(ctx, s.history, s.heal, s.passes, s.opts)
}

// finder is one pass.
type finder struct {
	gen    generation
	live   bool           // the fold of the base had taken the generation over
	shards [Shards]*Shard // nil: of no interest
	base   *bucket.Store
	sets   *foundLabels
	gone   [Shards]map[log.SeriesRef]*bucket.Evicted // what was evicted
	recent *recentWrites
	at     log.Seq // every shard reflects the events up to here; some may reflect more
	newest log.Seq
}

// newFinder restores the shards that have a shadow.
func (s *search) newFinder(gen generation, shadowOf func(int) *shadow) (*finder, error) {
	f := &finder{gen: gen, base: s.base, sets: &foundLabels{sets: s.sets}}
	start := f.firstShard
	if gen.id != 0 {
		start = s.laterShards(f)
	}
	for id := range Shards {
		sh, err := start(id)
		if err = cmp.Or(f.sets.err(), err); err != nil {
			return nil, fmt.Errorf("base: shard %d: %w", id, err)
		}
		if id == 0 || sh.seq < f.at {
			f.at = sh.seq
		}
		f.newest = max(f.newest, sh.seq)
		if sh.shadow = shadowOf(id); sh.shadow != nil {
			f.shards[id] = sh
		}
	}
	return f, f.recall()
}

// firstShard returns a shard of the first generation as the base has it.
func (f *finder) firstShard(id int) (*Shard, error) {
	if f.base == nil {
		return NewShard(id, f.sets), nil
	}
	_, state, ok, err := f.base.State(id)
	if err != nil || !ok {
		return NewShard(id, f.sets), err
	}
	return DecodeShard(id, f.sets, state)
}

// laterShards returns what returns the shards of a later generation: as the base has them, or before their first event.
func (s *search) laterShards(f *finder) func(int) (*Shard, error) {
	var began *plan.Plan
	f.live = f.base != nil
	return func(id int) (*Shard, error) {
		if f.base != nil {
			seq, state, ok, err := f.base.GenerationState(uint64(f.gen.id), id)
			if err != nil {
				return nil, err
			}
			first, _, _, err := f.base.State(id)
			if err != nil {
				return nil, err
			}
			f.live = f.live && ok && seq == first
			if ok {
				return decodeGenerationShard(id, f.sets, f.gen.id, seq, state)
			}
		}
		if began == nil {
			p, err := planAt(s.history, f.gen.id)
			if err != nil {
				return nil, err
			}
			began = p
		}
		return newGenerationShard(id, f.sets, &f.gen, began)
	}
}

// recall restores which writes are remembered where the pass begins.
func (f *finder) recall() (err error) {
	f.recent = newRecentWrites()
	if f.base == nil {
		return nil
	}
	if f.gen.id != 0 && !f.live { // it is folded on from where the fold in the background had come, or from its first event
		at, note, ok, err := f.base.GenerationNote(uint64(f.gen.id))
		if err != nil || !ok {
			return err
		}
		f.at = log.Seq(at)
		return f.recent.decode(note, f.at)
	}
	f.recent, err = restoreRecent(f.base, f.at)
	return err
}

// run folds the events up to the end of the heal.
func (f *finder) run(ctx context.Context, history History, h log.Heal, pass int, opts FindOptions) error {
	if f.gen.id == 0 && f.newest > h.From { // nothing of a base reflects more than its own shards
		return fmt.Errorf("the heal begins behind sequence %d, and the base reflects %d already", h.From, f.newest)
	}
	groups := make([]group, opts.Workers)
	for id, s := range f.shards {
		groups[id%len(groups)][id] = s
	}
	reader := history.NewReader(f.at + 1)
	read := func(at, to log.Seq) ([]*log.Event, uint64, error) {
		return readEvents(reader, int(min(findBatch, to-at)))
	}
	for _, to := range []log.Seq{h.From, h.Through} {
		if err := f.fold(ctx, groups, read, to, pass, opts); err != nil {
			return err
		}
		if to == h.From {
			for _, s := range f.shards {
				if s != nil {
					s.shadow.begin(s)
				}
			}
		}
	}
	return nil
}

// fold takes the shards from f.at to an event. One batch is folded while the next is read.
func (f *finder) fold(ctx context.Context, groups []group, read func(at, to log.Seq) ([]*log.Event, uint64, error), to log.Seq, pass int, opts FindOptions) error {
	if f.at >= to {
		return nil
	}
	events, samples, err := read(f.at, to)
	for err == nil && len(events) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		repeats := f.recent.judge(events)
		var g errgroup.Group
		for i := range groups {
			g.Go(func() error { return f.applyBatch(&groups[i], events, repeats) })
		}
		last := events[len(events)-1].Seq
		next, nextSamples, readErr := read(last, to)
		if err := g.Wait(); err != nil {
			return err
		}
		f.at = last
		opts.Observe(pass, last, samples)
		events, samples, err = next, nextSamples, readErr
	}
	return err
}

// applyBatch folds events into a group.
func (f *finder) applyBatch(g *group, events []*log.Event, repeats []log.Seq) error {
	for i, ev := range events {
		if err := f.admit(g, ev); err != nil {
			return err
		}
		_, err := g.apply(ev, repeats != nil && repeats[i] >= max(f.gen.from, 1), nil)
		if err = cmp.Or(f.sets.err(), err); err != nil {
			return fmt.Errorf("apply event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
		}
		f.collect(g)
	}
	return nil
}

// admit has the records of the evicted series that an event names at hand.
func (f *finder) admit(g *group, ev *log.Event) error {
	w, ok := ev.Body.(*log.Write)
	if !ok {
		return nil
	}
	for ref := range namedIn(w) {
		id := ShardOf(ref)
		s := g[id]
		if s == nil || s.slots.get(ref) != 0 || s.shadow.ignores(ref) {
			continue
		}
		if e := f.gone[id][ref]; e != nil {
			s.returning = f.gone[id]
			continue
		}
		if f.base == nil {
			continue
		}
		e, ok, err := f.base.EvictedOf(uint64(f.gen.id), uint64(ref))
		if err != nil {
			return err
		}
		if ok {
			f.keep(id, &e)
			s.returning = f.gone[id]
		}
	}
	return nil
}

func (f *finder) collect(g *group) {
	for id, s := range g {
		if s == nil {
			continue
		}
		for i := range s.evicted {
			if !s.evicted[i].Stays {
				f.keep(id, &s.evicted[i])
			}
		}
		s.evicted = nil
	}
}

func (f *finder) keep(id int, e *bucket.Evicted) {
	if f.gone[id] == nil {
		f.gone[id] = make(map[log.SeriesRef]*bucket.Evicted)
	}
	f.gone[id][log.SeriesRef(e.Ref)] = e
}

// LabelSets is where the label sets of all series are found, resident or not.
type LabelSets interface {
	Find(ref log.SeriesRef) (labels.Labels, bool, error)
}

// foundLabels makes a LabelSource of LabelSets. The first error stays.
type foundLabels struct {
	sets   LabelSets
	failed atomic.Pointer[error]
}

func (l *foundLabels) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	ls, ok, err := l.sets.Find(ref)
	if err != nil {
		l.failed.CompareAndSwap(nil, &err)
	}
	return ls, ok && err == nil
}

func (l *foundLabels) err() error {
	if p := l.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// readEvents reads n events.
func readEvents(r *log.Reader, n int) (events []*log.Event, samples uint64, err error) {
	for range n {
		e, err := r.Next()
		if err != nil {
			return nil, 0, errors.Join(errors.New("the log ends before the heal"), err)
		}
		if w, ok := e.Body.(*log.Write); ok {
			samples += uint64(len(w.Times))
		}
		events = append(events, e)
	}
	return events, samples, nil
}
