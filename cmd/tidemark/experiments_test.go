package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

const experimentsConfig = `
exact: {local: false}
materializations:
  - {name: sums, expr: 'sum_over_time(m[10s])', every: 10s}
stats: {scan_interval: 0s, sweep_interval: 0s, retire_after: %s}
`

// control drives a service's routes about experiments.
type control struct {
	t   *testing.T
	dir string
	srv *ownServer
}

func startControl(t *testing.T, retireAfter string) *control {
	t.Helper()
	c := &control{t: t, dir: t.TempDir()}
	c.start(retireAfter)
	t.Cleanup(func() { _ = c.srv.stop() })
	return c
}

func (c *control) start(retireAfter string) {
	c.t.Helper()
	var err error
	if c.srv, err = startServer(c.t.Context(), c.dir, fmt.Sprintf(experimentsConfig, retireAfter), "--projection.checkpoint-interval=200ms"); err != nil {
		c.t.Fatal(err)
	}
}

// write sends one sample for each experiment, at a time in ms.
func (c *control) write(at int64, names ...string) {
	c.t.Helper()
	var series []remotewrite.Series
	for _, name := range names {
		series = append(series, remotewrite.Series{
			Labels: labels.FromStrings("__name__", "m", "experiment", name), Samples: []remotewrite.Sample{{Time: at, Value: 1}},
		})
	}
	service := newService(c.srv.url, 1)
	defer service.close()
	if err := service.writer().Write(c.t.Context(), series); err != nil {
		c.t.Fatal(err)
	}
}

// ask calls a route and decodes the data of its answer.
func (c *control) ask(method, path string, form url.Values, into any) int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.srv.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		c.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, b)
	}
	if into != nil && res.StatusCode < 300 {
		if err := json.Unmarshal(e.Data, into); err != nil {
			c.t.Fatalf("%s %s: %v in %s", method, path, err, e.Data)
		}
	}
	return res.StatusCode
}

type listedExperiment struct {
	Name        string
	State       string
	Version     uint64
	Series      uint64 `json:"series_count"`
	Samples     uint64 `json:"sample_count"`
	Buckets     uint64 `json:"bucket_count"`
	Corrections uint64 `json:"correction_count"`
	Pending     int    `json:"pending_panes"`
	LastWrite   int64  `json:"last_write_ms"`
	Compactions uint64 `json:"total_compactions"`
	Closed      *int64 `json:"closed_through_ms"`
}

type experimentList struct {
	Experiments []listedExperiment
	Total       int
	Hot         int
	Retired     int
	Head        uint64 `json:"log_head_seq"`
	Stale       bool
}

func (c *control) list(query string) experimentList {
	c.t.Helper()
	var l experimentList
	if code := c.ask(http.MethodGet, "/api/v1/experiments?"+query, nil, &l); code != http.StatusOK {
		c.t.Fatalf("%s: %d", query, code)
	}
	return l
}

func (c *control) detail(name string) listedExperiment {
	c.t.Helper()
	var x listedExperiment
	if code := c.ask(http.MethodGet, "/api/v1/experiments/"+url.PathEscape(name), nil, &x); code != http.StatusOK {
		c.t.Fatalf("%s: %d", name, code)
	}
	return x
}

func (c *control) rescan() (r struct{ Scanned, Skipped, Observed, Failed, Retired int }) {
	c.t.Helper()
	if code := c.ask(http.MethodPost, "/api/v1/rescan", nil, &r); code != http.StatusOK {
		c.t.Fatalf("rescan: %d", code)
	}
	return r
}

func (c *control) barrier(at int64) {
	c.t.Helper()
	if code := c.ask(http.MethodPost, "/api/v1/precompute/watermark", url.Values{"time_ms": {fmt.Sprint(at)}}, nil); code != http.StatusOK {
		c.t.Fatalf("barrier: %d", code)
	}
}

// task queues a task and waits for its end.
func (c *control) task(kind, target string) (state, text string) {
	c.t.Helper()
	var row struct{ ID, State, Message, Error string }
	if code := c.ask(http.MethodPost, "/api/v1/tasks", url.Values{"kind": {kind}, "target": {target}}, &row); code != http.StatusAccepted {
		c.t.Fatalf("task: %d", code)
	}
	for deadline := time.Now().Add(time.Minute); row.State == "queued" || row.State == "running"; {
		if time.Now().After(deadline) {
			c.t.Fatalf("the task is %s", row.State)
		}
		c.ask(http.MethodGet, "/api/v1/tasks/"+row.ID, nil, &row)
	}
	return row.State, row.Message + row.Error
}

