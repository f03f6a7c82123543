package query

import (
	"context"

	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// Source is where panes are read from. *pane.Projection is one.
type Source interface {
	// Plan returns the plan in force.
	Plan() *plan.Plan
	// Read answers all requests as of one log sequence, which is at least the head of the log when Read was called.
	// It blocks until the panes have applied that sequence or ctx ends.
	Read(ctx context.Context, reqs []Request) (*Snapshot, error)
}

// What a Source is asked and answers.
type (
	Request  = pane.Request
	Snapshot = pane.Snapshot
	Answer   = pane.Answer
	Series   = pane.Series
)
