package query

import (
	"context"

	"github.com/prometheus/prometheus/storage"

	"tidemark/log"
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

// Exact is a copy of the samples themselves. *sample.Projection is one.
type Exact interface {
	storage.Queryable
	// Wait returns the sequence that the copy reflects at least. With all it blocks until that is everything that stood in the log at
	// the call, or ctx ends.
	Wait(ctx context.Context, all bool) (log.Seq, error)
	// Oldest returns a time, in ms, up to which samples may be missing; math.MinInt64 if none are. What a querier that is open lacks
	// is known to it.
	Oldest() int64
}

// What a Source is asked and answers.
type (
	Request  = pane.Request
	Snapshot = pane.Snapshot
	Answer   = pane.Answer
	Series   = pane.Series
)
