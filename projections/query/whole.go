package query

// This file is data path 6 of 6: answer. It finds parts of an expression that are recorded as they are, or nearly so.

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/plan"
)

// errUnfit says that a part of the expression that was to be read from a record is better answered as if there were none: the
// record has nothing of it, or what must be evaluated in its place is not answered, fails, or has something to say whose
// place in the text would be lost. The request is then answered without wholes.
var errUnfit = errors.New("not to be read from the record")

// whole is a part of an expression that a recorded window answers, with matchers on its output labels.
type whole struct {
	material *material
	filter   []*labels.Matcher
	ordered  bool    // the engine puts its values in order
	answer   bool    // it stands for the whole expression
	doubts   []doubt // with their places in the text as it was sent
	in       *inner
}

// wholes finds the materializations that an expression may be read from.
type wholes struct {
	exact      map[string][]*material  // by the expression
	aggregates map[string][]*aggregate // by operator and shape
}

// aggregate is a recorded aggregation by labels over one leaf.
type aggregate struct {
	material *material
	grouping []string
	matchers []*labels.Matcher
}

// newWholes lists those of the materializations that are recorded and say what PromQL says: over right-closed streams.
func newWholes(all []*material) *wholes {
	w := &wholes{exact: map[string][]*material{}, aggregates: map[string][]*aggregate{}}
	p := plan.NewParser()
	for _, m := range all {
		if m.Layout != plan.LayoutFullWindow || slices.ContainsFunc(m.streams, func(s stream) bool { return s.Closed != plan.Right }) {
			continue
		}
		expr, err := p.ParseExpr(m.Expr)
		if err != nil || !wholeNode(expr) && !selection(expr) || movingSelection(expr) {
			continue
		}
		w.exact[m.Expr] = append(w.exact[m.Expr], m)
		if a, ok := expr.(*parser.AggregateExpr); ok && !a.Without && a.Param == nil {
			if shape, matchers, ok := leafShape(a.Expr); ok {
				key := a.Op.String() + " " + shape
				w.aggregates[key] = append(w.aggregates[key], &aggregate{m, a.Grouping, matchers})
			}
		}
	}
	return w
}

// wholeNode says whether the value of a node may be read from a record. Selectors may not: absent() takes labels from them;
// nor what gives an order to its result, which a record does not keep.
func wholeNode(e parser.Expr) bool {
	switch n := e.(type) {
	case *parser.BinaryExpr:
		return n.Type() == parser.ValueTypeVector
	case *parser.AggregateExpr:
		return !selection(n)
	case *parser.Call:
		switch n.Func.Name {
		case "sort", "sort_desc", "sort_by_label", "sort_by_label_desc":
			return false
		}
		return n.Type() == parser.ValueTypeVector
	default:
		return false
	}
}

// selection says whether a node selects series out of a vector, and gives them an order besides. The matrix of a range query does not show
// that.
func selection(e parser.Expr) bool {
	n, ok := e.(*parser.AggregateExpr)
	return ok && slices.Contains([]parser.ItemType{parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO}, n.Op)
}

// movingSelection says whether anything in e selects a number of series that may be another at each step. The engine looks at these over
// all steps of a request before it selects at any: whether it fails, or says something, hangs on steps that a record tells apart.
func movingSelection(e parser.Expr) (moving bool) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if of, ok := n.(parser.Expr); ok && selection(of) {
			_, fixed := constant(of.(*parser.AggregateExpr).Param)
			moving = moving || !fixed
		}
		return nil
	})
	return moving
}

// leafShape prints a leaf without its matchers, and returns these; ok is false if e is no leaf.
func leafShape(e parser.Expr) (shape string, matchers []*labels.Matcher, ok bool) {
	var vs *parser.VectorSelector
	switch n := e.(type) {
	case *parser.VectorSelector:
		vs = n
	case *parser.Call:
		for _, a := range n.Args {
			if m, is := a.(*parser.MatrixSelector); is {
				vs, _ = m.VectorSelector.(*parser.VectorSelector)
			}
		}
		if n.Func.Name == "absent_over_time" {
			return "", nil, false
		}
	}
	if vs == nil {
		return "", nil, false
	}
	name, held := vs.Name, vs.LabelMatchers
	vs.Name, vs.LabelMatchers = "_", nil
	shape = e.String()
	vs.Name, vs.LabelMatchers = name, held
	return shape, held, true
}

// find replaces the expression in slot, which the engine evaluates at s, or what an aggregation in slot aggregates, by what a
// record holds of it. It returns the leaf to read, nil if there is none.
func (w *wholes) find(r *rewriter, slot *parser.Expr, s steps) *leaf {
	e := *slot
	if s.count() == 0 || !wholeNode(e) && !(slot == r.root && selection(e)) {
		return nil
	}
	if !r.ranged && selection(e) {
		return w.best(r, e.(*parser.AggregateExpr), s)
	}
	for _, m := range w.exact[e.String()] {
		if onSteps(m, s) && r.lookback == m.plan.LookbackMillis {
			l := r.whole(e, &whole{material: m, answer: slot == r.root}, s)
			*slot = stand(e, l)
			return l
		}
	}
	a, ok := e.(*parser.AggregateExpr)
	if !ok || a.Without || a.Param != nil {
		return nil
	}
	shape, matchers, ok := leafShape(a.Expr)
	if !ok {
		return nil
	}
	for _, have := range w.aggregates[a.Op.String()+" "+shape] {
		filter, ok := added(matchers, have)
		if !ok || !onSteps(have.material, s) || r.lookback != have.material.plan.LookbackMillis {
			continue
		}
		same := slices.Equal(slices.Sorted(slices.Values(a.Grouping)), slices.Sorted(slices.Values(have.grouping)))
		coarser := !slices.ContainsFunc(a.Grouping, func(g string) bool { return !slices.Contains(have.grouping, g) })
		switch {
		case same:
			l := r.whole(e, &whole{material: have.material, filter: filter, answer: slot == r.root}, s)
			*slot = stand(e, l)
			return l
		case coarser && (a.Op == parser.SUM || a.Op == parser.MIN || a.Op == parser.MAX || a.Op == parser.COUNT):
			l := r.whole(e, &whole{material: have.material, filter: filter}, s)
			a.Expr = stand(a.Expr, l)
			if a.Op == parser.COUNT {
				a.Op = parser.SUM // of the counts
			}
			return l
		}
	}
	return nil
}

