package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
	"tidemark/transport/api"
)

// aDay is the history in these tests: at 15 s, 5760 steps.
const aDay = 24 * 3600 * 1000

// history makes a day of counters with resets and gauges, with gaps and stale markers.
func history(rng *rand.Rand) []querytest.Series {
	var all []querytest.Series
	for i, every := range []int64{15_000, 15_000, 30_000, 60_000} {
		for _, name := range []string{"requests_total", "gauge"} {
			s := querytest.Series{Labels: labels.FromStrings(model.MetricNameLabel, name, "job", string(rune('a'+i%2)), "instance", fmt.Sprint(i))}
			v := float64(rng.IntN(1000))
			for t := every * int64(rng.IntN(4)); t <= aDay; t += every {
				switch n := rng.IntN(400); {
				case n == 0: // the series goes stale, and comes back later
					s.T, s.V = append(s.T, t), append(s.V, math.Float64frombits(value.StaleNaN))
					t += rng.Int64N(40) * every
					continue
				case n == 1: // a gap
					t += rng.Int64N(30) * every
					continue
				case n < 8 && name == "requests_total":
					v = float64(rng.IntN(5))
				case name == "requests_total":
					v += float64(rng.IntN(40))
				default:
					v += float64(rng.IntN(41) - 20)
				}
				s.T, s.V = append(s.T, t+rng.Int64N(2)), append(s.V, v)
			}
			all = append(all, s)
		}
	}
	return all
}

// The configuration before a rule is added, and what is added then: a rule file, a materialization of panes, one of recorded windows, and
// one whose stream was there before.
const (
	yesterday = "materializations:\n  - {name: kept, expr: 'sum_over_time(gauge[1m])', every: 1m}\n"
	today     = "rule_files: [rules.yml]\n" + yesterday +
		"  - {name: later, expr: 'rate(requests_total[5m])', every: 15s}\n" +
		"  - {name: windows, expr: 'max by (job) (max_over_time(gauge[2m]))', every: 30s, layout: full_window}\n" +
		"  - {name: shared, expr: 'avg_over_time(gauge[1m])', every: 1m}\n"
	todaysRules = `
groups:
  - name: g
    interval: 1m
    rules:
      - {record: 'job:requests:rate5m', expr: 'sum by (job) (rate(requests_total[5m]))', labels: {team: x}}
      - {record: 'job:requests:max', expr: 'max_over_time(job:requests:rate5m[10m])'}
`
)

// reconfigure writes the configuration and reads it again.
func (v *hosted) reconfigure(config string) (int, string) {
	v.t.Helper()
	v.setup.config = config
	if err := os.WriteFile(filepath.Join(v.setup.dir, "tidemark.yml"), []byte(config), 0o600); err != nil {
		v.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, v.base+"/-/reload", nil)
	if err != nil {
		v.t.Fatal(err)
	}
	code, _, body := v.do(req)
	return code, string(body)
}

func (v *hosted) mustReconfigure(config string) {
	v.t.Helper()
	if code, said := v.reconfigure(config); code != http.StatusOK {
		v.t.Fatalf("reload: %d %s", code, said)
	}
}

func (v *hosted) materializations() map[string]api.Materialization {
	v.t.Helper()
	var answer struct{ Data []api.Materialization }
	_, body := v.get("/api/v1/materializations")
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		v.t.Fatalf("%v in %s", err, body)
	}
	out := make(map[string]api.Materialization)
	for _, m := range answer.Data {
		out[m.Name] = m
	}
	return out
}

// awaitServing waits until everything serves.
func (v *hosted) awaitServing() {
	v.t.Helper()
	v.eventually("all serve", func() bool {
		ms := v.materializations()
		for _, m := range ms {
			if m.State != stateServing {
				return false
			}
		}
		return len(ms) > 0
	})
}

