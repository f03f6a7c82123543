package query

// This file is data path 6 of 6: answer. It keeps what the engine says of metrics that by their names are no counters beside what is
// recorded of them.

import (
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"
	"github.com/prometheus/prometheus/util/annotations"

	"tidemark/projections/accum"
)

// maxDoubts bounds the doubtful counters of an expression that are told apart.
const maxDoubts = 64

// doubt is a place where an expression asks for the rate of a metric whose name is not that of a counter. The engine says so, with the
// place, wherever such a metric has a value.
type doubt struct {
	name string
	pos  posrange.PositionRange
}

func (d doubt) info() error { return annotations.NewPossibleNonCounterInfo(d.name, d.pos) }

// doubts returns those of an expression, in the order of its text. ok is false where what the engine says cannot be told from them:
// a selector with more than one name, or the same name twice, of which the engine keeps one place.
func doubts(e parser.Expr) (found []doubt, ok bool) {
	ok = true
	seen := make(map[string]bool)
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		call, is := n.(*parser.Call)
		if !is || len(call.Args) == 0 {
			return nil
		}
		fn, known := accum.FuncByName(call.Func.Name)
		if !known || !fn.ExpectsCounter() {
			return nil
		}
		m, is := call.Args[0].(*parser.MatrixSelector)
		if !is {
			ok = false // a subquery, say
			return nil
		}
		name, is := onlyName(m.VectorSelector.(*parser.VectorSelector).LabelMatchers)
		switch {
		case !is || seen[name]:
			ok = false
		case !namesCounter(name):
			found = append(found, doubt{name, call.Args[0].PositionRange()})
		}
		seen[name] = true
		return nil
	})
	return found, ok && len(found) <= maxDoubts
}

func onlyName(ms []*labels.Matcher) (string, bool) {
	for _, m := range ms {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value, m.Value != ""
		}
	}
	return "", false
}

// namesCounter says whether a name is one that Prometheus takes for that of a counter.
func namesCounter(name string) bool {
	for _, suffix := range []string{"_total", "_sum", "_count", "_bucket"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// doubted finds out which doubtful counters had values in a run, by step. ok is false if the engine said anything else, which is not
// kept.
func (r *run) doubted(said annotations.Annotations) (at map[int64]uint64, ok bool) {
	if len(said) == 0 {
		return nil, true
	}
	if !r.doubtsKnown {
		return nil, false
	}
	at = make(map[int64]uint64)
	seen := make(map[string]bool)
	for i, d := range r.doubts {
		for _, l := range r.leaves {
			if l.selPos != d.pos {
				continue
			}
			if l.steps != r.steps {
				return nil, false // it is evaluated at other steps than these
			}
			for _, s := range r.from.values[l.mark].series {
				for _, p := range s.Floats {
					at[p.T] |= 1 << i
					seen[d.info().Error()] = true
				}
			}
		}
	}
	for text := range said {
		if !seen[text] {
			return nil, false
		}
	}
	return at, true
}

// say adds what the engine would say of the doubtful counters of a mask.
func say(all []doubt, mask uint64, notes *annotations.Annotations) {
	for i, d := range all {
		if mask>>i&1 != 0 {
			notes.Add(d.info())
		}
	}
}
