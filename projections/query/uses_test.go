package query_test

import (
	"fmt"
	"testing"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
)

// TestUses holds that a materialization counts each part of a query that it answers, and each that it could not though it holds what the
// part reads, with the reason; also across plans.
func TestUses(t *testing.T) {
	m := model(t, 2)
	p := *m.Plan()
	p.Materializations = []plan.Materialization{
		{Name: "a", Expr: "sum(rate(m[2m]))", EveryMillis: 60_000, Layout: plan.LayoutPanes, Streams: []plan.StreamID{7}},
		{Name: "group/b", Record: "b", Expr: "max_over_time(m[1m])", EveryMillis: 60_000, Layout: plan.LayoutFullWindow, Streams: []plan.StreamID{7}},
		{Name: "c", Expr: "1 + vector(1)", EveryMillis: 60_000, Layout: plan.LayoutFullWindow},
	}
	m.Replace(&p)
	open := make(chan struct{})
	close(open)
	bare := query.New(m, query.Options{})
	copied := query.New(m, query.Options{Exact: lagging{oracle.Storage(m.Series()), open}})
	ask := func(e *query.Engine, expr string, ms int64) {
		if res, err := e.Instant(t.Context(), at(expr, ms)); err == nil {
			res.Close()
		}
	}
	for _, e := range []*query.Engine{bare, copied} {
		ask(e, "rate(m[2m]) + rate(m[3m])", 120_000) // two parts, of the stream of both
		ask(e, "a", 120_000)
		ask(e, "b or c", 120_000)
		ask(e, "rate(m[90s])", 120_000)
		ask(e, "m", 720_000)
		ask(e, "m + nothing", 120_000)
		ask(e, "b", 720_000)
		ask(e, "sum(", 120_000)
	}
	q := p // another plan, with the same names
	m.Replace(&q)
	ask(bare, "a", 180_000)
	for _, c := range []struct {
		e    *query.Engine
		name string
		want string
	}{
		{bare, "a", "{4 map[off_grid:1 unpublished:1]}"},
		{bare, "group/b", "{3 map[off_grid:1 unpublished:2]}"},
		{bare, "c", "{1 map[]}"},
		// With the copy what was missed was answered all the same, and of "m + nothing" one part by panes.
		{copied, "a", "{4 map[off_grid:1 unpublished:1]}"},
		{copied, "group/b", "{4 map[off_grid:1 unpublished:2]}"},
	} {
		if got := fmt.Sprint(c.e.Uses(c.name)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
