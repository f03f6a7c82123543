package accum

// This file is data path 5 of 6: a pane becomes bytes. The package comment specifies them.

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	version        = 2
	versionShift   = 5
	tagHistogram   = 1 << 4
	tagShapeMask   = 1<<4 - 1
	shapeColumns   = 0
	shapeEmpty     = 1
	shapeOne       = 2 // + the decimal scale
	shapeOneRaw    = 9
	shapeDecimal   = 10
	shapeXOR       = 11
	countMask      = 1<<5 - 1
	scaleShift     = 5
	maxScale       = 6
	rawScale       = 15
	sameBits       = 0x80
	maxMantissa    = 1 << 53
	flagMarker     = 1
	flagResets     = 2
	flagChanges    = 4
	flagComp       = 8
	flagWide       = 16
	knownFlags     = flagMarker | flagResets | flagChanges | flagComp | flagWide
	prevFromCount  = 2 // the count from which on the previous to last sample exists
	firstFromCount = 3 // the count from which on it is not the first
)

// pow10 returns 10^scale for scales up to maxScale, all of which are exact.
func pow10(scale int) float64 { return powers[scale] }

var powers = [maxScale + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6}

// AppendEncode appends the encoded pane to dst. end is the inclusive end of the pane's bucket, in ms; it is not encoded,
// and decoding needs it.
func (p *Pane) AppendEncode(dst []byte, end int64) []byte {
	tag := byte(version << versionShift)
	if p.HasHistogram {
		tag |= tagHistogram
	}
	switch {
	case p.Columns != nil:
		return p.Columns.appendEncode(append(dst, tag|shapeColumns), end)
	case len(p.T) == 0:
		return append(dst, tag|shapeEmpty)
	case len(p.T) == 1:
		scale, m := decimalScalar(p.V[0])
		if scale == rawScale {
			dst = appendTime(append(dst, tag|shapeOneRaw), p.T[0], end)
			return binary.LittleEndian.AppendUint64(dst, math.Float64bits(p.V[0]))
		}
		dst = appendTime(append(dst, tag|byte(shapeOne+scale)), p.T[0], end)
		return binary.AppendVarint(dst, m)
	}
	var room [MaxSamples]int64
	if scale, ms := decimals(p.V, room[:0]); scale != rawScale {
		dst = append(dst, tag|shapeDecimal, byte(scale<<scaleShift|len(p.T)))
		return appendDeltas(appendTimes(dst, p.T, end), ms)
	}
	dst = append(dst, tag|shapeXOR, byte(len(p.T)))
	return appendXORs(appendTimes(dst, p.T, end), p.V)
}

func (c *Columns) appendEncode(dst []byte, end int64) []byte {
	dst = append(dst, c.flags())
	if c.HasMarker {
		dst = appendTime(dst, c.Marker, end)
	}
	dst = binary.AppendUvarint(dst, uint64(c.Count))
	if c.Count == 0 {
		return dst
	}
	dst = appendTime(dst, c.Last.T, end)
	if c.Count >= prevFromCount {
		dst = appendTime(dst, c.Prev.T, c.Last.T)
	}
	if c.Count >= firstFromCount {
		dst = appendTime(dst, c.First.T, c.Prev.T)
	}
	dst = appendScalar(dst, c.First.V)
	if c.Count >= firstFromCount {
		dst = appendScalar(dst, c.Prev.V)
	}
	if c.Count >= prevFromCount {
		dst = appendScalar(dst, c.Last.V)
	}
	dst = appendScalar(dst, c.Min)
	dst = appendScalar(dst, c.Max)
	dst = appendScalar(dst, c.Sum)
	if math.Float64bits(c.Comp) != 0 {
		dst = appendScalar(dst, c.Comp)
	}
	if c.Resets > 0 {
		dst = appendScalar(binary.AppendUvarint(dst, uint64(c.Resets)), c.Correction)
	}
	if c.Changes > 0 {
		dst = binary.AppendUvarint(dst, uint64(c.Changes))
	}
	if w := c.Wide; w != nil {
		for _, v := range [...]float64{w.Sum, w.Comp, w.Low, w.High} {
			dst = appendScalar(dst, v)
		}
	}
	if c.Count > MaxValues {
		return c.Sketch.appendEncode(dst)
	}
	var room [usualValues]int64
	scale, ms := decimals(c.Values, room[:0])
	dst = append(dst, byte(scale))
	if scale == rawScale {
		return appendXORs(dst, c.Values)
	}
	return appendDeltas(dst, ms)
}

