package accum

// This file is data path 4 of 6: samples of a closed bucket become a pane.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/util/kahansum"
)

const (
	// wideLimit is the magnitude from which on a value or a partial sum makes its columns wide. Sums within it cannot
	// push any finite sum over the edge: they are less than half of the last digit of the largest finite number (2^970).
	wideLimit = 0x1p900
	// wideScale is what values are multiplied by in a Wide sum: 2^53 of the largest stay finite.
	wideScale = 0x1p-64
	// wideMax is the largest finite number in a Wide sum's scale.
	wideMax = math.MaxFloat64 * wideScale
)

// Fold makes the pane of one closed bucket. ts are ms, strictly increasing (A1), vs parallel to them, stale markers
// included. A pane of at most MaxSamples samples shares ts and vs with the caller.
//
// Fold panics on times that do not increase: whoever closes a bucket sorts and deduplicates it first.
func Fold(ts []int64, vs []float64) Pane {
	if len(ts) != len(vs) {
		panic(fmt.Sprintf("accum: A1: %d times for %d values", len(ts), len(vs)))
	}
	for i := 1; i < len(ts); i++ {
		if ts[i] <= ts[i-1] {
			panic(fmt.Sprintf("accum: A1: time %d after %d", ts[i], ts[i-1]))
		}
	}
	if len(ts) <= MaxSamples {
		return Pane{T: ts, V: vs}
	}
	return Pane{Columns: foldColumns(ts, vs)}
}

func foldColumns(ts []int64, vs []float64) *Columns {
	c := &Columns{}
	magnitude := 0.0
	if plantedMapOrder {
		at := make(map[int64]float64, len(ts))
		for i, t := range ts {
			at[t] = vs[i]
		}
		defer func() {
			c.Sum, c.Comp = 0, 0
			for _, v := range at {
				if !value.IsStaleNaN(v) {
					c.Sum += v
				}
			}
		}()
	}
	for i, v := range vs {
		if value.IsStaleNaN(v) && !plantedStaleCounts {
			c.HasMarker, c.Marker = true, ts[i]
			continue
		}
		s := Sample{T: ts[i], V: v}
		if c.Count == 0 {
			c.First, c.Min, c.Max = s, v, v
		} else {
			if isReset(c.Last.V, v) {
				c.Resets++
				c.Correction += c.Last.V
			}
			if isChange(c.Last.V, v) {
				c.Changes++
			}
			c.Prev = c.Last
		}
		c.Last = s
		c.Count++
		c.Min, c.Max = lesser(c.Min, v), greater(c.Max, v)
		c.Sum, c.Comp = kahansum.Inc(v, c.Sum, c.Comp)
		magnitude = max(magnitude, finiteMagnitude(v), finiteMagnitude(c.Sum))
	}
	c.Sum, c.Comp = plainNaN(c.Sum, c.Comp)
	if magnitude > wideLimit {
		c.Wide = foldWide(vs)
	}
	if c.Count == 0 {
		return c
	}
	values := make([]float64, 0, c.Count)
	for _, v := range vs {
		if !value.IsStaleNaN(v) {
			values = append(values, v)
		}
	}
	sortValues(values)
	if c.Count <= MaxValues {
		c.Values = values
	} else {
		c.Sketch = sketch(values)
	}
	return c
}

func foldWide(vs []float64) *Wide {
	w := &Wide{}
	for _, v := range vs {
		if value.IsStaleNaN(v) {
			continue
		}
		w.Sum, w.Comp = kahansum.Inc(v*wideScale, w.Sum, w.Comp)
		if isFinite(w.Sum) {
			w.Low, w.High = min(w.Low, w.Sum), max(w.High, w.Sum)
		}
	}
	w.Sum, w.Comp = plainNaN(w.Sum, w.Comp)
	return w
}

// plainNaN takes the payload from a sum that is NaN. Which of two NaNs an addition keeps is up to the compiler, and equal
// samples must give equal bytes (A4).
func plainNaN(sum, comp float64) (float64, float64) {
	if math.IsNaN(sum) {
		return math.NaN(), 0
	}
	return sum, comp
}

// compareValues is a total order in which NaN comes first and −0 before +0, so that equal multisets sort to equal bits (A4).
func compareValues(a, b float64) int {
	if c := cmp.Compare(a, b); c != 0 {
		return c
	}
	// Equal numbers with unequal bits are zeros: the one with the sign bit is less. NaNs go by their bits.
	if a == b {
		return -cmp.Compare(math.Float64bits(a), math.Float64bits(b))
	}
	return cmp.Compare(math.Float64bits(a), math.Float64bits(b))
}

// usualValues is the number of values for which sorting and encoding need no heap.
const usualValues = 64

// sortValues sorts by compareValues. Most panes come sorted, as counters do, or are sorted as whole numbers, in a fraction of the time.
func sortValues(vs []float64) {
	var room [usualValues]uint64
	keys, sorted := room[:0], true
	for i, v := range vs {
		if v != v {
			slices.SortFunc(vs, compareValues)
			return
		}
		k := math.Float64bits(v)
		if k>>63 != 0 {
			k = ^k
		} else {
			k |= 1 << 63
		}
		keys = append(keys, k)
		sorted = sorted && (i == 0 || keys[i-1] <= k)
	}
	if sorted {
		return
	}
	slices.Sort(keys)
	for i, k := range keys {
		if k>>63 != 0 {
			k &^= 1 << 63
		} else {
			k = ^k
		}
		vs[i] = math.Float64frombits(k)
	}
}

func isReset(prev, cur float64) bool { return cur < prev }

func isChange(prev, cur float64) bool {
	return cur != prev && !(math.IsNaN(cur) && math.IsNaN(prev))
}

// lesser is the step of min_over_time: NaN yields to whatever comes, and of equal values the first stays.
func lesser(acc, v float64) float64 {
	if v < acc || math.IsNaN(acc) {
		return v
	}
	return acc
}

// greater is the step of max_over_time.
func greater(acc, v float64) float64 {
	if v > acc || math.IsNaN(acc) {
		return v
	}
	return acc
}

func isFinite(v float64) bool { return math.Abs(v) <= math.MaxFloat64 }

// finiteMagnitude returns |v|, or 0 where v is not finite.
func finiteMagnitude(v float64) float64 {
	if a := math.Abs(v); a <= math.MaxFloat64 {
		return a
	}
	return 0
}
