package pane

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// handClock is the time of a log that passes only when it is told to.
type handClock struct{ ms atomic.Int64 }

func (c *handClock) options() log.Options {
	return log.Options{
		Now:       func() time.Time { return time.UnixMilli(c.ms.Load()) },
		Monotonic: func() time.Duration { return time.Duration(c.ms.Load()) * time.Millisecond },
	}
}

// evictionHorizon is short, so that series come, stop, are evicted and come back all the time.
const evictionHorizon = 60_000

// comings is a history of series that come and go, with the log time of each step.
type comings struct {
	steps []step
	at    []int64
}

func (h *comings) add(at int64, s step) { h.steps, h.at = append(h.steps, s), append(h.at, at) }

func randomComings(rng *rand.Rand, steps int, plans []*log.Plan) comings {
	var h comings
	at := int64(1_000_000)
	h.add(at, step{body: &log.Start{Reason: log.StartProcess}})
	h.add(at, step{body: plans[0]})
	for range steps {
		at += rng.Int64N(12_000)
		switch k := rng.IntN(60); {
		case k == 0:
			h.add(at, step{body: &log.Watermark{Time: at - rng.Int64N(30_000)}})
		case k == 1:
			h.add(at, step{body: plans[rng.IntN(len(plans))]})
		case k == 2:
			h.add(at, step{body: randomExpired(rng, plans, at)})
		case k == 3:
			h.add(at, step{body: &log.Watermark{Time: at, Scoped: true, Experiment: fmt.Sprint("e", rng.IntN(30))}})
		case k < 15:
			h.add(at, step{body: &log.Tick{}})
		default:
			h.add(at, step{write: someOf(rng, at)})
		}
	}
	return h
}

// someOf writes to series whose turn it is, and now and then to ones whose turn is over.
func someOf(rng *rand.Rand, at int64) []sample {
	var out []sample
	for range 1 + rng.IntN(6) {
		turn := at/120_000 + rng.Int64N(3)
		if rng.IntN(6) == 0 {
			turn -= rng.Int64N(8)
		}
		ls := labels.FromStrings("__name__", [...]string{"m", "n", "other"}[rng.IntN(3)], "experiment", fmt.Sprint("e", turn%30), "i", fmt.Sprint(rng.IntN(3)))
		t := at - rng.Int64N(25_000)
		if rng.IntN(8) == 0 {
			t -= rng.Int64N(400_000)
		}
		out = append(out, sample{ls, t, float64(rng.IntN(100))})
	}
	return out
}

func evictionPlans(horizon int64) (plans []*log.Plan, streams []plan.StreamID) {
	specs := [][]plan.Stream{
		{named("m", 10_000), named("n", 15_000), named("m", 60_000)}, {named("m", 10_000), named("n", 15_000)},
		{named("m", 10_000), named("n", 15_000), named("m", 60_000), named("other", 30_000)},
	}
	for i, s := range specs {
		p, err := plan.Decode(newPlan(s...).Spec)
		if err != nil {
			panic(err)
		}
		p.HorizonMillis = horizon
		if i == 1 {
			p.HorizonMillis *= 2
		}
		plans = append(plans, &log.Plan{Spec: p.Encode()})
		for _, st := range p.Streams {
			if !slices.Contains(streams, st.ID) {
				streams = append(streams, st.ID)
			}
		}
	}
	return plans, streams
}

// way is how a history is lived through.
type way struct {
	workers    int
	checkpoint int  // every so many steps; 0: never
	restart    int  // every so many steps; 0: never
	crash      bool // a restart is a crash that keeps half of what was not synced
	forget     bool // a restart finds no views
	stay       bool // nothing is ever evicted
}

