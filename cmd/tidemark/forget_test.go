package main

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// wave writes to series of their own, which then stop until they are evicted, and removes the buckets of earlier ones.
func (k *kept) wave(t *testing.T, n int) {
	t.Helper()
	k.clock.Add(1000)
	at := k.events.LogTime()
	b := log.NewWriteBuilder()
	for i := range 50 {
		ls := labels.FromStrings("__name__", [...]string{"m", "other"}[i%2], "wave", fmt.Sprint(n), "i", fmt.Sprint(i))
		b.Series(k.resolve(t, ls))
		b.Sample(at, float64(i))
	}
	if _, err := k.events.Append(t.Context(), b.Finish()); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the second closes what is open, the third is beyond every tail, and beyond the marks of what no stream takes
		k.clock.Add(700_000)
		if _, err := k.events.Append(t.Context(), &log.Tick{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.runner.Wait(t.Context(), k.events.Head()); err != nil {
		t.Fatal(err)
	}
}

func (k *kept) resolve(t *testing.T, ls labels.Labels) log.SeriesRef {
	t.Helper()
	ref, err := k.events.Dictionary().Resolve(k.events.Dictionary().Hash(ls.Bytes(nil)), ls)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// expire removes the buckets of the only stream that are older than an age.
func (k *kept) expire(t *testing.T, age int64) {
	t.Helper()
	st := k.panes.Plan().Streams[0]
	if _, err := k.events.Append(t.Context(), &log.Expired{Stream: uint64(st.ID), Width: st.PaneMillis, Through: st.GridFloor(k.events.LogTime() - age)}); err != nil {
		t.Fatal(err)
	}
	if err := k.runner.Wait(t.Context(), k.events.Head()); err != nil {
		t.Fatal(err)
	}
}

func (k *kept) defined(t *testing.T) (waves map[string]int) {
	t.Helper()
	waves = make(map[string]int)
	if err := k.events.Dictionary().All(func(_ log.SeriesRef, ls labels.Labels) bool {
		waves[ls.Get("wave")]++
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return waves
}

func (k *kept) records(t *testing.T) int {
	t.Helper()
	records, err := k.views.EvictedFrom(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return len(records)
}

// A dictionary entry goes with the last event and bucket that name it, and not before; with it goes the record of its series. What
// stays is enough for the views that the base makes anew.
func TestForgottenWithTheLastEventAndBucket(t *testing.T) {
	disk := vfs.NewMem()
	k := startKeptOn(t, disk, limits{})
	for n := range 4 {
		k.wave(t, n)
	}
	k.checkpoint(t)
	k.pass(t.Context())
	all := map[string]int{"0": 50, "1": 50, "2": 50, "3": 50}
	if got := k.defined(t); fmt.Sprint(got) != fmt.Sprint(all) || k.records(t) != 200 {
		t.Fatalf("without a base: %v, %d records", got, k.records(t))
	}
	// The log is cut, and the buckets stand: nothing goes but the series that no stream takes.
	k.bounds = limits{size: 1}
	k.pass(t.Context())
	if got := k.defined(t); fmt.Sprint(got) != fmt.Sprint(map[string]int{"0": 25, "1": 25, "2": 25, "3": 26}) {
		t.Fatalf("with all buckets retained: %v", got) // the greatest reference stays for good
	}
	// The buckets of waves 0 and 1 go. That stands in the log alone, not in the base.
	k.expire(t, 2*2_101_000+500_000)
	k.bounds = limits{}
	k.checkpoint(t)
	k.pass(t.Context())
	if got := k.defined(t); got["0"] != 25 || got["1"] != 25 {
		t.Fatalf("before the base knows of the retention: %v", got)
	}
	k.wave(t, 4)
	back := k.resolve(t, labels.FromStrings("__name__", "m", "wave", "1", "i", "0")) // still the same series, and in memory again
	w := log.NewWriteBuilder()
	w.Series(back)
	w.Sample(k.events.LogTime(), 7)
	if _, err := k.events.Append(t.Context(), w.Finish()); err != nil {
		t.Fatal(err)
	}
	if err := k.runner.Wait(t.Context(), k.events.Head()); err != nil {
		t.Fatal(err)
	}
	k.checkpoint(t)
	before := k.digest(t)
	k.bounds = limits{size: 1}
	k.pass(t.Context())
	if got := k.defined(t); fmt.Sprint(got) != fmt.Sprint(map[string]int{"1": 1, "2": 25, "3": 25, "4": 26}) {
		t.Fatalf("after the retention of two waves: %v", got)
	}
	if got := k.records(t); got >= 200 {
		t.Errorf("%d records of evicted series", got)
	}
	if got := k.digest(t); got != before {
		t.Errorf("the digest is %s, was %s", got, before)
	}
	// One that was forgotten comes as a new series.
	if again := k.resolve(t, labels.FromStrings("__name__", "m", "wave", "0", "i", "0")); again <= back {
		t.Errorf("a forgotten series came back as %d", again)
	}
	identity, floor := k.events.Identity(), uint64(k.events.Floor())
	k.stop(t)
	if _, err := bucket.RestoreBase("/data/base", "/data/views", identity, floor, bucket.Options{FS: disk}); err != nil {
		t.Fatal(err)
	}
	k = startKeptOn(t, disk, limits{})
	if got := k.digest(t); got != before {
		t.Errorf("from the base the digest is %s, was %s", got, before)
	}
}
