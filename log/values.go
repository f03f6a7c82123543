package log

// The column of values. Data path 2 of 6: make durable and acknowledge.

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	maxExponent  = 6
	valuesRaw    = 7
	valuesNibble = 8
	valuesRuns   = 16 // added to the exponent of the column
	maxMantissa  = 1 << 53
	rawNibble    = 7
	sampleStack  = 2048 // samples of a write for which encoding needs no heap
)

var powers = [maxExponent + 1]float64{1, 10, 100, 1e3, 1e4, 1e5, 1e6}

// mantissa returns m with v = m/10^e bit for bit, if there is one.
func mantissa(v float64, e int) (int64, bool) {
	scaled := v * powers[e]
	if !(math.Abs(scaled) <= maxMantissa) { // also NaN
		return 0, false
	}
	m := int64(math.RoundToEven(scaled))
	return m, math.Float64bits(float64(m)/powers[e]) == math.Float64bits(v)
}

// exponent returns the smallest exponent of v and its mantissa, or rawNibble.
func exponent(v float64) (int, int64) {
	m, ok := mantissa(v, 0)
	if ok {
		return 0, m
	}
	// m/10^e is also (m·10^(6−e))/10^6, the same number and so the same float: when the largest exponent can be tried and
	// does not hold, none does.
	if math.Abs(v) < maxMantissa/1e6 {
		if _, ok := mantissa(v, maxExponent); !ok {
			return rawNibble, 0
		}
	}
	for e := 1; e <= maxExponent; e++ {
		if m, ok := mantissa(v, e); ok {
			return e, m
		}
	}
	return rawNibble, 0
}

func varintSize(m int64) int { return (bits.Len64(zigzag(m)|1) + 6) / 7 }

// valuePlan is what appendValues finds out about a column before it writes it.
type valuePlan struct {
	exponents []uint8
	mantissas []int64
	column    int // largest exponent
	raws      int
	nibbles   int // bytes in nibble mode
}

func planValues(values []float64, p *valuePlan) {
	p.nibbles = (len(values) + 1) / 2
	for i, v := range values {
		e, m := exponent(v)
		p.exponents[i], p.mantissas[i] = uint8(e), m
		if e == rawNibble {
			p.raws++
			p.nibbles += 8
			continue
		}
		p.column = max(p.column, e)
		p.nibbles += varintSize(m)
	}
}

// scale brings all mantissas to the exponent of the column. A value for which that is not exact becomes an exception.
func (p *valuePlan) scale(values []float64) (exceptions int) {
	for i, e := range p.exponents {
		if int(e) == p.column {
			continue
		}
		if e != rawNibble {
			if m, ok := mantissa(values[i], p.column); ok {
				p.mantissas[i] = m
				continue
			}
			p.exponents[i] = rawNibble
		}
		exceptions++
	}
	return exceptions
}

// uniform returns the bytes of uniform mode without and with deltas within runs.
func (p *valuePlan) uniform(ends []uint32) (plain, delta int) {
	plain = 1 // the number of exceptions
	var begin uint32
	gap := 0
	for _, end := range ends {
		var prev int64
		for i := begin; i < end; i++ {
			if p.exponents[i] == rawNibble {
				plain += 8 + varintSize(int64(gap/2)) // close to the size of the gap's unsigned varint
				gap = 0
				continue
			}
			gap++
			plain += varintSize(p.mantissas[i])
			delta += varintSize(p.mantissas[i]-prev) - varintSize(p.mantissas[i])
			prev = p.mantissas[i]
		}
		begin = end
	}
	return plain, plain + delta
}

func appendValues(dst []byte, ends []uint32, values []float64) []byte {
	var exponents [sampleStack]uint8
	var mantissas [sampleStack]int64
	p := valuePlan{exponents: exponents[:], mantissas: mantissas[:]}
	if len(values) > sampleStack {
		p.exponents, p.mantissas = make([]uint8, len(values)), make([]int64, len(values))
	}
	p.exponents, p.mantissas = p.exponents[:len(values)], p.mantissas[:len(values)]
	planValues(values, &p)
	if p.raws == len(values) {
		return appendRaw(append(dst, valuesRaw), values)
	}
	own := p
	if p.column > 0 {
		// scale overwrites what nibble mode would need, and nibble mode may win only when exponents differ.
		own.exponents = append([]uint8(nil), p.exponents...)
		own.mantissas = append([]int64(nil), p.mantissas...)
	}
	exceptions := p.scale(values)
	plain, delta := p.uniform(ends)
	best := min(plain, delta)
	switch {
	case 8*len(values) < min(best, own.nibbles):
		return appendRaw(append(dst, valuesRaw), values)
	case own.nibbles < best:
		return own.appendNibbles(append(dst, valuesNibble), values)
	case delta < plain:
		return p.appendUniform(append(dst, byte(valuesRuns+p.column)), ends, values, exceptions, true)
	default:
		return p.appendUniform(append(dst, byte(p.column)), ends, values, exceptions, false)
	}
}

func appendRaw(dst []byte, values []float64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return dst
}

