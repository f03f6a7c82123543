package pane

import (
	"context"
	"fmt"
	"sync/atomic"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// message is what a worker takes from its queue: a batch of events, or a visit to its shards.
type message struct {
	events  []*log.Event
	repeats []bool               // parallel to events; nil: none repeats an earlier write
	healing map[log.Seq]*Healing // what the heals among the events change
	visit   visit
	done    chan<- struct{} // receives once the visit is over; never blocks
}

// shelf is where a shard's closed buckets stand: tables on their way to disk, and up to where pieces hold the rest.
type shelf struct {
	leaving  []*bucket.Table // handed to a checkpoint that is not committed yet, oldest first
	pieceSeq log.Seq         // of the last checkpoint committed

	// Records of evicted series that no checkpoint has written yet, oldest first: readers take the header, what is behind it is never
	// changed. The newest of each series is found by gone.
	evicted []bucket.Evicted
	tried   int // of them, a checkpoint has tried to write so many
	gone    map[log.SeriesRef]*bucket.Evicted
}

// worker owns shards. Only its goroutine touches them.
type worker struct {
	p       *Projection
	queue   chan message
	shards  group
	shelves [Shards]*shelf
	applied atomic.Uint64
}

func newWorker(p *Projection) *worker {
	return &worker{p: p, queue: make(chan message, queuedBatches)}
}

// own gives the worker a shard, before it runs.
func (w *worker) own(s *Shard) {
	w.shards[s.id] = s
	w.shelves[s.id] = &shelf{pieceSeq: s.seq}
}

// run takes messages until ctx ends or an event cannot be applied.
func (w *worker) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-w.queue:
			if err := w.take(m); err != nil {
				return w.p.fail(err)
			}
		}
	}
}

func (w *worker) take(m message) error {
	if m.visit != nil {
		for id, s := range w.shards {
			if s != nil {
				m.visit(s, w.shelves[id])
			}
		}
		m.done <- struct{}{}
		return nil
	}
	for i, ev := range m.events {
		if ev.Seq <= log.Seq(w.applied.Load()) {
			continue
		}
		if err := w.admit(ev); err != nil {
			return fmt.Errorf("event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
		}
		closed, err := w.shards.apply(ev, m.repeats != nil && m.repeats[i], m.healing[ev.Seq])
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
			w.p.planNow.Store(w.any().plan)
		}
		w.applied.Store(uint64(ev.Seq))
	}
	w.p.changed.fire()
	return nil
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
