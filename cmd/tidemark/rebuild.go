package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// rebuild folds the log into fresh views.
type rebuild struct {
	fs         vfs.FS
	path       string // of the storage
	projection string
	configFile string
	until      uint64 // 0: the end of the log
	workers    int
	verify     bool
	healing    bool

	now       func() time.Time
	monotonic func() time.Duration      // of log time; nil: the machine's
	write     projections.ReplayOptions // when what is folded is written; zero but in tests
}

func newRebuild(app *kingpin.Application) command {
	r := &rebuild{fs: vfs.Default, now: time.Now}
	c := app.Command("rebuild", "Fold the log into fresh views and put them in the place of those that stand: from the newest base on, or from the first event "+
		"where there is none. No service may run. When it is interrupted, the next one goes on.")
	storageFlag(c, &r.path)
	c.Flag("projection", "What to fold: the panes, or the exact copy.").Default("pane").EnumVar(&r.projection, "pane", "sample")
	c.Flag("config.file", "Configuration file, for the retention of the exact copy.").Default(defaultConfigFile).StringVar(&r.configFile)
	c.Flag("until-seq", "Last event to fold; a start replays the rest. 0 = the end of the log.").Default("0").Uint64Var(&r.until)
	c.Flag("workers", "Goroutines that fold. 0 = one for each CPU.").Default("0").IntVar(&r.workers)
	c.Flag("verify", "Compare with the views that stand, and leave them in place. Exit code 1 if they differ.").BoolVar(&r.verify)
	c.Flag("heal", "Put the samples that came too late to be folded into their place, up to the end of the log and back to the newest base, so that "+
		"the published buckets are what they would be had nothing been late. It appends a heal to the log, which every later fold honours.").BoolVar(&r.healing)
	return command{c, r.run}
}

func (r *rebuild) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if r.healing && (r.verify || r.until != 0) {
		return &exitError{exitUsage, errors.New("--heal goes to the end of the log, and changes the views: it takes no --until-seq and no --verify")}
	}
	o, err := r.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	o.healer.progress, o.healer.now = stderr, r.now
	through := o.events.Head()
	if r.until != 0 {
		through = log.Seq(r.until)
	}
	if through > o.events.Head() {
		return &exitError{exitUsage, fmt.Errorf("--until-seq: sequence %d: the log ends at sequence %d", through, o.events.Head())}
	}
	switch {
	case r.projection == "sample" && r.healing:
		return &exitError{exitUsage, errors.New("--heal is about panes: the exact copy takes late samples as they come")}
	case r.projection == "sample":
		return r.rebuildCopy(ctx, o, through, stdout, stderr)
	}
	return r.rebuildPanes(ctx, o, through, stdout, stderr)
}

// rebuildPanes folds the log into fresh views.
func (r *rebuild) rebuildPanes(ctx context.Context, o *offline, through log.Seq, stdout, stderr io.Writer) error {
	start, err := o.start()
	if err != nil {
		return err
	}
	if start.base != nil && through < start.newest {
		return &exitError{exitUsage, fmt.Errorf("--until-seq: sequence %d is below the base from which a rebuild starts, which reflects sequence %d", through, start.newest)}
	}
	if err := bucket.Settle(o.viewsPath(), o.viewsOptions()); err != nil {
		return err
	}
	if start.base != nil {
		fmt.Fprintf(stderr, "starting from base %s\n", start.base.Path)
	}
	if r.healing {
		if heals, err := r.heal(ctx, o, start, stdout); err != nil || !heals {
			return err
		}
		through = o.events.Head()
	}
	if r.verify {
		return r.compare(ctx, o, start, through, stdout, stderr)
	}
	if err := r.fold(ctx, o, start, through, stderr, func(*pane.Projection) error { return nil }); err != nil {
		return err
	}
	if err := bucket.Swap(o.viewsPath(), o.viewsOptions()); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s reflects the log up to sequence %d\n", o.viewsPath(), through)
	return nil
}

func (r *rebuild) open() (*offline, error) {
	if r.healing {
		return openToHeal(r.fs, r.path, r.workers, r.now, r.monotonic)
	}
	return openOffline(r.fs, r.path, r.workers, discard())
}

// fold makes the rebuild directory complete up to through.
func (r *rebuild) fold(ctx context.Context, o *offline, start origin, through log.Seq, stderr io.Writer, look func(*pane.Projection) error) error {
	hash, err := o.events.HashAt(through)
	if err != nil {
		return err
	}
	work := bucket.Work{
		Identity: o.events.Identity(), Through: uint64(through), Hash: hash, Program: build().Version + " " + build().Revision,
	}
	resumes, err := bucket.BeginRebuild(o.viewsPath(), work, start.base, o.viewsOptions())
	if err != nil {
		return err
	}
	err = r.foldInto(ctx, o, through, stderr, look)
	if resumes && unusable(err) {
		fmt.Fprintf(stderr, "what an earlier rebuild has left cannot be used, and is folded again: %v\n", err)
		if err := bucket.DropRebuild(o.viewsPath(), o.viewsOptions()); err != nil {
			return err
		}
		if _, err := bucket.BeginRebuild(o.viewsPath(), work, start.base, o.viewsOptions()); err != nil {
			return err
		}
		err = r.foldInto(ctx, o, through, stderr, look)
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted; the next `tidemark rebuild` up to sequence %d goes on from here: %w", through, err)
	}
	return err
}

