package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/transport/api"
)

// laggingAfter is how long the panes may be behind the log before the table of experiments calls itself stale.
const laggingAfter = 5 * time.Second

// counts reads experiments out of the panes, for the master.
type counts struct{ panes *pane.Projection }

// Versions implements master.Source.
func (c counts) Versions(ctx context.Context) (master.Versions, error) {
	v, err := c.panes.ExperimentVersions(ctx)
	out := master.Versions{Seq: v.Seq, Behind: v.Behind, Of: make(map[string]master.Version, len(v.Of))}
	for name, of := range v.Of {
		out.Of[name] = master.Version{Seq: of.Version, Basis: of.Basis}
	}
	return out, err
}

// Observe implements master.Source.
func (c counts) Observe(ctx context.Context, name string) (master.Observation, bool, error) {
	seq, x, ok, err := c.panes.Experiment(ctx, name)
	return master.Observation{
		Seq: seq, Version: x.Version, Basis: x.Basis, Behind: x.Behind, Series: x.Series, Samples: x.Samples, Buckets: x.Buckets, Corrections: x.Corrections,
		WorstBucket: x.WorstBucket, LastCorrectedAt: x.LastCorrectedAt, Pending: x.Pending, OldestPending: x.OldestPending,
		LastWrite: x.LastWrite, LastWriteLogTime: x.LastWriteLogTime, ClosedThrough: x.ClosedThrough, Parts: x.Parts, Later: x.Later,
	}, ok, err
}

// restoreMaster restores what the master folds from the log itself.
func (n *node) restoreMaster() error {
	n.fold = master.NewFold(n.views.Rows(master.FoldSpace), n.events.Floor(), experimentLabel, n.logger)
	n.folding = projections.NewRunner(n.events, n.fold)
	return n.folding.Restore()
}

func experimentLabel(spec []byte) (string, error) {
	p, err := plan.Decode(spec)
	if err != nil {
		return "", err
	}
	return p.ExperimentLabel, nil
}

// openMaster opens the table of experiments.
func (n *node) openMaster() error {
	var err error
	if n.master, err = n.newMaster(master.Options{}); err == nil {
		err = n.registry.Register(master.NewMetrics(n.master))
	}
	return err
}

// newMaster returns the control plane over the node's parts.
func (n *node) newMaster(opts master.Options) (*master.Master, error) {
	opts.Settings, opts.Now, opts.Logger = n.statsSettings, n.flags.around.time, n.logger
	opts.Lagging = func() bool { return n.lag.lag(n.gate.now()) > laggingAfter }
	return master.New(master.Deps{
		Source: counts{n.panes}, Loads: loads{n.panes}, Pieces: pieces{n.panes, n.views}, Panes: n.runner, Fold: n.fold,
		Events: controlLog{n}, Rows: n.views.Rows(master.SnapshotSpace),
	}, opts)
}

// loads reads out of the panes which experiments have something open or uncompacted.
type loads struct{ panes *pane.Projection }

// Loads implements master.Loads.
func (l loads) Loads(ctx context.Context) ([]master.Load, error) {
	_, found, err := l.panes.ExperimentLoads(ctx)
	out := make([]master.Load, len(found))
	for i, x := range found {
		out[i] = master.Load(x)
	}
	return out, err
}

// pieces merges what corrections have left in the views.
type pieces struct {
	panes *pane.Projection
	views *bucket.Store
}

// Corrected implements master.Pieces.
func (p pieces) Corrected(ctx context.Context, name string) ([]master.Spot, error) {
	_, spots, err := p.panes.CorrectedSpots(ctx, name)
	out := make([]master.Spot, len(spots))
	for i, s := range spots {
		out[i] = master.Spot{Key: s.Key, Shard: s.Shard}
	}
	return out, err
}

// Merge implements master.Pieces.
func (p pieces) Merge(s master.Spot) (bucket.Compaction, error) {
	return p.views.Compact(s.Key, s.Shard)
}

// Limit implements master.Pieces.
func (p pieces) Limit() log.Seq { return log.Seq(p.views.MergeLimit()) }

// controlLog is the log as the control plane writes it. Ticks go through the gate, like all ticks.
type controlLog struct{ n *node }

