package pane

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// keeping plans streams with a retention.
func keeping(t *testing.T, retention int64, specs ...plan.Stream) *log.Plan {
	t.Helper()
	p, err := plan.Decode(planOf(t, specs...).Spec)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Streams {
		p.Streams[i].RetentionMillis = retention
	}
	return &log.Plan{Spec: p.Encode()}
}

// steadily writes one sample every width of several series, from one time up to another, and proves it.
func (n *node) steadily(t *testing.T, ctx context.Context, name string, from, to, width int64) {
	t.Helper()
	for at := from + width; at <= to; at += width {
		var ss []sample
		for i := range 70 {
			ss = append(ss, sample{labels.FromStrings("__name__", name, "i", fmt.Sprint(i)), at, float64(at)})
		}
		must(n.write(ctx, ss...))(t)
	}
	must(n.barrier(ctx, to))(t)
}

func (n *node) settle(t *testing.T, ctx context.Context) {
	t.Helper()
	if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
		t.Fatal(err)
	}
	if err := n.panes.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
}

func (n *node) pieces(t *testing.T, st plan.Stream) (pieces int, first int64) {
	t.Helper()
	stats := must(n.store.Stats())(t)
	first, _, err := n.store.FirstBlock(uint64(st.ID))
	if err != nil {
		t.Fatal(err)
	}
	return stats[uint64(st.ID)].Pieces, first
}

