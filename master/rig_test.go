package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the master over a real log and a real store of views. What is counted of experiments comes from a model, which a test can
// make slow, failing or hanging.
type rig struct {
	t      testing.TB
	fs     vfs.FS
	events *log.Log
	views  *bucket.Store
	rows   *spyRows
	fold   *Fold
	master *Master
	model  *model
	runner *projections.Runner
	set    atomic.Pointer[Settings]
	now    atomic.Int64 // ms
	stop   func()
}

// model counts experiments without panes. Every change is an event of the log, so that sequences are real.
type model struct {
	mu       sync.Mutex
	events   *log.Log
	x        map[string]*Observation
	spots    map[string][]Spot
	observed int
	reads    int // of versions
	fail     func(name string) error
	hang     chan struct{} // while it is not nil, everything waits for it to be closed
	merged   []Spot
	mergeErr func(Spot) (bucket.Compaction, error)
	merging  atomic.Int64 // at one time
	most     atomic.Int64
	applied  log.Seq
	behind   bool
	skew     func(*Observation) // applied to what is observed, not to its version
}

func (m *model) wait(ctx context.Context) error {
	m.mu.Lock()
	hang := m.hang
	m.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *model) Versions(ctx context.Context) (Versions, error) {
	if err := m.wait(ctx); err != nil {
		return Versions{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.fail != nil {
		if err := m.fail("versions"); err != nil {
			return Versions{}, err
		}
	}
	out := Versions{Seq: m.events.Head(), Behind: m.behind, Of: make(map[string]Version, len(m.x))}
	for name, o := range m.x {
		out.Of[name] = Version{Seq: o.Version, Basis: o.Basis}
	}
	return out, nil
}

func (m *model) Observe(ctx context.Context, name string) (Observation, bool, error) {
	if err := m.wait(ctx); err != nil {
		return Observation{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observed++
	if m.fail != nil {
		if err := m.fail(name); err != nil {
			return Observation{}, false, err
		}
	}
	o, ok := m.x[name]
	if !ok {
		return Observation{Seq: m.events.Head()}, false, nil
	}
	out := *o
	out.Seq, out.Behind = m.events.Head(), m.behind
	out.Parts = []log.RetiredPart{{Series: o.Series, Samples: o.Samples, Buckets: o.Buckets}}
	if m.skew != nil {
		m.skew(&out)
	}
	return out, true, nil
}

func (m *model) Loads(ctx context.Context) ([]Load, error) {
	if err := m.wait(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Load
	for name, o := range m.x {
		out = append(out, Load{Name: name, Corrections: o.Corrections, WorstBucket: o.WorstBucket, Pending: o.Pending, StuckAt: o.OldestPending})
	}
	return out, nil
}

func (m *model) Corrected(ctx context.Context, name string) ([]Spot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spots[name], ctx.Err()
}

func (m *model) Merge(s Spot) (bucket.Compaction, error) {
	n := m.merging.Add(1)
	defer m.merging.Add(-1)
	for most := m.most.Load(); n > most && !m.most.CompareAndSwap(most, n); most = m.most.Load() {
	}
	m.mu.Lock()
	m.merged = append(m.merged, s)
	f := m.mergeErr
	m.mu.Unlock()
	if f != nil {
		return f(s)
	}
	return bucket.Compaction{Pieces: 2, Read: 20, Written: 10}, nil
}

func (m *model) Limit() log.Seq { return m.events.Head() }

// Wait applies the events of the control plane as the panes would.
func (m *model) Wait(ctx context.Context, seq log.Seq) error {
	if err := m.wait(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.applied >= seq {
		return nil
	}
	sub := m.events.Subscribe(m.applied + 1)
	for m.applied < seq {
		evs, err := sub.Next(ctx, 64)
		if err != nil {
			return err
		}
		for _, ev := range evs {
			m.apply(ev)
			m.applied = ev.Seq
		}
	}
	return nil
}

func (m *model) apply(ev *log.Event) {
	switch b := ev.Body.(type) {
	case *log.Compacted:
		if o := m.x[b.Experiment]; o != nil && o.LastCorrectedAt <= b.Through {
			o.Corrections, o.WorstBucket, o.LastCorrectedAt, o.Version = 0, 0, 0, ev.Seq
			delete(m.spots, b.Experiment)
		}
	case *log.ExperimentRetired:
		o := m.x[b.Experiment]
		switch {
		case o == nil:
		case o.Version <= b.AtVersion:
			delete(m.x, b.Experiment)
		default:
			o.Series, o.Samples, o.Buckets = o.Series-b.Parts[0].Series, o.Samples-b.Parts[0].Samples, o.Buckets-b.Parts[0].Buckets
			o.Version = ev.Seq
		}
	}
}

// spyRows counts and fails what is done to the snapshots' rows.
type spyRows struct {
	*bucket.Rows
	mu      sync.Mutex
	commits int
	puts    int
	fail    func(n int) error // of the n-th commit, from 1
	hang    chan struct{}
}

func (r *spyRows) Commit(b *bucket.RowBatch) error {
	r.mu.Lock()
	r.commits++
	r.puts += b.Len()
	n, fail, hang := r.commits, r.fail, r.hang
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if fail != nil {
		if err := fail(n); err != nil {
			return err
		}
	}
	return r.Rows.Commit(b)
}

func (r *spyRows) counted() (commits, puts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commits, r.puts
}

// startRig opens everything on a file system in memory.
func startRig(t *testing.T) *rig {
	t.Helper()
	return startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute})
}

func startRigOn(t testing.TB, fs vfs.FS, set Settings) *rig {
	t.Helper()
	r := &rig{t: t, fs: fs}
	r.set.Store(&set)
	r.now.Store(1_700_000_000_000)
	var err error
	if r.events, err = log.Open("/data/log", log.Options{FS: fs, Now: func() time.Time { return time.UnixMilli(r.now.Load()) }, Monotonic: func() time.Duration {
		return time.Duration(r.now.Load()-1_700_000_000_000) * time.Millisecond
	}}); err != nil {
		t.Fatal(err)
	}
	if r.views, err = bucket.Open("/data/views", r.events.Identity(), bucket.Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	r.open()
	logCtx, stopLog := context.WithCancel(context.Background())
	foldCtx, stopFold := context.WithCancel(context.Background())
	var running sync.WaitGroup
	logDone := make(chan error, 1)
	go func() { logDone <- r.events.Run(logCtx) }()
	running.Go(func() {
		if err := r.runner.Run(foldCtx); err != nil {
			t.Error(err)
		}
	})
	r.stop = sync.OnceFunc(func() {
		stopFold()
		running.Wait()
		stopLog()
		if err := errors.Join(<-logDone, r.views.Close(), r.events.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { r.stop() })
	return r
}

// open makes the fold, the model and the master over what is stored.
func (r *rig) open() {
	r.t.Helper()
	r.fold = NewFold(r.views.Rows(FoldSpace), r.events.Floor(), func(spec []byte) (string, error) { return string(spec), nil }, slog.New(slog.DiscardHandler))
	r.runner = projections.NewRunner(r.events, r.fold)
	if err := r.runner.Restore(); err != nil {
		r.t.Fatal(err)
	}
	r.model = &model{events: r.events, x: make(map[string]*Observation), spots: make(map[string][]Spot)}
	r.rows = &spyRows{Rows: r.views.Rows(SnapshotSpace)}
	r.master = r.another()
}

// another makes a master over the same parts, as after a restart.
func (r *rig) another() *Master {
	r.t.Helper()
	m, err := New(Deps{
		Source: r.model, Loads: r.model, Pieces: r.model, Panes: r.model, Fold: r.fold, Events: r.events, Rows: r.rows,
	}, Options{
		Settings: func() Settings { return *r.set.Load() }, Now: func() time.Time { return time.UnixMilli(r.now.Load()) },
		ObserveTimeout: time.Minute, AuditSample: 4, DurableWait: time.Minute,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// write accepts samples of an experiment, by an event of the log.
func (r *rig) write(name string, samples uint64) {
	r.t.Helper()
	r.change(name, func(o *Observation) {
		if o.Series == 0 {
			o.Series = 1
		}
		o.Samples += samples
		o.LastWrite, o.LastWriteLogTime = r.now.Load(), r.events.LogTime()
	})
}

// change changes what is counted of an experiment, by an event of the log.
func (r *rig) change(name string, by func(*Observation)) {
	r.t.Helper()
	seq := r.append(&log.Tick{})
	r.model.mu.Lock()
	defer r.model.mu.Unlock()
	o := r.model.x[name]
	if o == nil {
		o = &Observation{OldestPending: never, LastWrite: never, LastWriteLogTime: never, ClosedThrough: never}
		r.model.x[name] = o
	}
	by(o)
	o.Version = seq
}

// many makes n experiments with one event.
func (r *rig) many(n int) {
	r.t.Helper()
	seq := r.append(&log.Tick{})
	r.model.mu.Lock()
	defer r.model.mu.Unlock()
	for i := range n {
		r.model.x[numbered(i)] = &Observation{
			Series: 1, Samples: 1, Version: seq, OldestPending: never, LastWrite: r.now.Load(), LastWriteLogTime: r.events.LogTime(), ClosedThrough: never,
		}
	}
}

func numbered(i int) string { return fmt.Sprintf("run-%06d", i) }

func (r *rig) append(b log.Body) log.Seq {
	r.t.Helper()
	seq, err := r.events.Append(r.ctx(), b)
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) round() RoundResult {
	r.t.Helper()
	res, err := r.master.Round(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	rows := r.master.Snapshot().rows
	if !slices.IsSortedFunc(rows, Column("name").compare()) || len(rows) != len(r.master.table) {
		r.t.Fatalf("%d rows, and %d in the table of rounds", len(rows), len(r.master.table))
	}
	for _, row := range rows {
		if r.master.table[row.Name] != row {
			r.t.Fatalf("%s is another one in the table of rounds", row.Name)
		}
	}
	return res
}

func (r *rig) list(q ListRequest) *Page {
	r.t.Helper()
	p, err := r.master.List(r.ctx(), q)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// pass lets time pass for the clock and the log.
func (r *rig) pass(d time.Duration) { r.now.Add(d.Milliseconds()) }

// folded waits until the fold has everything.
func (r *rig) folded() {
	r.t.Helper()
	if err := r.fold.wait(r.ctx(), r.events.Head()); err != nil {
		r.t.Fatal(err)
	}
}

// eventually waits for something that other goroutines do.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}
