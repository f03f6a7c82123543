package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// fillBenched writes some minutes of samples, one every 15 s, of many series, and publishes them. It returns the end of the last window, in ms.
func fillBenched(v *benched, series, minutes int) (end int64) {
	const batch = 2000
	begin := time.Now().Add(-2*time.Hour).UnixMilli() / 60_000 * 60_000
	end = begin + int64(minutes)*60_000
	client := &remotewrite.Client{URL: v.base + remotewrite.Path, HTTP: http.DefaultClient}
	sets := make([]remotewrite.Precoded, series)
	for i := range sets {
		sets[i] = remotewrite.Precode(labels.FromStrings("__name__", loadMetric, "group", fmt.Sprint(i%loadGroups), "series", fmt.Sprint(i),
			"label_04", "value-04-of-a-label", "label_05", "value-05-of-a-label", "label_06", "value-06-of-a-label"))
	}
	for at := begin + 15_000; at <= end; at += 15_000 {
		for from := 0; from < series; from += batch {
			var body []byte
			for i := from; i < min(series, from+batch); i++ {
				body = remotewrite.AppendSeries(body, sets[i], remotewrite.Sample{Time: at, Value: float64(at%1_000_000+int64(i)) / 1000})
			}
			if err := client.Send(v.b.Context(), remotewrite.Compress(nil, body)); err != nil {
				v.b.Fatal(err)
			}
		}
	}
	res, err := http.Post(v.base+"/api/v1/precompute/watermark?time_ms="+fmt.Sprint(end), "", nil)
	if err != nil || res.StatusCode != http.StatusOK {
		v.b.Fatal(err, res)
	}
	res.Body.Close()
	if err := v.node.panes.Checkpoint(v.b.Context()); err != nil {
		v.b.Fatal(err)
	}
	return end
}

// BenchmarkQuery asks over HTTP what a dashboard asks of many series; all of it is published.
func BenchmarkQuery(b *testing.B) {
	const series = 10_000
	v := benched{b: b}
	v.start(ownBenchConfig)
	defer v.stop()
	end := fillBenched(&v, series, 10)
	for _, c := range []struct {
		name, expr string
		steps      int64 // 0: at one time
	}{
		{"instant-sum-by", "sum by (group) (rate(tidemark_bench[5m]))", 0},
		{"range-sum-by", "sum by (group) (rate(tidemark_bench[5m]))", 6},
		{"instant-topk", "topk(10, sum by (group) (rate(tidemark_bench[5m])))", 0},
		{"instant-each", "rate(tidemark_bench[5m])", 0},
	} {
		q := url.Values{"query": {c.expr}}
		path := "/api/v1/query?"
		if c.steps == 0 {
			q.Set("time", fmt.Sprint(end/1000))
		} else {
			path = "/api/v1/query_range?"
			q.Set("start", fmt.Sprint(end/1000-60*(c.steps-1)))
			q.Set("end", fmt.Sprint(end/1000))
			q.Set("step", "60")
		}
		b.Run(fmt.Sprintf("op=%s/series=%d", c.name, series), func(b *testing.B) { askBenched(b, v.base+path+q.Encode(), false) })
	}
}

// askBenched asks over HTTP, and reports what that takes of processor time, the client's part included.
func askBenched(b *testing.B, url string, zip bool) {
	client := http.Client{Transport: &http.Transport{DisableCompression: !zip}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	before := cpuSeconds(b)
	for b.Loop() {
		res, err := client.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		if res.Body.Close(); err != nil || n == 0 || res.Header.Get("X-Tidemark-Route") != "warm" {
			b.Fatal(res.Status, res.Header, n, err)
		}
	}
	b.ReportMetric(1000*(cpuSeconds(b)-before)/float64(b.N), "cpu-ms/op")
}

// BenchmarkQueryPanes asks for an hour of panes of 15 s that no window is recorded of, at steps of 15 s and at the last of them.
func BenchmarkQueryPanes(b *testing.B) {
	const series = 3_000
	exprs := []struct{ name, expr string }{
		{"rate", "sum by (group) (rate(tidemark_bench[5m]))"},
		{"max", "max by (group) (max_over_time(tidemark_bench[5m]))"},
		{"count", "count by (group) (tidemark_bench)"},
		{"each", "avg_over_time(tidemark_bench[5m])"},
	}
	config := "exact: {local: false}\nmaterializations:\n"
	for _, e := range exprs {
		config += fmt.Sprintf("  - {name: %s, expr: '%s', every: 15s, layout: panes}\n", e.name, e.expr)
	}
	v := benched{b: b}
	v.start(config)
	defer v.stop()
	end := fillBenched(&v, series, 65)
	for _, e := range exprs {
		q := url.Values{"query": {e.expr}, "time": {fmt.Sprint(end / 1000)}}
		b.Run(fmt.Sprintf("op=instant-%s/series=%d", e.name, series), func(b *testing.B) { askBenched(b, v.base+"/api/v1/query?"+q.Encode(), false) })
		q = url.Values{"query": {e.expr}, "start": {fmt.Sprint(end/1000 - 3600)}, "end": {fmt.Sprint(end / 1000)}, "step": {"15"}}
		b.Run(fmt.Sprintf("op=range-%s/series=%d", e.name, series), func(b *testing.B) { askBenched(b, v.base+"/api/v1/query_range?"+q.Encode(), false) })
	}
}

// BenchmarkQueryRecorded asks for an hour of recorded windows, at their steps of 15 s and at the last of them.
func BenchmarkQueryRecorded(b *testing.B) {
	const series = 3_000
	exprs := []struct{ name, expr string }{{"each", "avg_over_time(tidemark_bench[5m])"}, {"by", "sum by (group) (rate(tidemark_bench[5m]))"}}
	config := "exact: {local: false}\nmaterializations:\n"
	for _, e := range exprs {
		config += fmt.Sprintf("  - {name: %s, expr: '%s', every: 15s, layout: full_window}\n", e.name, e.expr)
	}
	v := benched{b: b}
	v.start(config)
	defer v.stop()
	end := fillBenched(&v, series, 65)
	s := newService(v.base, 2)
	defer s.close()
	if err := recorded(b.Context(), s); err != nil {
		b.Fatal(err)
	}
	for _, e := range exprs {
		q := url.Values{"query": {e.expr}, "time": {fmt.Sprint(end / 1000)}}
		b.Run(fmt.Sprintf("op=instant-%s/series=%d", e.name, series), func(b *testing.B) { askBenched(b, v.base+"/api/v1/query?"+q.Encode(), false) })
		q = url.Values{"query": {e.expr}, "start": {fmt.Sprint(end/1000 - 3600)}, "end": {fmt.Sprint(end / 1000)}, "step": {"15"}}
		for _, zip := range []bool{false, true} {
			b.Run(fmt.Sprintf("op=range-%s/gzip=%v/series=%d", e.name, zip, series), func(b *testing.B) { askBenched(b, v.base+"/api/v1/query_range?"+q.Encode(), zip) })
		}
	}
}
