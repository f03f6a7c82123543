package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/google/go-cmp/cmp"

	"tidemark/log"
	"tidemark/transport/api"
)

// logStatus reads /api/v1/status/log.
func (v *hosted) logStatus() api.LogStatus {
	v.t.Helper()
	code, body := v.get("/api/v1/status/log")
	var answer struct{ Data api.LogStatus }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		v.t.Fatalf("status/log: %d %s %v", code, body, err)
	}
	return answer.Data
}

func TestLogStatus(t *testing.T) {
	clock := newClock(90_000)
	v := startService(t, setup{config: "experiment_label: run\n" + panesOfAMinute, around: surroundings{now: clock.now, monotonic: clock.monotonic}})
	v.send(sent{`m{run="<b>",i="a"}`, 1000, 1}, sent{`m{run="<b>",i="a"}`, 2000, 2}, sent{`m{run="other"}`, 3000, 2})
	if code, _, body := v.form("/api/v1/precompute/watermark", "time_ms", "60000", "experiment", "<b>"); code != http.StatusOK {
		t.Fatalf("barrier: %d %s", code, body)
	}
	v.barrier(120_000)
	s := v.logStatus()
	if !s.Ready || len(s.Reasons) != 0 || s.AsOf != 90_000 {
		t.Errorf("ready %v, reasons %q, as of %d", s.Ready, s.Reasons, s.AsOf)
	}
	head := v.node.events.Head()
	if s.Log.Head != head || s.Log.Floor != 1 || s.Log.Samples != 3 || s.Log.Series != 2 || s.Log.Poisoned || s.Log.FreeBytes != 1<<40 {
		t.Errorf("log %+v, its head is %d", s.Log, head)
	}
	if len(s.Projections) == 0 || s.Projections[0].Name != "pane" || s.Projections[0].State != "following" || s.Projections[0].Applied != head || s.Projections[0].LagEvents != 0 {
		t.Errorf("projections %+v", s.Projections)
	}
	if s.Truncation.Retention != (24*time.Hour).Milliseconds() || s.Truncation.MaxBytes != 50<<30 {
		t.Errorf("truncation %+v", s.Truncation)
	}
	if !slices.Contains(s.Truncation.Holds, api.Hold{By: "checkpoint of pane", From: s.Projections[0].Durable + 1}) {
		t.Errorf("holds %+v, and the checkpoint is at %d", s.Truncation.Holds, s.Projections[0].Durable)
	}
	marks := []int64{120_000, 60_000}
	name := "<b>"
	want := []api.RecentBarrier{
		{Kind: "watermark", At: 90_000, Mark: &marks[0], Seq: head, Closed: 1, CompleteThrough: &marks[0]},
		{Kind: "watermark", At: 90_000, Mark: &marks[1], Experiment: &name, Seq: head - 1, Closed: 1, CompleteThrough: &marks[1]},
	}
	got := s.Barriers.Recent
	for i := range got {
		got[i].TookMillis = 0
	}
	if d := cmp.Diff(want, got); d != "" || s.Barriers.ExperimentLabel != "run" {
		t.Errorf("label %q, barriers: %s", s.Barriers.ExperimentLabel, d)
	}
	// A drain stands there too, and what comes after it fails.
	if code, _, _ := v.form("/api/v1/precompute/drain"); code != http.StatusOK {
		t.Fatalf("drain: %d", code)
	}
	if r := v.logStatus().Barriers.Recent[0]; r.Kind != "drain" || r.Mark != nil || r.Experiment != nil || r.Seq != head+1 {
		t.Errorf("drain %+v", r)
	}
}

// What is asked for while no worker runs is answered all the same, and says that they lag.
func TestLogStatus_WaitsForNoProjection(t *testing.T) {
	f := parseServe(t, "--storage.path="+filepath.Join(t.TempDir(), "data"), "--config.file="+filepath.Join(t.TempDir(), "none.yml"))
	f.configGiven = false
	cfg, p, _, err := f.loadPlan()
	if err != nil {
		t.Fatal(err)
	}
	n, err := openNode(f, cfg, p, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.events.Run(ctx) }()
	if _, err := n.events.Append(ctx, &log.Start{Reason: log.StartProcess}); err != nil {
		t.Fatal(err)
	}
	s, err := n.LogStatus(ctx)
	if err != nil || s.Ready || len(s.Reasons) == 0 || s.Log.Head != 1 || s.Projections[0].LagEvents != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	cancel()
	if err := errors.Join(<-ended, n.close()); err != nil {
		t.Error(err)
	}
}

