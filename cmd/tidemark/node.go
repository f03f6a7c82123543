package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/series"
	"tidemark/projections/window"
	"tidemark/transport/api"
)

// The parts of the storage directory.
const (
	logDir   = "log"
	viewsDir = "views"
	copyDir  = "sample"
	baseDir  = "base"
)

// failuresToReport is the number of consecutive checkpoint failures from which the service calls itself not ready.
const failuresToReport = 5

// node is the service without its HTTP side: the log, what is folded from it, and the gate in front of it.
type node struct {
	flags  *serveFlags
	logger *slog.Logger

	events  *log.Log
	index   *series.Index
	views   *bucket.Store
	compact *bucket.Compactor
	expirer *pane.Expirer
	keeper  *keeper
	panes   *pane.Projection
	windows *bucket.Windows
	runner  *projections.Runner
	fold    *master.Fold // of the control plane
	folding *projections.Runner
	master  *master.Master
	copy    *exactCopy // nil: none is kept
	ticker  *pane.Ticker
	gate    *gate
	fills   *pane.Backfiller
	lag     *lagMeter
	pulse   *pulse
	barrier *barrier
	census  *census
	ballast *ballast

	engine   *query.Engine    // set by recordWindows
	recorder *window.Recorder // set by recordWindows
	queryLog *api.QueryLog

	registry *prometheus.Registry
	started  time.Time
	caughtUp atomic.Bool // the start and the plan of this process are applied, and so is everything before them

	saidStopped   sync.Once
	masterStopped atomic.Pointer[error] // why the control plane has stopped; nil while it runs

	begun     chan struct{} // closed once the start of this process stands in the log
	reloading sync.Mutex    // one reload at a time
	backing   sync.Mutex    // one backup at a time
	current   atomic.Pointer[loaded]
	planning  sync.Mutex    // held while the log is truncated, and while what a plan event says of the log's floor comes into the log
	planned   atomic.Uint64 // the last plan event of this process
}

// loaded is a configuration that was read, with its plan.
type loaded struct {
	cfg    *plan.Config
	plan   *plan.Plan
	at     time.Time
	report plan.Report
	ok     bool // false after a reload that failed; cfg and plan are those in force
}

