package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func vector(samples ...string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(samples, ",") + `]}}`
}

func TestCase_D01_FormsAndLongQueries(t *testing.T) {
	w := newWorld(t, Options{})
	long := `m{i=~"` + strings.Repeat("aaaa|", 64<<10/5) + `a"}`
	for _, q := range []string{"m", long} {
		for _, tc := range []struct {
			path   string
			params []string
		}{
			{"/api/v1/query", []string{"query", q, "time", "1435781400"}},
			{"/api/v1/query_range", []string{"query", q, "start", "1435781280", "end", "1435781400", "step", "60"}},
			{"/api/v1/series", []string{"match[]", q}},
			{"/api/v1/labels", []string{"match[]", q}},
		} {
			posted := w.post(tc.path, tc.params...)
			w.wantCode(posted, http.StatusOK)
			if len(posted.body) < 40 {
				t.Errorf("%s: the answer is empty: %s", tc.path, posted.body)
			}
			if got := w.get(tc.path, tc.params...); got.code != posted.code || got.body != posted.body {
				t.Errorf("%s: GET gave %d %s\nPOST gave %s", tc.path, got.code, got.body, posted.body)
			}
			// Some clients POST with the parameters in the URL.
			if got := w.do(http.MethodPost, tc.path+"?"+values(tc.params).Encode(), ""); got.body != posted.body {
				t.Errorf("%s: POST with parameters in the URL gave %d %s", tc.path, got.code, got.body)
			}
		}
	}
	// A MiB of form is fine; what is beyond the bound is refused by size.
	w.wantCode(w.post("/api/v1/query", "query", "1", "pad", strings.Repeat("x", 1<<20)), http.StatusOK)
	w.wantError(w.post("/api/v1/query", "query", "1", "pad", strings.Repeat("x", 4<<20)), http.StatusRequestEntityTooLarge, "bad_data", "larger than")
	// A form that cannot be parsed is not a form without a query.
	w.wantError(w.do(http.MethodPost, "/api/v1/query", "query=%zz", "Content-Type", "application/x-www-form-urlencoded"), 400, "bad_data", "form values")
}

func TestCase_D03_TimeFormats(t *testing.T) {
	w := newWorld(t, Options{})
	want := vector(`{"metric":{},"value":[1435781451.781,"1"]}`)
	for _, at := range []string{"1435781451.781", "2015-07-01T20:10:51.781Z", "2015-07-01T22:10:51.781+02:00", "1435781451.7814", "1435781451.7808", "1.435781451781e9"} {
		w.want(w.get("/api/v1/query", "query", "vector(1)", "time", at), want)
	}
	w.want(w.get("/api/v1/query", "query", "vector(1)"), vector(`{"metric":{},"value":[1435781460,"1"]}`))
	w.want(w.get("/api/v1/query", "query", "vector(1)", "time", ""), vector(`{"metric":{},"value":[1435781460,"1"]}`))
	w.wantError(w.do(http.MethodGet, "/api/v1/query?query=1&time=2015-07-01T22:10:51.781+02:00", ""), 400, "bad_data", `invalid parameter \"time\"`)
	for _, at := range []string{"abc", "NaN", "Inf", "-Inf", "1e30", "2015-07-01", "0x"} {
		w.wantError(w.get("/api/v1/query", "query", "1", "time", at), 400, "bad_data", `invalid parameter \"time\"`)
	}
	// Every millisecond survives the way through a float.
	for ms := range 1000 {
		at := fmt.Sprintf("1435781451.%03d", ms)
		body := w.get("/api/v1/query", "query", "vector(1)", "time", at).body
		if ms != 0 && !strings.Contains(body, at) {
			t.Fatalf("time %s became %s", at, body)
		}
	}
}

