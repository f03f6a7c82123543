package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"tidemark/log"
	"tidemark/projections/query/querytest"
	"tidemark/transport/remotewrite"
)

var stale = math.Float64frombits(value.StaleNaN)

// clock is the wall clock and the monotonic clock of a service, both moved by the test.
type clock struct{ wall, passed atomic.Int64 } // ms

func newClock(wall int64) *clock {
	c := &clock{}
	c.wall.Store(wall)
	return c
}

func (c *clock) now() time.Time           { return time.UnixMilli(c.wall.Load()) }
func (c *clock) monotonic() time.Duration { return time.Duration(c.passed.Load()) * time.Millisecond }
func (c *clock) step(d time.Duration)     { c.wall.Add(d.Milliseconds()) } // of the wall clock alone
func (c *clock) pass(d time.Duration)     { c.step(d); c.passed.Add(d.Milliseconds()) }

// wipeable makes a setup whose stores lie in memory that can lose what was not synced.
func wipeable(t *testing.T, s setup) setup {
	t.Helper()
	s.dir = t.TempDir()
	return s.onto(t, vfs.NewCrashableMem())
}

func (s setup) onto(t *testing.T, fs vfs.FS) setup {
	t.Helper()
	if err := fs.MkdirAll(filepath.Join(s.dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.around.logFS, s.around.viewsFS = fs, fs
	return s
}

// crash ends the service as a power cut does, and starts it on what the disk holds then.
func (v *service) crash() *service {
	v.t.Helper()
	left := v.setup.around.logFS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	_ = v.stop() // of no effect on what is left
	return startService(v.t, v.setup.onto(v.t, left))
}

// like asks expressions at times, in ms, and expects Prometheus' answers over the same samples, warm.
func (v *service) like(samples []sent, at []int64, exprs ...string) {
	v.t.Helper()
	var all []querytest.Series
	for _, s := range batch(v.t, samples...) {
		slices.SortFunc(s.Samples, func(a, b remotewrite.Sample) int { return int(a.Time - b.Time) })
		q := querytest.Series{Labels: s.Labels}
		for _, x := range s.Samples {
			q.T, q.V = append(q.T, x.Time), append(q.V, x.Value)
		}
		all = append(all, q)
	}
	oracle, data := querytest.NewOracleEngine(1_000_000), querytest.Oracle(all)
	for _, e := range exprs {
		for _, t := range at {
			q := querytest.Query{Expr: e, Start: t}
			got := v.query(q)
			slices.Sort(got.Infos)
			if err := querytest.Compare(got.Outcome, querytest.Ask(v.t.Context(), oracle, data, q), querytest.Terms{}); err != nil {
				v.t.Errorf("%s: %v", q, err)
			} else if got.route != "warm" {
				v.t.Errorf("%s: route %q, %v", q, got.route, got.Err)
			}
		}
	}
}

// headSeq is the newest event of the log.
func (v *service) headSeq() uint64 { return uint64(v.node.events.Head()) }

func (v *service) digest() string {
	v.t.Helper()
	d, err := v.node.panes.Digest(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return d.All.String()
}

func TestCase_A01_TooLateIsNeverAServerError(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	v.send(sent{`m{i="a"}`, 2000, 7})
	v.send(sent{`m{i="a"}`, 1_200_000, 1})
	v.barrier(1_200_000)
	for range 3 {
		if code := v.sendFor(sent{`m{i="a"}`, 1000, 1}); code != 204 {
			t.Fatalf("status %d", code)
		}
	}
	if n := v.numbers().of(t, "pane_samples_total", "result", "late_uncorrectable"); n != 3 {
		t.Errorf("%v samples counted as too late, want 3", n)
	}
	// What the bucket lost is said, not passed over.
	v.wantMiss(`sum_over_time(m[1m])`, 60_000, "late_uncorrectable")
	v.want(`sum_over_time(m[1m])`, 1_200_000, map[string]float64{`{i="a"}`: 1})
}

func TestCase_A04_A05_OneSeriesForOneLabelSet(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	// Labels unsorted, sorted, and with an empty value, as they may come on the wire.
	unsorted := labelPairs{{"_id", "test"}, {"__name__", "m"}}
	v.sendRaw(unsorted, 1000, 1)
	v.sendRaw(labelPairs{{"__name__", "m"}, {"_id", "test"}}, 2000, 1)
	v.sendRaw(labelPairs{{"__name__", "m"}, {"a", ""}, {"_id", "test"}}, 2000, 1)
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{_id="test"}`: 2})
}

func TestCase_A09_A12_A14_FirstValueStands(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	a := []sent{{`m{i="a"}`, 1000, 1}, {`m{i="a"}`, 2000, 2}, {`m{i="a"}`, 3000, 3}}
	for range 6 {
		v.send(a...)
	}
	v.send(sent{`m{i="a"}`, 1000, 2}, sent{`m{i="b"}`, 1000, 5})
	v.send(sent{`m{i="a"}`, 1000, 1})
	nan := func(bits uint64) float64 { return math.Float64frombits(bits) }
	v.send(sent{`m{i="n"}`, 1000, nan(0x7ff8000000000001)}, sent{`m{i="z"}`, 2000, 0})
	v.send(sent{`m{i="n"}`, 1000, nan(0x7ff8000000000001)}, sent{`m{i="z"}`, 2000, math.Copysign(0, -1)})
	v.send(sent{`m{i="n"}`, 1000, nan(0x7ff8000000000002)})
	v.barrier(60_000)
	check := func(v *service) {
		t.Helper()
		v.want(`sum_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 6, `{i="b"}`: 5, `{i="n"}`: math.NaN(), `{i="z"}`: 0})
		v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 3, `{i="b"}`: 1, `{i="n"}`: 1, `{i="z"}`: 1})
		v.want(`max_over_time(m{i="a"}[1m])`, 60_000, map[string]float64{`{i="a"}`: 3})
		m := v.numbers()
		if d, c := m.of(t, "pane_samples_total", "result", "duplicate"), m.of(t, "pane_samples_total", "result", "conflict"); d != 17 || c != 3 {
			t.Errorf("%v duplicates and %v conflicts, want 17 and 3", d, c)
		}
	}
	check(v)
	check(v.restart())
}