// openNode opens the stores and restores the projections. Nothing runs yet.
func openNode(f *serveFlags, cfg *plan.Config, p *plan.Plan, logger *slog.Logger) (*node, error) {
	n := &node{flags: f, logger: logger, index: series.New(), started: time.Now(), registry: prometheus.NewRegistry(), begun: make(chan struct{})}
	n.current.Store(&loaded{cfg: cfg, plan: p, at: n.started, ok: true})
	n.ballast = newBallast(f.storagePath, int64(f.ballast), logger)
	if err := checkStorage(f.around.storage(), f.storagePath); err != nil {
		return nil, err
	}
	if err := makeSpace(f.storagePath, f.around.freeBytes, n.ballast); err != nil {
		return nil, err
	}
	var err error
	if n.events, err = log.Open(filepath.Join(f.storagePath, logDir), log.Options{
		Logger: logger, FS: f.around.logDisk(), Now: f.around.now, Monotonic: f.around.monotonic, Room: n.roomFor,
		OnPoison: func(err error) {
			logger.Error("A write of the log failed; nothing more is acknowledged", "err", err)
		},
	}); err != nil {
		return nil, err
	}
	if err := n.openViews(); err != nil {
		return nil, errors.Join(err, n.events.Close())
	}
	if err := n.openCopy(cfg.Exact); err != nil {
		return nil, errors.Join(err, n.views.Close(), n.events.Close())
	}
	n.census = newCensus(cfg.ExperimentLabel, f.maxExperimentSeries, f.maxExperiments, n.events.Dictionary(), logger)
	n.lag = newLagMeter(n.events, n.panes)
	lags := lagMeters{n.lag}
	if n.copy != nil {
		lags = append(lags, n.copy.lag)
	}
	n.keeper = &keeper{
		events: n.events, durable: n.durable, views: n.views, bases: n.basesPath(), limits: n.limits, logger: logger, since: n.events.Head(),
		planning: &n.planning, settled: n.settled, wanted: n.panes.Wanted,
		forgetter: pane.NewForgetter(n.panes, n.events, n.events.Dictionary()),
	}
	if b, err := bucket.NewestBase(n.basesPath(), bucket.Options{}); err == nil {
		n.keeper.base.Store(b.Seq)
	}
	n.gate = &gate{
		events: n.events, lag: lags, ready: n.runner.Ready, maxLag: f.maxLag, path: f.storagePath, minFree: uint64(f.minFree), now: f.around.time,
		began: time.Now(), freeBytes: f.around.freeBytes, waiting: n.panes.Waiting, maxWaiting: maxWaiting, full: n.keeper.full,
	}
	if n.gate.freeBytes == nil {
		n.gate.freeBytes = statFree
	}
	if f.around.disk == nil && f.around.logFS == nil {
		n.gate.ballast = n.ballast
	}
	if err := n.gate.lookAtDisk(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	n.pulse = newPulse(n.events.Metrics, n.gate.now)
	n.ticker = pane.NewTicker(n.panes, tickLog{n.gate})
	n.fills = pane.NewBackfiller(n.panes, n.events, pane.BackfillOptions{Logger: logger})
	n.expirer = pane.NewExpirer(n.panes, n.events, logger)
	n.compact = bucket.NewCompactor(n.views, bucket.CompactorOptions{Logger: logger})
	if err := n.openMaster(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	n.barrier = &barrier{gate: n.gate, events: n.events, panes: n.panes, runner: n.runner, known: n.known}
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(n),
	} {
		if err := n.registry.Register(c); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), n.close())
		}
	}
	if n.queryLog, err = api.NewQueryLog(n.registry); err == nil {
		err = n.openQueryLog(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// minStartBytes is the free space without which nothing is opened: a start writes before it can give anything back.
const minStartBytes = 8 << 20

// makeSpace is checkSpace that lets the ballast go before it gives up.
func makeSpace(dir string, freeBytes func(string) (uint64, error), b *ballast) error {
	err := checkSpace(dir, freeBytes)
	if err == nil {
		return nil
	}
	released, rerr := b.release()
	if !released {
		return errors.Join(err, rerr)
	}
	return checkSpace(dir, freeBytes)
}

// checkSpace refuses to start on a full disk, before anything is touched. With a little more space, but less than the reserve,
// the service starts and answers queries.
func checkSpace(dir string, freeBytes func(string) (uint64, error)) error {
	if freeBytes == nil {
		freeBytes = statFree
	}
	at := dir
	for {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(at) == at {
			break // what is to be made comes onto the disk of the first directory above it that is there
		}
		at = filepath.Dir(at)
	}
	free, err := freeBytes(at)
	if err != nil {
		return fmt.Errorf("storage directory %s: free space: %w", dir, err)
	}
	if free < minStartBytes {
		return fmt.Errorf("storage directory %s: the disk is full: %d bytes are free, a start needs %d", dir, free, minStartBytes)
	}
	return nil
}

// checkStorage refuses a directory that is not ours, before anything in it is touched: one that holds something, but no log.
// Views without a log are refused too, because a log that has gone is never begun anew behind the back of what was folded
// from it.
func checkStorage(disk vfs.FS, dir string) error {
	names, err := disk.List(dir)
	if oserror.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("storage directory: %w", err)
	}
	foreign := ""
	for _, name := range names {
		switch name {
		case logDir:
			return nil
		case "lost+found":
		default:
			foreign = name
		}
	}
	if foreign != "" {
		return fmt.Errorf("storage directory %s: not one of tidemark: it holds %s and no %s", dir, foreign, logDir)
	}
	return nil
}

// openViews opens what is folded from the log, and restores it.
func (n *node) openViews() error {
	if err := n.index.Load(n.events.Dictionary()); err != nil {
		return err
	}
	n.index.Shade(func() []string {
		if p := n.panes.Plan(); p != nil {
			return p.Names()
		}
		return nil
	})
	// A rebuild may have been cut off while it put its views in place.
	if err := bucket.Settle(n.viewsPath(), bucket.Options{FS: n.flags.around.viewsDisk()}); err != nil {
		return err
	}
	err := n.restoreViews()
	damaged := bucket.Damaged(err) || errors.Is(err, pane.ErrCorruptState) || errors.Is(err, master.ErrCorrupt)
	if behind := new(behindFloor); errors.As(err, &behind) || damaged && n.events.Floor() > 1 {
		return n.restoreBase(err)
	}
	if damaged {
		// Nothing is lost: the log has it all.
		n.logger.Warn("The views are damaged; they are discarded and folded again from the log", "err", err)
		if err := bucket.Discard(n.viewsPath(), bucket.Options{FS: n.flags.around.viewsDisk()}); err != nil {
			return err
		}
		err = n.restoreViews()
	}
	return err
}

// restoreBase puts the base in the place of views that the log can no longer make anew.
func (n *node) restoreBase(cause error) error {
	n.logger.Warn("The views are missing or damaged, and the log was truncated; they are restored from the base", "err", cause)
	floor := n.events.Floor()
	base, err := bucket.RestoreBase(n.basesPath(), n.viewsPath(), n.events.Identity(), uint64(floor), bucket.Options{FS: n.flags.around.viewsDisk()})
	if err != nil {
		return fmt.Errorf("%w; the log begins at %d, so they cannot be folded again without a base: %w", cause, floor, err)
	}
	if err := n.restoreViews(); err != nil {
		return fmt.Errorf("views from base %s: %w", base.Path, err)
	}
	n.logger.Info("Views restored", "base", base.Path, "replay_from", base.Seq+1)
	return nil
}

// room says why the disk has no room for anything, or nil. There is no gate yet while the stores are opened.
func (n *node) room() error {
	if n.gate == nil {
		return nil
	}
	return n.gate.room()
}

// roomFor is room for an event. How a task ended is small, and said once.
func (n *node) roomFor(body log.Body) error {
	if _, ends := body.(*log.TaskFinished); ends {
		return nil
	}
	return n.room()
}

// limits are those of the log, by the configuration in force.
func (n *node) limits() limits {
	l := n.current.Load().cfg.Log
	return limits{age: time.Duration(l.Retention), size: uint64(l.MaxSize)}
}

// answersLive says whether steps that are not published are answered from open panes.
func (n *node) answersLive() bool {
	return n.current.Load().cfg.Query.Unpublished == plan.UnpublishedLive
}

func (n *node) viewsPath() string { return filepath.Join(n.flags.storagePath, viewsDir) }

func (n *node) basesPath() string { return filepath.Join(n.flags.storagePath, baseDir) }

func (n *node) restoreViews() error {
	var err error
	if n.views, err = bucket.Open(n.viewsPath(), n.events.Identity(), bucket.Options{
		Logger: n.logger, FS: n.flags.around.viewsDisk(), Room: n.room,
	}); err != nil {
		return err
	}
	heals := &healer{
		events: n.events, index: n.index, bases: n.basesPath(), workers: n.flags.workers,
		options: bucket.Options{FS: n.flags.around.viewsDisk(), Logger: n.logger},
	}
	n.panes = pane.New(n.events, n.index, n.views, pane.Options{
		Workers: n.flags.workers, CheckpointInterval: n.flags.ckpt, Logger: n.logger, Heal: heals.find,
	})
	n.runner = projections.NewRunner(n.events, n.panes)
	if err = n.runner.Restore(); err == nil {
		n.windows, err = bucket.NewWindows(n.views, uint64(n.events.Head()))
	}
	if err == nil {
		err = n.restoreMaster()
	}
	if err != nil {
		return errors.Join(err, n.views.Close())
	}
	for _, p := range []projections.Projection{n.panes, n.fold} {
		if at, err := p.Applied(); err == nil && at+1 < n.events.Floor() {
			return errors.Join(&behindFloor{at: at, floor: n.events.Floor()}, n.views.Close())
		}
	}
	return nil
}

// close closes the stores, after everything has stopped.
func (n *node) close() error {
	var err error
	if n.queryLog != nil {
		err = n.queryLog.Close()
	}
	return errors.Join(err, n.copy.close(), n.views.Close(), n.events.Close())
}

// openQueryLog opens the query log where the configuration wants it.
func (n *node) openQueryLog(cfg *plan.Config) error {
	path := cfg.Query.LogFile
	if path != "" && !filepath.IsAbs(path) {
		path = filepath.Join(cfg.Dir, path)
	}
	return n.queryLog.Open(path, time.Duration(cfg.Query.LogThreshold))
}

// startUp marks the start in the log, puts the plan in force and opens the gate. Then it waits until ctx ends.
func (n *node) startUp(ctx context.Context) error {
	if _, err := n.putInForce(ctx, n.current.Load().plan, &log.Start{Reason: log.StartProcess}); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("mark the start: %w", err)
	}
	n.gate.open.Store(true)
	close(n.begun)
	begin := time.Now()
	target := n.events.Head()
	if err := n.runner.Wait(ctx, target); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	n.caughtUp.Store(true)
	n.logger.Info("Ready", "replayed_to", target, "took", time.Since(begin).Round(time.Millisecond))
	<-ctx.Done()
	return nil
}

