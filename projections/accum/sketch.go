package accum

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/DataDog/sketches-go/ddsketch/mapping"
)

// SketchError is the relative error of what is read from a Sketch: each of the two values between which a quantile is
// interpolated is off by at most so much of itself. Values closer to zero than 2.3e-308 may read as zero.
const SketchError = 0.005

const (
	// sketchAccuracy is the code of SketchError in the encoding.
	sketchAccuracy = 1
	// maxIndex bounds the numbers of bins: those of the largest and the least number that have one lie within it.
	maxIndex = 1 << 17
	// roundingError is added to SketchError for the arithmetic of the mapping, logarithms and exponentials of numbers up to 710.
	roundingError = 1e-12
)

// Sketch is the distribution of values beyond MaxValues of them: a DDSketch, which counts them in bins whose bounds are a
// constant factor apart. Every value has its bin, whatever else is counted, so the sketch is a function of the set of values;
// two are merged by adding counts, in any order, to the same sketch that the values of both would have made.
type Sketch struct {
	NaNs     int64
	Low      int64 // −∞
	Negative []Bin // by decreasing index, that is, by increasing value
	Zeros    int64 // and what is too close to zero for a bin
	Positive []Bin // by increasing index
	High     int64 // +∞
}

// Bin counts the values of one bin, by their magnitude.
type Bin struct {
	Index int32
	Count int64
}

// bins is the mapping of magnitudes to indexes, which never changes.
func bins() *mapping.LogarithmicMapping {
	m, err := mapping.NewLogarithmicMapping(SketchError)
	if err != nil {
		panic(fmt.Sprintf("accum: %v is an accuracy", SketchError))
	}
	return m
}

// representative returns the magnitude that stands for those of a bin. The mapping cannot compute the largest at once, because
// its exponential overflows a little early; what is beyond all numbers is for the caller to bound.
func representative(m *mapping.LogarithmicMapping, index int32) float64 {
	const large, part = 70_000, 1_000
	if index < large {
		return m.Value(int(index))
	}
	return m.Value(int(index-part)) * m.LowerBound(part)
}

// sketch makes a sketch of values that are sorted, NaN first.
func sketch(sorted []float64) *Sketch {
	m := bins()
	least := m.MinIndexableValue()
	s := &Sketch{}
	for _, v := range sorted {
		switch {
		case math.IsNaN(v):
			s.NaNs++
		case math.IsInf(v, -1):
			s.Low++
		case math.IsInf(v, 1):
			s.High++
		case v <= -least:
			s.Negative = count(s.Negative, int32(m.Index(-v)))
		case v >= least:
			s.Positive = count(s.Positive, int32(m.Index(v)))
		default:
			s.Zeros++
		}
	}
	return s
}

// count adds a value to the last bin or to one behind it.
func count(bins []Bin, index int32) []Bin {
	if n := len(bins); n > 0 && bins[n-1].Index == index {
		bins[n-1].Count++
		return bins
	}
	return append(bins, Bin{Index: index, Count: 1})
}

// total returns the number of values; negative if it is beyond an int64.
func (s *Sketch) total() int64 {
	n := int64(0)
	add := func(c int64) {
		if n >= 0 {
			n += c // once beyond, it stays negative
		}
	}
	for _, c := range [...]int64{s.NaNs, s.Low, s.Zeros, s.High} {
		add(c)
	}
	for _, bins := range [...][]Bin{s.Negative, s.Positive} {
		for i := range bins {
			add(bins[i].Count)
		}
	}
	return n
}

// weighted is a number of equal values.
type weighted struct {
	v float64
	n int64
}

// appendWeighted appends what the sketch counts but for NaNs, every value kept between the least and the greatest.
func (s *Sketch) appendWeighted(dst []weighted, least, most float64) []weighted {
	m := bins()
	add := func(v float64, n int64) {
		if n > 0 {
			dst = append(dst, weighted{min(max(v, least), most), n})
		}
	}
	add(math.Inf(-1), s.Low)
	for _, b := range s.Negative {
		add(-representative(m, b.Index), b.Count)
	}
	add(0, s.Zeros)
	for _, b := range s.Positive {
		add(representative(m, b.Index), b.Count)
	}
	add(math.Inf(1), s.High)
	return dst
}