// Append implements master.Log.
func (l controlLog) Append(ctx context.Context, body log.Body) (log.Seq, error) {
	if tick, ok := body.(*log.Tick); ok {
		return tickLog{l.n.gate}.Append(ctx, tick)
	}
	return l.n.events.Append(ctx, body)
}

// LogTime implements master.Log.
func (l controlLog) LogTime() int64 { return l.n.events.LogTime() }

// statsSettings are those of the configuration in force.
func (n *node) statsSettings() master.Settings {
	s := n.current.Load().cfg.Stats
	return master.Settings{
		ScanInterval: time.Duration(s.ScanInterval), RetireAfter: time.Duration(s.RetireAfter), SweepInterval: time.Duration(s.SweepInterval),
		AuditEvery: s.AuditEvery,
	}
}

// runMaster runs the control plane until ctx ends. One that has stopped ends nothing else: the table of experiments stays as it is
// and calls itself stale, the service is not ready, and the log is kept for the next start.
func (n *node) runMaster(ctx context.Context) error {
	err := n.controlPlane(ctx)
	if err == nil || ctx.Err() != nil || n.events.Err() != nil {
		return err
	}
	n.masterStopped.Store(&err)
	n.logger.Error("The control plane has stopped: experiments and tasks stay as they are until the next start", "err", err)
	<-ctx.Done()
	return nil
}

// controlPlane folds the control plane's events, and runs the control plane once everything has caught up.
func (n *node) controlPlane(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.folding.Run(ctx) })
	g.Go(func() error {
		select {
		case <-n.begun:
		case <-ctx.Done():
			return nil
		}
		head := n.events.Head()
		for _, r := range []*projections.Runner{n.runner, n.folding} {
			if err := r.Wait(ctx, head); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
		return n.master.Run(ctx)
	})
	return g.Wait()
}

// experiments are the routes about them.
func (n *node) experiments() *api.Experiments {
	return &api.Experiments{Lister: n.master, Reader: askedReader{n}, History: n.master, Head: n.events.Head}
}

// askedReader reads experiments for who asks over HTTP: everything acknowledged before the request is in what it reads, unless the
// panes lag by more than laggingAfter; then the row's as_of_seq says up to where.
type askedReader struct{ n *node }

// Returned implements api.ExperimentReader. What is not applied yet may be about any experiment.
func (r askedReader) Returned(name string) bool {
	applied, _ := r.n.runner.Progress()
	return r.n.panes.Counts(name) || applied < r.n.events.Head()
}

// Fresh implements api.ExperimentReader.
func (r askedReader) Fresh(ctx context.Context, name string) (*master.Row, error) {
	behind := r.catchUp(ctx)
	row, err := r.n.master.Fresh(ctx, name)
	if errors.Is(err, master.ErrUnknown) && behind != nil {
		// It may have been written to; what was not looked at is not denied.
		return nil, api.Unavailable(1, fmt.Sprintf("whether there is such an experiment is not known yet: the panes are behind the log: %v", behind))
	}
	return row, err
}

// Rescan implements api.ExperimentReader.
func (r askedReader) Rescan(ctx context.Context, name string) (*master.Row, error) {
	_ = r.catchUp(ctx)
	return r.n.master.Rescan(ctx, name)
}

// Round implements api.ExperimentReader.
func (r askedReader) Round(ctx context.Context) (master.RoundResult, error) {
	_ = r.catchUp(ctx)
	return r.n.master.Round(ctx)
}

// catchUp waits for the panes to fold what the log holds now. Where they have stopped or lag it says so, and what they have folded can be
// read all the same.
func (r askedReader) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, laggingAfter)
	defer cancel()
	return r.n.runner.Wait(ctx, r.n.events.Head())
}

// known says whether an experiment was ever seen, for whoever names one in a barrier.
func (n *node) known(ctx context.Context, name string) (bool, error) {
	err := n.master.Seen(ctx, name)
	if errors.Is(err, master.ErrUnknown) {
		return false, nil
	}
	return err == nil, err
}

// tasks are the routes about tasks.
func (n *node) tasks() *api.Tasks { return &api.Tasks{Queue: n.master, Scheduler: n.master} }
