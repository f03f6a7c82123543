package query_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
)

func common(q oracle.Query) query.Common {
	return query.Common{Expr: q.Expr, LookbackDelta: time.Duration(q.Lookback) * time.Millisecond, Limit: int(q.Limit)}
}

// answer evaluates q with the engine under test.
func answer(ctx context.Context, e *query.Engine, q oracle.Query) (*query.Result, error) {
	if q.Step == 0 {
		return e.Instant(ctx, query.InstantParams{Common: common(q), Time: time.UnixMilli(q.Start)})
	}
	return e.Range(ctx, query.RangeParams{
		Common: common(q), Start: time.UnixMilli(q.Start), End: time.UnixMilli(q.End), Step: time.Duration(q.Step) * time.Millisecond,
	})
}

// tally counts what a differential test compared.
type tally struct {
	answered, failed, columns, sketched int
	missed                              map[string]int
}

// compareQueries asks n random queries of the model and of the oracle. A miss must have one of the reasons allowed.
func compareQueries(t *testing.T, n int, rng *rand.Rand, model *querytest.Model, name string, allowed []string, sum *tally) {
	t.Helper()
	engine := query.New(model, query.Options{})
	reference, data := oracle.NewEngine(50_000_000), oracle.Storage(model.Series())
	for i := range n {
		q := querytest.RandomQuery(rng)
		res, err := answer(t.Context(), engine, q)
		got := oracle.Outcome{Err: err}
		var miss *query.MissError
		if errors.As(err, &miss) {
			sum.missed[miss.Reason]++
			if !slices.Contains(allowed, miss.Reason) {
				t.Errorf("%s, query %d: %s: %v", name, i, q, miss)
			}
			continue
		}
		if err == nil {
			got = oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
			if res.Stats.Columns > 0 {
				sum.columns++
			}
		} else {
			sum.failed++
		}
		if oracle.Sketched(&got) {
			sum.sketched++ // what is made of the values may be off by more than they are
			res.Close()
			if !strings.Contains(q.Expr, "quantile_over_time") {
				t.Errorf("%s, query %d: %s: read from sketches", name, i, q)
			}
			continue
		}
		want := oracle.Ask(t.Context(), reference, data, q)
		if err := oracle.Compare(got, want, q.Terms); err != nil {
			t.Errorf("%s, query %d: %s: %v", name, i, q, err)
		}
		if err == nil {
			res.Close()
		}
		sum.answered++
	}
}

// TestDifferential holds the contract: over random samples and expressions, the answer from panes is Prometheus' own. It
// runs over fixed seeds and a fresh one; a failure names its seed.
func TestDifferential(t *testing.T) {
	const each = 1000
	fresh := uint64(time.Now().UnixNano())
	sum := tally{missed: map[string]int{}}
	for _, seed := range []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, fresh} {
		rng := rand.New(rand.NewPCG(seed, 0))
		model := querytest.NewModel(querytest.Plan(), querytest.RandomSeries(rng))
		// Evaluation reaches beyond neither the barrier nor the grid, so all that panes may lack is samples.
		model.Barrier(2 * querytest.Span)
		compareQueries(t, each, rng, model, fmt.Sprintf("seed %d", seed), []string{query.ReasonNeedsSamples}, &sum)
	}
	t.Logf("fresh seed %d: %+v", fresh, sum)
	if sum.answered < 2000 || sum.columns < sum.answered/10 || sum.failed > sum.answered/4 {
		t.Errorf("%+v: the generator has lost its force", sum)
	}
}

// TestQ2_Differential holds that what is not complete is never answered: buckets are open, and streams have not seen the
// oldest samples, so any window that the check let through would differ from the oracle's, which has all samples.
func TestQ2_Differential(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	sum := tally{missed: map[string]int{}}
	for _, seed := range []uint64{21, 22, 23, 24, 25, 26, 27, 28, fresh} {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, all := querytest.Plan(), querytest.RandomSeries(rng)
		model := querytest.NewModel(p, nil)
		// The barrier comes before the last samples of some series: their last buckets stay open.
		barrier := rng.Int64N(querytest.Span)
		for _, s := range all {
			n := len(s.T)
			if rng.IntN(2) == 0 {
				n, _ = slices.BinarySearch(s.T, barrier+1)
			}
			model.Add(querytest.Series{Labels: s.Labels, T: s.T[:n], V: s.V[:n]})
		}
		model.Barrier(barrier)
		for _, s := range all {
			if n, ok := slices.BinarySearch(s.T, barrier+1); rng.IntN(2) == 0 && !ok && lastTime(model, s) <= barrier {
				model.Add(querytest.Series{Labels: s.Labels, T: s.T[n:], V: s.V[n:]})
			}
		}
		for _, s := range p.Streams {
			if rng.IntN(3) == 0 {
				model.Cover(s.ID, rng.Int64N(querytest.Span/2))
			}
		}
		compareQueries(t, each, rng, model, fmt.Sprintf("seed %d", seed), []string{
			query.ReasonNeedsSamples, query.ReasonUnpublished, query.ReasonBeforeRetention,
		}, &sum)
	}
	t.Logf("fresh seed %d: %+v", fresh, sum)
	if sum.answered < 500 || sum.missed[query.ReasonUnpublished] < 100 || sum.missed[query.ReasonBeforeRetention] < 100 {
		t.Errorf("%+v: too little was answered, or too little was in the way", sum)
	}
}

// lastTime returns the time of the newest sample that the model has of the series.
func lastTime(m *querytest.Model, s querytest.Series) int64 {
	for _, have := range m.Series() {
		if labels.Equal(have.Labels, s.Labels) && len(have.T) > 0 {
			return have.T[len(have.T)-1]
		}
	}
	return math.MinInt64
}