func TestCase_D05_StepFormats(t *testing.T) {
	w := newWorld(t, Options{})
	for step, second := range map[string]string{"60": "60", "60s": "60", "1m": "60", "0.5": "0.500", "1m30s": "90", "1e1": "10"} {
		r := w.get("/api/v1/query_range", "query", "time()", "start", "0", "end", "90", "step", step)
		if r.code != 200 || !strings.Contains(r.body, `"values":[[0,"0"],[`+second+`,`) {
			t.Errorf("step %s: %d %.120s", step, r.code, r.body)
		}
	}
	for _, step := range []string{"", "abc", "1x", "NaN", "1e20", "Inf", "0.0001"} {
		w.wantError(w.get("/api/v1/query_range", "query", "1", "start", "0", "end", "0.5", "step", step), 400, "bad_data", `invalid parameter \"step\"`)
	}
	for _, step := range []string{"0", "-1", "0s"} {
		w.wantError(w.get("/api/v1/query_range", "query", "1", "start", "0", "end", "9", "step", step), 400, "bad_data", "zero or negative query resolution step widths are not accepted")
	}
}

func TestCase_D06_PointsLimit(t *testing.T) {
	w := newWorld(t, Options{})
	ask := func(end, step string) reply {
		return w.get("/api/v1/query_range", "query", "m", "start", "0", "end", end, "step", step)
	}
	reads := w.source.Reads
	for _, q := range [][2]string{{"11001", "1"}, {"9e9", "1"}, {"9.2e12", "0.001"}} {
		w.wantError(ask(q[0], q[1]), 400, "bad_data", "exceeded maximum resolution of 11,000 points per timeseries")
	}
	if w.source.Reads != reads {
		t.Error("data was touched before the bound was checked")
	}
	if r := w.get("/api/v1/query_range", "query", "vector(1)", "start", "0", "end", "11000", "step", "1"); strings.Count(r.body, `,"1"]`) != 11001 {
		t.Errorf("%d: %d points", r.code, strings.Count(r.body, `,"1"]`))
	}
	w.wantCode(w.get("/api/v1/query_range", "query", "vector(1)", "start", "0", "end", "11000.999", "step", "1"), 200)
	w.wantCode(w.get("/api/v1/query_range", "query", "vector(1)", "start", "0", "end", "1e12", "step", "1e8"), 200)
	w.wantError(w.get("/api/v1/query_range", "query", "1", "start", "1", "end", "0", "step", "1"), 400, "bad_data", "end timestamp must not be before start time")
	for missing, rest := range map[string]string{"start": "end=2&step=1", "end": "start=1&step=1", "step": "start=1&end=2"} {
		w.wantError(w.get("/api/v1/query_range?query=1&"+rest), 400, "bad_data", `invalid parameter \"`+missing+`\"`)
	}
}

func TestCase_D08_ErrorShapes(t *testing.T) {
	w := newWorld(t, Options{})
	w.wantError(w.get("/api/v1/query", "query", "sum("), 400, "bad_data", `invalid parameter \"query\": 1:5: parse error`)
	w.wantError(w.get("/api/v1/query"), 400, "bad_data", `invalid parameter \"query\"`)
	w.wantError(w.get("/api/v1/query_range", "query", "m[5m]", "start", "0", "end", "1", "step", "1"), 400, "bad_data", "invalid expression type")
	w.wantError(w.get("/api/v1/nope"), 404, "not_found", "/api/v1/nope")
	w.wantError(w.get("/api/v1/label/a/nope"), 404, "not_found", "no such endpoint")
	w.want(w.get("/api/v1/query", "query", "1/0", "time", "60.05"), `{"status":"success","data":{"resultType":"scalar","result":[60.05,"+Inf"]}}`)
	w.want(w.get("/api/v1/query", "query", "vector(0/0)", "time", "1"), vector(`{"metric":{},"value":[1,"NaN"]}`))
	w.wantError(w.get("/api/v1/query", "query", "sum without(i)(nope)"), 422, "execution", "no_materialization")
	w.wantError(w.get("/api/v1/query", "query", "label_replace(vector(1), \"0x\\xff\", \"\", \"\", \"\")"), 422, "execution", "")

	w.source.before = func(context.Context) error { return errDisk }
	w.wantError(w.get("/api/v1/query", "query", "m"), 500, "internal", errDisk.Error())
	w.source.before = nil
	w.wantCode(w.get("/api/v1/query", "query", "m"), 200)
}