func TestCase_A15_A17_MarkersAndNaN(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	all := []sent{
		{`m{i="s"}`, 15_000, 1}, {`m{i="s"}`, 30_000, stale}, {`m{i="s"}`, 45_000, 3},
		{`m{i="a"}`, 15_000, 1}, {`m{i="a"}`, 30_000, math.NaN()}, {`m{i="a"}`, 45_000, 3},
		{`m{i="b"}`, 15_000, math.NaN()}, {`m{i="b"}`, 30_000, 2}, {`m{i="b"}`, 45_000, 3},
		{`m{i="c"}`, 15_000, math.NaN()}, {`m{i="c"}`, 30_000, math.NaN()},
		{`m{i="only"}`, 15_000, stale},
	}
	v.send(all...)
	v.barrier(60_000)
	v.want(`sum_over_time(m{i="s"}[1m])`, 60_000, map[string]float64{`{i="s"}`: 4})
	v.want(`increase(m{i="s"}[1m])`, 60_000, map[string]float64{`{i="s"}`: 4})
	v.like(all, []int64{60_000}, `sum_over_time(m[1m])`, `count_over_time(m[1m])`, `min_over_time(m[1m])`, `max_over_time(m[1m])`,
		`avg_over_time(m[1m])`, `quantile_over_time(0.5, m[1m])`, `increase(m[1m])`, `m`)
}

func TestCase_A48_GroupsDoNotCollide(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	var vectors [][2]string
	for _, sep := range []string{";", ",", "|", "\x00", "ÿ"} {
		vectors = append(vectors, [2]string{"a" + sep + "b", "c"}, [2]string{"a", "b" + sep + "c"})
	}
	vectors = append(vectors, [2]string{"", "ab"}, [2]string{"a", "b"}, [2]string{"ab", ""})
	for _, x := range vectors {
		v.sendRaw(labelPairs{{"__name__", "m"}, {"x", x[0]}, {"y", x[1]}}, 1000, 1)
	}
	v.barrier(60_000)
	v.want(`count(sum by (x, y) (sum_over_time(m[1m])) == 1)`, 60_000, one(float64(len(vectors))))
}