// putInForce appends a plan, behind what is to come before it. The streams that are new with it begin at the oldest event that the
// log has now, and none is truncated until the fold knows.
func (n *node) putInForce(ctx context.Context, p *plan.Plan, before ...log.Body) (log.Seq, error) {
	n.planning.Lock()
	defer n.planning.Unlock()
	floor, newest := n.events.Origin()
	if floor > 1 && newest == math.MaxInt64 {
		// Nobody can say from when on what is left in the log is whole.
		floor = 0
	}
	seq, err := n.events.AppendAll(ctx, append(before, &log.Plan{Spec: p.Begin(uint64(floor), newest, n.panes.HandedOver()).Encode()})...)
	if err == nil {
		n.planned.Store(uint64(seq))
	}
	return seq, err
}

// settled says whether the fold knows every plan of the log, so that it can say which events it still needs.
func (n *node) settled() bool {
	applied, err := n.panes.Applied()
	return err == nil && n.caughtUp.Load() && uint64(applied) >= n.planned.Load()
}

// runBackfills folds in the background what plans have added over a history, once replay is done, until ctx ends.
func (n *node) runBackfills(ctx context.Context) error {
	if err := n.runner.Wait(ctx, n.events.Head()); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return n.fills.Run(ctx)
}

// stopped returns the error that stopped the projection, or nil while it stands.
func (n *node) stopped() error {
	if _, err := n.panes.Applied(); err != nil {
		return fmt.Errorf("projection %s: %w", n.panes.Name(), err)
	}
	return nil
}

