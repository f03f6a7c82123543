// Package oracle is Prometheus' own engine over samples in memory, and the comparison of two answers by the contract of
// the query API: whatever panes answer must equal what it answers for the same samples. Tests of the query path hold
// themselves to it, and so does every run of `tidemark demo`.
//
// Contract. Storage copies nothing and changes nothing: the samples given to it must stay as they are while it is asked.
// An answer is equal if it has the same series, labels, times, warnings and infos, and values within Tolerance.
//
// Nothing here starts a goroutine or reads a clock.
package oracle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Series is one series with all its samples, in time order.
type Series struct {
	Labels labels.Labels
	T      []int64 // ms, strictly increasing
	V      []float64
}

// Storage returns a storage over the samples, for Prometheus' engine. Series come in label order.
func Storage(series []Series) storage.Queryable {
	sorted := slices.Clone(series)
	slices.SortFunc(sorted, func(a, b Series) int { return labels.Compare(a.Labels, b.Labels) })
	return memory(sorted)
}

// memory is a storage.Queryable and its own storage.Querier.
type memory []Series

func (m memory) Querier(_, _ int64) (storage.Querier, error) { return m, nil }
func (m memory) Close() error                                { return nil }

// Select returns all samples of the matching series. The engine takes of them what it needs.
func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	set := &memorySet{}
	for _, s := range m {
		if !Matches(s.Labels, ms) {
			continue
		}
		points := make([]promql.FPoint, len(s.T))
		for i := range s.T {
			points[i] = promql.FPoint{T: s.T[i], F: s.V[i]}
		}
		set.series = append(set.series, promql.NewStorageSeries(promql.Series{Metric: s.Labels, Floats: points}))
	}
	return set
}

// LabelValues returns the values of a label of the matching series, sorted.
func (m memory) LabelValues(_ context.Context, name string, _ *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	var values []string
	for _, s := range m {
		if v := s.Labels.Get(name); v != "" && Matches(s.Labels, ms) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return slices.Compact(values), nil, nil
}

// LabelNames returns the label names of the matching series, sorted.
func (m memory) LabelNames(_ context.Context, _ *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	var names []string
	for _, s := range m {
		if Matches(s.Labels, ms) {
			s.Labels.Range(func(l labels.Label) { names = append(names, l.Name) })
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil, nil
}

// Matches says whether all matchers match.
func Matches(l labels.Labels, ms []*labels.Matcher) bool {
	return !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) })
}

type memorySet struct {
	series []storage.Series
	next   int
}

func (s *memorySet) Next() bool {
	s.next++
	return s.next <= len(s.series)
}

func (s *memorySet) At() storage.Series                { return s.series[s.next-1] }
func (s *memorySet) Err() error                        { return nil }
func (s *memorySet) Warnings() annotations.Annotations { return nil }

// Outcome is an answer or an error, from either side.
type Outcome struct {
	Value           parser.Value
	Warnings, Infos []string // sorted
	Err             error
}

// Query is an instant query if Step is 0 (at Start), else a range query.
type Query struct {
	Expr       string
	Start, End int64 // ms
	Step       int64 // ms
	Lookback   int64 // ms; 0: the default
	Limit      int64 // series in the answer of the engine under test; the oracle knows none
	Terms      Terms
}

func (q Query) String() string {
	if q.Step == 0 {
		return fmt.Sprintf("%s at %d", q.Expr, q.Start)
	}
	return fmt.Sprintf("%s from %d to %d step %d", q.Expr, q.Start, q.End, q.Step)
}

// Lookback and SubqueryStep are what both sides use where a query names none.
const (
	Lookback     = 5 * time.Minute
	SubqueryStep = time.Minute
)

// NewEngine returns Prometheus' engine as Prometheus configures it, with experimental functions.
func NewEngine(maxSamples int) *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples:               maxSamples,
		Timeout:                  time.Minute,
		LookbackDelta:            Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return SubqueryStep.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		Parser:                   parser.NewParser(parser.Options{EnableExperimentalFunctions: true}),
	})
}

// Ask evaluates q with the oracle.
func Ask(ctx context.Context, engine *promql.Engine, data storage.Queryable, q Query) Outcome {
	var (
		query promql.Query
		err   error
		opts  = promql.NewPrometheusQueryOpts(false, time.Duration(q.Lookback)*time.Millisecond, nil)
	)
	if q.Step == 0 {
		query, err = engine.NewInstantQuery(ctx, data, opts, q.Expr, time.UnixMilli(q.Start))
	} else {
		query, err = engine.NewRangeQuery(ctx, data, opts, q.Expr, time.UnixMilli(q.Start), time.UnixMilli(q.End), time.Duration(q.Step)*time.Millisecond)
	}
	if err != nil {
		return Outcome{Err: err}
	}
	res := query.Exec(ctx)
	if res.Err != nil {
		return Outcome{Err: res.Err}
	}
	warnings, infos := res.Warnings.AsStrings(q.Expr, 0, 0)
	slices.Sort(warnings)
	slices.Sort(infos)
	return Outcome{Value: res.Value, Warnings: warnings, Infos: infos}
}