func TestCase_A53_OrderOfArrivalDoesNotMatter(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	for round := range 10 {
		i := fmt.Sprintf(`c{round="%d"}`, round)
		one := []sent{{i, 10_000, 1}, {i, 20_000, 2}}
		two := []sent{{i, 30_000, 3}, {i, 40_000, 4}}
		if round%2 == 1 {
			one, two = two, one
		}
		var wg sync.WaitGroup
		wg.Go(func() { v.send(one...) })
		wg.Go(func() { v.send(two...) })
		wg.Wait()
	}
	v.barrier(60_000)
	v.want(`count(count_over_time(c[1m]) == 4)`, 60_000, one(10))
	v.want(`count(sum_over_time(c[1m]) == 10)`, 60_000, one(10))
	v.want(`count(resets(c[1m]) == 0)`, 60_000, one(10))
}

func TestCase_C01_FirstBatchSpansSeveralWindows(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	check := func() {
		t.Helper()
		for at, want := range map[int64]map[string]float64{60_000: {`{i="a"}`: 1}, 120_000: {}, 180_000: {`{i="a"}`: 1}} {
			v.want(`count_over_time(m{i="a"}[1m])`, at, want)
		}
	}
	v.send(sent{`m{i="a"}`, 5000, 1}, sent{`m{i="a"}`, 125_000, 1})
	if o := v.barrier(200_000); o.Closed != 1 { // the first bucket was closed by the series itself
		t.Errorf("%+v", o)
	}
	check()
	// Split over two requests, and as the first batch after a restart.
	v.send(sent{`m{i="b"}`, 5000, 1})
	v.send(sent{`m{i="b"}`, 125_000, 1})
	v = v.restart()
	v.send(sent{`m{i="c"}`, 5000, 1}, sent{`m{i="c"}`, 125_000, 1})
	v.barrier(200_000)
	check()
	v.want(`count(count_over_time(m[1m]))`, 60_000, one(3))
	v.want(`count(count_over_time(m[1m]))`, 120_000, map[string]float64{})
	v.want(`count(count_over_time(m[1m]))`, 180_000, one(3))
}

func TestCase_C02_OneFastClockMakesNothingLate(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	now := time.Now().UnixMilli()
	next := (now/60_000 + 2) * 60_000 // an end that all honest samples are before
	for s := now - 60_000; s <= now; s += 10_000 {
		v.send(sent{`m{i="honest"}`, s, 1})
	}
	v.send(sent{`m{i="fast"}`, now + 300_000, 1})
	for k := range int64(10) {
		v.send(sent{`m{i="honest"}`, now + 1000*(k+1), 1})
	}
	if f := v.frontier("m_sum"); f > now+60_000+time.Since(time.UnixMilli(now)).Milliseconds() {
		t.Errorf("the frontier is %d ms ahead of the clock", f-now)
	}
	v.barrier(next)
	v.want(`sum(count_over_time(m{i="honest"}[5m]))`, next, one(17))
	m := v.numbers()
	for _, lost := range []string{"late_dropped", "late_uncorrectable"} {
		if n := m.of(t, "pane_samples_total", "result", lost); n != 0 {
			t.Errorf("%s: %v", lost, n)
		}
	}
	if n := m.of(t, "pane_corrected_samples_total"); n != 0 {
		t.Errorf("%v samples were late", n)
	}
}

