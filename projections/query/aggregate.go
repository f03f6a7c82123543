package query

// This file is data path 6 of 6: answer. It evaluates an aggregation together with the leaf that it is over, so that the leaf's
// points, one for each series and step, are never made.

import (
	"cmp"
	"math"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
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

// add takes the values of one more series into the cells of its group, in label order of the series, as the engine does. It returns false
// where the engine would go over to another way of averaging.
func (g *groups) add(cells []cell, found *accum.Results) bool {
	switch values := found.V; g.op {
	case parser.SUM:
		for i, k := range found.At {
			x := &cells[k-g.from]
			if x.n++; x.n == 1 {
				x.v = values[i]
				continue
			}
			x.v, x.c = kahansum.Inc(values[i], x.v, x.c)
		}
	case parser.AVG:
		for i, k := range found.At {
			x := &cells[k-g.from]
			if x.n++; x.n == 1 {
				x.v = values[i]
				continue
			}
			if x.v, x.c = kahansum.Inc(values[i], x.v, x.c); math.IsInf(x.v, 0) {
				return false
			}
		}
	case parser.MIN:
		for i, k := range found.At {
			x := &cells[k-g.from]
			if x.n++; x.n == 1 || values[i] < x.v || math.IsNaN(x.v) {
				x.v = values[i]
			}
		}
	case parser.MAX:
		for i, k := range found.At {
			x := &cells[k-g.from]
			if x.n++; x.n == 1 || values[i] > x.v || math.IsNaN(x.v) {
				x.v = values[i]
			}
		}
	default: // of COUNT and GROUP no value matters
		for _, k := range found.At {
			cells[k-g.from].n++
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

// groups are the groups of one aggregation at some of its steps, in the order in which they are met.
type groups struct {
	*aggregation
	from, to int64 // the steps, by number
	by       map[string]int
	all      []group
	notes    annotations.Annotations
	key      []byte
}

type group struct {
	key    string
	labels labels.Labels
	met    int // at which series
	cells  []cell
}

// find returns the cells of the group that a series belongs to, which may be the first of it.
func (g *groups) find(series int, metric labels.Labels) []cell {
	if g.without {
		g.key = metric.BytesWithoutLabels(g.key, g.names...)
	} else {
		g.key = metric.BytesWithLabels(g.key, g.names...)
	}
	if at, ok := g.by[string(g.key)]; ok {
		return g.all[at].cells
	}
	b := labels.NewBuilder(metric)
	if g.without {
		b.Del(g.names...)
	} else {
		b.Keep(g.names...)
	}
	found := group{key: string(g.key), labels: b.Labels(), met: series, cells: make([]cell, g.to-g.from)}
	g.by[found.key] = len(g.all)
	g.all = append(g.all, found)
	return found.cells
}

// aggregate evaluates the leaf over the series of its answer and groups what comes. The error errUnfit leaves the aggregation to
// the engine. Where there is much to do each of several sweeps takes some of the steps: the values of a step are added up by one of them,
// in the order of the series.
func (v *evaluation) aggregate(l *leaf, series []Series) (result, error) {
	n := l.steps.count()
	parts := make([]groups, min(n, int64(v.sweeps(l, series))))
	err := v.share(len(parts), func(i int, s *sweep) error {
		of := int64(len(parts))
		parts[i] = groups{aggregation: l.aggregation, from: n * int64(i) / of, to: n * int64(i+1) / of, by: map[string]int{}}
		return s.group(l, series, v.budget/int(n), &parts[i])
	})
	if err != nil {
		return result{}, err
	}
	return v.join(l, parts)
}

// group evaluates the leaf at the steps of g. It fails with more than so many groups.
func (v *sweep) group(l *leaf, series []Series, most int, g *groups) error {
	for i := range series {
		s := &series[i]
		if err := v.each(l, &s.Window, g.from, g.to); err != nil {
			return err
		}
		if len(v.found.At) == 0 {
			continue
		}
		if hasMetadata(s.Labels) {
			return errUnfit
		}
		cells := g.find(i, s.Labels)
		if len(g.all) > most {
			return promql.ErrTooManySamples("query execution")
		}
		v.annotate(l, s.Labels, &g.notes)
		if !g.add(cells, &v.found) {
			return errUnfit
		}
	}
	return nil
}

// join makes the result of parts, which have the steps of l in their order.
func (v *evaluation) join(l *leaf, parts []groups) (result, error) {
	var out result
	all := groups{by: map[string]int{}} // without cells, but with those of the first part that has some
	for i := range parts {
		out.notes.Merge(parts[i].notes)
		for _, g := range parts[i].all {
			if at, ok := all.by[g.key]; ok {
				all.all[at].met = min(all.all[at].met, g.met)
				continue
			}
			all.by[g.key] = len(all.all)
			all.all = append(all.all, g)
		}
	}
	if v.budget -= len(all.all) * int(l.steps.count()); v.budget < 0 {
		return result{}, promql.ErrTooManySamples("query execution")
	}
	slices.SortFunc(all.all, func(a, b group) int { return cmp.Compare(a.met, b.met) })
	for _, g := range all.all {
		points := make([]promql.FPoint, 0, l.steps.count())
		for i := range parts {
			at, ok := parts[i].by[g.key]
			if !ok {
				continue
			}
			for k := range parts[i].all[at].cells {
				if x := &parts[i].all[at].cells[k]; x.n > 0 {
					points = append(points, promql.FPoint{T: l.steps.at(parts[i].from + int64(k)), F: l.aggregation.value(x)})
				}
			}
		}
		out.series = append(out.series, promql.Series{Metric: g.labels, Floats: points})
	}
	return out, nil
}

// hasMetadata says that a series has labels, besides its name, that functions and aggregations drop as metadata.
func hasMetadata(ls labels.Labels) bool {
	return ls.Has(model.MetricTypeLabel) || ls.Has(model.MetricUnitLabel)
}
