package pane

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/projections/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func matcher(name string) []*labels.Matcher {
	return []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", name)}
}

// count reads the number of samples and of series of a stream in (from, to], with its open buckets.
func (n *node) count(ctx context.Context, st plan.Stream, from, to int64) (samples, series, open int, a Answer, err error) {
	st.Closed, st.Late, st.RetentionMillis = plan.Right, plan.Correct, 86_400_000
	snap, err := n.panes.Read(ctx, []Request{{Stream: st.Resolved().ID, Matchers: matcher(st.Matchers[0].Value), From: from, To: to}})
	if err != nil {
		return 0, 0, 0, Answer{}, err
	}
	a = snap.Answers[0]
	for i := range a.Series {
		s := &a.Series[i]
		samples += len(s.T)
		for _, c := range s.Cols {
			samples += int(c.Columns.Count)
		}
		if len(s.T)+len(s.Cols) > 0 {
			series++
		}
		open += len(s.Open)
	}
	return samples, series, open, a, nil
}

// C11, P6: a barrier covers every write acknowledged before it was called, from any writer, at the first read after it.
func TestCase_C11_BarrierCoversAcknowledgedWrites(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 4, CheckpointInterval: -1})
	st := named("m", 60_000)
	must(n.log.Append(ctx, planOf(t, st)))(t)
	for round := range 20 {
		base := int64(round) * 60_000
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() {
				for r := range 10 {
					var ss []sample
					for k := range 10 {
						ls := labels.FromStrings("__name__", "m", "w", fmt.Sprint(w))
						ss = append(ss, sample{ls, base + int64(r*10+k+1), 1})
					}
					if _, err := n.write(ctx, ss...); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		o := must(n.barrier(ctx, base+60_000))(t)
		if o.Closed != 32 || o.CompleteThrough != base+60_000 {
			t.Fatalf("round %d: %+v", round, o)
		}
		samples, series, open, a, err := n.count(ctx, st, base, base+60_000)
		if err != nil || samples != 3200 || series != 32 || open != 0 || a.Frontier < base+60_000 {
			t.Fatalf("round %d: %d samples of %d series, %d open, frontier %d, %v", round, samples, series, open, a.Frontier, err)
		}
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// C44: a stopped series keeps a query cold only until the barrier, also over a window of many panes, and also in panes in
// which it has nothing.
func TestCase_C44_StoppedSeriesAmongLiveOnes(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{CheckpointInterval: -1})
	st := named("m", 60_000)
	must(n.log.Append(ctx, planOf(t, st)))(t)
	for ts := int64(10_000); ts <= 300_000; ts += 10_000 {
		for i := range 10 {
			if i == 9 && ts > 130_000 {
				continue
			}
			must(n.write(ctx, sample{labels.FromStrings("__name__", "m", "i", string(rune('a'+i))), ts, 1}))(t)
		}
	}
	_, _, open, a, err := n.count(ctx, st, 0, 300_000)
	if err != nil || open != 10 || a.Frontier >= 300_000 {
		t.Fatalf("before the barrier: %d open, frontier %d, %v", open, a.Frontier, err)
	}
	must(n.barrier(ctx, 300_000))(t)
	samples, series, open, a, err := n.count(ctx, st, 0, 300_000)
	if err != nil || samples != 9*30+13 || series != 10 || open != 0 || a.Frontier != 300_000 {
		t.Fatalf("[5m]: %d samples, %d series, %d open, frontier %d, %v", samples, series, open, a.Frontier, err)
	}
	samples, series, _, _, err = n.count(ctx, st, 240_000, 300_000)
	if err != nil || samples != 9*6 || series != 9 {
		t.Fatalf("[1m]: %d samples, %d series, %v", samples, series, err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// history is a random sequence of events that every variant of a run sees alike.
type history struct {
	steps []step
}

type step struct {
	write []sample
	body  log.Body // where write is nil
}

func randomHistory(rng *rand.Rand, steps int, replans []*log.Plan) history {
	h := history{steps: []step{{body: &log.Start{Reason: log.StartProcess}}, {body: replans[0]}}}
	clock := int64(1_000_000)
	for range steps {
		clock += rng.Int64N(8_000)
		switch k := rng.IntN(40); {
		case k == 0:
			h.steps = append(h.steps, step{body: &log.Watermark{Time: clock - rng.Int64N(30_000)}})
		case k == 1:
			h.steps = append(h.steps, step{body: &log.Tick{}})
		case k == 2:
			h.steps = append(h.steps, step{body: replans[rng.IntN(len(replans))]})
		case k == 3:
			h.steps = append(h.steps, step{body: &log.Start{Reason: log.StartResume}})
		case k == 4:
			h.steps = append(h.steps, step{body: randomExpired(rng, replans, clock)})
		case k == 5:
			h.steps = append(h.steps, step{body: &log.Heal{Through: log.Seq(len(h.steps))}}) // each step is an event
		default:
			var ss []sample
			for range 1 + rng.IntN(30) {
				ls := labels.FromStrings("__name__", [...]string{"m", "n", "o"}[rng.IntN(3)], "i", fmt.Sprint(rng.IntN(40)))
				ts := clock - rng.Int64N(20_000)
				if rng.IntN(20) == 0 {
					ts -= rng.Int64N(700_000)
				}
				v := float64(rng.IntN(100))
				if rng.IntN(30) == 0 {
					v = math.Float64frombits(staleBits)
				}
				ss = append(ss, sample{ls, ts, v})
			}
			h.steps = append(h.steps, step{write: ss})
			if rng.IntN(10) == 0 {
				h.steps = append(h.steps, step{write: ss}) // a retry
			}
		}
	}
	return h
}

// randomExpired removes old buckets, and now and then ones that are still open, of a stream that one of the plans has.
func randomExpired(rng *rand.Rand, replans []*log.Plan, clock int64) *log.Expired {
	p, err := plan.Decode(replans[rng.IntN(len(replans))].Spec)
	if err != nil {
		panic(err)
	}
	st := &p.Streams[rng.IntN(len(p.Streams))]
	return &log.Expired{
		Stream: uint64(st.ID), Origin: st.OriginMillis, Width: st.PaneMillis, Through: st.GridFloor(clock - rng.Int64N(400_000)),
	}
}

// feed appends steps with as many appends under way as group says, in order.
func (n *node) feed(ctx context.Context, steps []step, group int) error {
	for len(steps) > 0 {
		k := min(group, len(steps))
		var bodies []log.Body
		for _, s := range steps[:k] {
			body := s.body
			if s.write != nil {
				w, err := n.request(s.write)
				if err != nil {
					return err
				}
				body = w
			}
			bodies = append(bodies, body)
		}
		if _, err := n.log.AppendAll(ctx, bodies...); err != nil {
			return err
		}
		steps = steps[k:]
	}
	return n.runner.Wait(ctx, n.log.Head())
}

// fixedClock stamps every event alike, so that runs which differ only in timing have the same events.
func fixedClock() log.Options { return log.Options{Now: fixedNow, Monotonic: zeroMonotonic} }

// P1: the digest and the counters do not depend on the number of workers, on batches, on the rhythm of checkpoints, compaction and retention, or on
// where the process is restarted, in order or with the views thrown away.
func TestP1_SameEventsSameDigest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	replans := []*log.Plan{
		planOf(t, named("m", 10_000), named("n", 15_000), named("m", 60_000)),
		planOf(t, named("m", 10_000), named("o", 10_000)),
		planOf(t, named("m", 10_000), named("n", 15_000), named("o", 30_000)),
	}
	h := randomHistory(rng, 600, replans)
	var want string
	for i, variant := range []struct {
		workers, group, restarts int
		dropViews                bool
	}{
		{1, 1, 0, false}, {2, 7, 0, false}, {4, 64, 3, false}, {7, 3, 5, false}, {3, 1000, 2, true}, {64, 20, 1, false},
	} {
		got := runVariant(t, h, rng, variant.workers, variant.group, variant.restarts, variant.dropViews)
		if i == 0 {
			want = got
			t.Log(want)
			continue
		}
		if got != want {
			t.Errorf("%+v:\n got %s\nwant %s", variant, got, want)
		}
	}
}

func runVariant(t *testing.T, h history, rng *rand.Rand, workers, group, restarts int, dropViews bool) string {
	ctx := testContext(t)
	fs := vfs.NewMem()
	cuts := []int{0}
	for range restarts {
		cuts = append(cuts, rng.IntN(len(h.steps)))
	}
	cuts = append(cuts, len(h.steps))
	for i := range cuts {
		for j := i; j > 0 && cuts[j] < cuts[j-1]; j-- {
			cuts[j], cuts[j-1] = cuts[j-1], cuts[j]
		}
	}
	var out string
	for i := 1; i < len(cuts); i++ {
		n, err := startNode(fs, fixedClock(), Options{Workers: workers, CheckpointInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		steps := h.steps[cuts[i-1]:cuts[i]]
		half := len(steps) / 2
		if err := n.feed(ctx, steps[:half], group); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(2) == 0 {
			if err := n.panes.Checkpoint(ctx); err != nil {
				t.Fatal(err)
			}
			if err := n.maintain(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.feed(ctx, steps[half:], group); err != nil {
			t.Fatal(err)
		}
		out = must(n.describe(ctx))(t)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		if dropViews {
			if err := fs.RemoveAll("/data/views"); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// describe is all that must be equal between two runs over the same events.
func (n *node) describe(ctx context.Context) (string, error) {
	d, err := n.panes.Digest(ctx)
	if err != nil {
		return "", err
	}
	_, streams, unplanned, err := n.panes.Streams(ctx)
	if err != nil {
		return "", err
	}
	out := fmt.Sprintf("seq=%d digest=%s unplanned=%d", d.Seq, d.All, unplanned)
	for _, s := range streams {
		c := s.Counts
		if c.Routed != c.Applied+c.Duplicate+c.Conflict+c.LateDropped+c.LateUncorrectable {
			return "", fmt.Errorf("P5: %+v", c)
		}
		out += fmt.Sprintf("\n%s frontier=%d proven=%d coverage=%d open=%d series=%d %+v", s.ID, s.Frontier, s.Proven, s.CoverageStart, s.Open, s.Series, c)
	}
	counted, err := n.describeExperiments(ctx)
	return out + counted, err
}

// describeExperiments is what is counted of every experiment.
func (n *node) describeExperiments(ctx context.Context) (string, error) {
	versions, err := n.panes.ExperimentVersions(ctx)
	if err != nil {
		return "", err
	}
	out := ""
	for _, name := range slices.Sorted(maps.Keys(versions.Of)) {
		_, x, ok, err := n.panes.Experiment(ctx, name)
		if is := (ExperimentVersion{x.Version, x.Basis}); err != nil || !ok || is != versions.Of[name] || x.Behind != versions.Behind {
			return "", fmt.Errorf("experiment %q: version %+v, found %v with %+v, %w", name, versions.Of[name], ok, x, err)
		}
		out += fmt.Sprintf("\n%+v", x)
	}
	_, loads, err := n.panes.ExperimentLoads(ctx)
	return out + fmt.Sprintf("\n%+v", loads), err
}