// live returns the digest and the counters, and what reads answer on the way, for the whole and for one experiment.
func (h *comings) live(t *testing.T, w way, streams []plan.StreamID) (print, answers string, residents int) {
	ctx := testContext(t)
	clock := new(handClock)
	fs := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(1, 2))
	clock.ms.Store(h.at[0])
	n := must(startNode(fs, clock.options(), Options{Workers: w.workers, CheckpointInterval: -1}))(t)
	var sb strings.Builder
	for i, s := range h.steps {
		clock.ms.Store(h.at[i])
		if w.stay {
			must(n.panes.cut(ctx, keepAll))(t)
		}
		if err := n.feed(ctx, []step{s}, 1); err != nil {
			t.Fatalf("%+v: step %d: %v", w, i, err)
		}
		if w.checkpoint > 0 && i%w.checkpoint == w.checkpoint-1 {
			if err := n.panes.Checkpoint(ctx); err != nil {
				t.Fatal(err)
			}
			if err := n.maintain(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if w.restart > 0 && i%w.restart == w.restart-1 {
			image := fs
			if w.crash {
				image = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
			}
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			fs = image
			if w.forget {
				if err := fs.RemoveAll("/data/views"); err != nil {
					t.Fatal(err)
				}
			}
			n = must(startNode(fs, clock.options(), Options{Workers: w.workers, CheckpointInterval: -1}))(t)
			if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
				t.Fatal(err)
			}
		}
		if i%100 == 99 {
			sb.WriteString(n.answers(ctx, t, streams, h.at[i]))
		}
	}
	print = must(n.describeEvicted(ctx))(t)
	must(n.panes.cut(ctx, func(s *Shard, _ *shelf) {}))(t)
	residents = n.index.Len()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	return print, sb.String(), residents
}

// keepAll keeps a shard from evicting what it has.
func keepAll(s *Shard, _ *shelf) {
	for i := range s.series {
		s.series[i].lastNamed = math.MaxInt64
	}
	s.unwantedSince = math.MaxInt64
}

// describeEvicted is describe without what eviction is allowed to change: how many series have state.
func (n *node) describeEvicted(ctx context.Context) (string, error) {
	d, err := n.panes.Digest(ctx)
	if err != nil {
		return "", err
	}
	_, streams, unplanned, err := n.panes.Streams(ctx)
	out := fmt.Sprintf("seq=%d digest=%s unplanned=%d", d.Seq, d.All, unplanned)
	for _, s := range streams {
		out += fmt.Sprintf("\n%d: coverage=%d frontier=%d proven=%d open=%d %+v", s.ID, s.CoverageStart, s.Frontier, s.Proven, s.Open, s.Counts)
	}
	return out, err
}

func (n *node) answers(ctx context.Context, t *testing.T, streams []plan.StreamID, now int64) string {
	p := n.panes.Plan()
	var sb strings.Builder
	for _, st := range p.Streams {
		from := st.GridFloor(now - 2_000_000)
		var reqs []Request
		for _, experiment := range []*labels.Matcher{
			labels.MustNewMatcher(labels.MatchRegexp, "experiment", ".*"), labels.MustNewMatcher(labels.MatchEqual, "experiment", "e7"),
			labels.MustNewMatcher(labels.MatchNotEqual, "experiment", "e9"),
		} {
			reqs = append(reqs,
				Request{Stream: st.ID, Matchers: append(matcher(st.Matchers[0].Value), experiment), From: from, To: st.GridFloor(now + 60_000)},
				Request{Stream: st.ID, Matchers: append(matcher(st.Matchers[0].Value), experiment), From: from, To: st.GridFloor(now - 1_000_000)})
		}
		snap := must(n.panes.Read(ctx, reqs))(t)
		for _, a := range snap.Answers {
			fmt.Fprintf(&sb, "%d: frontier %d, %d series\n", st.ID, a.Frontier, len(a.Series))
			for _, s := range a.Series {
				fmt.Fprintf(&sb, "  %s %v %v open %v incomplete %v\n", s.Labels, s.T, s.V, s.Open, s.Incomplete)
			}
		}
	}
	return sb.String()
}

