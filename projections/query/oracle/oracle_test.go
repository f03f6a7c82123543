package oracle

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

func TestDistance(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct{ a, b, sum, want float64 }{
		{1, 1, 0, 0}, {0, math.Copysign(0, -1), 0, 0}, {nan, nan, 0, 0}, {inf, inf, 0, 0},
		{nan, 1, 0, inf}, {1, nan, 0, inf}, {inf, -inf, 0, inf}, {inf, math.MaxFloat64, 0, inf},
		{4, 3, 0, 0.25}, {-4, -3, 0, 0.25}, {4, 3, 100, 0.01}, {0, 5e-324, 0, 1},
	} {
		if got := Distance(c.a, c.b, c.sum); got != c.want {
			t.Errorf("Distance(%v, %v, %v) = %v, want %v", c.a, c.b, c.sum, got, c.want)
		}
		if got := Close(c.a, c.b, c.sum); got != (c.want <= Tolerance) {
			t.Errorf("Close(%v, %v, %v) = %v", c.a, c.b, c.sum, got)
		}
	}
}

// Whatever part of an answer differs, it is found; and all values are looked at, also behind a wrong one.
func TestDifference(t *testing.T) {
	a, b := labels.FromStrings("i", "a"), labels.FromStrings("i", "b")
	vector := func(va, vb float64) Outcome {
		return Outcome{Value: promql.Vector{{Metric: b, T: 1, F: vb}, {Metric: a, T: 1, F: va}}}
	}
	matrix := func(t int64, v float64) Outcome {
		return Outcome{Value: promql.Matrix{{Metric: a, Floats: []promql.FPoint{{T: t, F: v}}}}}
	}
	for name, c := range map[string]struct {
		got, want Outcome
		worst     float64
		equal     bool
	}{
		"equal in another order": {Outcome{Value: promql.Vector{{Metric: a, T: 1, F: 1}, {Metric: b, T: 1, F: 2}}}, vector(1, 2), 0, true},
		"two wrong values":       {vector(1, 4), vector(2, 3), 0.5, false},
		"a small error":          {vector(1, 2), vector(1, 2+4e-15), 4e-15 / 2, true},
		"a series is missing":    {Outcome{Value: promql.Vector{{Metric: a, T: 1, F: 1}}}, vector(1, 2), 0, false},
		"a time":                 {matrix(1, 1), matrix(2, 1), 0, false},
		"a value of a range":     {matrix(1, 3), matrix(1, 4), 0.25, false},
		"a warning":              {Outcome{Value: promql.Vector{}, Warnings: []string{"w"}}, Outcome{Value: promql.Vector{}}, 0, false},
		"an info":                {Outcome{Value: promql.Vector{}}, Outcome{Value: promql.Vector{}, Infos: []string{"i"}}, 0, false},
		"an error":               {Outcome{Err: errors.New("e")}, Outcome{Value: promql.Vector{}}, 0, false},
		"equal errors":           {Outcome{Err: errors.New("e")}, Outcome{Err: errors.New("e")}, 0, true},
		"a type":                 {matrix(1, 1), vector(1, 1), 0, false},
		"a scalar":               {Outcome{Value: promql.Scalar{T: 1, V: 1}}, Outcome{Value: promql.Scalar{T: 1, V: 2}}, 0.5, false},
	} {
		worst, err := Difference(c.got, c.want, Terms{})
		if math.Abs(worst-c.worst) > 1e-16 || (err == nil) != c.equal {
			t.Errorf("%s: %v, %v", name, worst, err)
		}
	}
}

// The storage gives the engine exactly the samples of the series that match.
func TestAsk(t *testing.T) {
	data := Storage([]Series{
		{Labels: labels.FromStrings("__name__", "m", "i", "b"), T: []int64{15_000, 30_000}, V: []float64{1, 2}},
		{Labels: labels.FromStrings("__name__", "m", "i", "a"), T: []int64{30_000}, V: []float64{5}},
		{Labels: labels.FromStrings("__name__", "other"), T: []int64{30_000}, V: []float64{9}},
	})
	got := Ask(context.Background(), NewEngine(1000), data, Query{Expr: "sum by (i) (sum_over_time(m[1m]))", Start: 30_000})
	want := Outcome{Value: promql.Vector{
		{Metric: labels.FromStrings("i", "a"), T: 30_000, F: 5}, {Metric: labels.FromStrings("i", "b"), T: 30_000, F: 3},
	}}
	if err := Compare(got, want, Terms{}); err != nil {
		t.Fatal(err)
	}
	if got := Ask(context.Background(), NewEngine(1000), data, Query{Expr: "m +", Start: 0}); got.Err == nil {
		t.Fatal("an expression that does not parse was answered")
	}
}
