package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
	"tidemark/transport/remotewrite"
)

// copyWasTried says that the copy met what it has to decide.
func copyWasTried(t *testing.T, m numbers) {
	if m.of(t, "sample_repeated_total") == 0 || m.of(t, "sample_appended_total", "order", "late") == 0 {
		t.Error("nothing was sent twice, or nothing out of order")
	}
	if refused := m.of(t, "sample_refused_total"); refused != 0 {
		t.Errorf("%v samples were refused", refused)
	}
}

// offGrid asks at times of no grid, half of the time.
func offGrid(rng *rand.Rand, q *oracle.Query) {
	if rng.IntN(2) == 0 {
		return
	}
	q.Start += rng.Int64N(15_000)
	if q.Step > 0 {
		q.End = max(q.Start, q.End)
		q.Step += 125 * rng.Int64N(16) // seconds that are exact
	}
}

func neverMisses(answered, oracle.Query) bool { return false }

// Without a plan and without an upstream every expression is answered, at any time, as Prometheus does over the same samples, the
// first value of each time: from the exact copy.
func TestDifferential_Local(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	compared := 0
	how := contest{config: "exact: {local: true}", adapt: offGrid, miss: neverMisses, check: copyWasTried}
	for _, seed := range []uint64{11, fresh} {
		compared += differential(t, seed, each, how, routes)
	}
	t.Logf("fresh seed %d: %d pairs compared, routes: %v", fresh, compared, routes)
	if compared != 2*each || routes["local"] < compared*8/10 || routes["hybrid"] > 0 {
		t.Errorf("%d pairs compared, routes: %v", compared, routes)
	}
}

// someOfThePlan is the random plan without some of its streams.
func someOfThePlan() string {
	var some []string
	for _, line := range strings.Split(randomPlan(), "\n") {
		if !strings.Contains(line, "planned_gauge") && !strings.Contains(line, "latency") && !strings.Contains(line, "jobs") {
			some = append(some, line)
		}
	}
	return strings.Join(some, "\n") + "\n"
}

// Where some parts of an expression are planned and others are not, or not at these times, panes and the exact copy answer together.
func TestDifferential_Hybrid(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	compared := 0
	how := contest{
		config: someOfThePlan() + "exact: {local: true}\n", plans: true, miss: neverMisses,
		check: func(t *testing.T, m numbers) {
			panesWereTried(t, m)
			copyWasTried(t, m)
		},
		adapt: func(rng *rand.Rand, q *oracle.Query) {
			if rng.IntN(4) == 0 {
				offGrid(rng, q)
			}
		},
	}
	for _, seed := range []uint64{12, fresh} {
		compared += differential(t, seed, each, how, routes)
	}
	t.Logf("fresh seed %d: %d pairs compared, routes: %v", fresh, compared, routes)
	if compared != 2*each || routes["local"] < each/10 || routes["hybrid"] < each/10 || routes["warm"] < each/10 {
		t.Errorf("%d pairs compared, routes: %v", compared, routes)
	}
}

// What is not published is answered from open panes, as of everything that was acknowledged, beside what is published: without any
// barrier, and with one in the middle.
func TestDifferential_Live(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	for _, c := range []struct {
		seed    uint64
		through int64
		least   map[string]int
	}{
		{13, -1, map[string]int{"live": each / 16}},
		{fresh, querytest.Span / 2, map[string]int{"live": each / 100, "warm": each / 8}},
	} {
		routes := map[string]int{}
		how := panesOnly()
		how.config += "query: {unpublished: live}\n"
		how.through = c.through
		compared := differential(t, c.seed, each, how, routes)
		t.Logf("seed %d: %d pairs compared, routes: %v", c.seed, compared, routes)
		for route, least := range c.least {
			if routes[route] < least {
				t.Errorf("seed %d: routes: %v", c.seed, routes)
			}
		}
	}
}

