package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
)

// Defaults of Options.
const (
	defaultObserveConcurrency = 8
	defaultObserveTimeout     = 10 * time.Second
	defaultAuditSample        = 32
	defaultRetireMax          = 10_000
	defaultRetireBudget       = time.Minute
	defaultTaskTimeout        = 5 * time.Minute
	defaultDurableWait        = time.Minute
)

// ErrUnknown says that an experiment was never seen.
var ErrUnknown = errors.New("no such experiment")

// Settings may change while the master runs.
type Settings struct {
	ScanInterval  time.Duration // between rounds; 0: none but those that are asked for
	RetireAfter   time.Duration // without an accepted sample, in log time; 0: never
	SweepInterval time.Duration // between sweeps; 0: none
	AuditEvery    int           // rounds; 0: never
}

// Options of a Master. The zero value is usable, but for Settings, without which nothing runs by itself.
type Options struct {
	Settings           func() Settings  // default: the zero Settings
	Now                func() time.Time // default time.Now; for display and staleness only
	Lagging            func() bool      // a projection is behind the log; default: never
	Logger             *slog.Logger     // default: discards
	Running            int              // tasks that run at one time, over all kinds; default: as many as their kinds may
	ObserveConcurrency int              // experiments read at a time, default 8
	ObserveTimeout     time.Duration    // for one of them, default 10s
	AuditSample        int              // unchanged rows that an audit reads, default 32
	RetireMax          int              // retirements in one round, default 10,000
	RetireBudget       time.Duration    // time for them, default 1m
	TaskTimeout        time.Duration    // for one task, default 5m
	DurableWait        time.Duration    // for corrections to be on disk before they are compacted, default 1m
}

func (o Options) withDefaults() Options {
	if o.Settings == nil {
		o.Settings = func() Settings { return Settings{} }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Lagging == nil {
		o.Lagging = func() bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ObserveConcurrency <= 0 {
		o.ObserveConcurrency = defaultObserveConcurrency
	}
	if o.ObserveTimeout <= 0 {
		o.ObserveTimeout = defaultObserveTimeout
	}
	if o.AuditSample <= 0 {
		o.AuditSample = defaultAuditSample
	}
	if o.RetireMax <= 0 {
		o.RetireMax = defaultRetireMax
	}
	if o.RetireBudget <= 0 {
		o.RetireBudget = defaultRetireBudget
	}
	if o.TaskTimeout <= 0 {
		o.TaskTimeout = defaultTaskTimeout
	}
	if o.DurableWait <= 0 {
		o.DurableWait = defaultDurableWait
	}
	return o
}

// Panes is the fold that counts experiments, as far as its progress is concerned.
type Panes interface {
	// Wait blocks until an event is applied.
	Wait(ctx context.Context, seq log.Seq) error
}

// Deps are the collaborators of a Master.
type Deps struct {
	Source Source
	Loads  Loads
	Pieces Pieces
	Panes  Panes
	Fold   *Fold // restored
	Events Log
	Rows   Rows // of the snapshots
}

// Master scans, retires and maintains experiments, and answers for them.
type Master struct {
	source Source
	loads  Loads
	pieces Pieces
	panes  Panes
	fold   *Fold
	events Log
	rows   Rows
	opts   Options
	logger *slog.Logger

	snap     atomic.Pointer[Snapshot] // never nil
	turn     chan struct{}            // has room for one: who stands in it changes the snapshot
	table    map[string]*Row          // the rows of the snapshot, for who stands in turn
	queueing chan struct{}            // has room for one: who stands in it queues a task
	exec     executor
	history  history
	upkeep   upkeep
	counters counters
}

// New returns a master, which loads the newest snapshot that is stored.
func New(d Deps, opts Options) (*Master, error) {
	opts = opts.withDefaults()
	m := &Master{
		source: d.Source, loads: d.Loads, pieces: d.Pieces, panes: d.Panes, fold: d.Fold, events: d.Events, rows: d.Rows,
		opts: opts, logger: opts.Logger, turn: make(chan struct{}, 1), queueing: make(chan struct{}, 1),
		exec: executor{running: opts.Running},
	}
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("master: load the table: %w", err)
	}
	return m, nil
}

func (m *Master) settings() Settings { return m.opts.Settings() }

// Run scans, sweeps, works off tasks and keeps its storage small until ctx ends, and returns nil then. The projections must have
// caught up.
func (m *Master) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.scanLoop(ctx) })
	g.Go(func() error { return m.sweepLoop(ctx) })
	g.Go(func() error { return m.workLoop(ctx) })
	g.Go(func() error { return m.upkeepLoop(ctx) })
	return g.Wait()
}

func (m *Master) sweepLoop(ctx context.Context) error {
	return m.every(ctx, false, func() time.Duration { return m.settings().SweepInterval }, func(ctx context.Context) {
		if _, _, err := m.Sweep(ctx); err != nil && ctx.Err() == nil {
			m.counters.sweepFailures.Add(1)
			m.logger.Error("sweep failed", "err", err)
		}
	})
}

func (m *Master) upkeepLoop(ctx context.Context) error {
	return m.every(ctx, false, func() time.Duration { return upkeepInterval }, func(ctx context.Context) {
		_ = m.Upkeep(ctx) // logged and counted by Upkeep
	})
}

// Snapshot returns the newest snapshot.
func (m *Master) Snapshot() *Snapshot { return m.snap.Load() }