func TestCase_C04_WatermarkInOtherUnits(t *testing.T) {
	const start = int64(1_699_999_999_000)
	v := startService(t, setup{config: minutePanes})
	v.send(sent{`m{i="a"}`, start, 1})
	if o := v.barrier(start); o.Closed != 0 || o.Complete != start {
		t.Fatalf("%+v", o)
	}
	// Seconds: it goes back, so nothing happens.
	if o := v.barrier(start / 1000); o.Closed != 0 || o.Complete != start || len(o.warnings) != 1 || !strings.Contains(o.warnings[0], "seconds") {
		t.Errorf("seconds: %+v", o)
	}
	// Micro- and nanoseconds: they close what is open, count up to the bound on future samples, and say so.
	for unit, at := range map[string]int64{"microseconds": start * 1000, "nanoseconds": start * 1_000_000} {
		o := v.barrier(at)
		most := time.Now().Add(11 * time.Minute).UnixMilli()
		if o.Closed > 1 || o.Complete > most || len(o.warnings) != 1 || !strings.Contains(o.warnings[0], unit) {
			t.Errorf("%s: %+v", unit, o)
		}
	}
	end := (start/60_000 + 1) * 60_000
	v.want(`count_over_time(m[1m])`, end, map[string]float64{`{i="a"}`: 1})
	later := func(i string, v *service) {
		t.Helper()
		v.send(sent{i, start + 60_500, 1})
		v.wantMiss(`count_over_time(`+i+`[1m])`, end+60_000, "unpublished")
		if o := v.barrier(end + 60_000); o.Closed != 1 {
			t.Errorf("%+v", o)
		}
		v.want(`sum(count_over_time(`+i+`[1m]))`, end+60_000, one(1))
	}
	later(`m{i="b"}`, v)
	v = v.restart()
	later(`m{i="c"}`, v)
	if n := v.numbers().of(t, "pane_samples_total", "result", "applied"); n != 3 {
		t.Errorf("%v samples applied, want 3", n)
	}
}

func TestCase_C06_WatermarkGoesBack(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	v.send(sent{`m{i="a"}`, 1000, 1}, sent{`m{i="b"}`, 119_000, 1})
	steps := []struct{ at, want, closed int64 }{{120_000, 120_000, 2}, {60_000, 120_000, 0}, {120_000, 120_000, 0}, {120_001, 120_001, 0}}
	for _, s := range steps {
		if o := v.barrier(s.at); o.Complete != s.want || o.Closed != s.closed {
			t.Errorf("barrier %d: %+v", s.at, o)
		}
	}
	// Late is judged by what was closed, not by the last call.
	v.send(sent{`m{i="a"}`, 2000, 1})
	if n := v.numbers().of(t, "pane_corrected_samples_total"); n != 1 {
		t.Errorf("%v samples were late, want 1", n)
	}
	before := v.digest()
	v = v.restart()
	if got := v.digest(); got != before {
		t.Errorf("digest %s, after the restart %s", before, got)
	}
	if a := v.instant(`sum(count_over_time(m[1m]))`, 60_000); a.complete != "120001" || a.Err != nil {
		t.Errorf("complete through %q, %v", a.complete, a.Err)
	}
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 2 {
		t.Errorf("%v buckets closed, want 2", n)
	}
}

// manySeries are n samples of n series at one time.
func manySeries(n int, at int64) []sent {
	out := make([]sent, n)
	for i := range out {
		out[i] = sent{fmt.Sprintf(`m{i="%d"}`, i), at, 1}
	}
	return out
}

func TestCase_C09_LastWindowClosesWithoutMoreData(t *testing.T) {
	const count = `sum(count_over_time(m[1m]))`
	closed := func(v *service) float64 { return v.numbers().of(t, "pane_closed_buckets_total") }
	t.Run("idle", func(t *testing.T) {
		c := newClock(1_000_000)
		v := startService(t, setup{
			config: minutePanes + "timers: {idle_timeout: 2s, idle_grace: 1s, open_grace: 1s}\n",
			around: surroundings{now: c.now, monotonic: c.monotonic},
		})
		v.send(manySeries(1000, 30_000)...)
		c.pass(60*time.Second + 999*time.Millisecond) // the width is longer than the timeout
		if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
			t.Fatalf("due a millisecond before its time: %v, %v", due, err)
		}
		c.pass(time.Millisecond)
		v.eventually("the ticker closes the buckets", func() bool { return closed(v) == 1000 })
		v.want(count, 60_000, one(1000))
		c.pass(time.Hour)
		if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
			t.Errorf("something is due again: %v, %v", due, err)
		}
		v.barrier(60_000)
		if n := closed(v); n != 1000 {
			t.Errorf("%v buckets closed in the end", n)
		}
	})
	t.Run("barrier", func(t *testing.T) {
		v := startService(t, setup{config: minutePanes})
		v.send(manySeries(1000, 30_000)...)
		if o := v.barrier(60_000); o.Closed != 1000 {
			t.Errorf("%+v", o)
		}
		v.want(count, 60_000, one(1000))
		if o := v.barrier(60_000); o.Closed != 0 {
			t.Errorf("closed again: %+v", o)
		}
	})
}

