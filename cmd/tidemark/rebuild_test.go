package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/log/logtest"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
)

func fixedTime() time.Time { return time.UnixMilli(0) }

func newTestRebuild(fs vfs.FS) *rebuild {
	return &rebuild{fs: fs, path: offlinePath, now: fixedTime, write: projections.ReplayOptions{HeldBytes: 1, Pace: 40}}
}

// must runs the rebuild and returns what it printed.
func (r *rebuild) must(t *testing.T) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := r.run(offlineContext(t), &out, &errs); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return out.String(), errs.String()
}

// Any number of workers gives the digest of the live run, whatever stood before; and a start goes on from there.
func TestRebuildGivesTheLiveDigest(t *testing.T) {
	noLeak := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, noLeak)
	fs, want := offlineDisk(t, 400)
	for _, workers := range []int{1, 2, 7} {
		for _, before := range []string{"views", "no views", "damaged views", "views of another log"} {
			fs := crashed(fs)
			switch before {
			case "no views":
				if err := fs.RemoveAll(offlinePath + "/views"); err != nil {
					t.Fatal(err)
				}
			case "damaged views":
				names, err := fs.List(offlinePath + "/views")
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range names {
					if strings.HasSuffix(n, ".sst") {
						if err := fs.Remove(offlinePath + "/views/" + n); err != nil {
							t.Fatal(err)
						}
					}
				}
			case "views of another log":
				if err := bucket.Discard(offlinePath+"/views", bucket.Options{FS: fs}); err != nil {
					t.Fatal(err)
				}
				s, err := bucket.Open(offlinePath+"/views", []byte("another"), bucket.Options{FS: fs})
				if err = errors.Join(err, s.Flush(t.Context()), s.Close()); err != nil {
					t.Fatal(err)
				}
			}
			r := newTestRebuild(fs)
			r.workers = workers
			stdout, stderr := r.must(t)
			if !strings.Contains(stdout, "sequence 400") || !strings.Contains(stderr, "100.0%  event 400 of 400") {
				t.Errorf("%q, %q", stdout, stderr)
			}
			if got := offlineDigest(t, fs, "text"); got != want {
				t.Errorf("%d workers, %s: got\n%s\nwant\n%s", workers, before, got, want)
			}
			names, err := fs.List(offlinePath)
			if err != nil || len(names) != 2 {
				t.Errorf("left behind: %v, %v", names, err)
			}
			wantStart(t, fs, want)
		}
	}
}

// wantStart starts the fold on the views as a service would.
func wantStart(t *testing.T, fs vfs.FS, want string) {
	t.Helper()
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.print(offlineContext(t))
	if err = errors.Join(err, g.stop()); err != nil || got != want {
		t.Errorf("after a start: %v, got\n%s\nwant\n%s", err, got, want)
	}
}

// --until-seq leaves views as of that event; a start replays the rest. What lies beyond the log is refused.
func TestRebuildUntil(t *testing.T) {
	fs, want := offlineDisk(t, 400)
	for _, until := range []uint64{1, 2, 150, 399, 400} {
		fs := crashed(fs)
		r := newTestRebuild(fs)
		r.until = until
		r.must(t)
		o, err := openOffline(fs, offlinePath, 2, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		f, err := o.standing(offlineContext(t), log.Seq(until))
		if err != nil || f.digest.Seq != log.Seq(until) {
			t.Errorf("until %d: the views do not stand there: %v", until, err)
		}
		if err := o.close(); err != nil {
			t.Fatal(err)
		}
		r.verify = true
		r.must(t)
		if until == 150 {
			r.until = 149
			if err := r.run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "150 already, which is beyond 149") {
				t.Errorf("verify below the views: %v", err)
			}
		}
		wantStart(t, fs, want)
	}
	r := newTestRebuild(fs)
	r.until = 401
	if err := r.run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "ends at sequence 400") {
		t.Errorf("beyond the log: %v", err)
	}
}

