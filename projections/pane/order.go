package pane

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"

	"tidemark/log"
)

// data path 6 of 6: answer. It remembers in which order the series of an answer stand.

const (
	// leastOrdered is the number of series from which on an order is remembered: fewer are sorted as fast.
	leastOrdered = 256
	// maxOrdered is the number of series of all orders of one generation, at 4 bytes each.
	maxOrdered = 1 << 20
)

// orders remembers the label order of lists of series. A reference has one label set for good (S1), so what a list of references was
// sorted to, it is sorted to at any time: an order need never be forgotten, but for the room. A full young generation becomes the old one,
// whose predecessor goes; what is asked for moves to the young. The zero value is ready. It is safe for concurrent use.
type orders struct {
	mu         sync.Mutex
	young, old map[xxh3.Uint128][]uint32
	size       int // of all that the young generation holds
}

// of returns the positions of refs in label order; sorted finds them where they are not remembered. It must not be changed.
func (o *orders) of(refs []uint64, sorted func() []uint32) []uint32 {
	if len(refs) < leastOrdered || len(refs) > maxOrdered {
		return sorted()
	}
	raw := make([]byte, 0, 8*len(refs))
	for _, ref := range refs {
		raw = binary.LittleEndian.AppendUint64(raw, ref)
	}
	key := xxh3.Hash128(raw)
	o.mu.Lock()
	at, ok := o.young[key]
	if !ok {
		if at, ok = o.old[key]; ok {
			o.keep(key, at)
		}
	}
	o.mu.Unlock()
	if ok && len(at) == len(refs) {
		return at
	}
	at = sorted()
	o.mu.Lock()
	if _, there := o.young[key]; !there {
		o.keep(key, at)
	}
	o.mu.Unlock()
	return at
}

// keep must be called with the lock held.
func (o *orders) keep(key xxh3.Uint128, at []uint32) {
	if o.young == nil || o.size+len(at) > maxOrdered {
		o.old, o.young, o.size = o.young, make(map[xxh3.Uint128][]uint32), 0
	}
	o.young[key] = at
	o.size += len(at)
}

// ordered returns the series that have anything, in label order.
func (p *Projection) ordered(r *streamRead) ([]Series, error) {
	n := 0
	for shard := range r.series {
		n += len(r.series[shard])
	}
	there, refs := make([]*Series, 0, n), make([]uint64, 0, n)
	for shard := range r.series {
		for i := range r.series[shard] {
			s := &r.series[shard][i]
			if len(s.T) == 0 && len(s.Cols) == 0 && len(s.Open) == 0 && len(s.Incomplete) == 0 && len(s.Histograms) == 0 {
				continue
			}
			ref := r.refs[shard][i]
			ls, ok, err := p.index.Find(log.SeriesRef(ref))
			if err != nil || !ok {
				return nil, cmp.Or(err, errNoLabels(log.SeriesRef(ref)))
			}
			s.Labels = ls
			there, refs = append(there, s), append(refs, ref)
		}
	}
	at := p.orders.of(refs, func() []uint32 {
		at := make([]uint32, len(there))
		for i := range at {
			at[i] = uint32(i)
		}
		slices.SortFunc(at, func(x, y uint32) int { return labels.Compare(there[x].Labels, there[y].Labels) })
		return at
	})
	out := make([]Series, len(there))
	for i, k := range at {
		out[i] = *there[k]
	}
	return out, nil
}
