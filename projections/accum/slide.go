package accum

// This file is data path 6 of 6: an answer is read out of panes.

import (
	"math"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/util/kahansum"
)

// Slide evaluates one function over the windows of successive steps of one series that has samples and no columns. What an
// Evaluator finds out anew for every window, a Slide finds out once for the series: where the stale markers and the resets
// are, and which value is the least of those that are still in the window. Its results are the Evaluator's, bit for bit.
//
// The zero value is ready for Reset. It holds scratch space and serves one goroutine at a time.
type Slide struct {
	// Edge moves the bounds for samples back by so many ms, as that of a Cursor. Reset sets it to 0.
	Edge int64
	// Machine evaluates what gains nothing from a slide.
	Machine Evaluator

	f      Func
	t      []int64   // without stale markers, but for Instant and Timestamp
	v      []float64 // parallel to t
	lo, hi int       // the window

	events []int32  // Rate, Increase, Resets, Changes: how many resets or changes there are up to a sample
	where  []int32  // the samples at which they are
	covers coverage // Rate, Increase, Delta: of the window before, as most are spaced like the next

	queue []int32 // Min, Max: candidates in the window, each better than those behind it
	head  int     // of queue

	keptT []int64 // what t and v are copied to where there are stale markers
	keptV []float64
}

// Reset begins with the first window of w, which must not change while the Slide is used. It returns false, and is then not to
// be used, where w has columns.
func (s *Slide) Reset(f Func, w *Window) bool {
	if len(w.Cols) > 0 {
		return false
	}
	s.Edge, s.f, s.lo, s.hi, s.head = 0, f, 0, 0, 0
	s.t, s.v, s.queue = w.T, w.V, s.queue[:0]
	if f == Instant || f == Timestamp {
		return true // for these a marker says that the series has ended
	}
	s.dropMarkers(w)
	switch f {
	case Rate, Increase, Resets:
		s.count(isReset)
	case Changes:
		s.count(isChange)
	}
	return true
}

func (s *Slide) dropMarkers(w *Window) {
	i := 0
	for i < len(w.V) && !value.IsStaleNaN(w.V[i]) {
		i++
	}
	if i == len(w.V) {
		return
	}
	s.keptT, s.keptV = append(s.keptT[:0], w.T[:i]...), append(s.keptV[:0], w.V[:i]...)
	for ; i < len(w.V); i++ {
		if !value.IsStaleNaN(w.V[i]) {
			s.keptT, s.keptV = append(s.keptT, w.T[i]), append(s.keptV, w.V[i])
		}
	}
	s.t, s.v = s.keptT, s.keptV
}

// count fills events with how many pairs of neighbours up to each sample are what is says.
func (s *Slide) count(is func(prev, v float64) bool) {
	s.events, s.where = s.events[:0], s.where[:0]
	for i, v := range s.v {
		if i > 0 && is(s.v[i-1], v) {
			s.where = append(s.where, int32(i))
		}
		s.events = append(s.events, int32(len(s.where)))
	}
}

// Windows are the windows of successive steps, from number From to before number To. Window k is (End−Width, End] + k·Every, in ms, and
// the range of the function begins Before earlier than the window does; see rangeStart of Next.
type Windows struct {
	From, To   int64
	End, Every int64
	Width      int64
	Before     int64
}

// Results are what a function has over successive windows.
type Results struct {
	At []int64   // the windows that have a value, by increasing number
	V  []float64 // parallel to At
}

// Reset empties the results and keeps their space.
func (r *Results) Reset() { r.At, r.V = r.At[:0], r.V[:0] }

// Add appends the value of window k.
func (r *Results) Add(k int64, v float64) { r.At, r.V = append(r.At, k), append(r.V, v) }

