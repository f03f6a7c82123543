package accum

import (
	"fmt"
	"testing"
)

// benchSeries is a counter scraped every 15 s or so, with a reset.
func benchSeries(n int) ([]int64, []float64) {
	ts, vs := make([]int64, n), make([]float64, n)
	v := 100.0
	for i := range ts {
		ts[i] = int64(i+1)*15_000 + int64(i*7919%11)
		if i == n/2 {
			v = 0
		}
		v += float64(i * 104729 % 97)
		vs[i] = v
	}
	return ts, vs
}

func BenchmarkEval(b *testing.B) {
	for _, n := range []int{20, 240} {
		ts, vs := benchSeries(n)
		flat := Window{T: ts, V: vs}
		var columns Window
		for lo := 0; lo < n; lo += 20 {
			p := Fold(ts[lo:lo+20], vs[lo:lo+20])
			columns.Append(&p, ts[lo+19])
		}
		for _, f := range []Func{Rate, Sum, Avg, Max, Last, Quantile, Deriv, Instant} {
			for _, w := range []struct {
				shape string
				*Window
			}{{"samples", &flat}, {"columns", &columns}} {
				if w.shape == "columns" && f.NeedsSamples() {
					continue
				}
				b.Run(fmt.Sprintf("op=eval/func=%s/shape=%s/samples=%d", f, w.shape, n), func(b *testing.B) {
					b.ReportAllocs()
					var eval Evaluator
					for b.Loop() {
						if _, ok, err := eval.Eval(f, w.Window, 0, ts[n-1], 0.95); !ok || err != nil {
							b.Fatal(ok, err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkFold(b *testing.B) {
	for _, n := range []int{1, 16, 60, 300} {
		ts, vs := benchSeries(n)
		b.Run(fmt.Sprintf("op=fold/samples=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				p := Fold(ts, vs)
				buf = p.AppendEncode(buf[:0], ts[n-1])
			}
			b.ReportMetric(float64(len(buf))/float64(n), "bytes/sample")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 16, 60, 300} {
		ts, vs := benchSeries(n)
		p := Fold(ts, vs)
		buf := p.AppendEncode(nil, ts[n-1])
		b.Run(fmt.Sprintf("op=decode/samples=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var w Window
			for b.Loop() {
				w.Reset()
				if _, err := AppendDecoded(&w, buf, ts[n-1]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(buf))/float64(n), "bytes/sample")
		})
	}
}

// BenchmarkSlide is a range query of an hour at 15 s over windows of 5 minutes, one series.
func BenchmarkSlide(b *testing.B) {
	ts, vs := benchSeries(260)
	w := Window{T: ts, V: vs}
	for _, f := range []Func{Rate, Sum, Avg, Max, Last, Quantile, Instant} {
		b.Run(fmt.Sprintf("op=slide/func=%s/steps=240", f), func(b *testing.B) {
			b.ReportAllocs()
			var s Slide
			var r Results
			for b.Loop() {
				if !s.Reset(f, &w) {
					b.Fatal("refused")
				}
				r.Reset()
				if err := s.Steps(Windows{From: 20, To: 260, Every: 15_000, Width: 300_000}, 0.95, &r); err != nil || len(r.V) != 240 {
					b.Fatal(len(r.V), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/240, "ns/step")
		})
	}
}