// outlive makes of a part that needs the projection one that goes on, doing nothing, when the projection has stopped.
func (n *node) outlive(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		if err == nil || ctx.Err() != nil || n.events.Err() != nil {
			return err
		}
		why := n.stopped()
		if why == nil {
			return err
		}
		n.saidStopped.Do(func() {
			n.logger.Error("A projection has stopped: queries and barriers get its error, and writes are taken until the lag is too large", "err", why)
		})
		<-ctx.Done()
		return nil
	}
}

// reload reads the configuration again and puts the new plan in force. A configuration with an error changes nothing. The
// plan of the start comes first, or it would undo what a reload during the start has done.
func (n *node) reload(ctx context.Context) error {
	select {
	case <-n.begun:
	case <-ctx.Done():
		return ctx.Err()
	}
	n.reloading.Lock()
	defer n.reloading.Unlock()
	old := n.current.Load()
	failed := func(err error) error {
		n.current.Store(&loaded{cfg: old.cfg, plan: old.plan, at: old.at, report: old.report})
		return err
	}
	cfg, p, report, err := n.flags.loadPlan()
	if err != nil {
		return failed(err)
	}
	if err := n.openQueryLog(cfg); err != nil { // anew: it may have been moved away
		return failed(err)
	}
	var seq log.Seq
	if !p.Equal(old.plan) {
		// Whoever asked may leave, and must not leave open whether the plan stands in the log.
		if seq, err = n.putInForce(context.WithoutCancel(ctx), p); err != nil {
			return failed(fmt.Errorf("append the plan: %w", err))
		}
	}
	reportFindings(n.logger, report)
	n.current.Store(&loaded{cfg: cfg, plan: p, at: time.Now(), report: report, ok: true})
	if !reflect.DeepEqual(cfg.Exact, old.cfg.Exact) {
		n.logger.Warn("exact has changed; the change takes effect at the next start")
	}
	if err := n.runner.Wait(ctx, seq); err != nil {
		return fmt.Errorf("apply the plan: %w", err)
	}
	n.logger.Info("Configuration reloaded", "materializations", len(p.Materializations), "streams", len(p.Streams))
	return nil
}

// reloadLoudly is reload, which says in the log of the service that it failed: whoever asked may not be who looks after it.
func (n *node) reloadLoudly(ctx context.Context) error {
	err := n.reload(ctx)
	if err != nil {
		n.logger.Error("Reload failed; the plan in force stays", "err", err)
	}
	return err
}

// Replaying implements transport.Replay.
func (n *node) Replaying() (string, bool) {
	// A projection that has stopped will not catch up; whoever reads it is told why.
	if n.caughtUp.Load() || n.stopped() != nil {
		return "", false
	}
	applied, target := n.runner.Progress()
	return fmt.Sprintf("replaying: %d of %d events", min(applied, target), target), true
}

// Reasons implements transport.Readiness.
func (n *node) Reasons() []string {
	reasons := n.gate.reasons()
	if err := n.stopped(); err != nil {
		reasons = append(reasons, fmt.Sprintf("stopped: %s", err))
	} else if err := n.masterStopped.Load(); err != nil {
		reasons = append(reasons, fmt.Sprintf("stopped: %s", *err))
	}
	if k := n.panes.CheckpointFailures(); k >= failuresToReport {
		reasons = append(reasons, fmt.Sprintf("projection %s failed to write its last %d checkpoints", n.panes.Name(), k))
	}
	return append(append(reasons, n.copy.reasons()...), n.keeper.reasons()...)
}

// configText is the configuration in force, without secrets.
func (n *node) configText() string { return n.current.Load().cfg.String() }

func (n *node) runtimeState() api.RuntimeState {
	c := n.current.Load()
	return api.RuntimeState{Start: n.started, LastConfig: c.at, ReloadOK: c.ok, Retention: fmt.Sprintf("%v or %v of the log", c.cfg.Log.Retention, c.cfg.Log.MaxSize)}
}
