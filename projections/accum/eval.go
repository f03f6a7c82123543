package accum

// This file is data path 6 of 6: an answer is read out of panes.

import (
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
)

// ErrNeedsSamples says that a window holds columns where only samples can answer: any function with NeedsSamples;
// and sums and counters whose values are so large (above 2^900) that the order of additions decides an overflow.
var ErrNeedsSamples = errors.New("accum: the function needs samples where panes hold columns")

// Evaluator evaluates leaf functions. The zero value is ready. It holds scratch space, so that Eval does not allocate
// once the space has grown, and serves one goroutine at a time.
type Evaluator struct {
	// Offset is the time of evaluation minus the end of the range, in ms: what offset and @ make of it, 0 without them.
	// Only PredictLinear reads it.
	Offset int64
	// Sketched is set when Eval has read a Sketch, so that a value is exact only to SketchError. It is for the caller to reset.
	Sketched bool

	t        []int64    // samples without stale markers, where there are any
	v        []float64  // parallel to t
	values   []float64  // what quantiles are selected from
	weighted []weighted // the same with bins of sketches
	lib      library
}

// Eval evaluates f over the range (rangeStart, rangeEnd], in ms, of one series. w holds what the series has in that range
// and nothing else; it is not modified. arg is φ for Quantile and the seconds for PredictLinear, otherwise unused.
//
// ok is false where the series has no result; no value is then to be read. The error is ErrNeedsSamples, or another
// for a Func that does not exist.
func (e *Evaluator) Eval(f Func, w *Window, rangeStart, rangeEnd int64, arg float64) (v float64, ok bool, err error) {
	if f == Instant || f == Timestamp {
		s, ok := newest(w, rangeStart)
		if f == Timestamp {
			return float64(s.T) / 1000, ok, nil
		}
		return s.V, ok, nil
	}
	d := e.data(w)
	ends := d.ends()
	if ends.count == 0 {
		return 0, false, nil
	}
	switch f {
	case Count:
		return float64(ends.count), true, nil
	case Present, Absent:
		return 1, true, nil
	case First:
		return ends.first.V, true, nil
	case Last:
		return ends.last.V, true, nil
	case Min:
		return d.min(), true, nil
	case Max:
		return d.max(), true, nil
	case Sum:
		v, err := d.sum()
		return v, err == nil, err
	case Avg:
		return d.avg(ends.count), true, nil
	case Rate, Increase, Delta:
		return d.extrapolated(f, &ends, rangeStart, rangeEnd)
	case Irate, Idelta:
		v, ok := instantSlope(f, &ends)
		return v, ok, nil
	case Resets:
		return float64(d.resets()), true, nil
	case Changes:
		return float64(d.changes()), true, nil
	case Quantile:
		return e.quantile(arg, &d), true, nil
	case Mad, Deriv, Stddev, Stdvar, PredictLinear:
		return e.fromSamples(f, &d, rangeEnd, arg)
	default:
		return 0, false, fmt.Errorf("accum: no function %d", f)
	}
}

// fromSamples evaluates the functions that columns cannot answer.
func (e *Evaluator) fromSamples(f Func, d *data, rangeEnd int64, arg float64) (float64, bool, error) {
	if d.hasColumns() {
		return 0, false, ErrNeedsSamples
	}
	if f == Mad {
		return e.mad(d.v), true, nil
	}
	v, ok := e.lib.call(f, d.t, d.v, rangeEnd+e.Offset, arg)
	return v, ok, nil
}

// data is a window as range functions see it: without stale markers (A3).
type data struct {
	t    []int64
	v    []float64
	cols []ColumnPane
}

// data drops the stale markers. It copies the samples only if there is one.
func (e *Evaluator) data(w *Window) data {
	marker := -1
	for i, v := range w.V {
		if value.IsStaleNaN(v) {
			marker = i
			break
		}
	}
	if marker < 0 {
		return data{t: w.T, v: w.V, cols: w.Cols}
	}
	e.t = append(e.t[:0], w.T[:marker]...)
	e.v = append(e.v[:0], w.V[:marker]...)
	for i := marker + 1; i < len(w.V); i++ {
		if !value.IsStaleNaN(w.V[i]) {
			e.t = append(e.t, w.T[i])
			e.v = append(e.v, w.V[i])
		}
	}
	return data{t: e.t, v: e.v, cols: w.Cols}
}

