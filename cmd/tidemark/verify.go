package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/bucket"
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

// repairLog repairs the log and says what else has to be done. Damage that was repaired is no error.
func repairLog(fs vfs.FS, path string, progress func(log.Seq), stdout io.Writer) error {
	report, err := log.Repair(fs.PathJoin(path, logDir), log.Options{FS: fs}, progress)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, report.String()); err != nil {
		return err
	}
	if report.Damage == "" {
		return nil
	}
	advice, err := adviceAfterRepair(fs, path)
	if err != nil {
		return fmt.Errorf("the log is repaired, but: %w", err)
	}
	_, err = fmt.Fprintln(stdout, advice)
	return err
}

// adviceAfterRepair looks whether the views still belong to what is left of the log.
func adviceAfterRepair(fs vfs.FS, path string) (advice string, err error) {
	o, err := openOffline(fs, path, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	dir := bucket.InForce(o.viewsPath(), o.viewsOptions())
	if dir == "" {
		return "There are no views; the next start folds them from the log.", nil
	}
	store, err := bucket.OpenReadOnly(dir, o.events.Identity(), o.viewsOptions())
	if unusable(err) {
		return fmt.Sprintf("Run `tidemark rebuild`: the views cannot be used (%v).", err), nil
	}
	if err != nil {
		return "", err
	}
	newest, err := store.Newest()
	if err = errors.Join(err, store.Close()); err != nil {
		return "", err
	}
	if head := o.events.Head(); newest > uint64(head) {
		return fmt.Sprintf("Run `tidemark rebuild`: the views reflect sequence %d, which is beyond the end of the log, %d. No service starts before that.", newest, head), nil
	}
	return fmt.Sprintf("The views reflect sequence %d and stay valid.", newest), nil
}
