package accum

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestA2_EqualsPrometheus holds every function against Prometheus' engine: over the samples as they are, over random cuts
// into panes that went through bytes, and over cuts of which one pane straddles the range (instant selectors only).
func TestA2_EqualsPrometheus(t *testing.T) {
	seeds := uint64(108)
	if testing.Short() {
		seeds = 18
	}
	o := newOracle(t)
	var tally tally
	var eval Evaluator
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		kind := int(seed % numKinds)
		odd := [...]float64{0, 0.02, 0.3}[r.IntN(3)]
		interval := int64(1000)
		ts, vs := randomSeries(r, kind, 100+r.IntN(900), interval, odd)
		rng := interval * (1 + r.Int64N([...]int64{4, 40, 600}[r.IntN(3)]))
		step := ts[len(ts)-1]/25 + r.Int64N(interval)
		for _, q := range allQueries() {
			if q.f == Instant || q.f == Timestamp {
				rng = testLookback.Milliseconds()
			}
			start, stop := ts[0]-1, ts[len(ts)-1]+rng+q.offset
			want, _ := o.run(t, q.expr(rng), ts, vs, start, stop, step)
			for at := start; at <= stop; at += step {
				tally.compare(t, r, &eval, seed, q, ts, vs, at, rng, want)
			}
		}
	}
	t.Logf("%+v", tally)
	if tally.mixed < 1000 || tally.columnsOnly < 1000 || tally.flat < 1000 || tally.needsSamples == 0 || tally.sketched == 0 {
		t.Errorf("the series did not exercise every shape of window: %+v", tally)
	}
}

// tally counts what was compared.
type tally struct {
	flat, mixed, columnsOnly             int
	needsSamples, sketched, overflowMiss int
}

func (y *tally) compare(t *testing.T, r *rand.Rand, eval *Evaluator, seed uint64, q query, ts []int64, vs []float64, at, rng int64, want map[int64]float64) {
	t.Helper()
	end := at - q.offset
	start := end - rng
	whole := Window{T: ts, V: vs}
	flat := whole.Cut(start, end)
	eval.Offset = q.offset
	wantV, wantOK := want[at]
	got, ok, err := eval.Eval(q.f, &flat, start, end, q.arg)
	if err == nil {
		err = check(q, flat.T, flat.V, start, end, got, ok, wantV, wantOK, true)
	}
	if err != nil {
		t.Fatalf("seed %d: %s at %d over samples: %v", seed, q.expr(rng), at, err)
	}
	y.flat++

	from := start
	if q.f == Instant || q.f == Timestamp {
		from -= r.Int64N(rng)
	}
	panes := cutIntoPanes(t, r, ts, vs, from, end)
	panes = panes.Cut(start, end)
	eval.Sketched = false
	got, ok, err = eval.Eval(q.f, &panes, start, end, q.arg)
	switch {
	case errors.Is(err, ErrNeedsSamples) && q.f.NeedsSamples() && len(panes.Cols) > 0:
		y.needsSamples++
		return
	case eval.Sketched != (q.f == Quantile && q.arg >= 0 && q.arg <= 1 && largest(&panes) > MaxValues):
		err = fmt.Errorf("read from sketches: %v, with panes of up to %d values", eval.Sketched, largest(&panes))
	case eval.Sketched:
		y.sketched++
		err = checkSketched(flat.V, q.arg, got, ok)
	case errors.Is(err, ErrNeedsSamples) && mayMissByOverflow(q.f, seed) && anyWide(&panes):
		y.overflowMiss++
		return
	case err == nil:
		err = check(q, flat.T, flat.V, start, end, got, ok, wantV, wantOK, len(panes.Cols) == 0)
	}
	if err != nil {
		t.Fatalf("seed %d: %s at %d over %d samples and %d column panes: %v", seed, q.expr(rng), at, len(panes.T), len(panes.Cols), err)
	}
	switch {
	case len(panes.Cols) > 0 && len(panes.T) > 0:
		y.mixed++
	case len(panes.Cols) > 0:
		y.columnsOnly++
	}
}

// mayMissByOverflow: only sums and counters may, and sums only where huge values of both signs come together.
func mayMissByOverflow(f Func, seed uint64) bool {
	switch f {
	case Sum:
		return seed%numKinds == kindHuge
	case Rate, Increase:
		return true
	default:
		return false
	}
}

func largest(w *Window) (n int64) {
	for _, c := range w.Cols {
		n = max(n, c.Columns.Count)
	}
	return n
}

func anyWide(w *Window) bool {
	for _, c := range w.Cols {
		if c.Columns.Wide != nil {
			return true
		}
	}
	return false
}