func TestCase_D10_Timestamps(t *testing.T) {
	w := newWorld(t, Options{})
	for at, want := range map[string]string{"60": "60", "60.05": "60.050", "60.1": "60.100", "1435781451.781": "1435781451.781", "-1.5": "-1.500"} {
		w.want(w.get("/api/v1/query", "query", "vector(1)", "time", at), vector(`{"metric":{},"value":[`+want+`,"1"]}`))
	}
}

func TestCase_D11_EmptyIsNotNull(t *testing.T) {
	w := newWorld(t, Options{})
	w.want(w.get("/api/v1/query", "query", `m{i="nope"}`), vector())
	w.want(w.get("/api/v1/query_range", "query", `m{i="nope"}`, "start", "0", "end", "60", "step", "60"), `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	for path, want := range map[string]string{
		"/api/v1/labels?match[]=nope": "[]", "/api/v1/label/nope/values": "[]", "/api/v1/series?match[]=nope": "[]",
		"/api/v1/metadata?metric=nope": "{}", "/api/v1/query_exemplars?query=nope&start=1435781400000&end=1435781460000": "[]",
		"/api/v1/rules": `{"groups":[]}`, "/api/v1/alerts": `{"alerts":[]}`, "/api/v1/materializations": "[]", "/api/v1/status/flags": "{}",
	} {
		w.want(w.get(path), `{"status":"success","data":`+want+`}`)
	}
}

func TestCase_D12_LookbackEdge(t *testing.T) {
	w := newWorld(t, Options{})
	nine := func(at string) string { return vector(`{"metric":{"__name__":"m","i":"a"},"value":[` + at + `,"9"]}`) }
	ask := func(at, lookback string) reply {
		return w.get("/api/v1/query", "query", `m{i="a"}`, "time", at, "lookback_delta", lookback)
	}
	// Panes of a second answer at whole seconds.
	w.want(ask("299", ""), nine("299"))
	w.want(ask("300", ""), vector())
	w.want(ask("59", "60s"), nine("59"))
	w.want(ask("60", "60s"), vector())
	w.want(ask("60", "1m1s"), nine("60"))
	w.want(ask("1", "0.5"), vector())
	for _, bad := range []string{"abc", "1x", "NaN"} {
		w.wantError(ask("1", bad), 400, "bad_data", "lookback delta")
	}
}

func TestCase_D16_StepsAreNeverSnapped(t *testing.T) {
	w := newWorld(t, Options{})
	end := now.Unix() - 60 // not a multiple of the step
	r := w.get("/api/v1/query_range", "query", `m{i="a"}`, "start", fmt.Sprint(end-3600+30), "end", fmt.Sprint(end), "step", "1800")
	for _, at := range []int64{end - 3570, end - 1770} {
		if !strings.Contains(r.body, fmt.Sprintf("[%d,", at)) {
			t.Errorf("no value at %d in %s", at, r.body)
		}
	}
	if strings.Count(r.body, `"]`) != 2 {
		t.Errorf("want two points: %s", r.body)
	}
}

func TestCase_D26_Timeout(t *testing.T) {
	w := newWorld(t, Options{QueryTimeout: time.Minute})
	ended := make(chan error, 1)
	w.source.before = func(ctx context.Context) error {
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	for _, limit := range []string{"50ms", "0.05"} {
		began := time.Now()
		w.wantError(w.get("/api/v1/query", "query", "m", "timeout", limit), 503, "timeout", "")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("timeout=%s took %s", limit, took)
		}
		<-ended // the work has stopped
	}
	for _, bad := range []string{"abc", "-1", "0"} {
		w.wantError(w.get("/api/v1/query", "query", "m", "timeout", bad), 400, "bad_data", `invalid parameter \"timeout\"`)
	}
	short := newWorld(t, Options{QueryTimeout: 30 * time.Millisecond})
	short.source.before = w.source.before
	short.wantError(short.get("/api/v1/query", "query", "m", "timeout", "10h"), 503, "timeout", "")
	<-ended

	// A client that goes away takes its work with it.
	asked := make(chan struct{})
	w.source.before = func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/query?query=m", nil)
	go func() {
		<-asked
		cancel()
	}()
	if resp, err := w.client.Do(req); err == nil {
		resp.Body.Close()
		t.Error("the client was not cut off")
	}
	if err := <-ended; err != context.Canceled {
		t.Errorf("the work ended with %v", err)
	}
}

