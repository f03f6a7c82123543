package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/plan"
	"tidemark/projections/sample"
)

// rebuildSuffix is what a copy that is being rebuilt is called until it is complete.
const rebuildSuffix = ".rebuild"

// rebuildCopy folds the log into a fresh exact copy, and puts it in the place of the one that stands, or compares the two.
func (r *rebuild) rebuildCopy(ctx context.Context, o *offline, through log.Seq, stdout, stderr io.Writer) error {
	cfg, err := plan.Load(r.configFile)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if floor := o.events.Floor(); floor > 1 {
		return fmt.Errorf("the log begins at sequence %d, so that what the exact copy holds of the events before it cannot be folded again; "+
			"delete the copy if it is to begin there", floor)
	}
	stands := filepath.Join(r.path, copyDir)
	fresh, err := r.foldCopy(ctx, o, cfg.Exact, through, stderr)
	if err != nil {
		return err
	}
	if r.verify {
		// What differs stays where it is, so that a rebuild up to the same sequence has nothing left to do.
		err := errors.Join(r.compareCopies(ctx, o, cfg.Exact, stands, fresh, stdout), fresh.Close())
		if err == nil {
			err = os.RemoveAll(stands + rebuildSuffix)
		}
		return err
	}
	if err := fresh.Close(); err != nil {
		return err
	}
	// A crash in between leaves no copy, and a start folds it again.
	if err := errors.Join(os.RemoveAll(stands), os.Rename(stands+rebuildSuffix, stands)); err != nil {
		return fmt.Errorf("put the exact copy in place: %w", err)
	}
	fmt.Fprintf(stdout, "%s reflects the log up to sequence %d\n", stands, through)
	return nil
}

// foldCopy makes the copy beside the standing one complete up to through. An earlier one that was interrupted goes on.
func (r *rebuild) foldCopy(ctx context.Context, o *offline, exact plan.Exact, through log.Seq, stderr io.Writer) (*sample.Projection, error) {
	p := sample.New(filepath.Join(r.path, copyDir+rebuildSuffix), o.events, o.events.Dictionary(), copyOptions(exact, -1, slog.New(slog.DiscardHandler)))
	at, err := p.Restore()
	if err != nil {
		return nil, err
	}
	if at.Newest > through { // of an earlier rebuild
		err := errors.Join(p.Close(), sample.Discard(filepath.Join(r.path, copyDir+rebuildSuffix)))
		if err != nil {
			return nil, err
		}
		return r.foldCopy(ctx, o, exact, through, stderr)
	}
	if at.From > 0 {
		fmt.Fprintf(stderr, "going on after sequence %d\n", at.From)
	}
	line := newProgressLine(stderr, r.now, projections.NewMeter(at.From, through, r.now))
	err = replayCopy(ctx, o, p, at.From, through, projections.ReplayOptions{Observe: line.observe})
	line.end()
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// replayCopy folds events into a copy, which is maintained meanwhile, and ends with its checkpoint.
func replayCopy(ctx context.Context, o *offline, p *sample.Projection, from, through log.Seq, opts projections.ReplayOptions) error {
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(run) }()
	err := projections.Replay(ctx, o.events, p, from, through, opts)
	stop()
	return errors.Join(err, <-ended)
}

// compareCopies says whether the standing copy, brought up to the same event, holds what was folded. It is left up to there.
func (r *rebuild) compareCopies(ctx context.Context, o *offline, exact plan.Exact, dir string, fresh *sample.Projection, stdout io.Writer) (err error) {
	if _, ok, err := sample.Noted(dir); err != nil || !ok {
		return errors.Join(err, errors.New("there is no exact copy to compare with"))
	}
	stands := sample.New(dir, o.events, o.events.Dictionary(), copyOptions(exact, -1, slog.New(slog.DiscardHandler)))
	at, err := stands.Restore()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stands.Close()) }()
	through, err := fresh.Applied()
	if err != nil {
		return err
	}
	if at.Newest > through {
		return fmt.Errorf("the exact copy reflects sequence %d already, which is beyond %d", at.Newest, through)
	}
	if err := replayCopy(ctx, o, stands, at.From, through, projections.ReplayOptions{}); err != nil {
		return err
	}
	after := max(stands.Oldest(), fresh.Oldest())
	a, err := stands.Sum(ctx, after)
	if err != nil {
		return err
	}
	b, err := fresh.Sum(ctx, after)
	if err != nil {
		return err
	}
	if a != b {
		fmt.Fprintf(stdout, "exact copy\tdifferent\tstands %s, folded %s\n", a, b)
		return fmt.Errorf("the exact copy differs from what the log says, up to sequence %d; `tidemark rebuild --projection sample` puts it right", through)
	}
	_, err = fmt.Fprintf(stdout, "exact copy\tequal\t%s\n", a)
	return err
}
