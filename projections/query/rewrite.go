package query

import (
	"math"

	"github.com/prometheus/prometheus/model/labels"
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
	maxLeaves   int
	leaves      []*leaf
}

// rewrite walks the expression in slot, which the engine evaluates at s, in the order in which the engine does.
func (r *rewriter) rewrite(slot *parser.Expr, s steps) error {
	switch n := (*slot).(type) {
	case nil, *parser.NumberLiteral, *parser.StringLiteral:
		return nil
	case *parser.StepInvariantExpr:
		return r.rewrite(&n.Expr, s.once())
	case *parser.ParenExpr:
		return r.rewrite(&n.Expr, s)
	case *parser.UnaryExpr:
		return r.rewrite(&n.Expr, s)
	case *parser.AggregateExpr:
		if n.Param != nil {
			if err := r.rewrite(&n.Param, s); err != nil {
				return err
			}
		}
		return r.rewrite(&n.Expr, s)
	case *parser.BinaryExpr:
		if err := r.rewrite(&n.LHS, s); err != nil {
			return err
		}
		return r.rewrite(&n.RHS, s)
	case *parser.SubqueryExpr:
		inner := s.within(n, r.defaultStep)
		// The engine resolves offsets anew for a subquery that does not begin where its parent does.
		if s.count() > 0 && inner.start != s.start {
			resolveOffsets(n.Expr, inner.start, 0)
		}
		return r.rewrite(&n.Expr, inner)
	case *parser.VectorSelector:
		return r.instant(slot, n, s)
	case *parser.MatrixSelector:
		return missAt(n, ReasonUnsupportedFunction, "a range selector without a function asks for the samples themselves")
	case *parser.Call:
		return r.call(slot, n, s)
	default:
		return missAt(n, ReasonUnsupportedFunction, "expressions of type %T are not known here", n)
	}
}

func (r *rewriter) call(slot *parser.Expr, n *parser.Call, s steps) error {
	switch n.Func.Name {
	case "info":
		return missAt(n, ReasonUnsupportedFunction, "info() selects series by the labels of others")
	case "timestamp":
		if vs, ok := n.Args[0].(*parser.VectorSelector); ok {
			return r.timestamp(slot, n, vs, s)
		}
	case "start_timestamp":
		if _, ok := n.Args[0].(*parser.VectorSelector); ok {
			return missAt(n, ReasonUnsupportedFunction, "panes hold no start timestamps")
		}
	}
	for i, arg := range n.Args {
		if m, ok := arg.(*parser.MatrixSelector); ok {
			return r.overTime(slot, n, i, m, s)
		}
	}
	for i := range n.Args {
		if err := r.rewrite(&n.Args[i], s); err != nil {
			return err
		}
	}
	return nil
}

// instant makes a leaf of an instant selector. The synthetic selector keeps the name and the matchers as written, because
// absent() takes the labels of its result from them.
func (r *rewriter) instant(slot *parser.Expr, vs *parser.VectorSelector, s steps) error {
	l, err := r.add(vs, vs, accum.Instant, r.lookback, s)
	if err != nil {
		return err
	}
	l.lookback = true
	*slot = &parser.VectorSelector{
		Name:          vs.Name,
		LabelMatchers: append([]*labels.Matcher{l.mark}, vs.LabelMatchers...),
		PosRange:      vs.PosRange,
	}
	return nil
}

// timestamp makes a leaf of timestamp(selector): it needs the times of samples where the synthetic selector has steps.
func (r *rewriter) timestamp(slot *parser.Expr, n *parser.Call, vs *parser.VectorSelector, s steps) error {
	l, err := r.add(n, vs, accum.Timestamp, r.lookback, s)
	if err != nil {
		return err
	}
	l.lookback = true
	if vs.Timestamp != nil {
		// For this one function the engine drops the offset where there is an @.
		l.offset = s.start - *vs.Timestamp
	}
	*slot = standIn(n, l)
	return nil
}

// overTime makes a leaf of a function over the range selector that is its argument number at.
func (r *rewriter) overTime(slot *parser.Expr, n *parser.Call, at int, m *parser.MatrixSelector, s steps) error {
	fn, ok := accum.FuncByName(n.Func.Name)
	if !ok || fn == accum.Timestamp {
		return missAt(n, ReasonUnsupportedFunction, "panes do not answer %s", n.Func.Name)
	}
	vs := m.VectorSelector.(*parser.VectorSelector) // the parser allows nothing else
	arg := math.NaN()
	for i, a := range n.Args {
		if i == at {
			continue
		}
		if arg, ok = constant(a); !ok {
			return missAt(n, ReasonNonConstantArgument, "the argument %s is not a constant", a)
		}
	}
	l, err := r.add(n, vs, fn, millis(m.Range), s)
	if err != nil {
		return err
	}
	l.arg = arg
	l.selPos = n.Args[0].PositionRange()
	if len(n.Args) > 1 {
		l.argPos = n.Args[0].PositionRange()
	}
	*slot = standIn(n, l)
	return nil
}

// add makes the leaf for node, which reads vs at s through windows of the given width.
func (r *rewriter) add(node parser.Node, vs *parser.VectorSelector, fn accum.Func, window int64, s steps) (*leaf, error) {
	if vs.Anchored || vs.Smoothed {
		return nil, missAt(node, ReasonUnsupportedFunction, "anchored and smoothed selectors read beyond their window")
	}
	if len(r.leaves) >= r.maxLeaves {
		return nil, &BadDataError{errTooManyLeaves(r.maxLeaves)}
	}
	l := &leaf{
		text:     node.String(),
		fn:       fn,
		matchers: vs.LabelMatchers,
		window:   window,
		steps:    s,
		offset:   millis(vs.Offset),
		pinned:   vs.Timestamp != nil,
		mark:     labels.MustNewMatcher(labels.MatchNotEqual, leafLabel, ""),
	}
	r.leaves = append(r.leaves, l)
	return l, nil
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
