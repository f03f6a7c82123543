package pane

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// laterPlan plans streams, those that are new from the log's first event on.
func laterPlan(t *testing.T, specs ...plan.Stream) *log.Plan {
	t.Helper()
	p, err := plan.Decode(planOf(t, specs...).Spec)
	if err != nil {
		t.Fatal(err)
	}
	p.FromSeq = 1
	return &log.Plan{Spec: p.Encode()}
}

// settled waits until everything is applied, and folds what is added to the history up to its handing over.
func (n *node) settled(ctx context.Context) error {
	if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
		return err
	}
	b := NewBackfiller(n.panes, n.log, BackfillOptions{})
	for {
		if more, err := b.Advance(ctx); err != nil || !more {
			return err
		}
	}
}

// experimentOf reads what is counted of one.
func (n *node) experimentOf(ctx context.Context, t *testing.T, name string) Experiment {
	t.Helper()
	if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
		t.Fatal(err)
	}
	_, x, ok, err := n.panes.Experiment(ctx, name)
	if err != nil || !ok {
		t.Fatalf("experiment %s: %v, %v", name, ok, err)
	}
	return x
}

func ofExperiment(name string, i int) labels.Labels {
	return labels.FromStrings("__name__", "m", "experiment", name, "i", fmt.Sprint(i))
}

