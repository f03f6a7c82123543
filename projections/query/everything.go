package query

// This file is data path 6 of 6: answer. It hands out samples as they are, recorded ones among written ones.

import (
	"context"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"tidemark/projections/plan"
)

// ChunkExact is an exact copy that can be read by the chunk, too.
type ChunkExact interface {
	Exact
	storage.ChunkQueryable
}

// Everything is an exact copy with the recorded series in it, as if these had been written there (Q9). It lists written series alone:
// RecordedSeries lists the others.
type Everything struct {
	ChunkExact
	engine *Engine
}

// Everything puts the engine's recorded series into an exact copy.
func (e *Engine) Everything(exact ChunkExact) *Everything { return &Everything{exact, e} }

// Querier implements storage.Queryable.
func (e *Everything) Querier(mint, maxt int64) (storage.Querier, error) {
	x, err := e.engine.index()
	if err != nil {
		return nil, err
	}
	q, err := e.ChunkExact.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	return &everyQuerier{everyLister{q, x.names}, e.engine, q, mint, maxt}, nil
}

// ChunkQuerier implements storage.ChunkQueryable.
func (e *Everything) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	x, err := e.engine.index()
	if err != nil {
		return nil, err
	}
	q, err := e.ChunkExact.ChunkQuerier(mint, maxt)
	if err != nil {
		return nil, err
	}
	return &everyChunkQuerier{everyLister{q, x.names}, e.engine, q, mint, maxt}, nil
}

// everyLister leaves the words of written series out of lists that are nobody's.
type everyLister struct {
	storage.LabelQuerier
	names plan.Named
}

// shaded returns matchers that leave out what is nobody's, where there is anything; a list by matchers takes longer than one without.
func (q *everyLister) shaded(ctx context.Context, matchers []*labels.Matcher) (own []*labels.Matcher, ok bool, err error) {
	own, ok = written(matchers, q.names)
	if len(q.names.All) == 0 || len(matchers) > 0 {
		return own, ok, nil
	}
	foreign, err := notNamed(q.names.All).Inverse()
	if err != nil {
		return nil, false, err
	}
	found, _, err := q.LabelQuerier.LabelValues(ctx, model.MetricNameLabel, &storage.LabelHints{Limit: 1}, foreign)
	if err != nil || len(found) > 0 {
		return own, ok, err
	}
	return matchers, true, nil
}

// LabelValues implements storage.LabelQuerier.
func (q *everyLister) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	own, ok, err := q.shaded(ctx, matchers)
	if err != nil || !ok {
		return nil, nil, err
	}
	return q.LabelQuerier.LabelValues(ctx, name, hints, own...)
}

// LabelNames implements storage.LabelQuerier.
func (q *everyLister) LabelNames(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	own, ok, err := q.shaded(ctx, matchers)
	if err != nil || !ok {
		return nil, nil, err
	}
	return q.LabelQuerier.LabelNames(ctx, hints, own...)
}

type everyQuerier struct {
	everyLister
	engine     *Engine
	exact      storage.Querier
	mint, maxt int64
}

// FuncSeries is the Func of hints by which label sets alone are asked for: recorded ones are not among them.
const FuncSeries = "series"

// Select implements storage.Querier.
func (q *everyQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var recorded []Series
	if hints == nil || hints.Func != FuncSeries {
		var err error
		if recorded, _, err = q.engine.RecordedSamples(ctx, q.mint, q.maxt, matchers...); err != nil {
			return storage.ErrSeriesSet(err)
		}
	}
	own, ok := written(matchers, q.names)
	if !ok {
		return recordedSet(recorded)
	}
	return among(recorded, q.exact.Select(ctx, true, hints, own...))
}

type everyChunkQuerier struct {
	everyLister
	engine     *Engine
	exact      storage.ChunkQuerier
	mint, maxt int64
}

// Select implements storage.ChunkQuerier.
func (q *everyChunkQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	recorded, _, err := q.engine.RecordedSamples(ctx, q.mint, q.maxt, matchers...)
	if err != nil {
		return storage.ErrChunkSeriesSet(err)
	}
	chunks := storage.NewSeriesSetToChunkSet(recordedSet(recorded))
	own, ok := written(matchers, q.names)
	if !ok {
		return chunks
	}
	exact := q.exact.Select(ctx, true, hints, own...)
	if len(recorded) == 0 {
		return exact
	}
	return storage.NewMergeChunkSeriesSet([]storage.ChunkSeriesSet{chunks, exact}, 0, storage.NewConcatenatingChunkSeriesMerger())
}
