package sample

// data path 4 of 6: fold, here into the exact copy.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"tidemark/log"
)

type (
	seriesLabels  = labels.Labels
	deletedSeries = map[chunks.HeadSeriesRef]labels.Labels
)

// point is a sample on its way into the TSDB.
type point struct {
	ref log.SeriesRef
	t   int64
	v   float64
	h   *histogram.Histogram
	fh  *histogram.FloatHistogram
}

// write appends one event: floats, then native histograms, then exemplars, each visible before the next.
func (p *Projection) write(ctx context.Context, w *log.Write) error {
	defs := make(map[log.SeriesRef]labels.Labels, len(w.Defs))
	for i := range w.Defs {
		defs[w.Defs[i].Ref] = w.Defs[i].Labels
	}
	b := batch{p: p, defs: defs}
	if len(w.Times) > 0 {
		start := 0
		err := b.append(ctx, len(w.Times), func(yield func(point) bool) {
			for i, ref := range w.Refs {
				for k := start; k < int(w.Ends[i]); k++ {
					if !yield(point{ref: ref, t: w.Times[k], v: w.Values[k]}) {
						return
					}
				}
				start = int(w.Ends[i])
			}
		})
		if err != nil {
			return err
		}
	}
	if len(w.Histograms) > 0 {
		all := p.histograms(w.Histograms)
		if err := b.append(ctx, len(all), slices.Values(all)); err != nil {
			return err
		}
	}
	if len(w.Exemplars) > 0 {
		if err := b.exemplars(ctx, w.Exemplars); err != nil {
			return err
		}
	}
	p.families.add(w.Metadata)
	return nil
}

// histograms decodes native histograms, by series and time. What cannot be decoded or is not sound is refused.
func (p *Projection) histograms(raw []log.Histogram) []point {
	out := make([]point, 0, len(raw))
	for _, r := range raw {
		h, fh, err := p.opts.Histograms(r.Proto)
		switch {
		case err != nil:
		case h != nil:
			err = h.Validate()
		case fh != nil:
			err = fh.Validate()
		}
		if err != nil {
			p.refuse(r.Time)
			continue
		}
		out = append(out, point{ref: r.Ref, t: r.Time, h: h, fh: fh})
	}
	slices.SortStableFunc(out, func(a, b point) int { return cmp.Or(cmp.Compare(a.ref, b.ref), cmp.Compare(a.t, b.t)) })
	return out
}

// refuse notes that a sample is not in the copy (E2).
func (p *Projection) refuse(t int64) {
	p.counts.refused.Add(1)
	if t > p.refused.Load() {
		p.refused.Store(t) // Apply alone writes it
	}
}

// batch is what one event appends.
type batch struct {
	p    *Projection
	defs map[log.SeriesRef]labels.Labels // of series whose first event this is, and of those that were looked up
	late []point                         // by series, in time order
}

// append appends points, which come by series and in time order, stable for equal times, and commits them. What TSDB does not take
// as in order is looked up first (E1).
func (b *batch) append(ctx context.Context, n int, points func(yield func(point) bool)) error {
	b.late = b.late[:0]
	app := b.p.db.AppenderV2(ctx)
	appended := uint64(0)
	var last point
	first := true
	for x := range points {
		if !first && x.ref == last.ref && x.t == last.t {
			b.p.counts.repeated.Add(1)
			continue
		}
		first, last = false, x
		err := b.one(app, x, true)
		switch {
		case err == nil:
			appended++
		case errors.Is(err, storage.ErrOutOfOrderSample):
			b.late = append(b.late, x)
		default:
			if err := b.judge(x, err); err != nil {
				return errors.Join(err, app.Rollback())
			}
		}
	}
	if err := app.Commit(); err != nil {
		return err
	}
	b.p.counts.appended.Add(appended)
	if len(b.late) == 0 {
		return nil
	}
	return b.appendLate(ctx)
}

// judge takes the errors that concern one sample alone, and returns the others.
func (b *batch) judge(x point, err error) error {
	switch {
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		b.p.counts.repeated.Add(1)
	case errors.Is(err, storage.ErrTooOldSample), errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, errTooManySeries):
		b.p.refuse(x.t)
	default:
		return err
	}
	return nil
}

// one appends a point under the reference that TSDB knows its series by.
func (b *batch) one(app storage.AppenderV2, x point, inOrder bool) error {
	p := b.p
	ref, known := p.known[x.ref]
	var ls labels.Labels
	if !known {
		var err error
		if ls, err = b.labelsOf(x.ref); err != nil {
			return err
		}
	}
	opts := storage.AOptions{RejectOutOfOrder: inOrder}
	got, err := app.Append(ref, ls, 0, x.t, x.v, x.h, x.fh, opts)
	if known && errors.Is(err, tsdb.ErrInvalidSample) { // TSDB has forgotten the series, and asks for its labels
		if ls, err = b.labelsOf(x.ref); err != nil {
			return err
		}
		got, err = app.Append(0, ls, 0, x.t, x.v, x.h, x.fh, opts)
	}
	switch {
	case err == nil:
		p.remember(x.ref, got)
	case !known && errors.Is(err, storage.ErrOutOfOrderSample):
		if g, ok := app.(storage.GetRef); ok {
			got, _ = g.GetRef(ls, ls.Hash())
			p.remember(x.ref, got)
		}
	}
	return err
}

