package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCase_C01_FirstBatchSpansSeveralWindows(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
		said := strings.Join(o.warnings, "\n")
		if o.Closed > 1 || o.Complete > most || len(o.warnings) != 2 || !strings.Contains(said, unit) ||
			!strings.Contains(said, fmt.Sprintf("complete is what ends at or before %d", o.Complete)) {
			t.Errorf("%s: %+v", unit, o)
		}
	}
	end := (start/60_000 + 1) * 60_000
	v.want(`count_over_time(m[1m])`, end, map[string]float64{`{i="a"}`: 1})
	later := func(i string, v *hosted) {
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
	v := startService(t, setup{config: panesOfAMinute})
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
	closed := func(v *hosted) float64 { return v.numbers().of(t, "pane_closed_buckets_total") }
	t.Run("idle", func(t *testing.T) {
		c := newClock(1_000_000)
		v := startService(t, setup{
			config: panesOfAMinute + "timers: {idle_timeout: 2s, idle_grace: 1s, open_grace: 1s}\n",
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
		v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
		v := startService(t, wipeable(t, setup{config: panesOfAMinute}))
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
		v := startService(t, wipeable(t, setup{config: panesOfAMinute + "correction_horizon: 0s\n"}))
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