func TestCase_D30_StatsAndUnknownParameters(t *testing.T) {
	w := newWorld(t, Options{})
	q := []string{"query", `count_over_time(m{i="a"}[1m])`, "time", "1435781400"}
	plain := w.get("/api/v1/query", q...)
	w.want(plain, vector(`{"metric":{"i":"a"},"value":[1435781400,"1"]}`))
	w.want(w.get("/api/v1/query", append(q, "dedup", "true", "partial_response", "true", "nocache", "1", "_", "123")...), plain.body)
	for _, v := range []string{"true", "all", "x"} {
		r := w.get("/api/v1/query", append(q, "stats", v)...)
		var got struct {
			Data struct {
				ResultType string
				Result     json.RawMessage
				Stats      struct {
					Timings  map[string]float64
					Samples  map[string]any
					Tidemark map[string]any
				}
			}
			Warnings, Infos []string
		}
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.code != 200 {
			t.Fatalf("%d %s: %v", r.code, r.body, err)
		}
		if got.Data.ResultType != "vector" || string(got.Data.Result) != `[{"metric":{"i":"a"},"value":[1435781400,"1"]}]` {
			t.Errorf("stats=%s changed the result: %s", v, r.body)
		}
		if len(got.Data.Stats.Timings) != 6 || len(got.Data.Stats.Samples) == 0 || got.Data.Stats.Tidemark["route"] != "warm" {
			t.Errorf("stats=%s: %s", v, r.body)
		}
		if (len(got.Infos) == 1) != (v == "all") || (len(got.Warnings) == 1) != (v == "x") {
			t.Errorf("stats=%s: warnings %q, infos %q", v, got.Warnings, got.Infos)
		}
	}
}

// TestH4_HeadersTellWhereFrom holds what every success says about itself.
func TestH4_HeadersTellWhereFrom(t *testing.T) {
	w := newWorld(t, Options{})
	h := w.get("/api/v1/query", "query", "m", "time", "1435781400").header
	if h.Get("X-Tidemark-Route") != "warm" || h.Get("X-Tidemark-Seq") == "" || h.Get("X-Tidemark-Complete-Through") != fmt.Sprint(now.UnixMilli()) {
		t.Errorf("headers %v", h)
	}
	h = w.get("/api/v1/query", "query", "1").header
	if _, ok := h["X-Tidemark-Complete-Through"]; ok || h.Get("X-Tidemark-Route") != "warm" {
		t.Errorf("an answer that reads nothing claims completeness: %v", h)
	}
}

func TestLimitAndConsistency(t *testing.T) {
	w := newWorld(t, Options{})
	r := w.get("/api/v1/query", "query", "m", "time", "0", "limit", "1")
	w.want(r, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"m","i":"a"},"value":[0,"9"]}]},"warnings":["results truncated due to limit"]}`)
	for _, bad := range []string{"x", "-1", "1.5"} {
		w.wantError(w.get("/api/v1/query", "query", "m", "limit", bad), 400, "bad_data", `invalid parameter \"limit\"`)
	}
	w.wantCode(w.get("/api/v1/query", "query", "1", "consistency", "published"), 200)
	w.wantCode(w.get("/api/v1/query", "query", "1", "consistency", "live"), 200)
	w.wantError(w.get("/api/v1/query", "query", "1", "consistency", "odd"), 400, "bad_data", "neither published nor live")
}

func TestFormatQuery(t *testing.T) {
	w := newWorld(t, Options{})
	w.want(w.post("/api/v1/format_query", "query", "sum  by(a)(m)>1"), `{"status":"success","data":"sum by (a) (m) \u003e 1"}`)
	w.wantError(w.get("/api/v1/format_query", "query", "sum("), 400, "bad_data", "parse error")
	w.wantError(w.post("/api/v1/format_query", "query", strings.Repeat("sum(", 1600)+"m"+strings.Repeat(")", 1600)), 400, "bad_data", "nested")
}

