package query

// This file is data path 6 of 6: answer. It evaluates an aggregation together with the leaf that it is over, so that the leaf's
// points, one for each series and step, are never made.

import (
	"math"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/kahansum"

	"tidemark/projections/accum"
)

// aggregation is one of sum, avg, count, min, max and group, over one leaf.
type aggregation struct {
	op      parser.ItemType
	without bool
	names   []string // sorted. by: the labels that tell groups apart, without the name that a function drops; without: those that do not
}

// aggregationOf returns what n does to the results of fn; nil if that is left to the engine.
func aggregationOf(n *parser.AggregateExpr, fn accum.Func) *aggregation {
	switch n.Op {
	case parser.SUM, parser.AVG, parser.COUNT, parser.MIN, parser.MAX, parser.GROUP:
	default:
		return nil
	}
	a := &aggregation{op: n.Op, without: n.Without, names: slices.Clone(n.Grouping)}
	switch {
	case a.without:
		a.names = append(a.names, model.MetricNameLabel)
	case !fn.KeepsName():
		a.names = slices.DeleteFunc(a.names, func(name string) bool { return name == model.MetricNameLabel })
	}
	slices.Sort(a.names)
	return a
}

// aggregate joins the aggregation in slot with the leaf that the rewriter has just put in place of its argument, where the
// engine would find nothing to object to between the two: series that a function leaves with the same labels.
func (r *rewriter) aggregate(slot *parser.Expr, n *parser.AggregateExpr, before int) {
	if !r.direct || len(r.parts) != before+1 || n.Param != nil {
		return
	}
	l := r.parts[before].leaf
	if l == nil || r.parts[before].miss != nil || l.whole != nil || l.aggregation != nil || l.fn == accum.Absent || !standsFor(n.Expr, l) {
		return
	}
	if !l.fn.KeepsName() && !slices.ContainsFunc(l.matchers, func(m *labels.Matcher) bool {
		return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && m.Value != ""
	}) {
		return
	}
	if l.aggregation = aggregationOf(n, l.fn); l.aggregation != nil {
		l.place = append(l.place, replaced{slot, n})
		*slot = stand(n, l)
	}
}

// standsFor says whether e is what the rewriter put in the place of l.
func standsFor(e parser.Expr, l *leaf) bool {
	switch n := e.(type) {
	case *parser.ParenExpr:
		return standsFor(n.Expr, l)
	case *parser.UnaryExpr:
		return n.Op == parser.ADD && standsFor(n.Expr, l)
	case *parser.VectorSelector:
		return len(n.LabelMatchers) > 0 && n.LabelMatchers[0] == l.mark
	default:
		return false
	}
}

// cell is one group at one step.
type cell struct {
	n    int64 // series that have a value
	v, c float64
}

// add takes one more value, in label order of the series, as the engine does. It returns false where the engine would go over
// to another way of averaging.
func (a *aggregation) add(x *cell, f float64) bool {
	if x.n++; x.n == 1 {
		x.v = f
		return true
	}
	switch a.op {
	case parser.SUM:
		x.v, x.c = kahansum.Inc(f, x.v, x.c)
	case parser.AVG:
		x.v, x.c = kahansum.Inc(f, x.v, x.c)
		return !math.IsInf(x.v, 0)
	case parser.MIN:
		if f < x.v || math.IsNaN(x.v) {
			x.v = f
		}
	case parser.MAX:
		if f > x.v || math.IsNaN(x.v) {
			x.v = f
		}
	}
	return true
}

// value reads a cell that has any.
func (a *aggregation) value(x *cell) float64 {
	switch a.op {
	case parser.COUNT:
		return float64(x.n)
	case parser.GROUP:
		return 1
	case parser.AVG:
		n := float64(x.n)
		return x.v/n + x.c/n
	default:
		return x.v + x.c
	}
}

// groups are the groups of one aggregation in the order in which they are met.
type groups struct {
	*aggregation
	steps  int64
	by     map[string]int
	labels []labels.Labels
	cells  [][]cell // by group and step
	key    []byte
}

// find returns the cells of the group that a series belongs to.
func (g *groups) find(metric labels.Labels) []cell {
	if g.without {
		g.key = metric.BytesWithoutLabels(g.key, g.names...)
	} else {
		g.key = metric.BytesWithLabels(g.key, g.names...)
	}
	if at, ok := g.by[string(g.key)]; ok {
		return g.cells[at]
	}
	b := labels.NewBuilder(metric)
	if g.without {
		b.Del(g.names...)
	} else {
		b.Keep(g.names...)
	}
	g.by[string(g.key)] = len(g.cells)
	g.labels = append(g.labels, b.Labels())
	g.cells = append(g.cells, make([]cell, g.steps))
	return g.cells[len(g.cells)-1]
}

// aggregate evaluates the leaf over the series of its answer and groups what comes. The error errUnfit leaves the aggregation to
// the engine.
func (v *evaluation) aggregate(l *leaf, series []Series) (result, error) {
	var (
		out   result
		g     = groups{aggregation: l.aggregation, steps: l.steps.count(), by: map[string]int{}}
		cells []cell
	)
	for i := range series {
		s := &series[i]
		cells = nil
		err := v.each(l, &s.Window, func(ts int64, value float64) error {
			if cells == nil {
				if hasMetadata(s.Labels) {
					return errUnfit
				}
				met := len(g.cells)
				if cells = g.find(s.Labels); len(g.cells) > met {
					if v.budget -= len(cells); v.budget < 0 {
						return promql.ErrTooManySamples("query execution")
					}
				}
				v.annotate(l, s.Labels, &out.notes)
			}
			if !g.add(&cells[(ts-l.steps.start)/l.steps.every], value) {
				return errUnfit
			}
			return nil
		})
		if err != nil {
			return result{}, err
		}
	}
	for i, cells := range g.cells {
		points := make([]promql.FPoint, 0, len(cells))
		for k := range cells {
			if cells[k].n > 0 {
				points = append(points, promql.FPoint{T: l.steps.at(int64(k)), F: g.value(&cells[k])})
			}
		}
		out.series = append(out.series, promql.Series{Metric: g.labels[i], Floats: points})
	}
	return out, nil
}

// hasMetadata says that a series has labels, besides its name, that functions and aggregations drop as metadata.
func hasMetadata(ls labels.Labels) bool {
	return ls.Has(model.MetricTypeLabel) || ls.Has(model.MetricUnitLabel)
}
