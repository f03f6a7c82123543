package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// filler is an event of about 2 kB that does not compress.
func filler(rng *rand.Rand) *Plan {
	b := make([]byte, 2000)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return &Plan{Spec: b}
}

// appendFillers appends n events one after the other and returns what was acknowledged.
func appendFillers(t testing.TB, l *Log, n int) map[Seq]Body {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	acked := make(map[Seq]Body)
	for range n {
		body := filler(rng)
		seq, err := l.Append(context.Background(), body)
		if err != nil {
			t.Fatal(err)
		}
		acked[seq] = body
	}
	return acked
}

// TestCase_B01_FatalfThatReturns: from some point writing the WAL fails, later it works again. What was not acknowledged is
// gone after the crash; what was is there. Without the poison flag Pebble would have said yes to all three.
func TestCase_B01_FatalfThatReturns(t *testing.T) {
	for name, f := range map[string]*fault{
		"no space on write": {sticky: true, err: syscall.ENOSPC, match: func(op errorfs.Op) bool { return isWAL(op) && op.Kind == errorfs.OpFileWrite }},
		"EIO on fsync":      {sticky: true, err: syscall.EIO, match: func(op errorfs.Op) bool { return isWAL(op) && isSync(op) }},
	} {
		t.Run(name, func(t *testing.T) {
			noLeak(t)
			f.cleared.Store(true)
			mem := vfs.NewCrashableMem()
			r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(mem, f)}))
			acked := appendFillers(t, r.Log, 1)
			f.cleared.Store(false)
			if _, err := r.Append(context.Background(), &Tick{}); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("append with a failing WAL: %v", err)
			}
			f.cleared.Store(true)
			if _, err := r.Append(context.Background(), &Drain{}); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("append after the fault has gone: %v", err)
			}
			if events := readAll(t, r.Log, 1); len(events) != 1 {
				t.Fatalf("%d events are visible in the poisoned log", len(events))
			}
			im := image{fs: mem.CrashClone(vfs.CrashCloneCfg{}), acked: acked, op: name}
			if err := r.stop(); !errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
			if n := checkImage(t, im); n != 1 {
				t.Fatalf("%d events after the crash", n)
			}
		})
	}
}

// TestCase_B02_OneFailedFsync: the first fsync after some appends fails, every later one works.
func TestCase_B02_OneFailedFsync(t *testing.T) {
	noLeak(t)
	f := &fault{k: 1, err: syscall.EIO, match: func(op errorfs.Op) bool { return isWAL(op) && isSync(op) }}
	f.cleared.Store(true)
	mem := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(mem, f)}))
	acked := appendFillers(t, r.Log, 5)
	f.cleared.Store(false)
	for range 11 {
		if _, err := r.Append(context.Background(), &Tick{}); !errors.Is(err, ErrPoisoned) {
			t.Fatal(err)
		}
	}
	im := image{fs: mem.CrashClone(vfs.CrashCloneCfg{}), acked: acked, op: "one failed fsync"}
	if err := r.stop(); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	checkImage(t, im)
}

// crashImage is a log with n acknowledged events, as it lies on the disk while the process runs.
func crashImage(t *testing.T, n int, reopened bool) image {
	t.Helper()
	mem := vfs.NewCrashableMem()
	if reopened {
		if err := start(mustOpen(t, testDir, Options{FS: mem})).stop(); err != nil {
			t.Fatal(err)
		}
	}
	r := start(mustOpen(t, testDir, Options{FS: mem}))
	im := image{acked: appendFillers(t, r.Log, n), op: "image"}
	im.fs = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	return im
}

func clone(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }

// files lists the store's files with a suffix, in order.
func files(t *testing.T, fs vfs.FS, dir string, match func(string) bool) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var out []string
	for _, name := range names {
		if match(name) {
			out = append(out, fs.PathJoin(dir, name))
		}
	}
	return out
}

func newestWAL(t *testing.T, fs vfs.FS) string {
	t.Helper()
	wals := files(t, fs, testDir+"/store", func(name string) bool { return strings.HasSuffix(name, ".log") })
	if len(wals) == 0 {
		t.Fatal("no WAL")
	}
	return wals[len(wals)-1]
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// contents is everything on disk but the lock files, which hold nothing.
func contents(t *testing.T, fs vfs.FS) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{testDir, testDir + "/store"} {
		names, err := fs.List(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			path := fs.PathJoin(dir, name)
			info, err := fs.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if !info.IsDir() && name != "LOCK" {
				out[path] = string(readFile(t, fs, path))
			}
		}
	}
	return out
}

