package query

import (
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// steps are the times at which the engine evaluates a node: start, start+every, … up to end, in ms; none if end < start.
type steps struct{ start, end, every int64 }

func (s steps) count() int64 {
	if s.end < s.start {
		return 0
	}
	return (s.end-s.start)/s.every + 1
}

func (s steps) at(k int64) int64 { return s.start + k*s.every }

// last returns the last time; s is not empty.
func (s steps) last() int64 { return s.at(s.count() - 1) }

// once returns the times of a step-invariant node: the engine evaluates it at the first step only.
func (s steps) once() steps {
	if s.count() == 0 {
		return s
	}
	return steps{start: s.start, end: s.start, every: s.every}
}

// within returns the times at which the engine evaluates the inner expression of sub, whose Offset is set, while it
// evaluates sub itself at s: multiples of the subquery's own step that cover the windows of all of s (of the first only,
// where @ pins the window). defaultStep is used where the subquery names none.
func (s steps) within(sub *parser.SubqueryExpr, defaultStep func(rangeMillis int64) int64) steps {
	width, offset := millis(sub.Range), millis(sub.Offset)
	every := millis(sub.Step)
	if sub.Step == 0 {
		every = defaultStep(width)
	}
	if s.count() == 0 {
		return steps{start: 0, end: -1, every: every}
	}
	last := s.last()
	if sub.Timestamp != nil {
		last = s.start
	}
	left := s.start - offset - width // exclusive
	// Division truncates towards zero, here as in the engine, so the first multiple above left is one or two away from it.
	first := left / every * every
	if first <= left {
		first += every
	}
	return steps{start: first, end: last - offset, every: every}
}

// resolveOffsets sets Offset of each selector and subquery below e as the engine will when it evaluates e from evalTime
// on: without @ it is the offset as written; with @ it leads from evalTime to the pinned time. moved is how far the
// subqueries around e, below the node at which evaluation starts, move evaluation into the past.
func resolveOffsets(e parser.Node, evalTime int64, moved time.Duration) {
	resolve := func(at *int64, written time.Duration) time.Duration {
		if at == nil {
			return written
		}
		return written + toDuration(evalTime-*at) - moved
	}
	switch n := e.(type) {
	case *parser.VectorSelector:
		n.Offset = resolve(n.Timestamp, n.OriginalOffset)
	case *parser.SubqueryExpr:
		n.Offset = resolve(n.Timestamp, n.OriginalOffset)
		if n.Timestamp != nil {
			moved = n.OriginalOffset + toDuration(evalTime-*n.Timestamp)
		} else {
			moved += n.OriginalOffset
		}
		resolveOffsets(n.Expr, evalTime, moved)
	default:
		for child := range parser.ChildrenIter(e) {
			resolveOffsets(child, evalTime, moved)
		}
	}
}

func millis(d time.Duration) int64 { return int64(d / time.Millisecond) }

func toDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func toTime(ms int64) time.Time { return time.UnixMilli(ms) }

// toMillis is how the engine turns a time into ms: truncated towards zero.
func toMillis(t time.Time) int64 { return t.UnixNano() / int64(time.Millisecond) }
