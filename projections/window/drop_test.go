package window_test

import (
	"errors"
	"testing"

	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query"
)

// What drops late samples stands in for PromQL only where nothing that keeps them does: a dropped sample leaves no mark, and the answer
// would be another than Prometheus' without a word. Under its own name it says what it was told to say.
func TestW1_WhatDropsIsNoSubstituteForWhatCorrects(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
correction_horizon: 2m
materializations:
  - {name: recorded, expr: 'sum(sum_over_time(m[1m]))', every: 1m, layout: full_window, late: drop}
  - {name: wide, expr: 'max_over_time(m[1m])', every: 1m, late: drop}
  - {name: exact, expr: 'count_over_time(m[15s])', every: 15s}
  - {name: alone, expr: 'sum(sum_over_time(n[1m]))', every: 1m, layout: full_window, late: drop}
`)
	var m, n []float64
	for at := 5000.0; at < 600_000; at += 15_000 {
		m, n = append(m, at, 1), append(n, at, 1)
	}
	r.write(one("m", "a", m...), one("n", "a", n...))
	r.barrier(600_000)
	r.settle()
	corrected, lost := int64(540_000), int64(300_000)
	r.write(one("m", "a", float64(corrected-1000), 100), one("n", "a", float64(corrected-1000), 100))
	r.write(one("m", "a", float64(lost-1000), 100))
	r.settle()
	value := func(expr string, t int64) float64 {
		r.t.Helper()
		res, err := ask(r.ctx, r.engine, at(expr, t))
		if err != nil {
			r.t.Fatalf("%s: %v", expr, err)
		}
		defer res.Close()
		v, ok := res.Value.(promql.Vector)
		if !ok || len(v) != 1 {
			r.t.Fatalf("%s: %v", expr, res.Value)
		}
		return v[0].F
	}
	for _, expr := range []string{"sum(sum_over_time(m[1m]))", "sum_over_time(m[1m])"} {
		if got := value(expr, corrected); got != 104 {
			t.Errorf("%s: %g, the late sample is not in it", expr, got)
		}
		res, err := ask(r.ctx, r.engine, at(expr, lost))
		var miss *query.MissError
		if !errors.As(err, &miss) || miss.Reason != query.ReasonLateUncorrectable {
			t.Errorf("%s: %v, %v", expr, res, err)
		}
	}
	if got := value("max_over_time(m[1m])", corrected); got != 100 {
		t.Errorf("the greatest is %g", got)
	}
	for _, expr := range []string{"recorded", "sum(wide * 4)", "alone", "sum(sum_over_time(n[1m]))"} { // nothing else has n
		if got := value(expr, corrected); got != 4 {
			t.Errorf("%s: %g, want what was in time alone", expr, got)
		}
	}
	// What begins later than what drops leaves it what was before.
	r.configure(`
correction_horizon: 2m
materializations:
  - {name: alone, expr: 'sum(sum_over_time(n[1m]))', every: 1m, layout: full_window, late: drop}
  - {name: later, expr: 'count_over_time(n[15s])', every: 15s}
`)
	if got := value("sum(sum_over_time(n[1m]))", 300_000); got != 4 {
		t.Errorf("%g of before anything keeps what is late", got)
	}
}
