package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Tolerance is the relative error that the contract allows.
const Tolerance = 1e-12

// Terms are what Compare allows for: the error of sums is relative to Sum, the largest Σ|terms| behind any value. With
// Ordered the order of an instant vector counts; Prometheus leaves it to chance for most expressions. Stated is an error that the
// answer states by itself, and that is allowed beside Tolerance.
type Terms struct {
	Sum     float64
	Ordered bool
	Stated  float64
}

// Sketched says whether the answer says of itself that it was read from sketches, and takes this info away.
func Sketched(o *Outcome) bool {
	n := len(o.Infos)
	o.Infos = slices.DeleteFunc(slices.Clone(o.Infos), func(s string) bool { return strings.Contains(s, "are read from sketches") })
	if len(o.Infos) == 0 {
		o.Infos = nil
	}
	return len(o.Infos) < n
}

// Compare says how got differs from want, or returns nil. Values a and b are equal if |a−b| ≤ Tolerance·max(|a|, |b|, Sum);
// NaN equals NaN and infinities equal themselves.
func Compare(got, want Outcome, terms Terms) error {
	_, err := Difference(got, want, terms)
	return err
}

// Difference is Compare, and returns besides the largest Distance between two values of the answers. If they differ in more
// than values, it is that of the values compared until then.
func Difference(got, want Outcome, terms Terms) (worst float64, err error) {
	if (got.Err == nil) != (want.Err == nil) {
		return 0, fmt.Errorf("error: got %v, want %v", got.Err, want.Err)
	}
	if got.Err != nil {
		if message(got.Err) != message(want.Err) {
			return 0, fmt.Errorf("error: got %q, want %q", got.Err, want.Err)
		}
		return 0, nil
	}
	c := comparison{terms: terms}
	if err := c.values(got.Value, want.Value); err != nil {
		return c.worst, err
	}
	if !slices.Equal(got.Warnings, want.Warnings) {
		return c.worst, fmt.Errorf("warnings: got %q, want %q", got.Warnings, want.Warnings)
	}
	if !slices.Equal(got.Infos, want.Infos) {
		return c.worst, fmt.Errorf("infos: got %q, want %q", got.Infos, want.Infos)
	}
	return c.worst, c.first
}

// message is an error's text without what is random in the engine: the pair of series that it met first.
func message(err error) string {
	text, _, _ := strings.Cut(err.Error(), "found duplicate series for the match group")
	return text
}

// comparison walks two answers. It stops where they have not the same form, and goes on where only a value is wrong.
type comparison struct {
	terms Terms
	worst float64
	first error // of the values beyond Tolerance
}

func (c *comparison) values(got, want parser.Value) error {
	switch w := want.(type) {
	case promql.Scalar:
		g, ok := got.(promql.Scalar)
		if !ok || g.T != w.T {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		c.value(g.V, w.V, got, want)
	case promql.String:
		if g, ok := got.(promql.String); !ok || g != w {
			return fmt.Errorf("got %v, want %v", got, want)
		}
	case promql.Vector:
		g, ok := got.(promql.Vector)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return c.vector(g, w)
	case promql.Matrix:
		g, ok := got.(promql.Matrix)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		for i := range w {
			if err := c.series(g[i], w[i]); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("got %v, want %v of type %T", got, want, want)
	}
	return nil
}

func (c *comparison) vector(got, want promql.Vector) error {
	if !c.terms.Ordered {
		got, want = sorted(got), sorted(want)
	}
	for i, w := range want {
		g := got[i]
		if !labels.Equal(g.Metric, w.Metric) || g.T != w.T || g.H != nil || w.H != nil {
			return fmt.Errorf("sample %d: got %v, want %v", i, g, w)
		}
		c.value(g.F, w.F, g, w)
	}
	return nil
}

func sorted(v promql.Vector) promql.Vector {
	v = slices.Clone(v)
	slices.SortStableFunc(v, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
	return v
}

func (c *comparison) series(got, want promql.Series) error {
	if !labels.Equal(got.Metric, want.Metric) || len(got.Floats) != len(want.Floats) || len(got.Histograms)+len(want.Histograms) > 0 {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	for i, w := range want.Floats {
		g := got.Floats[i]
		if g.T != w.T {
			return fmt.Errorf("%s: got %v, want %v", want.Metric, g, w)
		}
		c.value(g.F, w.F, promql.Sample{Metric: got.Metric, T: g.T, F: g.F}, promql.Sample{Metric: want.Metric, T: w.T, F: w.F})
	}
	return nil
}

// value compares two values, which stand in what an error would show.
func (c *comparison) value(a, b float64, got, want any) {
	d := Distance(a, b, c.terms.Sum)
	c.worst = max(c.worst, d)
	if d > Tolerance+c.terms.Stated && c.first == nil {
		c.first = fmt.Errorf("got %v, want %v: the relative error is %.3g", got, want, d)
	}
}

// Close says that two values are equal by the contract, sum being the Σ|terms| behind them.
func Close(a, b, sum float64) bool { return Distance(a, b, sum) <= Tolerance }

// Distance is |a−b| / max(|a|, |b|, sum): 0 for equal values, also where both are NaN, and +Inf where only one of them is
// finite, or is NaN.
func Distance(a, b, sum float64) float64 {
	switch {
	case a == b, math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a), math.IsNaN(b), math.IsInf(a, 0), math.IsInf(b, 0):
		return math.Inf(1)
	}
	return math.Abs(a-b) / max(math.Abs(a), math.Abs(b), sum)
}
