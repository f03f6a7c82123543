package query

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/accum"
)

// What several sweeps find together is what one finds: the same groups in the same order, and the same floats, bit for bit.
func TestShare_EqualsOneSweep(t *testing.T) {
	const count, n = 600, 500 // enough for four sweeps
	rng := rand.New(rand.NewPCG(8, 9))
	series := make([]Series, count)
	for i := range series {
		s := &series[i]
		s.Labels = labels.FromStrings("__name__", "m", "group", fmt.Sprint(rng.IntN(20)), "i", fmt.Sprintf("%03d", i))
		from := rng.IntN(n) // groups are met by some sweeps later than by others, or never
		for k := from; k < min(n, from+20+rng.IntN(n)); k++ {
			v := rng.NormFloat64() * math.Pow(10, float64(rng.IntN(12)))
			switch rng.IntN(50) {
			case 0:
				v = math.NaN()
			case 1:
				continue
			}
			s.T, s.V = append(s.T, int64(k)*15_000), append(s.V, v)
		}
	}
	evaluate := func(processors int, fn accum.Func, a *aggregation) (result, int) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		v := evaluation{sweep: sweep{ctx: t.Context()}, budget: 1 << 30}
		l := &leaf{fn: fn, aggregation: a, window: 300_000, steps: steps{start: 15_000, end: n * 15_000, every: 15_000}}
		out, err := v.leaf(l, series)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.sweeps(l, series); got != processors {
			t.Fatalf("%d sweeps with %d processors", got, processors)
		}
		return out, 1<<30 - v.budget
	}
	for _, fn := range []accum.Func{accum.Rate, accum.Sum, accum.Max, accum.Instant, accum.Quantile} {
		for _, op := range []parser.ItemType{0, parser.SUM, parser.AVG, parser.COUNT, parser.MIN, parser.MAX} {
			var a *aggregation
			if op != 0 {
				a = &aggregation{op: op, names: []string{"group"}}
			}
			want, cost := evaluate(1, fn, a)
			got, same := evaluate(4, fn, a)
			if cost != same || len(got.series) != len(want.series) || len(got.notes) != len(want.notes) {
				t.Fatalf("%s of %s: %d series, %d points, %d notes; want %d, %d, %d", op, fn, len(got.series), same, len(got.notes), len(want.series), cost, len(want.notes))
			}
			for i := range want.series {
				x, y := got.series[i], want.series[i]
				if !labels.Equal(x.Metric, y.Metric) || len(x.Floats) != len(y.Floats) {
					t.Fatalf("%s of %s: series %d is %s with %d points, not %s with %d", op, fn, i, x.Metric, len(x.Floats), y.Metric, len(y.Floats))
				}
				for k, p := range y.Floats {
					if q := x.Floats[k]; q.T != p.T || math.Float64bits(q.F) != math.Float64bits(p.F) && !(math.IsNaN(q.F) && math.IsNaN(p.F)) {
						t.Fatalf("%s of %s: %s is %v, not %v", op, fn, y.Metric, q, p)
					}
				}
			}
		}
	}
}