// Steps appends to r what Next says of each of the windows. The first must not lie before one that Next was given.
func (s *Slide) Steps(w Windows, arg float64, r *Results) error {
	switch s.f {
	case Rate, Increase, Delta:
		s.slopes(w, r)
		return nil
	case Sum, Avg:
		s.sums(w, r)
		return nil
	case Instant:
		s.instants(w, r)
		return nil
	}
	for k := w.From; k < w.To; k++ {
		end := w.End + k*w.Every
		v, ok, err := s.Next(end-w.Width, end, end-w.Width-w.Before, arg)
		if err != nil {
			return err
		}
		if ok {
			r.Add(k, v)
		}
	}
	return nil
}

// instants is Steps for Instant.
func (s *Slide) instants(w Windows, r *Results) {
	t, hi := s.t, s.hi
	for k := w.From; k < w.To; k++ {
		end := w.End + k*w.Every
		for hi < len(t) && t[hi] <= end-s.Edge {
			hi++
		}
		if hi == 0 {
			continue
		}
		if at, v := t[hi-1], s.v[hi-1]; at > end-w.Width-min(s.Edge, w.Before) && !value.IsStaleNaN(v) {
			r.Add(k, v)
		}
	}
	s.hi = hi
}

// slopes is Steps for Rate, Increase and Delta.
func (s *Slide) slopes(w Windows, r *Results) {
	t, lo, hi := s.t, s.lo, s.hi
	for k := w.From; k < w.To; k++ {
		end := w.End + k*w.Every
		start := end - w.Width
		for hi < len(t) && t[hi] <= end-s.Edge {
			hi++
		}
		for lo < hi && t[lo] <= start-s.Edge {
			lo++
		}
		if hi-lo >= 2 {
			r.Add(k, s.slope(lo, hi, start-w.Before, end))
		}
	}
	s.lo, s.hi = lo, hi
}

// slope is Rate, Increase and Delta of the samples from lo to before hi, at least two.
func (s *Slide) slope(lo, hi int, rangeStart, rangeEnd int64) float64 {
	last := hi - 1
	growth := s.v[last] - s.v[lo]
	if s.f != Delta {
		for _, i := range s.where[s.events[lo]:s.events[last]] { // as addCorrections
			growth += s.v[i-1]
		}
	}
	first, end := s.t[lo], s.t[last]
	if at := (spacing{count: int64(hi - lo), sampled: end - first, before: first - rangeStart, after: rangeEnd - end}); at != s.covers.of {
		s.covers.set(at)
	}
	return s.covers.extrapolate(s.f, growth, s.v[lo])
}

// lanes is how many windows are summed up at one time: the additions of one follow one another, each waiting for the one before.
const lanes = 4

// lane is one window and its sum.
type lane struct {
	at     int64
	lo, hi int
	sum    compensated
}

// sums is Steps for Sum and Avg.
func (s *Slide) sums(w Windows, r *Results) {
	var ls [lanes]lane
	n := 0
	for k := w.From; k < w.To; k++ {
		end := w.End + k*w.Every
		s.move(end-w.Width-s.Edge, end-s.Edge)
		if s.lo == s.hi {
			continue
		}
		ls[n] = lane{at: k, lo: s.lo, hi: s.hi}
		if n++; n == lanes {
			s.sumTogether(&ls)
			s.addSums(ls[:], r)
			n = 0
		}
	}
	for i := range ls[:n] {
		ls[i].sum.add(s.v[ls[i].lo:ls[i].hi])
	}
	s.addSums(ls[:n], r)
}

func (s *Slide) sumTogether(ls *[lanes]lane) {
	n := ls[0].hi - ls[0].lo
	for i := range ls {
		n = min(n, ls[i].hi-ls[i].lo)
	}
	v0, v1, v2, v3 := s.v[ls[0].lo:][:n], s.v[ls[1].lo:][:n], s.v[ls[2].lo:][:n], s.v[ls[3].lo:][:n]
	var a, b, c, d compensated
	for i := range v0 {
		a.sum, a.comp = kahansum.Inc(v0[i], a.sum, a.comp)
		b.sum, b.comp = kahansum.Inc(v1[i], b.sum, b.comp)
		c.sum, c.comp = kahansum.Inc(v2[i], c.sum, c.comp)
		d.sum, d.comp = kahansum.Inc(v3[i], d.sum, d.comp)
	}
	ls[0].sum, ls[1].sum, ls[2].sum, ls[3].sum = a, b, c, d
	for i := range ls {
		ls[i].sum.add(s.v[ls[i].lo+n : ls[i].hi])
	}
}

