package pane

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// P7: freezing a shard allocates nothing that grows with its series, once there is room: an allocation would make the worker help the
// garbage collector for longer than it is frozen.
func TestP7_FreezingAllocatesNothing(t *testing.T) {
	g := activeShards(t, 100*Shards)
	room := g[0].AppendState(nil)
	room = make([]byte, 0, 2*len(room)) // for the largest
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	bytes := 0
	for _, s := range g {
		bytes += len(s.AppendState(room[:0]))
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(bytes/4) {
		t.Errorf("%d bytes were allocated to encode %d", allocated, bytes)
	}

	// And the room outlives a checkpoint.
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{CheckpointInterval: -1})
	for range 2 {
		must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), 1000, 1}))(t)
		if err := n.panes.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
	}
	kept := n.panes.ckpt.rooms[0].Load()
	if err := n.panes.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	if now := n.panes.ckpt.rooms[0].Load(); kept == nil || &(*now)[:1][0] != &(*kept)[:1][0] {
		t.Error("a checkpoint does not use the room of the one before it")
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// P7: a checkpoint never holds all shards at once. It takes them one by one, and between two of them, of the same worker too, events are
// applied: each shard is written as of the place in their order at which its turn came.
func TestP7_ACheckpointHoldsOneShardAtATime(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			ctx := testContext(t)
			n := mustNode(t, vfs.NewMem(), Options{CheckpointInterval: 1000 * time.Hour, Workers: workers})
			must(n.log.Append(ctx, benchPlan()))(t)
			for id := range Shards {
				seq := must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), int64(id), 1}))(t)
				if err := n.runner.Wait(ctx, seq); err != nil {
					t.Fatal(err)
				}
				n.panes.pacing.due <- struct{}{}
				for ctx.Err() == nil {
					at, _, ok, err := n.store.State(id)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						runtime.Gosched()
						continue
					}
					if log.Seq(at) != seq {
						t.Fatalf("shard %d is written as of %d; its turn came behind %d", id, at, seq)
					}
					break
				}
			}
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Where many samples are folded, checkpoints do not wait for their time: a restart never replays much more than so many samples.
func TestManySamplesBringCheckpointsForward(t *testing.T) {
	ctx := testContext(t)
	const perRound = 10 * Shards
	n := mustNode(t, vfs.NewMem(), Options{CheckpointInterval: 1000 * time.Hour, roundSamples: perRound})
	must(n.log.Append(ctx, benchPlan()))(t)
	var last log.Seq
	for i := int64(0); i < 4*perRound; i++ {
		last = must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), i, 1}))(t)
	}
	for n.panes.Durable() < last/4 {
		select {
		case <-ctx.Done():
			t.Fatalf("of %d events, each with a sample, only %d are durable, though every %d of them should bring a checkpoint", last, n.panes.Durable(), perRound)
		case <-time.After(time.Millisecond):
			must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), int64(last), 1}))(t)
		}
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}
