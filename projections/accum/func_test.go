package accum

import (
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// TestFuncNames: the names are PromQL's, and lead back to their function.
func TestFuncNames(t *testing.T) {
	for i := 1; i < numFuncs; i++ {
		f := Func(i)
		got, ok := FuncByName(f.String())
		if f == Instant {
			if ok {
				t.Errorf("%s is a name", f)
			}
			continue
		}
		if !ok || got != f {
			t.Errorf("%s leads to %s, %v", f, got, ok)
		}
		fn := parser.Functions[f.String()]
		if fn == nil {
			t.Errorf("PromQL has no %s", f)
			continue
		}
		if takesRange := fn.ArgTypes[len(fn.ArgTypes)-1] == parser.ValueTypeMatrix || fn.ArgTypes[0] == parser.ValueTypeMatrix; takesRange == (f == Timestamp) {
			t.Errorf("%s takes a range: %v", f, takesRange)
		}
	}
	for _, name := range []string{"", "unknown", "instant", "sum", "Rate", "histogram_quantile"} {
		if f, ok := FuncByName(name); ok {
			t.Errorf("%q leads to %s", name, f)
		}
	}
	var eval Evaluator
	w := Window{T: []int64{1}, V: []float64{1}}
	if _, ok, err := eval.Eval(0, &w, 0, 1, 0); ok || err == nil || !strings.Contains(err.Error(), "no function") {
		t.Errorf("function 0: %v, %v", ok, err)
	}
}

// TestEvalDoesNotAllocate: once its scratch space has grown, over samples, samples with a marker, and columns.
func TestEvalDoesNotAllocate(t *testing.T) {
	ts, vs := benchSeries(240)
	flat := Window{T: ts, V: vs}
	withMarker := Window{T: ts, V: append([]float64(nil), vs...)}
	withMarker.V[100] = stale
	var mixed Window
	for i, from := range []int64{0, 60_000, 600_000} {
		end := []int64{60_000, 600_000, ts[len(ts)-1]}[i]
		part := flat.Cut(from, end)
		p := Fold(part.T, part.V)
		mixed.Append(&p, end)
	}
	if len(mixed.Cols) == 0 || len(mixed.T) == 0 {
		t.Fatal("the window is not mixed")
	}
	var eval Evaluator
	for i := 1; i < numFuncs; i++ {
		f := Func(i)
		for name, w := range map[string]*Window{"samples": &flat, "marker": &withMarker, "mixed": &mixed} {
			allocs := testing.AllocsPerRun(20, func() {
				if _, ok, err := eval.Eval(f, w, 0, ts[len(ts)-1], 0.5); !ok && err != ErrNeedsSamples {
					t.Fatal(f, name, err)
				}
			})
			if allocs != 0 {
				t.Errorf("%s over %s: %v allocations", f, name, allocs)
			}
		}
	}
}

func TestCursorEqualsCut(t *testing.T) {
	ts, vs := benchSeries(600)
	flat := Window{T: ts, V: vs}
	var w Window
	for end := int64(0); end < ts[599]; end += 60_000 {
		part := flat.Cut(end-60_000, end)
		p := Fold(part.T, part.V)
		w.Append(&p, end)
		part = flat.Cut(end, end+60_000)
		w.T, w.V = append(w.T, part.T...), append(w.V, part.V...)
		end += 60_000
	}
	var c Cursor
	c.Reset(&w)
	for start := int64(-100_000); start < ts[599]+100_000; start += 7001 {
		for _, end := range []int64{start, start + 500, start + 1000} {
			a, b := c.Cut(start, end), w.Cut(start, end)
			if len(a.T) != len(b.T) || len(a.Cols) != len(b.Cols) || len(a.T) > 0 && &a.T[0] != &b.T[0] || len(a.Cols) > 0 && &a.Cols[0] != &b.Cols[0] {
				t.Fatalf("(%d,%d]: %v, want %v", start, end, a, b)
			}
		}
	}
	allocs := testing.AllocsPerRun(10, func() {
		c.Reset(&w)
		for at := int64(0); at < ts[599]; at += 15_000 {
			c.Cut(at-300_000, at)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
