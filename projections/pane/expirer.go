package pane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// expireInterval is the least time between two looks at what retention removes.
const expireInterval = time.Minute

// ExpireLog is where retention deletes are appended.
type ExpireLog interface {
	AppendAll(ctx context.Context, bodies ...log.Body) (log.Seq, error)
	LogTime() int64
}

// ExpirerStats are the numbers of an Expirer since it was made.
type ExpirerStats struct {
	Events   uint64 // retention deletes appended
	Deletes  uint64 // ranges of pieces deleted
	Failures uint64 // consecutive
}

// Expirer carries out retention. It decides what is due, by a stream's own event time and not by the clock, and says so in the
// log; what is gone follows from that event alone. Deleting the bytes comes later, and only gives the space back.
type Expirer struct {
	panes  *Projection
	events ExpireLog
	logger *slog.Logger

	appended, deletes, failures atomic.Uint64
}

// NewExpirer returns an expirer; Run starts it.
func NewExpirer(p *Projection, events ExpireLog, logger *slog.Logger) *Expirer {
	return &Expirer{panes: p, events: events, logger: logger}
}

// Stats returns the current numbers.
func (x *Expirer) Stats() ExpirerStats {
	return ExpirerStats{Events: x.appended.Load(), Deletes: x.deletes.Load(), Failures: x.failures.Load()}
}

// Run makes a pass every minute until ctx ends, and returns nil then.
func (x *Expirer) Run(ctx context.Context) error {
	every := time.NewTicker(expireInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		err := x.Pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			n := x.failures.Add(1)
			x.logger.Error("retention of buckets failed", "consecutive", n, "err", err)
		default:
			x.failures.Store(0)
		}
	}
}

// Pass appends the events that are due, in one batch, and deletes what earlier ones have removed.
func (x *Expirer) Pass(ctx context.Context) error {
	v, err := x.panes.survey(ctx)
	if err != nil {
		return err
	}
	bodies, err := v.due(x.panes.store, x.events.LogTime())
	if err != nil {
		return err
	}
	if len(bodies) > 0 {
		if _, err := x.events.AppendAll(ctx, bodies...); err != nil {
			return fmt.Errorf("append retention deletes: %w", err)
		}
		x.appended.Add(uint64(len(bodies)))
	}
	return x.clear(v)
}

// clear deletes the pieces that are gone for every reader and every restart.
func (x *Expirer) clear(v *retentionView) error {
	var errs []error
	for id, e := range v.expired {
		block, whole := lastWholeBlock(e.grid, e.through)
		if first, ok, err := x.panes.store.FirstBlock(uint64(id)); err != nil || !ok || !whole || first > block {
			errs = append(errs, err)
			continue
		}
		done, err := x.panes.store.Expire(uint64(id), block, uint64(e.seq))
		if done {
			x.deletes.Add(1)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// retentionView is what retention needs to know of the fold, as of one sequence. Streams are named by their keys.
type retentionView struct {
	planned []plannedStream
	expired map[plan.StreamID]expiry
	former  map[plan.StreamID]former
	maxT    int64 // largest sample time of all, ms

	generations []log.Seq // the later ones
}

// plannedStream is a stream of the plan that is being folded.
type plannedStream struct {
	key       plan.StreamID
	grid      bucket.Grid
	retention int64 // ms
	newest    int64 // event time, clamped by the wall time of its events, ms
}

// survey takes a retentionView.
func (p *Projection) survey(ctx context.Context) (*retentionView, error) {
	v := &retentionView{expired: make(map[plan.StreamID]expiry), former: make(map[plan.StreamID]former)}
	var mu sync.Mutex
	at := make(map[plan.StreamID]int)
	if _, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		mu.Lock()
		defer mu.Unlock()
		for _, st := range s.streams {
			key := plan.StreamID(st.key)
			i, ok := at[key]
			if !ok {
				i = len(v.planned)
				at[key] = i
				v.planned = append(v.planned, plannedStream{key: key, grid: st.grid, newest: math.MinInt64})
			}
			v.planned[i].retention = st.spec.RetentionMillis
			v.planned[i].newest = max(v.planned[i].newest, st.maxC, s.proven)
		}
		if s.id != 0 || s.generation != 0 {
			return
		}
		v.maxT = s.maxT
		for i := range s.generations {
			v.generations = append(v.generations, s.generations[i].id)
		}
		maps.Copy(v.expired, s.expired)
		maps.Copy(v.former, s.former)
	}); err != nil {
		return nil, err
	}
	slices.SortFunc(v.planned, func(a, b plannedStream) int { return cmp.Compare(a.key, b.key) })
	return v, nil
}

// due returns an event for every stream that has pieces older than its retention, by stream. Whole blocks go at a time: so a
// stream's events are rare, and its pieces go as they are.
func (v *retentionView) due(store *bucket.Store, logTime int64) ([]log.Body, error) {
	var out []log.Body
	add := func(id plan.StreamID, g bucket.Grid, oldest int64) error {
		block, ok := lastWholeBlock(g, oldest)
		if !ok {
			return nil
		}
		through := g.End(block, bucket.EndsPerBlock-1)
		if e, ok := v.expired[id]; ok && e.through >= through {
			return nil
		}
		first, ok, err := store.FirstBlock(uint64(id))
		if err == nil && ok && first <= block {
			out = append(out, &log.Expired{Stream: uint64(id), Origin: g.Origin, Width: g.Width, Through: through})
		}
		return err
	}
	for i := range v.planned {
		st := &v.planned[i]
		if err := add(st.key, st.grid, satSub(st.newest, st.retention)); err != nil {
			return nil, err
		}
	}
	for _, id := range sortedStreams(v.former) {
		// Nothing moves its event time any more; that of all samples stands in, unless a fast clock is ahead of log time.
		f := v.former[id]
		if err := add(id, f.grid, satSub(min(v.maxT, logTime), f.retention)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// lastWholeBlock returns the last block whose ends are all at or before t; ok is false where t is out of all reach.
func lastWholeBlock(g bucket.Grid, t int64) (block int64, ok bool) {
	if t < -plan.MaxTimeMillis || t > 2*plan.MaxTimeMillis {
		return 0, false
	}
	d := t - g.Origin
	k := d / g.Width
	if d%g.Width < 0 {
		k--
	}
	block, idx := g.Locate(g.Origin + k*g.Width)
	if idx < bucket.EndsPerBlock-1 && !plantedRetentionEager {
		block--
	}
	return block, true
}