// --verify says equal and changes nothing; it finds a single pane that is not what it should be, says in which
// materialization, and leaves it for a rebuild, which has then nothing left to fold.
func TestRebuildVerify(t *testing.T) {
	fs, want := offlineDisk(t, 400)
	before := filesIn(t, fs, offlinePath)
	r := newTestRebuild(fs)
	r.verify = true
	stdout, _ := r.must(t)
	if strings.Count(stdout, "equal") != 4 || strings.Contains(stdout, "different") {
		t.Errorf("%s", stdout)
	}
	wantSameFiles(t, before, filesIn(t, fs, offlinePath))

	plant(t, fs)
	before = filesIn(t, fs, offlinePath+"/views")
	var out, errs bytes.Buffer
	err := r.run(offlineContext(t), &out, &errs)
	if exitCode(err) != exitFailure || !strings.Contains(err.Error(), "differ") {
		t.Errorf("a planted difference: %v", err)
	}
	for line, word := range map[string]string{"materialization   first": "different", "materialization   second": "equal", "all": "different"} {
		found := false
		for l := range strings.Lines(out.String()) {
			found = found || strings.HasPrefix(l, line) && strings.Contains(l, word)
		}
		if !found {
			t.Errorf("%q is not %s in\n%s", line, word, out.String())
		}
	}
	wantSameFiles(t, before, filesIn(t, fs, offlinePath+"/views"))

	r.verify = false
	_, stderr := r.must(t)
	if !strings.Contains(stderr, "going on after sequence 400") {
		t.Errorf("folded again: %s", stderr)
	}
	if got := offlineDigest(t, fs, "text"); got != want {
		t.Errorf("after the rebuild: got\n%s\nwant\n%s", got, want)
	}
}

// plant overwrites one pane of the stream n/15, which only "first" reads, in a checkpoint that says what the shard said.
func plant(t *testing.T, fs vfs.FS) {
	t.Helper()
	l, err := log.OpenReadOnly(offlinePath+"/log", log.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	id := l.Identity()
	p := offlinePlanStream(t, "n/15")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := bucket.Open(offlinePath+"/views", id, bucket.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	views := make([]bucket.ShardView, pane.Shards)
	for i := range views {
		views[i].PieceSeq = 1 << 60
	}
	planted := false
	grid := bucket.Grid{Width: 15_000}
	err = s.Collect(t.Context(), p, grid, 0, 1<<40, views, func(shard int, b bucket.Bucket) error {
		if planted || b.Pane == nil {
			return nil
		}
		planted = true
		seq, state, _, err := s.State(shard)
		if err != nil {
			return err
		}
		table := bucket.NewTable()
		block, idx := grid.Locate(b.End)
		table.Put(bucket.Key{Stream: p, Block: block}, b.Ref, idx, func(dst []byte) []byte {
			dst = append(dst, b.Pane...)
			dst[len(dst)-1] ^= 1
			return dst
		})
		// Of the same sequence as the newest checkpoint, hence in the place of its piece or behind all older ones.
		return s.Commit(bucket.Checkpoint{Shard: shard, Seq: seq, State: state, Tables: []*bucket.Table{table}})
	})
	if err = errors.Join(err, s.Flush(t.Context()), s.Close()); err != nil || !planted {
		t.Fatalf("planted: %v, %v", planted, err)
	}
}

// stopAt cancels at the k-th operation that writes a file.
type stopAt struct {
	mu     sync.Mutex
	left   int
	cancel context.CancelFunc
}

func (s *stopAt) String() string { return "stop" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (s *stopAt) MaybeError(op errorfs.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		if s.left--; s.left == 0 {
			s.cancel()
		}
	}
	return nil
}

// An interrupted rebuild has changed nothing that counts; the next one goes on where it was, also when it is interrupted itself.
func TestRebuildResumesAfterInterruption(t *testing.T) {
	noLeak := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, noLeak)
	fs, want := offlineDisk(t, 400)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	interruptions, resumed := 0, 0
	for range 12 {
		fs := crashed(fs)
		before := filesIn(t, fs, offlinePath+"/views")
		for {
			ctx, cancel := context.WithCancel(offlineContext(t))
			stop := &stopAt{left: 1 + rng.IntN(120), cancel: cancel}
			r := newTestRebuild(errorfs.Wrap(fs, stop))
			r.workers = 1 + rng.IntN(8)
			var stdout, stderr bytes.Buffer
			err := r.run(ctx, &stdout, &stderr)
			cancel()
			if strings.Contains(stderr.String(), "going on after") {
				resumed++
			}
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
				t.Fatal(err)
			}
			interruptions++
			wantSameFiles(t, before, filesIn(t, fs, offlinePath+"/views"))
		}
		if got := offlineDigest(t, fs, "text"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	t.Logf("%d interruptions, %d went on", interruptions, resumed)
	if interruptions < 5 || resumed == 0 {
		t.Errorf("%d interruptions, %d went on: this tests too little", interruptions, resumed)
	}
}

// diskCamera takes an image before every n-th operation that writes, and before each that moves a directory.
type diskCamera struct {
	fs      *vfs.MemFS
	percent int
	every   int

	mu     sync.Mutex
	rng    *rand.Rand
	ops    int
	images []*vfs.MemFS
	names  []string
}

func wrapCamera(c *diskCamera) vfs.FS { return errorfs.Wrap(logtest.SerialLocks(c.fs, &c.mu), c) }

func (c *diskCamera) String() string { return "camera" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (c *diskCamera) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops++
	if c.ops%c.every != 0 && !strings.HasPrefix(path.Base(op.Path), "views") {
		return nil
	}
	c.images = append(c.images, c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.rng}))
	c.names = append(c.names, fmt.Sprintf("operation %d, kind %d of %s", c.ops, op.Kind, op.Path))
	return nil
}

