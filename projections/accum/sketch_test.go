package accum

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// checkSketched holds a quantile that was read from sketches to the error of the two order statistics that it lies between:
// |got − want| ≤ SketchError · (weight of the lower · |lower| + weight of the upper · |upper|), and what is not finite, or
// NaN, is exact.
func checkSketched(vs []float64, phi, got float64, ok bool) error {
	var all []float64
	for _, v := range vs {
		if !isStaleValue(v) {
			all = append(all, v)
		}
	}
	if !ok || len(all) == 0 {
		return fmt.Errorf("no value")
	}
	slices.SortFunc(all, compareValues)
	rank := phi * float64(len(all)-1)
	k := int(math.Floor(rank))
	weight := rank - float64(k)
	lower, upper := all[k], all[min(k+1, len(all)-1)]
	want := float64(lower*(1-weight)) + float64(upper*weight)
	if weight == 0 {
		want, upper = lower, lower
	}
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return nil
	}
	const scale = 0x1p-64 // so that nothing overflows
	bound := (SketchError+roundingError)*(math.Abs(lower*scale)*(1-weight)+math.Abs(upper*scale)*weight) + 2.3e-308*scale
	if diff := math.Abs(got*scale - want*scale); !(diff <= bound) {
		return fmt.Errorf("φ %v of %d values: %v, want %v: difference %g, bound %g", phi, len(all), got, want, diff/scale, bound/scale)
	}
	return nil
}

func isStaleValue(v float64) bool { return math.Float64bits(v) == 0x7ff0000000000002 }

// distributions are what the error is measured over.
func distributions(r *rand.Rand) map[string]func() float64 {
	return map[string]func() float64{
		"uniform":     r.Float64,
		"latencies":   func() float64 { return math.Exp(r.NormFloat64()*1.5 - 3) },
		"normal":      r.NormFloat64,
		"exponential": r.ExpFloat64,
		"heavy tail":  func() float64 { return math.Pow(r.Float64(), -3) },
		"bimodal":     func() float64 { return float64(1+r.IntN(2)*999) + r.Float64() },
		"integers":    func() float64 { return float64(r.IntN(20) - 10) },
		"constant":    func() float64 { return 7.1 },
		"magnitudes":  func() float64 { return r.NormFloat64() * math.Pow(10, float64(r.IntN(613)-306)) },
		"the largest": func() float64 { return math.MaxFloat64 * (1 - r.Float64()/50) },
		"the least":   func() float64 { return math.Float64frombits(r.Uint64N(1 << 54)) },
		"odd": func() float64 {
			return [...]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, 1.5}[r.IntN(8)]
		},
	}
}

// The error of quantiles that are read from sketches stays within what is stated, over many distributions, numbers of values and
// cuts into panes of samples, of values and of sketches.
func TestSketchesKeepToTheStatedError(t *testing.T) {
	phis := []float64{0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}
	worst, read := map[string]float64{}, 0
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 35))
		for name, next := range distributions(r) {
			n := MaxValues + 1 + r.IntN([...]int{3, 300, 6000}[r.IntN(3)])
			ts, vs := make([]int64, n), make([]float64, n)
			for i := range ts {
				ts[i], vs[i] = int64(i+1), next()
				if r.IntN(50) == 0 {
					vs[i] = math.Float64frombits(0x7ff0000000000002)
				}
			}
			var w Window
			for from := 0; from < n; {
				to := min(n, from+1+r.IntN([...]int{16, 250, 2000}[r.IntN(3)]))
				p := Fold(ts[from:to], vs[from:to])
				w.Append(&p, ts[to-1])
				from = to
			}
			if largest(&w) <= MaxValues {
				continue
			}
			var eval Evaluator
			for _, phi := range append(phis, r.Float64()) {
				got, ok, err := eval.Eval(Quantile, &w, 0, ts[n-1], phi)
				if err != nil || !eval.Sketched {
					t.Fatal(eval.Sketched, err)
				}
				read++
				if err := checkSketched(vs, phi, got, ok); err != nil {
					t.Errorf("seed %d, %s, %d panes of samples and %d others: %v", seed, name, len(w.T), len(w.Cols), err)
				}
				flat := Window{T: ts, V: vs}
				if exact, _, err := eval.Eval(Quantile, &flat, 0, ts[n-1], phi); err == nil && isFinite(got) && isFinite(exact) && exact != 0 {
					worst[name] = max(worst[name], math.Abs(got/exact-1))
				}
				eval.Sketched = false
			}
		}
	}
	t.Logf("largest relative error of %d quantiles: %v", read, worst)
	if read < 300 || worst["latencies"] < SketchError/4 {
		t.Error("this tests too little")
	}
}

