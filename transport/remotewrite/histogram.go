package remotewrite

// data path 1 of 6: decode and check.

import (
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
)

// DecodeHistogram reads a native histogram as it stands in the log. One of its results is set: the second for a histogram with float
// counts. The start timestamp that version 2.0 has is left out.
func DecodeHistogram(proto []byte) (*histogram.Histogram, *histogram.FloatHistogram, error) {
	var h prompb.Histogram
	if err := h.Unmarshal(proto); err != nil {
		return nil, nil, fmt.Errorf("native histogram: %w", err)
	}
	if h.IsFloatHistogram() {
		return nil, h.ToFloatHistogram(), nil
	}
	return h.ToIntHistogram(), nil, nil
}

// errZeroThreshold is a fault that the model of Prometheus does not look for.
var errZeroThreshold = errors.New("zero threshold is negative or not finite")

// histogramReader judges native histograms by the rules of Prometheus. Its memory is used again for the next one.
type histogramReader struct {
	float              bool // the count is a float
	intCount, intZero  uint64
	count, zero        float64
	sum, threshold     float64
	schema             int32
	negSpans, posSpans []histogram.Span
	negDeltas          []int64
	posDeltas          []int64
	negCounts          []float64
	posCounts          []float64
	custom             []float64

	ints   histogram.Histogram // scratch of check, like floats
	floats histogram.FloatHistogram
}

// check says what is wrong with a Histogram message that is well formed, in words that repeat nothing of it.
func (r *histogramReader) check(proto []byte) error {
	r.read(proto)
	if !(r.threshold >= 0 && r.threshold <= math.MaxFloat64) {
		return errZeroThreshold
	}
	custom := r.custom
	if len(custom) == 0 {
		custom = nil // an empty list is not the same to the model
	}
	var err error
	if r.float {
		r.floats = histogram.FloatHistogram{
			Schema: r.schema, ZeroThreshold: r.threshold, ZeroCount: r.zero, Count: r.count, Sum: r.sum,
			PositiveSpans: r.posSpans, PositiveBuckets: r.posCounts, NegativeSpans: r.negSpans, NegativeBuckets: r.negCounts, CustomValues: custom,
		}
		err = r.floats.Validate()
	} else {
		r.ints = histogram.Histogram{
			Schema: r.schema, ZeroThreshold: r.threshold, ZeroCount: r.intZero, Count: r.intCount, Sum: r.sum,
			PositiveSpans: r.posSpans, PositiveBuckets: r.posDeltas, NegativeSpans: r.negSpans, NegativeBuckets: r.negDeltas, CustomValues: custom,
		}
		err = r.ints.Validate()
	}
	if err == nil {
		return nil
	}
	var why histogram.Error
	if errors.As(err, &why) {
		return why // the rule, without the numbers that broke it
	}
	return err
}

// read decodes a well-formed Histogram message. Of a repeated field the last counts, and lists go on.
func (r *histogramReader) read(b []byte) {
	*r = histogramReader{
		negSpans: r.negSpans[:0], posSpans: r.posSpans[:0], negDeltas: r.negDeltas[:0], posDeltas: r.posDeltas[:0],
		negCounts: r.negCounts[:0], posCounts: r.posCounts[:0], custom: r.custom[:0],
	}
	for i := 0; i < len(b); {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			panic("remotewrite: R1: a histogram is judged before it is checked: " + bad.String())
		}
		r.field(b[:f.end], f)
		i = f.end
	}
}

func (r *histogramReader) field(b []byte, f field) {
	switch f.num {
	case 1:
		r.intCount, r.float = varintAt(b, f), false
	case 2:
		r.count, r.float = doubleAt(b, f), true
	case 3:
		r.sum = doubleAt(b, f)
	case 4:
		r.schema = int32(unzigzag(uint64(uint32(varintAt(b, f)))))
	case 5:
		r.threshold = doubleAt(b, f)
	case 6:
		r.intZero, r.zero = varintAt(b, f), 0
	case 7:
		r.intZero, r.zero = 0, doubleAt(b, f)
	case 8:
		r.negSpans = append(r.negSpans, span(b, f.start))
	case 9:
		r.negDeltas = appendDeltas(r.negDeltas, b, f)
	case 10:
		r.negCounts = appendDoubles(r.negCounts, b, f)
	case 11:
		r.posSpans = append(r.posSpans, span(b, f.start))
	case 12:
		r.posDeltas = appendDeltas(r.posDeltas, b, f)
	case 13:
		r.posCounts = appendDoubles(r.posCounts, b, f)
	case 16:
		r.custom = appendDoubles(r.custom, b, f)
	}
}

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

func span(b []byte, i int) (s histogram.Span) {
	for i < len(b) {
		f, _ := nextField(b, i)
		switch f.num {
		case 1:
			s.Offset = int32(unzigzag(uint64(uint32(varintAt(b, f)))))
		case 2:
			s.Length = uint32(varintAt(b, f))
		}
		i = f.end
	}
	return s
}

// appendDeltas and appendDoubles append the elements of a repeated field, packed or not.
func appendDeltas(out []int64, b []byte, f field) []int64 {
	for i := f.start; i < f.end; {
		var v uint64
		v, i, _ = uvarint(b, i)
		out = append(out, unzigzag(v))
	}
	return out
}

func appendDoubles(out []float64, b []byte, f field) []float64 {
	for i := f.start; i+8 <= f.end; i += 8 {
		out = append(out, doubleAt(b, field{start: i, end: i + 8}))
	}
	return out
}
