package log

// Repair of a damaged log: what can be verified from the first event on is kept, the rest moved aside.

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	lossFile = "LOST"
	// repairBatchBytes is the size from which a batch of copied events is applied.
	repairBatchBytes = 4 << 20
	asideTime        = "20060102T150405Z"
)

// RepairReport says what Repair has found and done.
type RepairReport struct {
	Damage string       // what a start or Verify says of the log; empty if it is sound, and then nothing was done
	Kept   VerifyReport // the log as it is now
	Aside  string       // the directory with what was moved aside; empty if nothing was

	FirstLost, LastLost Seq    // the acknowledged events known to be lost; 0 if none is
	Readable            uint64 // of these, how many can still be read in Aside
	ReadableSamples     uint64 // the samples in the readable ones
	HeadUnknown         bool   // the HEAD note cannot be read, so events beyond LastLost may be lost as well
	NewIdentity         bool   // the key of the series hash was lost: everything folded from the log must be folded again
}

// Lost returns the number of events known to be lost.
func (r *RepairReport) Lost() uint64 {
	if r.FirstLost == 0 {
		return 0
	}
	return uint64(r.LastLost - r.FirstLost + 1)
}

// String is the report in words.
func (r *RepairReport) String() string {
	var b strings.Builder
	if r.Damage == "" {
		return fmt.Sprintf("The log is sound up to sequence %d; nothing was changed.\n", r.Kept.Head)
	}
	fmt.Fprintf(&b, "Damage: %s\n", r.Damage)
	if r.Kept.Events == 0 {
		fmt.Fprintf(&b, "Kept: no event.\n")
	} else {
		fmt.Fprintf(&b, "Kept: sequences %d to %d, %d events with %d samples.\n", r.Kept.Floor, r.Kept.Head, r.Kept.Events, r.Kept.Samples)
	}
	switch n := r.Lost(); {
	case n == 0:
		b.WriteString("Lost: no event that is known of.\n")
	default:
		fmt.Fprintf(&b, "Lost: sequences %d to %d, %d events. ", r.FirstLost, r.LastLost, n)
		fmt.Fprintf(&b, "%d of them can still be read, with %d samples", r.Readable, r.ReadableSamples)
		if n > r.Readable {
			fmt.Fprintf(&b, "; what the other %d held is unknown", n-r.Readable)
		}
		b.WriteString(".\n")
	}
	b.WriteString("Events of the last second before the damage may be missing without a trace.\n")
	if r.HeadUnknown {
		fmt.Fprintf(&b, "The %s note cannot be read: there may have been more events than are named here.\n", headFile)
	}
	if r.NewIdentity {
		b.WriteString("The key of the log is lost, and a new one was drawn: run `tidemark rebuild`.\n")
	}
	if r.Aside != "" {
		fmt.Fprintf(&b, "Moved aside: %s\n", r.Aside)
	}
	return b.String()
}

// Repair checks the log in dir like Verify and, if it is damaged, makes it the longest prefix that can be verified. What it
// replaces is moved to a directory beside it; nothing is deleted. It needs room for a copy of what is kept. progress, which may
// be nil, is told how far the check and then the copy are.
//
// It fails, with nothing changed, when the log is locked, was written by a newer version, is not a log, or when its first event
// cannot be read, so that there is nothing to keep. A repair that was cut off is completed by the next.
func Repair(dir string, opts Options, progress func(Seq)) (RepairReport, error) {
	opts = opts.withDefaults()
	if progress == nil {
		progress = func(Seq) {}
	}
	if _, err := opts.FS.Stat(dir); err != nil {
		return RepairReport{}, fmt.Errorf("log directory: %w", err)
	}
	lock, err := lockDirectory(opts.FS, dir)
	if err != nil {
		return RepairReport{}, err
	}
	r := repairer{dir: dir, opts: opts, progress: progress}
	err = r.run()
	return r.report, oneLine(errors.Join(err, lock.Close()))
}

type repairer struct {
	dir      string
	opts     Options
	progress func(Seq)
	report   RepairReport

	note headNote // as it was found; zero if it cannot be read
	end  headNote // of what is kept
}

func (r *repairer) path(name string) string { return r.opts.FS.PathJoin(r.dir, name) }

