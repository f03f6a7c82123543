package remotewrite

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
)

// benchBody is what a stock sender ships at once: 2000 series of 10 labels with one sample each.
func benchBody() []byte {
	const count = 2000
	var series []Series
	for i := range count {
		ls := []string{"__name__", "request_duration_seconds_bucket", "le", fmt.Sprint(i % 12), "instance", fmt.Sprintf("10.0.0.%d:9090", i/12)}
		for j := range 7 {
			ls = append(ls, fmt.Sprintf("label_%d", j), fmt.Sprintf("value-%d-of-label", j))
		}
		series = append(series, Series{Labels: labels.FromStrings(ls...), Samples: []Sample{{Time: 1000 + int64(i%7), Value: float64(i) * 1.5}}})
	}
	return encode(nil, series)
}

func BenchmarkDecode(b *testing.B) {
	body := benchBody()
	b.Run("op=scan/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		var s Scanner
		for b.Loop() {
			c, err := Check(body)
			if err != nil {
				b.Fatal(err)
			}
			s.Reset(body, c)
			for s.NextSeries() {
				for _, ok := s.NextSample(); ok; _, ok = s.NextSample() {
				}
			}
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
	b.Run("op=prompb/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			var req prompb.WriteRequest
			if err := req.Unmarshal(body); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
}

// BenchmarkHandle is a whole request of known series, with the log in memory and without a network.
func BenchmarkHandle(b *testing.B) {
	body := benchBody()
	sent := snappy.Encode(nil, body)
	r := newRig(b, nil)
	handle := func() {
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(sent)))
		if w.Code != http.StatusNoContent {
			b.Fatal(w.Code, w.Body)
		}
	}
	handle()
	b.Run("op=handle/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			handle()
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
	b.Run("op=collect/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		a := r.handler.arenas.get()
		for b.Loop() {
			a.builder.Reset()
			c, err := Check(body)
			if err != nil {
				b.Fatal(err)
			}
			a.scan.Reset(body, c)
			var t tally
			if err := r.handler.collect(a, &t); err != nil {
				b.Fatal(err)
			}
			a.builder.Finish()
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
	b.Run("op=new/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		p := labelReader{labelLimits: labelLimits{maxCount: 128, maxName: 1024, maxValue: 4096}}
		c, err := Check(body)
		if err != nil {
			b.Fatal(err)
		}
		var s Scanner
		for b.Loop() {
			s.Reset(body, c)
			for s.NextSeries() {
				if _, bad := p.series(s.Labels()); bad.reason != reasonNone {
					b.Fatal(bad)
				}
			}
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "series/s")
	})
}
