package sample

import (
	"testing"

	"github.com/prometheus/prometheus/storage"
)

// E1: what the head is said to have it has, in chunks that are closed and in the one that is open; and whatever is not there, in part or at
// all, is looked up elsewhere.
func TestE1_TimesInTheHead(t *testing.T) {
	r := newRig(t, Options{})
	const n = 500 // some chunks
	for i := range int64(n) {
		r.floats(float{"a", 1000 * (i + 1), float64(i)}, float{"b", 1000*(i+1) + 1, float64(i)})
	}
	r.caughtUp()
	r.stall() // known is Apply's own
	var a storage.SeriesRef
	for ref, as := range r.copy.known {
		if ls, ok, err := r.log.Dictionary().Labels(ref); err == nil && ok && ls.Get("i") == "a" {
			a = as
		}
	}
	if a == 0 {
		t.Fatal("the series is not known by its reference")
	}
	head, err := newHeadTimes(r.copy.db.Head())
	if err != nil {
		t.Fatal(err)
	}
	at := func(ts ...int64) (run []point) {
		for _, t := range ts {
			run = append(run, point{t: t})
		}
		return run
	}
	var all []int64
	for i := range int64(n) {
		all = append(all, 1000*(i+1))
	}
	for _, c := range []struct {
		ref  storage.SeriesRef
		ts   []int64
		want bool
	}{
		{a, []int64{1000}, true}, {a, []int64{1000 * n}, true}, {a, []int64{1000, 250_000, 499_000}, true}, {a, all, true},
		{a, []int64{999}, false}, {a, []int64{1001}, false}, {a, []int64{1000, 1001, 2000}, false}, {a, []int64{499_000, 1000*n + 1}, false},
		{a + 1000, []int64{1000}, false},
	} {
		if got := head.all(c.ref, at(c.ts...)); got != c.want {
			t.Errorf("%d times from %d of series %d: %v, want %v", len(c.ts), c.ts[0], c.ref, got, c.want)
		}
	}
	if err := head.close(); err != nil {
		t.Fatal(err)
	}
}
