package pane

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"tidemark/log"
	"tidemark/projections/plan"
)

// StreamState is what a stream looks like over all shards, as of one sequence.
type StreamState struct {
	ID            plan.StreamID
	Key           uint64 // under which its buckets are stored
	CoverageStart int64  // ms; math.MinInt64 if folded from the first event
	Frontier      int64  // φ, ms; math.MinInt64 before anything closed; math.MaxInt64 while input is sealed
	Proven        int64  // ms; math.MinInt64 if no barrier
	Open          int    // open buckets
	Series        int    // series with state in the stream
	Counts        Counts
}

// gathered is what Streams gathers from the shards. A visit that comes after its cut has failed writes here and nowhere else.
type gathered struct {
	mu        sync.Mutex
	at        map[plan.StreamID]int
	streams   []StreamState
	unplanned uint64
}

func (g *gathered) take(s *Shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unplanned += s.unplanned
	for _, st := range s.streams {
		i, ok := g.at[st.spec.ID]
		if !ok {
			i = len(g.streams)
			g.at[st.spec.ID] = i
			g.streams = append(g.streams, StreamState{ID: st.spec.ID, Key: st.key, CoverageStart: st.coverage, Frontier: math.MinInt64, Proven: math.MinInt64})
		}
		out := &g.streams[i]
		out.Frontier = max(out.Frontier, s.frontier(st))
		out.Proven = max(out.Proven, s.proven)
		out.Open += st.openN
		out.Series += st.seriesN
		out.Counts.add(&st.counts)
	}
}

// Streams returns the state of every stream of the plan in force, in the plan's order, and the samples that no stream took. Those
// that are still being folded from the log are left out; see Backfills.
func (p *Projection) Streams(ctx context.Context) (seq log.Seq, streams []StreamState, unplanned uint64, err error) {
	g := &gathered{at: make(map[plan.StreamID]int)}
	if seq, err = p.cut(ctx, func(s *Shard, _ *shelf) { g.take(s) }); err != nil {
		return 0, nil, 0, err
	}
	slices.SortFunc(g.streams, func(a, b StreamState) int { return cmp.Compare(a.ID, b.ID) })
	return seq, g.streams, g.unplanned, nil
}

// Sealed reports whether a drain has sealed input, as of the sequence at which the workers stand.
func (p *Projection) Sealed(ctx context.Context) (bool, error) {
	var sealed atomic.Bool
	err := p.visitShard(ctx, 0, func(s *Shard, _ *shelf) {
		if s.generation == 0 {
			sealed.Store(s.sealed)
		}
	})
	return sealed.Load(), err
}
