package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
)

// Rows is a part of the views' store.
type Rows interface {
	Get(key []byte) (value []byte, ok bool, err error)
	// Each calls yield with the rows whose keys begin with a prefix, by key, from a key on, until it returns false.
	Each(prefix, from []byte, yield func(key, value []byte) (bool, error)) error
	Commit(*bucket.RowBatch) error
}

// LabelOf reads the experiment label out of the specification in a plan event.
type LabelOf func(spec []byte) (string, error)

// Fold is what the master takes from the log: the records of experiments, and the tasks. It implements projections.Projection. Its
// rows are committed with the sequence that they reflect, a batch of events at a time. A commit that fails keeps the rows in
// memory, where they are read, until the next one succeeds.
type Fold struct {
	rows   Rows
	label  LabelOf
	logger *slog.Logger

	mu      sync.RWMutex
	seq     log.Seq
	saved   log.Seq // committed
	epoch   uint64  // counts the changes of the experiment label: every name before belongs to another table
	current string  // the experiment label
	known   map[string]known
	fresh   []retiredName     // retired since a round last took note of it, by sequence
	unsaved map[string][]byte // rows that no commit has taken yet; nil for one that is deleted
	failed  uint64            // commits in a row
	tasks   taskTable
	notify  projections.Signal
}

// known is what is kept in memory of an experiment that has a record.
type known struct {
	version log.Seq // last event of the control plane about it
	retired bool    // it was retired, and may have returned since
}

type retiredName struct {
	name string
	seq  log.Seq
}

// record is what the control plane knows of an experiment: what it had when it was retired, and its compactions.
type record struct {
	version                  log.Seq
	retiredSeq               log.Seq // 0 if it was never retired
	retiredAt                int64   // wall time, ms
	series, samples, buckets uint64  // of all that was retired
	lastWrite, closedThrough int64   // ms
	lastCompaction           int64   // wall time, ms
	compactions              uint64
}

func newRecord() record {
	return record{retiredAt: never, lastWrite: never, closedThrough: never, lastCompaction: never}
}

const recordVersion = 1

// encode returns the record, version 1: version:u, last event:u, retired by:u, retired at:v, three counts:u, last write:v, closed
// through:v, last compaction:v, compactions:u.
func (r *record) encode() []byte {
	e := encoder{}
	e.u(recordVersion, uint64(r.version), uint64(r.retiredSeq))
	e.v(r.retiredAt)
	e.u(r.series, r.samples, r.buckets)
	e.v(r.lastWrite, r.closedThrough, r.lastCompaction)
	e.u(r.compactions)
	return e.b
}

func decodeRecord(b []byte) (record, error) {
	d := decoder{b: b}
	d.version(recordVersion)
	r := record{version: log.Seq(d.u()), retiredSeq: log.Seq(d.u()), retiredAt: d.v()}
	r.series, r.samples, r.buckets = d.u(), d.u(), d.u()
	r.lastWrite, r.closedThrough, r.lastCompaction = d.v(), d.v(), d.v()
	r.compactions = d.u()
	return r, d.end()
}

// NewFold returns the fold over rows of a views' store. Restore, then Apply. Without rows it begins at floor, which is the first event
// that the log has.
func NewFold(rows Rows, floor log.Seq, label LabelOf, logger *slog.Logger) *Fold {
	return &Fold{
		rows: rows, seq: max(floor, 1) - 1, label: label, logger: logger, known: make(map[string]known), unsaved: make(map[string][]byte), tasks: newTaskTable(),
	}
}

// Name implements projections.Projection.
func (f *Fold) Name() string { return "master" }

const metaVersion = 1

