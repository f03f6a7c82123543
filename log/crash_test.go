package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"tidemark/log/logtest"
)

const testDir = "/data/tidemark/log"

// promise is what a log has promised: for each acknowledged sequence, the body that was appended.
type promise struct {
	sync.Mutex
	acked map[Seq]Body
}

func (p *promise) ack(seq Seq, b Body) {
	p.Lock()
	defer p.Unlock()
	if p.acked == nil {
		p.acked = make(map[Seq]Body)
	}
	p.acked[seq] = b
}

func (p *promise) snapshot() map[Seq]Body {
	p.Lock()
	defer p.Unlock()
	out := make(map[Seq]Body, len(p.acked))
	for seq, b := range p.acked {
		out[seq] = b
	}
	return out
}

// image is the disk after a crash, with what had been acknowledged before it.
type image struct {
	fs    *vfs.MemFS
	acked map[Seq]Body
	op    string
}

// camera takes an image before every operation that writes.
type camera struct {
	mu      sync.Mutex
	fs      *vfs.MemFS
	percent int
	rng     *rand.Rand
	promise *promise
	images  []image
	every   int // of how many operations one image is kept
	ops     int
}

func (c *camera) String() string { return "camera" }

func (c *camera) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops++; c.ops%c.every != 0 {
		return nil
	}
	acked := c.promise.snapshot() // before the image, so that it holds at least these
	c.images = append(c.images, image{
		fs:    c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.rng}),
		acked: acked, op: fmt.Sprintf("operation %d, kind %d of %s", c.ops, op.Kind, op.Path),
	})
	return nil
}

// workload appends from several goroutines: small and large events, new and old series, pairs. It returns when all have
// ended; the first error of each goroutine ends it.
func workload(l *Log, p *promise, writers, rounds, large int) {
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			b := NewWriteBuilder()
			for round := range rounds {
				b.Reset()
				for i := range 4 {
					ls := series(i*(w%2+1) + round)
					h := l.Dictionary().Hash([]byte(ls.String()))
					ref, ok := l.Dictionary().Lookup(h)
					if !ok {
						var err error
						if ref, err = l.Dictionary().Resolve(h, ls); err != nil {
							return
						}
					}
					b.Series(ref)
					b.Sample(int64(round), float64(w)+float64(i)/8)
				}
				write := b.Finish()
				seq, err := l.Append(context.Background(), write)
				if err != nil {
					return
				}
				p.ack(seq, write)
				if round%3 == 1 { // two that belong together, one of them large
					one, two := &Watermark{Time: int64(round)}, &Plan{Spec: []byte(strings.Repeat(fmt.Sprintf("%04d", 100*w+round), large/4))}
					seq, err := l.AppendAll(context.Background(), one, two)
					if err != nil {
						return
					}
					p.ack(seq-1, one)
					p.ack(seq, two)
				}
			}
		})
	}
	all.Wait()
}

// checkImage opens a crash image and checks L1, L2, L3 and L6 on it. It appends an event and returns how many it found.
func checkImage(t *testing.T, im image) int {
	t.Helper()
	l, err := Open(testDir, Options{FS: im.fs})
	if err != nil {
		t.Fatalf("crash at %s: %v", im.op, err)
	}
	events := checkPromise(t, l, im)
	r := start(l)
	seq, err := l.Append(context.Background(), &Tick{})
	if err != nil || seq != Seq(events+1) {
		t.Fatalf("crash at %s: append after recovery: %d, %v", im.op, seq, err)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("crash at %s: %v", im.op, err)
	}
	return events
}

// checkPromise checks the acknowledged events bit for bit, and that what else is there is whole.
func checkPromise(t *testing.T, l *Log, im image) int {
	t.Helper()
	events := readAll(t, l, 1) // dense and chained, or it fails
	for seq, want := range im.acked {
		if int(seq) > len(events) {
			t.Fatalf("crash at %s: acknowledged sequence %d is lost; the log ends at %d", im.op, seq, len(events))
		}
		if got := events[seq-1].Body; !bytes.Equal(bodyBytes(t, got), bodyBytes(t, want)) {
			t.Fatalf("crash at %s: sequence %d: %s", im.op, seq, cmp.Diff(want, got, compareLabels))
		}
	}
	defined := map[SeriesRef]bool{}
	for i, e := range events {
		switch b := e.Body.(type) {
		case *Watermark:
			if i+1 == len(events) {
				t.Fatalf("crash at %s: the log ends in the middle of an AppendAll", im.op)
			}
		case *Write:
			if b.Hash != contentHash(b) {
				t.Fatalf("crash at %s: sequence %d is not whole", im.op, e.Seq)
			}
			for _, d := range b.Defs {
				defined[d.Ref] = true
			}
			for _, ref := range b.Refs {
				if !defined[ref] {
					t.Fatalf("crash at %s: sequence %d uses series %d before its definition", im.op, e.Seq, ref)
				}
			}
		}
	}
	return len(events)
}

