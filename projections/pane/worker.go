package pane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// message is what a worker takes from its queue: a batch of events, a visit to its shards, or a generation to take over.
type message struct {
	events  []*log.Event
	repeats []log.Seq            // parallel to events: the earlier write that each repeats, 0 if none; nil: none does
	healing map[log.Seq]*Healing // what the heals among the events change
	visit   visit
	handing *handing
	done    chan<- struct{} // receives once the visit is over, or the generation is taken over; never blocks
}

// earlier returns the write that the i-th event repeats; 0 if it repeats none.
func (m *message) earlier(i int) log.Seq {
	if m.repeats == nil {
		return 0
	}
	return m.repeats[i]
}

// repeatsFrom returns the repeats of the i-th event on; nil if there are none.
func (m *message) repeatsFrom(i int) []log.Seq {
	if m.repeats == nil {
		return nil
	}
	return m.repeats[i:]
}

// handing is a generation that was folded up to the place in the queue at which it is handed over.
type handing struct {
	id     log.Seq
	from   log.Seq
	shards group
	pieces log.Seq // of the newest piece that the fold in the background has written
	over   bool    // its streams are no longer planned: what it has published is all that is handed over
	// What has left the memory of the shards, and the label sets of what has not.
	evicted [Shards][]bucket.Evicted
	labels  map[log.SeriesRef]labels.Labels
}

// hosted is the part of a generation that a worker has taken over.
type hosted struct {
	id, from log.Seq
	shards   group
}

// shelf is where a shard's closed buckets stand: tables on their way to disk, and up to where pieces hold the rest.
type shelf struct {
	leaving  []*bucket.Table // handed to a checkpoint that is not committed yet, oldest first
	pieceSeq log.Seq         // of the last checkpoint committed
	taken    log.Seq         // of the newest piece that came with a generation
	// Last states of generations that have ended, for the next checkpoint.
	finals []bucket.GenerationState

	// Records of evicted series that no checkpoint has written yet, oldest first: readers take the header, what is behind it is never
	// changed. The newest of each series is found by gone.
	evicted []bucket.Evicted
	tried   int // of them, a checkpoint has tried to write so many
	gone    map[goneKey]*bucket.Evicted
}

// visible returns up to where pieces count for who reads now.
func (sh *shelf) visible() uint64 { return uint64(max(sh.pieceSeq, sh.taken)) }

// worker owns shards. Only its goroutine touches them.
type worker struct {
	p       *Projection
	queue   chan message
	visits  chan message // of one shard: they come before what stands in the queue
	shards  group
	shelves [Shards]*shelf
	hosted  []*hosted // by generation
	applied atomic.Uint64
}

func newWorker(p *Projection) *worker {
	return &worker{p: p, queue: make(chan message, queuedBatches), visits: make(chan message, 1)}
}

// own gives the worker a shard, before it runs.
func (w *worker) own(s *Shard) {
	w.shards[s.id] = s
	w.shelves[s.id] = &shelf{pieceSeq: s.seq}
}

// run takes messages until ctx ends or an event cannot be applied.
func (w *worker) run(ctx context.Context) error {
	for {
		var m message
		select {
		case m = <-w.visits:
		default:
			select {
			case <-ctx.Done():
				return nil
			case m = <-w.visits:
			case m = <-w.queue:
			}
		}
		if err := w.take(m); err != nil {
			return w.p.fail(err)
		}
	}
}

func (w *worker) take(m message) error {
	switch {
	case m.visit != nil:
		w.show(m.visit)
		m.done <- struct{}{}
		return nil
	case m.handing != nil:
		w.takeOver(m.handing)
		m.done <- struct{}{}
		return nil
	}
	for i := 0; i < len(m.events); {
		if m.events[i].Seq <= log.Seq(w.applied.Load()) {
			i++
			continue
		}
		if n := w.plainWrites(m.events[i:], m.repeatsFrom(i)); n > 1 {
			if err := w.together(m.events[i : i+n]); err != nil {
				return err
			}
			i += n
			continue
		}
		if err := w.takeOne(m.events[i], m.earlier(i), m.healing[m.events[i].Seq]); err != nil {
			return err
		}
		i++
	}
	w.p.changed.Fire()
	return nil
}