// A dashboard over the last hour, which ends now, keeps its warm part: only steps that reach into open panes are live. A barrier makes
// the rest warm, too.
func TestDashboardThatEndsNowIsWarm(t *testing.T) {
	const step, steps = 15_000, 240
	v := startService(t, setup{config: `
query: {unpublished: live}
materializations:
  - {name: planned, expr: "rate(requests_total[1m])", every: 15s}
`})
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now().UnixMilli() / step * step
	all := make([]querytest.Series, 20)
	for i := range all {
		all[i].Labels = labels.FromStrings("__name__", "requests_total", "job", fmt.Sprint(i%3), "instance", fmt.Sprint(i))
		value := 0.0
		for at := now - (steps+8)*step + rng.Int64N(step); at <= now; at += step {
			value += float64(rng.IntN(50))
			all[i].T, all[i].V = append(all[i].T, at), append(all[i].V, value)
		}
	}
	for from := 0; from < len(all[0].T); from += 40 {
		var body []remotewrite.Series
		for _, s := range all {
			w := remotewrite.Series{Labels: s.Labels}
			for k := from; k < min(from+40, len(s.T)); k++ {
				w.Samples = append(w.Samples, remotewrite.Sample{Time: s.T[k], Value: s.V[k]})
			}
			body = append(body, w)
		}
		if err := v.write.Write(t.Context(), body); err != nil {
			t.Fatal(err)
		}
	}
	engine, data := oracle.NewEngine(1_000_000), oracle.Storage(all)
	ask := func(expr string) map[string]int {
		q := oracle.Query{Expr: expr, Start: now - (steps-1)*step, End: now, Step: step}
		code, header, body := v.form("/api/v1/query_range", "query", expr, "start", seconds(q.Start), "end", seconds(q.End), "step", "15", "stats", "all")
		got := decodeAnswer(t, code, header, body)
		if got.Err != nil {
			t.Fatalf("%s: %v", expr, got.Err)
		}
		got.Infos = nil // the route in words
		if err := oracle.Compare(got.Outcome, oracle.Ask(t.Context(), engine, data, q), oracle.Terms{Sum: 1e6}); err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		var stats struct {
			Data struct {
				Stats struct {
					Tidemark struct{ Steps map[string]int }
				}
			}
		}
		if err := json.Unmarshal(body, &stats); err != nil {
			t.Fatal(err)
		}
		return stats.Data.Stats.Tidemark.Steps
	}
	exprs := []string{
		"sum by (job) (rate(requests_total[1m]))", "requests_total", "topk(2, increase(requests_total[5m]))",
		"sum(rate(requests_total[1m])) / count(requests_total)",
	}
	for _, expr := range exprs {
		if s := ask(expr); s["warm"] < steps*95/100 || s["live"] == 0 || s["warm"]+s["live"] != steps {
			t.Errorf("%s: steps by route: %v", expr, s)
		}
	}
	v.barrier(now)
	for _, expr := range exprs {
		if s := ask(expr); s["warm"] != steps {
			t.Errorf("%s: steps by route after a barrier: %v", expr, s)
		}
	}
}

