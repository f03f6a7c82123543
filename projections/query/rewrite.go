package query

import (
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/accum"
)

// leafLabel is the label by whose matcher a synthetic selector is told from others. No series carries it: selectors are
// recognised by the identity of the matcher, so that an expression which names the label itself changes nothing.
const leafLabel = "__tidemark_leaf__"

// rewriter finds the leaves of a preprocessed expression, and puts in the place of each a synthetic selector without @ and
// offset, which the engine reads at the times of its own steps.
type rewriter struct {
	lookback    int64
	defaultStep func(rangeMillis int64) int64
	direct      bool         // aggregations may be evaluated with their leaves
	wholes      *wholes      // nil: nothing is read from records
	root        *parser.Expr // the answer is its value
	ranged      bool         // at each step of a range
	parts       []part
	inner       int64 // evaluations that subqueries ask for, each over all the windows that it serves
}

// checkInner bounds what the engine would hold for subqueries. It looks at its own bound only when it has made all of them, and at
// the context neither, so that a subquery over decades would take all the memory there is.
func (r *rewriter) checkInner(maxSamples int) error {
	if r.inner > int64(maxSamples) {
		return promql.ErrTooManySamples("query execution")
	}
	return nil
}

// part is what an expression reads from storage: a leaf, a miss where it cannot be one, or both where no stream fits the leaf.
type part struct {
	leaf *leaf
	miss *MissError
	node parser.Node // of the expression as it was sent
	raw  bool        // the exact source answers it: its node stands in the expression, and the engine evaluates it
	at   steps       // if there is no leaf: when the engine evaluates it

	beside []*leaf // if there is no leaf: those of its selectors that may mean recorded series
}

// replaced is a leaf's place in the expression, and what stood there.
type replaced struct {
	slot     *parser.Expr
	original parser.Expr
}

// rewrite walks the expression in slot, which the engine evaluates at s, in the order in which the engine does.
func (r *rewriter) rewrite(slot *parser.Expr, s steps) {
	if r.wholes != nil && r.wholes.find(r, slot, s) != nil {
		return
	}
	switch n := (*slot).(type) {
	case nil, *parser.NumberLiteral, *parser.StringLiteral:
	case *parser.StepInvariantExpr:
		r.rewrite(&n.Expr, s.once())
	case *parser.ParenExpr:
		r.rewrite(&n.Expr, s)
	case *parser.UnaryExpr:
		r.rewrite(&n.Expr, s)
	case *parser.AggregateExpr:
		r.rewrite(&n.Param, s)
		before := len(r.parts)
		r.rewrite(&n.Expr, s)
		r.aggregate(slot, n, before)
	case *parser.BinaryExpr:
		r.rewrite(&n.LHS, s)
		r.rewrite(&n.RHS, s)
	case *parser.SubqueryExpr:
		inner := s.within(n, r.defaultStep)
		r.inner += inner.count()
		// The engine resolves offsets anew for a subquery that does not begin where its parent does.
		if s.count() > 0 && inner.start != s.start {
			resolveOffsets(n.Expr, inner.start, 0)
		}
		r.rewrite(&n.Expr, inner)
	case *parser.VectorSelector:
		r.instant(slot, n, s)
	case *parser.MatrixSelector:
		r.miss(n, s, ReasonUnsupportedFunction, "a range selector without a function asks for the samples themselves")
	case *parser.Call:
		r.call(slot, n, s)
	default:
		r.miss(n, s, ReasonUnsupportedFunction, "expressions of type %T are not known here", n)
	}
}

func (r *rewriter) call(slot *parser.Expr, n *parser.Call, s steps) {
	switch n.Func.Name {
	case "info":
		r.miss(n, s, ReasonUnsupportedFunction, "info() selects series by the labels of others")
		return
	case "timestamp":
		if vs, ok := n.Args[0].(*parser.VectorSelector); ok {
			r.timestamp(slot, n, vs, s)
			return
		}
	case "start_timestamp":
		if _, ok := n.Args[0].(*parser.VectorSelector); ok {
			r.miss(n, s, ReasonUnsupportedFunction, "panes hold no start timestamps")
			return
		}
	}
	for i, arg := range n.Args {
		if m, ok := arg.(*parser.MatrixSelector); ok {
			r.overTime(slot, n, i, m, s)
			return
		}
	}
	for i := range n.Args {
		r.rewrite(&n.Args[i], s)
	}
}

// miss notes a part that cannot be a leaf, which the engine evaluates at s.
func (r *rewriter) miss(node parser.Node, s steps, reason, format string, args ...any) {
	r.parts = append(r.parts, part{node: node, at: s, miss: &MissError{Reason: reason, Detail: fmt.Sprintf(format, args...), Node: node.String()}})
}

