package pane

import (
	"sync"

	"tidemark/projections/accum"
	"tidemark/projections/bucket"
)

// data path 6 of 6: answer. A read over thousands of series fills tens of megabytes, which are used again for the next one.

// roomSamples is how many samples there is room for in one piece of memory.
const roomSamples = 8192

// roomChunk is one piece of memory.
type roomChunk struct {
	t [roomSamples]int64
	v [roomSamples]float64
}

var roomChunks = sync.Pool{New: func() any { return new(roomChunk) }}

// room is where the samples of one Snapshot lie, those of many series in each piece of memory.
type room struct {
	taken []*roomChunk
	t     []int64 // what is left of the last
	v     []float64
}

// reserve gives a window that has none left room for n more samples, and for as many in each of the panes that may follow: of a block first,
// then of four times of what there is.
func (r *room) reserve(w *accum.Window, n, panes int) {
	have := len(w.T)
	want := have + n*min(panes, max(bucket.EndsPerBlock, 3*have/max(1, n)))
	if want > roomSamples/4 {
		return // the allocator's
	}
	if len(r.t) < want {
		c := roomChunks.Get().(*roomChunk)
		r.taken = append(r.taken, c)
		r.t, r.v = c.t[:], c.v[:]
	}
	t, v := r.t[:have:want], r.v[:have:want]
	r.t, r.v = r.t[want:], r.v[want:]
	copy(t, w.T)
	copy(v, w.V)
	w.T, w.V = t, v
}

// release gives the memory back. What was cut from it must not be read any more.
func (r *room) release() {
	for _, c := range r.taken {
		c.spoil()
		roomChunks.Put(c)
	}
	*r = room{}
}