func TestCase_C11_BarrierCoversAcknowledgedWrites(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	for round := range int64(4) {
		from := round * 60_000
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() {
				for r := range 12 {
					var ss []sent
					for k := range 10 {
						ss = append(ss, sent{fmt.Sprintf(`m{w="%d"}`, w), from + int64(r*10+k+1), 1})
					}
					v.send(ss...)
				}
			})
		}
		wg.Wait()
		v.barrier(from + 60_000)
		v.want(`sum(count_over_time(m[1m]))`, from+60_000, one(32*12*10))
	}
}

func TestCase_C13_C15_C16_EdgesAndNegativeTimes(t *testing.T) {
	v := startService(t, setup{config: `
materializations:
  - {name: m_count, expr: "count_over_time(m[1m])", every: 1m}
  - {name: n_sum, expr: "sum_over_time(n[5m])", every: 1m}
  - {name: ten, expr: "count_over_time(o[10s])", every: 10s}
`})
	var all []sent
	for _, at := range []int64{0, 15_000, 30_000, 45_000, 60_000} {
		all = append(all, sent{`m`, at, 1}, sent{`n`, at * 5, 1})
	}
	all = append(all, sent{`m{i="neg"}`, -1, 1}, sent{`m{i="neg"}`, -60_000, 1}, sent{`m{i="neg"}`, -60_001, 1}, sent{`m{i="lone"}`, -30_000, 1}, sent{`o`, -86_398_000, 1})
	v.send(all...)
	v.barrier(300_000)
	v.want(`count_over_time(m{i=""}[1m])`, 60_000, map[string]float64{`{}`: 4})
	v.want(`count_over_time(m{i=""}[1m])`, 0, map[string]float64{`{}`: 1})
	v.want(`count_over_time(m{i="lone"}[1m])`, 0, map[string]float64{`{i="lone"}`: 1})
	v.like(all, []int64{-120_000, -60_000, 0, 60_000, 120_000}, `count_over_time(m[1m])`)
	v.like(all, []int64{0, 60_000, 300_000}, `sum_over_time(n[5m])`)
	v.like(all, []int64{-86_400_000, -86_390_000, -86_380_000}, `count_over_time(o[10s])`)
	if n := v.numbers().of(t, "pane_open_buckets"); n != 0 {
		t.Errorf("%v buckets are still open", n)
	}
}

func TestCase_C17_C19_SlidingWindows(t *testing.T) {
	v := startService(t, setup{config: `
materializations:
  - {name: odd_sum, expr: "sum_over_time(odd[25s])", every: 10s}
  - {name: m_count, expr: "count_over_time(m[30s])", every: 10s}
`})
	var all []sent
	for at := int64(1000); at <= 30_000; at += 1000 {
		all = append(all, sent{`odd`, at, 1})
	}
	for i, at := range []int64{5000, 15_000, 25_000, 35_000} {
		all = append(all, sent{`m`, at, []float64{7, 3, 9, 4}[i]})
	}
	v.send(all...)
	v.barrier(100_000)
	v.want(`sum_over_time(odd[25s])`, 30_000, map[string]float64{`{}`: 25})
	for at, want := range map[int64]float64{10_000: 1, 20_000: 2, 30_000: 3, 40_000: 3, 50_000: 2, 60_000: 1} {
		v.want(`count_over_time(m[30s])`, at, map[string]float64{`{}`: want})
	}
	v.want(`count_over_time(m[30s])`, 70_000, map[string]float64{})
	v.like(all, []int64{10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 100_000}, `min_over_time(m[30s])`, `max_over_time(m[30s])`,
		`quantile_over_time(0.5, m[30s])`, `increase(m[30s])`, `stddev_over_time(m[30s])`, `resets(m[30s])`, `changes(m[30s])`)
}

