package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// loggedLine is a line of the query log with all that is expected of it.
type loggedLine struct {
	Time, Level, Msg, Error string
	Params                  struct {
		Query, Start, End string
		Step              float64
	}
	Stats struct {
		Timings map[string]float64
		Samples map[string]any
	}
	HTTPRequest map[string]string `json:"httpRequest"`
	Tidemark    struct {
		Route, Miss string
		TotalTime   float64
	}
}

func (s *site) logged(name string) (all []loggedLine) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var l loggedLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			s.t.Fatalf("%v in %s", err, line)
		}
		all = append(all, l)
	}
	return all
}

// The query log has every query that took as long as configured, is opened anew by a reload, and is what suggest reads.
func TestQueryLog(t *testing.T) {
	const config = oneStream + "query: {log_file: queries.log}\n"
	s := newSite(t, config, "--log.level=warn", "--web.enable-lifecycle")
	p := s.serveReady()
	at := time.Now().UnixMilli() / 60_000 * 60_000
	s.write("m", at, 1)
	for range 2 {
		s.must(http.MethodGet, "/api/v1/query_range", "query", "sum_over_time(m[1m])", "start", seconds(at-60_000), "end", seconds(at), "step", "10")
	}
	s.must(http.MethodGet, "/api/v1/query", "query", "rate(nothing[1m])", "time", seconds(at))
	s.must(http.MethodGet, "/api/v1/query", "query", "sum(", "time", seconds(at))
	got := s.logged("queries.log")
	if len(got) != 4 {
		t.Fatalf("%d lines: %+v", len(got), got)
	}
	l := got[0]
	when := func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00") }
	if l.Params.Query != "sum_over_time(m[1m])" || l.Params.Start != when(at-60_000) || l.Params.End != when(at) || l.Params.Step != 10 || l.Error != "" {
		t.Errorf("%+v", l)
	}
	if _, ok := l.Stats.Timings["execTotalTime"]; !ok || l.Stats.Samples == nil || l.HTTPRequest["path"] != "/api/v1/query_range" || l.HTTPRequest["clientIP"] != "127.0.0.1" {
		t.Errorf("%+v", l)
	}
	if l.Msg != "promql query logged" || l.Time == "" || l.Level != "INFO" || l.Tidemark.Route != "live" && l.Tidemark.Route != "warm" || l.Tidemark.TotalTime <= 0 {
		t.Errorf("%+v", l)
	}
	if l := got[2]; !strings.Contains(l.Error, "no_materialization") || l.Tidemark.Miss != "no_materialization" || l.Tidemark.Route != "none" {
		t.Errorf("%+v", l)
	}
	if code, out, errs := s.tool("suggest", "--query-log", "queries.log"); code != exitOK || !strings.Contains(out, "expr: 'sum_over_time(m[1m])'") || strings.Contains(out, "nothing") {
		t.Errorf("suggest: exit code %d: %s%s", code, out, errs)
	}

	if err := os.Rename(filepath.Join(s.dir, "queries.log"), filepath.Join(s.dir, "older.log")); err != nil {
		t.Fatal(err)
	}
	reload := func(code int) {
		t.Helper()
		if r := s.must(http.MethodPost, "/-/reload"); r.code != code {
			t.Fatalf("reload: %d %s", r.code, r.body)
		}
	}
	reload(http.StatusOK)
	s.must(http.MethodGet, "/api/v1/query", "query", "1+1")
	if got := s.logged("queries.log"); len(got) != 1 || got[0].Params.Query != "1+1" || len(s.logged("older.log")) != 4 {
		t.Errorf("after a reload: %+v", got)
	}
	s.configure(oneStream + "query: {log_file: queries.log, log_threshold: 1h}\n")
	reload(http.StatusOK)
	s.must(http.MethodGet, "/api/v1/query", "query", "2")
	s.configure(oneStream + "query: {log_file: no/such/directory/q.log}\n")
	reload(http.StatusInternalServerError)
	s.configure(oneStream)
	reload(http.StatusOK)
	s.must(http.MethodGet, "/api/v1/query", "query", "3")
	if got := s.logged("queries.log"); len(got) != 1 {
		t.Errorf("below the threshold, and without a log: %+v", got)
	}
	if n := s.metric(`tidemark_http_query_duration_seconds_count{route="none"}`); n != 2 {
		t.Errorf("%v queries without a route", n)
	}
	s.stop(p)
}

// stats=all has Prometheus' members and beside them what the route took.
func TestStats(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute + "exact: {local: true}\n"})
	v.send(sent{"m", 30_000, 2}, sent{"m", 90_000, 3})
	v.barrier(120_000)
	for _, c := range []struct{ expr, route string }{{"sum(sum_over_time(m[1m]))", "warm"}, {"sum_over_time(m[90s])", "local"}} {
		_, _, body := v.form("/api/v1/query_range", "query", c.expr, "start", "60", "end", "120", "step", "60", "stats", "all")
		var got struct {
			Data struct {
				Stats struct {
					Timings, Samples map[string]float64
					Tidemark         struct {
						Route   string
						Miss    string
						Steps   map[string]int
						Timings map[string]float64
					}
				}
			}
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		st := got.Data.Stats
		own := st.Tidemark
		for _, name := range []string{"evalTotalTime", "resultSortTime", "queryPreparationTime", "innerEvalTime", "execQueueTime", "execTotalTime"} {
			if _, ok := st.Timings[name]; !ok {
				t.Errorf("%s: no %s in %s", c.expr, name, body)
			}
		}
		for _, name := range []string{"totalQueryableSamples", "peakSamples"} {
			if _, ok := st.Samples[name]; !ok {
				t.Errorf("%s: no %s in %s", c.expr, name, body)
			}
		}
		if own.Route != c.route || own.Steps[c.route] != 2 || own.Timings["totalTime"] < st.Timings["execTotalTime"] || own.Timings["totalTime"] < own.Timings["readingTime"] {
			t.Errorf("%s: %s", c.expr, body)
		}
		if (own.Timings["readingTime"] > 0) != (c.route == "warm") || (own.Miss != "") != (c.route == "local") {
			t.Errorf("%s: %s", c.expr, body)
		}
	}
	v.mustStop()
}