// wantSameDigests holds that what was folded live, in the background and across restarts is what a fold of the whole log gives.
func (v *hosted) wantSameDigests(live string) {
	v.t.Helper()
	path := filepath.Join(v.setup.dir, "data")
	var out, said bytes.Buffer
	if err := digest(v.t.Context(), vfs.Default, path, "text", &out); err != nil {
		v.t.Fatal(err)
	}
	if live != "" && !strings.Contains(out.String(), live) {
		v.t.Errorf("the live fold has %s, the stopped one\n%s", live, out.String())
	}
	out.Reset()
	for _, workers := range []int{1, 3} {
		r := &rebuild{fs: vfs.Default, path: path, verify: true, workers: workers, now: time.Now}
		if err := r.run(v.t.Context(), &out, &said); err != nil {
			v.t.Fatalf("%v\n%s%s", err, out.String(), said.String())
		}
	}
}

// liveDigest returns the digest of everything as the running service has it.
func (v *hosted) liveDigest() string {
	v.t.Helper()
	if n := len(v.node.panes.Backfills()); n > 0 {
		v.t.Fatalf("%d generations are still being folded", n)
	}
	d, err := v.node.panes.Digest(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return newDigestRow("all", d.All).Digest
}

// compareDay asks for what was added today, over the day, and compares with Prometheus' engine over the same samples.
func compareDay(t *testing.T, v *hosted, all []querytest.Series, rng *rand.Rand) {
	t.Helper()
	engine, data := oracle.NewEngine(50_000_000), oracle.Storage(all)
	queries := []oracle.Query{
		{Expr: "rate(requests_total[5m])", Start: 0, End: aDay, Step: 15_000},
		{Expr: "sum by (job) (rate(requests_total[5m]))", Start: 0, End: aDay, Step: 60_000},
		{Expr: "max by (job) (max_over_time(gauge[2m]))", Start: 0, End: aDay, Step: 30_000},
		{Expr: "avg_over_time(gauge[1m])", Start: 0, End: aDay, Step: 60_000},
		{Expr: "sum(increase(requests_total[10m]))", Start: 0, End: aDay, Step: 300_000},
		{Expr: "sum_over_time(gauge[1m])", Start: 0, End: aDay, Step: 60_000},
	}
	for range 60 {
		q := queries[rng.IntN(4)]
		q.Start, q.Step = rng.Int64N(aDay/q.Step)*q.Step, 0
		queries = append(queries, q)
	}
	for _, q := range queries {
		got := v.query(q)
		if got.Err != nil || got.route != "warm" {
			t.Errorf("%s: route %q, %v", q, got.route, got.Err)
			continue
		}
		if err := oracle.Compare(got.Outcome, oracle.Ask(t.Context(), engine, data, q), q.Terms); err != nil {
			t.Errorf("%s: %v", q, err)
		}
	}
	// Under the name of the rule, with its labels.
	named := v.query(oracle.Query{Expr: "job:requests:rate5m", Start: 0, End: aDay, Step: 60_000})
	want := oracle.Ask(t.Context(), engine, data, oracle.Query{Expr: "sum by (job) (rate(requests_total[5m]))", Start: 0, End: aDay, Step: 60_000})
	if named.Err != nil || want.Err != nil {
		t.Fatal(named.Err, want.Err)
	}
	recorded := slices.Clone(want.Value.(promql.Matrix))
	for i := range recorded {
		b := labels.NewBuilder(recorded[i].Metric)
		recorded[i].Metric = b.Set(model.MetricNameLabel, "job:requests:rate5m").Set("team", "x").Labels()
	}
	if err := oracle.Compare(named.Outcome, oracle.Outcome{Value: recorded}, oracle.Terms{}); err != nil {
		t.Errorf("job:requests:rate5m: %v", err)
	}
	// And what reads that name reads the recorded steps as samples.
	var series []querytest.Series
	for _, s := range recorded {
		one := querytest.Series{Labels: s.Metric}
		for i, p := range s.Floats {
			one.T, one.V = append(one.T, p.T), append(one.V, p.F)
			if last := i+1 == len(s.Floats); !last && s.Floats[i+1].T > p.T+60_000 {
				one.T, one.V = append(one.T, p.T+60_000), append(one.V, math.Float64frombits(value.StaleNaN))
			}
		}
		series = append(series, one)
	}
	over := oracle.Query{Expr: "max_over_time(job:requests:rate5m[10m])", Start: 0, End: aDay, Step: 60_000}
	if err := oracle.Compare(v.query(over).Outcome, oracle.Ask(t.Context(), engine, oracle.Storage(series), over), over.Terms); err != nil {
		t.Errorf("%s: %v", over, err)
	}
}

// TestBackfill holds the point of it all: a rule that is added today over a log with a day of history shows the day, equal to
// Prometheus' engine over those samples, which came late, repeated and in conflict, with resets and stale markers, across restarts
// and barriers. The rule is added while writes go on, the fold of its history is cut off by a restart, and what comes out is what
// a fold of the whole log gives.
func TestBackfill(t *testing.T) {
	for _, seed := range []uint64{1, uint64(time.Now().UnixNano())} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			backfill(t, seed)
		})
	}
}