func TestCase_C21_C23_C27_Counters(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	all := []sent{
		{`c{i="reset"}`, 15_000, 10}, {`c{i="reset"}`, 30_000, 100}, {`c{i="reset"}`, 45_000, 5}, {`c{i="reset"}`, 60_000, 30},
		{`c{i="two"}`, 10_000, 100}, {`c{i="two"}`, 50_000, 160}, {`c{i="two"}`, 70_000, 200}, {`c{i="two"}`, 110_000, 260},
		{`c{i="mixed"}`, 30_000, 30}, {`c{i="mixed"}`, 10_000, 10}, {`c{i="mixed"}`, 20_000, 20},
	}
	v.send(all...)
	for _, s := range []sent{{`c{i="apart"}`, 30_000, 30}, {`c{i="apart"}`, 10_000, 10}, {`c{i="apart"}`, 20_000, 20}} {
		v.send(s)
		all = append(all, s)
	}
	v.barrier(120_000)
	v.want(`increase(c{i="reset"}[1m])`, 60_000, map[string]float64{`{i="reset"}`: 130})
	v.want(`rate(c{i="reset"}[1m])`, 60_000, map[string]float64{`{i="reset"}`: 2.1666666666666665})
	v.want(`resets(c{i="reset"}[1m])`, 60_000, map[string]float64{`{i="reset"}`: 1})
	v.want(`increase(c{i="two"}[2m])`, 120_000, map[string]float64{`{i="two"}`: 192})
	v.want(`increase(c{i="two"}[1m])`, 60_000, map[string]float64{`{i="two"}`: 90})
	v.want(`increase(c{i="two"}[1m])`, 120_000, map[string]float64{`{i="two"}`: 90})
	v.want(`last_over_time(c{i=~"mixed|apart"}[1m])`, 60_000, map[string]float64{`{__name__="c", i="mixed"}`: 30, `{__name__="c", i="apart"}`: 30})
	v.like(all, []int64{60_000, 120_000}, `rate(c[1m])`, `increase(c[2m])`, `min_over_time(c[1m])`, `sum_over_time(c[2m])`, `idelta(c[1m])`)
}

func TestCase_C25_CounterAcrossACrash(t *testing.T) {
	run := func(t *testing.T, crash bool) string {
		v := startService(t, wipeable(t, setup{config: minutePanes}))
		v.send(sent{`c`, 10_000, 100}, sent{`c`, 50_000, 160})
		if crash {
			v = v.crash()
		}
		v.send(sent{`c`, 70_000, 200}, sent{`c`, 110_000, 260})
		v.barrier(120_000)
		v.want(`increase(c[2m])`, 120_000, map[string]float64{`{}`: 192})
		v.want(`increase(c[1m])`, 60_000, map[string]float64{`{}`: 90})
		v.want(`increase(c[1m])`, 120_000, map[string]float64{`{}`: 90})
		return v.digest()
	}
	if a, b := run(t, false), run(t, true); a != b {
		t.Errorf("published %s without the crash and %s with it", a, b)
	}
}

func TestCase_C29_EverySampleIsCountedOnce(t *testing.T) {
	v := startService(t, setup{config: `
materializations:
  - {name: m_count, expr: "count_over_time(m[1m])", every: 1m, allowed_lateness: 10s}
correction_horizon: 0s
`})
	series := func(i int) string { return fmt.Sprintf(`m{i="%d"}`, i) }
	var onTime, behind, within []sent
	for i := range 50 {
		onTime = append(onTime, sent{series(i), 50_000, 1}, sent{series(i), 125_000, 1}) // w is 114999: the first bucket is closed
	}
	for i := range 30 {
		behind = append(behind, sent{series(i), 40_000, 1})
	}
	for i := range 10 {
		within = append(within, sent{series(i), 118_000, 1}) // late by the sample's time, in a bucket that is open
	}
	v.send(onTime...)
	v.send(behind...)
	v.send(within...)
	v.send(onTime[95], onTime[97], onTime[99], onTime[91], onTime[93])
	for range 3 {
		if code := v.sendRawFor(labelPairs{{"__name__", "m"}, {"a", "1"}, {"a", "2"}}, 1000, 1); code != 400 {
			t.Fatalf("status %d", code)
		}
	}
	m := v.numbers()
	if r, l, bad := m.of(t, "write_samples_received_total"), m.of(t, "write_samples_logged_total"), m.of(t, "write_samples_rejected_total"); r != 148 || l != 145 || bad != 3 {
		t.Errorf("received %v, logged %v, rejected %v", r, l, bad)
	}
	for range 2 {
		m := v.numbers()
		for result, want := range map[string]float64{"applied": 110, "late_uncorrectable": 30, "late_dropped": 0, "duplicate": 5, "conflict": 0} {
			if got := m.of(t, "pane_samples_total", "result", result); got != want {
				t.Errorf("%s: %v, want %v", result, got, want)
			}
		}
		v = v.restart()
	}
}

