package pane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// togetherPlan has streams of both memberships, both late policies, some lateness, and recorded windows.
const togetherPlan = `
correction_horizon: 2m
materializations:
  - {name: a, expr: 'sum_over_time(m[1m])', every: 10s, layout: full_window}
  - {name: b, expr: 'increase(m[1m])', every: 15s, late: drop}
  - {name: c, expr: 'max_over_time(n[30s])', every: 30s, closed: left, allowed_lateness: 20s}
  - {name: d, expr: 'avg_over_time({i=~"1.*"}[20s])', every: 20s}
`

// togetherEvents are of some hundred series in a few experiments, with retries, conflicts, late and too late samples, stale markers, series that no
// stream takes, and ones that stop and come back. Log time goes in such steps that now and then series are evicted.
func togetherEvents(ctx context.Context, t *testing.T, rng *rand.Rand) (*node, []*log.Event) {
	t.Helper()
	c, err := plan.Parse([]byte(togetherPlan), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := plan.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	var elapsed time.Duration
	n, err := startNode(vfs.NewMem(), log.Options{Now: fixedNow, Monotonic: func() time.Duration { return elapsed }}, Options{Workers: 1, CheckpointInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	must(n.log.AppendAll(ctx, &log.Start{Reason: log.StartProcess}, &log.Plan{Spec: p.Encode()}))(t)
	at := make([]int64, 4*inStep) // so that there are several steps
	for i := range 300 {
		elapsed += time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
		if rng.IntN(300) == 0 {
			elapsed += 3 * time.Minute
		}
		var ss []sample
		for s := range at {
			if (i/30+s)%7 == 0 || rng.IntN(3) == 0 {
				continue // it is silent for a while, or now
			}
			name := [...]string{"m", "m", "n", "o"}[s%4]
			ls := labels.FromStrings("__name__", name, "i", fmt.Sprint(s), "experiment", fmt.Sprint(s%5))
			for range 1 + rng.IntN(2) {
				at[s] += 1 + rng.Int64N(8_000)
				x := sample{ls, 1_000_000 + at[s], float64(rng.IntN(50))}
				switch rng.IntN(40) {
				case 0:
					x.t -= rng.Int64N(100_000)
				case 1:
					x.t -= rng.Int64N(400_000)
				case 2:
					x.v = math.Float64frombits(staleBits)
				case 3:
					ss = append(ss, x) // again, and maybe in conflict
					x.v++
				}
				ss = append(ss, x)
			}
		}
		if len(ss) > 0 {
			must(n.write(ctx, ss...))(t)
		}
		switch rng.IntN(100) {
		case 0:
			must(n.log.Append(ctx, &log.Tick{}))(t)
		case 1:
			must(n.log.Append(ctx, &log.Watermark{Time: 1_000_000 + slices.Max(at) - rng.Int64N(60_000)}))(t)
		case 2:
			must(n.write(ctx, ss...))(t) // a retry
		}
	}
	var events []*log.Event
	for r := n.log.NewReader(1); ; {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return n, events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
}

// folding is the workers of a projection that does not run.
func folding(t *testing.T, n *node) *Projection {
	t.Helper()
	index := series.New()
	if err := index.Load(n.log.Dictionary()); err != nil {
		t.Fatal(err)
	}
	store, err := bucket.Open("views", n.log.Identity(), bucket.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	p := New(n.log, index, store, Options{Workers: 3, CheckpointInterval: -1})
	if _, err := p.Restore(); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestP1_WritesFoldedTogether holds that a shard is the same, to the last byte of its state, its experiments, its changes and its buckets,
// whether it was given the writes of a batch one by one or walked them in step.
func TestP1_WritesFoldedTogether(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	ctx := testContext(t)
	n, events := togetherEvents(ctx, t, rng)
	defer func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}()
	single, batched := folding(t, n), folding(t, n)
	walked := 0
	for rest := events; len(rest) > 0; {
		k := min(len(rest), 1+rng.IntN(64))
		batch := rest[:k]
		rest = rest[k:]
		for i := range batch {
			m := message{events: batch[i : i+1], repeats: single.recent.judge(batch[i : i+1])}
			for _, w := range single.workers {
				if err := w.take(m); err != nil {
					t.Fatal(err)
				}
			}
		}
		m := message{events: batch, repeats: batched.recent.judge(batch)}
		for _, w := range batched.workers {
			walked += w.plainWrites(batch, m.repeats)
			if err := w.take(m); err != nil {
				t.Fatal(err)
			}
		}
		for i := range single.workers {
			for id, a := range single.workers[i].shards {
				if a != nil {
					sameShard(t, a, batched.workers[i].shards[id])
				}
			}
		}
		if t.Failed() {
			t.Fatalf("behind event %d", batch[k-1].Seq)
		}
	}
	a, b := bucketsOf(ctx, t, single), bucketsOf(ctx, t, batched)
	if len(a) < 1000 || !slices.Equal(a, b) {
		t.Errorf("%d buckets, folded together %d, or others", len(a), len(b))
	}
	if walked < len(events)/4 { // of 40 seeds, the least was two thirds of them
		t.Fatalf("only %d times was a write walked in step with others", walked)
	}
}

// sameShard compares two shards, but for what they have closed.
func sameShard(t *testing.T, a, b *Shard) {
	t.Helper()
	if !bytes.Equal(a.Encode(), b.Encode()) {
		t.Errorf("shard %d: other states", a.id)
	}
	ra, rb := a.experimentRows(), b.experimentRows()
	if !slices.EqualFunc(ra, rb, func(x, y bucket.ExperimentRow) bool { return x.Name == y.Name && bytes.Equal(x.Counts, y.Counts) }) {
		t.Errorf("shard %d: other experiments", a.id)
	}
	for i, st := range a.streams {
		inOrder := slices.IsSortedFunc(b.streams[i].track.journal, func(x, y endChange) int { return cmp.Compare(x.seq, y.seq) })
		var ta, tb Tracked
		ta.follow(&st.track, 0)
		tb.follow(&b.streams[i].track, 0)
		ta.settle()
		tb.settle()
		if !inOrder || ta.Since != tb.Since || !maps.Equal(ta.Changed, tb.Changed) || !slices.Equal(ta.Open, tb.Open) {
			t.Errorf("shard %d, stream %d: other changes", a.id, i)
		}
	}
}

// bucketsOf lists what the shards of a projection have closed and marked.
func bucketsOf(ctx context.Context, t *testing.T, p *Projection) (out []string) {
	t.Helper()
	var views [Shards]bucket.ShardView
	streams := make(map[uint64]bucket.Grid)
	for _, w := range p.workers {
		for id, s := range w.shards {
			if s == nil {
				continue
			}
			s.table.AddAll(&views[id].View)
			for _, st := range s.streams {
				streams[st.key] = st.grid
			}
		}
	}
	for key, grid := range streams {
		err := p.store.Collect(ctx, key, grid, 0, 1<<40, views[:], func(shard int, b bucket.Bucket) error {
			out = append(out, fmt.Sprint(key, shard, b))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(out)
	return out
}
