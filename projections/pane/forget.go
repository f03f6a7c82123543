package pane

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// forgetChunk is the number of records of evicted series that are looked at in one step.
const forgetChunk = 1 << 14

// ForgetLog is the log as a Forgetter needs it.
type ForgetLog interface {
	Head() log.Seq
	Floor() log.Seq
	Retire(refs []log.SeriesRef) error
	Forget(refs []log.SeriesRef) (int, error)
}

// Definitions is where it shows whether a series is forgotten.
type Definitions interface {
	Labels(ref log.SeriesRef) (labels.Labels, bool, error)
}

// Forgetter removes from the log's dictionary the series that nothing names any more, and with each its record of having been
// evicted. A series may go when all of this holds:
//
//   - it is not in memory, and the record says with which event it left: no later one names it;
//   - that event is below the log's floor, and within the base: neither a replay nor a base's state names it;
//   - in each of its streams retention has removed everything up to its closure watermark, with an event that the base knows: no
//     bucket names it, and late or not is no question any more;
//   - no stream that has left the plan still has buckets, as the record does not speak of those.
//
// It goes through the records in steps, and goes on where it was interrupted.
type Forgetter struct {
	panes       *Projection
	events      ForgetLog
	definitions Definitions

	cursor      uint64
	floor, base log.Seq // of the last round that came to its end

	forgotten atomic.Uint64
}

// NewForgetter returns a forgetter; it does nothing by itself.
func NewForgetter(p *Projection, events ForgetLog, definitions Definitions) *Forgetter {
	return &Forgetter{panes: p, events: events, definitions: definitions}
}

// Forgotten returns the number of series forgotten since it was made.
func (f *Forgetter) Forgotten() uint64 { return f.forgotten.Load() }

// Pass goes through all records, if anything may have come to go since it last did. base is the sequence of the base that stands; without
// one (0) nothing goes.
func (f *Forgetter) Pass(ctx context.Context, base log.Seq) error {
	floor := f.events.Floor()
	if base == 0 || f.cursor == 0 && floor == f.floor && base == f.base {
		return nil
	}
	v, err := f.panes.survey(ctx)
	if err != nil {
		return err
	}
	if len(f.panes.Backfills()) > 0 {
		return nil // what is folded in the background names series of its own
	}
	for id := range v.former {
		if x, ok := v.expired[id]; ok && x.seq > base {
			return nil // its buckets stand in the base
		}
		if _, has, err := f.panes.store.FirstBlock(uint64(id)); err != nil || has {
			return err
		}
	}
	for {
		records, err := f.panes.store.EvictedFrom(f.cursor, forgetChunk)
		if err != nil {
			return err
		}
		gone, err := f.everywhere(v, v.forgettable(records, min(floor-1, base), base), min(floor-1, base), base)
		if err != nil {
			return err
		}
		if err := f.step(ctx, gone); err != nil {
			return fmt.Errorf("forget series: %w", err)
		}
		if len(records) < forgetChunk {
			f.cursor, f.floor, f.base = 0, floor, base
			return nil
		}
		f.cursor = records[len(records)-1].Ref + 1
	}
}

// forgettable returns the records that are no later than through, and of which retention has removed everything by the event at base.
func (v *retentionView) forgettable(records []bucket.Evicted, through, base log.Seq) (out []bucket.Evicted) {
next:
	for _, e := range records {
		if log.Seq(e.Seq) > through {
			continue
		}
		for _, s := range e.Streams {
			if x, ok := v.expired[plan.StreamID(s.Stream)]; !ok || x.through < s.Closed || x.seq > base {
				continue next
			}
		}
		out = append(out, e)
	}
	return out
}

// everywhere returns those of the records of which the later generations have nothing that stays either.
func (f *Forgetter) everywhere(v *retentionView, records []bucket.Evicted, through, base log.Seq) (out []bucket.Evicted, err error) {
next:
	for _, e := range records {
		for _, id := range v.generations {
			later, ok, err := f.panes.store.EvictedOf(uint64(id), e.Ref)
			if err != nil {
				return nil, err
			}
			if ok && len(v.forgettable([]bucket.Evicted{later}, through, base)) == 0 {
				continue next
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// step forgets what the records speak of, unless it has come back. Events that were appended while the series could still be resolved as
// ever have been applied when it is looked whether they have come back, and what names them later calls them back.
func (f *Forgetter) step(ctx context.Context, records []bucket.Evicted) error {
	if len(records) == 0 {
		return nil
	}
	refs := make([]log.SeriesRef, len(records))
	for i := range records {
		refs[i] = log.SeriesRef(records[i].Ref)
	}
	if err := f.events.Retire(refs); err != nil {
		return err
	}
	if err := f.panes.waitDispatched(ctx, f.events.Head()); err != nil {
		return err
	}
	away, err := f.panes.away(ctx, refs)
	if err != nil {
		return err
	}
	n, err := f.events.Forget(away)
	f.forgotten.Add(uint64(n))
	if err != nil {
		return err
	}
	var gone []bucket.Evicted
	isAway := make(map[log.SeriesRef]bool, len(away))
	for _, ref := range away {
		isAway[ref] = true
	}
	for i, ref := range refs {
		if !isAway[ref] {
			continue
		}
		// One that a crash had left over counts as well.
		if _, known, err := f.definitions.Labels(ref); err != nil {
			return err
		} else if !known {
			gone = append(gone, records[i])
		}
	}
	_, err = f.panes.store.ForgetEvicted(gone)
	return err
}

// away returns those of the series that are neither in memory nor evicted since the last checkpoint.
func (p *Projection) away(ctx context.Context, refs []log.SeriesRef) (out []log.SeriesRef, err error) {
	var asked, parts [Shards][]log.SeriesRef
	for _, ref := range refs {
		asked[ShardOf(ref)] = append(asked[ShardOf(ref)], ref)
	}
	if _, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		if s.generation == 0 {
			parts[s.id] = asked[s.id]
		}
		parts[s.id] = slices.DeleteFunc(parts[s.id], func(ref log.SeriesRef) bool {
			return s.slots.get(ref) != 0 || sh.gone[goneKey{uint64(s.generation), ref}] != nil
		})
	}); err != nil {
		return nil, err
	}
	for _, part := range parts {
		out = append(out, part...)
	}
	return out, nil
}