func TestCase_C31_LateStaysLateAfterACrash(t *testing.T) {
	run := func(t *testing.T, crash bool) string {
		v := startService(t, wipeable(t, setup{config: minutePanes + "correction_horizon: 0s\n"}))
		v.send(sent{`m`, 1000, 1})
		v.barrier(120_000)
		if crash {
			v = v.crash()
		}
		if a := v.instant(`count_over_time(m[1m])`, 120_000); a.complete != "120000" {
			t.Errorf("complete through %q, %v", a.complete, a.Err)
		}
		v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 1})
		v.send(sent{`m`, 30_000, 1})
		if n := v.numbers().of(t, "pane_samples_total", "result", "late_uncorrectable"); n != 1 {
			t.Errorf("%v samples late, want 1", n)
		}
		v.wantMiss(`count_over_time(m[1m])`, 60_000, "late_uncorrectable")
		return v.digest()
	}
	if a, b := run(t, false), run(t, true); a != b {
		t.Errorf("published %s without the crash and %s with it", a, b)
	}
}

func TestCase_C44_OneStoppedSeriesKeepsNothingCold(t *testing.T) {
	v := startService(t, setup{config: `
materializations:
  - {name: m_sum, expr: "sum_over_time(m[5m])", every: 1m}
`})
	var all []sent
	for at := int64(10_000); at <= 300_000; at += 10_000 {
		var ss []sent
		for i := range 10 {
			if i == 9 && at > 130_000 {
				continue
			}
			ss = append(ss, sent{fmt.Sprintf(`m{i="%c"}`, 'a'+i), at, 1})
		}
		v.send(ss...)
		all = append(all, ss...)
	}
	v.wantMiss(`sum_over_time(m[5m])`, 300_000, "unpublished")
	v.wantMiss(`count_over_time(m[1m])`, 180_000, "unpublished") // of j alone: its last bucket is open
	v.barrier(300_000)
	v.want(`count(sum_over_time(m[5m]))`, 300_000, one(10))
	v.want(`sum_over_time(m{i="j"}[5m])`, 300_000, map[string]float64{`{i="j"}`: 13})
	v.want(`count(count_over_time(m[1m]))`, 300_000, one(9))
	v.like(all, []int64{60_000, 180_000, 240_000, 300_000}, `sum_over_time(m[5m])`, `count_over_time(m[1m])`, `rate(m[4m])`)
}

func TestCase_B08_CheckpointNewerThanTheLog(t *testing.T) {
	v := startService(t, setup{dir: t.TempDir(), config: minutePanes})
	v.send(sent{`m`, 1000, 1})
	v.mustStop()
	data := filepath.Join(v.setup.dir, "data")
	older := filepath.Join(t.TempDir(), "older")
	if err := os.CopyFS(older, os.DirFS(filepath.Join(data, logDir))); err != nil {
		t.Fatal(err)
	}
	was := v.headSeq()
	v = startService(t, v.setup)
	v.send(sent{`m`, 2000, 1})
	v.mustStop()
	is := v.headSeq()
	if err := os.RemoveAll(filepath.Join(data, logDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(data, logDir), os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	_, err := openService(t, v.setup)
	if err == nil {
		t.Fatal("the service has started")
	}
	for _, number := range []uint64{was, is} {
		if !strings.Contains(err.Error(), strconv.FormatUint(number, 10)) {
			t.Errorf("%v does not name %d", err, number)
		}
	}
	// Without the views it starts, and shows what the log holds.
	if err := os.RemoveAll(filepath.Join(data, viewsDir)); err != nil {
		t.Fatal(err)
	}
	v = startService(t, v.setup)
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 1})
}

