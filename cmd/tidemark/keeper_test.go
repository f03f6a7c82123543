package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/log/logtest"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/series"
	"tidemark/transport/remotewrite"
)

// kept is a log with its panes and its keeper, on a file system in memory whose views can be made to fail, and with a clock of its
// own: the real parts, without HTTP.
type kept struct {
	keeper
	panes  *pane.Projection
	fs     vfs.FS
	index  *series.Index
	runner *projections.Runner
	clock  atomic.Int64      // log time that has passed, ms
	broken atomic.Bool       // writes of views and bases fail
	crash  func(path string) // called before every operation that writes
	photo  sync.Mutex        // held while crash images of the disk are taken
	bounds limits
	rng    *rand.Rand

	cancel context.CancelFunc
	done   chan error
}

func (k *kept) String() string { return "views that can break" }

// MaybeError implements errorfs.Injector.
func (k *kept) MaybeError(op errorfs.Op) error {
	if k.crash != nil && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		k.crash(op.Path)
	}
	if k.broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.Contains(op.Path, "/log") {
		return syscall.EIO
	}
	return nil
}

func startKept(t *testing.T, bounds limits) *kept {
	t.Helper()
	return startKeptOn(t, vfs.NewMem(), bounds)
}

// startKeptOn is startKept on a file system that may hold something already.
func startKeptOn(t *testing.T, disk vfs.FS, bounds limits) *kept {
	t.Helper()
	k := &kept{index: series.New(), rng: rand.New(rand.NewPCG(1, 2)), bounds: bounds, done: make(chan error, 3)}
	k.fs = errorfs.Wrap(logtest.SerialLocks(disk, &k.photo), k)
	fs := k.fs
	var err error
	if k.events, err = log.Open("/data/log", log.Options{
		FS: fs, Now: func() time.Time { return time.UnixMilli(1_000_000) },
		Monotonic: func() time.Duration { return time.Duration(k.clock.Load()) * time.Millisecond },
	}); err != nil {
		t.Fatal(err)
	}
	if k.views, err = bucket.Open("/data/views", k.events.Identity(), bucket.Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	if err := k.index.Load(k.events.Dictionary()); err != nil {
		t.Fatal(err)
	}
	k.panes = pane.New(k.events, k.index, k.views, pane.Options{CheckpointInterval: -1})
	k.runner = projections.NewRunner(k.events, k.panes)
	if err := k.runner.Restore(); err != nil {
		t.Fatal(err)
	}
	k.planning, k.settled, k.wanted = new(sync.Mutex), func() bool { return true }, func() log.Seq { return math.MaxUint64 }
	k.durable = k.panes.Durable
	k.forgetter = pane.NewForgetter(k.panes, k.events, k.events.Dictionary())
	k.bases, k.logger, k.limits = "/data/base", slog.New(slog.DiscardHandler), func() limits { return k.bounds }
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	for _, run := range []func(context.Context) error{k.events.Run, k.panes.Run, k.runner.Run} {
		go func() { k.done <- run(ctx) }()
	}
	t.Cleanup(func() { k.stop(t) })
	if k.events.Head() > 0 {
		return k
	}
	spec := plan.Stream{
		Matchers: []plan.Matcher{{Type: "=", Name: "__name__", Value: "m"}}, PaneMillis: 1000,
		Closed: plan.Right, Late: plan.Correct, RetentionMillis: 1 << 40,
	}.Resolved()
	p := &plan.Plan{Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, HorizonMillis: 600_000, ClockSkewMillis: 60_000, Streams: []plan.Stream{spec}}
	if _, err := k.events.Append(t.Context(), &log.Plan{Spec: p.Encode()}); err != nil {
		t.Fatal(err)
	}
	return k
}

// stop ends everything; a second time it does nothing.
func (k *kept) stop(t *testing.T) {
	t.Helper()
	if k.cancel == nil {
		return
	}
	k.cancel()
	k.cancel = nil
	for range 3 {
		if err := <-k.done; err != nil && !errors.Is(err, bucket.ErrStuck) {
			t.Error(err)
		}
	}
	if err := errors.Join(k.views.Close(), k.events.Close()); err != nil {
		t.Error(err)
	}
}

func (k *kept) digest(t *testing.T) string {
	t.Helper()
	if err := k.runner.Wait(t.Context(), k.events.Head()); err != nil {
		t.Fatal(err)
	}
	d, err := k.panes.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d.All.String()
}

// write appends n events of about 2 kB that do not compress, one every step of log time, and waits until they are folded.
func (k *kept) write(t *testing.T, n int, step int64) {
	t.Helper()
	for range n {
		k.clock.Add(step)
		at := k.events.LogTime()
		b := log.NewWriteBuilder()
		for i := range 200 {
			ls := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))
			ref, err := k.events.Dictionary().Resolve(k.events.Dictionary().Hash(ls.Bytes(nil)), ls)
			if err != nil {
				t.Fatal(err)
			}
			b.Series(ref)
			b.Sample(at, k.rng.NormFloat64())
		}
		if _, err := k.events.Append(t.Context(), b.Finish()); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.runner.Wait(t.Context(), k.events.Head()); err != nil {
		t.Fatal(err)
	}
}