// instant makes a leaf of an instant selector. The synthetic selector keeps the name and the matchers as written, because
// absent() takes the labels of its result from them.
func (r *rewriter) instant(slot *parser.Expr, vs *parser.VectorSelector, s steps) {
	l, ok := r.add(slot, vs, vs, accum.Instant, r.lookback, s)
	if !ok {
		return
	}
	l.lookback = true
	*slot = &parser.VectorSelector{
		Name:          vs.Name,
		LabelMatchers: append([]*labels.Matcher{l.mark}, vs.LabelMatchers...),
		PosRange:      vs.PosRange,
	}
}

// timestamp makes a leaf of timestamp(selector): it needs the times of samples where the synthetic selector has steps.
func (r *rewriter) timestamp(slot *parser.Expr, n *parser.Call, vs *parser.VectorSelector, s steps) {
	l, ok := r.add(slot, n, vs, accum.Timestamp, r.lookback, s)
	if !ok {
		return
	}
	l.lookback = true
	if vs.Timestamp != nil {
		// For this one function the engine drops the offset where there is an @.
		l.offset = s.start - *vs.Timestamp
	}
	*slot = standIn(n, l)
}

// overTime makes a leaf of a function over the range selector that is its argument number at.
func (r *rewriter) overTime(slot *parser.Expr, n *parser.Call, at int, m *parser.MatrixSelector, s steps) {
	fn, ok := accum.FuncByName(n.Func.Name)
	if !ok {
		r.miss(n, s, ReasonUnsupportedFunction, "panes do not answer %s", n.Func.Name)
		return
	}
	vs := m.VectorSelector.(*parser.VectorSelector) // the parser allows nothing else
	arg := math.NaN()
	for i, a := range n.Args {
		if i == at {
			continue
		}
		if arg, ok = constant(a); !ok {
			r.miss(n, s, ReasonNonConstantArgument, "the argument %s is not a constant", a)
			return
		}
	}
	l, ok := r.add(slot, n, vs, fn, millis(m.Range), s)
	if !ok {
		return
	}
	l.arg = arg
	l.selPos = n.Args[0].PositionRange()
	if len(n.Args) > 1 {
		l.argPos = n.Args[0].PositionRange()
	}
	*slot = standIn(n, l)
}

// add makes the leaf for node, which stands in slot and reads vs at s through windows of the given width. ok is false if it cannot
// be one.
func (r *rewriter) add(slot *parser.Expr, node parser.Node, vs *parser.VectorSelector, fn accum.Func, window int64, s steps) (l *leaf, ok bool) {
	if vs.Anchored || vs.Smoothed {
		r.miss(node, s, ReasonUnsupportedFunction, "anchored and smoothed selectors read beyond their window")
		return nil, false
	}
	l = &leaf{
		text:     node.String(),
		fn:       fn,
		matchers: vs.LabelMatchers,
		window:   window,
		steps:    s,
		offset:   millis(vs.Offset),
		pinned:   vs.Timestamp != nil,
		mark:     labels.MustNewMatcher(labels.MatchNotEqual, leafLabel, ""),
		place:    []replaced{{slot, *slot}},
	}
	r.parts = append(r.parts, part{node: node, leaf: l})
	return l, true
}

// standIn returns what the engine evaluates in the place of the call n. The unary plus changes no value; it keeps the
// engine from taking the synthetic selector for one that the user wrote, as absent() and timestamp() would.
func standIn(n *parser.Call, l *leaf) parser.Expr {
	return &parser.UnaryExpr{
		Op:       parser.ADD,
		Expr:     &parser.VectorSelector{LabelMatchers: []*labels.Matcher{l.mark}, PosRange: n.PosRange},
		StartPos: n.PosRange.Start,
	}
}

// constant evaluates arithmetic over number literals.
func constant(e parser.Expr) (float64, bool) {
	switch n := e.(type) {
	case *parser.NumberLiteral:
		return n.Val, true
	case *parser.ParenExpr:
		return constant(n.Expr)
	case *parser.StepInvariantExpr:
		return constant(n.Expr)
	case *parser.UnaryExpr:
		v, ok := constant(n.Expr)
		if n.Op == parser.SUB {
			v = -v
		}
		return v, ok
	case *parser.BinaryExpr:
		a, okA := constant(n.LHS)
		b, okB := constant(n.RHS)
		if !okA || !okB {
			return 0, false
		}
		switch n.Op {
		case parser.ADD:
			return a + b, true
		case parser.SUB:
			return a - b, true
		case parser.MUL:
			return a * b, true
		case parser.DIV:
			return a / b, true
		}
	}
	return 0, false
}
