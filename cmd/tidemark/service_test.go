package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

const oneStream = `
exact: {local: false}
materializations:
  - {name: requests, expr: "sum_over_time(m[1m])", every: 10s}
`

// write sends one sample of a series and returns the status of the answer.
func (s *site) write(name string, at int64, v float64) int {
	s.t.Helper()
	c := remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}
	err := c.Write(s.t.Context(), []remotewrite.Series{{
		Labels: labels.FromStrings("__name__", name), Samples: []remotewrite.Sample{{Time: at, Value: v}},
	}})
	switch e := err.(type) {
	case nil:
		return http.StatusNoContent
	case *remotewrite.StatusError:
		return e.Code
	default:
		s.t.Fatal(err)
		return 0
	}
}

// instant asks for expr at a time in ms and returns the answer with its route.
func (s *site) instant(expr string, at int64) (httpReply, string) {
	s.t.Helper()
	r := s.must(http.MethodGet, "/api/v1/query", "query", expr, "time", strconv.FormatInt(at/1000, 10))
	return r, r.header.Get("X-Tidemark-Route")
}

// published asks for expr as it is published, without what open panes would add to it.
func (s *site) published(expr string, at int64) (httpReply, string) {
	s.t.Helper()
	r := s.must(http.MethodGet, "/api/v1/query", "query", expr, "time", strconv.FormatInt(at/1000, 10), "consistency", "published")
	return r, r.header.Get("X-Tidemark-Route")
}

// wantWarm compares the value of a query that has one series.
func (s *site) wantWarm(expr string, at int64, value string) {
	s.t.Helper()
	r, route := s.instant(expr, at)
	if want := fmt.Sprintf(`"value":[%d,%q]`, at/1000, value); r.code != http.StatusOK || route != "warm" || !strings.Contains(r.body, want) {
		s.t.Fatalf("%s at %d: status %d, route %q, %s; want %s", expr, at, r.code, route, r.body, want)
	}
}

// tree is everything in a directory: names with sizes and hashes.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			fmt.Fprintln(&b, path)
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %d %x\n", path, len(text), sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wantFailure runs a command line that must end by itself with a code, and returns the one line that says why.
func (s *site) wantFailure(code int, args ...string) string {
	s.t.Helper()
	p := start(s.t, "tidemark", tidemarkIn(s.t, s.dir, args...))
	if got := p.wait(exitWithin); got != code {
		s.t.Fatalf("%v: exit code %d, want %d:\n%s", args, got, code, p.out.String())
	}
	var why []string
	for line := range strings.Lines(p.out.String()) {
		if strings.HasPrefix(line, "tidemark: error: ") {
			why = append(why, strings.TrimSpace(line))
		}
	}
	if len(why) != 1 {
		s.t.Fatalf("%v: %d lines say why:\n%s", args, len(why), p.out.String())
	}
	return why[0]
}

// TestL1_TerminatedUnderLoad holds that a SIGTERM ends the service in time whatever arrives, and loses nothing.
func TestL1_TerminatedUnderLoad(t *testing.T) {
	seed := seedOf(t)
	s := newSite(t, loadConfig, "--log.level=warn")
	begin := (time.Now().Add(-time.Hour).UnixMilli()/widePane)*widePane + 2_345
	p := s.serveReady()
	l := startLoad(t, s, 3, begin, seed)
	for range 3 {
		poll(t, readyWithin, "load", func() (bool, string) {
			at := l.settledThrough()
			return at > begin+10_000, fmt.Sprint(at)
		})
		at := time.Now()
		p.signal(syscall.SIGTERM)
		if code := p.wait(exitWithin); code != exitOK {
			t.Fatalf("exit code %d", code)
		}
		t.Logf("ended after %s", time.Since(at).Round(time.Millisecond))
		p = s.serveReady()
	}
	l.halt()
	n := checkAll(t, l, s, begin, finalTime(l))
	s.stop(p)
	verifyLog(t, s)
	t.Logf("%d samples, load %+v", n, l.counts)
}

