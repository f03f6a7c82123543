package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
)

// truncated checks L9: what the log holds is from floor to head, and what is asked for below it is refused by name.
func truncated(t *testing.T, l *Log, floor, head Seq) {
	t.Helper()
	if l.Floor() != floor || l.Head() != head {
		t.Fatalf("the log holds %d to %d, not %d to %d", l.Floor(), l.Head(), floor, head)
	}
	if n := len(readAll(t, l, 0)); n != int(head-floor+1) {
		t.Fatalf("%d events from the floor on, not %d", n, head-floor+1)
	}
	if n := len(readAll(t, l, floor+1)); n != int(head-floor) {
		t.Fatalf("%d events from behind the floor on, not %d", n, head-floor)
	}
	for _, seq := range []Seq{1, floor - 1} {
		if seq == 0 || seq == floor {
			continue
		}
		var below *TruncatedError
		if _, err := l.NewReader(seq).Next(); !errors.As(err, &below) || below.Seq != seq || below.Floor != floor {
			t.Fatalf("a reader from %d: %v", seq, err)
		}
	}
}

// writes appends n writes, each of a new series, and returns the last sequence.
func writes(t *testing.T, l *Log, from, n int) (last Seq) {
	t.Helper()
	for i := from; i < from+n; i++ {
		b := NewWriteBuilder()
		b.Series(resolve(t, l.Dictionary(), series(i)))
		b.Sample(int64(i), float64(i))
		var err error
		if last, err = l.Append(context.Background(), b.Finish()); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// L9: truncation removes what it says and nothing else, also for the tools, and the log goes on, is opened and truncated again.
func TestL9_Truncate(t *testing.T) {
	noLeak(t)
	fs := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	writes(t, r.Log, 0, 100)
	truncated(t, r.Log, 1, 100)
	identity := r.Identity()
	for _, c := range []struct{ through, floor Seq }{{0, 1}, {1, 2}, {1, 2}, {40, 41}, {7, 41}, {98, 99}} {
		if err := r.Truncate(c.through); err != nil {
			t.Fatal(err)
		}
		truncated(t, r.Log, c.floor, 100)
	}
	for _, through := range []Seq{100, 101, 1 << 60} {
		if err := r.Truncate(through); !errors.Is(err, ErrInvalid) {
			t.Fatalf("through %d: %v", through, err)
		}
	}
	if err := r.Truncate(99); err != nil { // all but the newest
		t.Fatal(err)
	}
	if events, err := r.Subscribe(50).Next(t.Context(), 10); err != nil || len(events) == 0 || events[0].Seq != 50 {
		t.Fatal("what is still in memory was not handed out", err)
	}
	if err := r.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	writes(t, r.Log, 90, 20)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	report, err := Verify(testDir, Options{FS: fs}, nil)
	if err != nil || report.Floor != 100 || report.Head != 120 || report.Events != 21 {
		t.Fatalf("%+v, %v", report, err)
	}
	ro, err := OpenReadOnly(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	truncated(t, ro, 100, 120)
	if st, err := ro.Stat(); err != nil || st.Floor != 100 || st.Events != 21 || st.Series != 110 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := errors.Join(ro.Truncate(110), ro.Close()); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	l := mustOpen(t, testDir, Options{FS: fs})
	truncated(t, l, 100, 120)
	if !bytes.Equal(l.Identity(), identity) {
		t.Fatal("the log has another identity")
	}
	var below *TruncatedError
	if _, err := l.Subscribe(50).Next(t.Context(), 1); !errors.As(err, &below) || below.Seq != 50 {
		t.Fatal(err)
	}
	if err := l.Truncate(110); err != nil { // without Run, as the tool does
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, testDir, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
	truncated(t, l, 111, 120)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// L9: beside appends and readers, no reader sees a hole: it goes on from event to event, or is told that it is below the floor.
func TestL9_TruncateBesideReaders(t *testing.T) {
	noLeak(t)
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem(), TailBytes: 1}))
	var all sync.WaitGroup
	var ended atomic.Bool
	var told atomic.Int64
	for range 3 {
		all.Go(func() {
			for !ended.Load() {
				rd := r.NewReader(0)
				for {
					e, err := rd.Next()
					var below *TruncatedError
					if errors.As(err, &below) {
						told.Add(1)
						break
					}
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Errorf("%v: %v", rd, err)
						return
					}
					if _, err := r.FirstAt(e.LogTime); e.Seq%97 == 0 && err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 60 {
		head := writes(t, r.Log, 20*i, 20)
		if err := r.Truncate(head - Seq(i%15) - 1); err != nil {
			t.Fatal(err)
		}
	}
	ended.Store(true)
	all.Wait()
	t.Logf("readers were told %d times", told.Load())
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// L1, L9: a crash at any operation while the log is truncated leaves the old floor or the new one, and everything from it on.
func TestL9_CrashEnumeration(t *testing.T) {
	noLeak(t)
	for _, percent := range []int{0, 50, 100} {
		var floor atomic.Uint64 // acknowledged
		floors := make(map[Seq]int)
		var mu sync.Mutex
		least := []Seq{}
		fs := vfs.NewCrashableMem()
		p := &promise{}
		cam := &camera{fs: fs, percent: percent, rng: rand.New(rand.NewPCG(1, uint64(percent))), promise: p, every: 1}
		note := injector(func(op errorfs.Op) error {
			if isWrite(op) {
				mu.Lock()
				least = append(least, Seq(floor.Load()))
				mu.Unlock()
			}
			return cam.MaybeError(op)
		})
		r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(fs, note)}))
		for i := range 6 {
			workload(r.Log, p, 1, 3, 40_000)
			through := r.Head() - Seq(i)
			if err := r.Truncate(through - 1); err != nil {
				t.Fatal(err)
			}
			floor.Store(uint64(through))
			if i%2 == 1 {
				if err := r.Reclaim(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if len(least) != len(cam.images) {
			t.Fatalf("%d images, %d floors", len(cam.images), len(least))
		}
		for i, im := range cam.images {
			l, err := Open(testDir, Options{FS: im.fs})
			if err != nil {
				t.Fatalf("crash at %s: %v", im.op, err)
			}
			if l.Floor() < least[i] {
				t.Fatalf("crash at %s: the floor is %d, and was %d", im.op, l.Floor(), least[i])
			}
			floors[l.Floor()]++
			for _, e := range readAll(t, l, 0) {
				if want, ok := im.acked[e.Seq]; ok && !bytes.Equal(bodyBytes(t, e.Body), bodyBytes(t, want)) {
					t.Fatalf("crash at %s: sequence %d: %s", im.op, e.Seq, cmp.Diff(want, e.Body, compareLabels))
				}
			}
			for seq := range im.acked {
				if seq > l.Head() {
					t.Fatalf("crash at %s: sequence %d was acknowledged; the log ends at %d", im.op, seq, l.Head())
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if len(floors) < 6 { // 7 but for one: errorfs does not look into a WAL that was recycled
			t.Fatalf("floors found: %v", floors)
		}
		t.Logf("%d%%: %d crashes", percent, len(cam.images))
	}
}

type injector func(errorfs.Op) error

func (f injector) String() string                 { return "injector" }
func (f injector) MaybeError(op errorfs.Op) error { return f(op) }

// L4: a truncation whose write or fsync fails poisons like an append, loses nothing that was acknowledged, and returns.
func TestL9_FailureOfTruncationPoisons(t *testing.T) {
	for name, match := range map[string]func(errorfs.Op) bool{
		"write": func(op errorfs.Op) bool { return isWAL(op) && op.Kind == errorfs.OpFileWrite },
		"fsync": func(op errorfs.Op) bool { return isWAL(op) && isSync(op) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			var on atomic.Bool
			f := injector(func(op errorfs.Op) error {
				if on.Load() && match(op) {
					return &errno{syscall.EIO, op.Path}
				}
				return nil
			})
			r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(fs, f)}))
			writes(t, r.Log, 0, 30)
			on.Store(true)
			if err := r.Truncate(20); !errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
			if _, err := r.Append(context.Background(), &Tick{}); !errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
			image := fs.CrashClone(vfs.CrashCloneCfg{})
			if err := <-r.done; !errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			l := mustOpen(t, testDir, Options{FS: image})
			if floor := l.Floor(); floor != 1 && floor != 21 || l.Head() != 30 {
				t.Fatalf("%d to %d", floor, l.Head())
			}
			truncated(t, l, l.Floor(), 30)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// L7, L9: a truncated log whose first event is gone, or is not the one that followed what was removed, is refused.
func TestL9_StartChecksTheFloor(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	writes(t, r.Log, 0, 30)
	if err := r.Truncate(20); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	change := func(m meta, drop Seq) error {
		image := fs.CrashClone(vfs.CrashCloneCfg{})
		db, err := pebble.Open(testDir+"/store", &pebble.Options{FS: image, FormatMajorVersion: pebble.FormatNewest})
		if err != nil {
			t.Fatal(err)
		}
		if m.floor > 0 {
			err = db.Set([]byte{prefixMeta}, m.encode(), pebble.Sync)
		}
		if drop > 0 {
			err = errors.Join(err, db.Delete(eventKey(drop), pebble.Sync))
		}
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		l, err := Open(testDir, Options{FS: image})
		if err == nil {
			t.Error("opened", l.Close())
		}
		return err
	}
	for name, err := range map[string]error{
		"another predecessor": change(meta{floor: 21, prev: Hash{1}}, 0),
		"a lower floor":       change(meta{floor: 20, prev: Hash{1}}, 0),
		"no first event":      change(meta{}, 21),
		"another format":      change(meta{floor: 1}, 0),
	} {
		var damage *CorruptionError
		if !errors.As(err, &damage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FirstAt finds the event by its log time, at both ends and in a truncated log.
func TestFirstAt(t *testing.T) {
	noLeak(t)
	var now atomic.Int64
	r := start(mustOpen(t, testDir, Options{
		FS: vfs.NewMem(), Now: func() time.Time { return time.UnixMilli(1000) },
		Monotonic: func() time.Duration { return time.Duration(now.Load()) * time.Millisecond },
	}))
	for i := range 50 {
		now.Store(int64(10 * (i / 2))) // two events at a time
		if _, err := r.Append(context.Background(), &Tick{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(at int64, want Seq) {
		t.Helper()
		if got, err := r.FirstAt(at); err != nil || got != want {
			t.Errorf("at %d: %d, %v; want %d", at, got, err, want)
		}
	}
	check(-5, 1)
	check(1000, 1)
	check(1001, 3)
	check(1240, 49)
	check(1241, 51)
	if err := r.Truncate(30); err != nil {
		t.Fatal(err)
	}
	check(-5, 31)
	check(1241, 51)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// The meta record of a log that was never truncated is what it always was; that of a truncated one is longer, and longer than the first
// release made it, which did not know when the log began.
func TestMetaRecord(t *testing.T) {
	for _, c := range []struct {
		m    meta
		want string
	}{
		{meta{floor: 1, seed: 0x0102030405060708}, "01" + "0000000000000001" + "0102030405060708"},
		{
			meta{floor: 300, seed: 9, prev: Hash{15: 0xab}, newest: -2, began: 256},
			"01" + "000000000000012c" + "0000000000000009" + "000000000000000000000000000000ab" + "fffffffffffffffe" + "0000000000000100",
		},
	} {
		b := c.m.encode()
		if got := fmt.Sprintf("%x", b); got != c.want {
			t.Errorf("%s, not %s", got, c.want)
		}
		if back, err := decodeMeta(b); err != nil || back != c.m {
			t.Error(back, err)
		}
		for n := range b {
			m, err := decodeMeta(b[:n])
			if first := n == metaSize+truncatedSize; first != (err == nil) {
				t.Errorf("%d of %d bytes: %v", n, len(b), err)
			} else if want := c.m; first {
				if want.began = beganUnknown; m != want {
					t.Errorf("of the first release: %+v", m)
				}
			}
		}
	}
}

// Where the first write begins is known however often it is truncated, also after a restart; and is not where a truncation by the first
// release did not look.
func TestBegan(t *testing.T) {
	fs := vfs.NewMem()
	open := func() *running {
		return start(mustOpen(t, testDir, Options{FS: fs}))
	}
	began := func(r *running, want int64) {
		t.Helper()
		if got, err := r.Began(); got != want || err != nil {
			t.Errorf("began at %d, %v; not %d", got, err, want)
		}
	}
	r := open()
	tick := func() {
		if _, err := r.Append(t.Context(), &Tick{}); err != nil {
			t.Fatal(err)
		}
	}
	write := func(at int64) {
		ref, err := r.Dictionary().Resolve(Hash{1}, labels.FromStrings("__name__", "m"))
		if err != nil {
			t.Fatal(err)
		}
		b := NewWriteBuilder()
		b.Series(ref)
		b.Sample(at+10, 1)
		b.Sample(at, 1)
		if _, err := r.Append(t.Context(), b.Finish()); err != nil {
			t.Fatal(err)
		}
	}
	restart := func() {
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = open()
	}
	tick()
	tick()
	began(r, math.MaxInt64)
	if err := r.Truncate(1); err != nil { // of what was no write
		t.Fatal(err)
	}
	began(r, math.MaxInt64)
	restart()
	began(r, math.MaxInt64)
	write(3000)
	write(4000)
	began(r, 3000)
	restart()
	if err := r.Truncate(r.Head() - 1); err != nil {
		t.Fatal(err)
	}
	began(r, 3000)
	write(5000)
	restart()
	began(r, 3000)
	if err := r.Truncate(r.Head() - 1); err != nil {
		t.Fatal(err)
	}
	restart()
	began(r, 3000)
	o := *r.origin.Load()
	o.began = beganUnknown
	r.origin.Store(&o)
	r.began.known = false
	began(r, math.MinInt64)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// The largest sample time below the floor is that of all events that were ever truncated, also after a restart; a damaged
// event is truncated with the others, and from then on it is not known.
func TestOrigin(t *testing.T) {
	noLeak(t)
	fs := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	origin := func(l *Log, floor Seq, newest int64) {
		t.Helper()
		if f, n := l.Origin(); f != floor || n != newest {
			t.Fatalf("begins at %d behind samples to %d, not at %d behind samples to %d", f, n, floor, newest)
		}
	}
	origin(r.Log, 1, math.MinInt64)
	if _, err := r.Append(t.Context(), &Tick{}); err != nil {
		t.Fatal(err)
	}
	writes(t, r.Log, 50, 10) // sequences 2 to 11, times 50 to 59
	writes(t, r.Log, 0, 10)  // sequences 12 to 21, times 0 to 9
	for _, c := range []struct {
		through Seq
		newest  int64
	}{{1, math.MinInt64}, {2, 50}, {11, 59}, {15, 59}} {
		if err := r.Truncate(c.through); err != nil {
			t.Fatal(err)
		}
		origin(r.Log, c.through+1, c.newest)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, testDir, Options{FS: fs})
	origin(l, 16, 59)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(testDir+"/store", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set(eventKey(17), []byte("\x01damage"), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	r = start(mustOpen(t, testDir, Options{FS: fs}))
	if err := r.Truncate(18); err != nil {
		t.Fatal(err)
	}
	origin(r.Log, 19, math.MaxInt64)
	if err := r.Truncate(19); err != nil {
		t.Fatal(err)
	}
	origin(r.Log, 20, math.MaxInt64)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}
