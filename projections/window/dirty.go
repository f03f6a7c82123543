package window

import (
	"math"
	"slices"

	"tidemark/log"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// span is the steps of one materialization in which the buckets at one end take part: first, first+every, … up to last; none
// if last < first.
type span struct{ first, last int64 }

// spanOf returns the steps T with T − Back < end and end − width < T − Ahead.
func spanOf(r plan.Reach, every, width, end int64) span {
	return span{
		first: floorTo(end-width+r.Ahead, every) + every, // the first multiple behind it
		last:  floorTo(end+r.Back-1, every),
	}
}

// meets says whether one of the steps, which increase, is in the span.
func (s span) meets(steps []int64) bool {
	i, _ := slices.BinarySearch(steps, s.first)
	return i < len(steps) && steps[i] <= s.last
}

func floorTo(t, every int64) int64 {
	m := t % every
	if m < 0 {
		m += every
	}
	return t - m
}

// change is a bucket end at which something changed, with the steps that it takes part in.
type change struct {
	span
	seq log.Seq
}

// dirtySteps returns for each step that a change of a stream may have touched the newest such change, given the ends that
// changed. It goes from change to change, so that its cost is that of the steps it returns, whatever lies between them.
func dirtySteps(into map[int64]log.Seq, r plan.Reach, every, width int64, changed map[int64]log.Seq) {
	changes := make([]change, 0, len(changed))
	for end, seq := range changed {
		if s := spanOf(r, every, width, end); s.first <= s.last {
			changes = append(changes, change{s, seq})
		}
	}
	// All spans are equally wide but for rounding, and move with the end: ordered by their beginnings they are ordered by their ends.
	slices.SortFunc(changes, func(a, b change) int {
		switch {
		case a.first != b.first && a.first < b.first, a.first == b.first && a.last < b.last:
			return -1
		case a.first == b.first && a.last == b.last:
			return 0
		}
		return 1
	})
	var newest []change // those that reach the step at hand, with decreasing sequences
	next := 0
	for t := int64(math.MinInt64); ; t += every {
		if len(newest) == 0 {
			if next == len(changes) {
				return
			}
			t = max(t, changes[next].first)
		}
		for ; next < len(changes) && changes[next].first <= t; next++ {
			for n := len(newest); n > 0 && newest[n-1].seq <= changes[next].seq; n-- {
				newest = newest[:n-1]
			}
			newest = append(newest, changes[next])
		}
		for len(newest) > 0 && newest[0].last < t {
			newest = newest[1:]
		}
		if len(newest) > 0 {
			into[t] = max(into[t], newest[0].seq)
		}
	}
}

// covered says whether all that a step reaches of a stream is folded.
func covered(t int64, r plan.Reach, st *pane.TrackedStream) bool {
	return st.CoverageStart == math.MinInt64 || t-r.Back >= st.CoverageStart
}

// published says whether a step is, as far as one stream knows: covered, behind the frontier, and without an open bucket.
func published(t int64, r plan.Reach, st *pane.TrackedStream) bool {
	begin, end := t-r.Back, t-r.Ahead
	if end > st.Frontier || !covered(t, r, st) {
		return false
	}
	i, _ := slices.BinarySearch(st.Open, begin+1)
	return i == len(st.Open) || st.Open[i]-st.PaneMillis >= end
}