func backfill(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	all := history(rng)
	bodies := deliver(rng, all)
	v := startService(t, setup{config: yesterday, flags: []string{"--web.enable-lifecycle", "--projection.checkpoint-interval", "640ms"}})
	if err := os.WriteFile(filepath.Join(v.setup.dir, "rules.yml"), []byte(todaysRules), 0o600); err != nil {
		t.Fatal(err)
	}
	send := func(bodies [][]byte) {
		for i, body := range bodies {
			if err := v.write.Send(t.Context(), body); err != nil {
				t.Fatal(err)
			}
			if i%97 == 96 {
				v.barrier(int64(i) * 1000) // of no time in particular: what comes behind it is corrected
			}
		}
	}
	n := len(bodies)
	send(bodies[:n/3])
	v = v.restart()
	send(bodies[n/3 : n*9/10])

	// Added while writes go on. Nothing is answered from half a history: until it serves, it misses and says why.
	var wg sync.WaitGroup
	wg.Go(func() { send(bodies[n*9/10 : n*19/20]) })
	v.mustReconfigure(today)
	wg.Wait()
	if a := v.instant("rate(requests_total[5m])", aDay/2); a.Err != nil && a.miss != query.ReasonMaterializing && a.miss != query.ReasonUnpublished {
		t.Errorf("while it is folded: %v", a.Err)
	}
	v = v.restart()
	send(bodies[n*19/20:])
	v.awaitServing()
	if got := v.node.panes.HandedOver(); len(got) != 1 {
		t.Errorf("generations %v, not one: the history is not folded in the background", got)
	}
	if o := v.barrier(2 * aDay); o.Complete < aDay {
		t.Errorf("the barrier: %+v", o)
	}
	if lost := v.numbers().of(t, "pane_samples_total", "result", "late_uncorrectable"); lost != 0 {
		t.Errorf("%v samples came too late to be folded", lost)
	}
	compareDay(t, v, all, rng)
	v.eventually("the history is recorded", func() bool { return v.numbers().of(t, "window_pending_steps") == 0 })
	compareDay(t, v, all, rng)
	live := v.liveDigest()
	v.mustStop()
	v.wantSameDigests(live)
}

