// Package querytest holds what tests of the query path share: a model of the panes over samples in memory, Prometheus'
// engine over the same samples as the oracle, random series and expressions, and the comparison of two answers.
package querytest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Oracle returns a storage over the samples, for Prometheus' engine. Series come in label order.
func Oracle(series []Series) storage.Queryable {
	sorted := slices.Clone(series)
	slices.SortFunc(sorted, func(a, b Series) int { return labels.Compare(a.Labels, b.Labels) })
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
			set := &memorySet{}
			for _, s := range sorted {
				if !matches(s.Labels, ms) {
					continue
				}
				points := make([]promql.FPoint, len(s.T))
				for i := range s.T {
					points[i] = promql.FPoint{T: s.T[i], F: s.V[i]}
				}
				set.series = append(set.series, promql.NewStorageSeries(promql.Series{Metric: s.Labels, Floats: points}))
			}
			return set
		},
	}}
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

// NewOracleEngine returns Prometheus' engine as Prometheus configures it, with experimental functions.
func NewOracleEngine(maxSamples int) *promql.Engine {
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

// Tolerance is the relative error that the contract allows.
const Tolerance = 1e-12

// Terms are what Compare allows for: the error of sums is relative to Sum, the largest Σ|terms| behind any value. With
// Ordered the order of an instant vector counts; Prometheus leaves it to chance for most expressions.
type Terms struct {
	Sum     float64
	Ordered bool
}

// Compare says how got differs from want, or returns nil. Values a and b are equal if |a−b| ≤ Tolerance·max(|a|, |b|, Sum);
// NaN equals NaN and infinities equal themselves.
func Compare(got, want Outcome, terms Terms) error {
	if (got.Err == nil) != (want.Err == nil) {
		return fmt.Errorf("error: got %v, want %v", got.Err, want.Err)
	}
	if got.Err != nil {
		if message(got.Err) != message(want.Err) {
			return fmt.Errorf("error: got %q, want %q", got.Err, want.Err)
		}
		return nil
	}
	if err := compareValues(got.Value, want.Value, terms); err != nil {
		return err
	}
	if !slices.Equal(got.Warnings, want.Warnings) {
		return fmt.Errorf("warnings: got %q, want %q", got.Warnings, want.Warnings)
	}
	if !slices.Equal(got.Infos, want.Infos) {
		return fmt.Errorf("infos: got %q, want %q", got.Infos, want.Infos)
	}
	return nil
}

// message is an error's text without what is random in the engine: the pair of series that it met first.
func message(err error) string {
	text, _, _ := strings.Cut(err.Error(), "found duplicate series for the match group")
	return text
}

func compareValues(got, want parser.Value, terms Terms) error {
	switch w := want.(type) {
	case promql.Scalar:
		g, ok := got.(promql.Scalar)
		if !ok || g.T != w.T || !Close(g.V, w.V, terms.Sum) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
	case promql.String:
		if g, ok := got.(promql.String); !ok || g != w {
			return fmt.Errorf("got %v, want %v", got, want)
		}
	case promql.Vector:
		g, ok := got.(promql.Vector)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		if !terms.Ordered {
			g, w = sorted(g), sorted(w)
		}
		for i := range w {
			if !labels.Equal(g[i].Metric, w[i].Metric) || g[i].T != w[i].T || g[i].H != nil || w[i].H != nil || !Close(g[i].F, w[i].F, terms.Sum) {
				return fmt.Errorf("sample %d: got %v, want %v", i, g[i], w[i])
			}
		}
	case promql.Matrix:
		g, ok := got.(promql.Matrix)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		for i := range w {
			if err := compareSeries(g[i], w[i], terms); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("got %v, want %v of type %T", got, want, want)
	}
	return nil
}

func sorted(v promql.Vector) promql.Vector {
	v = slices.Clone(v)
	slices.SortStableFunc(v, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
	return v
}

func compareSeries(got, want promql.Series, terms Terms) error {
	if !labels.Equal(got.Metric, want.Metric) || len(got.Floats) != len(want.Floats) || len(got.Histograms)+len(want.Histograms) > 0 {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	for i, w := range want.Floats {
		if g := got.Floats[i]; g.T != w.T || !Close(g.F, w.F, terms.Sum) {
			return fmt.Errorf("%s: got %v, want %v", want.Metric, g, w)
		}
	}
	return nil
}

// Close says that two values are equal by the contract, sum being the Σ|terms| behind them.
func Close(a, b, sum float64) bool {
	if math.IsNaN(a) || math.IsNaN(b) {
		return math.IsNaN(a) && math.IsNaN(b)
	}
	if a == b {
		return true
	}
	if math.IsInf(a, 0) || math.IsInf(b, 0) {
		return false
	}
	return math.Abs(a-b) <= Tolerance*max(math.Abs(a), math.Abs(b), sum)
}
