package sample

import (
	"errors"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// headTimes looks up samples that came in order in the TSDB's head, by what it calls their series: without matchers, which cost as much as
// the series that share a label are many.
type headTimes struct {
	index  tsdb.IndexReader
	chunks tsdb.ChunkReader

	labels labels.ScratchBuilder
	metas  []chunks.Meta
	it     chunkenc.Iterator
}

func newHeadTimes(h *tsdb.Head) (*headTimes, error) {
	index, err := h.Index()
	if err != nil {
		return nil, err
	}
	cr, err := h.Chunks()
	if err != nil {
		return nil, errors.Join(err, index.Close())
	}
	return &headTimes{index: index, chunks: cr}, nil
}

func (h *headTimes) close() error { return errors.Join(h.index.Close(), h.chunks.Close()) }

// all says whether the head has a sample of a series at the times of all points, which are increasing. False may also mean that it could not
// be told.
func (h *headTimes) all(ref storage.SeriesRef, run []point) bool {
	if err := h.index.Series(ref, &h.labels, &h.metas); err != nil {
		return false
	}
	k := 0
	for _, m := range h.metas {
		if m.MaxTime < run[k].t {
			continue
		}
		c, _, err := h.chunks.ChunkOrIterable(m)
		if err != nil || c == nil {
			return false
		}
		h.it = c.Iterator(h.it)
		for h.it.Next() != chunkenc.ValNone {
			switch t := h.it.AtT(); {
			case t > run[k].t:
				return false
			case t == run[k].t:
				if k++; k == len(run) {
					return true
				}
			}
		}
		if h.it.Err() != nil {
			return false
		}
	}
	return false
}