func TestCase_B09_CheckpointOlderThanTheLog(t *testing.T) {
	v := startService(t, wipeable(t, setup{config: minutePanes, flags: []string{"--projection.checkpoint-interval=-1s"}}))
	for n := range int64(300) {
		v.send(sent{`m{i="a"}`, 400 * (n + 1), 1})
		if n == 60 {
			if err := v.node.panes.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	v = v.crash()
	v.barrier(120_000)
	check := func() {
		t.Helper()
		v.want(`count_over_time(m[2m])`, 120_000, map[string]float64{`{i="a"}`: 300})
		v.want(`sum_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 150})
		v.want(`sum_over_time(m[1m])`, 120_000, map[string]float64{`{i="a"}`: 150})
	}
	check()
	before := v.digest()
	v = v.crash()
	if got := v.digest(); got != before {
		t.Errorf("digest %s, after another crash %s", before, got)
	}
	check()
}

func TestCase_B21_WallClockGoesBack(t *testing.T) {
	c := newClock(100_000_000)
	v := startService(t, setup{config: minutePanes, around: surroundings{now: c.now, monotonic: c.monotonic}})
	first := v.headSeq()
	for i := range int64(15) {
		switch i {
		case 5:
			c.step(-time.Hour)
		case 10:
			c.step(time.Hour)
		}
		c.pass(time.Second)
		v.send(sent{`m`, 1000 + i, 1})
		if got := v.headSeq(); got != first+uint64(i)+1 {
			t.Fatalf("write %d has sequence %d", i, got)
		}
		if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
			t.Fatalf("after write %d something is due by the clock: %v, %v", i, due, err)
		}
	}
	if lag := v.numbers().of(t, "projection_lag_seconds"); lag < 0 {
		t.Errorf("lag of %v s", lag)
	}
	// The bucket closes 65 s of log time after its first touch, whatever the wall clock says.
	c.pass(50_999 * time.Millisecond)
	if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
		t.Fatalf("due too early: %v, %v", due, err)
	}
	c.pass(time.Millisecond)
	v.eventually("the ticker closes the bucket", func() bool { return v.numbers().of(t, "pane_closed_buckets_total") == 1 })
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 15})
}

func TestCase_B23_VeryLargeRequest(t *testing.T) {
	v := startService(t, wipeable(t, setup{config: minutePanes}))
	// 400,000 samples of 80,000 series, about 30 MiB.
	large := func(pad int) []remotewrite.Series {
		out := make([]remotewrite.Series, 80_000)
		for i := range out {
			out[i].Labels = labels.FromStrings("__name__", "m", "i", strconv.Itoa(i), "pad", strings.Repeat(strconv.Itoa(i%10), pad))
			for k := range int64(5) {
				out[i].Samples = append(out[i].Samples, remotewrite.Sample{Time: 1000 * (k + 1), Value: 1})
			}
		}
		return out
	}
	began := time.Now()
	if err := v.write.Write(t.Context(), large(230)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took > patience {
		t.Errorf("acknowledged after %s", took)
	}
	t.Logf("acknowledged after %s", took)
	err := v.write.Write(t.Context(), large(400))
	if status, ok := err.(*remotewrite.StatusError); !ok || status.Code != 413 {
		t.Errorf("beyond the bound: %v", err)
	}
	v = v.crash()
	v.barrier(60_000)
	v.want(`sum(count_over_time(m[1m]))`, 60_000, one(400_000))
}

func TestCase_B32_CleanStopKeepsOpenBuckets(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	v.send(sent{`m`, 1000, 1}, sent{`m`, 2000, 1}, sent{`m`, 3000, 1})
	v.mustStop()
	v = startService(t, v.setup)
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 0 {
		t.Errorf("%v buckets were closed by the stop", n)
	}
	v.wantMiss(`count_over_time(m[1m])`, 60_000, "unpublished")
	v.send(sent{`m`, 4000, 1}, sent{`m`, 5000, 1})
	if o := v.barrier(60_000); o.Closed != 1 {
		t.Errorf("%+v", o)
	}
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 5})
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 1 {
		t.Errorf("%v buckets closed, want 1", n)
	}
}

var (
	_ = context.Background
	_ = io.EOF
	_ http.Header
	_ log.Seq
)