// A crash at any moment of a rebuild: the digest is the same before anything else is done, a start comes up with it, and so
// does another rebuild.
func TestRebuildCrashes(t *testing.T) {
	fs, want := offlineDisk(t, 250)
	for i, percent := range []int{0, 50, 100} {
		cam := &diskCamera{fs: crashed(fs), percent: percent, every: 7, rng: rand.New(rand.NewPCG(uint64(i), 9))}
		r := newTestRebuild(wrapCamera(cam))
		r.workers = 2
		r.must(t)
		resumed := 0
		for k, img := range cam.images {
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
			if k%2 == 0 {
				wantStart(t, crashed(img), want)
			}
			_, stderr := newTestRebuild(img).must(t)
			if strings.Contains(stderr, "going on after") {
				resumed++
			}
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s, rebuilt: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
		}
		t.Logf("%d%%: %d images of %d operations, %d went on", percent, len(cam.images), cam.ops, resumed)
		if resumed == 0 || len(cam.images) < 20 {
			t.Errorf("this tests too little")
		}
	}
}

// A terminal gets one line that changes, anything else a line now and then.
func TestProgressLine(t *testing.T) {
	now := time.UnixMilli(0)
	clock := func() time.Time { return now }
	var b bytes.Buffer
	l := newProgressLine(&b, clock, projections.NewMeter(0, 100, clock))
	for i := range 100 {
		now = now.Add(110 * time.Millisecond)
		l.observe(log.Seq(i+1), 1000)
	}
	l.end()
	if got := strings.Count(b.String(), "\n"); got != 3 || strings.Contains(b.String(), "\r") || !strings.HasSuffix(b.String(), "100.0%  event 100 of 100  9.09 events/s  9.09k samples/s  ETA 0s\n") {
		t.Errorf("plain:\n%s", b.String())
	}
	b.Reset()
	l = newProgressLine(&b, clock, projections.NewMeter(0, 100, clock))
	l.terminal = true
	for i := range 10 {
		now = now.Add(110 * time.Millisecond)
		l.observe(log.Seq(i+1), 1000)
	}
	l.end()
	if strings.Count(b.String(), "\r") != 6 || strings.Count(b.String(), "\n") != 1 || !strings.HasSuffix(b.String(), "\n") {
		t.Errorf("terminal: %q", b.String())
	}
}