// bodyBytes is everything that a body says, in bits.
func bodyBytes(t *testing.T, b Body) []byte {
	t.Helper()
	out, err := AppendEvent(nil, &Event{Body: b})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestL1_CrashEnumeration crashes at every operation that writes, from the creation of the log to its clean end, with none,
// half and all of the unsynced data kept (L1, L2, L3, L6; case B25 is among the images: the first acknowledged write).
func TestL1_CrashEnumeration(t *testing.T) {
	noLeak(t)
	for _, percent := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("unsynced=%d%%", percent), func(t *testing.T) {
			images := photograph(t, vfs.NewCrashableMem(), &promise{}, percent, 1, func(l *Log, p *promise) { workload(l, p, 3, 6, 40_000) })
			most := 0
			for _, im := range images {
				most = max(most, checkImage(t, im))
			}
			if acked := len(images[len(images)-1].acked); most < acked || acked != 3*(6+2*2) {
				t.Fatalf("%d events found, %d acknowledged", most, acked)
			}
			t.Logf("%d crashes", len(images))
		})
	}
}

// photograph opens the log on fs, does work, ends cleanly, and returns the images taken and one of the end.
func photograph(t *testing.T, fs *vfs.MemFS, p *promise, percent, every int, work func(*Log, *promise)) []image {
	t.Helper()
	cam := &camera{fs: fs, percent: percent, rng: rand.New(rand.NewPCG(1, uint64(percent))), promise: p, every: every}
	l, err := Open(testDir, Options{FS: errorfs.Wrap(logtest.SerialLocks(fs, &cam.mu), cam)})
	if err != nil {
		t.Fatal(err)
	}
	r := start(l)
	if work != nil {
		work(l, p)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	cam.mu.Lock()
	defer cam.mu.Unlock()
	end := image{fs: fs.CrashClone(vfs.CrashCloneCfg{}), acked: p.snapshot(), op: "the end"}
	return append(cam.images, end)
}

// TestCase_B11_CrashDuringRecovery crashes in recovery, and in the recovery from that, three deep. The last start always
// succeeds, and starts that fail leave nothing behind that piles up.
func TestCase_B11_CrashDuringRecovery(t *testing.T) {
	noLeak(t)
	empty := photograph(t, vfs.NewCrashableMem(), &promise{}, 0, 1000, nil)
	newLog := countFiles(t, empty[0].fs)
	for _, percent := range []int{0, 50, 100} {
		first := photograph(t, vfs.NewCrashableMem(), &promise{}, percent, 41, func(l *Log, p *promise) { workload(l, p, 2, 4, 40_000) })
		for _, im := range first {
			deepen(t, im, percent, 2, newLog)
		}
	}
}

// deepen recovers from im under a camera and does the same with some of the images.
func deepen(t *testing.T, im image, percent, depth, newLog int) {
	t.Helper()
	p := &promise{acked: im.acked}
	images := photograph(t, im.fs.CrashClone(vfs.CrashCloneCfg{}), p, percent, 17, nil)
	for _, next := range images {
		next.op += " of the recovery after " + im.op
		before := countFiles(t, next.fs)
		if depth > 0 {
			deepen(t, next, percent, depth-1, newLog)
			continue
		}
		checkImage(t, next)
		// An image from before the creation of the store grows to the files of a new log.
		if after := countFiles(t, next.fs); after > max(before, newLog)+2 {
			t.Fatalf("crash at %s: %d files became %d", next.op, before, after)
		}
	}
}

func countFiles(t *testing.T, fs vfs.FS) int {
	t.Helper()
	n := 0
	for _, dir := range []string{testDir, testDir + "/store", testDir + "/store.new"} {
		names, err := fs.List(dir)
		if err == nil {
			n += len(names)
		}
	}
	return n
}

// fault makes the k-th matching operation fail: once, or from then on until it is cleared.
type fault struct {
	k      int64
	sticky bool
	err    error
	match  func(errorfs.Op) bool

	seen    atomic.Int64
	cleared atomic.Bool
	hit     atomic.Bool
}

func (f *fault) String() string { return "fault" }

func (f *fault) MaybeError(op errorfs.Op) error {
	if f.cleared.Load() || !f.match(op) {
		return nil
	}
	n := f.seen.Add(1)
	if n == f.k || f.sticky && n > f.k {
		f.hit.Store(true)
		return &errno{f.err, op.Path}
	}
	return nil
}

type errno struct {
	err  error
	path string
}

func (e *errno) Error() string { return e.path + ": " + e.err.Error() }
func (e *errno) Unwrap() error { return e.err }

func isWrite(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

func isSync(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
}

func isWAL(op errorfs.Op) bool { return path.Ext(op.Path) == ".log" }

// TestL4_ErrorEnumeration fails the k-th write operation, for every k until a run passes untouched: a fault that stays
// (no space) and one that goes away at once (I/O error). Whatever was acknowledged is there after a crash, and after the
// first refusal for poison nothing is acknowledged.
func TestL4_ErrorEnumeration(t *testing.T) {
	for name, f := range map[string]*fault{
		"ENOSPC": {sticky: true, err: syscall.ENOSPC, match: isWrite},
		"EIO":    {err: syscall.EIO, match: isWrite},
		"fsync":  {err: syscall.EIO, match: isSync},
	} {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				f := fault{k: k, sticky: f.sticky, err: f.err, match: f.match}
				if !failOnce(t, &f) {
					t.Logf("%d faults", k-1)
					if k < 30 {
						t.Fatal("the faults did not reach the appends")
					}
					return
				}
			}
		})
	}
}

