package pane

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
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

// A checkpoint does not wait for what stands in a worker's queue: in a replay that is always full.
func TestAVisitOfAShardComesBeforeTheQueue(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 1, CheckpointInterval: -1})
	plan := must(n.log.Append(ctx, benchPlan()))(t)
	if err := n.runner.Wait(ctx, plan); err != nil {
		t.Fatal(err)
	}
	w := n.panes.workers[0]
	busy, idle, done := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	if err := n.panes.sendTo(ctx, w.queue, message{done: done, visit: func(s *Shard, _ *shelf) {
		if s.id == 0 {
			close(busy)
			<-idle
		}
	}}); err != nil {
		t.Fatal(err)
	}
	<-busy
	last := must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), 1, 1}))(t)
	for len(w.queue) == 0 {
		time.Sleep(time.Millisecond)
	}
	var at log.Seq
	visited := make(chan error, 1)
	go func() {
		visited <- n.panes.visitShard(ctx, 5, func(s *Shard, _ *shelf) { at = s.seq })
	}()
	for len(w.visits) == 0 {
		time.Sleep(time.Millisecond)
	}
	close(idle)
	if err := <-visited; err != nil || at != plan {
		t.Errorf("the visit came at %d, %v; in the queue stood %d", at, err, last)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// Samples wait for a turn that is late, as long as maxHold at most, and a turn that is late takes a shard of each worker.
func TestSamplesWaitForALateTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pacing{due: make(chan struct{}, 1)}
		c.step.Store(10)
		held := func(samples int64) time.Duration {
			began := time.Now()
			c.feed(samples)
			c.hold(t.Context())
			return time.Since(began)
		}
		if d := held(maxLate*10 - 1); d != 0 {
			t.Errorf("held for %v before a turn was late", d)
		}
		if d := held(1); d != maxHold {
			t.Errorf("held for %v while no turn came", d)
		}
		time.AfterFunc(maxHold/2, func() {
			if n := c.take(3); n != 3 {
				t.Errorf("%d shards in a turn that is %d steps late and may take 3", n, maxLate)
			}
		})
		if d := held(1); d != maxHold/2 {
			t.Errorf("held for %v; the turn came after %v", d, maxHold/2)
		}
		if d := held(1); d != 0 {
			t.Errorf("held for %v behind a turn", d)
		}
		if n := c.take(3); n != 1 {
			t.Errorf("%d shards in a turn that is not late", n)
		}
	})
}

// A replay keeps little of what it has closed in memory, however long the log is and slow the disk: it waits for the checkpoints.
func TestAReplayHoldsLittle(t *testing.T) {
	const perEvent, events, rounds = 8, 16_000, 32
	ctx := testContext(t)
	disk := vfs.NewMem()
	n := mustNode(t, disk, Options{CheckpointInterval: -1})
	must(n.log.Append(ctx, planOf(t, named("m", 1000))))(t)
	b := make([]sample, perEvent)
	for i := range int64(events) {
		for k := range b {
			b[k] = sample{labels.FromStrings("__name__", "m", "k", fmt.Sprint(k)), 1000 * i, 1}
		}
		must(n.write(ctx, b...))(t)
	}
	head := n.log.Head()
	if err := errors.Join(n.stop(), disk.RemoveAll("/data/views")); err != nil {
		t.Fatal(err)
	}
	slow := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	}))
	n = mustNode(t, slow, Options{CheckpointInterval: time.Hour, roundSamples: perEvent * events / rounds})
	var most, all int64
	for replayed := false; !replayed; {
		var held atomic.Int64 // by several workers
		seq := must(n.panes.cut(ctx, func(s *Shard, sh *shelf) {
			held.Add(int64(s.table.Len()))
			for _, t := range sh.leaving {
				held.Add(int64(t.Len()))
			}
		}))(t)
		most = max(most, held.Load())
		replayed = seq >= head
	}
	all = perEvent * (events - 1)
	if most > all/4 {
		t.Errorf("%d of %d buckets were in memory at one time; a round of checkpoints is for %d", most, all, all/rounds)
	}
	t.Logf("%d of %d buckets at most", most, all)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}
