package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/transport/api"
)

// laggingAfter is how long the panes may be behind the log before the table of experiments calls itself stale.
const laggingAfter = 5 * time.Second

// counts reads experiments out of the panes, for the master.
type counts struct{ panes *pane.Projection }

// Versions implements master.Source.
func (c counts) Versions(ctx context.Context) (log.Seq, map[string]log.Seq, error) {
	return c.panes.ExperimentVersions(ctx)
}

// Observe implements master.Source.
func (c counts) Observe(ctx context.Context, name string) (master.Observation, bool, error) {
	seq, x, ok, err := c.panes.Experiment(ctx, name)
	return master.Observation{
		Seq: seq, Version: x.Version, Series: x.Series, Samples: x.Samples, Buckets: x.Buckets, Corrections: x.Corrections,
		WorstBucket: x.WorstBucket, LastCorrectedAt: x.LastCorrectedAt, Pending: x.Pending, OldestPending: x.OldestPending,
		LastWrite: x.LastWrite, LastWriteLogTime: x.LastWriteLogTime, ClosedThrough: x.ClosedThrough, Parts: x.Parts,
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
	n.master, err = master.New(counts{n.panes}, n.fold, n.events, n.views.Rows(master.SnapshotSpace), master.Options{
		Settings: n.statsSettings, Now: n.flags.around.time, Logger: n.logger,
		Lagging: func() bool { return n.lag.lag(n.gate.now()) > laggingAfter },
	})
	return err
}

// statsSettings are those of the configuration in force.
func (n *node) statsSettings() master.Settings {
	s := n.current.Load().cfg.Stats
	return master.Settings{
		ScanInterval: time.Duration(s.ScanInterval), RetireAfter: time.Duration(s.RetireAfter), SweepInterval: time.Duration(s.SweepInterval),
		AuditEvery: s.AuditEvery,
	}
}

// runMaster folds the control plane's events, and runs the control plane once everything has caught up.
func (n *node) runMaster(ctx context.Context) error {
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
	return &api.Experiments{Lister: n.master, Reader: n.master, History: n.master, Head: n.events.Head}
}