// takeOne takes an event by itself.
func (w *worker) takeOne(ev *log.Event, earlier log.Seq, healing *Healing) error {
	if err := w.admit(ev); err != nil {
		return fmt.Errorf("event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
	}
	closed, err := w.apply(ev, earlier, healing)
	w.collect()
	if err != nil {
		return fmt.Errorf("apply event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
	}
	switch b := ev.Body.(type) {
	case *log.Watermark:
		w.p.outcomes.add(ev.Seq, closed, w.proven(b))
	case *log.Drain:
		w.p.outcomes.add(ev.Seq, closed, w.any().proven)
	case *log.Plan:
		w.retire()
		w.p.planNow.Store(w.any().plan)
		w.p.backfills.plan(ev.Seq, w.any().generations)
	}
	w.applied.Store(uint64(ev.Seq))
	return nil
}

// show calls the visit for every shard: of the first generation, and then of those that were taken over.
func (w *worker) show(v visit) {
	for id, s := range w.shards {
		if s != nil {
			v(s, w.shelves[id])
		}
	}
	for _, h := range w.hosted {
		for id, s := range h.shards {
			if s != nil {
				v(s, w.shelves[id])
			}
		}
	}
}

// apply folds one event into the shards of all generations. A write that repeats one from before a generation's first event repeats
// nothing there.
func (w *worker) apply(ev *log.Event, earlier log.Seq, healing *Healing) (closed uint64, err error) {
	if closed, err = w.shards.apply(ev, earlier > 0, healing); err != nil {
		return closed, err
	}
	for _, h := range w.hosted {
		n, err := h.shards.apply(ev, earlier >= h.from, healing)
		if err != nil {
			return closed, fmt.Errorf("streams planned at %d: %w", h.id, err)
		}
		closed += n
	}
	return closed, nil
}

// host adds shards of a generation that stand where the worker's own do.
func (w *worker) host(id, from log.Seq, shards *group) {
	h := &hosted{id: id, from: from}
	for i := range w.shards {
		if w.shards[i] != nil {
			h.shards[i] = shards[i]
		}
	}
	w.hosted = append(w.hosted, h)
	slices.SortFunc(w.hosted, func(a, b *hosted) int { return cmp.Compare(a.id, b.id) })
}

// takeOver takes what is handed over for the worker's shards.
func (w *worker) takeOver(h *handing) {
	for i, s := range h.shards {
		if w.shards[i] == nil {
			continue
		}
		sh := w.shelves[i]
		sh.taken = max(sh.taken, h.pieces)
		w.p.shelve(s, sh)
		s.evicted = h.evicted[i]
		sh.depart(s)
	}
	if h.over {
		return
	}
	for ref, ls := range h.labels {
		if w.shards[ShardOf(ref)] != nil {
			w.p.index.Add(ref, ls)
		}
	}
	for i, s := range h.shards {
		if w.shards[i] != nil {
			s.labels = w.p.index
		}
	}
	w.host(h.id, h.from, &h.shards)
}

// retire lets go of the generations that have no streams left. What they have published stays, unless the plan said otherwise.
func (w *worker) retire() {
	w.hosted = slices.DeleteFunc(w.hosted, func(h *hosted) bool {
		for i, s := range h.shards {
			switch {
			case s == nil:
				continue
			case len(s.streams) > 0:
				return false
			}
			s.releaseAll()
			w.collectFrom(s)
			switch {
			case w.shards[i].generationByID(h.id) != nil:
				w.p.shelve(s, w.shelves[i])
				w.shelves[i].finals = append(w.shelves[i].finals, bucket.GenerationState{
					Generation: uint64(h.id), Seq: uint64(s.seq), State: s.ended().Encode(), Ended: true,
				})
			}
		}
		return true
	})
}

// proven returns what barriers prove now for those whom b concerns, as far as the worker knows.
func (w *worker) proven(b *log.Watermark) int64 {
	t := w.any().proven
	if b.Scoped {
		if s := w.shards[ShardOfExperiment(b.Experiment)]; s != nil {
			if p, ok := s.experiments[b.Experiment]; ok {
				t = max(t, p)
			}
		}
	}
	return t
}

// any returns a shard, for what every shard knows.
func (w *worker) any() *Shard {
	for _, s := range w.shards {
		if s != nil {
			return s
		}
	}
	panic("pane: a worker owns at least one shard")
}