// TestA2_SlidingOverOneGrid reads all steps of range queries from one window of panes, with a cursor.
func TestA2_SlidingOverOneGrid(t *testing.T) {
	o := newOracle(t)
	var eval Evaluator
	compared := 0
	for seed := range uint64(18) {
		r := rand.New(rand.NewPCG(seed, 2))
		ts, vs := randomSeries(r, int(seed%numKinds), 1500, 1000, 0.01)
		width := int64(1000) * [...]int64{1, 7, 15, 30, 60}[r.IntN(5)]
		rng := width * (1 + r.Int64N(10))
		last := ts[len(ts)-1]/width*width + width

		whole := Window{T: ts, V: vs}
		var w Window
		var panes Cursor
		panes.Reset(&whole)
		for end := width; end <= last; end += width {
			part := panes.Cut(end-width, end)
			p := Fold(part.T, part.V)
			w.Append(&p, end)
		}
		for i := 1; i < numFuncs; i++ {
			q := query{f: Func(i), arg: 0.9}
			if q.f == Absent || q.f.NeedsSamples() || q.f == Timestamp || q.f == Instant {
				continue
			}
			want, _ := o.run(t, q.expr(rng), ts, vs, 0, last+rng, width)
			var steps Cursor
			steps.Reset(&w)
			for at := int64(0); at <= last+rng; at += width {
				part, flat := steps.Cut(at-rng, at), whole.Cut(at-rng, at)
				got, ok, err := eval.Eval(q.f, &part, at-rng, at, q.arg)
				if errors.Is(err, ErrNeedsSamples) && mayMissByOverflow(q.f, seed) && anyWide(&part) {
					continue
				}
				wantV, wantOK := want[at]
				if err == nil {
					err = check(q, flat.T, flat.V, at-rng, at, got, ok, wantV, wantOK, len(part.Cols) == 0)
				}
				if err != nil {
					t.Fatalf("seed %d: %s at %d: %v", seed, q.expr(rng), at, err)
				}
				compared++
			}
		}
	}
	if compared < 10_000 {
		t.Errorf("only %d windows compared", compared)
	}
}

// TestAbsentIsPresentOfOneSeries: the engine says absent exactly where the series' share is absent.
func TestAbsentIsPresentOfOneSeries(t *testing.T) {
	o := newOracle(t)
	r := rand.New(rand.NewPCG(3, 3))
	ts, vs := randomSeries(r, kindInteger, 200, 1000, 0.9)
	const rng, step = 3000, 500
	stop := ts[len(ts)-1] + 2*rng
	want, _ := o.run(t, "absent_over_time(m[3s])", ts, vs, 0, stop, step)
	var eval Evaluator
	whole := Window{T: ts, V: vs}
	absent := 0
	for at := int64(0); at <= stop; at += step {
		w := whole.Cut(at-rng, at)
		v, ok, err := eval.Eval(Absent, &w, at-rng, at, 0)
		if _, isAbsent := want[at]; err != nil || ok == isAbsent || ok && v != 1 {
			t.Fatalf("at %d: %v, %v, %v, engine says absent: %v", at, v, ok, err, isAbsent)
		} else if isAbsent {
			absent++
		}
	}
	if absent == 0 {
		t.Error("never absent")
	}
}

// TestAnnotationsDependOnResults pins what ExpectsCounter and ExpectsQuantile tell the caller.
func TestAnnotationsDependOnResults(t *testing.T) {
	o := newOracle(t)
	one, two := []int64{1000}, []int64{1000, 2000}
	for i := 1; i < numFuncs; i++ {
		q := query{f: Func(i), arg: 0.5}
		_, annos := o.run(t, q.expr(10_000), two, []float64{1, 2}, 5000, 5000, 1000)
		if got := len(annos) > 0; got != q.f.ExpectsCounter() {
			t.Errorf("%s: annotations %v, ExpectsCounter %v", q.f, annos, q.f.ExpectsCounter())
		}
		_, annos = o.run(t, q.expr(10_000), one, []float64{1}, 5000, 5000, 1000)
		if len(annos) > 0 {
			t.Errorf("%s without a result: annotations %v", q.f, annos)
		}
		q.arg = 2
		_, annos = o.run(t, q.expr(10_000), one, []float64{1}, 5000, 5000, 1000)
		if got := len(annos) > 0; got != q.f.ExpectsQuantile() {
			t.Errorf("%s of 2: annotations %v, ExpectsQuantile %v", q.f, annos, q.f.ExpectsQuantile())
		}
		_, annos = o.run(t, q.expr(10_000), one, []float64{stale}, 5000, 5000, 1000)
		if len(annos) > 0 {
			t.Errorf("%s over a marker alone: annotations %v", q.f, annos)
		}
	}
}
