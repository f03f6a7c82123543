package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// offline is a storage directory in the hands of a tool. It holds the lock of the log, so that no service can have it open,
// and but for a heal it never writes to the log.
type offline struct {
	fs      vfs.FS
	path    string // of the storage
	workers int
	logger  *slog.Logger

	events *log.Log
	index  *series.Index
	healer *healer
}

// offlineCacheBytes is the block cache of a log that is read from one end to the other, each block once.
const offlineCacheBytes = 8 << 20

// openOffline takes the log's lock: it fails with log.ErrLocked while a service runs.
func openOffline(fs vfs.FS, path string, workers int, logger *slog.Logger) (*offline, error) {
	events, err := log.OpenReadOnly(fs.PathJoin(path, logDir), log.Options{FS: fs, Logger: logger, CacheBytes: offlineCacheBytes})
	if err != nil {
		return nil, err
	}
	return newOffline(fs, path, workers, logger, events)
}

func newOffline(fs vfs.FS, path string, workers int, logger *slog.Logger, events *log.Log) (*offline, error) {
	o := &offline{fs: fs, path: path, workers: workers, logger: logger, events: events, index: series.New()}
	o.healer = &healer{events: events, index: o.index, bases: o.basesPath(), options: o.viewsOptions(), workers: workers}
	if err := o.index.Load(o.events.Dictionary()); err != nil {
		return nil, errors.Join(err, o.events.Close())
	}
	return o, nil
}

func (o *offline) close() error { return o.events.Close() }

func (o *offline) viewsPath() string { return o.fs.PathJoin(o.path, viewsDir) }

func (o *offline) basesPath() string { return o.fs.PathJoin(o.path, baseDir) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (o *offline) viewsOptions() bucket.Options {
	return bucket.Options{FS: o.fs, Logger: o.logger}
}

// errNoViews: nothing was folded yet.
var errNoViews = errors.New("there are no views")

// standing folds the views that a start would read up to through, in memory: nothing on disk changes.
func (o *offline) standing(ctx context.Context, through log.Seq) (*folded, error) {
	dir := bucket.InForce(o.viewsPath(), o.viewsOptions())
	if dir == "" {
		return nil, errNoViews
	}
	store, err := bucket.OpenReadOnly(dir, o.events.Identity(), o.viewsOptions())
	if err == nil {
		var f *folded
		f, err = o.foldInMemory(ctx, store, through)
		if err = errors.Join(err, store.Close()); err == nil {
			return f, nil
		}
	}
	if unusable(err) {
		err = fmt.Errorf("%w; `tidemark rebuild` folds them again from the log", err)
	}
	return nil, err
}

// unusable says whether views can only be made anew.
func unusable(err error) bool {
	return bucket.Damaged(err) || errors.Is(err, pane.ErrCorruptState) ||
		errors.Is(err, bucket.ErrVersion) || errors.Is(err, bucket.ErrOtherLog)
}

// origin is what a fold of the log begins with: a base, or nothing where base is nil.
type origin struct {
	base   *bucket.Base
	newest log.Seq // the last event that the base reflects in any part
}

// start returns what the log is folded from: the newest base, which must be sound, and without one nothing.
func (o *offline) start() (origin, error) {
	floor := o.events.Floor()
	base, err := bucket.BaseOf(o.basesPath(), o.events.Identity(), uint64(floor), o.viewsOptions())
	if errors.Is(err, bucket.ErrNoBase) && floor == 1 {
		return origin{}, nil
	}
	var newest uint64
	if err == nil {
		var store *bucket.Store
		if store, err = bucket.OpenBase(base, o.viewsOptions()); err == nil {
			newest, err = store.Newest()
			err = errors.Join(err, store.Close())
		}
	}
	var damage *bucket.BaseError
	switch {
	case err == nil:
		return origin{base: &base, newest: log.Seq(newest)}, nil
	case errors.As(err, &damage) && floor == 1:
		return origin{}, fmt.Errorf("%w; the log still begins at sequence 1, so without that base everything can be folded again: move %s away", err, o.basesPath())
	}
	return origin{}, fmt.Errorf("%w; the log begins at sequence %d: what was folded from the events before it cannot be folded again", err, floor)
}

// afresh folds the log up to through in memory, from the base or from nothing.
func (o *offline) afresh(ctx context.Context, through log.Seq) (*folded, error) {
	start, err := o.start()
	if err != nil {
		return nil, err
	}
	if start.base != nil {
		store, err := bucket.OpenBase(*start.base, o.viewsOptions())
		if err != nil {
			return nil, err
		}
		f, err := o.foldInMemory(ctx, store, through)
		return f, errors.Join(err, store.Close())
	}
	store, err := bucket.Open("views", o.events.Identity(), bucket.Options{FS: vfs.NewMem(), Logger: o.logger})
	if err != nil {
		return nil, err
	}
	f, err := o.foldInMemory(ctx, store, through)
	return f, errors.Join(err, store.Close())
}

// folded is what views hold as of one sequence, as far as it can be compared.
type folded struct {
	plan      *plan.Plan
	digest    pane.Digest
	streams   map[plan.StreamID]pane.StreamState // of the plan
	unplanned uint64                             // samples that no stream took
}

// foldInMemory folds the log up to through over a store that is not written.
func (o *offline) foldInMemory(ctx context.Context, store *bucket.Store, through log.Seq) (f *folded, err error) {
	inMemory := foldMode{
		run:      (*pane.Projection).RunReadOnly,
		inMemory: true,
		options:  func(*pane.Projection, log.Seq) projections.ReplayOptions { return projections.ReplayOptions{} },
	}
	err = o.replay(ctx, store, through, inMemory, func(p *pane.Projection) (err error) {
		f, err = describe(ctx, p)
		return err
	})
	return f, err
}

// foldMode is how a projection is run by replay.
type foldMode struct {
	run      func(*pane.Projection, context.Context) error
	inMemory bool // nothing is written
	options  func(p *pane.Projection, from log.Seq) projections.ReplayOptions
	// beside returns what is given the events after from before the panes are; nil: nothing is.
	beside func(ctx context.Context, from log.Seq) (applier, error)
}

// applier takes events in their order, as projections.Projection does.
type applier interface {
	Apply(context.Context, []*log.Event) error
}

// bothFolded gives events to the panes, and before to somebody else.
type bothFolded struct {
	*pane.Projection
	beside applier
}

// Apply implements projections.Projection.
func (b bothFolded) Apply(ctx context.Context, events []*log.Event) error {
	if err := b.beside.Apply(ctx, events); err != nil {
		return err
	}
	return b.Projection.Apply(ctx, events)
}

// replay restores a projection over store, folds the log up to through, and shows it to look.
func (o *offline) replay(ctx context.Context, store *bucket.Store, through log.Seq, mode foldMode, look func(*pane.Projection) error) error {
	p := pane.New(o.events, o.index, store, pane.Options{Workers: o.workers, CheckpointInterval: -1, Logger: o.logger, Heal: o.healer.find})
	at, err := p.Restore()
	if err != nil {
		return fmt.Errorf("restore the views: %w", err)
	}
	if err := o.events.CheckAtLeast(at.Newest, "a checkpoint of the views"); err != nil {
		return fmt.Errorf("%w; if the log was repaired, `tidemark rebuild` folds the views again from what is left", err)
	}
	if at.Newest > through {
		return fmt.Errorf("the views reflect sequence %d already, which is beyond %d", at.Newest, through)
	}
	if at.From < through && at.From+1 < o.events.Floor() {
		return fmt.Errorf("the log begins at sequence %d, and the views reflect only %d: what lies between is gone", o.events.Floor(), at.From)
	}
	fed := projections.Projection(p)
	if mode.beside != nil {
		beside, err := mode.beside(ctx, at.From)
		if err != nil {
			return err
		}
		fed = bothFolded{p, beside}
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx)) // it stops after what feeds it
	defer stop()
	done := make(chan error, 1)
	go func() { done <- mode.run(p, runCtx) }()
	err = projections.Replay(ctx, o.events, fed, at.From, through, mode.options(p, at.From))
	if err == nil {
		// A service may still be at it in the background. What it will come to follows from the same events.
		err = p.Fold(ctx, o.events, mode.inMemory)
	}
	if err == nil {
		err = look(p)
	}
	stop()
	if runErr := <-done; runErr != nil && !errors.Is(err, runErr) {
		err = errors.Join(err, runErr)
	}
	return err
}

