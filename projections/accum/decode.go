package accum

// This file is data path 6 of 6: the bytes of a pane become a pane, or part of a window.

import (
	"encoding/binary"
	"fmt"
	"math"
)

// CorruptError says that bytes are not an encoded pane, and where.
type CorruptError struct {
	Offset int    // in the bytes given
	Reason string // what is wrong there
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("accum: corrupt pane at byte %d: %s", e.Offset, e.Reason)
}

// DecodePane decodes the pane at the start of src and returns the number of its bytes. end is what AppendEncode was
// given. The error is a *CorruptError. The pane does not share src.
func DecodePane(src []byte, end int64) (p Pane, n int, err error) {
	var w Window
	n, err = AppendDecoded(&w, src, end)
	if err != nil {
		return Pane{}, 0, err
	}
	p = Pane{T: w.T, V: w.V, HasHistogram: EncodedHasHistogram(src)}
	if len(w.Cols) > 0 {
		p.Columns = w.Cols[0].Columns
	}
	return p, n, nil
}

// EncodedHasHistogram says whether native histograms fell into the bucket of the encoded pane at the start of src.
func EncodedHasHistogram(src []byte) bool {
	return len(src) > 0 && src[0]&tagHistogram != 0
}

// EncodedSamples returns the number of samples of the encoded pane at the start of src, as its head says it; 0 for columns.
func EncodedSamples(src []byte) int {
	if len(src) == 0 {
		return 0
	}
	switch shape := src[0] & tagShapeMask; {
	case shape == shapeColumns, shape == shapeEmpty:
		return 0
	case shape == shapeDecimal || shape == shapeXOR:
		if len(src) < 2 {
			return 0
		}
		return min(int(src[1]&countMask), MaxSamples)
	default:
		return 1
	}
}

// AppendDecoded decodes the pane at the start of src, adds it behind what w holds, and returns the number of its bytes.
// end is what AppendEncode was given. Panes come in the order of their ends. After an error, which is a *CorruptError, w
// is as it was.
func AppendDecoded(w *Window, src []byte, end int64) (n int, err error) {
	samples, values := len(w.T), len(w.V)
	r := reader{src: src}
	r.pane(w, end)
	if r.err != nil {
		w.T, w.V = w.T[:samples], w.V[:values]
		return 0, r.err
	}
	return r.off, nil
}

// DecodeOne decodes a pane of one decimal sample, as most are where a pane is as wide as samples are apart, without a window to put it
// in. ok is false where it is another pane, or an unusual one, or none at all: AppendDecoded tells.
func DecodeOne(src []byte, end int64) (t int64, v float64, ok bool) {
	if len(src) < 3 {
		return 0, 0, false
	}
	scale := uint(src[0]) - (version<<versionShift | shapeOne)
	if scale > maxScale {
		return 0, 0, false
	}
	back, i := int64(src[1]), 2
	if back >= 0x80 {
		if src[2] >= 0x80 {
			return 0, 0, false
		}
		back, i = back&0x7f|int64(src[2])<<7, 3
	}
	u := uint64(0)
	for shift := 0; shift < 7*usualBytes && i < len(src); shift += 7 {
		b := src[i]
		i++
		u |= uint64(b&0x7f) << shift
		if b < 0x80 {
			m := int64(u>>1) ^ -int64(u&1)
			return end - back, float64(m) / powers[scale], true
		}
	}
	return 0, 0, false
}

// usualBytes is how long a mantissa may be for DecodeOne: as many bytes as are below maxMantissa whatever they hold.
const usualBytes = 7

// reader reads from src until the first error, after which it returns zeros.
type reader struct {
	src []byte
	off int
	err error // a *CorruptError
}

func (r *reader) fail(reason string) {
	if r.err == nil {
		r.err = &CorruptError{Offset: r.off, Reason: reason}
	}
}