// P8: retention goes by the event time of the stream, in whole blocks, once; what it removes is gone for reads at the event, and
// from the disk when the event is behind the durable checkpoint.
func TestP8_RetentionOfBuckets(t *testing.T) {
	ctx := testContext(t)
	fs := vfs.NewMem()
	n := must(startNode(fs, fixedClock(), Options{CheckpointInterval: -1}))(t)
	const block = bucket.EndsPerBlock * 1000
	st := named("m", 1000)
	must(n.log.Append(ctx, keeping(t, 2*block, st)))(t)
	x := NewExpirer(n.panes, n.log, slog.New(slog.DiscardHandler))
	pass := func(wantEvents, wantDeletes uint64) {
		t.Helper()
		before := x.Stats()
		if err := x.Pass(ctx); err != nil {
			t.Fatal(err)
		}
		if s := x.Stats(); s.Events-before.Events != wantEvents || s.Deletes-before.Deletes != wantDeletes {
			t.Fatalf("%d events and %d deletes, not %d and %d", s.Events-before.Events, s.Deletes-before.Deletes, wantEvents, wantDeletes)
		}
	}
	resolved := st
	resolved.Closed, resolved.Late = plan.Right, plan.Correct
	resolved = resolved.Resolved()

	pass(0, 0) // nothing there
	n.steadily(t, ctx, "m", 0, 3*block-2000, 1000)
	n.settle(t, ctx)
	pass(0, 0) // the last end of block 0, at 31000, is a second younger than the retention
	n.steadily(t, ctx, "m", 3*block-2000, 5*block, 1000)
	n.settle(t, ctx)
	all := must(n.panes.Digest(ctx))(t).All.Buckets
	if _, first := n.pieces(t, resolved); first != 0 {
		t.Fatalf("first block %d", first)
	}
	pass(1, 0)
	if err := n.runner.Wait(ctx, n.log.Head()); err != nil {
		t.Fatal(err)
	}
	through := int64(3*block - 1000) // blocks 0, 1 and 2
	samples, _, _, a, err := n.count(ctx, st, 0, 5*block)
	if want := 70 * (5*block - int(through)) / 1000; err != nil || samples != want || a.CoverageStart != through || a.Frontier != 5*block {
		t.Fatalf("%d samples, not %d; coverage %d, frontier %d, %v", samples, want, a.CoverageStart, a.Frontier, err)
	}
	left := must(n.panes.Digest(ctx))(t)
	if gone := all - left.All.Buckets; gone != uint64(70*through/1000) {
		t.Fatalf("%d buckets are gone", gone)
	}
	pieces, _ := n.pieces(t, resolved)
	pass(0, 0) // said already, and not to be deleted yet: a restart would come before the event
	if now, first := n.pieces(t, resolved); now != pieces || first != 0 {
		t.Fatalf("pieces were deleted that a restart could ask for: %d of %d", now, pieces)
	}
	n.settle(t, ctx)
	unpin := n.store.Pin()
	n.settle(t, ctx)
	pass(0, 1)
	unpin()
	if now, first := n.pieces(t, resolved); now >= pieces || first != 3 {
		t.Fatalf("%d of %d pieces, from block %d", now, pieces, first)
	}
	pass(0, 0)
	if d := must(n.panes.Digest(ctx))(t); d.All != left.All {
		t.Fatalf("deleting changed the digest: %s, not %s", d.All, left.All)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	// Replayed from nothing it is the same, and nothing of what is gone comes back to disk for good.
	if err := fs.RemoveAll("/data/views"); err != nil {
		t.Fatal(err)
	}
	n = must(startNode(fs, fixedClock(), Options{Workers: 3, CheckpointInterval: -1}))(t)
	n.settle(t, ctx)
	if d := must(n.panes.Digest(ctx))(t); d.All != left.All {
		t.Fatalf("replay: %s, not %s", d.All, left.All)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// P8, P5: a reader that pinned before the event holds back the deletion, and reads all that it could see.
func TestP8_ReaderFromBefore(t *testing.T) {
	ctx := testContext(t)
	n := must(startNode(vfs.NewMem(), fixedClock(), Options{CheckpointInterval: -1}))(t)
	const block = bucket.EndsPerBlock * 1000
	must(n.log.Append(ctx, keeping(t, 1000, named("m", 1000))))(t)
	n.steadily(t, ctx, "m", 0, 3*block, 1000)
	n.settle(t, ctx)
	unpin := n.store.Pin()
	x := NewExpirer(n.panes, n.log, slog.New(slog.DiscardHandler))
	for range 3 {
		if err := x.Pass(ctx); err != nil {
			t.Fatal(err)
		}
		n.settle(t, ctx)
	}
	if s := x.Stats(); s.Events != 1 || s.Deletes != 0 {
		t.Fatalf("%+v while a reader holds on", s)
	}
	unpin()
	if err := x.Pass(ctx); err != nil {
		t.Fatal(err)
	}
	if s := x.Stats(); s.Events != 1 || s.Deletes != 1 {
		t.Fatalf("%+v after it let go", s)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// A stream that is no longer planned is kept to its retention, measured by the samples of others; one sample of a fast clock does
// not end it.
func TestP8_FormerStreams(t *testing.T) {
	ctx := testContext(t)
	n := must(startNode(vfs.NewMem(), fixedClock(), Options{CheckpointInterval: -1}))(t) // log time is 1_500_000
	const block = bucket.EndsPerBlock * 1000
	m, o := named("m", 1000), named("o", 1000)
	must(n.log.Append(ctx, keeping(t, 4*block, m, o)))(t)
	n.steadily(t, ctx, "m", 0, 2*block, 1000)
	must(n.log.Append(ctx, keeping(t, 100*block, o)))(t)
	n.settle(t, ctx)
	x := NewExpirer(n.panes, n.log, slog.New(slog.DiscardHandler))
	pass := func(want uint64) {
		t.Helper()
		if err := x.Pass(ctx); err != nil {
			t.Fatal(err)
		}
		n.settle(t, ctx)
		if s := x.Stats(); s.Events != want {
			t.Fatalf("%+v, want %d events", s, want)
		}
	}
	pass(0)
	n.steadily(t, ctx, "o", 2*block, 6*block, 1000)
	pass(1) // 6 − 4 blocks
	must(n.write(ctx, sample{labels.FromStrings("__name__", "q"), 1 << 50, 1}))(t)
	n.settle(t, ctx)
	before := must(n.panes.Digest(ctx))(t)
	pass(2) // log time is behind all of m, and takes the rest of it
	if d := must(n.panes.Digest(ctx))(t); len(d.Streams) != 1 || d.All.Buckets >= before.All.Buckets {
		t.Fatalf("%+v", d)
	}
	v := must(n.panes.survey(ctx))(t)
	for id, e := range v.expired {
		if e.through > 1_500_000 {
			t.Fatalf("stream %s is expired through %d, ahead of log time", id, e.through)
		}
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestLastWholeBlock(t *testing.T) {
	for _, g := range []bucket.Grid{{Width: 1000}, {Origin: 300, Width: 1000}, {Origin: -70_000, Width: 7000}} {
		for at := int64(-400_000); at < 400_000; at += 777 {
			b, ok := lastWholeBlock(g, at)
			if last, next := g.End(b, bucket.EndsPerBlock-1), g.End(b+1, bucket.EndsPerBlock-1); !ok || last > at || next <= at {
				t.Fatalf("%+v at %d: block %d from %d to %d", g, at, b, last, next)
			}
		}
	}
	for _, at := range []int64{math.MinInt64, math.MaxInt64, -1 << 60} {
		if _, ok := lastWholeBlock(bucket.Grid{Width: 1000}, at); ok {
			t.Errorf("%d is on no grid", at)
		}
	}
}

// What retention removed is part of the state: it comes back bit for bit, and damage to it is found.
func TestExpiredStateRoundTrip(t *testing.T) {
	s := NewShard(3, nil)
	for i, b := range []*log.Expired{
		{Stream: 9, Width: 10, Through: 100}, {Stream: 7, Origin: 5, Width: 10, Through: -15}, {Stream: 9, Width: 10, Through: 50},
	} {
		g := group{3: s}
		if _, err := g.apply(&log.Event{Seq: log.Seq(i + 1), Body: b}, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if e := s.expired[9]; e.through != 100 || e.seq != 1 {
		t.Fatalf("%+v", e)
	}
	s.former = map[plan.StreamID]former{4: {grid: bucket.Grid{Width: 5}, retention: 77}}
	b := s.Encode()
	back, err := DecodeShard(3, nil, b)
	if err != nil || !bytes.Equal(back.Encode(), b) || len(back.expired) != 2 || back.former[4] != s.former[4] {
		t.Fatal(err, back)
	}
	for n := range b {
		if _, err := DecodeShard(3, nil, b[:n]); err == nil {
			t.Fatalf("%d of %d bytes decode", n, len(b))
		}
	}
	g := group{3: s}
	if _, err := g.apply(&log.Event{Seq: 4, Body: &log.Expired{Stream: 9, Width: 20, Through: 200}}, false, nil); err == nil {
		t.Fatal("another grid is taken for the same stream")
	}
}
