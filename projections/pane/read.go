package pane

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// data path 6 of 6: answer. Reads take a view of every shard at one place in the order of events, and do the rest outside.

// Plan returns the plan in force where the workers stand now.
func (p *Projection) Plan() *plan.Plan {
	return p.planNow.Load()
}

// Read answers all requests as of one log sequence, which is at least the head of the log when Read was called. It blocks until
// the workers have been given that sequence, or ctx ends.
func (p *Projection) Read(ctx context.Context, reqs []Request) (*Snapshot, error) {
	if err := p.waitDispatched(ctx, p.events.Head()); err != nil {
		return nil, err
	}
	known := p.index.Len()
	selected := make([][]log.SeriesRef, len(reqs))
	for i := range reqs {
		if reqs[i].Tracked {
			continue // no series are asked for
		}
		var err error
		if selected[i], err = p.index.Select(ctx, reqs[i].Matchers...); err != nil {
			return nil, err
		}
	}
	reads := make([]*streamRead, len(reqs))
	defer p.store.Pin()() // before the views are taken, until they are read
	seq, err := p.cutBy(ctx, func() visit {
		// The answer is as of the cut, so it has the series that came since the selection (P6).
		fresh := p.index.Since(known)
		for i := range reqs {
			if !reqs[i].Tracked {
				selected[i] = p.withFresh(selected[i], fresh, reqs[i].Matchers)
			}
			reads[i] = newStreamRead(&reqs[i], selected[i])
		}
		return func(s *Shard, sh *shelf) {
			for _, r := range reads {
				r.take(s, sh)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{Seq: seq, Answers: make([]Answer, len(reqs))}
	for i, r := range reads {
		if snap.Answers[i], err = p.finish(ctx, r); err != nil {
			return nil, err
		}
	}
	return snap, nil
}

// withFresh adds those of the fresh series that match to what was selected, and returns all in increasing order.
func (p *Projection) withFresh(selected, fresh []log.SeriesRef, ms []*labels.Matcher) []log.SeriesRef {
	n := len(selected)
	for _, ref := range fresh {
		ls, ok := p.index.Labels(ref)
		if ok && !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(ls.Get(m.Name)) }) {
			selected = append(selected, ref)
		}
	}
	if len(selected) > n {
		slices.Sort(selected)
		selected = slices.Compact(selected)
	}
	return selected
}

// streamRead gathers one request's answer: first in the workers, one shard each, then outside.
type streamRead struct {
	req    *Request
	refs   [Shards][]uint64
	views  [Shards]bucket.ShardView
	series [Shards][]Series // parallel to refs

	mu       sync.Mutex
	known    bool
	planned  bool // in a later generation, which may not have been taken over yet
	key      uint64
	grid     bucket.Grid
	coverage int64
	expired  int64
	frontier int64
	proven   int64
	tracked  Tracked
}

func newStreamRead(req *Request, refs []log.SeriesRef) *streamRead {
	r := &streamRead{req: req, frontier: math.MinInt64, proven: math.MinInt64}
	for _, ref := range refs {
		r.refs[ShardOf(ref)] = append(r.refs[ShardOf(ref)], uint64(ref))
	}
	return r
}

// take copies what the shard alone knows: its tables' headers, its open buckets, its part of the frontier.
func (r *streamRead) take(s *Shard, sh *shelf) {
	st := s.stream(r.req.Stream)
	if st == nil {
		if s.planned(r.req.Stream) != nil {
			r.mu.Lock()
			r.planned = true
			r.mu.Unlock()
		}
		return
	}
	r.mu.Lock()
	r.key = st.key
	r.known, r.grid, r.coverage, r.expired = true, st.grid, st.coverage, st.expired
	r.frontier = max(r.frontier, s.frontier(st))
	r.proven = max(r.proven, s.proven)
	if name, ok := s.pinned(r.req.Matchers); ok {
		// A barrier for one experiment proves what asks for that experiment alone.
		if t, ok := s.experiments[name]; ok {
			r.proven, r.frontier = max(r.proven, t), max(r.frontier, st.bound(t))
		}
	}
	if r.req.Tracked {
		r.tracked.add(&st.track, r.req.From, r.req.To)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()

	lo, _ := st.grid.Locate(r.req.From + st.width)
	hi, _ := st.grid.Locate(r.req.To)
	v := &r.views[s.id]
	v.PieceSeq, v.Refs = sh.visible(), r.refs[s.id]
	for _, t := range sh.leaving {
		t.AddTo(&v.View, st.key, lo, hi)
	}
	s.table.AddTo(&v.View, st.key, lo, hi)

	series := make([]Series, len(v.Refs))
	for i, ref := range v.Refs {
		m, _ := s.member(log.SeriesRef(ref), st)
		if m == nil {
			continue
		}
		for _, b := range m.open {
			if b.end > r.req.From && b.end <= r.req.To {
				series[i].Open = append(series[i].Open, b.end)
			}
		}
	}
	r.series[s.id] = series
}

// pinned returns the one experiment whose series the matchers can select, if they say so.
func (s *Shard) pinned(ms []*labels.Matcher) (string, bool) {
	for _, m := range ms {
		if m.Name == s.plan.ExperimentLabel && m.Type == labels.MatchEqual {
			if m.Value == "" {
				return Unlabelled, true
			}
			return m.Value, true
		}
	}
	return "", false
}

// stream returns the stream if the plan in force has it.
func (s *Shard) stream(id plan.StreamID) *stream {
	for _, st := range s.streams {
		if st.spec.ID == id {
			return st
		}
	}
	return nil
}

// frontier returns the shard's part of φ, in bucket ends. While sealed, everything is published.
func (s *Shard) frontier(st *stream) int64 {
	if s.sealed {
		return math.MaxInt64
	}
	if s.proven == math.MinInt64 {
		return st.maxC
	}
	return max(st.bound(s.proven), st.maxC)
}

// member returns the series' place in the stream, and the series; nil if it has none.
func (s *Shard) member(ref log.SeriesRef, st *stream) (*member, *seriesState) {
	i := int(ref / Shards)
	if i/slotPage >= len(s.slots) || s.slots[i/slotPage] == nil {
		return nil, nil
	}
	slot := s.slots[i/slotPage][i%slotPage]
	if slot <= 0 {
		return nil, nil
	}
	sr := &s.series[slot-1]
	for j := range sr.members {
		if sr.members[j].stream == st {
			return &sr.members[j], sr
		}
	}
	return nil, nil
}

// finish reads the pieces, decodes the panes, and puts the series into label order.
func (p *Projection) finish(ctx context.Context, r *streamRead) (Answer, error) {
	a := Answer{Known: r.known, Materializing: r.planned && !r.known, CoverageStart: r.coverage, Frontier: r.frontier, Proven: r.proven}
	if !r.known {
		return a, nil
	}
	if r.req.Tracked {
		a.Tracked = r.tracked
		a.Tracked.settle()
		return a, nil
	}
	for i := range r.views {
		if r.views[i].Refs == nil {
			r.views[i].Refs = []uint64{} // none wanted, where nil would mean all
		}
	}
	room := &slab{panes: int((r.req.To - r.req.From) / max(1, r.grid.Width))}
	from := max(r.req.From, min(r.expired, r.req.To))
	err := p.store.Collect(ctx, r.key, r.grid, from, r.req.To, r.views[:], func(shard int, b bucket.Bucket) error {
		return addBucket(&r.series[shard][b.At], b, room)
	})
	if err != nil {
		return Answer{}, err
	}
	a.Series, err = p.ordered(r)
	return a, err
}

// ordered returns the series that have anything, in label order.
func (p *Projection) ordered(r *streamRead) ([]Series, error) {
	n := 0
	for shard := range r.series {
		n += len(r.series[shard])
	}
	there := make([]*Series, 0, n)
	for shard := range r.series {
		for i := range r.series[shard] {
			s := &r.series[shard][i]
			if len(s.T) == 0 && len(s.Cols) == 0 && len(s.Open) == 0 && len(s.Incomplete) == 0 && len(s.Histograms) == 0 {
				continue
			}
			ls, ok := p.index.Labels(log.SeriesRef(r.refs[shard][i]))
			if !ok {
				return nil, fmt.Errorf("pane: series %d has no label set", r.refs[shard][i])
			}
			s.Labels = ls
			there = append(there, s)
		}
	}
	slices.SortFunc(there, func(x, y *Series) int { return labels.Compare(x.Labels, y.Labels) })
	out := make([]Series, len(there))
	for i, s := range there {
		out[i] = *s
	}
	return out, nil
}

// slabSamples is how many samples' room is taken from the allocator at a time.
const slabSamples = 8192

// slab cuts the room for the samples of many series from few allocations.
type slab struct {
	panes int // that a series may have in the read range
	t     []int64
	v     []float64
}

// reserve gives an empty window room for n samples in each pane of the range, or of a block where that is less.
func (r *slab) reserve(w *accum.Window, n int) {
	want := max(1, n) * min(r.panes, bucket.EndsPerBlock)
	if want > slabSamples/8 || cap(w.T) > 0 {
		return
	}
	if len(r.t) < want {
		r.t, r.v = make([]int64, slabSamples), make([]float64, slabSamples)
	}
	w.T, r.t = r.t[:0:want], r.t[want:]
	w.V, r.v = r.v[:0:want], r.v[want:]
}

// addBucket appends one bucket behind what the series has.
func addBucket(s *Series, b bucket.Bucket, room *slab) error {
	if b.Incomplete {
		s.Incomplete = append(s.Incomplete, b.End)
	}
	if b.Pane == nil {
		return nil
	}
	if accum.EncodedHasHistogram(b.Pane) {
		s.Histograms = append(s.Histograms, b.End)
	}
	room.reserve(&s.Window, accum.EncodedSamples(b.Pane))
	if _, err := accum.AppendDecoded(&s.Window, b.Pane, b.End); err != nil {
		return fmt.Errorf("pane: series %d, bucket %d: %w", b.Ref, b.End, err)
	}
	return nil
}