// The life of an experiment over HTTP: written, corrected, compacted, retired, found, and back with its next sample, with its counters;
// the same after a restart, after the views were deleted and everything was folded again, and after a rebuild of which the log's events
// were removed (M5, M6, M12).
func TestExperimentsOverHTTP(t *testing.T) {
	c := startControl(t, "0s")
	now := time.Now().UnixMilli() / 10_000 * 10_000
	c.write(now-25_000, "a/b", "run 2")
	c.write(now-15_000, "a/b")
	c.barrier(now)
	c.write(now-24_000, "a/b") // late: a correction
	if r := c.rescan(); r.Scanned != 2 || r.Observed != 2 {
		t.Fatalf("%+v", r)
	}
	if r := c.rescan(); r.Skipped != 2 || r.Observed != 0 {
		t.Fatalf("%+v", r)
	}
	x := c.detail("a/b")
	if x.State != "hot" || x.Series != 1 || x.Samples != 3 || x.Buckets != 2 || x.Corrections != 1 || x.Pending != 0 || *x.Closed < now-20_000 {
		t.Fatalf("%+v", x)
	}
	if state, text := c.task("compact", "a/b"); state != "done" {
		t.Fatalf("%s: %s", state, text)
	}
	if state, text := c.task("publish", "a/b"); state != "done" || text != "nothing is open" {
		t.Fatalf("%s: %s", state, text)
	}
	if state, _ := c.task("rescan", "a/b"); state != "done" {
		t.Fatal(state)
	}
	if x := c.detail("a/b"); x.Corrections != 0 || x.Compactions != 1 || x.Samples != 3 {
		t.Fatalf("%+v", x)
	}
	if code := c.ask(http.MethodPost, "/api/v1/tasks", url.Values{"kind": {"compact"}, "target": {"nobody"}}, nil); code != http.StatusNotFound {
		t.Fatal(code)
	}

	// Everything that is idle for a millisecond is retired.
	c.restart("1ms", false)
	if r := c.rescan(); r.Scanned != 0 {
		t.Fatalf("%+v", r)
	}
	gone := c.detail("a/b")
	if gone.State != "retired" || gone.Samples != 3 || gone.Buckets != 2 || gone.Compactions != 1 || gone.Series != 1 {
		t.Fatalf("%+v", gone)
	}
	if l := c.list("search=run"); l.Total != 1 || l.Experiments[0].State != "retired" || l.Retired != 2 || l.Hot != 0 {
		t.Fatalf("%+v", l)
	}
	c.write(now+1000, "a/b")
	if r := c.rescan(); r.Scanned != 1 {
		t.Fatalf("%+v", r)
	}
	back := c.detail("a/b")
	if back.State != "hot" || back.Samples != 4 || back.Series != 1 || back.Pending != 1 || back.Compactions != 1 {
		t.Fatalf("%+v", back)
	}
	want := c.list("state=all")
	for _, how := range []string{"kept", "deleted", "rebuilt, and the log truncated"} {
		switch how {
		case "kept", "deleted":
			c.restart("0s", how == "deleted")
		default:
			c.rebuildAndTruncate()
		}
		c.rescan()
		got := c.list("state=all")
		if got.Total != 2 || !slices.EqualFunc(got.Experiments, want.Experiments, func(a, b listedExperiment) bool {
			a.Closed, b.Closed = nil, nil
			return a == b
		}) {
			t.Errorf("views %s:\n%+v\n%+v", how, got.Experiments, want.Experiments)
		}
	}
}

// rebuildAndTruncate folds the log into fresh views, removes the events that are folded, and starts the service on that alone.
func (c *control) rebuildAndTruncate() {
	c.t.Helper()
	if err := c.srv.stop(); err != nil {
		c.t.Fatal(err)
	}
	storage := filepath.Join(c.dir, ownStorage)
	if err := os.RemoveAll(filepath.Join(storage, viewsDir)); err != nil {
		c.t.Fatal(err)
	}
	r := &rebuild{fs: vfs.Default, path: storage, projection: "pane", workers: 1, now: time.Now}
	if err := r.run(c.t.Context(), io.Discard, io.Discard); err != nil {
		c.t.Fatal(err)
	}
	o, err := openOffline(vfs.Default, storage, 1, discard())
	if err != nil {
		c.t.Fatal(err)
	}
	head := o.events.Head()
	if err := o.close(); err != nil {
		c.t.Fatal(err)
	}
	if _, err := truncateLog(c.t.Context(), storage, head-1); err != nil {
		c.t.Fatal(err)
	}
	c.start("0s")
}

