package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// observed is how long Prometheus scrapes before the questions; everything is asked about this span of time.
const observed = 40 * time.Second

// lookedBack is how far both look back for the newest sample: what lies before the first write is the upstream's to answer, and the questions
// are asked soon after it.
const lookedBack = "15s"

// TestPeers runs a real Prometheus with real targets against the service, which is stopped and started again on the way, while
// one target dies. Behind a barrier the service answers what its plan covers as Prometheus does, from panes alone; what the
// plan does not cover it hands on unchanged; and no sample is lost or doubled.
func TestPeers(t *testing.T) {
	requirePeers(t)
	s := newSite(t, "", "--log.level=warn", "--query.lookback-delta="+lookedBack)
	p, first := startPeers(t, s.url()+"/api/v1/write")
	s.configure(peersConfig + "exact: {local: false, upstream: \"" + p.url + "\"}\n")
	service := s.serveReady()
	from := (first/5000 + 1) * 5000
	to := from + observed.Milliseconds()

	p.awaitSent(from + 7_000)
	s.stop(service)
	stopped := time.Now().UnixMilli()
	poll(t, time.Minute, "retries against a stopped service", func() (bool, string) {
		retried, scraped := p.metric("prometheus_remote_storage_samples_retried_total"), p.metric("prometheus_remote_storage_highest_timestamp_in_seconds")
		return retried > 0 && scraped > float64(stopped/1000+3), fmt.Sprintf("%.0f retried, scraped up to %.0f", retried, scraped)
	})
	service = s.serveReady()
	p.awaitSent(from + 18_000)
	p.mortal.kill()
	p.awaitSent(to)
	if through, err := s.barrier(to); err != nil || through < to {
		t.Fatalf("barrier at %d: complete through %d, %v", to, through, err)
	}

	c := &comparison{t: t, s: s, p: p, to: to, engine: oracle.NewEngine(10_000_000), series: p.samples(from, to)}
	c.prepare()
	t.Run("warm", func(t *testing.T) { c.t = t; c.warm() })
	t.Run("counts", func(t *testing.T) { c.t = t; c.counts(from) })
	t.Run("upstream", func(t *testing.T) { c.t = t; c.upstream() })
	t.Run("promtool", func(t *testing.T) { c.t = t; c.promtool() })
	for _, result := range []string{"conflict", "late_dropped", "late_uncorrectable"} {
		if n := s.metric(fmt.Sprintf(`tidemark_pane_samples_total{result=%q}`, result)); n != 0 {
			t.Errorf("%g samples ended as %s", n, result)
		}
	}
	if lost := p.metric("prometheus_remote_storage_samples_failed_total"); lost != 0 {
		t.Errorf("Prometheus gave up %.0f samples", lost)
	}
	t.Run("alone", func(t *testing.T) { c.t = t; c.alone() })
	s.stop(service)
	t.Run("log", func(t *testing.T) { c.t = t; c.log(from) })
}

// comparison asks the service, that Prometheus, and Prometheus' newest engine over the same samples.
type comparison struct {
	t      *testing.T
	s      *site
	p      *peers
	to     int64 // ms, up to which everything is there
	engine *promql.Engine
	series []oracle.Series
	data   storage.Queryable
	edges  map[int64]bool // times of samples on full seconds

	answers, steps, skipped int
}

func (c *comparison) prepare() {
	c.data = oracle.Storage(c.series)
	c.edges = make(map[int64]bool)
	samples, markers := 0, 0
	for _, s := range c.series {
		for i, at := range s.T {
			samples++
			if value.IsStaleNaN(s.V[i]) {
				markers++
			}
			if at%1000 == 0 {
				c.edges[at] = true
			}
		}
	}
	c.t.Logf("%d series with %d samples, of which %d are stale markers; %d times on an edge", len(c.series), samples, markers, len(c.edges))
	if markers == 0 {
		c.t.Error("a target has died and left no stale marker")
	}
}

// warm compares every planned query at two instants and over two ranges.
func (c *comparison) warm() {
	for _, q := range plannedQueries {
		for _, at := range []int64{c.to, c.to - 5_000} {
			c.compare(q, oracle.Query{Expr: q.expr, Start: at, End: at})
		}
		c.compare(q, oracle.Query{Expr: q.expr, Start: c.to - 15_000, End: c.to, Step: 5_000})
		if q.everySecond {
			c.compare(q, oracle.Query{Expr: q.expr, Start: c.to - 12_000, End: c.to - 1_000, Step: 1_000})
		}
	}
	c.t.Logf("%d warm answers equal those of Prometheus and of the newest engine; %d steps, and %d with a sample on an edge of a window, where Prometheus 2 counts otherwise",
		c.answers, c.steps, c.skipped)
	if c.answers < 40 || c.skipped > c.steps/2 {
		c.t.Errorf("too little was compared: %d answers, %d steps, %d left out", c.answers, c.steps, c.skipped)
	}
}