func (c *Columns) flags() byte {
	f := byte(0)
	if c.HasMarker {
		f |= flagMarker
	}
	if c.Resets > 0 {
		f |= flagResets
	}
	if c.Changes > 0 {
		f |= flagChanges
	}
	if math.Float64bits(c.Comp) != 0 {
		f |= flagComp
	}
	if c.Wide != nil {
		f |= flagWide
	}
	return f
}

// appendTime appends how long t is before end.
func appendTime(dst []byte, t, end int64) []byte {
	return binary.AppendUvarint(dst, uint64(end)-uint64(t))
}

// appendTimes appends at least two times.
func appendTimes(dst []byte, ts []int64, end int64) []byte {
	dst = appendTime(dst, ts[0], end)
	delta := uint64(ts[1]) - uint64(ts[0])
	dst = binary.AppendUvarint(dst, delta)
	for i := 2; i < len(ts); i++ {
		next := uint64(ts[i]) - uint64(ts[i-1])
		dst = binary.AppendVarint(dst, int64(next-delta))
		delta = next
	}
	return dst
}

func appendScalar(dst []byte, v float64) []byte {
	scale, m := decimalScalar(v)
	dst = append(dst, byte(scale))
	if scale == rawScale {
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return binary.AppendVarint(dst, m)
}

// decimalScalar returns the least scale in which v is m/10^scale bit for bit, or rawScale.
func decimalScalar(v float64) (scale int, m int64) {
	power := 1.0
	for scale := 0; scale <= maxScale; scale++ {
		if m, ok := mantissa(v, power); ok {
			return scale, m
		}
		power *= 10
	}
	return rawScale, 0
}

// decimals returns the least scale that holds every value bit for bit, and their mantissas, appended to ms; rawScale if there is none.
func decimals(vs []float64, ms []int64) (scale int, _ []int64) {
	power, sure := 1.0, 0 // mantissas from sure on are of this scale
	for i := 0; i < len(vs); {
		if m, ok := mantissa(vs[i], power); ok {
			ms = append(ms, m)
			i++
			continue
		}
		if scale++; scale > maxScale {
			return rawScale, nil
		}
		power *= 10
		sure = i
	}
	// A value that fits a small scale may be too large for the one that another value needs.
	for i, v := range vs[:sure] {
		m, ok := mantissa(v, power)
		if !ok {
			return rawScale, nil
		}
		ms[i] = m
	}
	return scale, ms
}

// mantissa returns the m with float64(m)/power == v, bit for bit. There is none for −0, NaN and ±Inf.
func mantissa(v, power float64) (m int64, ok bool) {
	x := v * power
	if !(math.Abs(x) <= maxMantissa) {
		return 0, false
	}
	if m = int64(x); power == 1 { // of an integer nothing is lost
		return m, math.Float64bits(float64(m)) == math.Float64bits(v)
	}
	m = int64(math.RoundToEven(x))
	return m, math.Float64bits(float64(m)/power) == math.Float64bits(v)
}

// appendDeltas appends each mantissa less the one before it.
func appendDeltas(dst []byte, ms []int64) []byte {
	prev := int64(0)
	for _, m := range ms {
		dst = binary.AppendVarint(dst, m-prev)
		prev = m
	}
	return dst
}

func appendXORs(dst []byte, vs []float64) []byte {
	prev := uint64(0)
	for _, v := range vs {
		x := math.Float64bits(v) ^ prev
		prev ^= x
		if x == 0 {
			dst = append(dst, sameBits)
			continue
		}
		lead, trail := bits.LeadingZeros64(x)/8, bits.TrailingZeros64(x)/8
		dst = append(dst, byte(lead<<4|trail))
		for i := 7 - lead; i >= trail; i-- {
			dst = append(dst, byte(x>>(8*i)))
		}
	}
	return dst
}
