package query_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
)

// ask evaluates q with the engine under test.
func ask(ctx context.Context, e *query.Engine, q querytest.Query) querytest.Outcome {
	common := query.Common{Expr: q.Expr, LookbackDelta: time.Duration(q.Lookback) * time.Millisecond}
	var (
		res *query.Result
		err error
	)
	if q.Step == 0 {
		res, err = e.Instant(ctx, query.InstantParams{Common: common, Time: time.UnixMilli(q.Start)})
	} else {
		res, err = e.Range(ctx, query.RangeParams{
			Common: common, Start: time.UnixMilli(q.Start), End: time.UnixMilli(q.End), Step: time.Duration(q.Step) * time.Millisecond,
		})
	}
	if err != nil {
		return querytest.Outcome{Err: err}
	}
	return querytest.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
}

// TestDifferential holds the contract: over random samples and expressions, the answer from panes is Prometheus' own. It
// runs over fixed seeds and a fresh one; a failure names its seed.
func TestDifferential(t *testing.T) {
	const (
		datasets = 12
		each     = 1500
	)
	fresh := uint64(time.Now().UnixNano())
	var answered, missed, failed int
	for _, seed := range append([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}[:datasets], fresh) {
		rng := rand.New(rand.NewPCG(seed, 0))
		series := querytest.RandomSeries(rng)
		model := querytest.NewModel(querytest.Plan(), series)
		model.Barrier(2 * querytest.Span)
		engine := query.New(model, query.Options{})
		oracle, data := querytest.NewOracleEngine(50_000_000), querytest.Oracle(series)
		for i := range each {
			q := querytest.RandomQuery(rng)
			got := ask(t.Context(), engine, q)
			var miss *query.MissError
			if errors.As(got.Err, &miss) {
				missed++
				// Evaluation reaches beyond neither the barrier nor the grid, so all that panes may lack is samples.
				if !slices.Contains([]string{query.ReasonNeedsSamples, query.ReasonTooManyValues}, miss.Reason) {
					t.Errorf("seed %d, query %d: %s: %v", seed, i, q, miss)
				}
				continue
			}
			want := querytest.Ask(t.Context(), oracle, data, q)
			if err := querytest.Compare(got, want, q.Terms); err != nil {
				t.Errorf("seed %d, query %d: %s: %v", seed, i, q, err)
			}
			answered++
			if got.Err != nil {
				failed++
			}
		}
	}
	t.Logf("fresh seed %d: %d pairs compared, %d of them errors, %d misses", fresh, answered, failed, missed)
	if answered < 2000 || missed > answered/4 || failed > answered/3 {
		t.Errorf("%d pairs compared, %d of them errors, %d misses: the generator has lost its force", answered, failed, missed)
	}
}