func (r *repairer) run() error {
	names, err := r.opts.FS.List(r.dir)
	if err != nil {
		return fmt.Errorf("log directory %s: %w", r.dir, err)
	}
	if !slices.Contains(names, storeDir) {
		return r.finish(names)
	}
	damage := r.verify()
	switch {
	case damage == nil:
		return nil
	case errors.Is(damage, ErrNewerFormat), errors.Is(damage, ErrUnknownVersion), errors.Is(damage, ErrUnknownKind):
		return damage
	}
	r.report.Damage = oneLine(damage).Error()
	if r.note, err = readHead(r.opts.FS, r.dir); err != nil {
		r.report.HeadUnknown = true
	}
	if err := r.copyPrefix(); err != nil {
		return errors.Join(err, r.opts.FS.RemoveAll(r.path(repairDir)))
	}
	aside, err := r.prepareAside(names)
	if err != nil {
		return err
	}
	if err := r.moveAside(aside); err != nil {
		return err
	}
	return r.putInPlace()
}

// verify is Verify under the lock that is held.
func (r *repairer) verify() error {
	exists, note, err := inspect(r.opts.FS, r.dir)
	if err != nil {
		return err
	}
	if !exists {
		return corrupt(0, "the store has gone")
	}
	l, err := openStore(r.dir, r.opts, note, newStoreGuard(r.opts.Logger), true)
	if err != nil {
		return err
	}
	r.report.Kept, err = l.verify(r.progress)
	return errors.Join(err, l.Close())
}

// copyPrefix makes store.repair: every event from the floor up to the first that is missing or not right, and the dictionary.
func (r *repairer) copyPrefix() error {
	fs, guard := r.opts.FS, newStoreGuard(r.opts.Logger)
	found, err := newSalvage(fs, r.path(storeDir), pebbleOptions(r.opts, guard, r.path(storeDir)))
	if err != nil {
		return fmt.Errorf("read %s: %w", r.path(storeDir), err)
	}
	m := found.meta
	if !found.hasKey {
		r.report.NewIdentity = true
		m.floor = 1
		if m.seed, err = newSeed(r.opts); err != nil {
			return err
		}
	}
	if err := fs.RemoveAll(r.path(repairDir)); err != nil {
		return fmt.Errorf("remove %s: %w", r.path(repairDir), err)
	}
	po := pebbleOptions(r.opts, guard, r.path(repairDir))
	po.ErrorIfExists = true
	po.DisableWAL = true // a flush makes it durable, and until then it counts for nothing
	err = guard.run(func() error {
		db, err := openPebble(r.path(repairDir), po)
		if err != nil {
			return err
		}
		return errors.Join(r.fill(db, found, m), db.Close())
	})
	if err != nil {
		return fmt.Errorf("copy what is sound to %s: %w", r.path(repairDir), err)
	}
	return r.checkCopy()
}

// fill copies into an empty store and makes it durable.
func (r *repairer) fill(db *pebble.DB, found *salvage, m meta) error {
	c := &copier{
		db: db, batch: db.NewBatch(), dict: newDictionary(nil, m.seed, 1, 1),
		v: verifier{truncated: m.floor > 1}, next: m.floor,
	}
	defer func() { c.batch.Close() }()
	if err := c.batch.Set([]byte{prefixMeta}, m.encode(), nil); err != nil {
		return err
	}
	if m.floor > 1 {
		// The events that defined the oldest series are gone with good reason.
		if err := found.entries(prefixSeries, c.oldSeries); err != nil {
			return err
		}
	}
	found.start()
	defer found.close()
	for {
		seq, raw, ok := found.next(c.next)
		if !ok || seq != c.next {
			break
		}
		err := c.add(raw)
		if errors.Is(err, ErrUnknownVersion) || errors.Is(err, ErrUnknownKind) {
			return err
		}
		var damage *CorruptionError
		if errors.As(err, &damage) {
			found.reject() // another file may hold the right one
			continue
		}
		if err != nil {
			return err
		}
		r.progress(seq)
	}
	r.count(found, c.next)
	switch {
	case c.next > m.floor:
		r.end = headNote{seq: c.next - 1, hash: c.hash}
	case r.report.FirstLost > 0 || m.floor > 1 || !found.hasKey:
		return corrupt(m.floor, "the first event cannot be read: there is no prefix to keep")
	}
	return errors.Join(c.apply(), db.Flush())
}

// count finds out what was lost from seq on.
func (r *repairer) count(found *salvage, seq Seq) {
	last := r.note.seq
	for at := seq; ; {
		got, raw, ok := found.next(at)
		if !ok {
			break
		}
		e, err := DecodeEvent(got, raw)
		if err != nil {
			found.reject()
			continue
		}
		last = max(last, got)
		r.report.Readable++
		if w, ok := e.Body.(*Write); ok {
			r.report.ReadableSamples += uint64(len(w.Times))
		}
		at = got + 1
	}
	if last >= seq {
		r.report.FirstLost, r.report.LastLost = seq, last
	}
}

