package accum

// This file is data path 6 of 6: an answer is read out of panes.

import (
	"math"

	"github.com/prometheus/prometheus/model/value"
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

	events []int32 // Rate, Increase, Resets, Changes: how many resets or changes there are up to a sample
	queue  []int32 // Min, Max: candidates in the window, each better than those behind it
	head   int     // of queue

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
	s.events = s.events[:0]
	n := int32(0)
	for i, v := range s.v {
		if i > 0 && is(s.v[i-1], v) {
			n++
		}
		s.events = append(s.events, n)
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
		e := s.ends()
		growth := e.last.V - e.first.V
		if s.f != Delta && s.events[last] != s.events[first] {
			d := data{v: s.v[s.lo:s.hi], t: s.t[s.lo:s.hi]}
			if growth, err = d.addCorrections(growth); err != nil {
				return 0, false, err
			}
		}
		return extrapolate(s.f, growth, &e, rangeStart, end), true, nil
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
