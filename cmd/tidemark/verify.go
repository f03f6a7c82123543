package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/sample"
)

func newLogVerify(app *kingpin.Application) command {
	var path string
	var repair bool
	c := logGroup(app).Command("verify", "Read every event and check it; name the first damage.")
	storageFlag(c, &path)
	c.Flag("repair", "If the log is damaged, keep the longest sound prefix, move the rest aside and say what was lost.").BoolVar(&repair)
	return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
		progress := func(seq log.Seq) {
			if isTerminal(stderr) {
				fmt.Fprintf(stderr, "\rread %d", seq)
			}
		}
		defer func() {
			if isTerminal(stderr) {
				fmt.Fprintln(stderr)
			}
		}()
		if repair {
			return repairLog(vfs.Default, path, progress, stdout)
		}
		report, err := log.Verify(vfs.Default.PathJoin(path, logDir), log.Options{}, progress)
		if err != nil {
			return err
		}
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}}
}

// repairLog repairs the log, and moves aside what can no longer go with it. Damage that was repaired is no error.
func repairLog(fs vfs.FS, path string, progress func(log.Seq), stdout io.Writer) error {
	report, err := log.Repair(fs.PathJoin(path, logDir), log.Options{FS: fs}, progress)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, report.String()); err != nil {
		return err
	}
	if err := reconcile(fs, path, report.Aside, stdout); err != nil {
		return fmt.Errorf("the log is sound now, but %w", err)
	}
	return nil
}

// reconcile looks whether views and base still go with the log, which a repair may have cut behind what they reflect, and moves
// aside what does not, so that a start folds it again. A repair that was cut off before it came here is made good by the next.
func reconcile(fs vfs.FS, path, aside string, stdout io.Writer) (err error) {
	o, err := openOffline(fs, path, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if err := bucket.Settle(o.viewsPath(), o.viewsOptions()); err != nil {
		return err
	}
	head, floor := o.events.Head(), o.events.Floor()
	start, err := o.start()
	switch {
	case err != nil && floor == 1:
		var damage *bucket.BaseError
		if !errors.As(err, &damage) && !errors.Is(err, bucket.ErrOtherLog) {
			return err
		}
		if err := o.moveAside(baseDir, aside, fmt.Sprintf("the base cannot be used (%v)", err), stdout); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("no rebuild is possible: %w", err)
	case start.newest > head && floor == 1:
		why := fmt.Sprintf("the base reflects sequence %d, which is beyond the end of the log, %d", start.newest, head)
		if err := o.moveAside(baseDir, aside, why, stdout); err != nil {
			return err
		}
	case start.newest > head:
		// Below the floor the base is the only copy, and it cannot be taken back to an earlier sequence.
		return fmt.Errorf("no service can start from it: base %s reflects sequence %d, and the log is left with %d to %d; "+
			"what the base holds of the events in between cannot be taken out of it. Restore the log and the base from one backup", start.base.Path, start.newest, floor, head)
	}
	if at, ok, err := sample.Noted(fs.PathJoin(path, copyDir)); err != nil {
		return err
	} else if ok && at.Newest > head {
		why := fmt.Sprintf("the exact copy reflects sequence %d, which is beyond the end of the log, %d", at.Newest, head)
		if err := o.moveAside(copyDir, aside, why, stdout); err != nil {
			return err
		}
	}
	return o.reconcileViews(head, aside, stdout)
}

// reconcileViews moves the views aside if they cannot be used, or are ahead of the log.
func (o *offline) reconcileViews(head log.Seq, aside string, stdout io.Writer) error {
	if bucket.InForce(o.viewsPath(), o.viewsOptions()) == "" {
		fmt.Fprintln(stdout, "There are no views; the next start folds them from the log.")
		return nil
	}
	store, err := bucket.OpenReadOnly(o.viewsPath(), o.events.Identity(), o.viewsOptions())
	if unusable(err) {
		return o.moveAside(viewsDir, aside, fmt.Sprintf("the views cannot be used (%v)", err), stdout)
	}
	if err != nil {
		return err
	}
	newest, err := store.Newest()
	if err = errors.Join(err, store.Close()); err != nil {
		return err
	}
	if newest > uint64(head) {
		return o.moveAside(viewsDir, aside, fmt.Sprintf("the views reflect sequence %d, which is beyond the end of the log, %d", newest, head), stdout)
	}
	_, err = fmt.Fprintf(stdout, "The views reflect sequence %d and stay valid.\n", newest)
	return err
}

// moveAside moves a part of the storage to where the repair has moved the damaged log, or, without one, to a name beside its own,
// and says why.
func (o *offline) moveAside(part, aside, why string, stdout io.Writer) error {
	name := part
	if aside == "" {
		aside, name = o.path, part+".damaged"
	}
	to := o.fs.PathJoin(aside, name)
	for n := 2; ; n++ {
		if _, err := o.fs.Stat(to); oserror.IsNotExist(err) {
			break
		} else if err != nil {
			return err
		}
		to = o.fs.PathJoin(aside, fmt.Sprintf("%s-%d", name, n))
	}
	if err := o.fs.Rename(o.fs.PathJoin(o.path, part), to); err != nil {
		return fmt.Errorf("move %s aside: %w", part, err)
	}
	for _, dir := range []string{aside, o.path} {
		d, err := o.fs.OpenDir(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(stdout, "Moved aside, because %s: %s\nThe next start, or `tidemark rebuild`, folds the views again from what is left.\n", why, to)
	return err
}