func (k *kept) checkpoint(t *testing.T) {
	t.Helper()
	if err := k.panes.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// checkpoints is checkpoint on a disk that may just have become sound again: it may take more than one.
func (k *kept) checkpoints(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := k.panes.Checkpoint(t.Context())
		if err == nil {
			return
		}
		if !errors.Is(err, bucket.ErrStuck) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The log is cut by age, in steps; never beyond what a restart would replay from; and every floor has its base.
func TestKeeper_Age(t *testing.T) {
	k := startKept(t, limits{age: 160 * time.Second})
	k.write(t, 150, 1000)
	k.checkpoint(t)
	k.pass(t.Context())
	if k.events.Floor() != 1 || k.failures.Load() != 0 {
		t.Fatalf("cut at %d before it was due", k.events.Floor())
	}
	k.write(t, 25, 1000) // 175 s of log: the limit, its slack, and a little
	k.pass(t.Context())
	// Due are the events of the first 15 seconds: the plan at 0, and the writes before 15 s.
	if f := k.events.Floor(); f != 16 || k.failures.Load() != 0 || k.truncations.Load() != 1 {
		t.Fatalf("floor %d, %d failures", f, k.failures.Load())
	}
	k.write(t, 5, 1000)
	k.pass(t.Context())
	if f := k.events.Floor(); f != 16 {
		t.Fatalf("cut for a little, at %d", f)
	}
	k.write(t, 300, 1000) // everything that is folded durably, and much that is not, is too old now
	durable := k.panes.Durable()
	k.pass(t.Context())
	if f := k.events.Floor(); f != durable+1 {
		t.Fatalf("floor %d, durable %d", f, durable)
	}
	base, err := bucket.NewestBase(k.bases, bucket.Options{FS: k.fs})
	if err != nil || base.Seq+1 < uint64(k.events.Floor()) {
		t.Fatalf("base %d for the floor %d, %v", base.Seq, k.events.Floor(), err)
	}
}

// B19: a projection that cannot write its checkpoints pins the log. That is counted and shows in the readiness within five passes,
// writes are refused at the cap instead of filling the disk, and when the fault ends the log shrinks within two passes.
func TestCase_B19_TruncationStuck(t *testing.T) {
	const size = 600 << 10
	k := startKept(t, limits{size: size})
	g := &gate{events: k.events, ready: func() bool { return false }, full: k.full, now: time.Now, waiting: func() int64 { return 0 },
		freeBytes: func(string) (uint64, error) { return 1 << 40, nil }}
	g.open.Store(true)
	g.free.Store(1 << 40)
	k.write(t, 20, 1000)
	k.checkpoints(t)
	k.broken.Store(true)
	shown, refused := 0, 0
	for cycle := 1; cycle <= 200 && refused == 0; cycle++ {
		k.write(t, 30, 1000)
		if err := k.panes.Checkpoint(t.Context()); err == nil {
			t.Fatal("a checkpoint was written to a broken disk")
		}
		k.pass(t.Context())
		if len(k.reasons()) > 0 && shown == 0 {
			shown = int(k.failures.Load())
		}
		g.lookAtSize()
		var u *remotewrite.Unavailable
		if err := g.Admit(); errors.As(err, &u) {
			refused = cycle
			if u.RetryAfter == 0 || !strings.Contains(u.Reason, "size cap") || len(g.reasons()) != 1 {
				t.Fatalf("%+v", u)
			}
		}
	}
	at := k.events.Metrics().KeptBytes
	if refused == 0 || at > 2*size {
		t.Fatalf("writes were refused at %d of %d bytes, in cycle %d", at, size, refused)
	}
	for shown == 0 && k.failures.Load() < 10 {
		k.pass(t.Context())
		if len(k.reasons()) > 0 {
			shown = int(k.failures.Load())
		}
	}
	if shown != failuresToReport {
		t.Fatalf("shown after %d failures", shown)
	}
	k.broken.Store(false)
	k.checkpoints(t)
	k.pass(t.Context())
	if err := k.keep(t.Context()); err != nil {
		t.Error(err)
	}
	if now := k.events.Metrics().KeptBytes; now > size || k.failures.Load() != 0 || len(k.reasons()) != 0 {
		t.Fatalf("%d bytes of %d after the fault, %d failures", now, size, k.failures.Load())
	}
	g.lookAtSize()
	if err := g.Admit(); err != nil {
		t.Fatal(err)
	}
	t.Logf("refused in cycle %d at %d bytes; floor %d of %d", refused, at, k.events.Floor(), k.events.Head())
}

// A crash at every third operation that writes while the keeper seals and truncates, twice, with none or 60 % of the unsynced data
// kept by turns: whatever floor the log then has, a base reaches it, and the views of that base with the rest of the log are what
// they were. (Each step alone is crashed at every operation: L9 of package log, P9 of package bucket.)
func TestKeeper_CrashEnumeration(t *testing.T) {
	type image struct {
		fs *vfs.MemFS
		op string
	}
	disk := vfs.NewCrashableMem()
	k := startKeptOn(t, disk, limits{age: 40 * time.Second})
	var images []image
	ops := 0
	rng := rand.New(rand.NewPCG(5, 9))
	want := make(map[log.Seq]string) // by head
	for range 2 {
		k.write(t, 60, 1000)
		k.checkpoint(t)
		want[k.events.Head()] = k.digest(t)
		k.crash = func(path string) {
			k.photo.Lock()
			defer k.photo.Unlock()
			if ops++; ops%3 == 0 {
				percent := 60 * (ops % 2)
				images = append(images, image{disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), path})
			}
		}
		if err := k.keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.photo.Lock()
		images = append(images, image{disk.CrashClone(vfs.CrashCloneCfg{}), "the end"})
		k.photo.Unlock()
		k.crash = nil
	}
	if k.truncations.Load() != 2 {
		t.Fatalf("%d truncations", k.truncations.Load())
	}
	k.stop(t)
	floors := make(map[log.Seq]int)
	for _, im := range images {
		l, err := log.Open("/data/log", log.Options{FS: im.fs})
		if err != nil {
			t.Fatalf("crash at %s: %v", im.op, err)
		}
		floor, identity := l.Floor(), l.Identity()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		floors[floor]++
		if floor > 1 {
			if _, err := bucket.RestoreBase("/data/base", "/data/views", identity, uint64(floor), bucket.Options{FS: im.fs}); err != nil {
				t.Fatalf("crash at %s, floor %d: %v", im.op, floor, err)
			}
		}
		again := startKeptOn(t, im.fs, limits{})
		if got := again.digest(t); got != want[again.events.Head()] {
			t.Fatalf("crash at %s, floor %d: %s at %d", im.op, floor, got, again.events.Head())
		}
		again.stop(t)
	}
	t.Logf("%d crashes; floors %v", len(images), floors)
	if len(floors) != 3 {
		t.Fatal("the crashes do not show every floor")
	}
}
