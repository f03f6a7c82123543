package master

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// Spot is where pieces lie that hold corrections of an experiment's buckets.
type Spot struct {
	Key   bucket.Key
	Shard int
}

// Pieces merges what corrections have left on disk.
type Pieces interface {
	// Corrected returns where the corrections of an experiment lie that no compaction has covered.
	Corrected(ctx context.Context, name string) ([]Spot, error)
	// Merge makes one piece of those in a place, in one batch that looks again at what it replaces.
	Merge(Spot) (bucket.Compaction, error)
	// Limit returns the event up to which pieces can be merged now: it never decreases.
	Limit() log.Seq
}

const (
	// busyTries bounds how often a place is tried in which somebody else merges.
	busyTries = 20
	busyWait  = 50 * time.Millisecond
	// limitPoll is how often a compaction looks whether what it is to merge is on disk.
	limitPoll = 100 * time.Millisecond
)

// ErrNotDurable says that the corrections are not on disk yet, so that there is nothing to merge.
var ErrNotDurable = errors.New("the corrections are not in durable pieces yet")

// PartialError says that a compaction could not merge in some of the places.
type PartialError struct {
	Merged, Places int
	Err            error // of the first place that failed
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("merged in %d of %d places; the corrections stay counted: %v", e.Merged, e.Places, e.Err)
}

// Unwrap implements errors.Unwrap.
func (e *PartialError) Unwrap() error { return e.Err }

var (
	errTooLarge = errors.New("the pieces are too large to be merged")
	errBusy     = errors.New("somebody else keeps merging there")
)

// outcome is what a task did.
type outcome struct {
	message   string
	unchanged bool
	version   log.Seq // of the experiment, where an unchanged outcome is to be remembered
}

// compact merges what the corrections of an experiment have touched, and says so in the log. Corrections that arrive meanwhile stay
// counted, and their pieces stay beside the merged ones. It returns the sequence of the event; 0 if there was nothing to do.
func (m *Master) compact(ctx context.Context, name string) (outcome, log.Seq, error) {
	o, row, err := m.observation(ctx, name)
	switch {
	case err != nil:
		return outcome{}, 0, err
	case row == nil:
		return outcome{}, 0, fmt.Errorf("%w that is hot", ErrUnknown)
	case o.Corrections == 0:
		return outcome{message: "no correction to compact", unchanged: true, version: row.Version}, 0, nil
	}
	through := m.limit(ctx, o.LastCorrectedAt)
	spots, err := m.pieces.Corrected(ctx, name)
	if err != nil {
		return outcome{}, 0, fmt.Errorf("find corrections: %w", err)
	}
	var done bucket.Compaction
	merged := 0
	var first error
	for _, spot := range spots {
		c, err := m.merge(ctx, spot)
		if err != nil {
			if ctx.Err() != nil {
				return outcome{}, 0, ctx.Err()
			}
			if first == nil {
				first = err
			}
			continue
		}
		merged++
		done.Pieces, done.Read, done.Written = done.Pieces+c.Pieces, done.Read+c.Read, done.Written+c.Written
	}
	if first != nil {
		return outcome{}, 0, &PartialError{Merged: merged, Places: len(spots), Err: first}
	}
	if through < o.LastCorrectedAt && done.Pieces == 0 {
		return outcome{}, 0, ErrNotDurable
	}
	seq, err := m.events.Append(ctx, &log.Compacted{
		Experiment: name, Through: through, Pieces: uint64(done.Pieces), Read: uint64(done.Read), Written: uint64(done.Written),
	})
	if err != nil {
		return outcome{}, 0, fmt.Errorf("append: %w", err)
	}
	text := fmt.Sprintf("merged %d pieces in %d places, %d bytes into %d", done.Pieces, len(spots), done.Read, done.Written)
	return outcome{message: text}, seq, nil
}

// limit waits, within a bound, until everything up to an event can be merged, and returns up to where that is so.
func (m *Master) limit(ctx context.Context, want log.Seq) log.Seq {
	bound, cancel := context.WithTimeout(ctx, m.opts.DurableWait)
	defer cancel()
	look := time.NewTicker(limitPoll)
	defer look.Stop()
	for {
		if at := m.pieces.Limit(); at >= want {
			return at
		}
		select {
		case <-look.C:
		case <-bound.Done():
			return m.pieces.Limit()
		}
	}
}

// merge merges in one place; somebody else may be at it.
func (m *Master) merge(ctx context.Context, spot Spot) (bucket.Compaction, error) {
	for range busyTries {
		c, err := m.pieces.Merge(spot)
		switch {
		case err != nil:
			return c, fmt.Errorf("merge: %w", err)
		case c.TooLarge && c.Pieces == 0:
			return c, errTooLarge
		case !c.Busy:
			return c, nil
		}
		select {
		case <-time.After(busyWait):
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
	return bucket.Compaction{}, errBusy
}
