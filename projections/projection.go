// Package projections runs read models over the log: restore, replay, follow.
//
// A Projection folds events into state of its own, a pure function of the events it was given. The Runner reads the log from
// where the projection's checkpoint stands, hands it every event once and in order, and lets others wait until a sequence is
// applied. Nothing else connects a projection to the log, so a rebuild is the same loop over an empty directory.
//
// Invariants.
//
//	R1  A projection is given the events after its checkpoint, each once, in order, without gaps.
//	R2  A projection that returns an error is given nothing more; waiters get that error, others go on.
//	R3  Ready means: everything that was in the log when the runner began has been applied.
package projections

import (
	"context"

	"tidemark/log"
)

// Projection is a read model folded from the log.
type Projection interface {
	// Name names the projection in metrics and messages.
	Name() string
	// Restore loads the newest checkpoint.
	Restore() (Restored, error)
	// Apply takes events in log order. It may return before they are folded; Applied tells. An error is final.
	Apply(ctx context.Context, events []*log.Event) error
	// Applied returns the last event folded, and the error that stopped the fold, if any.
	Applied() (log.Seq, error)
	// Changed returns a channel that is closed when Applied next changes.
	Changed() <-chan struct{}
}

// Restored says what a checkpoint reflects. Parts of a projection may stand at different events.
type Restored struct {
	From   log.Seq // every part reflects the events up to here; events after it are wanted
	Newest log.Seq // the newest event that any part reflects; the log must still have it
}
