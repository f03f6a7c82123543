package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/series"
)

// replay measures how fast a log becomes panes, in the way in which a start of the service without views does it. The log is
// only read; the panes go to a temporary directory. It returns the samples folded per second.
func (b *bench) replay(ctx context.Context, storage string) (rate float64, err error) {
	events, err := log.OpenReadOnly(filepath.Join(storage, logDir), log.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	err = inScratch(func(dir string) (err error) {
		index := series.New()
		if err := index.Load(events.Dictionary()); err != nil {
			return err
		}
		views, err := bucket.Open(filepath.Join(dir, viewsDir), events.Identity(), bucket.Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, views.Close()) }()
		b.step("replaying %d events", events.Head())
		heals := &healer{events: events, index: index, bases: filepath.Join(storage, baseDir)}
		counted := &countedPanes{Projection: pane.New(events, index, views, pane.Options{Heal: heals.find})}
		heap, cpu := watchHeap(), processorTime()
		elapsed, err := replayTo(ctx, events, counted)
		used, growth := processorTime()-cpu, heap.stop()
		if err != nil {
			return err
		}
		rate = float64(counted.samples) / elapsed.Seconds()
		b.report.figure(fmt.Sprintf("Replay/series=%d", index.Len()), counted.samples, rate, "samples/s")
		b.report.figure("Replay", counted.samples, float64(used.Nanoseconds())/float64(counted.samples), "cpu-ns/sample")
		b.report.figure("Replay/heap", counted.samples, growth, "second-half/first-half")
		return nil
	})
	return rate, err
}

// replayTo runs the panes until they have applied everything that is in the log.
func replayTo(ctx context.Context, events *log.Log, panes *countedPanes) (time.Duration, error) {
	runner := projections.NewRunner(events, panes)
	if err := runner.Restore(); err != nil {
		return 0, err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	began, elapsed := time.Now(), time.Duration(0)
	g, run := errgroup.WithContext(run)
	g.Go(func() error { return panes.Run(run) })
	g.Go(func() error { return runner.Run(run) })
	g.Go(func() error {
		defer stop()
		err := runner.Wait(run, events.Head())
		elapsed = time.Since(began)
		return err
	})
	err := g.Wait()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case elapsed > 0 && errors.Is(err, bucket.ErrStuck):
		err = nil // the disk was too slow for the last checkpoint, which is behind what is measured
	}
	return elapsed, err
}

// countedPanes counts the samples that the panes are given.
type countedPanes struct {
	*pane.Projection
	samples uint64
}

// Apply implements projections.Projection.
func (c *countedPanes) Apply(ctx context.Context, evs []*log.Event) error {
	for _, e := range evs {
		if w, ok := e.Body.(*log.Write); ok {
			c.samples += uint64(len(w.Times))
		}
	}
	return c.Projection.Apply(ctx, evs)
}
