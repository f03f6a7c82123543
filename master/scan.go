package master

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
)

// RoundResult says what a scan round did.
type RoundResult struct {
	Scanned  int    // experiments that are hot
	Skipped  int    // of them, unchanged and not observed
	Observed int    // read
	Failed   int    // of those to be read, those that could not be
	Retired  int    // by this round
	Drifted  int    // unchanged ones that the auditor found to differ
	Version  uint64 // of the snapshot
}

// errNothingLeft refuses an empty table that something that failed may have emptied.
var errNothingLeft = errors.New("the round found no experiment, and part of it failed: the table stays")

// Round makes one scan round. Rounds are made one at a time; who comes meanwhile waits.
func (m *Master) Round(ctx context.Context) (RoundResult, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return RoundResult{}, ctx.Err()
	}
	defer func() { <-m.turn }()
	begun := m.opts.Now()
	res, err := m.round(ctx)
	m.counters.round(res, m.opts.Now().Sub(begun), err)
	if err != nil && ctx.Err() == nil {
		m.logger.Error("scan round failed; the table stays as it was", "err", err)
	}
	return res, err
}

func (m *Master) round(ctx context.Context) (RoundResult, error) {
	versions, err := m.source.Versions(ctx)
	if err != nil {
		return RoundResult{}, fmt.Errorf("read versions: %w", err)
	}
	asOf := versions.Seq
	if err := m.fold.wait(ctx, asOf); err != nil {
		return RoundResult{}, fmt.Errorf("wait for the fold: %w", err)
	}
	m.fold.raise(versions.Of)
	prev := m.snap.Load()
	w := newWork(m, prev, asOf, versions.Of)
	w.observe(ctx)
	w.audit(ctx)
	if ctx.Err() != nil {
		return w.result, ctx.Err()
	}
	if !versions.Behind { // else it is not known whether nothing is open
		w.retire(ctx)
	}
	if w.size() == 0 && w.result.Failed > 0 && len(prev.rows) > 0 {
		return w.result, errNothingLeft
	}
	next := w.finish()
	if err := m.commit(next, w.changed, w.gone, w.point); err != nil {
		return w.result, fmt.Errorf("commit: %w", err)
	}
	m.fold.forgetFresh(asOf)
	w.result.Version = next.Version
	return w.result, nil
}

// work is one round on its way.
type work struct {
	m        *Master
	prev     *Snapshot
	asOf     log.Seq
	versions map[string]Version
	nextID   uint32
	now      int64

	rows    map[string]*Row // what the table will hold instead of what it holds; nil where that goes
	todo    []string        // to be observed
	changed []*Row          // of rows, those to be stored
	gone    []string
	retired []string // by this round
	gains   []gain
	point   *point
	result  RoundResult
}

// newWork finds the experiments that are to be observed: the rows of all others are reused (M1, M2).
func newWork(m *Master, prev *Snapshot, asOf log.Seq, versions map[string]Version) *work {
	w := &work{
		m: m, prev: prev, asOf: asOf, versions: versions, nextID: max(prev.NextID, 1), now: m.opts.Now().UnixMilli(), rows: map[string]*Row{},
	}
	there := 0
	for name, v := range versions {
		r := m.table[name]
		if r != nil {
			there++
		}
		if r != nil && r.Version == v.Seq && r.Basis == v.Basis && v.Seq != 0 && r.Err == "" {
			w.result.Skipped++
			continue
		}
		w.todo = append(w.todo, name)
	}
	slices.Sort(w.todo)
	if there == len(prev.rows) {
		return w
	}
	for _, r := range prev.rows {
		if _, ok := versions[r.Name]; !ok {
			w.rows[r.Name] = nil
		}
	}
	return w
}

// row returns what the table will hold of an experiment; nil if nothing.
func (w *work) row(name string) *Row {
	if r, ok := w.rows[name]; ok {
		return r
	}
	return w.m.table[name]
}