// remember notes what TSDB calls a series; 0 if it does not know it.
func (p *Projection) remember(ref log.SeriesRef, as storage.SeriesRef) {
	if as == 0 || p.known[ref] == as {
		return
	}
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	p.known[ref] = as
}

func (b *batch) labelsOf(ref log.SeriesRef) (labels.Labels, error) {
	if ls, ok := b.defs[ref]; ok {
		return ls, nil
	}
	ls, ok, err := b.p.labels.Labels(ref)
	switch {
	case err != nil:
		return ls, err
	case !ok:
		return ls, fmt.Errorf("series %d has no label set", ref)
	}
	b.defs[ref] = ls // who is late is asked for again
	return ls, nil
}

// appendLate appends those of the late points whose times their series do not have yet.
func (b *batch) appendLate(ctx context.Context) error {
	p := b.p
	from, to := b.late[0].t, b.late[0].t
	for _, x := range b.late {
		from, to = min(from, x.t), max(to, x.t)
	}
	q, err := p.db.Querier(from, to)
	if err != nil {
		return err
	}
	head, err := newHeadTimes(p.db.Head())
	if err != nil {
		return errors.Join(err, q.Close())
	}
	app := p.db.AppenderV2(ctx)
	appended, err := b.appendMissing(ctx, head, q, app)
	if err = errors.Join(err, head.close(), q.Close()); err != nil {
		return errors.Join(err, app.Rollback())
	}
	if err := app.Commit(); err != nil {
		return err
	}
	p.counts.late.Add(appended)
	return nil
}

// appendMissing appends to app the late points that q does not have, and returns their number. What is sent or applied again is nearly
// always in the head, where a series is found by its reference.
func (b *batch) appendMissing(ctx context.Context, head *headTimes, q storage.Querier, app storage.AppenderV2) (appended uint64, err error) {
	for i := 0; i < len(b.late); {
		j := i + 1
		for j < len(b.late) && b.late[j].ref == b.late[i].ref {
			j++
		}
		run := b.late[i:j]
		i = j
		if ref, ok := b.p.known[run[0].ref]; ok && head.all(ref, run) {
			b.p.counts.repeated.Add(uint64(len(run)))
			continue
		}
		have, err := b.times(ctx, q, run[0].ref, run[0].t, run[len(run)-1].t)
		if err != nil {
			return appended, err
		}
		for _, x := range run {
			if _, ok := have[x.t]; ok {
				b.p.counts.repeated.Add(1)
				continue
			}
			err := b.one(app, x, false)
			if err == nil {
				appended++
			} else if err := b.judge(x, err); err != nil {
				return appended, err
			}
		}
	}
	return appended, nil
}

// times returns the times in [from, to] at which a series has a sample.
func (b *batch) times(ctx context.Context, q storage.Querier, ref log.SeriesRef, from, to int64) (map[int64]struct{}, error) {
	ls, err := b.labelsOf(ref)
	if err != nil {
		return nil, err
	}
	have := make(map[int64]struct{})
	var ms []*labels.Matcher
	ls.Range(func(l labels.Label) {
		ms = append(ms, labels.MustNewMatcher(labels.MatchEqual, l.Name, l.Value))
	})
	set := q.Select(ctx, false, &storage.SelectHints{Start: from, End: to}, ms...)
	var it chunkenc.Iterator
	for set.Next() {
		s := set.At()
		if !labels.Equal(s.Labels(), ls) {
			continue
		}
		it = s.Iterator(it)
		for it.Next() != chunkenc.ValNone {
			if t := it.AtT(); t >= from && t <= to {
				have[t] = struct{}{}
			}
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
	}
	return have, set.Err()
}

// exemplars appends exemplars. One that TSDB does not take is counted, and is no gap of the samples.
func (b *batch) exemplars(ctx context.Context, all []log.Exemplar) error {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(x, y log.Exemplar) int { return cmp.Compare(x.Time, y.Time) })
	app := b.p.db.Appender(ctx)
	for _, e := range sorted {
		ls, err := b.labelsOf(e.Ref)
		if err != nil {
			return errors.Join(err, app.Rollback())
		}
		_, err = app.AppendExemplar(b.p.known[e.Ref], ls, exemplar.Exemplar{Labels: e.Labels, Value: e.Value, Ts: e.Time, HasTs: true})
		if err != nil {
			b.p.counts.exemplarsRefused.Add(1)
			continue
		}
		b.p.counts.exemplars.Add(1)
	}
	return app.Commit()
}
