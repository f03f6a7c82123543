package query

// This file is data path 6 of 6: answer. It has the engine read samples themselves where panes do not answer.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"tidemark/log"
	"tidemark/projections/plan"
)

// reasonAsked stands where a miss says why panes did not answer, and whoever asked wanted it so.
const reasonAsked = "no_store"

// turnRaw leaves l to the exact source: the engine evaluates what stood in its place.
func (l *leaf) turnRaw(why *MissError) {
	l.raw = why
	for _, at := range l.place {
		*at.slot = at.original
	}
}

// standsIn says whether samples of the exact source may be read where panes of m cannot tell. The engine's ranges own their right edge
// alone, the exact source has what m was told to drop, and what is read by name is floats.
func (d *demand) standsIn(m *material, why *MissError) bool {
	other := func(s stream) bool { return s.Closed == plan.Left || s.Late == plan.Drop }
	return d.copied && d.engine.opts.Exact != nil && why.Reason != ReasonNativeHistogram && !slices.ContainsFunc(m.streams, other)
}

// briefly is how long a request that has read panes waits for the exact source. One that keeps up is there by then.
const briefly = 100 * time.Millisecond

// errCopyLags says that samples of the exact source are needed beside panes, which it does not have yet.
var errCopyLags = errors.New("the exact copy lags")

// besideCopy does a request that may need the exact source beside panes. If that lags, all that was read is given up, so that nothing
// holds memory or the place of another while it waits, and the request is done again, knowing what the source has at least.
func (e *Engine) besideCopy(ctx context.Context, place *slot, all bool, do func(has log.Seq) error) error {
	err := do(0)
	if !errors.Is(err, errCopyLags) {
		return err
	}
	place.release()
	has, err := e.waitExact(ctx, all)
	if err != nil {
		return err
	}
	if err := place.take(ctx); err != nil {
		return err
	}
	return do(has)
}

// awaitCopy makes sure that the exact source has what this request must see. The error is errCopyLags if it has not.
func (d *demand) awaitCopy(ctx context.Context) error {
	if d.copyHas > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, briefly)
	defer cancel()
	has, err := d.engine.opts.Exact.Wait(ctx, !d.read.behind)
	if err != nil {
		return errCopyLags // or it has stopped, which whoever waits is told
	}
	d.copyHas = has
	return nil
}

// copyLeaf leaves a leaf of a run of m to the exact source.
func (d *demand) copyLeaf(ctx context.Context, m *material, r *run, miss *leafMiss) error {
	if err := d.awaitCopy(ctx); err != nil {
		return err
	}
	miss.leaf.turnRaw(miss.why)
	r.from.exact, r.from.names = d.engine.opts.Exact, d.names()
	r.query.Statement().(*parser.EvalStmt).LookbackDelta = toDuration(d.lookback(m)) // as Engine.route does
	return nil
}

// copies returns why panes did not answer those leaves behind names that the exact source answered.
func (d *demand) copies() (why []*MissError) {
	for _, in := range d.inners() {
		for _, r := range in.runs {
			for _, l := range r.leaves {
				if l.raw != nil {
					why = append(why, l.raw)
				}
			}
		}
	}
	return why
}

// waitExact waits for the exact source: with all, until it has everything that is in the log. It returns what the source has at least.
func (e *Engine) waitExact(ctx context.Context, all bool) (log.Seq, error) {
	seq, err := e.opts.Exact.Wait(ctx, all)
	if end := ended(ctx, "waiting for the exact copy"); err != nil && end != nil {
		return 0, end
	}
	if err != nil {
		return 0, &SourceError{err}
	}
	return seq, nil
}

// meaning is what a selector may mean.
type meaning int

const (
	meansNone     meaning = iota // written series alone: no recorded one
	meansBoth                    // recorded ones, and written ones
	meansRecorded                // recorded ones alone, which no exact source has
)

// meaning says what the selector of a leaf means.
func (x *index) meaning(l *leaf) meaning {
	switch names, mixed := plan.ReadNames(l.matchers, x.names); {
	case len(names) == 0:
		return meansNone
	case mixed:
		return meansBoth
	default:
		return meansRecorded
	}
}

