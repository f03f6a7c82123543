package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/oklog/ulid/v2"

	"tidemark/log"
	"tidemark/log/logtest"
	"tidemark/projections"
	"tidemark/projections/bucket"
)

// photographer takes an image of the disk before each operation that writes, as a crash would leave it.
type photographer struct {
	fs *vfs.MemFS

	mu     sync.Mutex
	rng    *rand.Rand
	images []*vfs.MemFS
	ops    []string
}

func (p *photographer) String() string { return "photographer" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (p *photographer) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	percent := []int{0, 50, 100}[len(p.images)%3]
	p.images = append(p.images, p.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: p.rng}))
	p.ops = append(p.ops, fmt.Sprintf("operation %d (%s), %d%% of unsynced data kept", len(p.ops), path.Base(op.Path), percent))
	return nil
}

// controlHistory is events of each kind that the control plane appends, with starts in between.
func controlHistory() []log.Body {
	id := func(n byte) ulid.ULID { return ulid.ULID{15: n} }
	out := []log.Body{
		&log.Start{Reason: log.StartProcess}, &log.Plan{Spec: []byte("experiment")}, &log.Compacted{Experiment: numbered(2), Through: 1},
		&log.Plan{Spec: []byte("team")},
	}
	for i := range byte(4) {
		out = append(out, &log.TaskQueued{ID: id(i + 1), Task: log.TaskCompact, Target: numbered(int(i))}, &log.TaskStarted{ID: id(i + 1)})
	}
	return append(out,
		&log.Compacted{Experiment: numbered(0), Through: 3, Pieces: 2}, &log.TaskFinished{ID: id(1), Message: "merged"},
		&log.TaskFinished{ID: id(2), Unchanged: true, Version: 7}, &log.TaskFinished{ID: id(3), Failed: true, Class: classTimeout},
		&log.Start{Reason: log.StartProcess}, // the fourth is queued again
		&log.TaskQueued{ID: id(5), Task: log.TaskCompact, Target: numbered(3)},
		&log.ExperimentRetired{Experiment: numbered(1), AtVersion: 9, LastWrite: 5, Parts: []log.RetiredPart{{Shard: 1, Series: 2, Samples: 30, Buckets: 4}}},
		&log.TaskStarted{ID: id(4)}, &log.TaskFinished{ID: id(4), Message: "merged"},
		&log.ExperimentRetired{Experiment: numbered(1), AtVersion: 15, LastWrite: 8, Parts: []log.RetiredPart{{Samples: 3}}, Later: []log.RetiredLater{{Generation: 2, Buckets: 6}}},
		&log.Compacted{Experiment: numbered(3), Through: 5},
	)
}

// flushedRows are on disk with each commit, so that a crash between two commits shows.
type flushedRows struct {
	*bucket.Rows
	views *bucket.Store
}

func (r flushedRows) Commit(b *bucket.RowBatch) error {
	if err := r.Rows.Commit(b); err != nil {
		return err
	}
	return r.views.Flush(context.Background())
}

// folded is a log with the fold of the control plane over it.
type folded struct {
	events  *log.Log
	views   *bucket.Store
	fold    *Fold
	runner  *projections.Runner
	stop    context.CancelFunc
	running sync.WaitGroup
	errs    [2]error
}

func openFolded(fs vfs.FS) (*folded, error) {
	f := &folded{}
	var err error
	now := func() time.Time { return time.UnixMilli(1_700_000_000_000) }
	if f.events, err = log.Open("/data/log", log.Options{FS: fs, Now: now, Monotonic: func() time.Duration { return 0 }}); err != nil {
		return nil, err
	}
	f.views, err = bucket.Open("/data/views", f.events.Identity(), bucket.Options{FS: fs})
	if errors.Is(err, bucket.ErrDamaged) { // what is folded may be deleted
		if err = bucket.Discard("/data/views", bucket.Options{FS: fs}); err == nil {
			f.views, err = bucket.Open("/data/views", f.events.Identity(), bucket.Options{FS: fs})
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.events.Close())
	}
	f.fold = NewFold(flushedRows{f.views.Rows(FoldSpace), f.views}, f.events.Floor(), func(spec []byte) (string, error) { return string(spec), nil }, slog.New(slog.DiscardHandler))
	f.runner = projections.NewRunner(f.events, f.fold)
	if err := f.runner.Restore(); err != nil {
		return nil, errors.Join(err, f.views.Close(), f.events.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.running.Go(func() { f.errs[0] = f.events.Run(ctx) })
	f.running.Go(func() { f.errs[1] = f.runner.Run(ctx) })
	return f, nil
}

func (f *folded) close() error {
	f.stop()
	f.running.Wait()
	return errors.Join(f.errs[0], f.errs[1], f.views.Close(), f.events.Close())
}

// feed appends the rest of a history, one event at a time.
func (f *folded) feed(ctx context.Context, history []log.Body) error {
	for int(f.events.Head()) < len(history) {
		at := int(f.events.Head())
		seq, err := f.events.Append(ctx, history[at])
		if err == nil {
			err = f.fold.wait(ctx, seq)
		}
		if err != nil {
			return fmt.Errorf("event %d: %w", at+1, err)
		}
	}
	return f.fold.wait(ctx, f.events.Head())
}

// M12: a crash before any operation that writes, while tasks are queued, started, finished and interrupted, experiments compacted and retired,
// and the label changed: the records, the tasks and what is remembered of them are, behind the rest of the events, what they would be
// without it; and so after a fold of all events from empty. Seen to fail with the sequence of the rows put into a batch of its own, ahead
// of them.
func TestM12_CrashAtEveryCommit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	history := controlHistory()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	finish := func(fs vfs.FS) string {
		t.Helper()
		f, err := openFolded(fs)
		if err == nil {
			err = f.feed(ctx, history)
		}
		if err != nil {
			t.Fatal(err)
		}
		out := describe(t, f.fold)
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := finish(vfs.NewMem())
	p := &photographer{fs: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 12))}
	if got := finish(errorfs.Wrap(logtest.SerialLocks(p.fs, &p.mu), p)); got != want {
		t.Fatalf("the run with the camera has\n%s\nand not\n%s", got, want)
	}
	if len(p.images) < len(history) {
		t.Fatalf("%d images of %d events", len(p.images), len(history))
	}
	for i, image := range p.images {
		if got := finish(image); got != want {
			t.Fatalf("crash before %s:\n%s\nand not\n%s", p.ops[i], got, want)
		}
		if i%10 != 0 {
			continue
		}
		if err := image.RemoveAll("/data/views"); err != nil {
			t.Fatal(err)
		}
		if got := finish(image); got != want {
			t.Fatalf("crash before %s, and folded from empty:\n%s\nand not\n%s", p.ops[i], got, want)
		}
	}
	t.Logf("%d crashes", len(p.images))
}
