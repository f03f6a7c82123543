package accum

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A4: values come into one order, by their bits where they are equal, however they are sorted.
func TestA4_ValuesSortedAsNumbersAndAsValues(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	odd := []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 1, -1}
	for range 2000 {
		vs := make([]float64, rng.IntN(2*usualValues))
		for i := range vs {
			switch rng.IntN(4) {
			case 0:
				vs[i] = odd[rng.IntN(len(odd))]
			case 1:
				vs[i] = float64(rng.IntN(5))
			default:
				vs[i] = math.Float64frombits(rng.Uint64()) // now and then NaN
			}
		}
		if rng.IntN(4) == 0 {
			slices.SortFunc(vs, compareValues)
		}
		want := slices.Clone(vs)
		slices.SortFunc(want, compareValues)
		sortValues(vs)
		if !slices.EqualFunc(vs, want, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
			t.Fatalf("%x, not %x", vs, want)
		}
	}
}
