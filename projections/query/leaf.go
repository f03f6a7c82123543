package query

import (
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser/posrange"

	"tidemark/projections/accum"
	"tidemark/projections/plan"
)

// leaf is a part of an expression that panes answer whole: one function over the samples of one selector.
type leaf struct {
	text     string // as the parser prints it
	fn       accum.Func
	matchers []*labels.Matcher
	window   int64   // R, ms: each evaluation at e reads (e−R, e], or [e−R, e) of a left-closed stream
	lookback bool    // the window is the lookback of an instant selector, and may begin within a pane
	arg      float64 // the scalar argument, if fn takes one
	argPos   posrange.PositionRange
	selPos   posrange.PositionRange // of the function's first argument, where the engine puts its infos

	steps  steps // when the engine evaluates it
	offset int64 // ms; the data time of a step is the step's, or the first step's if pinned, less this
	pinned bool

	aggregation *aggregation // of its results, evaluated with it; nil: none

	mark  *labels.Matcher // on the synthetic selector that stands for it in the expression
	place []replaced      // where that stands; none for one that is answered from a record

	exact bool       // the exact source can answer it
	raw   *MissError // set: it does, and why panes do not

	whole *whole // the record that answers it, instead of all that follows

	reads []string // the names of materializations and recorded series that it reads; then no stream answers it
	named []*inner // what stands behind them

	// beside says that raw it reads these, too: the engine gets what is recorded with what the exact source has.
	beside bool

	near    []stream   // that hold what it reads, but not on its grid
	lacks   *material  // behind a name that it reads: it cannot be told
	streams []stream   // that can answer it, the best first
	chosen  int        // index into streams
	first   *MissError // why streams[0] did not do
}

// passOver leaves out streams that drop late samples, once another says that it lost some: what those dropped leaves no mark.
func (l *leaf) passOver(why *MissError) {
	if why.Reason != ReasonLateUncorrectable || l.chosen >= len(l.streams) {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(l.streams[l.chosen+1:]), func(s stream) bool { return s.Late == plan.Drop })
	l.streams = append(l.streams[:l.chosen+1:l.chosen+1], rest...)
}

// dataTimes are the times at which windows end, in the order of steps.
func (l *leaf) dataTimes() steps {
	s := l.steps
	if l.pinned {
		s = s.once()
	}
	return steps{start: s.start - l.offset, end: s.end - l.offset, every: s.every}
}

// dataTime returns the end of the window for the step at ts.
func (l *leaf) dataTime(ts int64) int64 {
	if l.pinned {
		ts = l.steps.start
	}
	return ts - l.offset
}

// edge is 1 where windows are [e−R, e) because the stream's buckets own their left edge, and 0 where they are (e−R, e].
func (l *leaf) edge() int64 {
	if len(l.streams) > 0 && l.streams[l.chosen].Closed == plan.Left {
		return 1
	}
	return 0
}

// request asks for the panes that l's windows need; l has steps.
func (l *leaf) request() Request {
	s := l.streams[l.chosen]
	times := l.dataTimes()
	return Request{
		Stream:   s.ID,
		Matchers: l.matchers,
		From:     s.GridFloor(times.start - l.window),
		To:       times.last(),
	}
}

func (l *leaf) miss(reason, format string, args ...any) *MissError {
	return &MissError{Reason: reason, Detail: fmt.Sprintf(format, args...), Node: l.text}
}
