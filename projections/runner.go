package projections

import (
	"context"
	"fmt"
	"sync/atomic"

	"tidemark/log"
)

// data path 3 of 6: apply.

// batchEvents is the largest number of events handed to a projection at once. With the bound on an event's size it bounds
// what is under way between the log and a projection.
const batchEvents = 64

// EventLog is what a Runner reads.
type EventLog interface {
	Subscribe(from log.Seq) *log.Subscription
	Head() log.Seq
	CheckAtLeast(seq log.Seq, what string) error
}

// Runner feeds one projection from the log.
type Runner struct {
	events     EventLog
	projection Projection

	from   atomic.Uint64 // last event of the restored checkpoint
	target atomic.Uint64 // head of the log when the runner began
	ready  atomic.Bool
}

// NewRunner returns a runner; Run starts it.
func NewRunner(events EventLog, p Projection) *Runner {
	return &Runner{events: events, projection: p}
}

// Restore loads the projection's checkpoint. It must be called once, before Run. A checkpoint beyond the end of the log is
// refused: the log has lost what the projection has seen.
func (r *Runner) Restore() error {
	at, err := r.projection.Restore()
	if err != nil {
		return fmt.Errorf("projection %s: restore: %w", r.projection.Name(), err)
	}
	if err := r.events.CheckAtLeast(at.Newest, "the checkpoint of projection "+r.projection.Name()); err != nil {
		return err
	}
	r.from.Store(uint64(at.From))
	r.target.Store(uint64(r.events.Head()))
	return nil
}

// Run replays and then follows the log until ctx ends. It returns nil then, or the error that stopped the projection (R2).
func (r *Runner) Run(ctx context.Context) error {
	sub := r.events.Subscribe(log.Seq(r.from.Load()) + 1)
	for {
		events, err := sub.Next(ctx, batchEvents)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("projection %s: read log: %w", r.projection.Name(), err)
		}
		if err := r.projection.Apply(ctx, events); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("projection %s: %w", r.projection.Name(), err)
		}
	}
}

// Progress returns how far replay is: the last event applied, and the last one that was in the log when the runner began.
func (r *Runner) Progress() (applied, target log.Seq) {
	applied, _ = r.projection.Applied()
	return applied, log.Seq(r.target.Load())
}

// Ready reports whether replay is done (R3). It stays true.
func (r *Runner) Ready() bool {
	if r.ready.Load() {
		return true
	}
	applied, target := r.Progress()
	if applied >= target {
		r.ready.Store(true)
		return true
	}
	return false
}

// Wait blocks until the projection has applied seq, fails, or ctx ends.
func (r *Runner) Wait(ctx context.Context, seq log.Seq) error {
	return wait(ctx, r.projection, seq)
}

func wait(ctx context.Context, p Projection, seq log.Seq) error {
	for {
		changed := p.Changed()
		applied, err := p.Applied()
		if applied >= seq {
			return nil
		}
		if err != nil {
			return fmt.Errorf("projection %s: %w", p.Name(), err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