// TestReload holds that a new configuration takes effect by signal and by HTTP, and that a broken one changes nothing.
func TestReload(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	if r := s.must(http.MethodPost, "/-/reload"); r.code != http.StatusForbidden {
		t.Errorf("a reload that is not enabled: %d %s", r.code, r.body)
	}
	s.stop(p)
	p = s.serveReady("--web.enable-lifecycle")
	names := func() string {
		var answer struct {
			Data []struct{ Name, State string }
		}
		body := s.must(http.MethodGet, "/api/v1/materializations").body
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		var out []string
		for _, m := range answer.Data {
			out = append(out, m.Name+" "+m.State)
		}
		return strings.Join(out, ", ")
	}
	reloadedWell := func() bool {
		well := s.metric("tidemark_config_last_reload_successful") == 1
		if said := strings.Contains(s.must(http.MethodGet, "/api/v1/status/runtimeinfo").body, `"reloadConfigSuccess":true`); said != well {
			t.Errorf("the metric says %v, the status %v", well, said)
		}
		return well
	}
	if got := names(); got != "requests serving" || !reloadedWell() {
		t.Fatalf("at first: %s", got)
	}

	const two = oneStream + "  - {name: errors, expr: \"max_over_time(e[1m])\", every: 10s}\n"
	s.configure(two)
	p.signal(syscall.SIGHUP)
	poll(t, readyWithin, "reload by signal", func() (bool, string) {
		got := names()
		return got == "errors serving, requests serving" || got == "requests serving, errors serving", got
	})

	good := s.metric("tidemark_config_last_reload_success_timestamp_seconds")
	s.configure(two + "  - {name: broken, expr: \"sum(\", every: 10s}\n")
	r := s.must(http.MethodPost, "/-/reload")
	if r.code != http.StatusInternalServerError || !strings.HasPrefix(r.body, "failed to reload config: ") || !strings.Contains(r.body, "materializations[2].expr") {
		t.Errorf("a broken configuration: %d %s", r.code, r.body)
	}
	if got := names(); strings.Contains(got, "broken") || !strings.Contains(got, "errors") || reloadedWell() {
		t.Errorf("after a broken configuration: %s", got)
	}
	p.signal(syscall.SIGHUP)
	poll(t, readyWithin, "a broken configuration by signal", func() (bool, string) {
		said := p.out.String()
		return strings.Contains(said, "Reload failed"), said
	})
	if at := s.metric("tidemark_config_last_reload_success_timestamp_seconds"); at != good {
		t.Errorf("the last good reload was at %v, and now at %v", good, at)
	}

	// Both plans answer: the stream that stayed from its first sample on, the new one from its own.
	for name, v := range map[string]float64{"m": 3, "e": 5} {
		if code := s.write(name, 1_000_000, v); code != http.StatusNoContent {
			t.Fatalf("write: %d", code)
		}
	}
	if _, err := s.barrier(1_060_000); err != nil {
		t.Fatal(err)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "3")
	s.wantWarm("max_over_time(e[1m])", 1_010_000, "5")

	s.configure(oneStream)
	if r := s.must(http.MethodPost, "/-/reload"); r.code != http.StatusOK || !reloadedWell() {
		t.Errorf("back again: %d %s", r.code, r.body)
	}
	if got := names(); got != "requests serving" {
		t.Errorf("back again: %s", got)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "3")
	if r, _ := s.instant("max_over_time(e[1m])", 1_010_000); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "no_materialization") {
		t.Errorf("a materialization that is gone: %d %s", r.code, r.body)
	}
	s.stop(p)
}

// TestL7_SecondProcess holds that a directory has one process, and that the second one leaves it as it is.
func TestL7_SecondProcess(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	if code := s.write("m", 1_000_000, 1); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	// The HEAD note follows the head within a second; then nothing on disk moves by itself.
	poll(t, readyWithin, "a quiet directory", func() (bool, string) {
		head, err := os.ReadFile(filepath.Join(s.dir, "data", logDir, "HEAD"))
		seq := int(s.metric("tidemark_log_head_seq"))
		return err == nil && strings.Contains(string(head), strconv.Itoa(seq)), fmt.Sprintf("%s %v, head %d", head, err, seq)
	})
	before := tree(t, filepath.Join(s.dir, "data", logDir))
	for _, args := range [][]string{
		{"serve", "--web.listen-address=" + freeAddress(t)}, {"log", "stat"}, {"log", "verify"}, {"log", "dump"},
	} {
		if why := s.wantFailure(exitFailure, args...); !strings.Contains(why, "in use by another process") {
			t.Errorf("%v: %s", args, why)
		}
	}
	if after := tree(t, filepath.Join(s.dir, "data", logDir)); after != before {
		t.Errorf("the second process changed the directory:\n%s\n%s", before, after)
	}
	if code := s.write("m", 1_001_000, 2); code != http.StatusNoContent {
		t.Errorf("write after the second process: %d", code)
	}
	s.stop(p)
}

