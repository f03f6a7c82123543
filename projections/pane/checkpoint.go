package pane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
)

const (
	// flushTimeout is how long the flush of a round may take; then the round has failed.
	flushTimeout = 30 * time.Second
	// finalFlushTimeout bounds what a stop waits for a disk that does not take the last checkpoint. The log has everything.
	finalFlushTimeout = 10 * time.Second

	// roundSamples is the number of samples after which every shard is written once, if that is sooner than the interval: what a
	// restart replays is bounded by what there is to fold, not by time alone. With many series a round costs more, so it comes after
	// at least roundPerSeries samples of each.
	roundSamples   = 4 << 20
	roundPerSeries = 64

	// maxLate is by how many steps a turn may be late before no more samples are taken, and maxHold for how long they are not.
	maxLate = 4
	maxHold = time.Second
)

// checkpointStats is what metrics and truncation read of checkpoints.
type checkpointStats struct {
	durable  atomic.Uint64 // least sequence over all shards that a crash cannot take back
	failures atomic.Uint64 // consecutive failures; 0 after a success
	rounds   atomic.Uint64

	held    atomic.Int64 // ns: the longest that a shard of the round under way was frozen for
	longest atomic.Int64 // ns: the same of the last round

	rooms []atomic.Pointer[[]byte] // by worker, that a state was encoded into; whoever encodes takes it
}

// LongestHold returns for how long at most a worker stood still for a checkpoint, in the last round of all shards.
func (p *Projection) LongestHold() time.Duration { return time.Duration(p.ckpt.longest.Load()) }

// pacing makes checkpoints come sooner where many samples are folded, and samples later where checkpoints do not keep up with them.
type pacing struct {
	fed   atomic.Int64  // samples that the workers were given
	taken atomic.Int64  // of them, those that had been given when a shard's turn came last
	step  atomic.Int64  // samples from one shard's turn to the next, at most
	due   chan struct{} // has room for one
	turn  projections.Signal
}

// feed counts samples, and says when the next shard's turn has come.
func (c *pacing) feed(samples int64) {
	if c.fed.Add(samples)-c.taken.Load() >= c.step.Load() {
		select {
		case c.due <- struct{}{}:
		default:
		}
	}
}

// take begins a turn, and returns how many shards it is for: as many as are due, one at least, most at most.
func (c *pacing) take(most int) int {
	fed := c.fed.Load()
	late := fed - c.taken.Swap(fed)
	c.turn.Fire()
	return int(max(1, min(int64(most), late/max(1, c.step.Load()))))
}

