package main

// A store as the first release writes it. Whatever comes after must open it.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"

	"tidemark/transport/remotewrite"
)

const (
	releasedStore  = "testdata/store-1.tar.gz"
	releasedGolden = "testdata/store-1.golden"
	releasedBegin  = int64(1_700_000_040_000) // a full minute, ms
	// maxReleased bounds what is unpacked of the store.
	maxReleased = 64 << 20
)

// Everything that has a form of its own on disk: panes of samples, of values and of sketches, both edges, both policies, recorded windows,
// rules that read rules. What is kept is kept for good, so that the store can be opened at any time to come.
const releasedConfig = `
rule_files: [rules.yml]
exact: {local: true, retention: 30000d}
log: {retention: 30000d}
stats: {retire_after: 0s}
materializations:
  - {name: rates, expr: 'sum by (job) (rate(requests_total[1m]))', every: 15s, retention: 30000d}
  - {name: q, expr: 'quantile_over_time(0.9, dense[30s])', every: 30s, retention: 30000d}
  - {name: counted, expr: 'count_over_time(gauge[1m])', every: 1m, closed: left, retention: 30000d}
  - {name: dropped, expr: 'max_over_time(gauge[30s])', every: 30s, late: drop, retention: 30000d}
  - {name: highest, expr: 'max by (job) (max_over_time(gauge[2m]))', every: 30s, layout: full_window, retention: 30000d}
`

const releasedRules = `
groups:
  - name: g
    interval: 30s
    rules:
      - {record: 'job:gauge:avg', expr: 'avg by (job) (avg_over_time(gauge[1m]))', labels: {team: x}}
      - {record: 'job:gauge:highest', expr: 'max_over_time(job:gauge:avg[2m])'}
`

// releasedQuestions are asked at the minute after the last sample and at those before it.
var releasedQuestions = []string{
	`sum by (job) (rate(requests_total[1m]))`, `quantile_over_time(0.9, dense[30s])`, `counted`, `max_over_time(gauge[30s])`,
	`max by (job) (max_over_time(gauge[2m]))`, `job:gauge:avg`, `job:gauge:highest`, `sum(count_over_time(gauge[5m]))`, `sum(sum_over_time(gauge[5m]))`,
}