func (d *data) hasColumns() bool {
	for i := range d.cols {
		if d.cols[i].Columns.Count > 0 {
			return true
		}
	}
	return false
}

// walk goes through the data in time order, in segments.
type walk struct {
	d      *data
	sample int // the next sample
	col    int // the next column pane
}

// segment is a run of samples, t and v, or one pane's columns.
type segment struct {
	t       []int64
	v       []float64
	columns *Columns
}

// next returns the next segment; neither its samples nor its columns are empty.
func (k *walk) next() (segment, bool) {
	d := k.d
	for k.col < len(d.cols) {
		from, end := k.sample, d.cols[k.col].End
		// A sample at the very end of a column pane's bucket would be in its columns, if the bucket owned it.
		for k.sample < len(d.t) && d.t[k.sample] < end {
			k.sample++
		}
		if k.sample > from {
			return segment{t: d.t[from:k.sample], v: d.v[from:k.sample]}, true
		}
		c := d.cols[k.col].Columns
		k.col++
		if c.Count > 0 {
			return segment{columns: c}, true
		}
	}
	if from := k.sample; from < len(d.t) {
		k.sample = len(d.t)
		return segment{t: d.t[from:], v: d.v[from:]}, true
	}
	return segment{}, false
}

// ends is what stands at the two ends of the data.
type ends struct {
	count             int64
	first, prev, last Sample // prev is the previous to last, if count ≥ 2
}

func (d *data) ends() ends {
	var e ends
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		first, prev, last, n := s.ends()
		if e.count == 0 {
			e.first = first
		}
		if n == 1 {
			prev = e.last
		}
		e.prev, e.last = prev, last
		e.count += n
	}
	return e
}

func (s *segment) ends() (first, prev, last Sample, n int64) {
	if s.columns != nil {
		return s.columns.First, s.columns.Prev, s.columns.Last, s.columns.Count
	}
	i := len(s.t) - 1
	first, last = Sample{s.t[0], s.v[0]}, Sample{s.t[i], s.v[i]}
	if i > 0 {
		prev = Sample{s.t[i-1], s.v[i-1]}
	}
	return first, prev, last, int64(i + 1)
}

// newest returns the newest sample after start. It is absent if a stale marker is newer, or nothing is that new.
func newest(w *Window, start int64) (Sample, bool) {
	col := len(w.Cols) - 1
	for col >= 0 && w.Cols[col].Columns.Count == 0 && !w.Cols[col].Columns.HasMarker {
		col--
	}
	if i := len(w.T) - 1; i >= 0 && (col < 0 || w.T[i] >= w.Cols[col].End) {
		return Sample{w.T[i], w.V[i]}, w.T[i] > start && !value.IsStaleNaN(w.V[i])
	}
	if col < 0 {
		return Sample{}, false
	}
	c := w.Cols[col].Columns
	ended := c.Count == 0 || c.HasMarker && c.Marker > c.Last.T
	return c.Last, !ended && c.Last.T > start
}

// library calls Prometheus' own functions, where their rounding is part of the answer.
type library struct {
	matrix promql.Matrix
	args   []promql.Vector
	helper promql.EvalNodeHelper
}

func (l *library) call(f Func, t []int64, v []float64, at int64, arg float64) (float64, bool) {
	if l.matrix == nil {
		l.matrix = make(promql.Matrix, 1)
		l.args = []promql.Vector{make(promql.Vector, 1)}
	}
	points := l.matrix[0].Floats[:0]
	for i := range t {
		points = append(points, promql.FPoint{T: t[i], F: v[i]})
	}
	l.matrix[0].Floats = points
	l.args[0][0].F = arg
	l.helper.Ts = at
	// The functions look at their parsed arguments only for anchored or smoothed ranges and for histograms.
	out, _ := promql.FunctionCalls[f.String()](l.args, l.matrix, nil, &l.helper)
	l.helper.Out = out[:0]
	if len(out) == 0 {
		return 0, false
	}
	return out[0].F, true
}
