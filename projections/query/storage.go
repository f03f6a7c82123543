package query

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

// results is the storage that the engine reads: for each synthetic selector, by its mark, the leaf's value at each step.
type results map[*labels.Matcher]result

var (
	_ storage.Queryable = results(nil)
	_ storage.Querier   = results(nil)
)

// Querier implements storage.Queryable.
func (r results) Querier(_, _ int64) (storage.Querier, error) { return r, nil }

// Select implements storage.Querier.
func (r results) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	for _, m := range matchers {
		if out, ok := r[m]; ok {
			return out.set()
		}
	}
	return storage.ErrSeriesSet(fmt.Errorf("Q3: the engine selects %v, which no leaf stands for", matchers))
}

// set is what the engine reads.
func (r *result) set() storage.SeriesSet {
	if r.err != nil {
		return &resultSet{series: []storage.Series{failing{r.err}}, notes: r.notes}
	}
	set := &resultSet{series: make([]storage.Series, len(r.series)), notes: r.notes}
	for i, s := range r.series {
		set.series[i] = promql.NewStorageSeries(s)
	}
	return set
}

// matrix is what the engine makes of the values: those that bear the mark of a series that has ended are none.
func (r *result) matrix() promql.Matrix {
	m := make(promql.Matrix, 0, len(r.series))
	stale := func(p promql.FPoint) bool { return value.IsStaleNaN(p.F) }
	for _, s := range r.series {
		if slices.ContainsFunc(s.Floats, stale) {
			s.Floats = slices.DeleteFunc(slices.Clone(s.Floats), stale)
		}
		if len(s.Floats) > 0 {
			m = append(m, s)
		}
	}
	return m
}

// vectorOf makes a vector of a matrix with one step.
func vectorOf(m promql.Matrix, t int64) promql.Vector {
	v := make(promql.Vector, len(m))
	for i := range m {
		v[i] = promql.Sample{Metric: m[i].Metric, T: t, F: m[i].Floats[0].F}
	}
	return v
}

// LabelValues implements storage.Querier. The engine asks for none.
func (results) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements storage.Querier. The engine asks for none.
func (results) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close implements storage.Querier.
func (results) Close() error { return nil }

type resultSet struct {
	series []storage.Series
	next   int
	notes  annotations.Annotations
}

func (s *resultSet) Next() bool {
	s.next++
	return s.next <= len(s.series)
}

func (s *resultSet) At() storage.Series                { return s.series[s.next-1] }
func (s *resultSet) Err() error                        { return nil }
func (s *resultSet) Warnings() annotations.Annotations { return s.notes }

// failing is a series whose reading fails: the engine passes on an iterator's error as it is, where an error of the set
// would be wrapped in words that Prometheus' own evaluation of the same function does not use.
type failing struct{ err error }

func (failing) Labels() labels.Labels { return labels.EmptyLabels() }

func (f failing) Iterator(chunkenc.Iterator) chunkenc.Iterator {
	return failingIterator{Iterator: chunkenc.NewNopIterator(), err: f.err}
}

type failingIterator struct {
	chunkenc.Iterator
	err error
}

func (f failingIterator) Err() error { return f.err }
