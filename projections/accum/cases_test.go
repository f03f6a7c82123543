package accum

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// shapes are ways to hold the same samples: as they are, in panes cut at the given ends, and in column panes even where
// the samples are few.
func shapes(t *testing.T, ts []int64, vs []float64, start int64, ends ...int64) map[string]Window {
	t.Helper()
	flat := Window{T: ts, V: vs}
	out := map[string]Window{"samples": flat}
	var panes, columns, alternating Window
	from := start
	for i, end := range ends {
		part := flat.Cut(from, end)
		p := Fold(part.T, part.V)
		b := p.AppendEncode(nil, end)
		if _, err := AppendDecoded(&panes, b, end); err != nil {
			t.Fatal(err)
		}
		small := Pane{Columns: foldColumns(part.T, part.V)}
		b = small.AppendEncode(nil, end)
		if _, err := AppendDecoded(&columns, b, end); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			alternating.Append(&small, end)
		} else {
			alternating.Append(&p, end)
		}
		from = end
	}
	out["panes"], out["columns"], out["alternating"] = panes, columns, alternating
	return out
}

type expectation struct {
	f          Func
	arg        float64
	start, end int64
	want       float64
	absent     bool
}

func expect(t *testing.T, windows map[string]Window, es ...expectation) {
	t.Helper()
	var eval Evaluator
	for name, w := range windows {
		for _, x := range es {
			part := w.Cut(x.start, x.end)
			got, ok, err := eval.Eval(x.f, &part, x.start, x.end, x.arg)
			switch {
			case err != nil:
				t.Errorf("%s: %s(%d,%d]: %v", name, x.f, x.start, x.end, err)
			case ok == x.absent:
				t.Errorf("%s: %s(%d,%d] = %v, present: %v", name, x.f, x.start, x.end, got, ok)
			case ok && !same(got, x.want):
				t.Errorf("%s: %s(%d,%d] = %v, want %v", name, x.f, x.start, x.end, got, x.want)
			}
		}
	}
}

func same(a, b float64) bool {
	if !isFinite(a) || !isFinite(b) {
		return a == b || math.IsNaN(a) && math.IsNaN(b)
	}
	return math.Abs(a-b) <= 1e-12*max(math.Abs(a), math.Abs(b))
}

// A stale marker is not a value, and it ends the series for instant selectors until the next sample.
func TestCase_A15_StaleMarkerIsNotAValue(t *testing.T) {
	ts, vs := []int64{15_000, 30_000, 45_000}, []float64{1, stale, 3}
	expect(t, shapes(t, ts, vs, 0, 60_000),
		expectation{f: Sum, end: 60_000, want: 4},
		expectation{f: Count, end: 60_000, want: 2},
		expectation{f: Avg, end: 60_000, want: 2},
		expectation{f: Min, end: 60_000, want: 1},
		expectation{f: Max, end: 60_000, want: 3},
		expectation{f: Increase, end: 60_000, want: 4},
		expectation{f: Changes, end: 60_000, want: 1},
		expectation{f: Quantile, arg: 0.5, end: 60_000, want: 2},
	)
	cuts := []int64{15_000, 20_000, 30_000, 44_999, 45_000, 60_000}
	windows := shapes(t, ts, vs, 0, cuts...)
	for _, c := range []struct {
		at      int64
		v, time float64
	}{{15_000, 1, 15}, {20_000, 1, 15}, {45_000, 3, 45}, {60_000, 3, 45}} {
		expect(t, windows,
			expectation{f: Instant, start: c.at - 300_000, end: c.at, want: c.v},
			expectation{f: Timestamp, start: c.at - 300_000, end: c.at, want: c.time},
		)
	}
	for _, at := range []int64{30_000, 44_999} {
		expect(t, windows,
			expectation{f: Instant, start: at - 300_000, end: at, absent: true},
			expectation{f: Timestamp, start: at - 300_000, end: at, absent: true},
			expectation{f: Last, start: at - 300_000, end: at, want: 1},
		)
	}
}