func (p *valuePlan) appendNibbles(dst []byte, values []float64) []byte {
	for i := 0; i < len(values); i += 2 {
		b := p.exponents[i]
		if i+1 < len(values) {
			b |= p.exponents[i+1] << 4
		}
		dst = append(dst, b)
	}
	for i, e := range p.exponents {
		if e != rawNibble {
			dst = binary.AppendVarint(dst, p.mantissas[i])
		}
	}
	return p.appendExceptions(dst, values)
}

func (p *valuePlan) appendExceptions(dst []byte, values []float64) []byte {
	for i, e := range p.exponents {
		if e == rawNibble {
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(values[i]))
		}
	}
	return dst
}

func (p *valuePlan) appendUniform(dst []byte, ends []uint32, values []float64, exceptions int, delta bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(exceptions))
	if exceptions > 0 {
		next := 0
		for i, e := range p.exponents {
			if e == rawNibble {
				dst = binary.AppendUvarint(dst, uint64(i-next))
				next = i + 1
			}
		}
	}
	var begin uint32
	for _, end := range ends {
		var prev int64
		for i := begin; i < end; i++ {
			if p.exponents[i] == rawNibble {
				continue
			}
			dst = binary.AppendVarint(dst, p.mantissas[i]-prev)
			if delta {
				prev = p.mantissas[i]
			}
		}
		begin = end
	}
	if exceptions == 0 {
		return dst
	}
	return p.appendExceptions(dst, values)
}

func (d *decoder) values(w *Write) {
	if d.reason != "" {
		return
	}
	mode := d.byte()
	switch {
	case mode <= maxExponent:
		d.uniform(w, int(mode), false)
	case mode >= valuesRuns && mode <= valuesRuns+maxExponent:
		d.uniform(w, int(mode-valuesRuns), true)
	case mode == valuesRaw:
		raw := d.take(8 * len(w.Values))
		if raw == nil {
			return
		}
		for i := range w.Values {
			w.Values[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
		}
	case mode == valuesNibble:
		d.nibbles(w.Values)
	default:
		d.fail("unknown mode of values")
	}
}

func (d *decoder) uniform(w *Write, e int, delta bool) {
	exceptions := d.count(1)
	if exceptions > len(w.Values) {
		d.fail("more exceptions than values")
	}
	if d.reason != "" {
		return
	}
	if exceptions == 0 && !delta {
		d.plain(w.Values, powers[e])
		return
	}
	skips := make([]uint32, 0, exceptions)
	next := uint64(0)
	for range exceptions {
		gap := d.uvarint()
		if gap >= uint64(len(w.Values))-next {
			d.fail("exception beyond the end")
			return
		}
		skips = append(skips, uint32(next+gap))
		next += gap + 1
		if next == uint64(len(w.Values)) && len(skips) < exceptions {
			d.fail("exception beyond the end")
			return
		}
	}
	d.mantissas(w, powers[e], skips, delta)
	raw := d.take(8 * exceptions)
	if d.reason != "" {
		return
	}
	for i, at := range skips {
		w.Values[at] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
}

// plain is the common case: no exceptions, no deltas.
func (d *decoder) plain(values []float64, power float64) {
	b := d.b
	for i := range values {
		if len(b) >= 8 {
			w := binary.LittleEndian.Uint64(b)
			if stop := ^w & continuation; stop != 0 {
				b = b[bits.TrailingZeros64(stop)/8+1:]
				values[i] = float64(unzigzag(unpack(w, stop))) / power
				continue
			}
		}
		u, n := uvarint(b)
		if n == 0 {
			d.fail("bad varint")
			return
		}
		b = b[n:]
		values[i] = float64(unzigzag(u)) / power
	}
	d.b = b
}

func (d *decoder) mantissas(w *Write, power float64, skips []uint32, delta bool) {
	var begin uint32
	for _, end := range w.Ends {
		var prev int64
		for i := begin; i < end; i++ {
			if len(skips) > 0 && skips[0] == i {
				skips = skips[1:]
				continue
			}
			m := prev + d.varint()
			if delta {
				prev = m
			}
			w.Values[i] = float64(m) / power
		}
		begin = end
	}
}

func (d *decoder) nibbles(values []float64) {
	nibbles := d.take((len(values) + 1) / 2)
	if nibbles == nil {
		return
	}
	if len(values)%2 == 1 && nibbles[len(nibbles)-1]>>4 != 0 {
		d.fail("nibble beyond the end")
		return
	}
	raws := 0
	for i := range values {
		e := nibbles[i/2] >> (4 * (i % 2)) & 15
		if e == rawNibble {
			raws++
			continue
		}
		if e > maxExponent {
			d.fail("unknown exponent")
			return
		}
		values[i] = float64(d.varint()) / powers[e]
	}
	raw := d.take(8 * raws)
	if d.reason != "" {
		return
	}
	for i := range values {
		if nibbles[i/2]>>(4*(i%2))&15 == rawNibble {
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw))
			raw = raw[8:]
		}
	}
}
