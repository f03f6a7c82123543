package pane

import (
	"math/bits"
	"slices"
)

// endsPerMask is the number of places that one mask tells apart.
const endsPerMask = 64

// endSet is a set of places on a grid. Data that comes at regular distances, with or without gaps, takes one run; the worst case
// is one run for every 64 places between the first and the last.
type endSet struct {
	runs []maskRun // by block, without overlap; neighbours differ
	n    int       // places in the set
}

// maskRun is count blocks of 64 places, from block first on, that all hold the places of one mask.
type maskRun struct {
	first, count int64
	mask         uint64 // never 0
}

func (r *maskRun) last() int64 { return r.first + r.count - 1 }

// find returns the position of the first run that does not end before a block.
func (e *endSet) find(block int64) int {
	if n := len(e.runs); n == 0 || e.runs[n-1].last() < block {
		return n
	} else if e.runs[n-1].first <= block {
		return n - 1
	}
	i, _ := slices.BinarySearchFunc(e.runs, block, func(r maskRun, b int64) int {
		if r.last() < b {
			return -1
		}
		return 1
	})
	return i
}

// add puts a place into the set, and reports whether it is new.
func (e *endSet) add(k int64) bool {
	block, bit := k>>6, uint64(1)<<(k&(endsPerMask-1))
	i := e.find(block)
	if i == len(e.runs) || e.runs[i].first > block {
		e.runs = slices.Insert(e.runs, i, maskRun{block, 1, bit})
		e.n++
		e.join(i)
		return true
	}
	r := e.runs[i]
	if r.mask&bit != 0 {
		return false
	}
	i = e.isolate(i, block)
	e.runs[i].mask |= bit
	e.n++
	e.join(i)
	return true
}

// isolate makes a run of its own of one block within run i, and returns its position.
func (e *endSet) isolate(i int, block int64) int {
	r := e.runs[i]
	if r.count == 1 {
		return i
	}
	var parts []maskRun
	if block > r.first {
		parts = append(parts, maskRun{r.first, block - r.first, r.mask})
	}
	at := i + len(parts)
	parts = append(parts, maskRun{block, 1, r.mask})
	if block < r.last() {
		parts = append(parts, maskRun{block + 1, r.last() - block, r.mask})
	}
	if len(parts) > 1 {
		e.runs = slices.Replace(e.runs, i, i+1, parts...)
	}
	return at
}

// join merges run i with those neighbours that adjoin it and have its mask.
func (e *endSet) join(i int) {
	adjoin := func(a, b *maskRun) bool { return a.mask == b.mask && a.last()+1 == b.first }
	if i+1 < len(e.runs) && adjoin(&e.runs[i], &e.runs[i+1]) {
		e.runs[i].count += e.runs[i+1].count
		e.runs = slices.Delete(e.runs, i+1, i+2)
	}
	if i > 0 && adjoin(&e.runs[i-1], &e.runs[i]) {
		e.runs[i-1].count += e.runs[i].count
		e.runs = slices.Delete(e.runs, i, i+1)
	}
}

// dropThrough takes the places up to k out of the set, and returns how many there were.
func (e *endSet) dropThrough(k int64) int {
	block := k >> 6
	before := e.n
	if i := e.find(block); i < len(e.runs) && e.runs[i].first <= block {
		// Of this block the places behind k stay.
		i = e.isolate(i, block)
		r := &e.runs[i]
		e.n -= bits.OnesCount64(r.mask)
		r.mask &^= ^uint64(0) >> (endsPerMask - 1 - k&(endsPerMask-1))
		e.n += bits.OnesCount64(r.mask)
		if r.mask == 0 {
			e.runs = slices.Delete(e.runs, i, i+1)
		}
	}
	i := 0
	for ; i < len(e.runs) && e.runs[i].last() < block; i++ {
		e.n -= int(e.runs[i].count) * bits.OnesCount64(e.runs[i].mask)
	}
	e.runs = slices.Delete(e.runs, 0, i)
	if len(e.runs) > 0 {
		e.join(0)
	}
	return before - e.n
}
