package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/prometheus/model/value"
	"go.uber.org/goleak"

	"tidemark/projections/query/oracle"
	"tidemark/transport/remotewrite"
)

// inTempDir sends temporary directories to one of the test's own, and checks at the end that nothing is left in it and that
// no goroutine is left either.
func inTempDir(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("TMPDIR", dir)
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, leaks, goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop"))
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return dir
}

// commandLine runs one.
func commandLine(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// demoRows reads the table of a demo's output: epoch, tasks, samples, route before, barrier ms, route after, error, query µs.
func demoRows(t *testing.T, out string) [][]string {
	t.Helper()
	var rows [][]string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 8 {
			if _, err := strconv.Atoi(f[0]); err == nil {
				rows = append(rows, f)
			}
		}
	}
	return rows
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Error(err)
	}
	return v
}

// Every epoch is live before its barrier and warm after it, all answers equal Prometheus', and nothing is left behind.
func TestDemo(t *testing.T) {
	inTempDir(t)
	code, out, errs := commandLine(t, t.Context(), "demo", "--epochs", "4", "--tasks", "7", "--seed", "3")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	rows := demoRows(t, out)
	if len(rows) != 4 {
		t.Fatalf("%d rows:\n%s", len(rows), out)
	}
	for i, r := range rows {
		if r[0] != strconv.Itoa(i+1) || r[3] != "live" || r[5] != "warm" {
			t.Errorf("row %d: %v", i+1, r)
		}
		if number(t, r[1]) < 1 || number(t, r[2]) < 100 || number(t, r[4]) <= 0 || number(t, r[6]) > oracle.Tolerance || number(t, r[7]) <= 0 {
			t.Errorf("row %d: %v", i+1, r)
		}
	}
	verdict := regexp.MustCompile(`(?m)^PASS: 4 of 4 epochs warm after one barrier; 120 of 120 answers \((\d+) values\) equal Prometheus'`).FindStringSubmatch(out)
	if verdict == nil || number(t, verdict[1]) < 500 {
		t.Errorf("verdict %q in\n%s", verdict, out)
	}
}

func TestDemoUsage(t *testing.T) {
	inTempDir(t)
	for _, args := range [][]string{{"--epochs", "0"}, {"--tasks", "0"}, {"--tasks", "1001"}, {"--seed", "x"}} {
		if code, out, errs := commandLine(t, t.Context(), append([]string{"demo"}, args...)...); code != exitUsage || out != "" || errs == "" {
			t.Errorf("%v: exit code %d, %s%s", args, code, out, errs)
		}
	}
}

// wire alters what passes between the demo and its server.
type wire func(next http.RoundTripper, r *http.Request) (*http.Response, error)

func (w wire) between(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) { return w(next, r) })
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// altered runs a small demo over a wire.
func altered(t *testing.T, w wire) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	d := &demo{epochs: 2, tasks: 6, seed: 1, wire: w.between}
	return exitCode(d.run(t.Context(), &b)), b.String()
}

// rewriteBody lets the answer pass with another body.
func rewriteBody(res *http.Response, f func(string) string) (*http.Response, error) {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	text := f(string(b))
	res.Body, res.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	return res, nil
}

// One value of one answer that is wrong in its last digits is found: the error is beyond 1e-12, the exit code is 1.
func TestDemoFindsAWrongValue(t *testing.T) {
	inTempDir(t)
	var done atomic.Bool
	first := regexp.MustCompile(`"value":\[(\d+),"(\d+)(\.\d+)?"`)
	code, out := altered(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		if err != nil || r.URL.Path != "/api/v1/query" || res.Header.Get("X-Tidemark-Route") != "warm" {
			return res, err
		}
		return rewriteBody(res, func(body string) string {
			m := first.FindStringSubmatch(body)
			if m == nil || len(m[2]) < 3 || !done.CompareAndSwap(false, true) {
				return body
			}
			return strings.Replace(body, m[0], `"value":[`+m[1]+`,"`+m[2]+`.000001"`, 1)
		})
	})
	if code != exitFailure || !strings.Contains(out, "FAIL: 2 of 2 epochs warm") || !strings.Contains(out, "59 of 60 answers") || strings.Count(out, "WRONG") != 1 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
}

// A server that acknowledges one request and loses it is found: it then answers from fewer samples than were sent.
func TestDemoFindsALostWrite(t *testing.T) {
	inTempDir(t)
	var writes atomic.Int32
	code, out := altered(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.URL.Path == remotewrite.Path && writes.Add(1) == 3 {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
		}
		return next.RoundTrip(r)
	})
	if code != exitFailure || !strings.Contains(out, "FAIL: ") || !strings.Contains(out, "WRONG") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
}

// An epoch whose barrier did nothing is not warm, however right the rest is.
func TestDemoFindsABarrierWithoutEffect(t *testing.T) {
	inTempDir(t)
	code, out := altered(t, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/watermark") {
			body := `{"status":"success","data":{"seq":1,"closed_buckets":0,"complete_through_ms":0}}`
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
		return next.RoundTrip(r)
	})
	rows := demoRows(t, out)
	if code != exitFailure || len(rows) != 2 || rows[1][5] != "live" || !strings.Contains(out, "FAIL: 0 of 2 epochs warm") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
}

