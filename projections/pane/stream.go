package pane

import (
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// Counts are the conservation counters of a stream in one shard (P5), over samples that are no stale markers.
type Counts struct {
	Routed, Applied, Duplicate, Conflict, LateDropped, LateUncorrectable uint64
	Corrected                                                            uint64 // applied to a bucket that was closed; part of Applied
	Stale                                                                uint64 // stale markers routed
	Closed                                                               uint64 // buckets closed, each once
}

func (c *Counts) add(o *Counts) {
	c.Routed += o.Routed
	c.Applied += o.Applied
	c.Duplicate += o.Duplicate
	c.Conflict += o.Conflict
	c.LateDropped += o.LateDropped
	c.LateUncorrectable += o.LateUncorrectable
	c.Corrected += o.Corrected
	c.Stale += o.Stale
	c.Closed += o.Closed
}

// stream is a pane stream within one shard.
type stream struct {
	spec     plan.Stream
	key      uint64 // under which its buckets are stored; see streamKey
	matchers []*labels.Matcher
	grid     bucket.Grid
	width    int64
	edge     int64   // 0 where a bucket owns (S, E]; 1 where it owns [S, E): it holds the samples with S − edge < t ≤ E − edge
	coverage int64   // coverage start a, ms; MinInt64 if folded from the first sample on
	joined   log.Seq // the event that brought it into the plan
	expired  int64   // buckets with E ≤ expired are gone, ms; MinInt64 before any retention delete

	maxC int64 // largest closure watermark over the shard's series, clamped by wall time; MinInt64 before any
	// Of the series evicted from this shard none had a bucket behind this end; MinInt64 before any had one.
	evictedThrough int64

	openN   int // open buckets in this shard
	seriesN int // series of this shard with state in the stream
	counts  Counts
	track   tracker
}

func newStream(spec plan.Stream, coverage int64) (*stream, error) {
	if spec.PaneMillis <= 0 {
		return nil, fmt.Errorf("pane: stream %x has a pane of %d ms", uint64(spec.ID), spec.PaneMillis)
	}
	ms, err := spec.LabelMatchers()
	if err != nil {
		return nil, fmt.Errorf("pane: stream %x: %w", uint64(spec.ID), err)
	}
	edge := int64(0)
	if spec.Closed == plan.Left {
		edge = 1
	}
	return &stream{
		spec: spec, key: uint64(spec.ID), matchers: ms, width: spec.PaneMillis, edge: edge,
		grid:     bucket.Grid{Origin: spec.OriginMillis, Width: spec.PaneMillis},
		coverage: coverage, expired: math.MinInt64, maxC: math.MinInt64, evictedThrough: math.MinInt64,
	}, nil
}

// wants says whether the stream takes the series.
func (s *stream) wants(ls labels.Labels) bool {
	for _, m := range s.matchers {
		if !m.Matches(ls.Get(m.Name)) {
			return false
		}
	}
	return true
}

// filing returns the filing time f of a sample at t, which picks its bucket and drives event time.
func (s *stream) filing(t int64) int64 { return t - 1 + s.edge }

// endOf returns the end of the bucket that owns time t: S = origin + floorDiv(f − origin, width)·width, E = S + width.
func (s *stream) endOf(t int64) int64 {
	return s.floorEnd(s.filing(t)) + s.width
}

// before returns the latest time that the bucket ending at e does not own because it is too early.
func (s *stream) before(e int64) int64 { return e - s.width - s.edge }

// bound returns B: a barrier at t closes the buckets with E ≤ B, those whose largest possible timestamp is at or before t.
func (s *stream) bound(t int64) int64 {
	if plantedBarrierWide {
		t = satAdd(t, 1)
	}
	return satAdd(t, s.edge)
}

// floorEnd returns the greatest bucket end at or before t.
func (s *stream) floorEnd(t int64) int64 {
	d := satSub(t, s.grid.Origin)
	q := d / s.width
	if d%s.width < 0 && !plantedTruncatedDivision {
		q--
	}
	return satAdd(s.grid.Origin, q*s.width)
}

// raiseFrontier moves the stream's part of the frontier to a closure watermark, clamped by the event's wall time: a fast
// clock presumes nothing about the others.
func (s *stream) raiseFrontier(c, wall, skew int64) {
	if c > satAdd(wall, skew) && !plantedFastClock {
		c = wall
	}
	s.maxC = max(s.maxC, c)
}
