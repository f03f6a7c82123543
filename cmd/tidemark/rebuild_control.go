package main

import (
	"context"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
)

// controlBatch is the number of events after which what the control plane has done is written: a commit waits for a flush that is under
// way, and the panes are not to wait with it.
const controlBatch = 1 << 13

// controlFold folds what the control plane has done into the rows of fresh views: the retired experiments, and the tasks. It takes the
// events that the panes are given, so that the log is read once.
type controlFold struct {
	fold    *master.Fold
	waiting []*log.Event // without the samples
}

// begin brings the rows up to a sequence. Where an earlier rebuild was interrupted, they may have come less far than the panes, and also
// further.
func (c *controlFold) begin(ctx context.Context, events *log.Log, from log.Seq) error {
	at, err := c.fold.Restore()
	if err != nil || at.From >= from {
		return err
	}
	return projections.Replay(ctx, events, c.fold, at.From, from, projections.ReplayOptions{})
}

// Apply implements applier.
func (c *controlFold) Apply(ctx context.Context, events []*log.Event) error {
	for _, ev := range events {
		if _, ok := ev.Body.(*log.Write); ok { // of which only the time counts
			lean := *ev
			lean.Body = &log.Write{}
			ev = &lean
		}
		c.waiting = append(c.waiting, ev)
	}
	if len(c.waiting) < controlBatch {
		return nil
	}
	return c.settle(ctx)
}

// settle folds what waits.
func (c *controlFold) settle(ctx context.Context) error {
	defer func() { c.waiting = nil }()
	return c.fold.Apply(ctx, c.waiting)
}
