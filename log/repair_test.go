package log

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// patient is a log that was stopped, with tables and a WAL, and what it holds.
type patient struct {
	fs       *vfs.MemFS
	encoded  [][]byte // by sequence, from 1
	samples  []int    // likewise
	identity string
}

const patientEvents = 90

// newPatient makes a log of writes with samples and fillers; two thirds of it lie in tables, the rest in a WAL.
func newPatient(t testing.TB) patient {
	t.Helper()
	p := patient{fs: vfs.NewCrashableMem()}
	r := start(mustOpen(t, testDir, Options{FS: p.fs}))
	rng := rand.New(rand.NewPCG(11, 12))
	b := NewWriteBuilder()
	for i := range patientEvents {
		var body Body = filler(rng)
		if i%3 == 0 {
			b.Reset()
			for k := range 5 {
				b.Series(resolve(t, r.Dictionary(), series(i/2+k)))
				b.Sample(int64(i), rng.Float64())
			}
			body = b.Finish()
		}
		if _, err := r.Append(context.Background(), body); err != nil {
			t.Fatal(err)
		}
		if i == patientEvents/3 || i == 2*patientEvents/3 {
			if err := r.store.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, e := range readAll(t, r.Log, 1) {
		raw, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if w, ok := e.Body.(*Write); ok {
			n = len(w.Times)
		}
		p.encoded, p.samples = append(p.encoded, raw), append(p.samples, n)
	}
	p.identity = string(r.Identity())
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	return p
}

// check repairs fs and checks everything that a repair promises. It returns the report.
func (p patient) check(t *testing.T, fs *vfs.MemFS, what string) RepairReport {
	t.Helper()
	before := contents(t, fs)
	report, err := Repair(testDir, Options{FS: fs}, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	p.checkRepaired(t, fs, what, report.NewIdentity)
	if report.Damage == "" {
		t.Fatalf("%s: no damage found", what)
	}
	for name, content := range before { // nothing is deleted (L7)
		aside := report.Aside + strings.TrimPrefix(name, testDir)
		if got := string(readFile(t, fs, aside)); got != content {
			t.Errorf("%s: %s is not what %s was", what, aside, name)
		}
	}
	kept := int(report.Kept.Head)
	if got := string(readFile(t, fs, report.Aside+"/LOST")); !strings.Contains(got, "Kept: ") || kept > 0 && !strings.Contains(got, fmt.Sprintf("sequences 1 to %d", kept)) {
		t.Errorf("%s: LOST says %q", what, got)
	}
	if kept < len(p.encoded) && (report.FirstLost != Seq(kept+1) || report.LastLost != patientEvents) {
		t.Errorf("%s: kept %d of %d, lost %d to %d", what, kept, len(p.encoded), report.FirstLost, report.LastLost)
	}
	if report.Readable > report.Lost() {
		t.Errorf("%s: %d of %d lost events can be read", what, report.Readable, report.Lost())
	}
	samples := 0
	for _, n := range p.samples[kept:] {
		samples += n
	}
	if report.ReadableSamples > uint64(samples) || report.Readable == report.Lost() && report.ReadableSamples != uint64(samples) {
		t.Errorf("%s: %d samples in %d of %d lost events, which held %d", what, report.ReadableSamples, report.Readable, report.Lost(), samples)
	}
	return report
}

// checkRepaired wants a log that opens, is a prefix bit for bit, verifies and goes on.
func (p patient) checkRepaired(t *testing.T, fs *vfs.MemFS, what string, newIdentity bool) {
	t.Helper()
	if _, err := Verify(testDir, Options{FS: fs}, nil); err != nil {
		t.Fatalf("%s: after the repair: %v", what, err)
	}
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	events := readAll(t, r.Log, 1)
	for i, e := range events {
		raw, err := AppendEvent(nil, e)
		if err != nil || string(raw) != string(p.encoded[i]) {
			t.Fatalf("%s: event %d is another one (%v)", what, i+1, err)
		}
	}
	if same := string(r.Identity()) == p.identity; same == newIdentity {
		t.Errorf("%s: the identity of the log: same %v, announced new %v", what, same, newIdentity)
	}
	b := NewWriteBuilder()
	for i := range 50 { // some of these were defined by events that are lost, some by events that are not
		b.Series(resolve(t, r.Dictionary(), series(i)))
		b.Sample(1, 1)
	}
	if seq, err := r.Append(context.Background(), b.Finish()); err != nil || seq != Seq(len(events)+1) {
		t.Fatalf("%s: append after the repair: %d, %v", what, seq, err)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if _, err := Verify(testDir, Options{FS: fs}, nil); err != nil {
		t.Fatalf("%s: after going on: %v", what, err)
	}
}

// overwrite changes a file so that it stays changed after a crash.
func overwrite(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	writeFile(t, fs, name, b)
	if err := syncDir(fs, path.Dir(name)); err != nil {
		t.Fatal(err)
	}
}

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// TestRepair_FlippedBits: a bit flips anywhere in any table or WAL.
func TestRepair_FlippedBits(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	store := testDir + "/store"
	places := append(files(t, p.fs, store, isTable), newestWAL(t, p.fs))
	if len(places) < 3 {
		t.Fatalf("files: %v", places)
	}
	kept := map[int]int{}
	var behind uint64 // events that were read behind damage in a WAL
	for _, name := range places {
		size := len(readFile(t, p.fs, name))
		for i := range 12 {
			fs := clone(p.fs)
			b := readFile(t, fs, name)
			at := (2*i + 1) * size / 24
			b[at] ^= 0x20
			overwrite(t, fs, name, b)
			what := fmt.Sprintf("%s, bit flipped at %d of %d", path.Base(name), at, size)
			if _, err := Verify(testDir, Options{FS: fs}, nil); err == nil {
				continue // in a part that is never read, such as a filter
			}
			if _, err := Repair(testDir, Options{FS: clone(fs)}, nil); err != nil && strings.Contains(err.Error(), "no prefix") {
				kept[0]++ // the first event is hit, or the table's index
				continue
			}
			report := p.check(t, fs, what)
			kept[int(report.Kept.Head)]++
			if !isTable(name) {
				behind += report.Readable
			}
		}
	}
	if len(kept) < 10 || kept[0] > 4 || behind == 0 {
		t.Errorf("the prefixes have only these lengths: %v; %d events read behind damage", kept, behind)
	}
	t.Log(kept)
}

// TestRepair_MissingAndCut: files are gone or shorter. Where the events are all there, all are kept.
func TestRepair_MissingAndCut(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	store := testDir + "/store"
	inTables := 2*patientEvents/3 + 1
	prefix := func(s string) func(string) bool { return func(n string) bool { return strings.HasPrefix(n, s) } }
	for name, c := range map[string]struct {
		dir    string
		match  func(string) bool
		change func(fs vfs.FS, path string) error
		kept   int
	}{
		"missing WAL":      {store, func(n string) bool { return strings.HasSuffix(n, ".log") }, nil, inTables},
		"missing MANIFEST": {store, prefix("MANIFEST"), nil, patientEvents},
		"missing markers":  {store, prefix("marker."), nil, patientEvents},
		"missing note":     {testDir, prefix("HEAD"), nil, patientEvents},
		"cut WAL": {store, func(n string) bool { return strings.HasSuffix(n, ".log") }, func(fs vfs.FS, path string) error {
			b := readFile(t, fs, path)
			writeFile(t, fs, path, b[:len(b)/2])
			return nil
		}, 0},
		"missing tables": {store, isTable, nil, 0},
		"cut tables": {store, isTable, func(fs vfs.FS, path string) error {
			b := readFile(t, fs, path)
			writeFile(t, fs, path, b[:len(b)/2])
			return nil
		}, 0},
	} {
		fs := clone(p.fs)
		for _, path := range files(t, fs, c.dir, c.match) {
			change := c.change
			if change == nil {
				change = vfs.FS.Remove
			}
			if err := change(fs, path); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasSuffix(name, " tables") { // the key of the log is in them, and the first event
			before := contents(t, fs)
			report, err := Repair(testDir, Options{FS: fs}, nil)
			if err == nil || report.Aside != "" || len(contents(t, fs)) != len(before) {
				t.Errorf("%s: %v, %+v", name, err, report)
			}
			continue
		}
		report := p.check(t, fs, name)
		t.Logf("%s:\n%s", name, report.String())
		if c.kept > 0 && int(report.Kept.Head) != c.kept {
			t.Errorf("%s: kept %d, not %d", name, report.Kept.Head, c.kept)
		}
		if name == "cut WAL" && (int(report.Kept.Head) <= inTables || int(report.Kept.Head) >= patientEvents) {
			t.Errorf("%s: kept %d", name, report.Kept.Head)
		}
		if (name == "missing note") != report.HeadUnknown {
			t.Errorf("%s: HeadUnknown is %v", name, report.HeadUnknown)
		}
	}
}

// TestRepair_LeavesASoundLogAlone: nothing to repair, and not one byte changes. Nor does it where Repair refuses.
func TestRepair_LeavesASoundLogAlone(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	unchanged := func(fs *vfs.MemFS, what string) (RepairReport, error) {
		before := contents(t, fs)
		report, err := Repair(testDir, Options{FS: fs}, nil)
		after := contents(t, fs)
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("%s: %s has changed", what, name)
			}
		}
		if len(before) != len(after) {
			t.Errorf("%s: %d files became %d", what, len(before), len(after))
		}
		return report, err
	}
	report, err := unchanged(p.fs, "sound")
	if err != nil || report.Damage != "" || report.Kept.Events != patientEvents || report.Lost() != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	fs := clone(p.fs)
	l := mustOpen(t, testDir, Options{FS: fs})
	if _, err := Repair(testDir, Options{FS: fs}, nil); !errors.Is(err, ErrLocked) {
		t.Errorf("locked: %v", err)
	}
	if err := l.store.db.Set(eventKey(patientEvents+1), reseal(patientEvents+1, p.encoded[patientEvents-1], func(b []byte) {
		b[offKind] = 200
		h := EventHash(p.encoded[patientEvents-1])
		copy(b[offPrev:], h[:])
	}), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := unchanged(fs, "newer kind"); !errors.Is(err, ErrUnknownKind) {
		t.Errorf("newer kind: %v", err)
	}
	fs = clone(p.fs)
	if err := fs.RemoveAll(testDir + "/store"); err != nil {
		t.Fatal(err)
	}
	if _, err := unchanged(fs, "no store"); !errors.Is(err, ErrNotALog) {
		t.Errorf("no store: %v", err)
	}
}

// TestRepair_WrongPredecessor: an event is whole, and yet not the one that belongs there (L2). Where another file still holds
// the right one, nothing is lost; where none does, the prefix ends before it.
func TestRepair_WrongPredecessor(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	const at = 50
	for _, overwritten := range []bool{false, true} {
		fs := clone(p.fs)
		l := mustOpen(t, testDir, Options{FS: fs})
		forged := reseal(at, p.encoded[at-1], func(b []byte) { b[offPrev] ^= 1 })
		if err := l.store.db.Set(eventKey(at), forged, pebble.Sync); err != nil {
			t.Fatal(err)
		}
		want := patientEvents
		if overwritten {
			if err := l.store.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
				t.Fatal(err)
			}
			want = at - 1
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		var damage *CorruptionError
		if _, err := Verify(testDir, Options{FS: fs}, nil); !errors.As(err, &damage) || damage.Seq != at {
			t.Fatalf("overwritten %v: %v", overwritten, err)
		}
		report := p.check(t, fs, fmt.Sprintf("overwritten %v", overwritten))
		if int(report.Kept.Head) != want {
			t.Errorf("overwritten %v: kept %d, not %d", overwritten, report.Kept.Head, want)
		}
	}
}

// TestRepair_Truncated: the log begins at a floor; the series that the events below it defined are kept with it.
func TestRepair_Truncated(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	const floor = 20
	l := mustOpen(t, testDir, Options{FS: p.fs})
	if err := l.Truncate(floor - 1); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.store.db.Flush(), l.Close()); err != nil {
		t.Fatal(err)
	}
	last := newestWAL(t, p.fs)
	for _, name := range files(t, p.fs, testDir+"/store", isTable) {
		if len(readFile(t, p.fs, name)) > 1<<16 { // it holds events, not just the record of the truncation
			last = name
		}
	}
	raw := readFile(t, p.fs, last)
	raw[len(raw)*2/3] ^= 1
	writeFile(t, p.fs, last, raw)
	report, err := Repair(testDir, Options{FS: p.fs}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.String())
	if report.Kept.Floor != floor || report.Kept.Head < floor || report.Kept.Head >= patientEvents || report.NewIdentity {
		t.Fatalf("%+v", report)
	}
	l = mustOpen(t, testDir, Options{FS: p.fs})
	for _, e := range readAll(t, l, floor) {
		if w, ok := e.Body.(*Write); ok {
			for _, ref := range w.Refs {
				if _, ok, err := l.Dictionary().Labels(ref); !ok || err != nil {
					t.Errorf("event %d: series %d has no labels: %v", e.Seq, ref, err)
				}
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRepair_CrashEnumeration crashes a repair at every operation that writes. A start is refused or finds the prefix; never
// anything else. The next repair brings the log to that prefix, and what was moved aside is there.
func TestRepair_CrashEnumeration(t *testing.T) {
	noLeak(t)
	p := newPatient(t)
	wal := newestWAL(t, p.fs)
	b := readFile(t, p.fs, wal)
	b[len(b)/2] ^= 4
	overwrite(t, p.fs, wal, b)
	damaged := contents(t, p.fs)
	for _, percent := range []int{0, 50, 100} {
		cam := &camera{fs: clone(p.fs), percent: percent, rng: rand.New(rand.NewPCG(3, uint64(percent))), promise: &promise{}, every: 1}
		whole, err := Repair(testDir, Options{FS: errorfs.Wrap(logtest.SerialLocks(cam.fs, &cam.mu), cam)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		refusals, sound, repairs := map[string]int{}, 0, 0
		for i, im := range cam.images {
			if i%7 != 0 && strings.Contains(im.op, repairDir+"/") {
				continue // the copy is being made, and nothing else has happened
			}
			fs := clone(im.fs)
			l, err := Open(testDir, Options{FS: clone(fs)})
			switch {
			case err == nil:
				if l.Head() != whole.Kept.Head {
					t.Fatalf("crash at %s: opens at %d, not %d", im.op, l.Head(), whole.Kept.Head)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			case errors.Is(err, ErrRepairing):
				refusals["repairing"]++
			default:
				refusals["damaged"]++
			}
			report, err := Repair(testDir, Options{FS: fs}, nil)
			if err != nil {
				t.Fatalf("crash at %s: repair again: %v", im.op, err)
			}
			if report.Kept.Head != whole.Kept.Head || report.Kept.Samples != whole.Kept.Samples {
				t.Fatalf("crash at %s: %+v, not %+v", im.op, report.Kept, whole.Kept)
			}
			if report.Damage == "" {
				sound++
			} else {
				repairs++
				if report.FirstLost != whole.FirstLost || report.LastLost != whole.LastLost {
					t.Errorf("crash at %s: lost %d to %d", im.op, report.FirstLost, report.LastLost)
				}
			}
			wantAside(t, fs, damaged, im.op)
			p.checkRepaired(t, fs, im.op, false)
		}
		t.Logf("%d%%: %d images, refused %v, repaired again %d", percent, len(cam.images), refusals, repairs)
		if refusals["repairing"] == 0 || refusals["damaged"] == 0 || percent == 100 && sound == 0 {
			t.Errorf("the images do not cover the exchange: %v, %d sound", refusals, sound)
		}
	}
}

// wantAside wants every file of the damaged log in a directory beside the log.
func wantAside(t *testing.T, fs vfs.FS, damaged map[string]string, op string) {
	t.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, asidePrefix) {
			continue
		}
		missing := 0
		for file, content := range damaged {
			f, err := fs.Open(testDir + "/" + name + strings.TrimPrefix(file, testDir))
			if err != nil {
				missing++
				continue
			}
			f.Close()
			if string(readFile(t, fs, testDir+"/"+name+strings.TrimPrefix(file, testDir))) != content {
				missing++
			}
		}
		if missing == 0 {
			return
		}
	}
	t.Errorf("crash at %s: the damaged log is not whole in any of %v", op, names)
}