// Restore implements projections.Projection.
func (f *Fold) Restore() (projections.Restored, error) {
	v, ok, err := f.rows.Get([]byte{keyMeta})
	if err != nil {
		return projections.Restored{}, err
	}
	if !ok {
		if f.seq > 0 {
			// Views that a tool has folded without the control plane. What is hot is counted by the panes all the same.
			f.logger.Warn("The views hold no rows of the control plane: what it did before the log's first event is not known", "first_event", f.seq+1)
		}
		return projections.Restored{From: f.seq}, nil
	}
	d := decoder{b: v}
	d.version(metaVersion)
	f.seq, f.epoch = log.Seq(d.u()), d.u()
	f.current, f.saved = string(d.b), f.seq
	if d.err != nil {
		return projections.Restored{}, fmt.Errorf("fold: %w", d.err)
	}
	err = errors.Join(
		f.rows.Each([]byte{keyRecord}, nil, func(k, v []byte) (bool, error) {
			name, _, err := takeName(k[1:])
			if err != nil {
				return false, err
			}
			r, err := decodeRecord(v)
			f.known[name] = known{r.version, r.retiredSeq > 0}
			return true, err
		}),
		f.tasks.restore(f.rows),
	)
	return projections.Restored{From: f.seq, Newest: f.seq}, err
}

// Apply implements projections.Projection.
func (f *Fold) Apply(_ context.Context, events []*log.Event) error {
	f.mu.Lock()
	for _, ev := range events {
		if ev.Seq <= f.seq {
			continue
		}
		if ev.Seq != f.seq+1 {
			f.mu.Unlock()
			return fmt.Errorf("master: fold at %d was given event %d", f.seq, ev.Seq)
		}
		if err := f.apply(ev); err != nil {
			f.mu.Unlock()
			return fmt.Errorf("master: apply event %d (%s): %w", ev.Seq, ev.Body.Kind(), err)
		}
		f.seq = ev.Seq
	}
	b, at := f.batch()
	f.mu.Unlock()
	f.saveBatch(b, at)
	f.notify.Fire()
	return nil
}

func (f *Fold) apply(ev *log.Event) error {
	f.tasks.age(ev.LogTime, f.put)
	switch b := ev.Body.(type) {
	case *log.Plan:
		return f.replan(b)
	case *log.Start:
		if b.Reason == log.StartProcess {
			f.tasks.interrupted(f.put)
		}
	case *log.ExperimentRetired:
		return f.retired(ev, b)
	case *log.Compacted:
		return f.change(b.Experiment, func(r *record) {
			r.version, r.lastCompaction = ev.Seq, ev.WallTime
			r.compactions++
		})
	case *log.TaskQueued:
		f.tasks.queued(ev, b, f.put)
	case *log.TaskStarted:
		f.tasks.started(ev, b, f.put)
	case *log.TaskFinished:
		f.tasks.finished(ev, b, f.put)
	}
	return nil
}

// replan begins a new table when the experiment label has changed: the names before were values of another one.
func (f *Fold) replan(b *log.Plan) error {
	label, err := f.label(b.Spec)
	if err != nil || label == f.current {
		return err
	}
	f.current = label
	f.epoch++
	for name := range f.known {
		f.put(nameKey(keyRecord, name), nil)
	}
	clear(f.known)
	f.fresh = nil
	f.tasks.forget(func(target) bool { return true }, f.put)
	return nil
}

func (f *Fold) retired(ev *log.Event, b *log.ExperimentRetired) error {
	f.fresh = append(f.fresh, retiredName{b.Experiment, ev.Seq})
	f.tasks.forget(func(t target) bool { return t.name == b.Experiment }, f.put)
	return f.change(b.Experiment, func(r *record) {
		r.version, r.retiredSeq, r.retiredAt = ev.Seq, ev.Seq, ev.WallTime
		for _, p := range b.Parts {
			r.series, r.samples, r.buckets = r.series+p.Series, r.samples+p.Samples, r.buckets+p.Buckets
		}
		for _, l := range b.Later {
			r.buckets += l.Buckets
		}
		r.lastWrite, r.closedThrough = later(r.lastWrite, b.LastWrite), max(r.closedThrough, b.ClosedThrough)
	})
}

// change changes the record of an experiment.
func (f *Fold) change(name string, by func(*record)) error {
	r, _, err := f.recordLocked(name)
	if err != nil {
		return err
	}
	by(&r)
	f.known[name] = known{r.version, r.retiredSeq > 0}
	f.put(nameKey(keyRecord, name), r.encode())
	return nil
}

// put changes a row; a nil value deletes it.
func (f *Fold) put(key, value []byte) { f.unsaved[string(key)] = value }

