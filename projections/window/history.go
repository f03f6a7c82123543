package window

import (
	"context"
	"slices"

	"tidemark/log"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// history is what a record still has to catch up with of what its streams had published before it began: the fold tells of changes
// only, and may have been told by others to forget them. It is found from the buckets, and is nothing to lose: it is found again
// after a restart until the record is noted to be whole.
type history struct {
	known bool    // for since
	since log.Seq // the event behind which the fold tells of changes
	ends  map[plan.StreamID]map[int64]log.Seq
}

// ends are given no event of their own: whatever was recorded since changes are known holds them.
const ofHistory log.Seq = 1

// addHistory adds the steps of a record's history to those that are dirty.
func (r *Recorder) addHistory(ctx context.Context, rec *record, since log.Seq, streams map[plan.StreamID]*pane.TrackedStream, dirty map[int64]log.Seq) error {
	h := &rec.history
	if !h.known || h.since != since {
		whole, err := r.store.Whole(rec.id, uint64(since))
		if err != nil {
			return err
		}
		ends := make(map[plan.StreamID]map[int64]log.Seq)
		for _, reach := range rec.reaches {
			if whole || ends[reach.Stream] != nil {
				continue
			}
			published, err := r.panes.PublishedEnds(ctx, reach.Stream)
			if err != nil {
				return err
			}
			of := make(map[int64]log.Seq, len(published))
			for _, end := range published {
				if end > streams[reach.Stream].Frontier-rec.retention || rec.retention <= 0 {
					of[end] = ofHistory
				}
			}
			ends[reach.Stream] = of
		}
		*h = history{known: true, since: since}
		if !whole {
			h.ends = ends
			rec.asOf = nil // to be read for all of it
		}
	}
	for _, reach := range rec.reaches {
		dirtySteps(dirty, reach, rec.every, streams[reach.Stream].PaneMillis, h.ends[reach.Stream])
	}
	return nil
}

// doneHistory drops the part of a record's history that none of the given steps needs, and notes that the record is whole once
// nothing is left.
func (r *Recorder) doneHistory(rec *record, streams map[plan.StreamID]*pane.TrackedStream, steps []int64) error {
	h := &rec.history
	if h.ends == nil {
		return nil
	}
	slices.Sort(steps)
	left := false
	for id, ends := range h.ends {
		for end := range ends {
			needed := slices.ContainsFunc(rec.reaches, func(reach plan.Reach) bool {
				return reach.Stream == id && spanOf(reach, rec.every, streams[id].PaneMillis, end).meets(steps)
			})
			if needed {
				left = true
			} else {
				delete(ends, end)
			}
		}
	}
	if left {
		return nil
	}
	if err := r.store.SetWhole(rec.id, uint64(h.since)); err != nil {
		return err
	}
	h.ends = nil
	return nil
}
