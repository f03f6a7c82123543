package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/common/model"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/plan"
	"tidemark/projections/sample"
	"tidemark/transport/api"
	"tidemark/transport/remotewrite"
)

// exactCopy is the exact copy with what feeds it. A nil one is none: its methods do nothing.
type exactCopy struct {
	events  *log.Log
	samples *sample.Projection
	runner  *projections.Runner
	lag     *lagMeter
	logger  *slog.Logger
}

// openCopy opens the exact copy, if one is to be kept. What an earlier configuration has left stays, and is no longer fed.
func (n *node) openCopy(exact plan.Exact) error {
	if !exact.Local {
		return nil
	}
	c := &exactCopy{events: n.events, logger: n.logger}
	c.samples = sample.New(filepath.Join(n.flags.storagePath, copyDir), n.events, n.events.Dictionary(), copyOptions(exact, n.flags.ckpt, n.logger))
	c.runner = projections.NewRunner(n.events, c.samples)
	if err := c.runner.Restore(); err != nil {
		return errors.Join(err, c.samples.Close())
	}
	c.lag = newLagMeter(n.events, c)
	n.copy = c
	return nil
}

func copyOptions(exact plan.Exact, checkpoints time.Duration, logger *slog.Logger) sample.Options {
	return sample.Options{
		Retention: time.Duration(exact.Retention), MaxBytes: int64(exact.MaxSize), CheckpointInterval: checkpoints,
		Histograms: remotewrite.DecodeHistogram, Logger: logger,
	}
}

// follow feeds the copy until ctx ends. A copy that has stopped ends nothing else: queries that need it are told why.
func (c *exactCopy) follow(ctx context.Context) error {
	if c == nil {
		<-ctx.Done()
		return nil
	}
	err := c.runner.Run(ctx)
	if err == nil || ctx.Err() != nil || c.events.Err() != nil {
		return err
	}
	c.logger.Error("The exact copy has stopped: what only it can answer is an error until the next start", "err", err)
	<-ctx.Done()
	return nil
}

// run writes the checkpoints of the copy until ctx ends.
func (c *exactCopy) run(ctx context.Context) error {
	if c == nil {
		<-ctx.Done()
		return nil
	}
	return c.samples.Run(ctx)
}

func (c *exactCopy) close() error {
	if c == nil {
		return nil
	}
	return c.samples.Close()
}

// stopped returns the error that stopped the copy, or nil while it stands.
func (c *exactCopy) stopped() error {
	if c == nil {
		return nil
	}
	if _, err := c.samples.Applied(); err != nil {
		return fmt.Errorf("projection %s: %w", c.samples.Name(), err)
	}
	return nil
}

// reasons says in words why the copy is not ready.
func (c *exactCopy) reasons() (reasons []string) {
	if c == nil {
		return nil
	}
	if err := c.stopped(); err != nil {
		return []string{fmt.Sprintf("stopped: %s", err)}
	}
	if !c.runner.Ready() {
		applied, target := c.runner.Progress()
		reasons = append(reasons, fmt.Sprintf("the exact copy is being folded: %d of %d events", min(applied, target), target))
	}
	if k := c.samples.CheckpointFailures(); k >= failuresToReport {
		reasons = append(reasons, fmt.Sprintf("projection %s failed to write its last %d checkpoints", c.samples.Name(), k))
	}
	return reasons
}

// Applied is what the lag is measured by. A copy that has stopped keeps the log from being truncated, and the service from being
// ready, but no writes from being taken: it has no lag.
func (c *exactCopy) Applied() (log.Seq, error) {
	applied, err := c.samples.Applied()
	if err != nil {
		applied = c.events.Head()
	}
	return applied, nil
}

// replayed says whether the projections have caught up once.
func (n *node) replayed() bool {
	return n.runner.Ready() && (n.copy == nil || n.copy.stopped() != nil || n.copy.runner.Ready())
}

// durable is the last event that no restart asks for again.
func (n *node) durable() log.Seq {
	durable := min(n.panes.Durable(), n.fold.Saved()) // what the fold has saved is in the base, because sealing flushes first
	if n.copy == nil {
		return durable
	}
	return min(durable, n.copy.samples.Durable())
}

// cardinality says what the copy holds in memory, the greatest first.
func (c *exactCopy) cardinality(limit int) api.Cardinality {
	s := c.samples.Head().Stats(model.MetricNameLabel, limit)
	p := s.IndexPostingStats
	return api.Cardinality{
		Series: int(s.NumSeries), LabelPairs: p.NumLabelPairs, MinTime: s.MinTime, MaxTime: s.MaxTime,
		ByMetric: p.CardinalityMetricsStats, ValuesByLabel: p.CardinalityLabelStats, BytesByLabel: p.LabelValueStats, Pairs: p.LabelValuePairsStats,
	}
}