// `tidemark serve` without any configuration answers any query over what was written to it, and lists, exemplars, metadata and statistics
// besides.
func TestServeWithoutConfigurationAnswersAnything(t *testing.T) {
	s := newSite(t, "", "--log.level=warn")
	if err := os.Remove(filepath.Join(s.dir, "tidemark.yml")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	p := s.serveReady()
	now := time.Now().UnixMilli()/1000*1000 + 7
	req := prompb.WriteRequest{
		Timeseries: []prompb.TimeSeries{
			{
				Labels:    []prompb.Label{{Name: "__name__", Value: "old"}},
				Samples:   []prompb.Sample{{Timestamp: now - 3_600_000, Value: 3}},
				Exemplars: []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace", Value: "x"}}, Timestamp: now - 3_600_000, Value: 3}},
			},
			{
				Labels:     []prompb.Label{{Name: "__name__", Value: "native"}},
				Histograms: []prompb.Histogram{prompb.FromIntHistogram(now, tsdbutil.GenerateTestHistogram(1))},
			},
		},
		Metadata: []prompb.MetricMetadata{{MetricFamilyName: "old", Type: prompb.MetricMetadata_GAUGE, Help: "How old."}},
	}
	body, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	client := remotewrite.Client{URL: s.url() + remotewrite.Path, HTTP: s.http}
	if err := client.Send(t.Context(), snappy.Encode(nil, body)); err != nil {
		t.Fatal(err)
	}
	want := func(path, text string) {
		t.Helper()
		r, err := fetch(s.http, http.MethodGet, s.url()+path, nil)
		if err != nil || r.code != http.StatusOK || !strings.Contains(r.body, text) {
			t.Errorf("%s: status %d, %s, %v; want %s", path, r.code, r.body, err, text)
		}
	}
	at, hour := seconds(now), seconds(now-3_600_000)
	all := func() {
		t.Helper()
		want("/api/v1/query?query=old&time="+hour, `"value":[`+hour+`,"3"]`)
		want("/api/v1/query?query=histogram_count(native)&time="+at, `"value":[`+at+`,"21"]`)
		want("/api/v1/query?query=native&time="+at, `"histogram":[`+at+`,{"count":"21"`)
		want("/api/v1/query?query=double_exponential_smoothing(old[2h],0.5,0.5)&time="+at, `"result":[]`)
		want("/api/v1/series?match[]={__name__!=\"\"}", `[{"__name__":"native"},{"__name__":"old"}]`)
		want("/api/v1/series?match[]={__name__!=\"\"}&start="+seconds(now-60_000), `"data":[{"__name__":"native"}]`)
		want("/api/v1/label/__name__/values", `"data":["native","old"]`)
		want("/api/v1/labels", `"data":["__name__"]`)
		want("/api/v1/metadata", `{"old":[{"type":"gauge","help":"How old.","unit":""}]}`)
		want("/api/v1/query_exemplars?query=old", `{"seriesLabels":{"__name__":"old"},"exemplars":[{"labels":{"trace":"x"},"value":"3","timestamp":`+hour+`}]}`)
		want("/api/v1/status/tsdb", `"numSeries":2`)
		want("/api/v1/parse_query?query=sum+by+(a)+(rate(old[5m]))", `"type":"aggregation"`)
		want("/api/v1/explain?query=old", `"source":"local"`)
	}
	all()
	p.kill()
	p = s.serveReady()
	all()
	s.stop(p)

	// Deleted, and rebuilt, it is the same again.
	code, out, errs := s.tool("rebuild", "--projection", "sample", "--verify")
	if _, err := os.Stat(filepath.Join(s.dir, "data", copyDir+rebuildSuffix)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a copy that was only compared stays: %v", err)
	}
	if code != exitOK || !strings.Contains(out, "equal") {
		t.Errorf("rebuild --verify: exit code %d\n%s%s", code, out, errs)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "data", copyDir)); err != nil {
		t.Fatal(err)
	}
	p = s.serveReady()
	all()
	s.stop(p)
	if code, out, errs := s.tool("rebuild", "--projection", "sample"); code != exitOK || !strings.Contains(out, "reflects the log up to") {
		t.Errorf("rebuild: exit code %d\n%s%s", code, out, errs)
	}
	p = s.serveReady()
	all()
	s.stop(p)
}

// An upstream may have samples from before the first write. A window that reaches back further is its to answer, whether panes or a record
// would; so is everything before there is a write. What a rule has recorded is read by its name as before.
func TestUpstreamAnswersWhatLiesBeforeTheFirstWrite(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[]}}`)
	}))
	defer up.Close()
	v := startService(t, setup{dir: t.TempDir(), config: `
materializations:
  - {name: m_sum, expr: "sum_over_time(m[1m])", every: 1m}
  - {name: m_total, expr: "sum(max_over_time(m[2m]))", every: 1m, layout: full_window}
