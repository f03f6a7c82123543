package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A dashboard as Grafana exports it: variables in matchers, in ranges and as a step, a row, and what cannot be planned.
const sampleDashboard = `{
  "title": "Training", "templating": {"list": [
    {"name": "job", "current": {"value": ["a", "b"]}}, {"name": "window", "current": {"value": "5m"}}, {"name": "metric", "current": {"value": "x"}}
  ]},
  "panels": [
    {"title": "Rate", "targets": [{"expr": "sum by (job) (rate(requests_total{job=~\"$job\",code!=\"500\"}[$__rate_interval]))"}]},
    {"title": "Row", "panels": [
      {"title": "Latency", "interval": "30s", "targets": [
        {"expr": "quantile_over_time(0.95, latency_seconds{job=~\"[[job:regex]]\"}[$window])"},
        {"expr": "latency_seconds{job=\"${job}\", stage=\"eval\"}", "interval": "1m"}
      ]}
    ]},
    {"title": "Any", "targets": [{"expr": "rate($metric[5m])"}]},
    {"title": "Text"}
  ]
}`

// put puts a file into the directory of a site.
func (s *site) put(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// `tidemark suggest` prints, of a dashboard and of a query log, a configuration that `tidemark check config` accepts and by which the service
// answers from panes what it did not before; and `tidemark explain` says so, before and after.
func TestSuggestAndExplain(t *testing.T) {
	s := newSite(t, "", "--log.level=warn", "--web.enable-lifecycle")
	p := s.serveReady()
	now := time.Now().UnixMilli() / 60_000 * 60_000
	for at := now - 300_000; at <= now; at += 15_000 {
		s.write("latency_seconds", at, float64(at%7))
		s.write("requests_total", at, float64(at/1000))
	}
	code, out, errs := s.tool("suggest", "--dashboard", s.put("dashboard.json", sampleDashboard), "--url", s.url())
	if code != exitOK {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	for _, want := range []string{
		"name: 'requests_total:15s'", `expr: 'rate(requests_total{code!="500"}[1m])'`, "every: 15s",
		"name: 'latency_seconds:30s'", "expr: 'quantile_over_time(0.95, latency_seconds[5m])'", "every: 30s",
		"# answers 2 expressions, asked 2 times", "# about 1 series and", "# in all: about 2 series",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if strings.Count(out, "- name:") != 2 || !strings.Contains(errs, `panel "Any"`) || !strings.Contains(errs, "3 panels with 3 expressions") {
		t.Errorf("%s\n%s", out, errs)
	}

	at := fmt.Sprint(now / 1000)
	const expr = `sum(rate(requests_total{code!="500"}[1m])) + 1`
	code, tree, errs := s.tool("explain", expr, "--url", s.url(), "--time", at)
	if code != exitOK || !strings.Contains(tree, "local; panes do not: no_materialization") || !strings.Contains(tree, "name: 'requests_total:15s'") ||
		!strings.HasPrefix(tree, expr+"\n  sum(rate(") {
		t.Errorf("exit code %d: %s%s", code, tree, errs)
	}
	s.configure(out)
	if code, said, errs := s.tool("check", "config", "tidemark.yml"); code != exitOK || !strings.Contains(said, "requests_total:15s") {
		t.Fatalf("check config: exit code %d: %s%s", code, said, errs)
	}
	if r := s.must(http.MethodPost, "/-/reload"); r.code != http.StatusOK {
		t.Fatalf("reload: %d %s", r.code, r.body)
	}
	poll(t, readyWithin, "the suggested materializations serve", func() (bool, string) {
		body := s.must(http.MethodGet, "/api/v1/materializations").body
		return strings.Count(body, `"state":"serving"`) == 2, body
	})
	code, tree, errs = s.tool("explain", expr, "--url", s.url(), "--start", fmt.Sprint(now/1000-60), "--end", at, "--step", "15s")
	if code != exitOK || !strings.Contains(tree, "→ panes of 15s") || strings.Contains(tree, "tidemark.yml") {
		t.Errorf("exit code %d: %s%s", code, tree, errs)
	}
	if r, route := s.instant(expr, now); route != "warm" && route != "live" {
		t.Errorf("route %q: %s", route, r.body)
	}
	s.stop(p)
}

// A query log says which queries repeat, at which steps.
func TestSuggestOfAQueryLog(t *testing.T) {
	s := newSite(t, "")
	line := func(query string, step int, start string) string {
		return fmt.Sprintf(`{"time":"2026-01-01T00:00:00Z","level":"INFO","source":"engine.go:1","msg":"promql query logged","params":{"end":"2026-01-01T01:00:00.000Z","query":%q,"start":%q,"step":%d},"stats":{"timings":{"evalTotalTime":0.1}}}`,
			query, start, step) + "\n"
	}
	round, odd := "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:07.000Z"
	text := strings.Repeat(line("sum(rate(a[5m]))", 15, round), 3) + line("sum(rate(a[5m]))", 15, odd) + strings.Repeat(line("max_over_time(b[1m])", 0, round), 2) +
		line("once", 15, round) + "not of it\n" + strings.Repeat(line("sum(", 15, round), 2)
	path := s.put("query.log", text)
	code, out, errs := s.tool("suggest", "--query-log", path)
	want := `materializations:
  # answers 1 expression, asked 4 times
  - name: 'a:15s'
    expr: 'rate(a[5m])'
    every: 15s
  # answers 1 expression, asked 2 times
  - name: 'b:15s'
    expr: 'max_over_time(b[1m])'
    every: 15s
`
	if code != exitOK || out != want {
		t.Errorf("exit code %d: %s\nwant %s", code, out, want)
	}
	for _, say := range []string{"9 queries, 4 different ones; 1 of these", "1 lines are not", "1 range queries began", "no materialization for sum(: "} {
		if !strings.Contains(errs, say) {
			t.Errorf("no %q in %s", say, errs)
		}
	}
	s.configure(out)
	if code, said, errs := s.tool("check", "config", "tidemark.yml"); code != exitOK {
		t.Errorf("check config: exit code %d: %s%s", code, said, errs)
	}
	for _, args := range [][]string{{"suggest"}, {"suggest", "--query-log", path, "--dashboard", path}, {"suggest", "--query-log", "nowhere"}, {"explain", "m", "--start", "1"}} {
		if code, out, errs := s.tool(args...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s%s", args, code, out, errs)
		}
	}
	if code, out, errs := s.tool("suggest", "--dashboard", s.put("empty.json", `{"panels":[]}`)); code != exitFailure || !strings.Contains(errs, "not a dashboard") {
		t.Errorf("no dashboard: exit code %d: %s%s", code, out, errs)
	}
}
