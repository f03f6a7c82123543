package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Defaults of Options.
const (
	defaultObserveConcurrency = 8
	defaultObserveTimeout     = 10 * time.Second
	defaultAuditSample        = 32
	defaultRetireMax          = 10_000
	defaultRetireBudget       = time.Minute
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
	ObserveConcurrency int              // experiments read at a time, default 8
	ObserveTimeout     time.Duration    // for one of them, default 10s
	AuditSample        int              // unchanged rows that an audit reads, default 32
	RetireMax          int              // retirements in one round, default 10,000
	RetireBudget       time.Duration    // time for them, default 1m
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
	return o
}

// Master scans, retires and maintains experiments, and answers for them.
type Master struct {
	source Source
	fold   *Fold
	events Log
	rows   Rows
	opts   Options
	logger *slog.Logger

	snap     atomic.Pointer[Snapshot] // never nil
	turn     chan struct{}            // has room for one: who stands in it changes the snapshot
	history  history
	upkeep   upkeep
	counters counters
}

// New returns a master over a source, a fold that has been restored, the log, and the rows of its snapshots, of which it loads the
// newest.
func New(source Source, fold *Fold, events Log, rows Rows, opts Options) (*Master, error) {
	opts = opts.withDefaults()
	m := &Master{source: source, fold: fold, events: events, rows: rows, opts: opts, logger: opts.Logger, turn: make(chan struct{}, 1)}
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
	return g.Wait()
}

// Snapshot returns the newest snapshot.
func (m *Master) Snapshot() *Snapshot { return m.snap.Load() }
