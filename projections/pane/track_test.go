package pane

import (
	"bytes"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// trackedPlan plans one stream of m with panes of 10 s, read by a recorded window or not.
func trackedPlan(t *testing.T, layout string) *log.Plan {
	t.Helper()
	c, err := plan.Parse([]byte("materializations: [{name: r, expr: 'sum(m)', every: 10s, layout: "+layout+"}]"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := plan.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return &log.Plan{Spec: p.Encode()}
}

// TestTracked holds that a stream which a recorded window reads remembers the last event that opened, closed or corrected a
// bucket, by the bucket's end, until that is forgotten; that a sample which changes nothing counts for nothing; and that all
// of it survives a restart.
func TestTracked(t *testing.T) {
	ctx := testContext(t)
	fs := vfs.NewMem()
	n := mustNode(t, fs, Options{Workers: 2, CheckpointInterval: -1})
	m := func(i string, at int64, v float64) sample {
		return sample{labels.FromStrings("__name__", "m", "i", i), at, v}
	}
	state := func(n *node) TrackedStream {
		t.Helper()
		_, streams, err := n.panes.TrackedStreams(ctx, 0, nil)
		if err != nil || len(streams) != 1 {
			t.Fatalf("%d tracked streams, %v", len(streams), err)
		}
		return streams[0]
	}
	expect := func(n *node, what string, changed map[int64]log.Seq, open ...int64) {
		t.Helper()
		got := state(n)
		if !maps.Equal(got.Changed, changed) || len(got.Open) != len(open) || len(open) > 0 && got.Open[0] != open[0] {
			t.Errorf("%s: changed %v, open %v; want %v, %v", what, got.Changed, got.Open, changed, open)
		}
	}
	write := func(s ...sample) log.Seq {
		t.Helper()
		seq, err := n.write(ctx, s...)
		if err == nil {
			err = n.runner.Wait(ctx, seq)
		}
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	since, err := n.log.Append(ctx, trackedPlan(t, "full_window"))
	if err != nil {
		t.Fatal(err)
	}
	opened := write(m("a", 5_000, 1))
	expect(n, "a sample opens", map[int64]log.Seq{10_000: opened}, 10_000)
	write(m("a", 6_000, 1))
	expect(n, "one more joins", map[int64]log.Seq{10_000: opened}, 10_000)
	closed := write(m("a", 12_000, 2))
	expect(n, "a later one closes", map[int64]log.Seq{10_000: closed, 20_000: closed}, 20_000)
	write(m("a", 12_000, 2))
	expect(n, "a duplicate", map[int64]log.Seq{10_000: closed, 20_000: closed}, 20_000)
	corrected := write(m("a", 7_000, 3))
	expect(n, "a late one corrects", map[int64]log.Seq{10_000: corrected, 20_000: closed}, 20_000)

	id := state(n).ID
	if err := n.panes.Forget(ctx, map[plan.StreamID]map[int64]log.Seq{id: {10_000: closed, 20_000: closed}}); err != nil {
		t.Fatal(err)
	}
	expect(n, "only what is not newer is forgotten", map[int64]log.Seq{10_000: corrected}, 20_000)
	if _, err := n.barrier(ctx, 20_000); err != nil {
		t.Fatal(err)
	}
	barrier := n.log.Head()
	expect(n, "a barrier closes", map[int64]log.Seq{10_000: corrected, 20_000: barrier})
	write(m("b", 21_000, 1))
	last := n.log.Head()

	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = mustNode(t, fs, Options{Workers: 1, CheckpointInterval: -1})
	defer func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}()
	expect(n, "after a restart", map[int64]log.Seq{10_000: corrected, 20_000: barrier, 30_000: last}, 30_000)
	if got := state(n).Since; got != since {
		t.Errorf("tracked since %d, want %d", got, since)
	}
	// The same plan again goes on; one that records nothing ends it, and the next begins anew.
	for _, layout := range []string{"full_window", "panes", "full_window"} {
		if _, err := n.log.Append(ctx, trackedPlan(t, layout)); err != nil {
			t.Fatal(err)
		}
		if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
			t.Fatal(err)
		}
		_, streams, err := n.panes.TrackedStreams(ctx, 0, nil)
		if err != nil || len(streams) == 1 != (layout == "full_window") {
			t.Fatalf("%s: %d tracked streams, %v", layout, len(streams), err)
		}
	}
	expect(n, "tracked anew", map[int64]log.Seq{}, 30_000)
	if got := state(n).Since; got != n.log.Head() {
		t.Errorf("tracked since %d, want %d", got, n.log.Head())
	}
}

// Trackers are part of a shard's state, byte for byte.
func TestTracked_State(t *testing.T) {
	s := newScript(t)
	s.apply(trackedPlan(t, "full_window"))
	s.apply(s.writeOf("m{i=\"a\"} 1@5000 2@12000 3@35000\nm{i=\"b\"} 1@-5000"))
	encoded := 0
	for id, sh := range s.shards {
		b := sh.Encode()
		back, err := DecodeShard(id, s.index, b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back.Encode(), b) {
			t.Errorf("shard %d: another state after a round trip", id)
		}
		for i, st := range sh.streams {
			encoded += len(st.track.changed)
			if !maps.Equal(back.streams[i].track.open, st.track.open) {
				t.Errorf("shard %d: open buckets %v, and %v after a round trip", id, st.track.open, back.streams[i].track.open)
			}
		}
	}
	if encoded != 4 {
		t.Errorf("%d changed ends, want 4", encoded)
	}
}