// addSums makes results of the sums, as data.sum and data.avg do.
func (s *Slide) addSums(ls []lane, r *Results) {
	for i := range ls {
		l := &ls[i]
		switch n := float64(l.hi - l.lo); {
		case s.f == Sum:
			r.Add(l.at, l.sum.total())
		case isFinite(l.sum.sum):
			r.Add(l.at, l.sum.sum/n+l.sum.comp/n)
		default:
			d := data{t: s.t[l.lo:l.hi], v: s.v[l.lo:l.hi]}
			r.Add(l.at, d.avg(int64(l.hi-l.lo)))
		}
	}
}

// Next evaluates over the window (start, end], in ms. Neither bound may be less than the one of the call before. rangeStart is
// where the range begins for the function: the start, or for Instant and Timestamp any time at or behind it. arg, ok and the
// errors are those of Evaluator.Eval.
func (s *Slide) Next(start, end, rangeStart int64, arg float64) (v float64, ok bool, err error) {
	s.move(start-s.Edge, end-s.Edge)
	n := s.hi - s.lo
	if n == 0 {
		return 0, false, nil
	}
	first, last := s.lo, s.hi-1
	switch s.f {
	case Instant, Timestamp:
		if s.t[last] <= rangeStart || value.IsStaleNaN(s.v[last]) {
			return 0, false, nil
		}
		if s.f == Timestamp {
			return float64(s.t[last]) / 1000, true, nil
		}
		return s.v[last], true, nil
	case Count:
		return float64(n), true, nil
	case Present, Absent:
		return 1, true, nil
	case First:
		return s.v[first], true, nil
	case Last:
		return s.v[last], true, nil
	case Min, Max:
		if s.head == len(s.queue) {
			return math.NaN(), true, nil
		}
		return s.v[s.queue[s.head]], true, nil
	case Resets, Changes:
		return float64(s.events[last] - s.events[first]), true, nil
	case Rate, Increase, Delta:
		if n < 2 {
			return 0, false, nil
		}
		return s.slope(s.lo, s.hi, rangeStart, end), true, nil
	case Irate, Idelta:
		e := s.ends()
		v, ok := instantSlope(s.f, &e)
		return v, ok, nil
	}
	w := Window{T: s.t[s.lo:s.hi], V: s.v[s.lo:s.hi]}
	return s.Machine.Eval(s.f, &w, rangeStart, end, arg)
}

// move takes the window forward to the samples in (start, end].
func (s *Slide) move(start, end int64) {
	for s.hi < len(s.t) && s.t[s.hi] <= end {
		if s.f == Min || s.f == Max {
			s.enqueue(s.hi)
		}
		s.hi++
	}
	for s.lo < s.hi && s.t[s.lo] <= start {
		if s.head < len(s.queue) && int(s.queue[s.head]) == s.lo {
			s.head++
		}
		s.lo++
	}
}

// enqueue adds a sample behind the candidates and drops those that it is better than: while it is in the window they are never
// the answer. Of equal ones the first stays, as in time order.
func (s *Slide) enqueue(i int) {
	v := s.v[i]
	if math.IsNaN(v) {
		return // counts only where there is nothing else
	}
	for len(s.queue) > s.head {
		back := s.v[s.queue[len(s.queue)-1]]
		if s.f == Min && v < back || s.f == Max && v > back {
			s.queue = s.queue[:len(s.queue)-1]
			continue
		}
		break
	}
	s.queue = append(s.queue, int32(i))
}

func (s *Slide) ends() ends {
	e := ends{count: int64(s.hi - s.lo)}
	e.first, e.last = Sample{s.t[s.lo], s.v[s.lo]}, Sample{s.t[s.hi-1], s.v[s.hi-1]}
	if e.count > 1 {
		e.prev = Sample{s.t[s.hi-2], s.v[s.hi-2]}
	}
	return e
}