// all goes through what the table will hold, by name.
func (w *work) all() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		names, old := slices.Sorted(maps.Keys(w.rows)), w.prev.rows
		for len(names) > 0 || len(old) > 0 {
			var r *Row
			switch {
			case len(names) == 0 || len(old) > 0 && old[0].Name < names[0]:
				r, old = old[0], old[1:]
			default:
				if len(old) > 0 && old[0].Name == names[0] {
					old = old[1:]
				}
				r, names = w.rows[names[0]], names[1:]
			}
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// size is the number of rows that the table will hold.
func (w *work) size() int {
	n := len(w.prev.rows)
	for name, r := range w.rows {
		if w.m.table[name] != nil {
			n--
		}
		if r != nil {
			n++
		}
	}
	return n
}

// observe reads what changed, with bounded concurrency and a deadline each. What fails keeps its row (M3).
func (w *work) observe(ctx context.Context) {
	w.each(ctx, w.todo, func(name string, row *Row, err error) {
		switch old := w.m.table[name]; {
		case err != nil:
			w.result.Failed++
			if old != nil {
				kept := *old
				kept.Err = err.Error()
				w.rows[name] = &kept
			}
		case row == nil:
			w.result.Observed++ // it was retired meanwhile; the next round sees it so
		default:
			w.result.Observed++
			w.take(old, row)
		}
	})
}

// take puts an observed row into the table.
func (w *work) take(old, row *Row) {
	if old != nil {
		row.ID = old.ID
	} else {
		row.ID = w.nextID
		w.nextID++
	}
	w.rows[row.Name] = row
	w.changed = append(w.changed, row)
	switch {
	case old != nil && row.Samples > old.Samples:
		g := gain{id: row.ID, samples: row.Samples - old.Samples, late: row.Corrections}
		if old.Corrections <= row.Corrections {
			g.late -= old.Corrections
		}
		w.gains = append(w.gains, g)
	case old == nil && w.prev.Round > 0:
		base := uint64(0)
		if rec, ok, err := w.m.fold.record(row.Name); err == nil && ok {
			base = rec.samples
		}
		if row.Samples > base {
			w.gains = append(w.gains, gain{id: row.ID, samples: row.Samples - base, late: row.Corrections})
		}
	}
}

// each observes experiments, and hands over one result after the other.
func (w *work) each(ctx context.Context, names []string, done func(string, *Row, error)) {
	var g errgroup.Group
	g.SetLimit(w.m.opts.ObserveConcurrency)
	var mu sync.Mutex
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			row, err := w.m.observe(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			done(name, row, err)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// observe reads one experiment; nil if nothing is counted of it.
func (m *Master) observe(ctx context.Context, name string) (*Row, error) {
	_, row, err := m.observation(ctx, name)
	return row, err
}

// observation reads one experiment, and brings it together with its record as of the same event.
func (m *Master) observation(ctx context.Context, name string) (Observation, *Row, error) {
	bound, cancel := context.WithTimeout(ctx, m.opts.ObserveTimeout)
	defer cancel()
	for {
		o, ok, err := m.source.Observe(bound, name)
		if err != nil {
			return o, nil, fmt.Errorf("observe: %w", err)
		}
		if err := m.fold.wait(bound, o.Seq); err != nil {
			return o, nil, fmt.Errorf("wait for the fold: %w", err)
		}
		rec, _, err := m.fold.record(name)
		if err != nil {
			return o, nil, err
		}
		if rec.retiredSeq > o.Seq {
			continue // the record holds already what was observed; observe again, behind it
		}
		if !ok {
			return o, nil, nil
		}
		return o, rec.row(name, &o, m.opts.Now().UnixMilli()), nil
	}
}

// audit reads some of the unchanged ones in full, in turn, every so many rounds. One that differs is corrected and counted: its
// version did not cover what changed.
func (w *work) audit(ctx context.Context) {
	every := w.m.settings().AuditEvery
	if every <= 0 || w.result.Skipped == 0 || (w.prev.Round+1)%uint64(every) != 0 {
		return
	}
	skipped := make([]*Row, 0, w.result.Skipped)
	for _, r := range w.prev.rows {
		if _, differs := w.rows[r.Name]; differs {
			continue
		}
		if _, read := slices.BinarySearch(w.todo, r.Name); !read {
			skipped = append(skipped, r)
		}
	}
	slices.SortFunc(skipped, func(a, b *Row) int { return cmp.Compare(a.ID, b.ID) })
	n := min(w.m.opts.AuditSample, len(skipped))
	turn := int((w.prev.Round + 1) / uint64(every) * uint64(n) % uint64(len(skipped)))
	names := make([]string, n)
	for i := range names {
		names[i] = skipped[(turn+i)%len(skipped)].Name
	}
	w.each(ctx, names, func(name string, row *Row, err error) {
		old := w.row(name)
		if err != nil || row == nil || row.Version != old.Version || row.Basis != old.Basis || row.same(old) {
			return
		}
		w.result.Drifted++
		w.m.logger.Error("a row of the table differed from what is counted although its version did not; it is corrected",
			"experiment", name, "version", row.Version)
		w.take(old, row)
	})
}

// finish makes the snapshot.
func (w *work) finish() *Snapshot {
	epoch, fresh := w.m.fold.freshlyRetired(w.asOf)
	for _, name := range w.retired {
		fresh[name] = struct{}{}
	}
	next := &Snapshot{Header: Header{
		Version: w.prev.Version + 1, Round: w.prev.Round + 1, AsOf: w.asOf, ScannedAt: w.now, Epoch: epoch, NextID: w.nextID,
	}}
	next.rows = slices.AppendSeq(make([]*Row, 0, w.size()), w.all())
	for name, r := range w.rows {
		if r == nil && w.m.table[name] != nil {
			w.gone = append(w.gone, name)
			if w.m.fold.knownOf(name).retired {
				fresh[name] = struct{}{}
			}
		}
	}
	slices.Sort(w.gone)
	next.retired = w.retiredSet(epoch, fresh, next)
	w.result.Scanned = len(next.rows)
	w.point = w.totals(next)
	return next
}

// retiredSet is the set of the last snapshot, with those that were retired since and without those that returned. When it has not
// changed, it is the same one: a retired experiment costs nothing (M6).
func (w *work) retiredSet(epoch uint64, fresh map[string]struct{}, next *Snapshot) []string {
	old := w.prev.retired
	if epoch != w.prev.Epoch {
		_, names := w.m.fold.retiredNames()
		old = nil
		for _, name := range names {
			fresh[name] = struct{}{}
		}
	}
	changed := false
	for name := range fresh {
		if next.row(name) != nil || w.prev.isRetired(name) && epoch == w.prev.Epoch {
			delete(fresh, name)
			continue
		}
		changed = true
	}
	returned := make(map[string]struct{})
	for _, r := range w.changed {
		if w.prev.isRetired(r.Name) {
			returned[r.Name] = struct{}{}
			w.m.counters.returned.Add(1)
			w.m.logger.Info("a retired experiment has returned", "experiment", r.Name)
		}
	}
	if !changed && len(returned) == 0 {
		return old
	}
	set := make([]string, 0, len(old)+len(fresh))
	for _, name := range old {
		if _, ok := returned[name]; !ok {
			set = append(set, name)
		}
	}
	for name := range fresh {
		set = append(set, name)
	}
	slices.Sort(set)
	return set
}

// Rescan reads one experiment and stores its row. One that is retired stays so, and its record is returned. The error is ErrUnknown
// for one that was never seen.
func (m *Master) Rescan(ctx context.Context, name string) (*Row, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-m.turn }()
	row, err := m.observe(ctx, name)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return m.retiredRow(name)
	}
	prev := m.snap.Load()
	old := prev.row(name)
	next := &Snapshot{Header: prev.Header, retired: prev.retired}
	next.Version++
	next.NextID = max(next.NextID, 1)
	if old != nil {
		row.ID = old.ID
	} else {
		row.ID = next.NextID
		next.NextID++
	}
	i, there := slices.BinarySearchFunc(prev.rows, row, Column("name").compare())
	next.rows = slices.Clone(prev.rows)
	if there {
		next.rows[i] = row
	} else {
		next.rows = slices.Insert(next.rows, i, row)
		next.retired = slices.DeleteFunc(slices.Clone(prev.retired), func(n string) bool { return n == name })
	}
	if err := m.commit(next, []*Row{row}, nil, nil); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return row, nil
}

// scanLoop makes a round at once and then one every interval. A change of the interval takes effect within a second.
func (m *Master) scanLoop(ctx context.Context) error {
	return m.every(ctx, true, func() time.Duration { return m.settings().ScanInterval }, func(ctx context.Context) {
		_, _ = m.Round(ctx) // logged and counted by Round
	})
}

// every calls f each time that an interval has passed since the last call began, until ctx ends. 0 pauses it.
func (m *Master) every(ctx context.Context, atOnce bool, interval func() time.Duration, f func(context.Context)) error {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	last := time.Now()
	if atOnce && interval() > 0 {
		f(ctx)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		if d := interval(); d > 0 && time.Since(last) >= d {
			last = time.Now()
			f(ctx)
		}
	}
}
