package accum

import (
	"math"
	"slices"
)

// quantile is quantile_over_time.
func (e *Evaluator) quantile(phi float64, d *data) float64 {
	switch {
	case math.IsNaN(phi):
		return math.NaN()
	case phi < 0:
		return math.Inf(-1)
	case phi > 1:
		return math.Inf(1)
	}
	e.values = append(e.values[:0], d.v...)
	sketched := false
	for i := range d.cols {
		c := d.cols[i].Columns
		sketched = sketched || c.Sketch != nil
		e.values = append(e.values, c.Values...)
	}
	if sketched {
		e.Sketched = true
		return e.fromSketches(phi, d)
	}
	return selectQuantile(phi, e.values)
}

// mad is mad_over_time: the median distance from the median. NaN if any value is.
func (e *Evaluator) mad(vs []float64) float64 {
	e.values = append(e.values[:0], vs...)
	for _, v := range vs {
		if math.IsNaN(v) {
			return math.NaN()
		}
	}
	median := selectQuantile(0.5, e.values)
	for i, v := range e.values {
		e.values[i] = math.Abs(v - median) // NaN for ∞ − ∞
	}
	return selectQuantile(0.5, e.values)
}

// selectQuantile interpolates between the two values around rank φ·(n−1), in the order in which NaN comes first. vs is
// not empty and is left in another order; 0 ≤ φ ≤ 1.
func selectQuantile(phi float64, vs []float64) float64 {
	rank := phi * float64(len(vs)-1)
	floor := math.Floor(rank)
	k, weight := int(floor), rank-floor

	nans := nanFirst(vs)
	if k < nans {
		return math.NaN() // also where only the lower of the two is NaN: its weight is not zero
	}
	numbers := vs[nans:]
	k -= nans
	selectNth(numbers, k)
	if weight == 0 {
		return numbers[k]
	}
	// After selectNth, what lies behind k is not less than the value at k: the next value is the least of it.
	upper := slices.Min(numbers[min(k+1, len(numbers)-1):])
	return float64(numbers[k]*(1-weight)) + float64(upper*weight)
}

// nanFirst moves NaNs to the front and returns their number.
func nanFirst(vs []float64) int {
	n := 0
	for i, v := range vs {
		if math.IsNaN(v) {
			vs[i], vs[n] = vs[n], v
			n++
		}
	}
	return n
}

const (
	// sortBelow is the length from which down sorting is cheaper than partitioning.
	sortBelow = 12
	// maxPartitions bounds the partitions by which selectNth may make no headway before it sorts instead.
	maxPartitions = 64
)

// selectNth orders vs so that vs[k] is what it would be if vs were sorted, nothing before it is greater and nothing
// behind it is less. vs holds no NaN.
func selectNth(vs []float64, k int) {
	lo, hi := 0, len(vs) // vs[lo:hi] holds the k-th
	for range maxPartitions {
		if hi-lo <= sortBelow {
			break
		}
		pivot := medianOfThree(vs[lo], vs[lo+(hi-lo)/2], vs[hi-1])
		i, j := lo, hi-1
		for i <= j {
			for vs[i] < pivot {
				i++
			}
			for vs[j] > pivot {
				j--
			}
			if i <= j {
				vs[i], vs[j] = vs[j], vs[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j + 1
		case k >= i:
			lo = i
		default:
			return // between j and i everything equals the pivot
		}
	}
	slices.Sort(vs[lo:hi])
}

func medianOfThree(a, b, c float64) float64 {
	return max(min(a, b), min(max(a, b), c))
}