// refused opens fs, wants an error, and wants nothing changed (L7).
func refused(t *testing.T, fs vfs.FS, what string) error {
	t.Helper()
	before := contents(t, fs)
	l, err := Open(testDir, Options{FS: fs})
	if err == nil {
		t.Fatalf("%s: opened with %d events", what, l.Head())
	}
	after := contents(t, fs)
	for path := range before {
		if before[path] != after[path] {
			t.Errorf("%s: the refusal changed %s", what, path)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%s: %d files became %d", what, len(before), len(after))
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: more than a line: %q", what, err)
	}
	return err
}

// TestCase_B05_FlippedBitInTheNewestWAL: a bit flips in the newest WAL, of a store that was never opened again and of one
// that was. The log never comes up short.
func TestCase_B05_FlippedBitInTheNewestWAL(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		im := crashImage(t, 60, reopened)
		for _, percent := range []int{1, 10, 25, 50, 75} {
			fs := clone(im.fs)
			path := newestWAL(t, fs)
			b := readFile(t, fs, path)
			b[len(b)*percent/100] ^= 0x10
			writeFile(t, fs, path, b)
			err := refused(t, fs, fmt.Sprintf("reopened=%v, bit at %d%%", reopened, percent))
			if !strings.Contains(err.Error(), testDir) {
				t.Errorf("the error does not name the place: %v", err)
			}
		}
	}
}

// TestCase_B06_TornTail: debris after the last acknowledged write, of a write that was never acknowledged or of nothing at
// all, is no reason to refuse or to lose anything.
func TestCase_B06_TornTail(t *testing.T) {
	im := crashImage(t, 60, true)
	whole := readFile(t, im.fs, newestWAL(t, im.fs))
	garbage := make([]byte, 5000)
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range garbage {
		garbage[i] = byte(rng.Uint32())
	}
	longer := crashImage(t, 61, true)
	more := readFile(t, longer.fs, newestWAL(t, longer.fs))
	for name, tail := range map[string][]byte{
		"garbage": append(slices.Clone(whole), garbage...),
		"zeros":   append(slices.Clone(whole), make([]byte, 32<<10)...),
		"cut":     more[:len(more)-1000], // inside of the last record, which has 2,000 bytes
	} {
		fs := clone(im.fs)
		if name == "cut" {
			fs = clone(longer.fs)
		}
		writeFile(t, fs, newestWAL(t, fs), tail)
		torn := image{fs: fs, acked: im.acked, op: name}
		if name == "cut" {
			torn.acked = longer.acked
			delete(torn.acked, 61)
		}
		if err := syncDir(fs, testDir+"/store"); err != nil {
			t.Fatal(err)
		}
		debris := clone(fs)
		if n := checkImage(t, torn); n != 60 {
			t.Errorf("%s: %d events", name, n)
		}
		// One line states the bytes that were ignored.
		if said := saidAtStart(t, debris); strings.Count(said, "was ignored") != 1 || !strings.Contains(said, "bytes=") {
			t.Errorf("%s: it said %q", name, said)
		}
	}
	if said := saidAtStart(t, clone(im.fs)); said != "" {
		t.Errorf("a crash without debris: it said %q", said)
	}
}

// A WAL that ends as it should is not spoken of as if something were wrong with it.
func TestCleanStopSaysNothingAtTheNextStart(t *testing.T) {
	fs := vfs.NewMem()
	for range 3 {
		if said := saidAtStart(t, fs); said != "" {
			t.Errorf("it said %q", said)
		}
	}
}