// failOnce runs the workload under the fault and reports whether it was met.
func failOnce(t *testing.T, f *fault) bool {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var poisoned atomic.Int32
	p := &promise{}
	l, err := Open(testDir, Options{FS: errorfs.Wrap(mem, f), OnPoison: func(error) { poisoned.Add(1) }})
	im := image{op: fmt.Sprintf("fault %d", f.k)}
	if err == nil {
		r := start(l)
		workload(l, p, 2, 5, 150_000) // more than the first memtable holds: the WAL changes
		refused := l.Err() != nil
		f.cleared.Store(true) // the disk is healthy again: that must not help
		if refused {
			if _, err := l.Append(context.Background(), &Tick{}); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("fault %d: append to a poisoned log: %v", f.k, err)
			}
		}
		im.fs, im.acked = mem.CrashClone(vfs.CrashCloneCfg{}), p.snapshot()
		err := r.stop()
		if refused != errors.Is(err, ErrPoisoned) && l.Err() == nil {
			t.Fatalf("fault %d: refused=%v, but Run says %v", f.k, refused, err)
		}
		if want := int32(0); l.Err() != nil {
			want = 1
			if poisoned.Load() != want {
				t.Fatalf("fault %d: OnPoison was called %d times", f.k, poisoned.Load())
			}
		}
	} else {
		f.cleared.Store(true)
		im.fs = mem.CrashClone(vfs.CrashCloneCfg{})
		if !f.hit.Load() {
			t.Fatalf("open without a fault: %v", err)
		}
	}
	checkImage(t, im)
	return f.hit.Load()
}

// TestL4_FaultsWhileTheWALChanges fails the k-th operation on a WAL, or fsync of the store's directory, of a log that is
// open and whose appends turn over the memtable. Pebble would panic at many of these places. The log is
// poisoned instead, appends are refused, Run and Close return, and what was acknowledged is there.
func TestL4_FaultsWhileTheWALChanges(t *testing.T) {
	created := 0
	match := func(op errorfs.Op) bool {
		return isWrite(op) && (isWAL(op) || isSync(op) && path.Base(op.Path) == "store")
	}
	for k := int64(1); ; k++ {
		var wals atomic.Int32
		f := &fault{k: k, sticky: true, err: syscall.ENOSPC, match: func(op errorfs.Op) bool {
			if isWAL(op) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite) {
				wals.Add(1)
			}
			return match(op)
		}}
		f.cleared.Store(true)
		mem := vfs.NewCrashableMem()
		r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(mem, f)}))
		f.cleared.Store(false)
		im := image{acked: map[Seq]Body{}, op: fmt.Sprintf("fault %d", k)}
		var refusal error
		for i := 0; i < 12 && refusal == nil; i++ {
			body := &Plan{Spec: []byte(strings.Repeat(fmt.Sprintf("%04d", i), 35_000))}
			var seq Seq
			if seq, refusal = r.Append(context.Background(), body); refusal == nil {
				im.acked[seq] = body
			}
		}
		created = max(created, int(wals.Load()))
		hit := f.hit.Load()
		f.cleared.Store(true)
		if refusal != nil && (!hit || !errors.Is(refusal, ErrPoisoned)) {
			t.Fatalf("fault %d: append: %v", k, refusal)
		}
		im.fs = mem.CrashClone(vfs.CrashCloneCfg{})
		if err := r.stop(); hit != errors.Is(err, ErrPoisoned) || !hit && err != nil {
			t.Fatalf("fault %d, met: %v: Run says %v", k, hit, err)
		}
		checkImage(t, im)
		if !hit {
			t.Logf("%d faults, %d WALs", k-1, created)
			if created < 1 {
				t.Fatal("the WAL did not change")
			}
			return
		}
	}
}