func (r *rebuild) foldInto(ctx context.Context, o *offline, through log.Seq, stderr io.Writer, look func(*pane.Projection) error) error {
	store, err := bucket.Open(bucket.RebuildDir(o.viewsPath()), o.events.Identity(), o.viewsOptions())
	if err != nil {
		return err
	}
	var line *progressLine
	options := func(p *pane.Projection, from log.Seq) projections.ReplayOptions {
		if from > 0 {
			fmt.Fprintf(stderr, "going on after sequence %d\n", from)
		}
		line = newProgressLine(stderr, r.now, projections.NewMeter(from, through, r.now))
		opts := r.write
		opts.Writer, opts.Observe = p, line.observe
		return opts
	}
	control := &controlFold{fold: master.NewFold(store.Rows(master.FoldSpace), o.events.Floor(), experimentLabel, discard())}
	beside := func(ctx context.Context, from log.Seq) (applier, error) {
		return control, control.begin(ctx, o.events, from)
	}
	err = o.replay(ctx, store, through, foldMode{run: (*pane.Projection).Run, options: options, beside: beside}, look)
	if line != nil {
		line.end()
	}
	if err == nil {
		err = control.settle(ctx)
	}
	if err == nil {
		err = store.Flush(ctx)
	}
	return errors.Join(err, store.Close())
}

// compare says for each materialization whether a fold of the log gives what stands. What was folded stays where it is when it
// differs, so that a rebuild up to the same sequence has nothing left to do.
func (r *rebuild) compare(ctx context.Context, o *offline, start origin, through log.Seq, stdout, stderr io.Writer) error {
	stands, err := o.standing(ctx, through)
	if errors.Is(err, errNoViews) {
		return errors.New("there are no views to compare with")
	}
	if err != nil {
		return err
	}
	var fresh *folded
	if err := r.fold(ctx, o, start, through, stderr, func(p *pane.Projection) (err error) {
		fresh, err = describe(ctx, p)
		return err
	}); err != nil {
		return err
	}
	different, err := printComparison(stdout, stands, fresh)
	if err != nil {
		return err
	}
	if different > 0 {
		return fmt.Errorf("the views differ from what the log says, up to sequence %d; `tidemark rebuild` puts them right", through)
	}
	return bucket.DropRebuild(o.viewsPath(), o.viewsOptions())
}

// printComparison prints a line for each part of the views and returns how many differ.
func printComparison(w io.Writer, stands, fresh *folded) (different int, err error) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(kind, name string, a, b digestRow, state bool) {
		switch {
		case a.sum != b.sum:
			fmt.Fprintf(tw, "%s\t%s\tdifferent\tstands %s (%d buckets), folded %s (%d buckets)\n", kind, name, a.Digest, a.Buckets, b.Digest, b.Buckets)
		case !state:
			fmt.Fprintf(tw, "%s\t%s\tdifferent\tthe same buckets are published, but what is open or was counted is not the same\n", kind, name)
		default:
			fmt.Fprintf(tw, "%s\t%s\tequal\t%s (%d buckets)\n", kind, name, a.Digest, a.Buckets)
			return
		}
		different++
	}
	pair := func(kind string, a, b []digestRow) {
		byName := func(rows []digestRow) map[string]digestRow {
			m := make(map[string]digestRow, len(rows))
			for _, r := range rows {
				m[r.Name] = r
			}
			return m
		}
		am, bm := byName(a), byName(b)
		names := maps.Clone(am)
		maps.Copy(names, bm)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			line(kind, name, am[name], bm[name], sameState(stands, fresh, names[name].streams))
		}
	}
	pair("materialization", stands.materializations(), fresh.materializations())
	pair("unplanned stream", stands.unplannedStreams(), fresh.unplannedStreams())
	line("all", fmt.Sprintf("seq %d", fresh.digest.Seq), newDigestRow("", stands.digest.All), newDigestRow("", fresh.digest.All),
		stands.plan.Equal(fresh.plan) && stands.unplanned == fresh.unplanned)
	return different, tw.Flush()
}

// sameState compares what the digest does not hold: open buckets, frontiers, coverage and counters.
func sameState(a, b *folded, streams []plan.StreamID) bool {
	for _, id := range streams {
		if a.streams[id] != b.streams[id] {
			return false
		}
	}
	return true
}
