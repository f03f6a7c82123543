package main

import (
	"fmt"
	"math"
	"sync"
	"testing"
)

func TestCase_A01_TooLateIsNeverAServerError(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	v.send(sent{`m{i="a"}`, 2000, 7})
	v.send(sent{`m{i="a"}`, 1_200_000, 1})
	v.barrier(1_200_000)
	for range 3 {
		if code := v.sendFor(sent{`m{i="a"}`, 1000, 1}); code != 204 {
			t.Fatalf("status %d", code)
		}
	}
	m := v.numbers()
	if late, again := m.of(t, "pane_samples_total", "result", "late_uncorrectable"), m.of(t, "pane_samples_total", "result", "duplicate"); late != 1 || again != 2 {
		t.Errorf("%v samples counted as too late and %v as repeated, want 1 and 2", late, again)
	}
	// What the bucket lost is said, not passed over.
	v.wantMiss(`sum_over_time(m[1m])`, 60_000, "late_uncorrectable")
	v.want(`sum_over_time(m[1m])`, 1_200_000, map[string]float64{`{i="a"}`: 1})
}

func TestCase_A04_A05_OneSeriesForOneLabelSet(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	// Labels unsorted, sorted, and with an empty value, as they may come on the wire.
	unsorted := labelPairs{{"_id", "test"}, {"__name__", "m"}}
	v.sendRaw(unsorted, 1000, 1)
	v.sendRaw(labelPairs{{"__name__", "m"}, {"_id", "test"}}, 2000, 1)
	v.sendRaw(labelPairs{{"__name__", "m"}, {"a", ""}, {"_id", "test"}}, 2000, 1)
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{_id="test"}`: 2})
}

func TestCase_A09_A12_A14_FirstValueStands(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
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
	check := func(v *hosted) {
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
	v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
	v := startService(t, setup{config: panesOfAMinute})
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