// A sketch is a function of the set of values: merged from any parts, in any order and grouping, it is the sketch of all; it has the
// same bytes, and what is read from the parts is what is read from the whole, bit for bit (A4, A6).
func TestSketchesMergeToTheSketchOfAll(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 36))
		for name, next := range distributions(r) {
			const parts = 5
			var all []float64
			var sketches []*Sketch
			var w Window
			at := int64(0)
			for range parts {
				vs, ts := make([]float64, MaxValues+1+r.IntN(400)), []int64(nil)
				for i := range vs {
					vs[i] = next()
					at++
					ts = append(ts, at)
				}
				p := Fold(ts, vs)
				w.Append(&p, at)
				sketches = append(sketches, p.Columns.Sketch)
				all = append(all, vs...)
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			ts := make([]int64, len(all))
			for i := range ts {
				ts[i] = int64(i + 1)
			}
			whole := Fold(ts, all)
			left, right := sketches[0], sketches[parts-1]
			for i := 1; i < parts; i++ {
				left = merged(left, sketches[i])
				right = merged(sketches[parts-1-i], right)
			}
			mixed := merged(merged(sketches[3], sketches[1]), merged(sketches[4], merged(sketches[0], sketches[2])))
			for _, s := range []*Sketch{left, right, mixed} {
				if !reflect.DeepEqual(s, whole.Columns.Sketch) || !slices.Equal(s.appendEncode(nil), whole.Columns.Sketch.appendEncode(nil)) {
					t.Fatalf("seed %d, %s: merged %+v, not %+v", seed, name, s, whole.Columns.Sketch)
				}
			}
			one := Window{Cols: []ColumnPane{{End: at, Columns: whole.Columns}}}
			var eval Evaluator
			for _, phi := range []float64{0, 0.01, 0.3, 0.5, 0.77, 0.99, 1} {
				a, _, _ := eval.Eval(Quantile, &w, 0, at, phi)
				b, _, _ := eval.Eval(Quantile, &one, 0, at, phi)
				if math.Float64bits(a) != math.Float64bits(b) && !(math.IsNaN(a) && math.IsNaN(b)) && a != b {
					t.Errorf("seed %d, %s, φ %v: %v from parts, %v from the whole", seed, name, phi, a, b)
				}
			}
		}
	}
}

// merged adds the counts of two sketches.
func merged(a, b *Sketch) *Sketch {
	bins := func(x, y []Bin, direction int32) []Bin {
		counts := map[int32]int64{}
		for _, b := range append(slices.Clone(x), y...) {
			counts[b.Index] += b.Count
		}
		var out []Bin
		for index, n := range counts {
			out = append(out, Bin{index, n})
		}
		slices.SortFunc(out, func(a, b Bin) int { return int(direction * (a.Index - b.Index)) })
		return out
	}
	return &Sketch{
		NaNs: a.NaNs + b.NaNs, Low: a.Low + b.Low, Zeros: a.Zeros + b.Zeros, High: a.High + b.High,
		Negative: bins(a.Negative, b.Negative, -1), Positive: bins(a.Positive, b.Positive, 1),
	}
}

// Up to MaxValues values, and outside of [0, 1], quantiles are exact and say so.
func TestSketchesAreReadOnlyBeyondTheExactBound(t *testing.T) {
	var eval Evaluator
	for _, n := range []int{MaxValues, MaxValues + 1} {
		ts, vs := make([]int64, n), make([]float64, n)
		for i := range ts {
			ts[i], vs[i] = int64(i), float64(i)
		}
		p := Fold(ts, vs)
		var w Window
		w.Append(&p, 1000)
		for phi, want := range map[float64]float64{-0.1: math.Inf(-1), 1.1: math.Inf(1)} {
			if v, ok, err := eval.Eval(Quantile, &w, -1, 1000, phi); v != want || !ok || err != nil || eval.Sketched {
				t.Errorf("%d values, φ %v: %v, %v, %v", n, phi, v, ok, err)
			}
		}
		v, ok, err := eval.Eval(Quantile, &w, -1, 1000, 0.5)
		switch {
		case !ok || err != nil || eval.Sketched != (n > MaxValues):
			t.Errorf("%d values: %v, %v, %v", n, ok, err, eval.Sketched)
		case n <= MaxValues && v != float64(n-1)/2, math.Abs(v/(float64(n-1)/2)-1) > SketchError:
			t.Errorf("%d values: %v", n, v)
		}
		eval.Sketched = false
	}
}
