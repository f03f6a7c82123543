package pane

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// healPlan plans streams of all policies and memberships over the same series, with a short horizon.
func healPlan(t *testing.T) *log.Plan {
	t.Helper()
	p := &plan.Plan{
		Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, IdleGraceMillis: 5_000,
		OpenGraceMillis: 5_000, HorizonMillis: 20_000, ClockSkewMillis: 60_000,
	}
	for i, pane := range []int64{10_000, 60_000, 5_000} {
		st := named("m", pane)
		st.Closed, st.Late, st.RetentionMillis = plan.Right, plan.Correct, 86_400_000
		switch i {
		case 0:
			st.Late = plan.Drop
		case 2:
			st.Closed = plan.Left
		}
		p.Streams = append(p.Streams, st.Resolved())
	}
	slices.SortFunc(p.Streams, func(a, b plan.Stream) int { return cmp.Compare(a.ID, b.ID) })
	return &log.Plan{Spec: p.Encode()}
}

// tardy makes writes of which many samples come far too late, some of them never seen before, some again with the same or with
// another value.
func tardy(rng *rand.Rand, writes int) (out [][]sample) {
	var all []sample
	clock := int64(1_000_000)
	for range writes {
		clock += rng.Int64N(6_000)
		var ss []sample
		for range 1 + rng.IntN(12) {
			s := sample{labels.FromStrings("__name__", "m", "i", fmt.Sprint(rng.IntN(8))), clock - rng.Int64N(4_000), float64(rng.IntN(50))}
			switch rng.IntN(8) {
			case 0:
				s.t -= rng.Int64N(200_000)
			case 1:
				if len(all) > 0 {
					s = all[rng.IntN(len(all))]
					if rng.IntN(2) == 0 {
						s.v++
					}
				}
			case 2:
				s.v = math.Float64frombits(staleBits)
			}
			ss = append(ss, s)
		}
		all = append(all, ss...)
		out = append(out, ss)
	}
	return out
}

// inOrder are the same samples by time, and of those at one time the first to come first.
func inOrder(writes [][]sample) [][]sample {
	var all []sample
	for _, ss := range writes {
		// One request holds the samples of a series in time order, stable for equal times.
		ss = slices.Clone(ss)
		slices.SortStableFunc(ss, func(a, b sample) int { return cmp.Or(labels.Compare(a.ls, b.ls), cmp.Compare(a.t, b.t)) })
		all = append(all, ss...)
	}
	slices.SortStableFunc(all, func(a, b sample) int { return cmp.Compare(a.t, b.t) })
	var out [][]sample
	for i := range all {
		out = append(out, all[i:i+1])
	}
	return out
}

// healRun feeds writes and heals at the given places of them, closes everything and heals if it has before.
func healRun(ctx context.Context, n *node, writes [][]sample, heals ...int) error {
	for i, ss := range writes {
		if _, err := n.write(ctx, ss...); err != nil {
			return err
		}
		if slices.Contains(heals, i) {
			if err := n.heal(ctx); err != nil {
				return err
			}
		}
	}
	if _, err := n.barrier(ctx, 1<<40); err != nil {
		return err
	}
	if heals != nil {
		return n.heal(ctx)
	}
	return nil
}

func (n *node) heal(ctx context.Context) error {
	seq, err := n.log.Append(ctx, &log.Heal{Through: n.log.Head()})
	if err != nil {
		return err
	}
	return n.runner.Wait(ctx, seq)
}

func (n *node) sums(ctx context.Context) (string, error) {
	if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
		return "", err
	}
	d, err := n.panes.Digest(ctx)
	return d.All.String(), err
}

// After a heal the published buckets are those of the same samples sent in order, under every policy and membership: once or after
// several heals, for any number of workers, and when the views are folded again.
func TestHealIsTheFoldInOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, round))
		writes := tardy(rng, 150)
		digest := func(fs vfs.FS, workers int, run func(context.Context, *node) error) string {
			t.Helper()
			ctx := testContext(t)
			n, err := startNode(fs, fixedClock(), Options{Workers: workers, CheckpointInterval: -1})
			if err != nil {
				t.Fatal(err)
			}
			if n.log.Head() == 0 {
				must(n.log.Append(ctx, healPlan(t)))(t)
			}
			if err := run(ctx, n); err != nil {
				t.Fatal(err)
			}
			out := must(n.sums(ctx))(t)
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			return out
		}
		want := digest(vfs.NewMem(), 1, func(ctx context.Context, n *node) error { return healRun(ctx, n, inOrder(writes)) })
		unhealed := digest(vfs.NewMem(), 1, func(ctx context.Context, n *node) error { return healRun(ctx, n, writes) })
		if unhealed == want {
			t.Fatal("nothing was late: this tests nothing")
		}
		for i, heals := range [][]int{{}, {40}, {100, 101, 149}, {3, 60, 61, 120}} {
			fs := vfs.NewMem()
			got := digest(fs, 1+i, func(ctx context.Context, n *node) error { return healRun(ctx, n, writes, heals...) })
			if got != want {
				t.Errorf("heals at %v and at the end: %s, not %s", heals, got, want)
			}
			nothing := func(context.Context, *node) error { return nil }
			if again := digest(fs, 7, nothing); again != got {
				t.Errorf("heals at %v: after a restart %s, not %s", heals, again, got)
			}
			if err := fs.RemoveAll("/data/views"); err != nil {
				t.Fatal(err)
			}
			if again := digest(fs, 3, nothing); again != got {
				t.Errorf("heals at %v: folded again %s, not %s", heals, again, got)
			}
		}
	}
}

