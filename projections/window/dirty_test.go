package window

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tidemark/log"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// TestDirtySteps holds that the steps found from changed ends are those, and no others, whose windows overlap the buckets there,
// with the newest of their changes.
func TestDirtySteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 2000 {
		width := int64(1 + rng.IntN(20))
		every := width * int64(1+rng.IntN(5))
		if rng.IntN(3) == 0 {
			every = int64(1 + rng.IntN(60))
		}
		r := plan.Reach{Ahead: int64(rng.IntN(60) - 30)}
		r.Back = r.Ahead + int64(1+rng.IntN(100))
		changed := make(map[int64]log.Seq)
		for range rng.IntN(6) {
			changed[width*int64(rng.IntN(80)-40)] = log.Seq(1 + rng.IntN(9))
		}
		got := make(map[int64]log.Seq)
		dirtySteps(got, r, every, width, changed)
		want := make(map[int64]log.Seq)
		for t := floorTo(-2000, every); t < 2000; t += every {
			for end, seq := range changed {
				// (end − width, end] and (t − Back, t − Ahead] overlap
				if end > t-r.Back && end-width < t-r.Ahead {
					want[t] = max(want[t], seq)
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("reach %+v, every %d, width %d, changed %v:\ngot  %v\nwant %v", r, every, width, changed, got, want)
		}
	}
}

// What lies far apart costs what it holds, not the distance.
func TestDirtySteps_FarApart(t *testing.T) {
	got := make(map[int64]log.Seq)
	const far = int64(1) << 52
	dirtySteps(got, plan.Reach{Back: 2000}, 1000, 1000, map[int64]log.Seq{-far / 1000 * 1000: 1, 0: 2, far / 1000 * 1000: 3})
	if len(got) != 6 {
		t.Errorf("%v", got)
	}
}

func TestPublished(t *testing.T) {
	st := &pane.TrackedStream{PaneMillis: 10, CoverageStart: 100, Frontier: 200, Tracked: pane.Tracked{Open: []int64{170}}}
	r := plan.Reach{Back: 20}
	for _, c := range []struct {
		t    int64
		want bool
	}{{110, false}, {120, true}, {160, true}, {170, false}, {180, false}, {190, true}, {200, true}, {210, false}} {
		if got := published(c.t, r, st); got != c.want {
			t.Errorf("%d: %t", c.t, got)
		}
	}
}
