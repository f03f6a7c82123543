// Package querytest holds what tests of the query path share: a model of the panes over samples in memory, random series and
// expressions. The oracle that both are held to is package oracle.
package querytest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
)

// Series is one series with all its samples, in time order.
type Series = oracle.Series

// Model is a query.Source over samples in memory. It closes buckets by the rules of the fold: a
// later sample of the series closes, and so do barriers; only closed buckets are folded and read.
type Model struct {
	plan     *plan.Plan
	series   []Series
	barriers []barrier
	seq      log.Seq
	coverage map[plan.StreamID]int64
	marks    map[markKey]mark
	Reads    int // calls of Read
}

type barrier struct {
	time int64
	seen []int // per series, how many samples had come
}

type markKey struct {
	stream plan.StreamID
	series string
	end    int64
}

type mark int

const (
	incomplete mark = iota + 1
	histogram
)

// NewModel returns a model of the plan's streams over series, all of whose samples have come.
func NewModel(p *plan.Plan, series []Series) *Model {
	m := &Model{plan: p, coverage: map[plan.StreamID]int64{}, marks: map[markKey]mark{}}
	for _, s := range series {
		m.Add(s)
	}
	return m
}

// Add appends samples to a series, which it makes if there is none of these labels.
func (m *Model) Add(s Series) {
	m.seq++
	i, ok := slices.BinarySearchFunc(m.series, s.Labels, func(have Series, l labels.Labels) int { return labels.Compare(have.Labels, l) })
	if !ok {
		m.series = slices.Insert(m.series, i, Series{Labels: s.Labels})
		for b := range m.barriers {
			m.barriers[b].seen = slices.Insert(m.barriers[b].seen, i, 0)
		}
	}
	m.series[i].T = append(m.series[i].T, s.T...)
	m.series[i].V = append(m.series[i].V, s.V...)
}

// Barrier says that every sample at or before t has come.
func (m *Model) Barrier(t int64) {
	m.seq++
	seen := make([]int, len(m.series))
	for i, s := range m.series {
		seen[i] = len(s.T)
	}
	m.barriers = append(m.barriers, barrier{time: t, seen: seen})
}

// Cover sets the coverage start of a stream: it never saw the samples at or before that time.
func (m *Model) Cover(id plan.StreamID, from int64) { m.coverage[id] = from }

// MarkIncomplete says that the bucket of a series lost late samples.
func (m *Model) MarkIncomplete(id plan.StreamID, series labels.Labels, end int64) {
	m.marks[markKey{id, series.String(), end}] = incomplete
}

// MarkHistogram says that native histograms fell into the bucket of a series.
func (m *Model) MarkHistogram(id plan.StreamID, series labels.Labels, end int64) {
	m.marks[markKey{id, series.String(), end}] = histogram
}

// Replace puts another plan in force.
func (m *Model) Replace(p *plan.Plan) { m.seq++; m.plan = p }

// Series returns all series in label order.
func (m *Model) Series() []Series { return m.series }

// Plan implements query.Source.
func (m *Model) Plan() *plan.Plan { return m.plan }

// Read implements query.Source.
func (m *Model) Read(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.Reads++
	snap := &query.Snapshot{Seq: m.seq}
	for _, r := range reqs {
		a, err := m.answer(r)
		if err != nil {
			return nil, err
		}
		snap.Answers = append(snap.Answers, a)
	}
	return snap, nil
}

func (m *Model) answer(r query.Request) (query.Answer, error) {
	at := slices.IndexFunc(m.plan.Streams, func(s plan.Stream) bool { return s.ID == r.Stream })
	if at < 0 {
		return query.Answer{}, nil
	}
	stream := &m.plan.Streams[at]
	if r.Tracked {
		return query.Answer{Known: true, Frontier: math.MaxInt64}, nil // nothing is tracked, hence no record clean
	}
	if r.From >= r.To || !stream.OnGrid(r.From) || !stream.OnGrid(r.To) {
		return query.Answer{}, fmt.Errorf("the range (%d, %d] is not on the grid of stream %d", r.From, r.To, stream.ID)
	}
	held, err := stream.LabelMatchers()
	if err != nil {
		return query.Answer{}, err
	}
	a := query.Answer{Known: true, CoverageStart: math.MinInt64, Frontier: math.MinInt64, Proven: math.MinInt64}
	if from, ok := m.coverage[stream.ID]; ok {
		a.CoverageStart = from
	}
	for _, b := range m.barriers {
		a.Proven = max(a.Proven, b.time)
	}
	if len(m.barriers) > 0 {
		a.Frontier = stream.BarrierBound(a.Proven)
	}
	for i := range m.series {
		s := &m.series[i]
		if !oracle.Matches(s.Labels, held) {
			continue
		}
		closed := m.closed(stream, i)
		a.Frontier = max(a.Frontier, closed)
		if !oracle.Matches(s.Labels, r.Matchers) {
			continue
		}
		if out, ok := m.cut(stream, s, closed, r); ok {
			a.Series = append(a.Series, out)
		}
	}
	return a, nil
}

// closed returns the closure watermark of series i: barriers and samples in their order.
func (m *Model) closed(stream *plan.Stream, i int) int64 {
	s, c, n := &m.series[i], int64(math.MinInt64), 0
	see := func(until int) {
		for ; n < until; n++ {
			c = max(c, stream.FilingTime(s.T[n])-stream.LatenessMillis)
		}
	}
	for _, b := range m.barriers {
		see(b.seen[i])
		if n == 0 {
			continue
		}
		if latest := stream.BucketEnd(s.T[n-1]); latest > c {
			c = max(c, min(stream.BarrierBound(b.time), latest))
		}
	}
	see(len(s.T))
	return c
}

// cut folds the closed buckets of s in the range and names the open ones.
func (m *Model) cut(stream *plan.Stream, s *Series, closed int64, r query.Request) (query.Series, bool) {
	out := query.Series{Labels: s.Labels}
	lo := 0
	if from, ok := m.coverage[stream.ID]; ok {
		lo, _ = slices.BinarySearch(s.T, from+1)
	}
	for lo < len(s.T) {
		end := stream.BucketEnd(s.T[lo])
		hi := lo
		for hi < len(s.T) && stream.BucketEnd(s.T[hi]) == end {
			hi++
		}
		if end > r.From && end <= r.To {
			if end > closed {
				out.Open = append(out.Open, end)
				if r.Live {
					out.T, out.V = append(out.T, s.T[lo:hi]...), append(out.V, s.V[lo:hi]...)
				}
			} else {
				p := accum.Fold(s.T[lo:hi:hi], s.V[lo:hi:hi])
				out.Append(&p, end)
			}
		}
		lo = hi
	}
	for key, kind := range m.marks {
		if key.stream != stream.ID || key.series != s.Labels.String() || key.end <= r.From || key.end > r.To {
			continue
		}
		if kind == incomplete {
			out.Incomplete = append(out.Incomplete, key.end)
		} else {
			out.Histograms = append(out.Histograms, key.end)
		}
	}
	slices.Sort(out.Incomplete)
	slices.Sort(out.Histograms)
	return out, len(out.T)+len(out.Cols)+len(out.Open)+len(out.Incomplete)+len(out.Histograms) > 0
}