func TestExplain(t *testing.T) {
	w := newWorld(t, Options{})
	w.wantError(w.get("/api/v1/explain?query=m"), 404, "not_found", "explain")
	w = newWorld(t, Options{Explain: w.engine})
	r := w.get("/api/v1/explain", "query", `sum(count_over_time(m[1m])) / nope`, "start", "60", "end", "120", "step", "60")
	var got struct {
		Data struct {
			Parts []struct {
				Node, Func, Stream string
				Window             int64 `json:"window_ms"`
				First              int64 `json:"first_ms"`
				Last               int64 `json:"last_ms"`
				Miss               *struct{ Reason, Detail string }
			}
		}
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || len(got.Data.Parts) != 2 {
		t.Fatalf("%s: %v", r.body, err)
	}
	hit, miss := got.Data.Parts[0], got.Data.Parts[1]
	if hit.Node != "count_over_time(m[1m])" || hit.Func != "count_over_time" || hit.Stream == "" || hit.Window != 60_000 || hit.First != 60_000 || hit.Last != 120_000 || hit.Miss != nil {
		t.Errorf("part %+v", hit)
	}
	if miss.Miss == nil || miss.Miss.Reason != "no_materialization" || miss.Stream != "" {
		t.Errorf("part %+v", miss)
	}
	w.wantError(w.get("/api/v1/explain?query=sum("), 400, "bad_data", "parse error")
	w.wantError(w.get("/api/v1/explain?query=m&start=1"), 400, "bad_data", "end")
	w.wantCode(w.get("/api/v1/explain?query=m"), 200)
	// Without a time it is explained for one that is on a grid. For a time that is on none another is to be asked for: nothing is to be added.
	for params, want := range map[string]string{"": `"source":"panes"`, "&time=90.5": `"reason":"off_grid"`} {
		r := w.get("/api/v1/explain?query=" + url.QueryEscape("count_over_time(m[1m])") + params)
		if !strings.Contains(r.body, want) || strings.Contains(r.body, `"add"`) {
			t.Errorf("%q: %s", params, r.body)
		}
	}
	if r := w.get("/api/v1/explain?query=" + url.QueryEscape("count_over_time(nope[1m])")); !strings.Contains(r.body, `"add":"materializations:`) {
		t.Error(r.body)
	}
}

// TestReplayGate holds that no query is answered from half a fold, and that everything else answers meanwhile.
func TestReplayGate(t *testing.T) {
	w := newWorld(t, Options{})
	w.ready.progress = "replaying: 1200 of 5000 events"
	for _, path := range []string{"/api/v1/query?query=1", "/api/v1/query_range?query=1&start=0&end=1&step=1", "/api/v1/series?match[]=m", "/api/v1/labels"} {
		r := w.get(path)
		w.wantError(r, 503, "unavailable", w.ready.progress)
		if r.header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
		}
	}
	for _, path := range []string{"/-/healthy", "/metrics", "/api/v1/status/buildinfo", "/", "/api/v1/materializations"} {
		w.wantCode(w.get(path), 200)
	}
	w.wantCode(w.do(http.MethodPost, "/api/v1/write", ""), 204)
	w.ready.progress = ""
	w.wantCode(w.get("/api/v1/query?query=1"), 200)
}

func TestQueryMetrics(t *testing.T) {
	w := newWorld(t, Options{})
	w.get("/api/v1/query", "query", "m")
	w.get("/api/v1/query", "query", "nope")
	w.get("/api/v1/query", "query", "sum(")
	w.get("/api/v1/query", "query", "m", "time", "x")
	want := `
# HELP tidemark_http_queries_total Queries put to the engine or the upstream, by the route of the answer (none: an error) and the reason why panes did not give it.
# TYPE tidemark_http_queries_total counter
tidemark_http_queries_total{miss="",route="none"} 1
tidemark_http_queries_total{miss="",route="warm"} 1
tidemark_http_queries_total{miss="no_materialization",route="none"} 1
# HELP tidemark_http_requests_total HTTP requests, by handler and status code.
# TYPE tidemark_http_requests_total counter
tidemark_http_requests_total{code="200",handler="query"} 1
tidemark_http_requests_total{code="400",handler="query"} 2
tidemark_http_requests_total{code="422",handler="query"} 1
`
	if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), "tidemark_http_queries_total", "tidemark_http_requests_total"); err != nil {
		t.Error(err)
	}
}
