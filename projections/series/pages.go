package series

import (
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// pages is a table by number, in pages that come and go with what stands on them. What stays of a page that is gone is a
// pointer: 8 bytes for pageSize numbers ever used.
type pages[T comparable] struct {
	list []*page[T]
}

type page[T comparable] struct {
	used int // entries that are not zero
	at   [pageSize]T
}

func (p *pages[T]) get(i uint64) T {
	if n := i / pageSize; n < uint64(len(p.list)) && p.list[n] != nil {
		return p.list[n].at[i%pageSize]
	}
	var zero T
	return zero
}

func (p *pages[T]) set(i uint64, v T) {
	var zero T
	n := i / pageSize
	for uint64(len(p.list)) <= n {
		p.list = append(p.list, nil)
	}
	if p.list[n] == nil {
		if v == zero {
			return
		}
		p.list[n] = new(page[T])
	}
	pg := p.list[n]
	was := pg.at[i%pageSize]
	pg.at[i%pageSize] = v
	switch {
	case was == zero && v != zero:
		pg.used++
	case was != zero && v == zero:
		pg.used--
	}
	if pg.used == 0 {
		p.list[n] = nil
	}
}

// labelCache holds label sets by generations: a full young generation becomes the old one, whose predecessor is dropped.
type labelCache struct {
	mu         sync.Mutex
	limit      int
	young, old map[log.SeriesRef]labels.Labels
}

func newLabelCache(limit int) labelCache {
	return labelCache{limit: limit, young: make(map[log.SeriesRef]labels.Labels)}
}

func (c *labelCache) get(ref log.SeriesRef) (labels.Labels, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ls, ok := c.young[ref]
	if !ok {
		if ls, ok = c.old[ref]; ok {
			c.add(ref, ls)
		}
	}
	return ls, ok
}

func (c *labelCache) put(ref log.SeriesRef, ls labels.Labels) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(ref, ls)
}

func (c *labelCache) add(ref log.SeriesRef, ls labels.Labels) {
	if len(c.young) >= c.limit {
		c.old, c.young = c.young, make(map[log.SeriesRef]labels.Labels)
	}
	c.young[ref] = ls
}