// best replaces what the root of an instant query selects from by what is recorded of the selection: the engine selects all of that, and
// puts it in order. Of groups a record does not tell which is first: that in which the first series is, which may not be selected.
func (w *wholes) best(r *rewriter, n *parser.AggregateExpr, s steps) *leaf {
	if _, literal := n.Param.(*parser.NumberLiteral); !literal || n.Op != parser.TOPK && n.Op != parser.BOTTOMK {
		return nil
	}
	if n.Without || len(n.Grouping) > 0 {
		return nil
	}
	for _, m := range w.exact[n.String()] {
		if onSteps(m, s) && r.lookback == m.plan.LookbackMillis {
			l := r.whole(n, &whole{material: m, ordered: true}, s)
			n.Expr = stand(n.Expr, l)
			return l
		}
	}
	return nil
}

// distinct says that there is one order of the values of a step: the engine's order of equal ones depends on all that it selects from.
func distinct(values []float64) bool {
	sorted := slices.Clone(values)
	slices.Sort(sorted) // NaN first
	return len(sorted) == 0 || !math.IsNaN(sorted[0]) && len(slices.Compact(sorted)) == len(values)
}

// added returns the matchers of a query that a recorded aggregation does not have, if it has no others and these are on labels
// that it groups by: the series of a group then agree on them.
func added(query []*labels.Matcher, have *aggregate) (extra []*labels.Matcher, ok bool) {
	in := func(m *labels.Matcher, of []*labels.Matcher) bool {
		return slices.ContainsFunc(of, func(o *labels.Matcher) bool { return o.Name == m.Name && o.Type == m.Type && o.Value == m.Value })
	}
	for _, m := range have.matchers {
		if !in(m, query) {
			return nil, false
		}
	}
	for _, m := range query {
		if in(m, have.matchers) {
			continue
		}
		if m.Name == model.MetricNameLabel || !slices.Contains(have.grouping, m.Name) { // a function may have dropped the name
			return nil, false
		}
		extra = append(extra, m)
	}
	return extra, true
}

// onSteps says whether all of s are steps of m's grid.
func onSteps(m *material, s steps) bool {
	return floorTo(s.start, m.EveryMillis) == s.start && (s.count() == 1 || s.every%m.EveryMillis == 0)
}

func (r *rewriter) whole(e parser.Expr, w *whole, s steps) *leaf {
	w.doubts, _ = doubts(e) // where that is not known, nothing is recorded but that there is something to say
	l := &leaf{text: e.String(), steps: s, whole: w, mark: labels.MustNewMatcher(labels.MatchNotEqual, leafLabel, "")}
	r.parts = append(r.parts, part{leaf: l})
	return l
}

// stand returns what the engine evaluates in the place of e.
func stand(e parser.Expr, l *leaf) parser.Expr {
	return &parser.UnaryExpr{
		Op:       parser.ADD,
		Expr:     &parser.VectorSelector{LabelMatchers: []*labels.Matcher{l.mark}, PosRange: e.PositionRange()},
		StartPos: e.PositionRange().Start,
	}
}

// provideWhole finds what the record has for l.
func (d *demand) provideWhole(ctx context.Context, l *leaf) error {
	m, s := l.whole.material, l.steps
	s = steps{start: s.start, end: s.last(), every: s.every}
	if s.count() == 1 {
		s.every = m.EveryMillis
	}
	in, err := d.behind(ctx, m, s)
	var miss *MissError
	if errors.As(err, &miss) {
		return errUnfit
	}
	if err != nil {
		return err
	}
	in.strict = true
	if len(in.recorded) == 0 || slices.ContainsFunc(in.recorded, noted) {
		return errUnfit
	}
	if l.whole.ordered && !distinct(in.recorded[0].Floats) {
		return errUnfit
	}
	l.whole.in = in
	return nil
}

// result is the record's part at the steps of the leaf.
func (w *whole) result() result {
	out := result{steps: w.in.steps}
	for _, s := range w.in.matrix {
		if !slices.ContainsFunc(w.filter, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
			out.series = append(out.series, promql.Series{Metric: s.Metric, Floats: s.Floats})
		}
	}
	if len(w.doubts) == 0 || len(out.series) == 0 && len(w.filter) > 0 {
		return out // a group that is left has a value wherever one of its series has
	}
	mask := uint64(0)
	for _, s := range w.in.recorded {
		mask |= s.Doubts
	}
	for _, m := range w.in.doubts {
		mask |= m
	}
	say(w.doubts, mask, &out.notes)
	return out
}
