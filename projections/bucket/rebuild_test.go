package bucket

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

const swapDir = "/data/views"

var swapWork = Work{Identity: []byte("log"), Through: 7, Hash: [16]byte{1, 2}, Program: "one"}

// fill makes the store in dir hold one checkpoint, durably.
func fillDir(fs vfs.FS, dir string, seq uint64) error {
	s, err := Open(dir, []byte("log"), Options{FS: fs})
	if err != nil {
		return err
	}
	table := NewTable()
	table.Put(Key{Stream: 1}, 5, 3, func(b []byte) []byte { return append(b, byte(seq)) })
	if err := s.Commit(Checkpoint{Shard: 9, Seq: seq, State: []byte{byte(seq)}, Tables: []*Table{table}}); err != nil {
		return err
	}
	if err := s.Flush(context.Background()); err != nil {
		return err
	}
	return s.Close()
}

// stands returns the sequence of the views in dir; 0 if there are none.
func stands(fs vfs.FS, dir string) (uint64, error) {
	if !exists(fs, dir) {
		return 0, nil
	}
	s, err := OpenReadOnly(dir, []byte("log"), Options{FS: fs})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	seq, err := s.Newest()
	if err != nil {
		return 0, err
	}
	views := make([]ShardView, 10)
	views[9].PieceSeq = seq
	var pane []byte
	err = s.Collect(context.Background(), 1, Grid{Width: 1000}, -100_000, 100_000, views, func(_ int, b Bucket) error {
		pane = append(pane, b.Pane...)
		return nil
	})
	if err == nil && string(pane) != string([]byte{byte(seq)}) {
		err = fmt.Errorf("checkpoint of %d with pane %v", seq, pane)
	}
	return seq, err
}

// disks takes an image of the disk before every operation that writes, as a crash would leave it.
type disks struct {
	fs      *vfs.MemFS
	percent int

	mu     sync.Mutex
	rng    *rand.Rand
	images []*vfs.MemFS
	ops    []string
}

func (d *disks) String() string { return "disks" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (d *disks) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.images = append(d.images, d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: d.percent, RNG: d.rng}))
	d.ops = append(d.ops, fmt.Sprintf("operation %d, kind %d of %s", len(d.ops)+1, op.Kind, path.Base(op.Path)))
	return nil
}

// P5: a crash before any operation of a rebuild and its swap leaves the old views or the new ones, whole; InForce tells which
// without changing anything, Settle leaves those and nothing that is in the way, and a second crash in Settle changes nothing.
func TestP5_CrashInSwap(t *testing.T) {
	for _, old := range []uint64{0, 3} { // there may be no views at all
		for _, percent := range []int{0, 50, 100} {
			base := vfs.NewCrashableMem()
			if err := base.MkdirAll("/data", 0o755); err != nil {
				t.Fatal(err)
			}
			if old > 0 {
				if err := fillDir(base, swapDir, old); err != nil {
					t.Fatal(err)
				}
			}
			if err := syncDir(base, "/"); err != nil {
				t.Fatal(err)
			}
			d := &disks{fs: base, percent: percent, rng: rand.New(rand.NewPCG(old, uint64(percent)))}
			if err := rebuildAndSwap(errorfs.Wrap(logtest.SerialLocks(base, &d.mu), d)); err != nil {
				t.Fatal(err)
			}
			d.images, d.ops = append(d.images, base.CrashClone(vfs.CrashCloneCfg{})), append(d.ops, "the end")
			seen := map[uint64]int{}
			for i, fs := range d.images {
				seq := settleAndCheck(t, fs, percent, fmt.Sprintf("old %d, %d%%, crash before %s", old, percent, d.ops[i]))
				if seq != old && seq != 7 {
					t.Errorf("old %d, crash before %s: the views reflect %d", old, d.ops[i], seq)
				}
				seen[seq]++
			}
			if seen[7] == 0 || seen[old] == 0 {
				t.Errorf("%d images do not cover the swap: %v", len(d.images), seen)
			}
			t.Logf("old %d, %d%%: %d images, %v", old, percent, len(d.images), seen)
		}
	}
}

func rebuildAndSwap(fs vfs.FS) error {
	o := Options{FS: fs}
	if err := Settle(swapDir, o); err != nil {
		return err
	}
	resumes, err := BeginRebuild(swapDir, swapWork, nil, o)
	if err != nil {
		return err
	}
	err = fillDir(fs, RebuildDir(swapDir), 7)
	if resumes && Damaged(err) { // a crash may leave anything in what was never flushed; the command begins anew then
		if err := DropRebuild(swapDir, o); err != nil {
			return err
		}
		if _, err := BeginRebuild(swapDir, swapWork, nil, o); err != nil {
			return err
		}
		err = fillDir(fs, RebuildDir(swapDir), 7)
	}
	if err != nil {
		return err
	}
	return Swap(swapDir, o)
}