// With --keep the server answers until it is interrupted, and its data stays.
func TestDemoKeep(t *testing.T) {
	dir := inTempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &watched{want: "materializations'"}
	out.seen = func() {
		// In the demo's own goroutine, which is about to wait.
		m := regexp.MustCompile(`(?m)^  URL +(\S+)$`).FindStringSubmatch(out.String())
		if m == nil {
			t.Errorf("no URL in\n%s", out)
		} else {
			client := newService(m[1], 1)
			defer client.close()
			if ready, err := client.ready(ctx, "/-/ready"); !ready || err != nil {
				t.Errorf("ready: %v, %v", ready, err)
			}
			// What the page lists first is there.
			res, err := client.http.Get(m[1] + "/api/v1/experiments")
			if err != nil {
				t.Error(err)
			} else {
				b, err := io.ReadAll(res.Body)
				if res.Body.Close(); err != nil || !strings.Contains(string(b), `"name":"baseline"`) || !strings.Contains(string(b), `"total":2`) {
					t.Errorf("experiments: %s, %v", b, err)
				}
			}
		}
		cancel()
	}
	var errs bytes.Buffer
	if code := execute(ctx, []string{"demo", "--keep", "--epochs", "1", "--tasks", "2"}, out, &errs); code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, errs.String())
	}
	kept, err := filepath.Glob(filepath.Join(dir, "tidemark-demo-*", ownStorage, logDir))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept: %v, %v", kept, err)
	}
	if code, stat, errs := commandLine(t, t.Context(), "log", "stat", "--storage.path", filepath.Dir(kept[0])); code != exitOK {
		t.Errorf("the log that was kept: exit code %d\n%s%s", code, stat, errs)
	}
	if err := os.RemoveAll(filepath.Dir(filepath.Dir(kept[0]))); err != nil {
		t.Fatal(err)
	}
}

// A demo that is interrupted ends with an error and leaves nothing behind.
func TestDemoInterrupted(t *testing.T) {
	inTempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &watched{want: "warm", seen: cancel}
	var errs bytes.Buffer
	if code := execute(ctx, []string{"demo", "--tasks", "2", "--epochs", "1000"}, out, &errs); code != exitFailure || !strings.Contains(errs.String(), "context canceled") {
		t.Fatalf("exit code %d\n%s%s", code, out, errs.String())
	}
	if strings.Contains(out.String(), "PASS") {
		t.Errorf("a verdict:\n%s", out)
	}
}

// A server of its own that does not start says why.
func TestOwnServerFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := startServer(t.Context(), dir, "no: such: yaml"); err == nil || !strings.Contains(err.Error(), defaultConfigFile) {
		t.Errorf("a configuration with a fault: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ownStorage), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := startServer(t.Context(), dir, ""); err == nil || !strings.Contains(err.Error(), ownStorage) {
		t.Errorf("a file in the place of the storage: %v", err)
	}
}

// watched is a buffer that calls seen once, when it first contains want.
type watched struct {
	bytes.Buffer
	want string
	once sync.Once
	seen func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.want) {
		w.once.Do(w.seen)
	}
	return n, err
}

// The tasks do what the demo says of them: begin late, stop with a marker, vanish without, and one starts its counters anew;
// what goes out is what the oracle is given, and every series is in time order.
func TestTraining(t *testing.T) {
	const from, to = int64(0), 10 * epochMillis
	tr := newTraining(30, from, to, 1)
	sent := map[string]int{}
	for at := from; at < to; at += epochMillis {
		requests, samples := tr.play(at, at+epochMillis)
		for _, r := range requests {
			for _, s := range r {
				sent[s.Labels.String()] += len(s.Samples)
				samples -= len(s.Samples)
				for _, x := range s.Samples {
					if x.Time <= at || x.Time > at+epochMillis {
						t.Fatalf("%s at %d, in the epoch that begins at %d", s.Labels, x.Time, at)
					}
				}
			}
		}
		if samples != 0 {
			t.Errorf("the epoch at %d counts %d samples too many", at, samples)
		}
	}
	late, marked, vanished, resets, onEdge := 0, 0, 0, 0, 0
	for _, s := range tr.all {
		if len(s.T) == 0 || sent[s.Labels.String()] != len(s.T) {
			t.Fatalf("%s: %d samples sent, %d kept", s.Labels, sent[s.Labels.String()], len(s.T))
		}
		for i, v := range s.V {
			if i > 0 && s.T[i] <= s.T[i-1] {
				t.Fatalf("%s: %d behind %d", s.Labels, s.T[i], s.T[i-1])
			}
			if i > 0 && strings.HasSuffix(s.Labels.Get("__name__"), "_total") && v < s.V[i-1] {
				resets++
			}
			if math.IsNaN(v) != (i == len(s.V)-1 && value.IsStaleNaN(v)) {
				t.Fatalf("%s: %v at %d", s.Labels, v, i)
			}
			if s.T[i]%epochMillis == 0 {
				onEdge++
			}
		}
		if s.T[0] > from+2*scrapeMillis {
			late++
		}
		switch last := len(s.T) - 1; {
		case value.IsStaleNaN(s.V[last]):
			marked++
		case s.T[last] <= to-2*scrapeMillis:
			vanished++
		}
	}
	if late < 7 || marked < 7 || vanished < 7 || resets != 3 || onEdge == 0 {
		t.Errorf("%d series late, %d marked, %d vanished, %d resets, %d samples on an edge", late, marked, vanished, resets, onEdge)
	}
}