func (c *comparison) compare(p planned, q oracle.Query) {
	c.t.Helper()
	path, params := "/api/v1/query", []string{"query", q.Expr, "time", promSeconds(q.Start)}
	if q.Step > 0 {
		path, params = "/api/v1/query_range", []string{"query", q.Expr, "start", promSeconds(q.Start), "end", promSeconds(q.End), "step", promSeconds(q.Step)}
	}
	r := c.s.must(http.MethodGet, path, params...)
	if route := r.header.Get("X-Tidemark-Route"); r.code != http.StatusOK || route != "warm" {
		c.t.Errorf("%s: status %d, route %q: %.300s", q, r.code, route, r.body)
		return
	}
	if through, err := strconv.ParseInt(r.header.Get("X-Tidemark-Complete-Through"), 10, 64); err != nil || through < c.to {
		c.t.Errorf("%s: complete through %q", q, r.header.Get("X-Tidemark-Complete-Through"))
	}
	got, err := parseAnswer(r.body)
	if err != nil {
		c.t.Errorf("%s: %v", q, err)
		return
	}
	terms := oracle.Terms{Sum: p.terms}
	if err := oracle.Compare(got, oracle.Ask(c.t.Context(), c.engine, c.data, q), terms); err != nil {
		c.t.Errorf("%s: against the newest engine: %v", q, err)
	}
	want, err := parseAnswer(c.p.ask(http.MethodGet, path, params...).body)
	if err != nil {
		c.t.Errorf("%s: Prometheus: %v", q, err)
		return
	}
	c.answers++
	c.leaveOutEdges(&got, &want, q)
	want.Warnings, want.Infos = got.Warnings, got.Infos // Prometheus 2 has none
	if err := oracle.Compare(got, want, terms); err != nil {
		c.t.Errorf("%s: against Prometheus: %v", q, err)
	}
}

// leaveOutEdges takes the steps out of both answers at which a window of the query has a sample on its left edge.
func (c *comparison) leaveOutEdges(got, want *oracle.Outcome, q oracle.Query) {
	c.t.Helper()
	expr, err := plan.NewParser().ParseExpr(q.Expr)
	if err != nil {
		c.t.Fatal(err)
	}
	leaves, err := plan.Leaves(expr, oracle.Lookback)
	if err != nil {
		c.t.Fatal(err)
	}
	out := make(map[int64]bool)
	for at := q.Start; at <= q.End; at += max(q.Step, 1) {
		c.steps++
		if slices.ContainsFunc(leaves, func(l plan.Leaf) bool { return c.edges[at-l.OffsetMillis-l.RangeMillis] }) {
			out[at] = true
			c.skipped++
		}
	}
	if len(out) > 0 {
		got.Value, want.Value = without(got.Value, out), without(want.Value, out)
	}
}

func without(v parser.Value, out map[int64]bool) parser.Value {
	switch v := v.(type) {
	case promql.Vector:
		return slices.DeleteFunc(slices.Clone(v), func(s promql.Sample) bool { return out[s.T] })
	case promql.Matrix:
		left := promql.Matrix{}
		for _, s := range v {
			s.Floats = slices.DeleteFunc(slices.Clone(s.Floats), func(f promql.FPoint) bool { return out[f.T] })
			if len(s.Floats) > 0 {
				left = append(left, s)
			}
		}
		return left
	}
	return v
}

