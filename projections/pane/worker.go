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
	events []*log.Event
	visit  visit
	done   chan<- struct{} // receives once the visit is over; never blocks
}

// shelf is where a shard's closed buckets stand: tables on their way to disk, and up to where pieces hold the rest.
type shelf struct {
	leaving  []*bucket.Table // handed to a checkpoint that is not committed yet, oldest first
	pieceSeq log.Seq         // of the last checkpoint committed
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
	for _, ev := range m.events {
		if ev.Seq <= log.Seq(w.applied.Load()) {
			continue
		}
		closed, err := w.shards.apply(ev)
		if err != nil {
			return fmt.Errorf("apply event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
		}
		switch ev.Body.Kind() {
		case log.KindWatermark, log.KindDrain:
			w.p.outcomes.add(ev.Seq, closed, w.any().proven)
		case log.KindPlan:
			w.p.planNow.Store(w.any().plan)
		}
		w.applied.Store(uint64(ev.Seq))
	}
	w.p.changed.fire()
	return nil
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