// appendEncode appends the sketch. Equal sketches give equal bytes.
func (s *Sketch) appendEncode(dst []byte) []byte {
	dst = append(dst, sketchAccuracy)
	for _, c := range [...]int64{s.NaNs, s.Low, s.Zeros, s.High} {
		dst = binary.AppendUvarint(dst, uint64(c))
	}
	for _, bins := range [...][]Bin{s.Negative, s.Positive} {
		dst = binary.AppendUvarint(dst, uint64(len(bins)))
		for i, b := range bins {
			switch {
			case i == 0:
				dst = binary.AppendVarint(dst, int64(b.Index))
			case b.Index > bins[i-1].Index:
				dst = binary.AppendUvarint(dst, uint64(b.Index-bins[i-1].Index))
			default:
				dst = binary.AppendUvarint(dst, uint64(bins[i-1].Index-b.Index))
			}
			dst = binary.AppendUvarint(dst, uint64(b.Count))
		}
	}
	return dst
}

// sketch reads a sketch of so many values.
func (r *reader) sketch(values int64) *Sketch {
	if code := r.byte(); r.err == nil && code != sketchAccuracy {
		r.fail("unknown accuracy")
	}
	s := &Sketch{
		NaNs: r.counter(0, values), Low: r.counter(0, values), Zeros: r.counter(0, values), High: r.counter(0, values),
	}
	s.Negative = r.bins(values, -1)
	s.Positive = r.bins(values, 1)
	if r.err == nil && s.total() != values {
		r.fail("sketch of another number of values")
	}
	return s
}

// bins reads bins whose indexes go by direction.
func (r *reader) bins(values int64, direction int64) []Bin {
	n := r.counter(0, int64(len(r.src)-r.off)/2) // a bin takes two bytes at least
	if r.err != nil || n == 0 {
		return nil
	}
	out := make([]Bin, 0, n)
	index := r.varint()
	for i := range n {
		if i > 0 {
			index += direction * r.counter(1, 2*maxIndex)
		}
		if r.err == nil && (index < -maxIndex || index > maxIndex) {
			r.fail("bin out of range")
		}
		out = append(out, Bin{Index: int32(index), Count: r.counter(1, values)})
		if r.err != nil {
			return nil
		}
	}
	return out
}

// fromSketches is quantile over values and sketches together: the two order statistics around the rank are looked up, and
// interpolated as Prometheus does. A value that is exactly known takes part as it is.
func (e *Evaluator) fromSketches(phi float64, d *data) float64 {
	all := e.weighted[:0]
	nans, total := int64(0), int64(0)
	for _, v := range e.values {
		total++
		if math.IsNaN(v) {
			nans++
			continue
		}
		all = append(all, weighted{v, 1})
	}
	// What is known exactly of all sketches together, so that the answer does not depend on how the values are cut into panes.
	least, most := math.Inf(1), math.Inf(-1)
	for i := range d.cols {
		if c := d.cols[i].Columns; c.Sketch != nil && !math.IsNaN(c.Min) {
			least, most = min(least, c.Min), max(most, c.Max)
		}
	}
	for i := range d.cols {
		if c := d.cols[i].Columns; c.Sketch != nil {
			nans += c.Sketch.NaNs
			total += c.Count
			all = c.Sketch.appendWeighted(all, least, most)
		}
	}
	e.weighted = all
	slices.SortFunc(all, func(a, b weighted) int { return compareValues(a.v, b.v) })

	rank := phi * float64(total-1)
	floor := math.Floor(rank)
	k, weight := int64(floor), rank-floor
	if k < nans {
		return math.NaN()
	}
	k -= nans
	lower, upper := math.NaN(), math.NaN()
	for i := range all {
		if k < all[i].n {
			lower, upper = all[i].v, all[i].v
			if k == all[i].n-1 && i+1 < len(all) {
				upper = all[i+1].v
			}
			break
		}
		k -= all[i].n
	}
	if weight == 0 {
		return lower
	}
	return float64(lower*(1-weight)) + float64(upper*weight)
}
