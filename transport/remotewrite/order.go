package remotewrite

// data path 1 of 6: decode and check.

import (
	"slices"
	"sync"

	"tidemark/log"
)

const (
	// maxRecalled bounds the series of a generation of remembered requests, about 36 bytes each.
	maxRecalled = 1 << 20
	// leastRecalled is how many series a request has at least that is remembered.
	leastRecalled = 16
	// anchorEvery is which part of all series, by their hashes, lead to the requests that they were in.
	anchorEvery = 4
	// A request is remembered if more than one in searchedEvery of its series had to be searched, and was known.
	searchedEvery = 8
)

// knownSeries is what the dictionary said of a series.
type knownSeries struct {
	hash log.Hash
	ref  log.SeriesRef
}

// sequence is the series of a request in their order, as the dictionary knew them at an epoch.
type sequence struct {
	epoch  uint64
	series []knownSeries
}

// place is that of a series in a request.
type place struct {
	in *sequence
	at int
}

// recall remembers requests. Senders send the same series in the same order again and again, so that each is mostly found behind the one
// before it, without a search. Where a request begins among them may be another each time: so it is found by its first series, and by some
// others. Requests are forgotten by generations, as the dictionary forgets.
type recall struct {
	mu         sync.Mutex
	young, old map[log.Hash]place
	held       int // series that were put into the young generation
}

func isAnchor(h log.Hash) bool { return h[1]%anchorEvery == 0 }

// find returns where a series was in an earlier request. What was known at another epoch may be known no more.
func (c *recall) find(h log.Hash, epoch uint64) (p place, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok = c.young[h]; !ok {
		if p, ok = c.old[h]; ok && p.in.epoch == epoch {
			c.put(p.in)
		}
	}
	return p, ok && p.in.epoch == epoch
}

// keep remembers the series of a request.
func (c *recall) keep(epoch uint64, series []knownSeries) {
	if len(series) < leastRecalled {
		return
	}
	s := &sequence{epoch: epoch, series: slices.Clone(series)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(s)
}

// put must be called with the lock held.
func (c *recall) put(s *sequence) {
	if c.young == nil || c.held+len(s.series) > maxRecalled {
		c.old, c.young, c.held = c.young, make(map[log.Hash]place), 0
	}
	c.held += len(s.series)
	for i := range s.series {
		if h := s.series[i].hash; i == 0 || isAnchor(h) {
			c.young[h] = place{s, i}
		}
	}
}

// order follows the series of a request along those of earlier ones.
type order struct {
	recall   *recall
	epoch    uint64
	known    []knownSeries // of an earlier request, from where this one met it
	at       int           // of them, the one that is expected next
	begun    bool
	strayed  bool          // this request is no longer as that one was
	met      []knownSeries // of this one, once it has strayed
	searched int           // series that were known and that follow did not find
}

// begin is to be called before the first series.
func (o *order) begin(r *recall, epoch uint64) {
	*o = order{recall: r, epoch: epoch, met: o.met[:0]}
}

// follow returns the reference of the next series, or 0 if it is to be searched.
func (o *order) follow(h log.Hash) log.SeriesRef {
	for k := o.at; k < min(o.at+2, len(o.known)); k++ { // one may have gone
		if o.known[k].hash == h {
			if k > o.at {
				o.stray()
			}
			o.at = k + 1
			return o.known[k].ref
		}
	}
	first := !o.begun
	o.begun = true
	if !first {
		o.stray()
	}
	if first || isAnchor(h) {
		if p, ok := o.recall.find(h, o.epoch); ok {
			o.known, o.at = p.in.series[p.at:], 1
			return o.known[0].ref
		}
	}
	o.stray()
	return 0
}

// missed is to be called where follow has not found what was known. New series are not counted: most may never come again.
func (o *order) missed() { o.searched++ }

func (o *order) stray() {
	if !o.strayed {
		o.strayed = true
		o.met = append(o.met, o.known[:o.at]...)
	}
}

// note is to be called with what became of each series that follow was called for.
func (o *order) note(h log.Hash, ref log.SeriesRef) {
	if o.strayed && ref != 0 {
		o.met = append(o.met, knownSeries{h, ref})
	}
}

// end is to be called behind the last series.
func (o *order) end() {
	if o.searched > len(o.met)/searchedEvery {
		o.recall.keep(o.epoch, o.met)
	}
}

// release lets go of all but room.
func (o *order) release() { *o = order{met: o.met[:0]} }