// hold waits for the next turn if that is late by maxLate steps: a replay reads faster than a disk may write, and what has closed and is
// not written takes memory. It never waits for longer than maxHold, as a disk that hangs must not end the fold.
func (c *pacing) hold(ctx context.Context) {
	turn := c.turn.Wait()
	if c.fed.Load()-c.taken.Load() < maxLate*c.step.Load() {
		return
	}
	limit := time.NewTimer(maxHold)
	defer limit.Stop()
	select {
	case <-turn:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// samplesIn counts the samples of events.
func samplesIn(events []*log.Event) (n int64) {
	for _, ev := range events {
		if w, ok := ev.Body.(*log.Write); ok {
			n += int64(len(w.Times))
		}
	}
	return n
}

// Durable returns the sequence from which a restart after a crash replays, at most. Generations that are folded in the background
// may ask for earlier events; see Wanted.
func (p *Projection) Durable() log.Seq { return log.Seq(p.ckpt.durable.Load()) }

// Wanted returns the first event that a restart after a crash would ask the log for, at most.
func (p *Projection) Wanted() log.Seq { return min(p.Durable()+1, p.backfills.wanted()) }

// CheckpointFailures returns the number of consecutive failures to write a checkpoint.
func (p *Projection) CheckpointFailures() uint64 { return p.ckpt.failures.Load() }

// Waiting returns the bytes of closed buckets, records of evicted series and hashes of writes that checkpoints have tried, and failed so far, to write.
func (p *Projection) Waiting() int64 { return p.waiting.Load() + p.recent.spilled() }

// checkpointLoop writes one shard after the other, spread over the interval or over so many samples, and flushes after each round. Where
// turns come too late for the samples, that is one shard of each worker at a time. One alone stands still in a worker, and its other shards
// are folded before the next one is frozen. A failure is logged and counted, and the shard is tried again in the next round; what it closed
// stays readable in memory.
func (p *Projection) checkpointLoop(ctx context.Context) error {
	pace := time.NewTicker(max(p.opts.CheckpointInterval/Shards, time.Millisecond))
	defer pace.Stop()
	for {
		p.pacing.step.Store(max(p.opts.roundSamples, roundPerSeries*int64(p.index.Len())) / Shards)
		var err error
		for id := 0; id < Shards; {
			select {
			case <-ctx.Done():
				return nil
			case <-pace.C:
			case <-p.pacing.due:
			}
			var turn errgroup.Group
			shards := p.pacing.take(min(len(p.workers), Shards-id))
			for i := range shards {
				turn.Go(func() error { return p.checkpointShard(ctx, id+i) })
			}
			err = cmp.Or(err, turn.Wait())
			id += shards
		}
		if err == nil {
			err = p.flush(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			n := p.ckpt.failures.Add(1)
			p.logger.Error("checkpoint failed", "projection", p.Name(), "consecutive", n, "err", err)
		default:
			p.ckpt.failures.Store(0)
			p.ckpt.rounds.Add(1)
			p.ckpt.longest.Store(p.ckpt.held.Swap(0))
		}
	}
}

// Checkpoint writes every shard and makes it durable. Of each worker one shard stands still at a time. It is for whoever has the projection
// write no checkpoints by itself: a shard is written by one at a time.
func (p *Projection) Checkpoint(ctx context.Context) error {
	var g errgroup.Group // one that fails does not keep the others from taking note of what they have written
	for first := range p.workers {
		g.Go(func() error {
			for id := first; id < Shards; id += len(p.workers) {
				if err := p.checkpointShard(ctx, id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return p.flush(ctx)
}

// visitShard runs f in the worker that owns the shard, behind the batch that it is at, and waits for it. What stands in the worker's queue
// does not come first: in a replay the queue is always full, and a round of checkpoints, with two visits a shard, would take for ever.
func (p *Projection) visitShard(ctx context.Context, id int, f func(*Shard, *shelf)) error {
	done := make(chan struct{}, 1)
	if err := p.postVisit(ctx, id, f, done); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-p.failed:
		return p.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// postVisit is visitShard for who does not wait: f runs before any other visit of the shard that is posted later.
func (p *Projection) postVisit(ctx context.Context, id int, f func(*Shard, *shelf), done chan<- struct{}) error {
	return p.sendTo(ctx, p.workers[id%len(p.workers)].visits, message{done: done, visit: func(s *Shard, sh *shelf) {
		if s.id == id {
			f(s, sh)
		}
	}})
}

// checkpointShard freezes a shard in its worker, writes it beside it, and drops what was written from memory (P7).
func (p *Projection) checkpointShard(ctx context.Context, id int) error {
	var c bucket.Checkpoint
	room := p.takeRoom(id)
	var held time.Duration
	if err := p.visitShard(ctx, id, func(s *Shard, sh *shelf) {
		began := time.Now() // the shards of one number are one stop
		room = p.freeze(&c, s, sh, room)
		held += time.Since(began)
	}); err != nil {
		return fmt.Errorf("freeze shard %d: %w", id, err)
	}
	for longest := p.ckpt.held.Load(); int64(held) > longest && !p.ckpt.held.CompareAndSwap(longest, int64(held)); {
		longest = p.ckpt.held.Load()
	}
	err := p.commit(c)
	p.giveRoom(id, room)
	if err != nil {
		return err
	}
	if err := p.postVisit(ctx, id, func(s *Shard, sh *shelf) { p.release(s, sh, &c) }, make(chan struct{}, 1)); err != nil {
		return fmt.Errorf("release shard %d: %w", id, err)
	}
	return nil
}

// commit writes a checkpoint, and with it what it must remember of the writes up to its sequence that no checkpoint has
// written before. Batches become durable in their order, so whatever event a restart replays from, that is durable up to there.
func (p *Projection) commit(c bucket.Checkpoint) error {
	add, keep := p.recent.unsaved(log.Seq(c.Seq))
	c.Recent, c.KeepRecent = add, uint64(keep)
	if plantedRecentLost {
		c.Recent = nil
	}
	if err := p.store.Commit(c); err != nil {
		return err
	}
	p.recent.saved(log.Seq(c.Seq))
	return nil
}

// takeRoom returns memory to encode the states of a shard into. It grows to what the largest shard takes, and stays: in the worker nothing is allocated.
func (p *Projection) takeRoom(id int) []byte {
	if b := p.ckpt.rooms[id%len(p.workers)].Swap(nil); b != nil {
		return (*b)[:0]
	}
	return nil
}

// giveRoom takes it back, once what was encoded into it is written.
func (p *Projection) giveRoom(id int, b []byte) {
	if spare := cap(b) - len(b); spare < len(b)/8 { // the next one may be a little larger
		b = make([]byte, 0, len(b)+len(b)/4)
	}
	p.ckpt.rooms[id%len(p.workers)].Store(&b)
}

// freeze takes the state of a shard into a checkpoint, and moves its table to those that are on their way to disk. It is called
// for the shard of the first generation and then for those of the others that were taken over. The states are appended to room, which is
// returned with them.
func (p *Projection) freeze(c *bucket.Checkpoint, s *Shard, sh *shelf, room []byte) []byte {
	p.shelve(s, sh)
	if plantedCheckpointAhead && p.events.Head() > s.seq {
		s.seq++
		defer func() { s.seq-- }()
	}
	from := len(room)
	room = s.AppendState(room)
	state := room[from:len(room):len(room)]
	if s.generation == 0 {
		c.Shard, c.Seq, c.State = s.id, uint64(s.seq), state
		c.Experiments, c.Generations = s.experimentRows(), slices.Clone(sh.finals)
		var fresh int64
		c.Evicted, fresh = sh.writing()
		p.waiting.Add(fresh)
	} else {
		c.Generations = append(c.Generations, bucket.GenerationState{
			Generation: uint64(s.generation), Seq: uint64(s.seq), State: state, Experiments: s.experimentRows(),
		})
	}
	c.Tables = slices.Clone(sh.leaving)
	return room
}

// shelve moves a shard's table to those that are on their way to disk.
func (p *Projection) shelve(s *Shard, sh *shelf) {
	if s.table.Len() > 0 {
		p.waiting.Add(int64(s.table.Bytes()))
		sh.leaving = append(sh.leaving, s.table)
		s.table = bucket.NewTable()
	}
}

// release forgets what now stands in pieces.
func (p *Projection) release(s *Shard, sh *shelf, c *bucket.Checkpoint) {
	if s.generation != 0 { // the rest is done once for all
		if slices.ContainsFunc(c.Generations, func(g bucket.GenerationState) bool { return g.Generation == uint64(s.generation) && !g.Ended }) {
			s.experimentsSaved(log.Seq(c.Seq))
		}
		return
	}
	s.experimentsSaved(log.Seq(c.Seq))
	for _, t := range c.Tables {
		p.waiting.Add(-int64(t.Bytes()))
	}
	sh.leaving = slices.Clone(sh.leaving[len(c.Tables):])
	p.waiting.Add(-sh.stand(c.Evicted))
	sh.pieceSeq = log.Seq(c.Seq)
	sh.finals = slices.DeleteFunc(sh.finals, func(f bucket.GenerationState) bool {
		return slices.ContainsFunc(c.Generations, func(g bucket.GenerationState) bool { return g.Generation == f.Generation })
	})
	for _, g := range c.Generations {
		p.backfills.saved(log.Seq(g.Generation), s.id)
	}
}

// flush makes the committed checkpoints durable.
func (p *Projection) flush(ctx context.Context) error {
	least := log.Seq(0)
	for id := range Shards {
		if err := p.visitShard(ctx, id, func(_ *Shard, sh *shelf) {
			if id == 0 || sh.pieceSeq < least { // for one shard always the same
				least = sh.pieceSeq
			}
		}); err != nil {
			return err
		}
	}
	bound, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	flushed := p.backfills.flushing()
	if err := p.store.Flush(bound); err != nil {
		return err
	}
	flushed()
	p.ckpt.durable.Store(uint64(least))
	p.store.Durable(uint64(least))
	p.recent.durable(least)
	return nil
}

// finalCheckpoint writes every shard after the workers have ended.
func (p *Projection) finalCheckpoint() error {
	ctx, cancel := context.WithTimeout(context.Background(), finalFlushTimeout)
	defer cancel()
	// The stop may have come in the middle of a flush, behind which nothing is committed.
	failed := p.store.AwaitFlush(ctx)
	var g errgroup.Group // nobody folds any more, so that there is a processor for each worker
	for _, w := range p.workers {
		g.Go(func() error { return p.lastOf(w) })
	}
	if err := cmp.Or(failed, g.Wait(), p.store.Flush(ctx)); err != nil {
		return fmt.Errorf("last checkpoint: %w", err)
	}
	return nil
}

// lastOf writes every shard of a worker that has ended, as far as it can, and returns why one was not written.
func (p *Projection) lastOf(w *worker) (failed error) {
	for id, s := range w.shards {
		if s == nil {
			continue
		}
		var c bucket.Checkpoint
		room := p.freeze(&c, s, w.shelves[id], p.takeRoom(id))
		for _, h := range w.hosted {
			room = p.freeze(&c, h.shards[id], w.shelves[id], room)
		}
		err := p.commit(c)
		p.giveRoom(id, room)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		p.release(s, w.shelves[id], &c)
	}
	return failed
}
