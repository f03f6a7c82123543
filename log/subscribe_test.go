package log

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/prometheus/model/labels"
)

// TestL5_InvisibleBeforeFsync holds the fsync of an append: neither readers nor subscribers nor the head show the event,
// although the store does.
func TestL5_InvisibleBeforeFsync(t *testing.T) {
	noLeak(t)
	var mu sync.Mutex
	var gate chan struct{}
	held := make(chan struct{}, 100)
	hold := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if isWAL(op) && isSync(op) {
			mu.Lock()
			g := gate
			mu.Unlock()
			if g != nil {
				held <- struct{}{}
				<-g
			}
		}
		return nil
	})
	r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(vfs.NewMem(), hold)}))
	ctx := context.Background()
	if _, err := r.Append(ctx, &Tick{}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	gate = make(chan struct{})
	mu.Unlock()
	sub := r.Subscribe(2)
	got := make(chan []*Event, 1)
	go func() {
		events, _ := sub.Next(ctx, 10)
		got <- events
	}()
	acked := make(chan Seq, 1)
	b := NewWriteBuilder()
	b.Series(resolve(t, r.Dictionary(), series(1)))
	b.Sample(1, 1)
	w := b.Finish()
	go func() {
		seq, _ := r.Append(ctx, w)
		acked <- seq
	}()
	<-held
	// The WAL is synced beside the insertion into the memtable, which may end later.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		last, err := lastSeq(&r.store)
		if err == nil && last == 2 {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Errorf("the event is not in the store: %d, %v", last, err)
			break
		}
	}
	if head := r.Head(); head != 1 {
		t.Errorf("head is %d", head)
	}
	if events := readAll(t, r.Log, 1); len(events) != 1 {
		t.Errorf("a reader sees %d events", len(events))
	}
	if err := r.Dictionary().All(func(ref SeriesRef, _ labels.Labels) bool { t.Errorf("series %d is listed", ref); return true }); err != nil {
		t.Error(err)
	}
	select {
	case events := <-got:
		t.Errorf("a subscriber got %d events", len(events))
	case seq := <-acked:
		t.Errorf("sequence %d is acknowledged", seq)
	default:
	}
	mu.Lock()
	close(gate)
	gate = nil
	mu.Unlock()
	if seq := <-acked; seq != 2 {
		t.Errorf("acknowledged %d", seq)
	}
	if events := <-got; len(events) != 1 || events[0].Body != Body(w) {
		t.Errorf("the subscriber got %v", events)
	}
	n := 0
	if err := r.Dictionary().All(func(SeriesRef, labels.Labels) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("%d series are listed: %v", n, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestL2_SubscribersFollow: subscribers that begin anywhere, with a tail so small that most events come from disk, see the
// same events in order while writers run, and ErrClosed at the end.
func TestL2_SubscribersFollow(t *testing.T) {
	noLeak(t)
	const total = 600
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem(), TailBytes: 3000}))
	ctx := context.Background()
	got := make([][]*Event, 4)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			sub := r.Subscribe(Seq(i * 50))
			for {
				events, err := sub.Next(ctx, 1+7*i)
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil || len(events) == 0 || len(events) > 1+7*i {
					t.Error(len(events), err)
					return
				}
				got[i] = append(got[i], events...)
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range total / 3 {
				if _, err := r.Append(ctx, &Plan{Spec: make([]byte, rng.IntN(200))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	want := readAll(t, r.Log, 1)
	if m := r.Metrics(); m.Events != total || m.TailBytes > 3000 || m.TailEvents == 0 || m.Head != total {
		t.Errorf("%+v", m)
	}
	r.cancel()
	all.Wait()
	for i := range got {
		from := max(1, i*50)
		if len(got[i]) != total-from+1 {
			t.Fatalf("subscriber %d got %d events", i, len(got[i]))
		}
		for j, e := range got[i] {
			sameEvent(t, e, want[from-1+j])
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestSubscription_Ends: by its context, and by poison after what was durable.
func TestSubscription_Ends(t *testing.T) {
	noLeak(t)
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem()}))
	sub := r.Subscribe(0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := sub.Next(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := r.Append(context.Background(), &Tick{}); err != nil {
		t.Fatal(err)
	}
	r.setPoison(io.ErrClosedPipe)
	if events, err := sub.Next(context.Background(), 1); err != nil || len(events) != 1 {
		t.Error(events, err)
	}
	if _, err := sub.Next(context.Background(), 1); !errors.Is(err, ErrPoisoned) || !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if err := r.stop(); !errors.Is(err, ErrPoisoned) {
		t.Error(err)
	}
}

// TestAppend_Ends: an append without Run ends with its context or with Close; one that was accepted is answered.
func TestAppend_Ends(t *testing.T) {
	noLeak(t)
	l := mustOpen(t, testDir, Options{FS: vfs.NewMem()})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Append(ctx, &Tick{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got := make(chan error)
	go func() {
		_, err := l.Append(context.Background(), &Drain{})
		got <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := l.NewReader(0).Next(); !errors.Is(err, io.EOF) {
		t.Error(err) // nothing is durable, so the closed store is not asked
	}
}

// spoil changes the store of a closed log behind its back.
func spoil(t *testing.T, fs vfs.FS, change func(*pebble.DB) error) {
	t.Helper()
	opts := Options{FS: fs}.withDefaults()
	db, err := pebble.Open(testDir+"/store", pebbleOptions(opts, newStoreGuard(opts.Logger), testDir+"/store"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(change(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestL2_VerifyNamesTheFirstDamage: a hole, a swapped event, a changed byte, a definition that went astray; each is named by
// its sequence, by Verify and, in the log, by a reader; a start finds it where the HEAD note does not cover it.
func TestL2_VerifyNamesTheFirstDamage(t *testing.T) {
	noLeak(t)
	mem := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: mem}))
	b := NewWriteBuilder()
	for i := range 20 {
		b.Reset()
		b.Series(resolve(t, r.Dictionary(), series(i%7)))
		b.Sample(int64(i), float64(i))
		if _, err := r.Append(context.Background(), b.Finish()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	report, err := Verify(testDir, Options{FS: clone(mem)}, nil)
	if err != nil || report.Events != 20 || report.Samples != 20 || report.Series != 7 || report.Head != 20 || report.EventBytes == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for name, damage := range map[string]struct {
		seq    Seq
		reason string
		change func(*pebble.DB) error
	}{
		"hole":  {9, "missing", func(db *pebble.DB) error { return db.Delete(eventKey(9), pebble.Sync) }},
		"first": {1, "first event", func(db *pebble.DB) error { return db.Delete(eventKey(1), pebble.Sync) }},
		"copy": {12, "crc32c", func(db *pebble.DB) error {
			v, c, err := db.Get(eventKey(11))
			if err != nil {
				return err
			}
			return errors.Join(db.Set(eventKey(12), v, pebble.Sync), c.Close())
		}},
		"other event with a right crc": {6, "predecessor hash", func(db *pebble.DB) error {
			e, err := r5(db)
			if err != nil {
				return err
			}
			e.WallTime++
			raw, err := AppendEvent(nil, e)
			if err != nil {
				return err
			}
			return db.Set(eventKey(5), raw, pebble.Sync)
		}},
		"dictionary": {3, "series 3", func(db *pebble.DB) error { return db.Delete(seriesKey(3), pebble.Sync) }},
		"end":        {0, "ends at sequence 19", func(db *pebble.DB) error { return db.Delete(eventKey(20), pebble.Sync) }},
	} {
		fs := clone(mem)
		spoil(t, fs, damage.change)
		_, err := Verify(testDir, Options{FS: fs}, nil)
		var found *CorruptionError
		if err == nil || !strings.Contains(err.Error(), damage.reason) || errors.As(err, &found) && found.Seq != damage.seq {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func r5(db *pebble.DB) (*Event, error) {
	v, c, err := db.Get(eventKey(5))
	if err != nil {
		return nil, err
	}
	e, err := DecodeEvent(5, v)
	return e, errors.Join(err, c.Close())
}

// TestL7_ReaderStopsAtDamage: what is before the damage is read, then it is named, again and again; a subscriber that reads
// from disk gets the same.
func TestL7_ReaderStopsAtDamage(t *testing.T) {
	noLeak(t)
	l := mustOpen(t, testDir, Options{FS: crashImage(t, 30, false).fs})
	if err := l.store.db.Delete(eventKey(17), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	var damage *CorruptionError
	r := l.NewReader(5)
	for want := Seq(5); want < 17; want++ {
		if e, err := r.Next(); err != nil || e.Seq != want {
			t.Fatal(e, err)
		}
	}
	for range 3 {
		if e, err := r.Next(); !errors.As(err, &damage) || damage.Seq != 17 {
			t.Fatal(e, err)
		}
	}
	sub := l.Subscribe(10)
	if events, err := sub.Next(context.Background(), 100); err != nil || len(events) != 7 {
		t.Fatal(len(events), err)
	}
	if _, err := sub.Next(context.Background(), 100); !errors.As(err, &damage) || damage.Seq != 17 {
		t.Fatal(err)
	}
	if _, err := l.NewReader(18).Next(); !errors.As(err, &damage) || damage.Seq != 17 {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDiskBytesGrowWithTheWAL: what is written counts at once, and not only when it has become a table.
func TestDiskBytesGrowWithTheWAL(t *testing.T) {
	noLeak(t)
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem()}))
	rng := rand.New(rand.NewPCG(3, 4))
	spec := make([]byte, 50_000)
	for range 10 {
		for i := range spec {
			spec[i] = byte(rng.Uint32()) // does not compress
		}
		if _, err := r.Append(t.Context(), &Plan{Spec: slices.Clone(spec)}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := r.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const beside = 4 << 10 // the log's own note, and what frames a WAL
	if m := r.Metrics(); m.DiskBytes < 500_000 || int64(m.DiskBytes) < s.DiskBytes-beside || int64(m.DiskBytes) > s.DiskBytes+beside {
		t.Errorf("%d bytes, the files have %d", m.DiskBytes, s.DiskBytes)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenReadOnly changes nothing, takes the lock, and says what is there.
func TestOpenReadOnly(t *testing.T) {
	noLeak(t)
	if _, err := OpenReadOnly(testDir, Options{FS: vfs.NewMem()}); !errors.Is(err, ErrNotALog) {
		t.Error(err)
	}
	im := crashImage(t, 10, false)
	before := contents(t, im.fs)
	l, err := OpenReadOnly(testDir, Options{FS: im.fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(context.Background(), &Tick{}); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if err := l.Run(context.Background()); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if _, err := Open(testDir, Options{FS: im.fs}); !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	s, err := l.Stat()
	if err != nil || s.Events != 10 || s.Head != 10 || s.Floor != 1 || s.FirstTime > s.LastTime || s.DiskBytes < 20_000 || len(s.Files) < 4 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for path, b := range contents(t, im.fs) {
		if before[path] != b {
			t.Errorf("%s has changed", path)
		}
	}
}

// TestDumpJSON: one line of JSON an event, with what JSON cannot hold as strings.
func TestDumpJSON(t *testing.T) {
	events, _ := goldenLog(t)
	var out bytes.Buffer
	for _, e := range events {
		lookup := func(ref SeriesRef) (labels.Labels, bool) { return series(int(ref) - 1), true }
		if err := DumpJSON(&out, e, lookup); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(events) {
		t.Fatalf("%d lines for %d events", len(lines), len(events))
	}
	for i, line := range lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["seq"] != float64(i+1) || m["kind"] != events[i].Body.Kind().String() {
			t.Errorf("%s", line)
		}
	}
	for i, want := range map[int]string{
		2:  `"samples":[[1500,-0],[2000,0.1],[2000,"-Inf"]]`,
		1:  `"labels":{"__name__":"m","i":"0"},"samples":[[1000,0]]`,
		13: `"plan":{"a":1}`,
		15: `"expired":{"stream":"fedcba9876543210","origin_ms":-500,"width_ms":15000,"through_ms":1699999994500}`,
		16: `"heal":{"through_seq":300,"from_seq":7}`,
		17: `"experiment":"run-7","compacted":{"through":300,"pieces":12,"read_bytes":70000,"written_bytes":9000}`,
		19: `"retired":{"at_version":299,"last_write_ms":1700000000000,"closed_through_ms":null,"parts":[{"shard":0,"series":1,"samples":300,"buckets":20},`,
		20: `"task":{"id":"01000000000000000000000002","kind":"compact","target":"run-7","options":"min_pieces=2","manual":true}`,
		23: `"failed":true,"class":"timeout","message":"the disk is slow","version":5}`,
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("%s\ndoes not hold\n%s", lines[i], want)
		}
	}
	if !strings.Contains(lines[2], `[-5,"NaN(0x7ff0000000000002)",7]`) {
		t.Errorf("%s", lines[2])
	}
}