// counts compares the number of samples of every series that Prometheus has scraped. Its range is a millisecond shorter, so that
// the left edge is out on both sides.
func (c *comparison) counts(from int64) {
	names := make(map[string]int)
	for _, s := range c.series {
		names[s.Labels.Get(model.MetricNameLabel)]++
	}
	samples := 0.0
	for name := range names {
		here, at := fmt.Sprintf(`count_over_time(%s{job=~".+"}[%dms])`, name, c.to-from), promSeconds(c.to)
		there := fmt.Sprintf(`count_over_time(%s{job=~".+"}[%dms])`, name, c.to-from-1)
		r := c.s.must(http.MethodGet, "/api/v1/query", "query", here, "time", at)
		if route := r.header.Get("X-Tidemark-Route"); route != "warm" {
			c.t.Fatalf("%s: %d %q %.300s", here, r.code, route, r.body)
		}
		got, err := parseAnswer(r.body)
		if err != nil {
			c.t.Fatal(err)
		}
		want, err := parseAnswer(c.p.ask(http.MethodGet, "/api/v1/query", "query", there, "time", at).body)
		if err != nil {
			c.t.Fatal(err)
		}
		if err := oracle.Compare(got, want, oracle.Terms{}); err != nil {
			c.t.Errorf("%s: %v", here, err)
		}
		if n := len(want.Value.(promql.Vector)); n != names[name] {
			c.t.Errorf("%s: %d series, %d before", there, n, names[name])
		}
		for _, v := range got.Value.(promql.Vector) {
			samples += v.F
		}
	}
	c.t.Logf("%.0f samples of %d series under %d names, counted on both sides", samples, len(c.series), len(names))
}

// upstream compares answers that the service hands on with those that Prometheus gives itself.
func (c *comparison) upstream() {
	compared := 0
	same := func(method, path string, header []string, params ...string) {
		c.t.Helper()
		want := c.p.ask(method, path, params...)
		got, err := fetch(c.s.http, method, c.s.url()+path, form(params...), header...)
		if err != nil {
			c.t.Fatal(err)
		}
		if route := got.header.Get("X-Tidemark-Route"); route != "upstream" || got.code != want.code || got.body != want.body {
			c.t.Errorf("%s %s %q: route %q\nhere  %d %.500s\nthere %d %.500s", method, path, params, route, got.code, got.body, want.code, want.body)
		}
		if g, w := got.header.Get("Content-Type"), want.header.Get("Content-Type"); g != w {
			c.t.Errorf("%s %s %q: Content-Type %q, of Prometheus %q", method, path, params, g, w)
		}
		compared++
	}
	at := promSeconds(c.to)
	for _, expr := range unplannedQueries {
		same(http.MethodGet, "/api/v1/query", nil, "query", expr, "time", at)
		same(http.MethodPost, "/api/v1/query", nil, "query", expr, "time", at)
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		same(method, "/api/v1/query_range", nil, "query", "go_threads", "start", promSeconds(c.to-15_000), "end", at, "step", "1")
		same(method, "/api/v1/query_range", nil, "query", "sum by (job) (rate(go_memstats_mallocs_total[10s]))", "start", promSeconds(c.to-15_000), "end", at, "step", "5s")
		// What the plan covers, between the edges of its panes.
		same(method, "/api/v1/query", nil, "query", "up", "time", promSeconds(c.to-500))
		same(method, "/api/v1/query_range", nil, "query", "rate(node_cpu_seconds_total[10s])", "start", promSeconds(c.to-15_500), "end", at, "step", "2500ms")
		// Prometheus' own errors while evaluating: two exporters are one too many on a side.
		same(method, "/api/v1/query", nil, "query", "up * on (job) go_threads", "time", promSeconds(c.to-30_000))
		// Whoever asks for the exact source gets it, and its words about a bad query too.
		noStore := []string{"Cache-Control", "no-store"}
		same(method, "/api/v1/query", noStore, "query", "sum(", "time", at)
		same(method, "/api/v1/query", noStore, "query", "up", "time", at)
		same(method, "/api/v1/query_range", noStore, "query", "rate(up)", "start", "0", "end", "1", "step", "1")
	}
	c.t.Logf("%d answers came through as Prometheus gives them", compared)

	// A query that cannot be read needs no upstream to say so, and says it with the same status and type.
	want := c.p.ask(http.MethodGet, "/api/v1/query", "query", "sum(", "time", at)
	got := c.s.must(http.MethodGet, "/api/v1/query", "query", "sum(", "time", at)
	const head = `{"status":"error","errorType":"bad_data","error":"`
	if got.code != want.code || !strings.HasPrefix(got.body, head) || !strings.HasPrefix(want.body, head) || got.header.Get("X-Tidemark-Route") != "" {
		c.t.Errorf("sum(: here %d %s, there %d %s", got.code, got.body, want.code, want.body)
	}
}