// parseServe reads the flags of serve.
func parseServe(t *testing.T, args ...string) *serveFlags {
	t.Helper()
	f := &serveFlags{listening: func(net.Addr) {}}
	app := kingpin.New("tidemark", "")
	f.declare(app)
	if _, err := app.Parse(append([]string{"serve"}, args...)); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRecentBarriers_AreBounded(t *testing.T) {
	var r recentBarriers
	for i := range maxRecentBarriers + 5 {
		r.note(api.RecentBarrier{At: int64(i)}, api.BarrierResult{}, time.Millisecond, nil)
	}
	r.note(api.RecentBarrier{At: -1}, api.BarrierResult{Seq: 7, CompleteThrough: 5}, time.Second, errors.New("why <not>"))
	list := r.newest()
	if len(list) != maxRecentBarriers || list[1].At != maxRecentBarriers+4 || list[len(list)-1].At != 6 {
		t.Errorf("%d barriers, from %d to %d", len(list), list[1].At, list[len(list)-1].At)
	}
	if f := list[0]; f.Error != "why <not>" || f.Seq != 0 || f.CompleteThrough != nil || f.TookMillis != 1000 {
		t.Errorf("a failed one: %+v", f)
	}
}

func TestPulse(t *testing.T) {
	now, m := time.UnixMilli(0), log.Metrics{Samples: 1000, Events: 10}
	p := newPulse(func() log.Metrics { return m }, func() time.Time { return now })
	p.take() // there is nothing to compare with
	for _, step := range []struct {
		passed          time.Duration
		samples, events uint64
	}{{5 * time.Second, 100, 10}, {-time.Hour, 50, 5}, {time.Hour + 5*time.Second, 50, 5}, {10 * time.Second, 0, 0}} {
		now = now.Add(step.passed)
		m.Samples, m.Events = m.Samples+step.samples, m.Events+step.events
		p.take()
	}
	want := api.LogRates{Step: 5000, End: 20_000, Samples: []float64{20, 20, 0}, Events: []float64{2, 2, 0}}
	if d := cmp.Diff(want, p.rates()); d != "" {
		t.Error(d)
	}
	for range 2 * pulseSteps {
		now, m.Samples = now.Add(pulseStep), m.Samples+5
		p.take()
	}
	if r := p.rates(); len(r.Samples) != pulseSteps || r.Samples[0] != 1 || len(r.Events) != pulseSteps {
		t.Errorf("%d rates are kept, the oldest is %v", len(r.Samples), r.Samples[0])
	}
}

func TestExternalURL(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		prefix string
		bad    bool
	}{
		{args: []string{"--web.external-url=https://x.example/tide"}, prefix: "/tide"},
		{args: []string{"--web.external-url=https://x.example/tide", "--web.route-prefix=/"}, prefix: "/"},
		{args: []string{"--web.route-prefix=/a"}, prefix: "/a"},
		{args: nil, prefix: ""},
		{args: []string{"--web.external-url=/tide"}, bad: true},
		{args: []string{"--web.external-url=ftp://x.example/"}, bad: true},
		{args: []string{"--web.external-url=https://user:secret@x.example/"}, bad: true},
	} {
		f := parseServe(t, tc.args...)
		err := f.checkExternalURL()
		if (err != nil) != tc.bad || err == nil && f.routePrefix != tc.prefix {
			t.Errorf("%q: prefix %q, %v", tc.args, f.routePrefix, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", tc.args, err)
		}
	}
}

// Each route that changes something is closed to pages of other origins.
func TestCase_E24_NoForeignPageActs(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute, flags: []string{"--web.enable-lifecycle"}})
	v.send(sent{`m{experiment="x"}`, 1000, 1})
	for _, path := range []string{
		"/api/v1/write", "/api/v1/precompute/watermark?time_ms=60000", "/api/v1/precompute/drain", "/-/reload", "/api/v1/rescan",
		"/api/v1/experiments/x/rescan", "/api/v1/tasks?kind=compact&target=x", "/api/v1/tasks/pause", "/api/v1/tasks/resume",
	} {
		for _, foreign := range [][2]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
			req, err := http.NewRequest(http.MethodPost, v.base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(foreign[0], foreign[1])
			if code, _, body := v.do(req); code != http.StatusForbidden {
				t.Errorf("%s with %s: %d %s", path, foreign, code, body)
			}
		}
		if code, body := v.get(path); code == http.StatusOK && !strings.HasPrefix(path, "/api/v1/tasks?") {
			t.Errorf("GET %s: %s", path, body)
		}
	}
	if got := v.logStatus().Barriers.Recent; len(got) != 0 {
		t.Errorf("barriers were called: %+v", got)
	}
}