func (r *reader) pane(w *Window, end int64) {
	tag := r.byte()
	if r.err == nil && tag>>versionShift != version {
		r.off = 0
		r.fail("unknown version")
	}
	if r.err != nil {
		return
	}
	switch shape := tag & tagShapeMask; {
	case shape == shapeColumns:
		c := r.columns(end)
		if r.err == nil {
			w.Cols = append(w.Cols, ColumnPane{End: end, Columns: c})
		}
	case shape == shapeEmpty:
	case shape < shapeOneRaw:
		w.T = append(w.T, r.time(end))
		w.V = append(w.V, float64(r.mantissa(0))/pow10(int(shape-shapeOne)))
	case shape == shapeOneRaw:
		w.T = append(w.T, r.time(end))
		w.V = append(w.V, r.raw())
	case shape == shapeDecimal:
		head := r.byte()
		scale := int(head >> scaleShift)
		if scale > maxScale {
			r.fail("unknown scale")
			return
		}
		n := r.count(head & countMask)
		w.T = r.times(w.T, n, end)
		w.V = r.decimals(w.V, n, scale)
	case shape == shapeXOR:
		n := r.count(r.byte())
		w.T = r.times(w.T, n, end)
		w.V = r.xors(w.V, n)
	default:
		r.fail("unknown shape")
	}
}

// count checks the number of samples of a pane that holds several.
func (r *reader) count(b byte) int {
	if r.err == nil && (b < 2 || b > MaxSamples) {
		r.fail("count of samples out of range")
	}
	if r.err != nil {
		return 0
	}
	return int(b)
}

func (r *reader) columns(end int64) *Columns {
	flags := r.byte()
	if flags&^knownFlags != 0 {
		r.fail("unknown flag")
	}
	c := &Columns{}
	if flags&flagMarker != 0 {
		c.HasMarker, c.Marker = true, r.time(end)
	}
	c.Count = r.counter(0, math.MaxInt64)
	if r.err != nil || c.Count == 0 {
		if flags&^flagMarker != 0 {
			r.fail("columns of no sample")
		}
		return c
	}
	r.columnTimes(c, end)
	c.First.V = r.scalar()
	if c.Count >= firstFromCount {
		c.Prev.V = r.scalar()
	}
	if c.Count >= prevFromCount {
		c.Last.V = r.scalar()
	} else {
		c.Last = c.First
	}
	if c.Count == prevFromCount {
		c.Prev = c.First
	}
	c.Min, c.Max, c.Sum = r.scalar(), r.scalar(), r.scalar()
	if flags&flagComp != 0 {
		c.Comp = r.scalar()
	}
	if flags&flagResets != 0 {
		c.Resets, c.Correction = r.counter(1, c.Count-1), r.scalar()
	}
	if flags&flagChanges != 0 {
		c.Changes = r.counter(1, c.Count-1)
	}
	if flags&flagWide != 0 {
		c.Wide = &Wide{Sum: r.scalar(), Comp: r.scalar(), Low: r.scalar(), High: r.scalar()}
	}
	if c.Count <= MaxValues {
		c.Values = r.values(int(c.Count))
	} else {
		c.Sketch = r.sketch(c.Count)
	}
	return c
}

// columnTimes reads the times of the last, the previous to last and the first sample.
func (r *reader) columnTimes(c *Columns, end int64) {
	c.Last.T = r.time(end)
	c.First.T = c.Last.T
	if c.Count >= prevFromCount {
		c.Prev.T = r.time(c.Last.T)
		c.First.T = c.Prev.T
		r.increasing(c.Prev.T, c.Last.T)
	}
	if c.Count >= firstFromCount {
		c.First.T = r.time(c.Prev.T)
		r.increasing(c.First.T, c.Prev.T)
	}
}

func (r *reader) increasing(t, next int64) {
	if next <= t {
		r.fail("times do not increase")
	}
}

