package pane

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/log/logtest"
)

// retireExperiments is how many experiments TestP10_RetirementFreesTheMemory retires. By hand: -args -retire=10000.
var retireExperiments = flag.Int("retire", 1000, "experiments of the test of what retirement frees")

// Retiring experiments frees at least nine tenths of the memory that they held, and each returns with its next sample: its series is the
// same one, what it had closed stays closed, and what was published is read as before. That holds for streams that were there from the
// start, and for those that were added when the log had a history. Seen to fail with the call of releaseExperiment taken out of retire, and
// with retire kept from shards of later generations: then most of it stays.
func TestP10_RetirementFreesTheMemory(t *testing.T) {
	t.Run("streams=first", func(t *testing.T) { retirementFreesTheMemory(t, false) })
	t.Run("streams=later", func(t *testing.T) { retirementFreesTheMemory(t, true) })
}

func retirementFreesTheMemory(t *testing.T, later bool) {
	experiments, series := *retireExperiments, 20
	ctx := testContext(t)
	// On a disk, and with caches that hold next to nothing, so that what is measured is what the panes and the index hold.
	n, err := startNodeIn(t.TempDir(), vfs.Default, log.Options{DictionaryCache: 1000, CacheBytes: 1 << 20, TailBytes: 64 << 10}, Options{Workers: 2, CheckpointInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := n.log.AppendAll(ctx, &log.Start{Reason: log.StartProcess}, planOf(t, named("m", 10_000))); err != nil {
		t.Fatal(err)
	}
	checkpoint := func() {
		t.Helper()
		if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
			t.Fatal(err)
		}
		if err := n.panes.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
		n.index.Sweep()
	}
	write := func(i int, at int64) {
		t.Helper()
		var samples []sample
		for k := range series {
			ls := labels.FromStrings("__name__", "m", "experiment", fmt.Sprintf("run-%d", i), "i", fmt.Sprint(k), "pod", fmt.Sprintf("pod-%040d", i*series+k))
			samples = append(samples, sample{ls, at, float64(k)})
		}
		if _, err := n.write(ctx, samples...); err != nil {
			t.Fatal(err)
		}
	}
	write(experiments, 1_000_000) // one that stays, and all that is there once
	if later {
		if _, err := n.log.Append(ctx, laterPlan(t, named("m", 10_000), named("m", 5_000), named("m", 2_000))); err != nil {
			t.Fatal(err)
		}
		if err := n.settled(ctx); err != nil {
			t.Fatal(err)
		}
		if got := n.panes.HandedOver(); len(got) != 1 {
			t.Fatalf("generations %v", got)
		}
	}
	checkpoint()
	before := liveHeap()
	for i := range experiments {
		write(i, 1_001_000)
	}
	if _, err := n.barrier(ctx, 1_020_000); err != nil {
		t.Fatal(err)
	}
	checkpoint()
	held := liveHeap()
	versions, err := n.panes.ExperimentVersions(ctx)
	if err != nil || len(versions.Of) != experiments+1 {
		t.Fatal(len(versions.Of), err)
	}
	for i := range experiments {
		name := fmt.Sprintf("run-%d", i)
		_, x, ok, err := n.panes.Experiment(ctx, name)
		if err != nil || !ok || x.Pending != 0 {
			t.Fatalf("%+v, %v", x, err)
		}
		if _, err := n.log.Append(ctx, &log.ExperimentRetired{Experiment: name, AtVersion: x.Version, LastWrite: x.LastWrite, Parts: x.Parts, Later: x.Later}); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint()
	checkpoint() // what the first has written is forgotten by the second
	after := liveHeap()
	t.Logf("%d experiments of %d series: %d KiB before, %d KiB held, %d KiB after they were retired", experiments, series, before>>10, held>>10, after>>10)
	if freed := held - after; freed*10 < 9*(held-before) && !logtest.RaceDetector {
		t.Errorf("%d of %d bytes are free again", freed, held-before)
	}
	stream, pending := named("m", 10_000), series
	if later {
		stream, pending = named("m", 5_000), 3*series
	}
	for _, i := range []int{0, experiments / 2, experiments - 1} {
		write(i, 1_005_000) // into what is closed: too late, because the tail went with the retirement
		write(i, 1_031_000)
		if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
			t.Fatal(err)
		}
		_, x, ok, err := n.panes.Experiment(ctx, fmt.Sprintf("run-%d", i))
		if err != nil || !ok || x.Series != 0 || x.Samples != uint64(series) || x.Pending != pending {
			t.Errorf("it returned as %+v, %v", x, err)
		}
		snap, err := n.panes.Read(ctx, []Request{{Stream: planned(stream), Matchers: []*labels.Matcher{
			labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"), labels.MustNewMatcher(labels.MatchEqual, "experiment", fmt.Sprintf("run-%d", i)),
		}, From: 1_000_000, To: 1_010_000}})
		if err != nil || len(snap.Answers[0].Series) != series || slices.ContainsFunc(snap.Answers[0].Series, func(s Series) bool { return len(s.T) != 1 }) {
			t.Errorf("its published buckets: %+v, %v", snap, err)
		}
	}
}