// batch makes a batch of all that no commit has taken.
func (f *Fold) batch() (*bucket.RowBatch, log.Seq) {
	b := &bucket.RowBatch{}
	for k, v := range f.unsaved {
		if v == nil {
			b.Delete([]byte(k))
		} else {
			b.Put([]byte(k), v)
		}
	}
	e := encoder{}
	e.u(metaVersion, uint64(f.seq), f.epoch)
	b.Put([]byte{keyMeta}, append(e.b, f.current...))
	return b, f.seq
}

// saveBatch commits a batch without the lock (M7). Only Apply calls it, so nothing has been put meanwhile.
func (f *Fold) saveBatch(b *bucket.RowBatch, at log.Seq) {
	err := f.rows.Commit(b)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.saved, f.failed = at, 0
		clear(f.unsaved)
		return
	}
	if f.failed++; f.failed == 1 {
		f.logger.Error("The rows of experiments and tasks cannot be written; they stay in memory", "err", err)
	}
}

// Applied implements projections.Projection.
func (f *Fold) Applied() (log.Seq, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.seq, nil
}

// Saved returns the last event that the rows in the store reflect. They are durable after the store's next flush.
func (f *Fold) Saved() log.Seq {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.saved
}

// Changed implements projections.Projection.
func (f *Fold) Changed() <-chan struct{} { return f.notify.Wait() }

// wait blocks until an event is applied, or ctx ends.
func (f *Fold) wait(ctx context.Context, seq log.Seq) error {
	for {
		changed := f.Changed()
		if at, _ := f.Applied(); at >= seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// record returns what is known of an experiment; false if nothing is. It reads one row, without a lock.
func (f *Fold) record(name string) (record, bool, error) {
	f.mu.RLock()
	k, there := f.known[name]
	v, inMemory := f.unsaved[string(nameKey(keyRecord, name))]
	f.mu.RUnlock()
	if !there {
		return newRecord(), false, nil
	}
	if inMemory {
		r, err := decodeRecord(v)
		return r, true, err
	}
	r, ok, err := f.readRecord(name)
	if err == nil && !ok {
		err = fmt.Errorf("%w: no record of %q, which changed at %d", ErrCorrupt, name, k.version)
	}
	return r, ok, err
}

func (f *Fold) recordLocked(name string) (record, bool, error) {
	if _, ok := f.known[name]; !ok {
		return newRecord(), false, nil
	}
	if v, ok := f.unsaved[string(nameKey(keyRecord, name))]; ok {
		r, err := decodeRecord(v)
		return r, true, err
	}
	return f.readRecord(name)
}

func (f *Fold) readRecord(name string) (record, bool, error) {
	v, ok, err := f.rows.Get(nameKey(keyRecord, name))
	if err != nil || !ok {
		return newRecord(), false, err
	}
	r, err := decodeRecord(v)
	return r, true, err
}

// knownOf returns what is in memory of an experiment; the zero value if it has no record.
func (f *Fold) knownOf(name string) known {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.known[name]
}

// raise raises the versions of experiments to the last event of the control plane about them.
func (f *Fold) raise(versions map[string]Version) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for name, v := range versions {
		if k, ok := f.known[name]; ok && k.version > v.Seq {
			v.Seq = k.version
			versions[name] = v
		}
	}
}

// retiredNames returns the experiments that were retired once, in no order.
func (f *Fold) retiredNames() (epoch uint64, names []string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for name, k := range f.known {
		if k.retired {
			names = append(names, name)
		}
	}
	return f.epoch, names
}

// freshlyRetired returns those retired by events up to one, since forgetFresh was called.
func (f *Fold) freshlyRetired(upTo log.Seq) (epoch uint64, names map[string]struct{}) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	names = make(map[string]struct{})
	for _, r := range f.fresh {
		if r.seq <= upTo {
			names[r.name] = struct{}{}
		}
	}
	return f.epoch, names
}

func (f *Fold) forgetFresh(upTo log.Seq) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for n < len(f.fresh) && f.fresh[n].seq <= upTo {
		n++
	}
	f.fresh = append([]retiredName(nil), f.fresh[n:]...)
}
