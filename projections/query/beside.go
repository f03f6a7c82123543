package query

// This file is data path 6 of 6: answer. It puts recorded series in among written ones, for selectors that may mean both.

import (
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"tidemark/projections/plan"
)

// written returns the matchers by which a selector finds written series where names are given: a written series of such a name is
// nobody's (Q9). ok is false if it means recorded series alone.
func written(matchers []*labels.Matcher, names plan.Named) (of []*labels.Matcher, ok bool) {
	if len(names.All) == 0 {
		return matchers, true
	}
	for _, m := range matchers {
		if m.Name != model.MetricNameLabel || m.Type != labels.MatchEqual {
			continue
		}
		_, recorded := slices.BinarySearch(names.All, m.Value)
		return matchers, !recorded
	}
	if read, mixed := plan.ReadNames(matchers, names); len(read) > 0 && !mixed {
		return nil, false
	}
	return append(slices.Clip(slices.Clone(matchers)), notNamed(names.All)), true
}

// notNamed selects what has none of the names.
func notNamed(names []string) *labels.Matcher {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return labels.MustNewMatcher(labels.MatchNotRegexp, model.MetricNameLabel, strings.Join(quoted, "|"))
}

// unnamed says that a selector says nothing of names: it means whatever was written.
func (l *leaf) unnamed() bool {
	return !slices.ContainsFunc(l.matchers, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel })
}

// ownWritten leaves out the series that are nobody's. It changes nothing of what it is given.
func ownWritten(series []Series, names []string) []Series {
	foreign := func(s Series) bool {
		_, recorded := slices.BinarySearch(names, s.Labels.Get(model.MetricNameLabel))
		return recorded
	}
	if len(names) == 0 || !slices.ContainsFunc(series, foreign) {
		return series
	}
	return slices.DeleteFunc(slices.Clone(series), foreign)
}

// recordedSet is what the engine, or another reader of samples, gets of recorded series: they are in label order.
func recordedSet(series []Series) *resultSet {
	set := &resultSet{series: make([]storage.Series, len(series))}
	for i := range series {
		points := make([]promql.FPoint, len(series[i].T))
		for k := range points {
			points[k] = promql.FPoint{T: series[i].T[k], F: series[i].V[k]}
		}
		set.series[i] = promql.NewStorageSeries(promql.Series{Metric: series[i].Labels, Floats: points})
	}
	return set
}

// among joins two sets in label order, which have no label set in common.
func among(recorded []Series, exact storage.SeriesSet) storage.SeriesSet {
	if len(recorded) == 0 {
		return exact
	}
	return storage.NewMergeSeriesSet([]storage.SeriesSet{recordedSet(recorded), exact}, 0, storage.ChainedSeriesMerge)
}

func isInfo(n parser.Node) bool {
	c, ok := n.(*parser.Call)
	return ok && c.Func.Name == "info"
}

// besides makes leaves of those selectors in a part without a leaf that may mean recorded series: the engine evaluates the part, over
// the samples of the exact source and what is recorded. s are the times at which it evaluates the part. ok is false if that cannot be
// told, or would hold more evaluations than most.
func (r *rewriter) besides(x *index, node parser.Node, s steps) (all []*leaf, ok bool) {
	if s.count() == 0 {
		return nil, true
	}
	ok = true
	parser.Inspect(node, func(n parser.Node, path []parser.Node) error {
		vs, is := n.(*parser.VectorSelector)
		if !is {
			return nil
		}
		read, mixed := plan.ReadNames(vs.LabelMatchers, x.names)
		if len(read) == 0 {
			return nil
		}
		if slices.ContainsFunc(path, isInfo) { // it makes selectors of its own, by which written series alone are found
			ok = ok && mixed
			return nil
		}
		l := &leaf{text: vs.String(), matchers: vs.LabelMatchers, window: r.lookback, steps: s, pinned: vs.Timestamp != nil, exact: true}
		for _, up := range path {
			switch n := up.(type) {
			case *parser.MatrixSelector:
				l.window = millis(n.Range)
			case *parser.SubqueryExpr:
				l.steps = l.steps.within(n, r.defaultStep)
				r.inner += l.steps.count()
			}
		}
		// As the engine resolves it when it evaluates the selector at these steps.
		if l.offset = millis(vs.OriginalOffset); l.pinned && l.steps.count() > 0 {
			l.offset += l.steps.start - *vs.Timestamp
		}
		ok = ok && !vs.Anchored && !vs.Smoothed
		all = append(all, l)
		return nil
	})
	return all, ok
}
