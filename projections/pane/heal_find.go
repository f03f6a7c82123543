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
	Observe func(pass int, at log.Seq, samples uint64) // called after each batch, with the samples in it; pass is 1 or 2; may be nil
}

// FindLate finds what a heal changes: what the fold has refused as late, and what the buckets are with it. It folds the events
// twice from base on, the views as of an event that is not after h.From; nil: from the first event. The first pass collects the refused
// samples, the second has only the series that they belong to and folds their buckets with them in place. So beside the state of
// the fold, memory grows with the late samples, and by a record for each series that has stopped. The label sets must be those of
// every series that the events name.
func FindLate(ctx context.Context, history History, sets LabelSets, base *bucket.Store, h log.Heal, opts FindOptions) (*Healing, error) {
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	opts.Workers = min(opts.Workers, Shards)
	if opts.Observe == nil {
		opts.Observe = func(int, log.Seq, uint64) {}
	}
	out := &Healing{Streams: make(map[plan.StreamID]HealCounts)}
	first, err := newFinder(sets, base, func(int) *shadow { return newShadow() })
	if err != nil {
		return nil, err
	}
	if err := first.run(ctx, history, h, 1, opts); err != nil {
		return nil, err
	}
	var seconds [Shards]*shadow
	late := false
	out.Plan = first.shards[0].plan
	for _, st := range out.Plan.Streams {
		if first.shards[0].planned(st.ID) != nil {
			out.Beyond = append(out.Beyond, st.ID)
		}
	}
	for id, s := range first.shards {
		s.shadow.lost(out)
		seconds[id] = s.shadow.second()
		late = late || seconds[id] != nil
		first.shards[id] = nil // what it held is not needed beside the second pass
	}
	if !late {
		return out, nil
	}
	second, err := newFinder(sets, base, func(id int) *shadow { return seconds[id] })
	if err != nil {
		return nil, err
	}
	if err := second.run(ctx, history, h, 2, opts); err != nil {
		return nil, err
	}
	for _, s := range second.shards {
		if s != nil {
			s.shadow.healing(s, out)
		}
	}
	return out, nil
}

// finder is one pass.
type finder struct {
	shards [Shards]*Shard // nil: of no interest
	base   *bucket.Store
	sets   *foundLabels
	gone   [Shards]map[log.SeriesRef]*bucket.Evicted // what was evicted
	recent *recentWrites
	at     log.Seq // every shard reflects the events up to here; some may reflect more
	newest log.Seq
}

// newFinder restores the shards that have a shadow.
func newFinder(sets LabelSets, base *bucket.Store, shadowOf func(int) *shadow) (*finder, error) {
	ls := &foundLabels{sets: sets}
	f := &finder{recent: newRecentWrites(), base: base, sets: ls}
	for id := range Shards {
		s := NewShard(id, ls)
		if base != nil {
			_, state, ok, err := base.State(id)
			if err == nil && ok {
				s, err = DecodeShard(id, ls, state)
			}
			if err = cmp.Or(ls.err(), err); err != nil {
				return nil, fmt.Errorf("base: shard %d: %w", id, err)
			}
		}
		if id == 0 || s.seq < f.at {
			f.at = s.seq
		}
		f.newest = max(f.newest, s.seq)
		if s.shadow = shadowOf(id); s.shadow != nil {
			f.shards[id] = s
		}
	}
	if base == nil {
		return f, nil
	}
	var err error
	f.recent, err = restoreRecent(base, f.at)
	return f, err
}

// run folds the events up to the end of the heal.
func (f *finder) run(ctx context.Context, history History, h log.Heal, pass int, opts FindOptions) error {
	if f.newest > h.From {
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
		_, err := g.apply(ev, repeats != nil && repeats[i] > 0, nil)
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
		e, ok, err := f.base.Evicted(uint64(ref))
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