func describe(ctx context.Context, p *pane.Projection) (*folded, error) {
	d, err := p.Digest(ctx)
	if err != nil {
		return nil, err
	}
	_, states, unplanned, err := p.Streams(ctx)
	if err != nil {
		return nil, err
	}
	f := &folded{plan: p.Plan(), digest: d, streams: make(map[plan.StreamID]pane.StreamState, len(states)), unplanned: unplanned}
	for _, s := range states {
		f.streams[s.ID] = s
	}
	return f, nil
}

// progressLine keeps whoever waits informed: one line that changes on a terminal, and now and then a new one elsewhere.
type progressLine struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	meter    *projections.Meter
	last     time.Time
}

const (
	terminalEvery = 200 * time.Millisecond
	plainEvery    = 5 * time.Second
)

func newProgressLine(w io.Writer, now func() time.Time, meter *projections.Meter) *progressLine {
	return &progressLine{w: w, terminal: isTerminal(w), now: now, meter: meter, last: now()}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

func (l *progressLine) observe(seq log.Seq, samples uint64) {
	l.meter.Observe(seq, samples)
	every := plainEvery
	if l.terminal {
		every = terminalEvery
	}
	if now := l.now(); now.Sub(l.last) >= every {
		l.last = now
		l.print(l.meter.Progress())
	}
}

func (l *progressLine) print(p projections.Progress) {
	if l.terminal {
		fmt.Fprintf(l.w, "\r%s\x1b[K", p)
		return
	}
	fmt.Fprintln(l.w, p)
}

// end shows where the fold ended, with the rates of the whole.
func (l *progressLine) end() {
	l.print(l.meter.Total())
	if l.terminal {
		fmt.Fprintln(l.w)
	}
}