// values reads the sorted values of columns. Each takes at least one byte, so n bounds what is allocated once the rest
// of src is long enough.
func (r *reader) values(n int) []float64 {
	scale := int(r.byte())
	if r.err == nil && len(r.src)-r.off < n {
		r.fail("cut short")
	}
	if r.err != nil {
		return nil
	}
	vs := make([]float64, 0, n)
	switch {
	case scale <= maxScale:
		vs = r.decimals(vs, n, scale)
	case scale == rawScale:
		vs = r.xors(vs, n)
	default:
		r.fail("unknown scale")
	}
	for i := 1; i < len(vs); i++ {
		if compareValues(vs[i-1], vs[i]) > 0 {
			r.fail("values are not sorted")
		}
	}
	return vs
}

func (r *reader) byte() byte {
	if r.err == nil && r.off >= len(r.src) {
		r.fail("cut short")
	}
	if r.err != nil {
		return 0
	}
	b := r.src[r.off]
	r.off++
	return b
}

func (r *reader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	u, n := binary.Uvarint(r.src[r.off:])
	if n <= 0 {
		r.fail("no number")
		return 0
	}
	r.off += n
	return u
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// counter reads a count from least to most, which is not negative.
func (r *reader) counter(least, most int64) int64 {
	u := r.uvarint()
	if r.err == nil && (u < uint64(least) || u > uint64(most)) {
		r.fail("count out of range")
	}
	if r.err != nil {
		return 0
	}
	return int64(u)
}

func (r *reader) time(end int64) int64 { return int64(uint64(end) - r.uvarint()) }

// times appends n times, at least two, to dst.
func (r *reader) times(dst []int64, n int, end int64) []int64 {
	if n == 0 {
		return dst
	}
	t := r.time(end)
	dst = append(dst, t)
	delta := uint64(0)
	for i := 1; i < n && r.err == nil; i++ {
		if i == 1 {
			delta = r.uvarint()
		} else {
			delta += uint64(r.varint())
		}
		next := int64(uint64(t) + delta)
		r.increasing(t, next)
		dst = append(dst, next)
		t = next
	}
	return dst
}

// mantissa reads the next mantissa behind prev.
func (r *reader) mantissa(prev int64) int64 {
	d := r.varint()
	m := prev + d
	if d < -2*maxMantissa || d > 2*maxMantissa || m < -maxMantissa || m > maxMantissa {
		r.fail("decimal out of range")
		return 0
	}
	return m
}

func (r *reader) decimals(dst []float64, n, scale int) []float64 {
	power := pow10(scale)
	m := int64(0)
	for i := 0; i < n && r.err == nil; i++ {
		m = r.mantissa(m)
		dst = append(dst, float64(m)/power)
	}
	return dst
}

func (r *reader) xors(dst []float64, n int) []float64 {
	prev := uint64(0)
	for i := 0; i < n && r.err == nil; i++ {
		head := r.byte()
		if head == sameBits {
			dst = append(dst, math.Float64frombits(prev))
			continue
		}
		lead, trail := int(head>>4), int(head&0xf)
		if lead+trail > 7 {
			r.fail("impossible difference of bits")
			return dst
		}
		x := uint64(0)
		for range 8 - lead - trail {
			x = x<<8 | uint64(r.byte())
		}
		prev ^= x << (8 * trail)
		dst = append(dst, math.Float64frombits(prev))
	}
	return dst
}

func (r *reader) raw() float64 {
	if r.err == nil && len(r.src)-r.off < 8 {
		r.fail("cut short")
	}
	if r.err != nil {
		return 0
	}
	v := math.Float64frombits(binary.LittleEndian.Uint64(r.src[r.off:]))
	r.off += 8
	return v
}

func (r *reader) scalar() float64 {
	switch scale := int(r.byte()); {
	case scale <= maxScale:
		return float64(r.mantissa(0)) / pow10(scale)
	case scale == rawScale:
		return r.raw()
	default:
		r.fail("unknown scale")
		return 0
	}
}
