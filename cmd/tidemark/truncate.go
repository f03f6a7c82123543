package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/alecthomas/kingpin/v2"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/sample"
	"tidemark/projections/series"
)

func newLogTruncate(app *kingpin.Application) command {
	var dir string
	var through uint64
	c := logGroup(app).Command("truncate", "Remove the events up to a sequence for good, after sealing a base of what was folded from them.")
	storageFlag(c, &dir)
	c.Flag("through", "Last sequence to remove. It must not be beyond what the views reflect.").Required().Uint64Var(&through)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		result, err := truncateLog(ctx, dir, log.Seq(through))
		if err != nil {
			return err
		}
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(result)
	}}
}

// truncation is what `log truncate` prints.
type truncation struct {
	Floor     log.Seq `json:"floor"` // of the log now
	Base      string  `json:"base"`
	BaseSeq   uint64  `json:"base_seq"`
	BaseBytes int64   `json:"base_bytes"`
}

// truncateLog truncates the log of a service that is not running.
func truncateLog(ctx context.Context, dir string, through log.Seq) (result truncation, err error) {
	events, err := log.Open(filepath.Join(dir, logDir), log.Options{})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	views, err := bucket.Open(filepath.Join(dir, viewsDir), events.Identity(), bucket.Options{})
	if err != nil {
		return result, fmt.Errorf("%w (a start of the service folds them again)", err)
	}
	defer func() { err = errors.Join(err, views.Close()) }()
	index := series.New()
	if err := index.Load(events.Dictionary()); err != nil {
		return result, err
	}
	panes := pane.New(events, index, views, pane.Options{})
	at, err := panes.Restore()
	if err != nil {
		return result, err
	}
	control, err := savedControl(events, views, at.From)
	if err != nil {
		return result, err
	}
	at.From = min(at.From, control)
	wanted, err := wantedEvent(events, panes, at.From)
	if err != nil {
		return result, err
	}
	switch floor := events.Floor(); {
	case at.From+1 < floor:
		return result, &behindFloor{at: at.From, floor: floor}
	case through < floor:
		return result, fmt.Errorf("the log begins at %d already", floor)
	case through > at.From:
		return result, fmt.Errorf("the views reflect the log up to %d only: start the service and let it catch up, or truncate through less", at.From)
	case through >= wanted:
		return result, fmt.Errorf("streams that are being folded from the log need its events from %d on: start the service and let it end that, or truncate through less", wanted)
	case through >= events.Head():
		return result, fmt.Errorf("the newest event of the log, %d, always stays", events.Head())
	}
	if heal, err := healAfter(events, at.From); err != nil {
		return result, err
	} else if heal > 0 {
		return result, fmt.Errorf("the views reflect the log up to %d, and the heal at %d needs the base that stands: start the service and let it catch up, or run `tidemark rebuild`", at.From, heal)
	}
	if err := checkCopyDurable(dir, through); err != nil {
		return result, err
	}
	base, err := views.Seal(filepath.Join(dir, baseDir), uint64(events.Floor()))
	if err != nil {
		return result, err
	}
	if err := events.Truncate(through); err != nil {
		return result, err
	}
	result = truncation{Floor: events.Floor(), Base: base.Path, BaseSeq: base.Seq, BaseBytes: base.Bytes()}
	return result, events.Reclaim(ctx)
}

// checkCopyDurable refuses to remove events that the exact copy has not, if there is one.
func checkCopyDurable(dir string, through log.Seq) error {
	at, ok, err := sample.Noted(filepath.Join(dir, copyDir))
	if err == nil && ok && at.Durable < through {
		err = fmt.Errorf("the exact copy reflects the log up to %d only: start the service and let it catch up, or delete %s", at.Durable, filepath.Join(dir, copyDir))
	}
	return err
}

// healAfter returns the first heal in the log after a sequence, or 0.
func healAfter(events *log.Log, seq log.Seq) (log.Seq, error) {
	reader := events.NewReader(seq + 1)
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		if e.Body.Kind() == log.KindHeal {
			return e.Seq, nil
		}
	}
}

// behindFloor: the views end before the log begins, so that the events in between are in neither.
type behindFloor struct {
	at, floor log.Seq
}

func (e *behindFloor) Error() string {
	return fmt.Sprintf("the views reflect the log up to %d, and the log begins at %d: what lies between is in neither", e.at, e.floor)
}

// savedControl returns the last event that the rows of the control plane reflect. Views without any, as nothing has folded
// them yet, ask for nothing: the next start replays what the log has.
func savedControl(events *log.Log, views *bucket.Store, panes log.Seq) (log.Seq, error) {
	fold := master.NewFold(views.Rows(master.FoldSpace), 1, experimentLabel, slog.New(slog.DiscardHandler))
	at, err := fold.Restore()
	if err != nil || at.Newest == 0 {
		return panes, err
	}
	return at.From, events.CheckAtLeast(at.Newest, "the rows of the control plane")
}