// promtool asks both sides through Prometheus' own command.
func (c *comparison) promtool() {
	run := func(args ...string) []string {
		c.t.Helper()
		out, err := exec.Command("promtool", append([]string{"query"}, args...)...).Output()
		if err != nil {
			c.t.Fatalf("promtool query %v: %v", args, err)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		return lines
	}
	at, begin := seconds(c.to), seconds(c.to-15_000)
	for _, args := range [][]string{
		{"instant", "--time=" + at, "%s", "up"},
		{"instant", "--time=" + at, "%s", `sum by (job) (scrape_samples_scraped)`},
		{"instant", "--time=" + at, "%s", `go_threads`}, // by way of the upstream
		{"range", "--start=" + begin, "--end=" + at, "--step=5s", "%s", "process_resident_memory_bytes"},
		{"series", "--match=up", "--match=node_load1", "%s"},
		{"labels", "%s", "job"},
	} {
		ask := func(url string) []string {
			with := slices.Clone(args)
			with[slices.Index(with, "%s")] = url
			return run(with...)
		}
		if got, want := ask(c.s.url()), ask(c.p.url); !slices.Equal(got, want) || len(want) == 0 {
			c.t.Errorf("promtool query %v:\nhere  %q\nthere %q", args, got, want)
		}
	}
}

// alone holds that panes answer on when the upstream is gone, and that what they cannot answer is an error and no empty success.
func (c *comparison) alone() {
	at := seconds(c.to)
	before := c.s.must(http.MethodGet, "/api/v1/query", "query", "up", "time", at)
	c.p.prometheus.kill()
	if after := c.s.must(http.MethodGet, "/api/v1/query", "query", "up", "time", at); after.body != before.body || after.header.Get("X-Tidemark-Route") != "warm" {
		c.t.Errorf("without the upstream: %d %s\nwith it: %s", after.code, after.body, before.body)
	}
	if r := c.s.must(http.MethodGet, "/api/v1/query", "query", "go_threads", "time", at); r.code/100 != 5 ||
		!strings.Contains(r.body, `"status":"error"`) || !strings.Contains(r.body, c.p.url) || r.header.Get("X-Tidemark-Route") != "" {
		c.t.Errorf("without the upstream: %d %s", r.code, r.body)
	}
}

// log reads the whole log of the service that has stopped, and compares it sample for sample with what Prometheus has.
func (c *comparison) log(from int64) {
	code, out, errs := c.s.tool("log", "dump")
	if code != exitOK {
		c.t.Fatalf("log dump: %d %s", code, errs)
	}
	logged, again := make(map[string]map[int64]uint64), 0
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		var event struct {
			Series []struct {
				Labels  map[string]string
				Samples [][]any
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			c.t.Fatal(err)
		}
		for _, s := range event.Series {
			name := labels.FromMap(s.Labels).String()
			if logged[name] == nil {
				logged[name] = make(map[int64]uint64)
			}
			for _, sample := range s.Samples {
				at, bits := int64(sample[0].(float64)), dumpedBits(c.t, sample[1])
				if at <= from || at > c.to {
					continue
				}
				if old, twice := logged[name][at]; twice {
					again++
					if old != bits {
						c.t.Errorf("%s at %d: two values, %x and %x", name, at, old, bits)
					}
				}
				logged[name][at] = bits
			}
		}
	}
	if err := lines.Err(); err != nil {
		c.t.Fatal(err)
	}
	total := 0
	for _, s := range c.series {
		here := logged[s.Labels.String()]
		for i, at := range s.T {
			if bits, ok := here[at]; !ok || bits != math.Float64bits(s.V[i]) {
				c.t.Errorf("%s at %d: %v was scraped, the log has %x (%v)", s.Labels, at, s.V[i], bits, ok)
			}
		}
		if len(here) != len(s.T) {
			c.t.Errorf("%s: %d samples scraped, %d in the log", s.Labels, len(s.T), len(here))
		}
		total += len(here)
		delete(logged, s.Labels.String())
	}
	for name, samples := range logged {
		if len(samples) > 0 {
			c.t.Errorf("%s: %d samples in the log that were not scraped", name, len(samples))
		}
	}
	c.t.Logf("%d samples in the log, bit for bit; %d came twice", total, again)
	verifyLog(c.t, c.s)
}

// dumpedBits reads a value as log dump writes it.
func dumpedBits(t *testing.T, v any) uint64 {
	t.Helper()
	switch v := v.(type) {
	case float64:
		return math.Float64bits(v)
	case string:
		if hex, ok := strings.CutPrefix(strings.TrimSuffix(v, ")"), "NaN(0x"); ok {
			if bits, err := strconv.ParseUint(hex, 16, 64); err == nil {
				return bits
			}
		}
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return math.Float64bits(f)
		}
	}
	t.Fatalf("log dump: the value %v", v)
	return 0
}