// route says by which route the parts are answered, and prepares the engine to read those samples that panes do not stand for. What
// was acknowledged before is waited for. Where the copy answers alone, others are evaluated meanwhile: after a start it may lag for longer
// than panes, which must not keep what panes answer from being answered.
func (e *Engine) route(ctx context.Context, parts []part, c Common, s steps, from *feed, place *slot, live *liveSteps, d *demand, res *Result) error {
	res.Route = RouteWarm
	res.Stats.Steps, res.Stats.Live = int(s.count()), live.count()
	if res.Stats.Live > 0 {
		res.Route = RouteLive
	}
	for i := range parts {
		p := &parts[i]
		switch {
		case p.raw && p.miss != nil:
			res.Stats.Raw++
			res.first(p.miss.Reason)
			res.Stats.Leaves += len(p.beside)
		case p.leaf != nil && p.leaf.raw != nil:
			res.Stats.Raw++
			res.first(p.leaf.raw.Reason)
			if p.leaf.beside {
				res.Stats.Leaves++
			}
		default:
			res.Stats.Leaves++
		}
	}
	behind := d.copies()
	for _, why := range behind {
		res.Stats.Raw++
		res.first(why.Reason)
	}
	if res.Stats.Raw == 0 {
		return nil
	}
	res.Route = RouteHybrid
	if res.Stats.Leaves == 0 { // no memory is held by values of leaves
		place.release()
		seq, err := e.waitExact(ctx, !c.Published)
		if err != nil {
			return err
		}
		if err := place.take(ctx); err != nil {
			return err
		}
		res.Route, res.Seq, res.CompleteThrough = RouteLocal, seq, math.MinInt64
	} else {
		if err := d.awaitCopy(ctx); err != nil {
			return err
		}
		res.Seq = min(res.Seq, d.copyHas)
	}
	if res.Stats.Raw == len(behind) {
		return nil // what the engine reads for the expression itself is there
	}
	began, err := e.opts.Began()
	if err != nil {
		return &SourceError{err}
	}
	from.exact, from.names, from.oldest = e.opts.Exact, d.names(), max(began, math.MinInt64+1)-1
	// Beside samples the engine looks back as Prometheus does. What stands in the place of leaves ends in stale markers (Q3).
	res.query.Statement().(*parser.EvalStmt).LookbackDelta = e.lookback(c)
	return nil
}

// first notes the first reason.
func (r *Result) first(reason string) {
	if r.Miss == "" {
		r.Miss = reason
	}
}

// feed is what the engine reads for one query: the values of leaves, and where exact is set samples for all other selectors.
type feed struct {
	values results
	names  plan.Named
	exact  Exact
	oldest int64 // ms; what lies up to it is somebody else's to tell, whatever the exact source has
	miss   atomic.Pointer[MissError]
}

func newFeed() *feed { return &feed{values: results{}, oldest: math.MinInt64} }

// missed returns why the exact source could not answer after all, or nil.
func (f *feed) missed() *MissError { return f.miss.Load() }

// Querier implements storage.Queryable.
func (f *feed) Querier(mint, maxt int64) (storage.Querier, error) {
	if f.exact == nil {
		return f.values, nil
	}
	q, err := f.exact.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	// Asked when the querier is open: what it lacks is known then.
	return &feedQuerier{Querier: q, feed: f, oldest: max(f.oldest, f.exact.Oldest())}, nil
}

type feedQuerier struct {
	storage.Querier
	feed   *feed
	oldest int64 // ms; samples up to it may be missing
}

// Select implements storage.Querier.
func (q *feedQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var recorded []Series
	for _, m := range matchers {
		if out, ok := q.feed.values[m]; ok {
			if !out.beside {
				return out.marked()
			}
			recorded = out.recorded
		}
	}
	own, ok := written(matchers, q.feed.names)
	if !ok {
		return recordedSet(recorded)
	}
	if hints == nil || hints.Start <= q.oldest {
		vs := parser.VectorSelector{LabelMatchers: matchers}
		miss := &MissError{
			Reason: ReasonBeforeRetention, Node: vs.String(),
			Detail: fmt.Sprintf("it reads samples at or before %d, which the exact copy may no longer have", q.oldest),
		}
		q.feed.miss.CompareAndSwap(nil, miss)
		return storage.ErrSeriesSet(miss)
	}
	// In label order, as panes are: topk and its like take the first among equals.
	return among(recorded, q.Querier.Select(ctx, true, hints, own...))
}

// marked is what the engine reads with a lookback: a stale marker at the first step at which a series has no value any more.
func (r *result) marked() storage.SeriesSet {
	if r.err != nil {
		return r.set()
	}
	marked := result{series: make([]promql.Series, len(r.series)), notes: r.notes, steps: r.steps}
	for i, s := range r.series {
		ts, vs := sampled(s.Floats, r.steps)
		points := make([]promql.FPoint, len(ts))
		for k := range ts {
			points[k] = promql.FPoint{T: ts[k], F: vs[k]}
		}
		marked.series[i] = promql.Series{Metric: s.Metric, Floats: points}
	}
	return marked.set()
}