func TestCase_A17_NaNSamples(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		ts                       []int64
		vs                       []float64
		sum, min, max, median, n float64
	}{
		{[]int64{15_000, 30_000, 45_000}, []float64{1, nan, 3}, nan, 1, 3, 1, 3},
		{[]int64{15_000, 30_000, 45_000}, []float64{nan, 2, 3}, nan, 2, 3, 2, 3},
		{[]int64{15_000, 30_000}, []float64{nan, nan}, nan, nan, nan, nan, 2},
	} {
		for _, ends := range [][]int64{{60_000}, {20_000, 60_000}, {20_000, 40_000, 60_000}} {
			expect(t, shapes(t, c.ts, c.vs, 0, ends...),
				expectation{f: Sum, end: 60_000, want: c.sum},
				expectation{f: Avg, end: 60_000, want: c.sum},
				expectation{f: Count, end: 60_000, want: c.n},
				expectation{f: Min, end: 60_000, want: c.min},
				expectation{f: Max, end: 60_000, want: c.max},
				expectation{f: Quantile, arg: 0.5, end: 60_000, want: c.median},
			)
		}
	}
}

// Ranges are open at their start and closed at their end.
func TestCase_C13_SampleOnTheEdge(t *testing.T) {
	ts := []int64{0, 15_000, 30_000, 45_000, 60_000}
	vs := []float64{1, 1, 1, 1, 1}
	expect(t, shapes(t, ts, vs, -60_000, 0, 60_000),
		expectation{f: Count, start: 0, end: 60_000, want: 4},
		expectation{f: Count, start: -60_000, end: 0, want: 1},
	)
	ts = []int64{0, 60_000, 120_000, 180_000, 240_000, 300_000}
	expect(t, shapes(t, ts, []float64{1, 1, 1, 1, 1, 1}, -60_000, 0, 60_000, 120_000, 180_000, 240_000, 300_000),
		expectation{f: Sum, start: 0, end: 300_000, want: 5})
}

func TestCase_C21_CounterResetInWindow(t *testing.T) {
	ts, vs := []int64{15_000, 30_000, 45_000, 60_000}, []float64{10, 100, 5, 30}
	for _, ends := range [][]int64{{60_000}, {30_000, 60_000}, {15_000, 30_000, 45_000, 60_000}, {30_000, 45_000, 60_000}} {
		expect(t, shapes(t, ts, vs, 0, ends...),
			expectation{f: Increase, end: 60_000, want: 130},
			expectation{f: Rate, end: 60_000, want: 2.1666666666666665},
			expectation{f: Resets, end: 60_000, want: 1},
			expectation{f: Irate, end: 60_000, want: 25.0 / 15},
		)
	}
}

func TestCase_C23_IncreaseBetweenPanes(t *testing.T) {
	ts, vs := []int64{10_000, 50_000, 70_000, 110_000}, []float64{100, 160, 200, 260}
	expect(t, shapes(t, ts, vs, 0, 60_000, 120_000),
		expectation{f: Increase, start: 0, end: 120_000, want: 192},
		expectation{f: Increase, start: 0, end: 60_000, want: 90},
		expectation{f: Increase, start: 60_000, end: 120_000, want: 90},
	)
}

// Whoever closes a bucket sorts it; folding what came unsorted would take the last to arrive for the newest.
func TestCase_C27_UnsortedSamples(t *testing.T) {
	ts, vs := []int64{10_000, 20_000, 30_000}, []float64{10, 20, 30}
	expect(t, shapes(t, ts, vs, 5_000, 35_000),
		expectation{f: Last, start: 5_000, end: 35_000, want: 30},
		expectation{f: First, start: 5_000, end: 35_000, want: 10},
		expectation{f: Delta, start: 5_000, end: 35_000, want: 30},
		expectation{f: Resets, start: 5_000, end: 35_000, want: 0},
		expectation{f: Sum, start: 5_000, end: 35_000, want: 60},
	)
	for _, unsorted := range [][]int64{{30_000, 10_000, 20_000}, {10_000, 10_000}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("A1: Fold took %v", unsorted)
				}
			}()
			Fold(unsorted, vs[:len(unsorted)])
		}()
	}
}

