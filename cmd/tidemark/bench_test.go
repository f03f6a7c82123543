package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"

	"tidemark/transport/remotewrite"
)

// tiny are the flags of a load that takes no time.
func tiny(args ...string) []string {
	return append(args, "--series", "50", "--labels", "6", "--per-request", "20", "--senders", "2")
}

// benchFigures reads figures as benchstat does: the first name before any parameters, with the unit, to the value.
func benchFigures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	figures := map[string]float64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		if len(f) != 4 {
			t.Fatalf("line %q has not four fields", line)
		}
		if n, err := strconv.Atoi(f[1]); err != nil || n < 1 {
			t.Errorf("%q: operations %q", line, f[1])
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		figures[name[:strings.LastIndex(name, "-")]+" "+f[3]] = number(t, f[2])
	}
	return figures
}

// One run of bench all prints each of its figures, and leaves nothing behind.
func TestBenchAll(t *testing.T) {
	inTempDir(t)
	code, out, errs := commandLine(t, t.Context(), tiny("bench", "all", "--duration", "50ms", "--rounds", "2", "--requests", "3")...)
	if code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	figures := benchFigures(t, out)
	const load = "/series=50/labels=6/batch=20/senders=2 "
	for _, name := range []string{
		"WriteNew" + load + "series/s", "Write" + load + "samples/s", "Write" + load + "p50-ms", "Write" + load + "p99-ms", "Write" + load + "max-ms",
		"Write" + load + "s-to-publish", "LogSize disk-B/sample", "Replay/series=50 samples/s", "Barrier/panes=50 p50-ms", "Barrier/panes=50 max-ms",
		"Query/op=instant/series=50 p50-µs", "Query/op=instant/series=50 p99-µs", "Query/op=range/steps=6/series=50 p50-µs", "Query/op=instant/series=1 p50-µs",
	} {
		if figures[name] <= 0 {
			t.Errorf("%s: %v", name, figures[name])
		}
	}
	if v, ok := figures["Write"+load+"non-2xx"]; !ok || v != 0 {
		t.Errorf("non-2xx: %v", v)
	}
	if !strings.Contains(errs, "samples acknowledged are answered for") {
		t.Errorf("not verified:\n%s", errs)
	}
}

