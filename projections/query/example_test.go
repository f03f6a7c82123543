package query_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
)

func ExampleEngine_Instant() {
	source := querytest.NewModel(&plan.Plan{Streams: []plan.Stream{{
		ID: 1, Matchers: []plan.Matcher{{Type: "=", Name: "__name__", Value: "steps_total"}}, PaneMillis: 60_000, Closed: plan.Right,
	}}}, []querytest.Series{{
		Labels: labels.FromStrings("__name__", "steps_total", "task", "a"),
		T:      []int64{0, 30_000, 60_000, 90_000, 120_000},
		V:      []float64{0, 10, 20, 30, 40},
	}})
	source.Barrier(120_000)

	engine := query.New(source, query.Options{})
	for _, seconds := range []int64{120, 150} {
		res, err := engine.Instant(context.Background(), query.InstantParams{
			Common: query.Common{Expr: "sum by (task) (increase(steps_total[1m]))"},
			Time:   time.Unix(seconds, 0),
		})
		var miss *query.MissError
		switch {
		case errors.As(err, &miss):
			fmt.Println(miss.Reason)
		case err != nil:
			fmt.Println(query.KindOf(err), err)
		default:
			fmt.Println(res.Route, res.Value)
			res.Close()
		}
	}
	// Output:
	// warm {task="a"} => 20 @[120000]
	// off_grid
}
