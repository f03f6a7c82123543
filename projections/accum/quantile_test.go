package accum

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSelectNth compares with sorting, on the inputs that are hard for a partition.
func TestSelectNth(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		vs := make([]float64, 1+r.IntN(300))
		for i := range vs {
			switch seed % 5 {
			case 0:
				vs[i] = r.NormFloat64()
			case 1:
				vs[i] = float64(r.IntN(3))
			case 2:
				vs[i] = float64(i)
			case 3:
				vs[i] = float64(min(i, len(vs)-i)) // an organ pipe
			case 4:
				vs[i] = [...]float64{math.Inf(1), math.Inf(-1), 0, math.MaxFloat64}[r.IntN(4)]
			}
		}
		sorted := slices.Clone(vs)
		slices.Sort(sorted)
		k := r.IntN(len(vs))
		selectNth(vs, k)
		if vs[k] != sorted[k] {
			t.Fatalf("seed %d: %v at %d, want %v", seed, vs[k], k, sorted[k])
		}
		for i, v := range vs {
			if i < k && v > vs[k] || i > k && v < vs[k] {
				t.Fatalf("seed %d: %v at %d on the wrong side of %v at %d", seed, v, i, vs[k], k)
			}
		}
		slices.Sort(vs)
		if !slices.Equal(vs, sorted) {
			t.Fatalf("seed %d: values lost", seed)
		}
	}
}