// A heal leaves everything but the published buckets as it is: frontiers, counters, open buckets. The marks go, of what was refused
// before it; what is refused later marks again. It says what it does, and the second time that there is nothing left to do.
func TestHealTakesTheMarksAndNothingElse(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{CheckpointInterval: -1})
	must(n.log.Append(ctx, healPlan(t)))(t)
	st := named("m", 60_000)
	ls := labels.FromStrings("__name__", "m")
	for ts := int64(10_000); ts <= 300_000; ts += 10_000 {
		must(n.write(ctx, sample{ls, ts, 1}))(t)
	}
	must(n.barrier(ctx, 300_000))(t)
	must(n.write(ctx, sample{ls, 15_000, 1}, sample{ls, 20_000, 1}, sample{ls, 119_000, 1}))(t) // of these one repeats what is there
	count := func() (int, []int64) {
		samples, _, _, a, err := n.count(ctx, st, 0, 300_000)
		if err != nil {
			t.Fatal(err)
		}
		return samples, a.Series[0].Incomplete
	}
	states := func() []StreamState {
		_, s, _, err := n.panes.Streams(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if samples, marks := count(); samples != 30 || !slices.Equal(marks, []int64{60_000, 120_000}) {
		t.Fatal(samples, marks)
	}
	before := states()
	found := must(FindLate(ctx, n.log, n.index, nil, log.Heal{Through: n.log.Head()}, FindOptions{}))(t)
	if got, want := found.Streams[planned(st)], (HealCounts{Samples: 3, Buckets: 2, Changed: 2, Marks: 2}); got != want {
		t.Errorf("found %+v, not %+v", got, want)
	}
	if err := n.heal(ctx); err != nil {
		t.Fatal(err)
	}
	if samples, marks := count(); samples != 32 || marks != nil {
		t.Error(samples, marks)
	}
	if after := states(); !slices.Equal(after, before) {
		t.Errorf("%+v\nwas\n%+v", after, before)
	}
	if again := must(FindLate(ctx, n.log, n.index, nil, log.Heal{Through: n.log.Head()}, FindOptions{}))(t); again.Total() != (HealCounts{}) {
		t.Errorf("after a heal %+v is left", again.Total())
	}
	must(n.write(ctx, sample{ls, 20_000, 7}, sample{ls, 16_000, 7}))(t)
	if samples, marks := count(); samples != 32 || !slices.Equal(marks, []int64{60_000}) {
		t.Error(samples, marks)
	}
	found = must(FindLate(ctx, n.log, n.index, nil, log.Heal{Through: n.log.Head()}, FindOptions{}))(t)
	if got, want := found.Streams[planned(st)], (HealCounts{Samples: 2, Buckets: 1, Changed: 1, Marks: 1}); got != want {
		t.Errorf("found %+v, not %+v", got, want)
	}
	if err := n.heal(ctx); err != nil {
		t.Fatal(err)
	}
	if samples, marks := count(); samples != 33 || marks != nil {
		t.Error(samples, marks)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// A heal that is not right behind what it heals, or that nothing can find the late samples for, stops the projection: it is never
// passed over.
func TestHealIsNeverPassedOver(t *testing.T) {
	for says, body := range map[string]*log.Heal{"which is not the event before it": {Through: 1}, "does not know": {Through: 2}} {
		ctx := testContext(t)
		po := Options{CheckpointInterval: -1}
		if says == "does not know" {
			po.Heal = func(context.Context, log.Heal) (*Healing, error) { return nil, fmt.Errorf("who heals %s", says) }
		}
		n := mustNode(t, vfs.NewMem(), po)
		must(n.log.Append(ctx, healPlan(t)))(t)
		must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), 1, 1}))(t)
		seq := must(n.log.Append(ctx, body))(t)
		if err := n.runner.Wait(ctx, seq); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
		_ = n.stop() // with the same error
	}
}