func TestCase_C37_CompensatedSums(t *testing.T) {
	tenths := slices.Repeat([]float64{0.1}, 10)
	for _, c := range []struct {
		vs   []float64
		want float64
	}{
		{[]float64{1e100, 1, -1e100}, 1},
		{tenths, 1},
		{[]float64{1e16, 1, 1}, 10000000000000002},
	} {
		ts := make([]int64, len(c.vs))
		for i := range ts {
			ts[i] = int64(i+1) * 1000
		}
		end := ts[len(ts)-1]
		for _, ends := range [][]int64{{end}, {1000, end}, {2000, end}, slices.Clone(ts)} {
			for name, w := range shapes(t, ts, c.vs, 0, ends...) {
				var eval Evaluator
				if got, ok, err := eval.Eval(Sum, &w, 0, end, 0); !ok || err != nil || got != c.want {
					t.Errorf("%s cut at %v: %v, %v, %v, want exactly %v", name, ends, got, ok, err, c.want)
				}
			}
		}
	}
	// The same samples give the same bytes and the same answer, however often they are folded (A4, A6).
	r := rand.New(rand.NewPCG(37, 0))
	ts, vs := randomSeries(r, kindFloat, 500, 1000, 0.05)
	first, want := Fold(ts, vs), math.NaN()
	encoded := first.AppendEncode(nil, ts[499])
	for i := range 100 {
		p := Fold(slices.Clone(ts), slices.Clone(vs))
		if !slices.Equal(p.AppendEncode(nil, ts[499]), encoded) {
			t.Fatal("A4: equal samples, unequal bytes")
		}
		w := cutIntoPanes(t, rand.New(rand.NewPCG(37, 1)), ts, vs, 0, ts[499])
		var eval Evaluator
		got, _, err := eval.Eval(Sum, &w, 0, ts[499], 0)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("A6: %v, then %v", want, got)
		}
		want = got
	}
}

func TestCase_C41_EmptyIsNotZero(t *testing.T) {
	marker := []int64{70_000, 100_000}
	markers := make([]int64, MaxSamples+1)
	for i := range markers {
		markers[i] = 60_001 + int64(i)
	}
	for _, middle := range [][]int64{nil, marker, markers} {
		ts := slices.Concat([]int64{30_000}, middle, []int64{150_000})
		vs := slices.Concat([]float64{5}, slices.Repeat([]float64{stale}, len(middle)), []float64{7})
		windows := shapes(t, ts, vs, 0, 60_000, 120_000, 180_000)
		for i := 1; i < numFuncs; i++ {
			expect(t, windows, expectation{f: Func(i), start: 60_000, end: 120_000, absent: true})
		}
		expect(t, windows,
			expectation{f: Min, end: 180_000, want: 5},
			expectation{f: Max, end: 180_000, want: 7},
			expectation{f: Sum, end: 180_000, want: 12},
			expectation{f: Count, end: 180_000, want: 2},
			expectation{f: Idelta, end: 180_000, want: 2},
			expectation{f: Changes, end: 180_000, want: 1},
		)
	}
}

// A column pane that reaches back over the start of an instant selector's range counts only if its newest sample is inside.
func TestInstantOverStraddlingColumns(t *testing.T) {
	ts, vs := []int64{10_000, 20_000}, []float64{1, 2}
	w := Window{Cols: []ColumnPane{{End: 60_000, Columns: foldColumns(ts, vs)}}}
	windows := map[string]Window{"columns": w}
	expect(t, windows,
		expectation{f: Instant, start: 19_999, end: 60_000, want: 2},
		expectation{f: Timestamp, start: 19_999, end: 60_000, want: 20},
		expectation{f: Instant, start: 20_000, end: 60_000, absent: true},
		expectation{f: Timestamp, start: 20_000, end: 60_000, absent: true},
	)
}

