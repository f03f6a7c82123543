package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// healer finds what the heals in a log change, for whoever folds it.
type healer struct {
	events  *log.Log
	index   *series.Index
	bases   string // directory of the bases
	options bucket.Options
	workers int

	progress io.Writer // nil: says nothing
	now      func() time.Time

	mu    sync.Mutex                 // one search at a time
	known map[log.Heal]*pane.Healing // found already, and asked for again: by the fold, and by that of each later generation
}

// find is pane.Options.Heal.
func (h *healer) find(ctx context.Context, ev log.Heal) (found *pane.Healing, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found := h.known[ev]; found != nil {
		return found, nil
	}
	defer func() {
		if err == nil && found.Later > 0 {
			h.remember(ev, found)
		}
	}()
	base, begin, err := h.base(ev.From)
	if err != nil {
		return nil, err
	}
	if base != nil {
		defer func() { err = errors.Join(err, base.Close()) }()
	}
	opts := pane.FindOptions{Workers: h.workers}
	if h.progress != nil {
		var line *progressLine
		pass := 0
		opts.Observe = func(p int, at log.Seq, samples uint64) {
			if p != pass {
				if line != nil {
					line.end()
				}
				pass = p
				fmt.Fprintf(h.progress, "finding late samples up to sequence %d, pass %d\n", ev.Through, p)
				line = newProgressLine(h.progress, h.now, projections.NewMeter(min(begin, at), ev.Through, h.now))
			}
			line.observe(at, samples)
		}
		defer func() {
			if line != nil {
				line.end()
			}
		}()
	}
	return pane.FindLate(ctx, h.events, h.index, base, ev, opts)
}

func (h *healer) remember(ev log.Heal, found *pane.Healing) {
	if h.known == nil {
		h.known = make(map[log.Heal]*pane.Healing)
	}
	h.known[ev] = found
}

// base opens the base that a heal goes back to, which reflects the events up to begin at least; nil where it can begin with the
// first event instead.
func (h *healer) base(from log.Seq) (store *bucket.Store, begin log.Seq, err error) {
	floor := h.events.Floor()
	err = fmt.Errorf("the heal goes back to sequence %d, and the log begins at %d", from, floor)
	if from > 0 {
		var b bucket.Base
		b, err = bucket.BaseOf(h.bases, h.events.Identity(), uint64(floor), h.options)
		if err == nil {
			store, err = bucket.OpenBase(b, h.options)
		}
		if err == nil {
			var newest uint64
			if newest, err = store.Newest(); err == nil && newest <= uint64(from) {
				return store, log.Seq(b.Seq), nil
			}
			if err == nil {
				err = fmt.Errorf("the heal goes back to sequence %d, and base %s reflects %d already", from, b.Path, newest)
			}
			err = errors.Join(err, store.Close())
		}
	}
	if floor == 1 {
		return nil, 0, nil
	}
	return nil, 0, err
}

// heal finds what was refused as late, says what that changes, and puts a heal into the log, which a fold honours from then on. It
// returns false if there is nothing to heal.
func (r *rebuild) heal(ctx context.Context, o *offline, start origin, stdout io.Writer) (bool, error) {
	ev := log.Heal{Through: o.events.Head(), From: start.newest}
	found, err := o.healer.find(ctx, ev)
	if err != nil {
		return false, err
	}
	if err := printHealing(stdout, found, ev); err != nil {
		return false, err
	}
	if found.Total().Buckets == 0 {
		fmt.Fprintln(stdout, "Nothing is left to heal; nothing was changed.")
		return false, nil
	}
	seq, err := appendOffline(ctx, o.events, &ev)
	if err != nil {
		return false, fmt.Errorf("append the heal: %w", err)
	}
	o.healer.remember(ev, found)
	fmt.Fprintf(stdout, "The heal stands in the log at sequence %d; whatever folds the log from now on heals up to sequence %d.\n", seq, ev.Through)
	return true, nil
}

// appendOffline appends one event to a log that nobody runs.
func appendOffline(ctx context.Context, events *log.Log, body log.Body) (log.Seq, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- events.Run(run) }()
	seq, err := events.Append(ctx, body)
	stop()
	return seq, errors.Join(err, <-done)
}

// printHealing says for each materialization what a heal changes. A stream that several share counts in each.
func printHealing(w io.Writer, found *pane.Healing, ev log.Heal) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(kind, name string, c pane.HealCounts) {
		fmt.Fprintf(tw, "%s\t%s\t%d late samples\tin %d buckets\t%d differ\t%d were incomplete\n", kind, name, c.Samples, c.Buckets, c.Changed, c.Marks)
	}
	planned := make(map[plan.StreamID]bool)
	for i := range found.Plan.Materializations {
		m := &found.Plan.Materializations[i]
		line("materialization", m.Name, found.Of(m.Streams))
		for _, id := range m.Streams {
			planned[id] = true
		}
	}
	for _, id := range found.StreamIDs() {
		if !planned[id] {
			line("unplanned stream", id.String(), found.Streams[id])
		}
	}
	total := found.Total()
	line("all", fmt.Sprintf("seq %d", ev.Through), total)
	if err := tw.Flush(); err != nil {
		return err
	}
	if total.Unreachable > 0 {
		fmt.Fprintf(w, "%d late samples fall into buckets of before the base, which ends at sequence %d, and stay refused.\n", total.Unreachable, ev.From)
	}
	return nil
}

// openToHeal is openOffline for one who appends to the log.
func openToHeal(fs vfs.FS, path string, workers int, now func() time.Time, monotonic func() time.Duration) (*offline, error) {
	o, err := openOffline(fs, path, workers, discard())
	if err != nil {
		return nil, err
	}
	if err := o.close(); err != nil {
		return nil, err
	}
	events, err := log.Open(fs.PathJoin(path, logDir), log.Options{FS: fs, Logger: discard(), Now: now, Monotonic: monotonic})
	if err != nil {
		return nil, err
	}
	return newOffline(fs, path, workers, discard(), events)
}