exact: {upstream: '` + up.URL + `'}
`})
	const panes, record, name = "sum_over_time(m[1m])", "sum(max_over_time(m[2m]))", "m_total"
	routes := func(want map[string]map[int64]string) {
		t.Helper()
		for expr, at := range want {
			for ts, route := range at {
				if a := v.instant(expr, ts); a.route != route {
					t.Errorf("%s at %d: route %q, not %q: %v", expr, ts, a.route, route, a.Err)
				}
			}
		}
	}
	routes(map[string]map[int64]string{panes: {60_000: "upstream", 240_000: "upstream"}, record: {240_000: "upstream"}})
	for ts := int64(90_000); ts < 420_000; ts += 30_000 {
		v.send(sent{"m", ts, 1})
	}
	v.barrier(420_000)
	poll(t, time.Minute, "recorded steps", func() (bool, string) {
		n, err := newService(v.base, 1).metric(t.Context(), "tidemark_window_recorded_steps_total")
		return n >= 6, fmt.Sprint(n, err)
	})
	want := map[string]map[int64]string{
		panes:  {60_000: "upstream", 120_000: "upstream", 180_000: "warm", 420_000: "warm"},
		record: {120_000: "upstream", 180_000: "upstream", 240_000: "warm", 420_000: "warm"},
		name:   {180_000: "warm", 240_000: "warm"},
	}
	routes(want)
	v = v.restart()
	routes(want)
	v.mustStop()

	// An exact copy beside the upstream has nothing older either.
	v = startService(t, setup{dir: t.TempDir(), config: panesOfAMinute + "exact: {local: true, upstream: '" + up.URL + "'}\n"})
	v.send(sent{"m", 90_000, 1}, sent{"m", 150_000, 1})
	v.barrier(180_000)
	routes(map[string]map[int64]string{
		panes:                     {120_000: "upstream", 180_000: "warm"},
		"count_over_time(m[90s])": {120_000: "upstream", 180_000: "local"},
	})
	v.mustStop()
}

// An upstream that is down takes nothing from warm answers, and what only it could answer says why it does not.
func TestUpstreamDown(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute + "exact: {upstream: \"http://127.0.0.1:1\"}\n"})
	v.send(sent{"m", 30_000, 2}, sent{"m", 90_000, 3})
	v.barrier(120_000)
	if a := v.instant("sum_over_time(m[1m])", 120_000); a.route != "warm" || a.one(t) != 3 {
		t.Errorf("%+v", a)
	}
	a := v.instant("sum_over_time(other[1m])", 60_000)
	if a.code != http.StatusBadGateway && a.code != http.StatusServiceUnavailable || !strings.Contains(a.Err.Error(), "no_materialization") {
		t.Errorf("status %d, %v", a.code, a.Err)
	}
}

// An upstream has no series under the name of an entry of the configuration file, and would say so with an empty success. It is asked for
// everything else, also for what a rule records: it may have the same rules.
func TestUpstreamIsNotAskedForWhatOnlyThisHas(t *testing.T) {
	var asked atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[]}}`)
	}))
	defer up.Close()
	dir := t.TempDir()
	rules := "groups: [{name: g, interval: 1m, rules: [{record: 'r:sum', expr: 'sum(sum_over_time(m[1m]))'}]}]\n"
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	v := startService(t, setup{dir: dir, config: panesOfAMinute + "rule_files: [r.yml]\nexact: {upstream: '" + up.URL + "'}\n"})
	v.send(sent{"m", 30_000, 2})
	v.barrier(60_000)
	const unpublished = 180_000
	for _, c := range []struct {
		expr    string
		forward bool
	}{
		{"m_sum", false}, {`sum({__name__="m_sum"}) + other`, false}, {`{__name__=~"m_sum|c_rate"}`, false},
		{"sum_over_time(m[1m])", true}, {"other", true}, {"r:sum", true}, {`{__name__=~"m_sum|other"}`, true},
	} {
		before := asked.Load()
		a := v.instant(c.expr, unpublished)
		if forwarded := a.route == "upstream" && asked.Load() == before+1; forwarded != c.forward {
			t.Errorf("%s: forwarded %t, route %q, %v", c.expr, forwarded, a.route, a.Err)
		}
		if !c.forward && (a.code != http.StatusUnprocessableEntity || a.miss == "") {
			t.Errorf("%s: status %d, %v", c.expr, a.code, a.Err)
		}
	}
	x := exchange{method: http.MethodGet, path: "/api/v1/query", params: [][2]string{{"query", "m_sum"}, {"time", "60"}}}
	if _, told := x.ask(t, v.http, v.base, http.Header{"Cache-Control": {"no-store"}}); told.Get("X-Tidemark-Route") != "warm" {
		t.Errorf("no-store: route %q", told.Get("X-Tidemark-Route"))
	}
	v.mustStop()
}