// TestL7_ForeignDirectory holds that what is not a store of ours is refused and left alone, wherever in it the strange thing lies.
func TestL7_ForeignDirectory(t *testing.T) {
	for name, says := range map[string]string{
		"data/thesis.tex":     "holds thesis.tex and no log",
		"data/log/thesis.tex": "holds thesis.tex and no store",
		"data/views/CURRENT":  "holds views and no log",
		"data":                "data",
	} {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			s := newSite(t, oneStream)
			path := filepath.Join(s.dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("years of work"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := tree(t, s.dir)
			if why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr); !strings.Contains(why, says) {
				t.Errorf("%s, want %q in it", why, says)
			}
			if after := tree(t, s.dir); after != before {
				t.Errorf("the directory has changed:\n%s\n%s", before, after)
			}
		})
	}
}

// TestServeWithoutArguments holds that an empty directory and no argument make a service that works.
func TestServeWithoutArguments(t *testing.T) {
	s := newSite(t, "")
	args := []string{"serve"}
	if l, err := net.Listen("tcp", strings.TrimPrefix(defaultURL, "http://")); err == nil {
		l.Close()
		s.addr = strings.TrimPrefix(defaultURL, "http://")
	} else {
		t.Logf("the default address is taken (%v); another one stands for it", err)
		args = append(args, "--web.listen-address="+s.addr)
	}
	p := start(t, "tidemark", tidemarkIn(t, s.dir, args...))
	s.awaitReady(p)
	if r, route := s.instant("1 + 1", 0); r.code != http.StatusOK || route != "warm" || !strings.Contains(r.body, `"2"`) {
		t.Errorf("1 + 1: %d %q %s", r.code, route, r.body)
	}
	if code := s.write("m", time.Now().UnixMilli(), 1); code != http.StatusNoContent {
		t.Errorf("write: %d", code)
	}
	if r, route := s.instant("last_over_time(m[1m])", time.Now().UnixMilli()+2000); r.code != http.StatusOK || route != "local" || !strings.Contains(r.body, `"1"`) {
		t.Errorf("what was written, off every grid: %d %q %s", r.code, route, r.body)
	}
	s.stop(p)
	for _, part := range []string{logDir, viewsDir, copyDir} {
		if _, err := os.Stat(filepath.Join(s.dir, "data", part)); err != nil {
			t.Error(err)
		}
	}
}

// TestDrain holds that a drain closes what is open and seals input, by the command line, until the next start.
func TestDrain(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	if code := s.write("m", 1_000_001, 4); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	if r, _ := s.published("sum_over_time(m[1m])", 1_010_000); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "unpublished") {
		t.Errorf("before the drain: %d %s", r.code, r.body)
	}
	code, out, errs := s.tool("drain", "--url="+s.url())
	if code != exitOK || !strings.Contains(out, `"closed_buckets":1`) {
		t.Fatalf("drain: %d %s%s", code, out, errs)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "4")
	if code := s.write("m", 1_000_002, 1); code != http.StatusConflict {
		t.Errorf("write into a sealed log: %d", code)
	}
	s.stop(p)

	p = s.serveReady()
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "4")
	if code := s.write("m", 1_020_000, 2); code != http.StatusNoContent {
		t.Errorf("write after the next start: %d", code)
	}
	code, out, errs = s.tool("watermark", "--url="+s.url(), "--time-ms=1060000")
	// What the drain proved, up to its own time, is more than this barrier does.
	if code != exitOK || !strings.Contains(out, `"closed_buckets":1,`) {
		t.Errorf("watermark: %d %s%s", code, out, errs)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_060_000, "6")
	s.stop(p)
	for _, args := range [][]string{{"drain", "--url=" + s.url()}, {"watermark", "--url=" + s.url(), "--time-ms=1"}} {
		if why := s.wantFailure(exitFailure, args...); !strings.Contains(why, "refused") {
			t.Errorf("%v without a service: %s", args, why)
		}
	}
}