// P10: streams that are added to a log with a history count like those that were there: buckets, open panes, corrections, what is
// closed, with a version that moves and a basis that says when they came in. While they are folded, readers are told that they are
// behind; when they leave the plan, their counts go. The sums are the same after a restart and after everything is folded again.
func TestP10_LaterStreamsAreCounted(t *testing.T) {
	ctx := testContext(t)
	fs, first, later := vfs.NewMem(), named("m", 10_000), named("m", 5_000)
	n := must(startNode(fs, log.Options{}, Options{Workers: 2, CheckpointInterval: -1}))(t)
	defer func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}()
	feed := func(bodies ...log.Body) {
		t.Helper()
		if _, err := n.log.AppendAll(ctx, bodies...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, at ...int64) {
		t.Helper()
		for i, at := range at {
			if _, err := n.write(ctx, sample{ofExperiment(name, 0), at, float64(i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(what string, x Experiment, samples uint64, buckets uint64, pending int, corrections uint64) {
		t.Helper()
		if x.Samples != samples || x.Buckets != buckets || x.Pending != pending || x.Corrections != corrections {
			t.Errorf("%s: %+v", what, x)
		}
	}
	feed(&log.Start{Reason: log.StartProcess}, planOf(t, first))
	write("x", 1_001_000, 1_007_000, 1_012_000)
	write("y", 1_001_000)
	before := n.experimentOf(ctx, t, "x")
	want("one stream", before, 3, 1, 1, 0)

	feed(laterPlan(t, first, later))
	write("x", 1_013_000) // while it is behind
	behind := n.experimentOf(ctx, t, "x")
	if want("behind", behind, 4, 1, 1, 0); !behind.Behind || behind.Basis != 0 {
		t.Errorf("nobody is told that streams are being folded: %+v", behind)
	}
	if err := n.settled(ctx); err != nil {
		t.Fatal(err)
	}
	both := n.experimentOf(ctx, t, "x")
	if want("both", both, 4, 3, 2, 0); both.Behind || both.Basis == 0 || both.Version != behind.Version || both.OldestPending != 1_015_000 || len(both.Later) != 1 {
		t.Errorf("%+v", both)
	}
	versions, err := n.panes.ExperimentVersions(ctx)
	if v := versions.Of["x"]; err != nil || v.Version != both.Version || v.Basis != both.Basis || versions.Behind {
		t.Errorf("%+v, %v", versions, err)
	}
	if y, plan := n.experimentOf(ctx, t, "y"), before.Version+2; y.Version != plan || y.Pending != 2 {
		t.Errorf("the plan has changed what is counted of y, and its version is not %d: %+v", plan, y)
	}

	write("x", 1_003_000) // late in both
	want("corrected", n.experimentOf(ctx, t, "x"), 5, 3, 2, 2)
	if _, spots, err := n.panes.CorrectedSpots(ctx, "x"); err != nil || len(spots) != 2 || spots[0].Key.Stream == spots[1].Key.Stream {
		t.Errorf("corrected spots: %+v, %v", spots, err)
	}
	if _, loads, err := n.panes.ExperimentLoads(ctx); err != nil || len(loads) != 2 || loads[0].Corrections != 2 || loads[0].Pending != 2 {
		t.Errorf("loads: %+v, %v", loads, err)
	}
	feed(&log.Watermark{Time: 1_020_000})
	closed := n.experimentOf(ctx, t, "x")
	if want("closed", closed, 5, 5, 0, 2); closed.Version != n.log.Head() || closed.ClosedThrough != 1_020_000 {
		t.Errorf("%+v", closed)
	}
	feed(&log.Compacted{Experiment: "x", Through: n.log.Head()})
	want("compacted", n.experimentOf(ctx, t, "x"), 5, 5, 0, 0)

	print := must(n.describeExperiments(ctx))(t)
	for _, how := range []string{"a restart", "another", "a restart without views"} {
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		if how == "a restart without views" {
			if err := fs.RemoveAll("/data/views"); err != nil {
				t.Fatal(err)
			}
		}
		n = must(startNode(fs, log.Options{}, Options{Workers: 3, CheckpointInterval: -1}))(t)
		if err := n.settled(ctx); err != nil {
			t.Fatal(err)
		}
		if got := must(n.describeExperiments(ctx))(t); got != print {
			t.Errorf("after %s:\n%s\nand before:\n%s", how, got, print)
		}
	}
	feed(&log.Plan{Spec: func() []byte {
		p, err := plan.Decode(planOf(t, first).Spec)
		if err != nil {
			t.Fatal(err)
		}
		p.HandedOver = n.panes.HandedOver()
		return p.Encode()
	}()})
	gone := n.experimentOf(ctx, t, "x")
	if want("removed", gone, 5, 2, 0, 0); gone.Version != n.log.Head() || gone.Basis != 0 {
		t.Errorf("%+v", gone)
	}
	if err := n.panes.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range Shards {
		for _, id := range must(n.store.Generations())(t) {
			if rows, err := n.store.Experiments(id, i); err != nil || len(rows) > 0 {
				t.Errorf("shard %d keeps rows of what has left the plan: %+v, %v", i, rows, err)
			}
		}
	}
}

// M5, P10: what later streams have counted goes with a retirement and out of memory; a sample in between keeps the experiment, without
// what the event has taken over; and a retirement from before the streams were planned takes what they had closed by then, and keeps
// what was open.
func TestP10_RetirementReachesLaterStreams(t *testing.T) {
	ctx := testContext(t)
	n := must(startNode(vfs.NewMem(), log.Options{}, Options{Workers: 2, CheckpointInterval: -1}))(t)
	defer func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}()
	feed := func(bodies ...log.Body) {
		t.Helper()
		if _, err := n.log.AppendAll(ctx, bodies...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, at int64) {
		t.Helper()
		if _, err := n.write(ctx, sample{ofExperiment(name, 0), at, 1}); err != nil {
			t.Fatal(err)
		}
	}
	retire := func(x Experiment) {
		t.Helper()
		feed(&log.ExperimentRetired{Experiment: x.Name, AtVersion: x.Version, LastWrite: x.LastWrite, Parts: x.Parts, Later: x.Later})
	}
	counted := func() []string {
		t.Helper()
		if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(must(n.panes.ExperimentVersions(ctx))(t).Of))
	}
	first, later := named("m", 10_000), named("m", 60_000)
	feed(&log.Start{Reason: log.StartProcess}, planOf(t, first))
	for _, name := range []string{"before", "open", "raced", "x"} {
		write(name, 1_001_000)
	}
	feed(&log.Watermark{Time: 1_010_000, Scoped: true, Experiment: "open"}) // in the later stream its pane is still open
	retire(n.experimentOf(ctx, t, "open"))
	feed(&log.Watermark{Time: 1_100_000})
	retire(n.experimentOf(ctx, t, "before"))
	feed(laterPlan(t, first, later))
	if err := n.settled(ctx); err != nil {
		t.Fatal(err)
	}
	if got := counted(); !slices.Equal(got, []string{"open", "raced", "x"}) {
		t.Errorf("counted are %q", got)
	}
	if x := n.experimentOf(ctx, t, "open"); x.Buckets != 1 || x.Samples != 0 || x.Pending != 0 {
		t.Errorf("what was open of the later stream: %+v", x)
	}
	x, raced := n.experimentOf(ctx, t, "x"), n.experimentOf(ctx, t, "raced")
	if x.Buckets != 2 || len(x.Later) != 1 || x.Later[0].Buckets != 1 {
		t.Errorf("%+v", x)
	}
	write("raced", 1_200_000)
	retire(x)
	retire(raced)
	if got := counted(); !slices.Equal(got, []string{"open", "raced"}) {
		t.Errorf("counted are %q", got)
	}
	if x := n.experimentOf(ctx, t, "raced"); x.Buckets != 0 || x.Pending != 2 || x.Samples != 1 {
		t.Errorf("it was written to before the event: %+v", x)
	}
	feed(&log.Watermark{Time: math.MaxInt64})
	if x := n.experimentOf(ctx, t, "raced"); x.Buckets != 2 || x.Pending != 0 {
		t.Errorf("%+v", x)
	}
	resident := 0
	must(n.panes.cut(ctx, func(s *Shard, _ *shelf) {
		if s.id == 0 && s.generation != 0 {
			resident++
		}
		for i := range s.series {
			if name := s.series[i].experiment; s.series[i].ref != 0 && (name == "x" || name == "before") {
				t.Errorf("a series of %s is in memory, in generation %d", name, s.generation)
			}
		}
	}))(t)
	if resident != 1 {
		t.Errorf("%d later generations", resident)
	}
}
