package pane

import (
	"context"
	"math"
	"sync"

	"tidemark/log"
	"tidemark/projections/plan"
)

// StreamState is what a stream looks like over all shards, as of one sequence.
type StreamState struct {
	ID            plan.StreamID
	CoverageStart int64 // ms; math.MinInt64 if folded from the first event
	Frontier      int64 // φ, ms; math.MinInt64 before anything closed; math.MaxInt64 while input is sealed
	Proven        int64 // ms; math.MinInt64 if no barrier
	Open          int   // open buckets
	Series        int   // series with state in the stream
	Counts        Counts
}

// Streams returns the state of every stream of the plan in force, in the plan's order, and the samples that no stream took.
func (p *Projection) Streams(ctx context.Context) (seq log.Seq, streams []StreamState, unplanned uint64, err error) {
	var mu sync.Mutex
	at := make(map[plan.StreamID]int)
	seq, err = p.cut(ctx, func(s *Shard, _ *shelf) {
		mu.Lock()
		defer mu.Unlock()
		unplanned += s.unplanned
		for _, st := range s.streams {
			i, ok := at[st.spec.ID]
			if !ok {
				i = len(streams)
				at[st.spec.ID] = i
				streams = append(streams, StreamState{ID: st.spec.ID, CoverageStart: st.coverage, Frontier: math.MinInt64, Proven: math.MinInt64})
			}
			out := &streams[i]
			out.Frontier = max(out.Frontier, s.frontier(st))
			out.Proven = max(out.Proven, s.proven)
			out.Open += st.openN
			out.Series += st.seriesN
			out.Counts.add(&st.counts)
		}
	})
	if err != nil {
		return 0, nil, 0, err
	}
	return seq, streams, unplanned, nil
}

// Sealed reports whether a drain has sealed input, as of the sequence at which the workers stand.
func (p *Projection) Sealed(ctx context.Context) (bool, error) {
	var sealed bool
	err := p.visitShard(ctx, 0, func(s *Shard, _ *shelf) { sealed = s.sealed })
	return sealed, err
}
