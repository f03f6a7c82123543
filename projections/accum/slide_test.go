package accum

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A slide says what an Evaluator says of each window, bit for bit, for every function and over every kind of series, with stale
// markers, NaNs and infinities, windows that overlap, touch or leave gaps, and either edge; one by one or many at once.
func TestSlideEqualsEvaluator(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	var (
		s       Slide
		e       Evaluator
		windows int
	)
	for range 4000 {
		kind, n := r.IntN(numKinds), r.IntN(60)
		ts, vs := randomSeries(r, kind, n, 1+r.Int64N(20_000), []float64{0, 0.1, 0.6}[r.IntN(3)])
		w := Window{T: ts, V: vs}
		f := Func(1 + r.IntN(numFuncs-1))
		width, every := 1+r.Int64N(120_000), 1+r.Int64N(60_000)
		edge, lookback := r.Int64N(2), f == Instant || f == Timestamp
		if !s.Reset(f, &w) {
			t.Fatal("a window of samples was refused")
		}
		s.Edge = edge
		var c Cursor
		c.Reset(&w)
		c.Edge = edge
		run := Windows{End: r.Int64N(50_000) - 20_000, Every: every, Width: width}
		if lookback {
			run.Before = edge
		}
		var all Results // one by one
		for end := run.End; end < 600_000; end += every {
			start, begin := end-width, end-width-run.Before
			part := c.Cut(start, end)
			want, wantOK, wantErr := e.Eval(f, &part, begin, end, 0.9)
			got, ok, err := s.Next(start, end, begin, 0.9)
			if ok != wantOK || err != wantErr || ok && math.Float64bits(got) != math.Float64bits(want) && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Fatalf("%s over (%d, %d]: %v %v %v, want %v %v %v; series %v %v", f, start, end, got, ok, err, want, wantOK, wantErr, ts, vs)
			}
			windows++
			if ok {
				all.Add(run.To, got)
			}
			run.To++
		}
		if !s.Reset(f, &w) {
			t.Fatal("a window of samples was refused")
		}
		s.Edge = edge
		var many Results
		for n := run.To; run.From < n; run.From = run.To {
			run.To = min(n, run.From+1+r.Int64N(30))
			if err := s.Steps(run, 0.9, &many); err != nil {
				t.Fatal(err)
			}
		}
		same := slices.Equal(many.At, all.At)
		for i := range many.V {
			x, y := many.V[i], all.V[i]
			same = same && (math.Float64bits(x) == math.Float64bits(y) || math.IsNaN(x) && math.IsNaN(y))
		}
		if !same {
			t.Fatalf("%s over %d windows of %d: %v, one by one %v", f, run.To, width, many, all)
		}
	}
	if windows < 50_000 {
		t.Errorf("only %d windows", windows)
	}
}

// Columns are not slid over.
func TestSlideRefusesColumns(t *testing.T) {
	ts, vs := benchSeries(40)
	p := Fold(ts[:20], vs[:20])
	var w Window
	w.Append(&p, ts[19])
	if new(Slide).Reset(Rate, &w) {
		t.Error("a window of columns was taken")
	}
}

// Next does not allocate once its space has grown.
func TestSlideDoesNotAllocate(t *testing.T) {
	ts, vs := benchSeries(240)
	vs[100] = stale
	w := Window{T: ts, V: vs}
	for _, f := range []Func{Rate, Min, Avg, Quantile, Instant} {
		var s Slide
		run := func() {
			s.Reset(f, &w)
			for end := int64(15_000); end < ts[239]; end += 15_000 {
				if _, _, err := s.Next(end-300_000, end, end-300_000, 0.5); err != nil {
					t.Fatal(err)
				}
			}
		}
		run()
		if n := testing.AllocsPerRun(10, run); n > 0 {
			t.Errorf("%s: %g allocations", f, n)
		}
	}
}
