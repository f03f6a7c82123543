package sample

// data path 6 of 6: answer, here from the samples themselves.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/zeebo/xxh3"

	"tidemark/log"
)

// Wait returns the sequence that the copy reflects at least, once it is open. With all it blocks until that is everything that stands
// in the log when it is called, or ctx ends.
func (p *Projection) Wait(ctx context.Context, all bool) (log.Seq, error) {
	var seq log.Seq
	if all {
		seq = p.events.Head()
	}
	for {
		changed := p.changed.Wait()
		applied := log.Seq(p.applied.Load())
		if err := p.err(); err != nil {
			return applied, fmt.Errorf("the exact copy has stopped: %w", err)
		}
		if applied >= seq && p.opened.Load() {
			return applied, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return applied, ctx.Err()
		}
	}
}

// Oldest returns a time, in ms, up to which samples may be missing; math.MinInt64 if none are.
func (p *Projection) Oldest() int64 { return max(p.expired.Load(), p.refused.Load()) }

// errNotOpen: the caller has not waited.
var errNotOpen = errors.New("the exact copy is not open yet")

// Querier implements storage.Queryable over the samples in [mint, maxt], in ms. The caller closes it.
func (p *Projection) Querier(mint, maxt int64) (storage.Querier, error) {
	if !p.opened.Load() {
		return nil, errNotOpen
	}
	return p.db.Querier(mint, maxt)
}

// ChunkQuerier implements storage.ChunkQueryable.
func (p *Projection) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	if !p.opened.Load() {
		return nil, errNotOpen
	}
	return p.db.ChunkQuerier(mint, maxt)
}

// ExemplarQuerier implements storage.ExemplarQueryable.
func (p *Projection) ExemplarQuerier(ctx context.Context) (storage.ExemplarQuerier, error) {
	if !p.opened.Load() {
		return nil, errNotOpen
	}
	return p.db.ExemplarQuerier(ctx)
}

// Sum names the content of a copy.
type Sum struct {
	Series, Samples uint64
	Hash            xxh3.Uint128 // over label sets, times and values, in order
}

// String prints the sum on one line.
func (s Sum) String() string {
	return fmt.Sprintf("%d series, %d samples, %016x%016x", s.Series, s.Samples, s.Hash.Hi, s.Hash.Lo)
}

// Sum reads all samples after a time, in ms.
func (p *Projection) Sum(ctx context.Context, after int64) (sum Sum, err error) {
	if after == math.MaxInt64 {
		return sum, nil
	}
	q, err := p.db.Querier(after+1, math.MaxInt64)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	h := xxh3.New()
	all := labels.MustNewMatcher(labels.MatchNotEqual, model.MetricNameLabel, "")
	set := q.Select(ctx, true, &storage.SelectHints{Start: after + 1, End: math.MaxInt64}, all)
	var it chunkenc.Iterator
	var line []byte
	for set.Next() {
		s := set.At()
		line = s.Labels().Bytes(line)
		before := sum.Samples
		it = s.Iterator(it)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			sum.Samples++
			line = binary.LittleEndian.AppendUint64(append(line, byte(kind)), uint64(it.AtT()))
			switch kind {
			case chunkenc.ValFloat:
				_, v := it.At()
				line = binary.LittleEndian.AppendUint64(line, math.Float64bits(v))
			default:
				_, fh := it.AtFloatHistogram(nil)
				line = append(line, fh.String()...)
			}
			_, _ = h.Write(line)
			line = line[:0]
		}
		if it.Err() != nil {
			return sum, it.Err()
		}
		if sum.Samples > before {
			sum.Series++
		}
	}
	sum.Hash = h.Sum128()
	return sum, set.Err()
}

// Head returns the TSDB's head, for its statistics; nil until the copy is open.
func (p *Projection) Head() *tsdb.Head {
	if !p.opened.Load() {
		return nil
	}
	return p.db.Head()
}

// Stats counts what the copy has done since the process began, and what it is.
type Stats struct {
	Appended         uint64 // samples, native histograms included, that were newer than all their series had
	Late             uint64 // samples that were not
	Repeated         uint64 // samples for whose time their series had one; but the newest sent again, bit for bit, counts as Appended
	Refused          uint64 // samples that the copy does not have: too old, too many series, or a histogram that is not sound
	Exemplars        uint64
	ExemplarsRefused uint64
	HeadSeries       uint64
	Blocks           int
	Bytes            int64 // on disk
	Oldest           int64 // ms; see Projection.Oldest
}

// Stats returns numbers that belong together only roughly.
func (p *Projection) Stats() Stats {
	s := Stats{
		Appended: p.counts.appended.Load(), Late: p.counts.late.Load(), Repeated: p.counts.repeated.Load(), Refused: p.counts.refused.Load(),
		Exemplars: p.counts.exemplars.Load(), ExemplarsRefused: p.counts.exemplarsRefused.Load(), Oldest: p.Oldest(),
	}
	if !p.opened.Load() {
		return s
	}
	s.HeadSeries = p.db.Head().NumSeries()
	s.Bytes = p.db.Head().Size()
	for _, b := range p.db.Blocks() {
		s.Blocks++
		s.Bytes += b.Size()
	}
	return s
}