// saidAtStart opens a log, appends to it, closes it, and returns what it said at the level of information and above.
func saidAtStart(t *testing.T, fs vfs.FS) string {
	t.Helper()
	var out bytes.Buffer
	l, err := Open(testDir, Options{FS: fs, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	if _, err := l.Append(t.Context(), &Tick{}); err != nil {
		t.Error(err)
	}
	cancel()
	<-ended
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestCase_B13_NotWritable: a file in place of the directory, a read-only file system, a directory without permission.
func TestCase_B13_NotWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); !errors.Is(err, ErrNotALog) || !strings.Contains(err.Error(), file) {
		t.Errorf("a file: %v", err)
	}
	if _, err := Open(filepath.Join(file, "log"), Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("below a file: %v", err)
	}
	readOnly := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if isWrite(op) || op.Kind == errorfs.OpLock {
			return &os.PathError{Op: "open", Path: op.Path, Err: syscall.EROFS}
		}
		return nil
	})
	empty := vfs.NewCrashableMem()
	for name, fs := range map[string]*vfs.MemFS{"a log": crashImage(t, 3, false).fs, "nothing": empty} {
		before := len(contents(t, fs))
		_, err := Open(testDir, Options{FS: errorfs.Wrap(fs, readOnly)})
		if !errors.Is(err, ErrNotWritable) || !strings.Contains(err.Error(), testDir) || len(contents(t, fs)) != before {
			t.Errorf("read-only file system with %s: %v", name, err)
		}
	}
	locked := filepath.Join(dir, "locked")
	if err := os.Mkdir(locked, 0o555); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 { // root may write everywhere, and is covered by the read-only file system above
		if _, err := Open(locked, Options{}); !errors.Is(err, ErrNotWritable) || !strings.Contains(err.Error(), locked) {
			t.Errorf("directory without permission: %v", err)
		}
	}
}

// TestCase_B15_MissingFiles: a missing file never means a new log or a shorter one.
func TestCase_B15_MissingFiles(t *testing.T) {
	mem := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: mem}))
	appendFillers(t, r.Log, 60)
	if err := r.store.db.Flush(); err != nil { // so that there is a table of events
		t.Fatal(err)
	}
	acked := appendFillers(t, r.Log, 60)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	stopped := image{fs: clone(mem), acked: acked}
	running := crashImage(t, 60, false)
	store := testDir + "/store"
	for name, pattern := range map[string]struct {
		dir   string
		match func(string) bool
	}{
		"MANIFEST": {store, func(n string) bool { return strings.HasPrefix(n, "MANIFEST-") }},
		"markers":  {store, func(n string) bool { return strings.HasPrefix(n, "marker.") }},
		"a marker": {store, func(n string) bool { return strings.HasPrefix(n, "marker.manifest") }},
		"tables":   {store, func(n string) bool { return strings.HasSuffix(n, ".sst") }},
		"WALs":     {store, func(n string) bool { return strings.HasSuffix(n, ".log") }},
		"HEAD":     {testDir, func(n string) bool { return n == "HEAD" }},
	} {
		for state, im := range map[string]image{"stopped": stopped, "running": running} {
			fs := clone(im.fs)
			paths := files(t, fs, pattern.dir, pattern.match)
			if len(paths) == 0 {
				t.Fatalf("%s: nothing to remove", name)
			}
			for _, path := range paths {
				if err := fs.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			err := refused(t, fs, name+" of a log that was "+state)
			t.Logf("%s, %s: %v", name, state, err)
		}
	}
	fs := clone(stopped.fs)
	if err := fs.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	var short *ShortLogError
	if err := refused(t, fs, "the store"); !errors.As(err, &short) || short.Have != 0 || short.Want != 120 {
		t.Errorf("without the store: %v", err)
	}
}

// TestL7_ForeignDirectory: what is not a log is left alone, and what looks like one in part too.
func TestL7_ForeignDirectory(t *testing.T) {
	for name, make := range map[string]func(fs vfs.FS){
		"some file":     func(fs vfs.FS) { writeFile(t, fs, testDir+"/notes.txt", []byte("mine")) },
		"another store": func(fs vfs.FS) { writeFile(t, fs, testDir+"/MANIFEST-000001", []byte("x")) },
		"store of others": func(fs vfs.FS) {
			if err := fs.MkdirAll(testDir+"/store", 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, fs, testDir+"/store/apples", []byte("x"))
		},
		"a broken note": func(fs vfs.FS) { writeFile(t, fs, testDir+"/HEAD", []byte("hello\n")) },
	} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll(testDir, 0o755); err != nil {
			t.Fatal(err)
		}
		make(fs)
		refused(t, fs, name)
		if names, _ := fs.List(testDir); len(names) != 1 {
			t.Errorf("%s: now holds %v", name, names)
		}
	}
}