// Eviction changes nothing that anyone can tell: digest, counters, frontiers and answers are those of a fold that keeps every series
// for good, whatever the workers, checkpoints, restarts, crashes and rebuilds; and it does evict.
func TestEvictionChangesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	plans, streams := evictionPlans(evictionHorizon)
	h := randomComings(rand.New(rand.NewPCG(seed, 1)), 500, plans)
	want, wantAnswers, all := h.live(t, way{workers: 1, stay: true}, streams)
	t.Logf("%s\n%d series in all", want, all)
	for _, w := range []way{
		{workers: 1}, {workers: 3, checkpoint: 7}, {workers: 2, checkpoint: 40, restart: 60}, {workers: 5, checkpoint: 23, restart: 50, crash: true},
		{workers: 2, checkpoint: 11, restart: 170, forget: true},
	} {
		got, answers, left := h.live(t, w, streams)
		if got != want {
			t.Errorf("%+v:\n got %s\nwant %s", w, got, want)
		}
		if answers != wantAnswers {
			t.Errorf("%+v: answers differ:\n%s", w, firstDifference(answers, wantAnswers))
		}
		if left*2 > all {
			t.Errorf("%+v: %d of %d series are still resident", w, left, all)
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// What is forgotten of writes while no checkpoint can be written counts as waiting, so that writes are refused before it has no bound, and
// is given back once a checkpoint is written.
func TestForgottenWritesCountAsWaiting(t *testing.T) {
	r := newRecentWrites()
	for i := range 1000 {
		var h log.Hash
		h[0], h[1] = byte(i), byte(i>>8)
		r.judge([]*log.Event{{Seq: log.Seq(i + 1), LogTime: int64(i) * recentSpan, Body: &log.Write{Hash: h}}})
	}
	if len(r.spill) < 990 || r.spilled() < 990*40 {
		t.Fatalf("%d writes were forgotten, %d bytes wait", len(r.spill), r.spilled())
	}
	r.saved(1000)
	if r.spilled() != 0 {
		t.Errorf("%d bytes wait after a checkpoint", r.spilled())
	}
}

// When a series goes hangs on the events alone, and not on when the fold was last started.
func TestEvictionHangsOnTheEventsAlone(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	sources := everySeries{}
	runs, again := NewShard(1, sources), NewShard(1, sources)
	p, err := plan.Decode(newPlan(named("m", 10_000)).Spec)
	if err != nil {
		t.Fatal(err)
	}
	p.HorizonMillis = 5_000 // buckets of idle series are open for longer than the series would stay
	bodies := []log.Body{&log.Start{Reason: log.StartProcess}, &log.Plan{Spec: p.Encode()}}
	at, evicted := int64(1_000_000), 0
	for i := range 3000 {
		var body log.Body
		switch at += rng.Int64N(4_000); {
		case i < len(bodies):
			body = bodies[i]
		case rng.IntN(3) == 0:
			body = &log.Tick{}
		default:
			b := log.NewWriteBuilder()
			b.Series(log.SeriesRef(1 + Shards*(rng.IntN(10)+int(at/600_000)*5)))
			b.Sample(at-rng.Int64N(20_000), 1)
			body = b.Finish()
		}
		ev := &log.Event{Seq: log.Seq(i + 1), LogTime: at, WallTime: at, Body: body}
		for _, s := range []*Shard{runs, again} {
			s.evicted = nil
			if _, err := (&group{1: s}).apply(ev, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		gone := func(s *Shard) (refs []uint64) {
			for _, e := range s.evicted {
				if len(e.Streams) > 0 {
					refs = append(refs, e.Ref)
				}
			}
			slices.Sort(refs)
			return refs
		}
		if a, b := gone(runs), gone(again); !slices.Equal(a, b) || runs.resident() != again.resident() {
			t.Fatalf("event %d: %v went, %d are left; in a fold that was started before it %v, %d", ev.Seq, a, runs.resident(), b, again.resident())
		}
		evicted += len(gone(runs))
		if again, err = DecodeShard(1, sources, again.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	if evicted < 20 {
		t.Fatalf("only %d series went: this tests nothing", evicted)
	}
}