// A reload that finds a fault of a rule is refused, whatever the fault, and the rules in force go on serving under the names that they
// had; so is what is good in the same files. The metric and the status say so until a reload succeeds.
func TestReload_FaultyRulesChangeNothing(t *testing.T) {
	s := setup{dir: t.TempDir(), config: "rule_files: [rules.yml]\n", flags: []string{"--web.enable-lifecycle"}}
	write := func(rules string) {
		t.Helper()
		text := "groups:\n  - name: g\n    interval: 1m\n    rules:\n" + rules
		if err := os.WriteFile(filepath.Join(s.dir, "rules.yml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "      - {record: total, expr: 'sum(sum_over_time(m[1m]))'}\n"
	write(good)
	v := startService(t, s)
	v.send(sent{`m{i="a"}`, 30_000, 1}, sent{`m{i="b"}`, 30_000, 2})
	v.barrier(60_000)
	serving := func(well bool) {
		t.Helper()
		v.want(`sum(total)`, 60_000, one(3))
		if got := v.numbers().of(t, "config_last_reload_successful") == 1; got != well {
			t.Errorf("the metric says %v", got)
		}
		if _, body := v.get("/api/v1/status/runtimeinfo"); strings.Contains(body, `"reloadConfigSuccess":true`) != well {
			t.Errorf("the status says %s", body)
		}
	}
	v.eventually("the window is recorded or can be read", func() bool { return v.instant(`total`, 60_000).code == http.StatusOK })
	serving(true)
	for name, rules := range map[string]string{
		"not PromQL":      "      - {record: total, expr: 'sum(sum_over_time('}\n",
		"reads itself":    "      - {record: total, expr: 'total + 1'}\n",
		"a circle":        "      - {record: total, expr: 'other'}\n      - {record: other, expr: 'max_over_time(total[5m])'}\n",
		"no record":       good + "      - {expr: 'up'}\n",
		"another rule":    good + "      - {record: other, expr: 'sum('}\n",
		"a bad name":      "      - {record: 'total{a=\"b\"}', expr: 'up'}\n",
		"no rule at all":  "      - total\n",
		"unknown field":   "      - {record: total, expression: 'up'}\n",
		"no YAML":         "      - {record: total\n",
		"text as a label": "      - {record: total, expr: 'up', labels: x}\n",
	} {
		write(rules)
		before := v.headSeq()
		code, said := v.reconfigure(s.config)
		if code != http.StatusInternalServerError || !strings.Contains(said, "rules.yml") {
			t.Errorf("%s: %d %s", name, code, said)
		}
		if got := v.headSeq(); got != before {
			t.Errorf("%s: %d events were appended", name, got-before)
		}
		serving(false)
	}
	write(good)
	v.mustReconfigure(s.config)
	serving(true)
}

// Two reloads in a row, a removal with two open buckets, and the rule added once more: what is removed loses what is open and keeps
// what it published, the others go on, a broken rule file changes nothing, and replays and rebuilds end in the same.
func TestCase_C39_RemovedAndAddedAgain(t *testing.T) {
	const (
		first  = "materializations:\n  - {name: kept, expr: 'sum_over_time(k[10s])', every: 10s}\n"
		second = first + "  - {name: more, expr: 'sum_over_time(m[10s])', every: 10s}\n"
		third  = second + "  - {name: most, expr: 'max_over_time(m[10s])', every: 10s, allowed_lateness: 1s}\n"
	)
	v := startService(t, setup{config: first, flags: []string{"--web.enable-lifecycle"}})
	write := func(from, to int64) {
		for at := from; at <= to; at += 5000 {
			v.send(sent{`k{i="a"}`, at, 1}, sent{`m{i="a"}`, at, 2}, sent{`m{i="b"}`, at, float64(at)})
		}
	}
	write(1000, 101_000)
	v.mustReconfigure(second)
	v.mustReconfigure(third)
	v.awaitServing()
	v.barrier(100_000)
	v.want(`sum_over_time(m{i="a"}[10s])`, 50_000, map[string]float64{`{i="a"}`: 4})
	if code, said := v.reconfigure(third + "rule_files: [missing.yml]\n"); code == http.StatusOK {
		t.Errorf("a rule file that is not there: %s", said)
	}
	v.want(`sum_over_time(m{i="a"}[10s])`, 50_000, map[string]float64{`{i="a"}`: 4})
	v.mustReconfigure(first)
	v.wantMiss(`sum_over_time(m[10s])`, 50_000, query.ReasonNoMaterialization)
	write(106_000, 151_000)
	v.mustReconfigure(second)
	v = v.restart()
	v.awaitServing()
	v.barrier(150_000)
	for _, at := range []int64{50_000, 110_000, 140_000} {
		v.want(`sum_over_time(m{i="a"}[10s])`, at, map[string]float64{`{i="a"}`: 4})
		v.want(`sum_over_time(k[10s])`, at, map[string]float64{`{i="a"}`: 2})
	}
	live := v.liveDigest()
	v.mustStop()
	v.wantSameDigests(live)
}

// A configuration that was there and is gone is an error of the reload, and no empty plan; one that never was is none.
func TestReload_FileIsGone(t *testing.T) {
	f := &serveFlags{configFile: filepath.Join(t.TempDir(), defaultConfigFile), lookback: 5 * time.Minute, maxFuture: 10 * time.Minute}
	load := func() error {
		_, _, _, err := f.loadPlan()
		return err
	}
	if err := load(); err != nil {
		t.Fatalf("without a file: %v", err)
	}
	if err := os.WriteFile(f.configFile, []byte("experiment_label: run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := load(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.configFile); err != nil {
		t.Fatal(err)
	}
	if err := load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is gone: %v", err)
	}
}