// restart stops the service and starts it again, with its views deleted if wipe is set.
func (c *control) restart(retireAfter string, wipe bool) {
	c.t.Helper()
	if err := c.srv.stop(); err != nil {
		c.t.Fatal(err)
	}
	if wipe {
		if err := os.RemoveAll(filepath.Join(c.dir, ownStorage, viewsDir)); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start(retireAfter)
}

// Limits outside of 1 to 200, offsets below 0 and what is no number are refused; an offset past the end is an empty page with the right
// total; nothing is ever a 500.
func TestCase_E12_PagingParameters(t *testing.T) {
	c := startControl(t, "0s")
	c.write(time.Now().UnixMilli(), "a", "b", "c")
	c.rescan()
	for _, tc := range []struct {
		query string
		code  int
		rows  int
	}{
		{"limit=0", 400, 0}, {"limit=-1", 400, 0}, {"limit=1", 200, 1}, {"limit=200", 200, 3}, {"limit=201", 400, 0}, {"limit=1000000000", 400, 0},
		{"limit=abc", 400, 0}, {"offset=-1", 400, 0}, {"offset=1000000000000", 200, 0}, {"offset=abc", 400, 0}, {"offset=2", 200, 1},
		{"sort=nothing", 400, 0}, {"sort=-last_write_ms", 200, 3}, {"state=cold", 400, 0}, {"state=all&sort=sample_count", 400, 0},
		{"rates=24", 200, 3}, {"rates=0", 400, 0},
	} {
		for _, route := range []string{"/api/v1/experiments", "/api/v1/tasks"} {
			if strings.Contains(route, "tasks") && !strings.HasPrefix(tc.query, "limit") && !strings.HasPrefix(tc.query, "offset") {
				continue
			}
			var l experimentList
			code := c.ask(http.MethodGet, route+"?"+tc.query, nil, &l)
			if code != tc.code || code == 200 && strings.Contains(route, "experiments") && (len(l.Experiments) != tc.rows || l.Total != 3) {
				t.Errorf("%s?%s: %d with %d rows of %d", route, tc.query, code, len(l.Experiments), l.Total)
			}
		}
	}
}

// What is searched is text, in the case in which it is written, never a pattern.
func TestCase_E18_SearchIsText(t *testing.T) {
	c := startControl(t, "0s")
	c.write(time.Now().UnixMilli(), "a_b", "axb", "a%b", "a.b", "a*b", "A_B", "a(b")
	c.rescan()
	for search, want := range map[string][]string{
		"a_b": {"a_b"}, "%": {"a%b"}, ".": {"a.b"}, "*": {"a*b"}, "(": {"a(b"}, "A_b": nil, "'": nil, `\`: nil,
	} {
		var got []string
		for _, x := range c.list("search=" + url.QueryEscape(search)).Experiments {
			got = append(got, x.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q finds %q, not %q", search, got, want)
		}
	}
	if code := c.ask(http.MethodGet, "/api/v1/experiments?search="+strings.Repeat("x", 10_000), nil, nil); code != http.StatusBadRequest {
		t.Errorf("10 kB: %d", code)
	}
}

// Reading about a retired experiment, fresh or not, leaves the log, its state and its counters as they are; a page of another origin
// changes nothing.
func TestCase_E24_RetiredStaysRetired(t *testing.T) {
	c := startControl(t, "1ms")
	now := time.Now().UnixMilli()
	c.write(now, "x")
	c.barrier(now + 20_000)
	c.rescan()
	before := c.list("state=all")
	if before.Retired != 1 {
		t.Fatalf("%+v", before)
	}
	for range 10 {
		for _, path := range []string{"/api/v1/experiments/x?fresh=1", "/api/v1/experiments/x", "/api/v1/tasks", "/api/v1/scheduler/cooldowns", "/api/v1/stats/history"} {
			if code := c.ask(http.MethodGet, path, nil, nil); code != http.StatusOK {
				t.Fatalf("%s: %d", path, code)
			}
		}
	}
	after := c.list("state=all")
	before.Experiments[0].Closed, after.Experiments[0].Closed = nil, nil
	if after.Head != before.Head || after.Retired != 1 || after.Experiments[0] != before.Experiments[0] {
		t.Fatalf("%+v\n%+v", before, after)
	}
	for _, path := range []string{"/api/v1/rescan", "/api/v1/experiments/x/rescan", "/api/v1/tasks", "/api/v1/tasks/pause"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.srv.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Sec-Fetch-Site", "cross-site")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
		if code := c.ask(http.MethodGet, path, nil, nil); strings.Contains(path, "rescan") && code != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, code)
		}
	}
}
