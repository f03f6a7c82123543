package pane

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// sealAt is the number of samples in closed buckets from which they are sealed.
const sealAt = 4

// sealed is a sequence of samples in little memory, increasing in time: it grows at its end and shrinks at its beginning, and is
// otherwise opened as a whole. Late samples and corrections are rare, and nothing else looks at what is closed.
//
// Each sample is the change of its distance in time to the one before it, zigzag, and its value's bits, exclusive-or those of the one
// before it, read from the other end; both are uvarints. A series that is scraped regularly, with values of few digits, takes three to five
// bytes a sample.
type sealed struct {
	b          []byte // what was dropped is before off, and makes room for what comes
	off        int
	n          int
	first      int64   // the time of the first sample; valid while n > 0
	head, tail sample2 // the sample before the first, and the last
}

// bytes returns those of the samples.
func (s *sealed) bytes() []byte { return s.b[s.off:] }

// sample2 is a sample with its distance in time to the one before it.
type sample2 struct {
	t, d int64
	v    uint64 // bits of the value
}

func (s *sealed) push(t int64, v float64) {
	if s.n == 0 {
		s.head = sample2{t: t}
		s.tail = s.head
		s.b, s.off, s.first = s.b[:0], 0, t
	}
	x := sample2{t: t, d: t - s.tail.t, v: math.Float64bits(v)}
	s.b = binary.AppendVarint(s.b, x.d-s.tail.d)
	s.b = binary.AppendUvarint(s.b, bits.Reverse64(x.v^s.tail.v))
	s.tail = x
	s.n++
}

// next reads the sample behind one, and returns the bytes that it takes; 0 if there is none.
func (x sample2) next(b []byte) (sample2, int) {
	var d int64
	n := 1
	if len(b) > 0 && b[0] < 0x80 { // as nearly always
		d = int64(b[0]>>1) ^ -int64(b[0]&1)
	} else if d, n = binary.Varint(b); n <= 0 {
		return x, 0
	}
	v, k := binary.Uvarint(b[n:])
	if k <= 0 {
		return x, 0
	}
	x.d += d
	x.t += x.d
	x.v ^= bits.Reverse64(v)
	return x, n + k
}

// dropThrough drops the samples at or before t.
func (s *sealed) dropThrough(t int64) {
	if s.n == 0 || s.first > t {
		return
	}
	if s.tail.t <= t {
		*s = sealed{}
		return
	}
	for {
		x, k := s.head.next(s.bytes())
		if x.t > t {
			s.first = x.t
			return
		}
		s.head, s.off = x, s.off+k
		s.n--
	}
}

// appendTo appends the samples.
func (s *sealed) appendTo(ts []int64, vs []float64) ([]int64, []float64) {
	ts, vs = slices.Grow(ts, s.n), slices.Grow(vs, s.n)
	x, b := s.head, s.bytes()
	for range s.n {
		var k int
		x, k = x.next(b)
		b = b[k:]
		ts, vs = append(ts, x.t), append(vs, math.Float64frombits(x.v))
	}
	return ts, vs
}

// seal moves the samples at or before t into little memory, if they are enough to be worth it.
func (r *run) seal(t int64) {
	n := len(r.t)
	if n < sealAt || r.t[sealAt-1] > t {
		return
	}
	k := sealAt
	for k < n && r.t[k] <= t {
		k++
	}
	r.old.room(k)
	for i := range k {
		r.old.push(r.t[i], r.v[i])
	}
	if r.shared || cap(r.t) > 4*(n-k+sealAt) {
		// Room for what comes until the next time: as many again that are open, and those that are sealed then.
		room := n - k + sealAt + 2
		r.t, r.v, r.shared = append(make([]int64, 0, room), r.t[k:]...), append(make([]float64, 0, room), r.v[k:]...), false
		return
	}
	r.t, r.v = append(r.t[:0], r.t[k:]...), append(r.v[:0], r.v[k:]...)
}

// room makes room for n more samples, in the place of dropped ones if it can, and hardly more: half of the series' memory would else be
// room.
func (s *sealed) room(n int) {
	kept, each := s.bytes(), 5
	if s.n > 0 {
		each = len(kept)/s.n + 1
	}
	switch {
	case cap(s.b)-len(s.b) >= each*n:
		return
	case cap(s.b)-len(kept) >= each*n:
		s.b = s.b[:copy(s.b, kept)]
	default:
		s.b = append(make([]byte, 0, len(kept)+each*(n+sealAt)), kept...)
	}
	s.off = 0
}

// open undoes seal.
func (r *run) open() {
	if r.old.n == 0 {
		return
	}
	ts, vs := r.old.appendTo(make([]int64, 0, r.old.n+len(r.t)), make([]float64, 0, r.old.n+len(r.t)))
	r.t, r.v = append(ts, r.t...), append(vs, r.v...)
	r.old = sealed{}
}

// encode appends the samples: sealed ones count:u, and if there are any the sample before the first as t:v, d:v, v:8, the length of their
// bytes:u, and these; then those that are not sealed.
func (e *encoder) run(r *run) {
	e.u(uint64(r.old.n))
	if r.old.n > 0 {
		e.v(r.old.head.t)
		e.v(r.old.head.d)
		e.b = binary.LittleEndian.AppendUint64(e.b, r.old.head.v)
		e.u(uint64(len(r.old.bytes())))
		e.b = append(e.b, r.old.bytes()...)
	}
	e.increasing(r.t)
	for _, v := range r.v {
		e.b = binary.LittleEndian.AppendUint64(e.b, math.Float64bits(v))
	}
}

func (d *decoder) run() (r run) {
	if n := d.count(2); n > 0 {
		r.old.n = n
		r.old.head = sample2{t: d.v(), d: d.v()}
		if v := d.take(8); d.err == nil {
			r.old.head.v = binary.LittleEndian.Uint64(v)
		}
		r.old.b = slices.Clone(d.take(d.count(1)))
		x, b := r.old.head, r.old.b
		for i := range n {
			y, k := x.next(b)
			if k == 0 || i > 0 && y.t <= x.t {
				d.fail("sealed samples out of order")
				return run{}
			}
			if i == 0 {
				r.old.first = y.t
			}
			x, b = y, b[k:]
		}
		if r.old.tail = x; len(b) > 0 {
			d.fail("bytes behind the sealed samples")
			return run{}
		}
	}
	n := d.count(9)
	r.t = d.increasing(n)
	if v := d.take(8 * n); d.err == nil && n > 0 {
		if r.old.n > 0 && r.t[0] <= r.old.tail.t {
			d.fail("samples before sealed ones")
			return run{}
		}
		r.v = make([]float64, n)
		for i := range r.v {
			r.v[i] = math.Float64frombits(binary.LittleEndian.Uint64(v[8*i:]))
		}
	}
	return r
}