// TestL7_NewerFormat: a log of a newer version is refused by name and left alone.
func TestL7_NewerFormat(t *testing.T) {
	im := crashImage(t, 3, false)
	note := readFile(t, im.fs, testDir+"/HEAD")
	writeFile(t, im.fs, testDir+"/HEAD", []byte(strings.Replace(string(note), "format 1", "format 2", 1)))
	if err := refused(t, im.fs, "newer format"); !errors.Is(err, ErrNewerFormat) {
		t.Fatal(err)
	}
	if _, err := decodeMeta([]byte{storeFormat + 1, 0}); !errors.Is(err, ErrNewerFormat) {
		t.Fatal(err)
	}
}

// TestL7_HeadNote: the log must reach the note, and hold the event that it names; so must it reach a checkpoint.
func TestL7_HeadNote(t *testing.T) {
	im := crashImage(t, 5, false)
	l := mustOpen(t, testDir, Options{FS: im.fs})
	good := headNote{seq: l.Head(), hash: l.durable.hash}
	var short *ShortLogError
	if err := l.CheckAtLeast(6, "pane shard 3"); !errors.As(err, &short) || *short != (ShortLogError{Have: 5, Want: 6, What: "pane shard 3"}) {
		t.Error(err)
	}
	if err := l.CheckAtLeast(5, "pane shard 3"); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	far, other := good, good
	far.seq++
	other.hash[3] ^= 1
	for name, n := range map[string]headNote{"ahead": far, "other event": other} {
		fs := clone(im.fs)
		if err := writeHead(fs, testDir, n); err != nil {
			t.Fatal(err)
		}
		err := refused(t, fs, name)
		t.Log(err)
		var damage *CorruptionError
		if name == "ahead" && (!errors.As(err, &short) || short.Have != 5 || short.Want != 6) ||
			name == "other event" && (!errors.As(err, &damage) || damage.Seq != 5) {
			t.Error(err)
		}
	}
	b := good.encode()
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		if n, err := decodeHead(b); err == nil {
			t.Fatalf("bit %d of the note may flip: %v", bit, n)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// TestCase_B21_WallClockSteps: the wall clock goes back by an hour and forth again. Sequences are dense, log time runs on
// with monotonic time, and the wall time is kept as it was read.
func TestCase_B21_WallClockSteps(t *testing.T) {
	noLeak(t)
	var mu sync.Mutex
	wall, mono := time.UnixMilli(1_700_000_000_000), time.Duration(0)
	advance := func(step time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		mono += time.Second
		wall = wall.Add(time.Second + step)
	}
	opts := Options{
		FS:        vfs.NewMem(),
		Now:       func() time.Time { mu.Lock(); defer mu.Unlock(); return wall },
		Monotonic: func() time.Duration { mu.Lock(); defer mu.Unlock(); return mono },
	}
	const base = 1_700_000_000_000
	var want []int64
	r := start(mustOpen(t, testDir, opts))
	for i, step := range []time.Duration{0, 0, -time.Hour, 0, time.Hour, 0} {
		advance(step)
		if seq, err := r.Append(context.Background(), &Tick{}); err != nil || seq != Seq(i+1) {
			t.Fatal(seq, err)
		}
		want = append(want, base+int64(i+1)*1000)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	// The next start finds the wall clock an hour behind: log time goes on from the last event.
	advance(-time.Hour)
	r = start(mustOpen(t, testDir, opts))
	advance(0)
	if _, err := r.Append(context.Background(), &Tick{}); err != nil {
		t.Fatal(err)
	}
	want = append(want, want[len(want)-1]+1000)
	if now := r.LogTime(); now != want[len(want)-1] {
		t.Errorf("LogTime is %d", now)
	}
	events := readAll(t, r.Log, 1)
	for i, e := range events {
		if e.LogTime != want[i] {
			t.Errorf("sequence %d has log time %d, not %d", e.Seq, e.LogTime, want[i])
		}
		if i > 0 && e.ID.Compare(events[i-1].ID) <= 0 {
			t.Errorf("sequence %d has an ID before that of its predecessor", e.Seq)
		}
	}
	if back := events[2].WallTime - events[1].WallTime; back != (time.Second - time.Hour).Milliseconds() {
		t.Errorf("wall time moved by %d ms", back)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestCase_B23_VeryLargeRequest: 400,000 samples that do not compress are one unit at every crash; one byte more than the
// bound is refused.
func TestCase_B23_VeryLargeRequest(t *testing.T) {
	noLeak(t)
	rng := rand.New(rand.NewPCG(11, 11))
	b := NewWriteBuilder()
	mem, p := vfs.NewCrashableMem(), &promise{}
	cam := &camera{fs: mem, percent: 50, rng: rng, promise: p, every: 20}
	r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(logtest.SerialLocks(mem, &cam.mu), cam)}))
	for i := range 400 {
		b.Series(resolve(t, r.Dictionary(), series(i)))
		for j := range 1000 {
			b.Sample(int64(j), rng.NormFloat64())
		}
	}
	w := b.Finish()
	began := time.Now()
	seq, err := r.Append(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	p.ack(seq, w)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	cam.mu.Lock()
	images := append(cam.images, image{fs: clone(mem), acked: p.snapshot(), op: "the end"})
	cam.mu.Unlock()
	found := map[int]int{}
	for _, im := range images {
		found[checkImage(t, im)]++
	}
	t.Logf("events found: %v", found)
	if found[0] == 0 || found[1] == 0 || len(found) != 2 {
		t.Errorf("the crashes do not lie on both sides: %v", found)
	}

	r = start(mustOpen(t, testDir, Options{FS: vfs.NewMem(), MaxEventBytes: 10_000}))
	if _, err := r.Append(context.Background(), &Plan{Spec: make([]byte, 10_000-headerSize+1)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if seq, err := r.Append(context.Background(), &Plan{Spec: make([]byte, 10_000-headerSize)}); err != nil || seq != 1 {
		t.Errorf("just fits: %d, %v", seq, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestCase_B25_NewDirectoryIsSynced: the power goes right after the first acknowledgement, and whatever directory entry was
// not synced is gone.
func TestCase_B25_NewDirectoryIsSynced(t *testing.T) {
	noLeak(t)
	mem := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: mem}))
	acked := appendFillers(t, r.Log, 1)
	im := image{fs: clone(mem), acked: acked, op: "the first acknowledgement"}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := checkImage(t, im); n != 1 {
		t.Fatal(n)
	}
}

// TestCase_B27_NoAcknowledgementBeforeFsync: eight writers; now and then the power goes right after an acknowledgement.
func TestCase_B27_NoAcknowledgementBeforeFsync(t *testing.T) {
	noLeak(t)
	mem := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: mem}))
	p := &promise{}
	var mu sync.Mutex
	var images []image
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(13, uint64(w)))
			for range 25 {
				body := &Plan{Spec: fmt.Appendf(nil, "%d %d", w, rng.Uint64())}
				seq, err := r.Append(context.Background(), body)
				if err != nil {
					t.Error(err)
					return
				}
				p.ack(seq, body)
				if rng.IntN(3) == 0 {
					mu.Lock()
					acked := p.snapshot()
					images = append(images, image{fs: clone(mem), acked: acked, op: fmt.Sprintf("acknowledgement of %d", seq)})
					mu.Unlock()
				}
			}
		})
	}
	writers.Wait()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, im := range images {
		checkImage(t, im)
	}
	t.Logf("%d rounds", len(images))
}

const lockedDirVariable = "TIDEMARK_TEST_LOG_LOCKED_DIR"

// TestL7_SecondProcess: a second process on the same directory, and a second log in this one, get ErrLocked.
func TestL7_SecondProcess(t *testing.T) {
	if dir := os.Getenv(lockedDirVariable); dir != "" { // we are the second process
		_, err := Open(dir, Options{})
		fmt.Printf("second process: %v\n", err)
		if !errors.Is(err, ErrLocked) {
			os.Exit(1)
		}
		os.Exit(0)
	}
	noLeak(t)
	dir := filepath.Join(t.TempDir(), "a", "b", "log")
	l := mustOpen(t, dir, Options{})
	second := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	second.Env = append(os.Environ(), lockedDirVariable+"="+dir)
	if out, err := second.CombinedOutput(); err != nil || !strings.Contains(string(out), dir) {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("second log in one process: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, dir, Options{})
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