// settleAndCheck settles a crashed disk, with crashes in between, and returns what stands.
func settleAndCheck(t *testing.T, fs *vfs.MemFS, percent int, what string) uint64 {
	t.Helper()
	before, err := stands(fs, InForce(swapDir, Options{FS: fs}))
	if InForce(swapDir, Options{FS: fs}) == "" {
		before, err = 0, nil
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	d := &disks{fs: fs.CrashClone(vfs.CrashCloneCfg{}), percent: percent, rng: rand.New(rand.NewPCG(1, 2))}
	if err := Settle(swapDir, Options{FS: errorfs.Wrap(logtest.SerialLocks(d.fs, &d.mu), d)}); err != nil {
		t.Fatalf("%s: settle: %v", what, err)
	}
	for i, fs := range append(d.images, d.fs) {
		if err := Settle(swapDir, Options{FS: fs}); err != nil {
			t.Fatalf("%s, settle crashed (%d): %v", what, i, err)
		}
		after, err := stands(fs, swapDir)
		if err != nil || after != before {
			t.Fatalf("%s: in force was %d, now stands %d, %v", what, before, after, err)
		}
		if exists(fs, oldDir(swapDir)) {
			t.Errorf("%s: the old views are still there", what)
		}
		// A rebuild from here on ends well.
		if err := rebuildAndSwap(fs); err != nil {
			t.Fatalf("%s: rebuild again: %v", what, err)
		}
		names, err := fs.List("/data")
		if seq, serr := stands(fs, swapDir); err != nil || serr != nil || seq != 7 || !slices.Equal(names, []string{"views"}) {
			t.Fatalf("%s: after another rebuild: %v, %d, %v, %v", what, names, seq, err, serr)
		}
	}
	return before
}

// P6: a rebuild goes on with what another has left only when both have the same work to do.
func TestP6_OnlyTheSameWorkGoesOn(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs}
	begin := func(w Work) bool {
		t.Helper()
		resumes, err := BeginRebuild(swapDir, w, nil, o)
		if err != nil {
			t.Fatal(err)
		}
		return resumes
	}
	if begin(swapWork) {
		t.Fatal("goes on with nothing")
	}
	if !begin(swapWork) {
		t.Fatal("does not go on with the same")
	}
	for name, change := range map[string]func(*Work){
		"identity": func(w *Work) { w.Identity = []byte("gol") },
		"through":  func(w *Work) { w.Through++ },
		"hash":     func(w *Work) { w.Hash[15]++ },
		"program":  func(w *Work) { w.Program = "two" },
		"base":     func(w *Work) { w.Base = 3 },
	} {
		if err := fillDir(fs, RebuildDir(swapDir), 7); err != nil {
			t.Fatal(err)
		}
		w := swapWork
		change(&w)
		if begin(w) || exists(fs, fs.PathJoin(RebuildDir(swapDir), "LOCK")) {
			t.Errorf("goes on with another %s", name)
		}
		begin(swapWork)
	}
	note, err := readWork(fs, RebuildDir(swapDir))
	if err != nil {
		t.Fatal(err)
	}
	for i := range note {
		changed := slices.Clone(note)
		changed[i] ^= 1
		if err := writeWork(fs, RebuildDir(swapDir), changed); err != nil {
			t.Fatal(err)
		}
		if begin(swapWork) {
			t.Fatalf("goes on under a note with byte %d changed", i)
		}
	}
	if err := DropRebuild(swapDir, o); err != nil || exists(fs, RebuildDir(swapDir)) {
		t.Fatal("still there", err)
	}
	if err := DropRebuild(swapDir, o); err != nil {
		t.Fatal("dropping nothing:", err)
	}
}

// A store that is open for reading takes nothing and leaves every file as it is.
func TestOpenReadOnly(t *testing.T) {
	fs := vfs.NewMem()
	if _, err := OpenReadOnly(swapDir, []byte("log"), Options{FS: fs}); err == nil {
		t.Error("opened what is not there")
	}
	if err := fillDir(fs, swapDir, 3); err != nil {
		t.Fatal(err)
	}
	before, err := fs.List(swapDir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenReadOnly(swapDir, []byte("log"), Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(Checkpoint{Shard: 1, Seq: 9}); err == nil {
		t.Error("took a checkpoint")
	}
	if seq, err := s.Newest(); err != nil || seq != 3 {
		t.Error(seq, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := fs.List(swapDir)
	slices.Sort(before)
	slices.Sort(after)
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("%v became %v, %v", before, after, err)
	}
	if _, err := OpenReadOnly(swapDir, []byte("other"), Options{FS: fs}); err == nil {
		t.Error("opened the views of another log")
	}
}
