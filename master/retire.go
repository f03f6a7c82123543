package master

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"tidemark/log"
)

// retireConcurrency is the number of experiments that are retired at one time: their events share the log's commits.
const retireConcurrency = 64

// errNotYet says that a retirement has to wait for a later round: nothing has failed.
var errNotYet = errors.New("not yet")

// retire retires what is due, the longest idle first, within a number and a time (M5). Any failure keeps the row.
func (w *work) retire(ctx context.Context) {
	after := w.m.settings().RetireAfter.Milliseconds()
	if after <= 0 {
		return
	}
	now := w.m.events.LogTime()
	var due []*Row
	for r := range w.all() {
		if idle(r, now, after) && r.Pending == 0 {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *Row) int {
		return cmp.Or(cmp.Compare(a.LastWriteLogTime, b.LastWriteLogTime), cmp.Compare(a.Name, b.Name))
	})
	due = due[:min(len(due), w.m.opts.RetireMax)]
	bound, cancel := context.WithTimeout(ctx, w.m.opts.RetireBudget)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(retireConcurrency)
	var mu sync.Mutex
	for _, r := range due {
		if bound.Err() != nil {
			break
		}
		g.Go(func() error {
			back, err := w.m.retireOne(bound, r.Name, after)
			mu.Lock()
			defer mu.Unlock()
			w.retiredOne(r, back, err)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// idle says whether an experiment has had no accepted sample for long enough, in log time.
func idle(r *Row, now, after int64) bool {
	return r.LastWriteLogTime == never || now-r.LastWriteLogTime >= after
}

// retiredOne takes note of how a retirement went.
func (w *work) retiredOne(r, back *Row, err error) {
	switch {
	case errors.Is(err, errNotYet):
	case err != nil:
		w.m.counters.retireFailures.Add(1)
		w.m.logger.Warn("an experiment could not be retired; it stays, and the next round tries again", "experiment", r.Name, "err", err)
	case back != nil:
		// A sample came between the last reading and the event. It is counted, and the experiment is hot.
		w.changed = slices.DeleteFunc(w.changed, func(c *Row) bool { return c.Name == r.Name })
		w.take(r, back)
	default:
		w.m.counters.retired.Add(1)
		w.result.Retired++
		w.rows[r.Name] = nil
		w.changed = slices.DeleteFunc(w.changed, func(c *Row) bool { return c.Name == r.Name })
		w.retired = append(w.retired, r.Name)
	}
}

// retireOne retires one experiment, in the order in which nothing can be lost: nothing open, its corrections compacted, a fresh look that
// finds it as the retirement began, and then the event. It returns the row of one that was written to just before the event.
func (m *Master) retireOne(ctx context.Context, name string, after int64) (*Row, error) {
	if !m.exec.claim(name) {
		return nil, errNotYet // a task has it
	}
	defer m.exec.unclaim(name)
	o, row, err := m.observation(ctx, name)
	if err != nil || row == nil {
		return nil, err
	}
	if o.Pending > 0 || o.Behind || !idle(row, m.events.LogTime(), after) {
		return nil, errNotYet
	}
	version := row.Version
	if o.Corrections > 0 {
		_, seq, err := m.compact(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("compact: %w", err)
		}
		if seq > 0 {
			version = seq
			if err := m.panes.Wait(ctx, seq); err != nil {
				return nil, err
			}
		}
	}
	if o, row, err = m.observation(ctx, name); err != nil || row == nil {
		return nil, err
	}
	if o.Pending > 0 || o.Behind || o.Corrections > 0 || row.Version != version {
		return nil, errNotYet // it moved
	}
	seq, err := m.events.Append(ctx, &log.ExperimentRetired{
		Experiment: name, AtVersion: row.Version, LastWrite: row.LastWrite, ClosedThrough: row.ClosedThrough, Parts: o.Parts, Later: o.Later,
	})
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	if err := errors.Join(m.panes.Wait(ctx, seq), m.fold.wait(ctx, seq)); err != nil {
		return nil, err
	}
	return m.observe(ctx, name)
}
