package query_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
)

// FuzzExpression throws text at the engine: it answers, misses, or says what is wrong, and never panics, fails inside or
// shows its rewriting. What the parser refuses is bad data, and nothing else is.
func FuzzExpression(f *testing.F) {
	script, err := os.ReadFile("testdata/hazards")
	if err != nil {
		f.Fatal(err)
	}
	for _, line := range strings.Split(string(script), "\n") {
		f.Add(line, int64(4), int64(0))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		f.Add(querytest.RandomExpr(rng, 3), int64(20), int64(2))
	}
	model := querytest.NewModel(querytest.Plan(), querytest.RandomSeries(rng))
	model.Barrier(querytest.Span)
	e := query.New(model, query.Options{MaxSamples: 100_000, Timeout: 10 * time.Second})
	f.Fuzz(func(t *testing.T, expr string, start, step int64) {
		c := query.Common{Expr: expr}
		var (
			res *query.Result
			err error
		)
		from := time.UnixMilli(start % 200 * querytest.Grid)
		if step %= 8; step <= 0 {
			res, err = e.Instant(t.Context(), query.InstantParams{Common: c, Time: from})
		} else {
			every := time.Duration(step*querytest.Grid) * time.Millisecond
			res, err = e.Range(t.Context(), query.RangeParams{Common: c, Start: from, End: from.Add(20 * every), Step: every})
		}
		if err == nil {
			shown := res.Value.String() + strings.Join(res.Warnings, "") + strings.Join(res.Infos, "")
			res.Close()
			if strings.Contains(shown, "__tidemark") && !strings.Contains(expr, "__tidemark") {
				t.Fatalf("Q4: %q: %s", expr, shown)
			}
			return
		}
		var miss *query.MissError
		if strings.Contains(err.Error(), "__tidemark") && !strings.Contains(expr, "__tidemark") {
			t.Fatalf("Q4: %q: %v", expr, err)
		}
		if strings.Contains(err.Error(), "unexpected error") || query.KindOf(err) == query.KindInternal || errors.As(err, &miss) && miss.Node == "" {
			t.Fatalf("%q: %v", expr, err)
		}
		if _, parse := plan.NewParser().ParseExpr(expr); parse != nil && query.KindOf(err) != query.KindBadData {
			t.Fatalf("%q: %v, and the parser says %v", expr, err, parse)
		}
	})
}