// TestFirstReleaseOpens opens a store that was written by the first release and left by a kill -9: the log is whole, the digests of
// what is published are what they were, from the views and from the log alone, and a service answers from it what it answered then.
// UPDATE_STORE=1 writes the store anew, which is for changes of format before the first release alone.
func TestFirstReleaseOpens(t *testing.T) {
	if os.Getenv("UPDATE_STORE") != "" {
		writeRelease(t)
	}
	s := newSite(t, "", "--log.level=warn", "--storage.ballast-bytes=0B")
	unpack(t, releasedStore, s.dir)
	got := describeStore(t, s)
	if os.Getenv("UPDATE_STORE") != "" {
		if err := os.WriteFile(releasedGolden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(releasedGolden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the store of the first release says\n%s\nand said\n%s", got, want)
	}
}

// describeStore says all that must not change about a store, and leaves it as a service has left it.
func describeStore(t *testing.T, s *site) string {
	t.Helper()
	var b strings.Builder
	tool := func(args ...string) string {
		code, out, errs := s.tool(args...)
		if code != exitOK {
			t.Fatalf("%v: %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	b.WriteString(tool("log", "verify"))
	digest := tool("digest")
	b.WriteString(digest)
	// From the log alone.
	views := filepath.Join(s.dir, "data", viewsDir)
	if err := os.Rename(views, views+".kept"); err != nil {
		t.Fatal(err)
	}
	if afresh := tool("digest"); afresh != digest {
		t.Errorf("from the log alone:\n%s\nfrom the views:\n%s", afresh, digest)
	}
	if err := os.Rename(views+".kept", views); err != nil {
		t.Fatal(err)
	}
	p := s.serveReady()
	for _, question := range releasedQuestions {
		for _, at := range []int64{releasedBegin + 240_000, releasedBegin + 360_000} {
			r, route := s.instant(question, at)
			fmt.Fprintf(&b, "%s at %d: %d %s %s\n", question, at, r.code, route, strings.TrimSpace(r.body))
		}
	}
	r, err := fetch(s.http, http.MethodGet, s.url()+"/api/v1/query", form("query", `{job=~".+"}[5m]`, "time", seconds(releasedBegin+300_000)), "Cache-Control", "no-store")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "the exact copy: %d %s %s\n", r.code, r.header.Get("X-Tidemark-Route"), strings.TrimSpace(r.body))
	fmt.Fprintf(&b, "metadata: %s\n", strings.TrimSpace(s.must(http.MethodGet, "/api/v1/metadata").body))
	s.stop(p)
	tool("rebuild", "--verify")
	return b.String()
}

// writeRelease writes the store.
func writeRelease(t *testing.T) {
	t.Helper()
	s := newSite(t, releasedConfig, "--log.level=warn", "--storage.ballast-bytes=0B")
	s.file("rules.yml", releasedRules)
	p := s.serveReady()
	c := remotewrite.Client{URL: s.url() + remotewrite.Path, HTTP: s.http}
	send := func(q *prompb.WriteRequest) {
		t.Helper()
		b, err := q.Marshal()
		if err == nil {
			err = c.Send(t.Context(), snappy.Encode(nil, b))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	series := func(name, job, experiment string, samples ...prompb.Sample) prompb.TimeSeries {
		ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}, {Name: "experiment", Value: experiment}, {Name: "job", Value: job}}, Samples: samples}
		if experiment == "" {
			ts.Labels = append(ts.Labels[:1], ts.Labels[2])
		}
		return ts
	}
	send(&prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{MetricFamilyName: "requests", Type: prompb.MetricMetadata_COUNTER, Help: "Requests.", Unit: "1"}}})
	for k := range int64(60) {
		at := releasedBegin + 5000*k
		q := &prompb.WriteRequest{}
		for i, job := range []string{"a", "b", "ü"} {
			v := float64((k*7+int64(i)*3)%11) + 0.25
			q.Timeseries = append(q.Timeseries,
				series("requests_total", job, "", prompb.Sample{Timestamp: at, Value: float64(k % 40 * int64(i+1))}), // a reset on the way
				series("gauge", job, fmt.Sprint("e", i), prompb.Sample{Timestamp: at, Value: v}))
		}
		if k%6 == 0 {
			h := series("latency", "a", "e0")
			h.Histograms = []prompb.Histogram{{
				Count: &prompb.Histogram_CountInt{CountInt: uint64(k + 1)}, Sum: float64(k), ZeroThreshold: 0.001, ZeroCount: &prompb.Histogram_ZeroCountInt{},
				PositiveSpans: []prompb.BucketSpan{{Offset: 0, Length: 1}}, PositiveDeltas: []int64{k + 1}, Timestamp: at,
			}}
			h.Exemplars = []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: fmt.Sprint("t", k)}}, Value: float64(k), Timestamp: at}}
			q.Timeseries = append(q.Timeseries, h)
			d := series("dense", "a", "")
			for i := range int64(300) {
				d.Samples = append(d.Samples, prompb.Sample{Timestamp: at + i*90, Value: float64(i*i%997) - 100})
			}
			q.Timeseries = append(q.Timeseries, d)
		}
		send(q)
		switch k {
		case 20:
			if _, err := s.barrier(releasedBegin + 60_000); err != nil {
				t.Fatal(err)
			}
			// Late, again, in conflict, and the end of a series.
			send(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{
				series("gauge", "a", "e0", prompb.Sample{Timestamp: releasedBegin + 11_000, Value: 99}, prompb.Sample{Timestamp: at, Value: 5}),
				series("gauge", "gone", "e9", prompb.Sample{Timestamp: at, Value: 1}, prompb.Sample{Timestamp: at + 1000, Value: staleNaN()}),
			}})
			send(q)
		case 40:
			if r := s.must(http.MethodPost, "/api/v1/precompute/watermark", "time_ms", fmt.Sprint(releasedBegin+180_000), "experiment", "e1"); r.code != http.StatusOK {
				t.Fatalf("barrier: %d %s", r.code, r.body)
			}
			s.stop(p)
			p = s.serveReady()
		}
	}
	if _, err := s.barrier(releasedBegin + 360_000); err != nil {
		t.Fatal(err)
	}
	send(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series("gauge", "a", "e0", prompb.Sample{Timestamp: releasedBegin + 299_000, Value: 50})}})
	p.kill()
	pack(t, s.dir, releasedStore)
}

func staleNaN() float64 { return math.Float64frombits(value.StaleNaN) }

// pack writes a directory as a tar file, without owners and times.
func pack(t *testing.T, dir, to string) {
	t.Helper()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zip)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, rerr := filepath.Rel(dir, path)
		if err = errors.Join(err, rerr); err != nil || name == "." || d.Name() == "LOCK" {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755})
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
	if err = errors.Join(err, w.Close(), zip.Close(), os.WriteFile(to, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", to, out.Len())
}

// unpack is the reverse of pack.
func unpack(t *testing.T, from, dir string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(io.LimitReader(zip, maxReleased))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