// The tools measure a service that runs elsewhere, also twice, and then its log.
func TestBenchAgainstAService(t *testing.T) {
	dir := inTempDir(t)
	home := filepath.Join(dir, "service")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := startServer(t.Context(), home, benchConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer server.stop()
	for _, args := range [][]string{
		tiny("bench", "write", "--duration", "20ms"), tiny("bench", "barrier", "--rounds", "3"), tiny("bench", "query", "--requests", "2"),
		tiny("bench", "write", "--duration", "20ms"),
		{"bench", "query", "--query", "count(tidemark_bench)", "--at-ms", strconv.FormatInt(time.Now().Add(-loadAge).UnixMilli()/loadGrid*loadGrid, 10), "--range", "10m", "--requests", "2"},
	} {
		code, out, errs := commandLine(t, t.Context(), append(args, "--url", server.url)...)
		if code != exitOK || len(benchFigures(t, out)) < 3 {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := commandLine(t, t.Context(), "bench", "replay", "--storage.path", filepath.Join(home, ownStorage))
	if figures := benchFigures(t, out); code != exitOK || figures["Replay/series=200 samples/s"] <= 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
}

// A service that has no panes for the load answers for it from its exact copy; barriers and queries say what they miss.
func TestBenchWithoutPanes(t *testing.T) {
	dir := inTempDir(t)
	home := filepath.Join(dir, "service")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := startServer(t.Context(), home, "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	defer server.stop()
	code, out, errs := commandLine(t, t.Context(), tiny("bench", "write", "--duration", "20ms", "--url", server.url)...)
	if code != exitOK || !strings.Contains(errs, "samples acknowledged are answered for") {
		t.Errorf("write: exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = commandLine(t, t.Context(), tiny("bench", "barrier", "--url", server.url)...)
	if code != exitFailure || !strings.Contains(errs, "a barrier over 50 open panes closed 0") {
		t.Errorf("barrier: exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = commandLine(t, t.Context(), tiny("bench", "query", "--url", server.url)...)
	if code != exitFailure || !strings.Contains(errs, "the answer is not warm, but local") {
		t.Errorf("query: exit code %d\n%s%s", code, out, errs)
	}
}

// measured runs a small load over a wire.
func measured(t *testing.T, w wire) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	f := &benchFlags{shape: loadShape{series: 50, labels: 6, perRequest: 20, senders: 2}}
	err = f.on(t.Context(), &bench{report: newReport(&b), progress: io.Discard}, func(ctx context.Context, s *service) error {
		s.http.Transport = w.between(s.http.Transport)
		_, err := (&bench{report: newReport(&b), progress: io.Discard}).write(ctx, s, f.shape, 20*time.Millisecond)
		return err
	})
	return b.String(), err
}

// A request that was acknowledged and is lost is found.
func TestBenchFindsALostWrite(t *testing.T) {
	inTempDir(t)
	var writes atomic.Int32
	out, err := measured(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.URL.Path == remotewrite.Path && writes.Add(1) == 2 {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
		}
		return next.RoundTrip(r)
	})
	if exitCode(err) != exitFailure || !strings.Contains(err.Error(), "samples were acknowledged, and the panes hold") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A request that is refused for now is repeated and counted, whether or not it was logged; one that is refused for good ends
// the load.
func TestBenchRefused(t *testing.T) {
	inTempDir(t)
	var writes atomic.Int32
	answer := func(r *http.Request, code int) *http.Response {
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader("no")), Request: r}
	}
	out, err := measured(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.URL.Path != remotewrite.Path {
			return next.RoundTrip(r)
		}
		switch writes.Add(1) {
		case 2:
			return answer(r, http.StatusServiceUnavailable), nil
		case 3:
			res, err := next.RoundTrip(r)
			if err == nil {
				res.Body.Close()
			}
			return answer(r, http.StatusInternalServerError), err
		}
		return next.RoundTrip(r)
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if v := benchFigures(t, out)["Write/series=50/labels=6/batch=20/senders=2 non-2xx"]; v != 2 {
		t.Errorf("%v refused\n%s", v, out)
	}
	if _, err := measured(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.URL.Path == remotewrite.Path {
			return answer(r, http.StatusBadRequest), nil
		}
		return next.RoundTrip(r)
	}); err == nil || !strings.Contains(err.Error(), "status 400") {
		t.Errorf("refused for good: %v", err)
	}
}

func TestBenchUsage(t *testing.T) {
	inTempDir(t)
	for _, args := range [][]string{
		{"bench"}, {"bench", "write", "--series", "0"}, {"bench", "write", "--labels", "3"}, {"bench", "write", "--per-request", "0"},
		{"bench", "write", "--series", "3", "--senders", "4"}, {"bench", "write", "--duration", "-1s"}, {"bench", "barrier", "--rounds", "0"},
		{"bench", "query", "--requests", "0"}, {"bench", "query", "--query", "up"}, {"bench", "query", "--step", "0s"},
	} {
		if code, out, errs := commandLine(t, t.Context(), args...); code != exitUsage || out != "" || errs == "" {
			t.Errorf("%v: exit code %d, %s%s", args, code, out, errs)
		}
	}
	if code, _, errs := commandLine(t, t.Context(), "bench", "replay", "--storage.path", filepath.Join(t.TempDir(), "none")); code != exitFailure || errs == "" {
		t.Errorf("replay of nothing: exit code %d, %s", code, errs)
	}
	if code, _, errs := commandLine(t, t.Context(), tiny("bench", "write", "--url", "http://127.0.0.1:1")...); code != exitFailure || errs == "" {
		t.Errorf("nobody listens: exit code %d, %s", code, errs)
	}
}

// Each series has one sender and is sent in the order of time with the labels asked for, in requests of the size asked for.
func TestLoad(t *testing.T) {
	l := newLoad(loadShape{series: 7, labels: 6, perRequest: 5, senders: 2}, loadEvery, time.UnixMilli(1_800_000_000_000))
	const rounds = 4
	times := map[string][]int64{}
	for _, a := range l.lanes {
		total := 0
		for n := a.fill(l, rounds); n > 0; n = a.fill(l, rounds) {
			body, err := snappy.Decode(nil, remotewrite.Compress(nil, a.body))
			if err != nil {
				t.Fatal(err)
			}
			c, err := remotewrite.Check(body)
			if err != nil {
				t.Fatal(err)
			}
			var s remotewrite.Scanner
			s.Reset(body, c)
			entries := 0
			for s.NextSeries() {
				x, ok := s.NextSample()
				if !ok {
					t.Fatal("an entry without a sample")
				}
				entries++
				key := string(s.Labels())
				times[key] = append(times[key], x.Time)
			}
			total += n
			if last := total == rounds*len(a.sets); entries != n || n != 5 && !last {
				t.Errorf("%d entries, %d counted", entries, n)
			}
		}
	}
	if len(times) != 7 {
		t.Errorf("%d series", len(times))
	}
	for _, ts := range times {
		if want := []int64{l.at(0), l.at(1), l.at(2), l.at(3)}; !slices.Equal(ts, want) || want[0] <= l.start || want[3] >= l.end() {
			t.Errorf("%v, want %v", ts, want)
		}
	}
}

// Quantiles are exact as long as there are few, then within one percent, and never beyond the maximum.
func TestLatencies(t *testing.T) {
	var empty latencies
	if empty.quantile(0.5) != 0 {
		t.Error("nothing has a median")
	}
	for _, c := range []struct {
		n         int
		tolerance float64
	}{{1, 0}, {exactLatencies, 0}, {exactLatencies + 1, 0.0101}, {10_000, 0.0101}} {
		rng := rand.New(rand.NewPCG(1, 2))
		var sorted []time.Duration
		var a, b latencies
		for i := range c.n {
			d := time.Duration(math.Exp(rng.Float64()*20) * 100)
			sorted = append(sorted, d)
			if i%3 == 0 {
				a.add(d)
			} else {
				b.add(d)
			}
		}
		a.merge(&b)
		slices.Sort(sorted)
		for _, q := range []float64{0, 0.01, 0.5, 0.99, 1} {
			want := sorted[max(0, int(math.Ceil(q*float64(c.n)))-1)]
			if got := a.quantile(q); math.Abs(float64(got-want)) > c.tolerance*float64(want) || got > a.max || a.n != uint64(c.n) {
				t.Errorf("quantile %v of %d: %v, want %v", q, c.n, got, want)
			}
		}
	}
	var long latencies
	for range exactLatencies + 1 {
		long.add(365 * 24 * time.Hour)
	}
	if long.quantile(0.5) > long.max || long.max != 365*24*time.Hour {
		t.Errorf("beyond the last bucket: %v", long.quantile(0.5))
	}
}

// A load that is interrupted ends with an error and leaves nothing behind.
func TestBenchInterrupted(t *testing.T) {
	inTempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := &watched{want: "# writing for", seen: cancel}
	var out bytes.Buffer
	if code := execute(ctx, tiny("bench", "all", "--duration", "1h"), &out, errs); code != exitFailure || !strings.Contains(errs.String(), "context canceled") {
		t.Fatalf("exit code %d\n%s%s", code, out.String(), errs)
	}
}

// BenchmarkLoad is what the generator itself takes for a request.
func BenchmarkLoad(b *testing.B) {
	l := newLoad(loadShape{series: 2000, labels: 10, perRequest: 2000, senders: 1}, loadEvery, time.UnixMilli(1_800_000_000_000))
	a := l.lanes[0]
	b.Run("op=request/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if a.fill(l, math.MaxInt64) != 2000 {
				b.Fatal("short request")
			}
			a.sent = remotewrite.Compress(a.sent, a.body)
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
}