// checkCopy reads the copy as a start would, and all of it.
func (r *repairer) checkCopy() error {
	l, err := openStoreAt(r.path(repairDir), r.dir, r.opts, r.end, newStoreGuard(r.opts.Logger), true)
	if err != nil {
		return err
	}
	r.report.Kept, err = l.verify(r.progress)
	if err == nil && l.Head() != r.end.seq {
		err = corrupt(r.end.seq, "the copy ends at %d", l.Head())
	}
	return errors.Join(err, l.Close())
}

// prepareAside makes the directory for what is replaced, with the note and the report in it.
func (r *repairer) prepareAside(names []string) (string, error) {
	fs := r.opts.FS
	for _, name := range names {
		if strings.HasPrefix(name, asidePrefix) && !r.holdsStore(name) {
			// Of a repair that was cut off before it moved anything.
			if err := fs.RemoveAll(r.path(name)); err != nil {
				return "", fmt.Errorf("remove %s: %w", r.path(name), err)
			}
		}
	}
	base := asidePrefix + r.opts.Now().UTC().Format(asideTime)
	name := base
	for n := 2; slices.Contains(names, name) && r.holdsStore(name); n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	r.report.Aside = r.path(name)
	if err := errors.Join(fs.MkdirAll(r.report.Aside, 0o755), syncDir(fs, r.dir)); err != nil {
		return "", fmt.Errorf("make %s: %w", r.report.Aside, err)
	}
	head, err := readWhole(fs, r.path(headFile))
	if err != nil && !oserror.IsNotExist(err) {
		return "", fmt.Errorf("read the %s note: %w", headFile, err)
	}
	if err == nil {
		err = writeSynced(fs, fs.PathJoin(r.report.Aside, headFile), head)
	} else {
		err = nil
	}
	if err = errors.Join(err, writeSynced(fs, fs.PathJoin(r.report.Aside, lossFile), []byte(r.report.String()))); err != nil {
		return "", fmt.Errorf("write to %s: %w", r.report.Aside, err)
	}
	return r.report.Aside, syncDir(fs, r.report.Aside)
}

func (r *repairer) holdsStore(name string) bool {
	_, err := r.opts.FS.Stat(r.opts.FS.PathJoin(r.path(name), storeDir))
	return err == nil
}

// moveAside is the point of no return: without a store no start succeeds until putInPlace has.
func (r *repairer) moveAside(aside string) error {
	fs := r.opts.FS
	// store.repair must be found once the store is gone.
	if err := syncDir(fs, r.dir); err != nil {
		return fmt.Errorf("sync %s: %w", r.dir, err)
	}
	if err := fs.Rename(r.path(storeDir), fs.PathJoin(aside, storeDir)); err != nil {
		return fmt.Errorf("move the store aside: %w", err)
	}
	if err := errors.Join(syncDir(fs, aside), syncDir(fs, r.dir)); err != nil {
		return fmt.Errorf("move the store aside: sync: %w", err)
	}
	return nil
}

func (r *repairer) putInPlace() error {
	fs := r.opts.FS
	if err := writeHead(fs, r.dir, r.end); err != nil {
		return fmt.Errorf("write the %s note: %w", headFile, err)
	}
	if err := errors.Join(fs.Rename(r.path(repairDir), r.path(storeDir)), syncDir(fs, r.dir)); err != nil {
		return fmt.Errorf("put the repaired store in place: %w", err)
	}
	return nil
}

// finish ends a repair that was cut off after it had moved the store aside.
func (r *repairer) finish(names []string) error {
	var aside string
	for _, name := range names {
		if strings.HasPrefix(name, asidePrefix) && r.holdsStore(name) && name > aside {
			aside = name
		}
	}
	if aside == "" || !slices.Contains(names, repairDir) {
		return fmt.Errorf("log directory %s: %w: it has no store, and nothing to make one from", r.dir, ErrNotALog)
	}
	r.report.Aside = r.path(aside)
	r.report.Damage = ErrRepairing.Error()
	l, err := openStoreAt(r.path(repairDir), r.dir, r.opts, headNote{}, newStoreGuard(r.opts.Logger), true)
	if err != nil {
		return err
	}
	r.end = headNote{seq: l.durable.head, hash: l.durable.hash}
	r.report.Kept, err = l.verify(r.progress)
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	if note, err := readHead(r.opts.FS, r.report.Aside); err != nil {
		r.report.HeadUnknown = true
	} else if note.seq > r.end.seq {
		r.report.FirstLost, r.report.LastLost = r.end.seq+1, note.seq
	}
	return r.putInPlace()
}

func readWhole(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func writeSynced(fs vfs.FS, path string, b []byte) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