// A sample at the very end of a column pane's bucket is behind it: that bucket owns [start, end).
func TestSampleAtEndOfColumns(t *testing.T) {
	cols := []ColumnPane{{End: 60_000, Columns: foldColumns([]int64{10_000, 20_000}, []float64{1, 2})}}
	w := Window{T: []int64{60_000}, V: []float64{5}, Cols: cols}
	expect(t, map[string]Window{"mixed": w},
		expectation{f: First, end: 60_000, want: 1},
		expectation{f: Last, end: 60_000, want: 5},
		expectation{f: Idelta, end: 60_000, want: 3},
		expectation{f: Instant, end: 60_000, want: 5},
	)
}

// TestExtrapolationThreshold: samples 10 s apart whose distance from either edge of the range is on both sides of 11 s,
// and exactly that. The first value is too great for the zero limit to matter.
func TestExtrapolationThreshold(t *testing.T) {
	o := newOracle(t)
	ts, vs := []int64{0, 10_000, 20_000}, []float64{1000, 1001, 1002}
	var eval Evaluator
	results := map[float64]bool{}
	for _, toStart := range []int64{10_999, 11_000, 11_001} {
		for _, toEnd := range []int64{10_999, 11_000, 11_001} {
			start, end := -toStart, 20_000+toEnd
			for _, f := range []Func{Rate, Increase, Delta} {
				want, _ := o.run(t, query{f: f}.expr(end-start), ts, vs, end, end, 1000)
				for name, w := range shapes(t, ts, vs, start, 5_000, end) {
					got, ok, err := eval.Eval(f, &w, start, end, 0)
					if !ok || err != nil || got != want[end] {
						t.Errorf("%s: %s %d and %d ms from the edges: %v, %v, %v, want %v", name, f, toStart, toEnd, got, ok, err, want[end])
					}
				}
				results[want[end]] = true
			}
		}
	}
	if len(results) < 8 {
		t.Errorf("the threshold did not matter: %v", results)
	}
}

// TestHugeValues: where the order of additions decides an overflow, columns say so or know it; they never guess.
func TestHugeValues(t *testing.T) {
	const big = math.MaxFloat64
	sum := func(first []float64, column []float64) (float64, error) {
		var w Window
		for i, v := range first {
			w.T, w.V = append(w.T, int64(i)), append(w.V, v)
		}
		ts := make([]int64, len(column))
		for i := range ts {
			ts[i] = int64(1000 + i)
		}
		w.Cols = []ColumnPane{{End: 2000, Columns: foldColumns(ts, column)}}
		var eval Evaluator
		v, _, err := eval.Eval(Sum, &w, -1, 2000, 0)
		return v, err
	}
	for _, c := range []struct {
		first, column []float64
		want          float64
		err           error
	}{
		{nil, []float64{big, big, -big, -big}, math.Inf(1), nil},
		{nil, []float64{big, -big, big, -big}, 0, nil},
		{[]float64{big}, []float64{-big, big, -1}, big, nil},
		{[]float64{big}, []float64{1e290, -big}, 1e290, nil},
		{[]float64{big}, []float64{1e300, -big}, math.Inf(1), nil},
		{[]float64{-big}, []float64{-1e300, big}, math.Inf(-1), nil},
		{[]float64{big}, []float64{1e300, -1e300}, math.Inf(1), nil},
		{[]float64{big}, []float64{1e270, -1e270}, big, nil},
		{[]float64{big, big, -big, -big}, []float64{big, -big}, math.Inf(1), nil},
		{nil, []float64{-big, -big, math.Inf(1)}, math.NaN(), nil},
		{nil, []float64{-big, -big, math.Inf(-1)}, math.Inf(-1), nil},
		{nil, []float64{big, big, -big, -big, -big, -big, -big}, 0, ErrNeedsSamples},
	} {
		got, err := sum(c.first, c.column)
		if err != c.err || err == nil && !same(got, c.want) {
			t.Errorf("%v then %v: %v, %v, want %v, %v", c.first, c.column, got, err, c.want, c.err)
		}
	}
}
