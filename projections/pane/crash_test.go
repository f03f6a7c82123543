package pane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/log/logtest"
)

// image is the disk after a crash, with the number of steps that had been acknowledged before it.
type image struct {
	fs    *vfs.MemFS
	acked int64
	op    string
}

// camera takes an image before every operation that writes, as a crash at that moment would leave the disk: what was synced,
// and percent of the rest.
type camera struct {
	fs    *vfs.MemFS
	acked atomic.Int64

	mu      sync.Mutex
	rng     *rand.Rand
	percent []int // by turns
	ops     int
	images  []image
}

func (c *camera) String() string { return "camera" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (c *camera) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops++
	acked := c.acked.Load() // before the image, so that it holds at least these
	percent := c.percent[c.ops%len(c.percent)]
	c.images = append(c.images, image{
		fs:    c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.rng}),
		acked: acked,
		op:    fmt.Sprintf("operation %d (%s), %d%% of unsynced data kept", c.ops, path.Base(op.Path), percent),
	})
	return nil
}

// play feeds the steps one by one, checkpoints now and then, and stops and starts again in the middle. Where the camera is
// set it hears of each acknowledgement.
func play(ctx context.Context, fs vfs.FS, h history, cam *camera) (string, error) {
	cuts := []int{0, len(h.steps) / 2, len(h.steps)}
	var print string
	for c := 1; c < len(cuts); c++ {
		n, err := startNode(fs, fixedClock(), Options{Workers: 2, CheckpointInterval: -1})
		if err != nil {
			return "", err
		}
		for i, s := range h.steps[cuts[c-1]:cuts[c]] {
			if err := n.feed(ctx, []step{s}, 1); err != nil {
				return "", err
			}
			if cam != nil {
				cam.acked.Add(1)
			}
			if i%12 == 7 {
				if err := n.panes.Checkpoint(ctx); err != nil {
					return "", err
				}
				if err := n.maintain(ctx); err != nil {
					return "", err
				}
			}
		}
		if print, err = n.describe(ctx); err != nil {
			return "", err
		}
		if err := n.stop(); err != nil {
			return "", err
		}
	}
	return print, nil
}

// A crash before any operation that writes, at any moment of ingest, barrier, checkpoint, compaction, retention, stop and start: every acknowledged
// event is in the log, none is there in part, and after the rest of the input the published buckets, the counters and the
// frontiers are those of a run that was never interrupted.
func TestCrashAtEveryFileOperation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	crashEverywhere(t, seed, randomHistory(rand.New(rand.NewPCG(seed, 1)), 40, []*log.Plan{
		planOf(t, named("m", 10_000), named("n", 15_000)), planOf(t, named("m", 10_000), named("o", 10_000)),
	}))
}

// A crash at any write from the samples of 20 panes to the end of their publication: each bucket is there once, with its final
// value.
func TestCase_C33_CrashBetweenClosingAndPublishing(t *testing.T) {
	h := history{steps: []step{{body: &log.Start{Reason: log.StartProcess}}, {body: planOf(t, named("m", 10_000))}}}
	for i := range int64(20) {
		l := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))
		h.steps = append(h.steps, step{write: []sample{{l, 1_001_000, 1}, {l, 1_002_000, float64(i)}}})
	}
	h.steps = append(h.steps, step{body: &log.Watermark{Time: 1_010_000}}, step{body: &log.Tick{}}, step{body: &log.Watermark{Time: 1_010_000}})
	crashEverywhere(t, 33, h)
}

// crashEverywhere plays a history, and once more from each image of it.
func crashEverywhere(t *testing.T, seed uint64, h history) {
	t.Helper()
	ctx := testContext(t)
	want, err := play(ctx, vfs.NewMem(), h, nil)
	if err != nil {
		t.Fatal(err)
	}
	cam := &camera{fs: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 2)), percent: []int{0, 50, 100}}
	got, err := play(ctx, errorfs.Wrap(logtest.SerialLocks(cam.fs, &cam.mu), cam), h, cam)
	if err != nil || got != want {
		t.Fatalf("the run with the camera: %v\n got %s\nwant %s", err, got, want)
	}
	t.Logf("%d images of %d steps; %s", len(cam.images), len(h.steps), want)
	for _, img := range cam.images {
		// The bound is of one image: there are hundreds, and a race build is slow.
		one, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := recoverAndFinish(one, img, h, want)
		cancel()
		if err != nil {
			t.Errorf("crash before %s, %d steps acknowledged: %v", img.op, img.acked, err)
		}
	}
}

// recoverAndFinish starts on a crashed disk, checks what is there, and feeds the rest.
func recoverAndFinish(ctx context.Context, img image, h history, want string) error {
	n, err := startNode(img.fs, fixedClock(), Options{Workers: 3, CheckpointInterval: -1})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	head := int(n.log.Head())
	if int64(head) < img.acked || head > len(h.steps) {
		return fmt.Errorf("the log has %d events", head)
	}
	r := n.log.NewReader(1)
	for i := range head {
		ev, err := r.Next()
		if err != nil {
			return fmt.Errorf("event %d: %w", i+1, err)
		}
		if w, ok := ev.Body.(*log.Write); ok {
			if ref, err := n.request(h.steps[i].write); err != nil || ref.Hash != w.Hash {
				return fmt.Errorf("event %d is not what was sent: %v", i+1, err)
			}
		}
	}
	if err := n.feed(ctx, h.steps[head:], 5); err != nil {
		return err
	}
	got, err := n.describe(ctx)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("\n got %s\nwant %s", got, want)
	}
	return n.stop()
}