// TestLogTools holds what the offline tools say of a log.
func TestLogTools(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	for i := range 3 {
		if code := s.write("m", int64(1_000_000+i), float64(i)); code != http.StatusNoContent {
			t.Fatalf("write: %d", code)
		}
	}
	if _, err := s.barrier(2_000_000); err != nil {
		t.Fatal(err)
	}
	head := int(s.metric("tidemark_log_head_seq"))
	s.stop(p)
	before := tree(t, filepath.Join(s.dir, "data", logDir, "store"))

	code, out, errs := s.tool("log", "stat")
	var stat struct{ Floor, Head, Events, Series int }
	if err := json.Unmarshal([]byte(out), &stat); code != exitOK || err != nil || stat.Floor != 1 || stat.Head != head || stat.Events != head || stat.Series != 1 {
		t.Errorf("log stat: %d %v %s%s, want head %d", code, err, out, errs, head)
	}
	code, out, errs = s.tool("log", "verify")
	var report struct{ Head, Events, Writes, Samples, Series int }
	if err := json.Unmarshal([]byte(out), &report); code != exitOK || err != nil || report.Head != head || report.Events != head ||
		report.Writes != 3 || report.Samples != 3 || report.Series != 1 {
		t.Errorf("log verify: %d %v %s%s, want head %d", code, err, out, errs, head)
	}
	code, out, errs = s.tool("log", "dump")
	if code != exitOK {
		t.Fatalf("log dump: %d %s", code, errs)
	}
	var kinds []string
	for line := range strings.Lines(out) {
		var event struct {
			Seq  int
			Kind string
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil || event.Seq != len(kinds)+1 {
			t.Fatalf("log dump: %v in %s", err, line)
		}
		kinds = append(kinds, event.Kind)
	}
	if got := strings.Join(kinds, " "); got != "start plan write write write watermark" {
		t.Errorf("log dump: %s", got)
	}
	if !strings.Contains(out, `"__name__":"m"`) || !strings.Contains(out, "[1000002,2]") {
		t.Errorf("log dump shows neither series nor samples:\n%s", out)
	}
	if code, out, _ = s.tool("log", "dump", "--from=3", "--to=4"); code != exitOK || strings.Count(out, "\n") != 2 || !strings.HasPrefix(out, `{"seq":3,`) {
		t.Errorf("log dump of a part: %d\n%s", code, out)
	}
	if after := tree(t, filepath.Join(s.dir, "data", logDir, "store")); after != before {
		t.Errorf("looking changed the log:\n%s\n%s", before, after)
	}
	for _, tool := range []string{"stat", "verify", "dump"} {
		if why := s.wantFailure(exitFailure, "log", tool, "--storage.path=nowhere"); !strings.Contains(why, "nowhere") {
			t.Errorf("log %s of nothing: %s", tool, why)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "nowhere")); err == nil {
		t.Error("looking for a log made one")
	}
}

// TestDamageIsNamed holds that verify and serve name a damaged log and do not begin a new one in its place.
func TestDamageIsNamed(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	for i := range 50 {
		if code := s.write("m", int64(1_000_000+i), float64(i)); code != http.StatusNoContent {
			t.Fatalf("write: %d", code)
		}
	}
	s.stop(p)
	damaged := 0
	for _, pattern := range []string{"*.sst", "*.log"} {
		files, err := filepath.Glob(filepath.Join(s.dir, "data", logDir, "store", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) < 2_000 {
				continue
			}
			text[len(text)/2] ^= 0x10
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			damaged++
		}
	}
	if damaged == 0 {
		t.Fatal("no file of the log is large enough to be damaged")
	}
	s.wantFailure(exitFailure, "log", "verify")
	if why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr); !strings.Contains(why, "`tidemark log verify --repair --storage.path=data`") {
		t.Errorf("serve does not say what to do: %s", why)
	}
}

