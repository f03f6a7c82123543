package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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
//
// A start does not wait for it: opening it takes as long as its write-ahead log is, and what it lacks at a crash it is fed more slowly
// than panes are. It is opened once the panes have caught up, so that it takes nothing from what the service is ready by, and the
// service is ready without it. What needs the copy waits until it has all that was acknowledged, at the start as at any time.
type exactCopy struct {
	events  *log.Log
	samples *sample.Projection
	runner  *projections.Runner
	lag     *lagMeter
	logger  *slog.Logger

	await    func(context.Context) error // until the copy's turn has come
	restored chan struct{}               // closed once the copy is open and runner knows from where to feed it
}

// openCopy prepares the exact copy, if one is to be kept: what can be told from its notes alone is checked. What an earlier
// configuration has left stays, and is no longer fed.
func (n *node) openCopy(exact plan.Exact) error {
	if !exact.Local {
		return nil
	}
	c := &exactCopy{events: n.events, logger: n.logger, await: n.awaitPanes, restored: make(chan struct{})}
	c.samples = sample.New(filepath.Join(n.flags.storagePath, copyDir), n.events, n.events.Dictionary(), copyOptions(exact, n.flags.ckpt, n.logger))
	newest, err := c.samples.Check()
	if err == nil {
		err = n.events.CheckAtLeast(newest, "the exact copy")
	}
	if err != nil {
		return err
	}
	c.runner = projections.NewRunner(n.events, c.samples)
	c.lag = newLagMeter(n.events, c)
	c.lag.counts = c.ready
	n.copy = c
	return nil
}

// awaitPanes waits until the panes have caught up with the log of before the start, or have stopped.
func (n *node) awaitPanes(ctx context.Context) error {
	_, target := n.runner.Progress()
	if err := n.runner.Wait(ctx, target); err != nil && n.stopped() == nil {
		return err
	}
	return nil
}

func copyOptions(exact plan.Exact, checkpoints time.Duration, logger *slog.Logger) sample.Options {
	return sample.Options{
		Retention: time.Duration(exact.Retention), MaxBytes: int64(exact.MaxSize), CheckpointInterval: checkpoints,
		Histograms: remotewrite.DecodeHistogram, Logger: logger,
	}
}

// follow opens the copy and feeds it until ctx ends. A copy that has stopped, or cannot be opened, ends nothing else: queries that need
// it are told why.
func (c *exactCopy) follow(ctx context.Context) error {
	if c == nil {
		<-ctx.Done()
		return nil
	}
	err := c.open(ctx)
	if err == nil {
		err = c.runner.Run(ctx)
	}
	if err == nil || ctx.Err() != nil || c.events.Err() != nil {
		return err
	}
	c.logger.Error("The exact copy has stopped: what only it can answer is an error until the next start", "err", err)
	<-ctx.Done()
	return nil
}

// open opens the copy, when its turn has come.
func (c *exactCopy) open(ctx context.Context) error {
	if err := c.await(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := c.runner.Restore(); err != nil {
		c.samples.Stop(err)
		return err
	}
	at, target := c.runner.Progress()
	c.logger.Info("The exact copy is open", "at", at, "of", target, "took", time.Since(began).Round(time.Millisecond))
	close(c.restored)
	return nil
}

// opened says whether the copy is open.
func (c *exactCopy) opened() bool {
	select {
	case <-c.restored:
		return true
	default:
		return false
	}
}

// ready says whether the copy has caught up once.
func (c *exactCopy) ready() bool { return c.opened() && c.runner.Ready() }

// durable is the last event that no restart asks the log for again, as far as that can be told before the copy is open.
func (c *exactCopy) durable() log.Seq {
	if !c.opened() {
		return 0
	}
	return c.samples.Durable()
}

// run writes the checkpoints of the copy, from when it is open, until ctx ends.
func (c *exactCopy) run(ctx context.Context) error {
	if c == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case <-c.restored:
	case <-ctx.Done():
		if !c.opened() {
			return nil
		}
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

// durable is the last event that no restart asks for again.
func (n *node) durable() log.Seq {
	durable := min(n.panes.Durable(), n.fold.Saved()) // what the fold has saved is in the base, because sealing flushes first
	if n.copy == nil {
		return durable
	}
	return min(durable, n.copy.durable())
}

// cardinality says what the copy holds in memory, the greatest first.
func (c *exactCopy) cardinality(limit int) api.Cardinality {
	head := c.samples.Head()
	if head == nil {
		return api.Cardinality{MinTime: math.MaxInt64, MaxTime: math.MinInt64}
	}
	s := head.Stats(model.MetricNameLabel, limit)
	p := s.IndexPostingStats
	return api.Cardinality{
		Series: int(s.NumSeries), LabelPairs: p.NumLabelPairs, MinTime: s.MinTime, MaxTime: s.MaxTime,
		ByMetric: p.CardinalityMetricsStats, ValuesByLabel: p.CardinalityLabelStats, BytesByLabel: p.LabelValueStats, Pairs: p.LabelValuePairsStats,
	}
}