// TestExitCodes holds the exit codes of command lines that start nothing.
func TestExitCodes(t *testing.T) {
	s := newSite(t, oneStream)
	for name, text := range map[string]string{
		"bad.yml":      "materializations: [{name: m, expr: 'sum(', every: 10s}]",
		"unknown.yml":  "materialisations: []",
		"good.rules":   "groups: [{name: g, interval: 30s, rules: [{record: 'r:m', expr: 'sum(rate(m[5m]))'}]}]",
		"skip.rules":   "groups: [{name: g, interval: 30s, rules: [{record: 'r:m', expr: 'sum(rate(m[5m]))'}, {record: 'r:h', expr: 'histogram_count(h)'}]}]",
		"broken.rules": "groups: [{name: g, rules: [{record: 'r:m', expr: 'sum('}]",
		"rules.yml":    "rule_files: [skip.rules]",
		"faulty.rules": "groups: [{name: g, rules: [{record: 'r:m', expr: 'sum('}]}]",
		"circle.rules": "groups: [{name: g, rules: [{record: 'r:a', expr: 'r:b'}, {record: 'r:b', expr: 'r:a'}]}]",
		"faulty.yml":   "rule_files: [faulty.rules]",
		"circle.yml":   "rule_files: [circle.rules]",
		"nothing.yml":  "experiment_label: task",
		"panes.yml":    "exact: {local: false}",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{exitOK, "serve", []string{"--help"}},
		{exitOK, "--storage.path", []string{"serve", "--help"}},
		{exitOK, "tidemark, version ", []string{"--version"}},
		{exitUsage, "unknown long flag '--nope'", []string{"serve", "--nope"}},
		{exitUsage, "nope", []string{"nope"}},
		{exitUsage, `invalid duration "soon"`, []string{"serve", "--query.timeout=soon"}},
		{exitUsage, "bad.yml:1: materializations[0].expr", []string{"serve", "--config.file=bad.yml"}},
		{exitUsage, "unknown field materialisations", []string{"serve", "--config.file=unknown.yml"}},
		{exitUsage, "missing.yml", []string{"serve", "--config.file=missing.yml"}},
		{exitUsage, "(", []string{"serve", "--web.cors.origin=("}},
		{exitUsage, "--query.max-client-share", []string{"serve", "--query.max-client-share=0"}},
		{exitUsage, "--time-ms", []string{"watermark"}},
		{exitUsage, "--time-ms", []string{"watermark", "--time-ms=soon"}},
		{exitUsage, "--experiment", []string{"watermark", "--time-ms=now", "--experiment="}},
		{exitOK, "requests", []string{"check", "config"}},
		{exitOK, "requests", []string{"check", "config", "tidemark.yml"}},
		{exitUsage, "bad.yml:1: materializations[0].expr", []string{"check", "config", "bad.yml"}},
		{exitUsage, "missing.yml", []string{"check", "config", "missing.yml"}},
		{exitFindings, "histogram_count", []string{"check", "config", "rules.yml"}},
		{exitOK, "SUCCESS: nothing.yml: materializations: 0, recording rules: 0\n", []string{"check", "config", "nothing.yml"}},
		{exitOK, "only what is materialized can be answered\nSUCCESS: panes.yml: ", []string{"check", "config", "panes.yml"}},
		{exitOK, "SUCCESS: tidemark.yml: materializations: 1, recording rules: 0\n", []string{"check", "config"}},
		{exitOK, "SUCCESS: good.rules: materializations: 0, recording rules: 1\n", []string{"check", "rules", "good.rules"}},
		{exitOK, "r:m", []string{"check", "rules", "good.rules"}},
		{exitFindings, "histogram_count", []string{"check", "rules", "good.rules", "skip.rules"}},
		{exitUsage, "broken.rules", []string{"check", "rules", "broken.rules"}},
		{exitUsage, `faulty.rules:1: group "g": r:m: could not parse`, []string{"check", "rules", "faulty.rules"}},
		{exitUsage, `circle.rules:1: group "g": r:b: it reads r:a, and so itself`, []string{"check", "config", "circle.yml"}},
		{exitUsage, `faulty.rules:1: group "g": r:m: could not parse`, []string{"serve", "--config.file=faulty.yml"}},
		{exitUsage, `circle.rules:1: group "g": r:b: it reads r:a, and so itself`, []string{"serve", "--config.file=circle.yml"}},
		{exitUsage, "missing.rules", []string{"check", "rules", "missing.rules"}},
		{exitUsage, "files", []string{"check", "rules"}},
	} {
		code, out, errs := s.tool(tc.args...)
		if code != tc.code || !strings.Contains(out+errs, tc.says) {
			t.Errorf("%v: exit code %d, want %d with %q in\n%s%s", tc.args, code, tc.code, tc.says, out, errs)
		}
		if slices.Contains(tc.args, "--help") && errs != "" {
			t.Errorf("%v: help that was asked for is no error: %s", tc.args, errs)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "data")); err == nil {
		t.Error("a command line that starts nothing made a directory")
	}
}

// TestPortInUse holds that a taken port is a clear error, and that nothing is made before it is known.
func TestPortInUse(t *testing.T) {
	s := newSite(t, oneStream)
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr)
	if !strings.Contains(why, s.addr) || !strings.Contains(why, "in use") {
		t.Errorf("%s", why)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "data")); err == nil {
		t.Error("a directory was made")
	}
}
