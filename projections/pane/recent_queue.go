package pane

import (
	"hash/maphash"
	"math/bits"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// recentQueue is a queue of writes and starts in which the newest write of a content is found. A place takes 37 to 43 bytes, a fifth of them
// may be free, and seven eighths where there were more once. Nothing in it is a pointer. The zero value is empty.
type recentQueue struct {
	ring []recentEntry // it grows by a fourth, as it may be a large part of what a service holds
	// The newest write of each content, by its hash: one more than its place in the ring, or 0. Open addressing with linear probing, a power of
	// two that is at least a third longer than the ring.
	index []uint32
	first int // place of the oldest
	n     int
}

// minRecentRing is what the ring has at least.
const minRecentRing = 1 << 10

type recentEntry struct {
	hash    log.Hash
	logTime int64
	seq     uint64 // startBit with a start
}

const startBit = 1 << 63

func (e *recentEntry) recent() bucket.Recent {
	return bucket.Recent{Seq: e.seq &^ startBit, LogTime: e.logTime, Start: e.seq&startBit != 0, Hash: e.hash}
}

func (q *recentQueue) len() int { return q.n }

// at returns entry i of those that are held, from the oldest on.
func (q *recentQueue) at(i int) bucket.Recent { return q.ring[q.place(i)].recent() }

// place returns where entry i of those that are held lies, or will.
func (q *recentQueue) place(i int) int {
	if i += q.first; i >= len(q.ring) {
		i -= len(q.ring)
	}
	return i
}

// push adds an entry, and returns the newest write before it with its content, or 0.
func (q *recentQueue) push(e bucket.Recent) (earlier log.Seq) {
	if q.n == len(q.ring) {
		q.resize(max(minRecentRing, len(q.ring)+len(q.ring)/4))
	}
	place := q.place(q.n)
	q.n++
	q.ring[place] = recentEntry{hash: e.Hash, logTime: e.LogTime, seq: e.Seq}
	if e.Start {
		q.ring[place].seq |= startBit
		return 0
	}
	slot := q.slot(e.Hash)
	if was := q.index[slot]; was != 0 {
		earlier = log.Seq(q.ring[was-1].seq)
	}
	q.index[slot] = uint32(place) + 1
	return earlier
}

// pop removes the oldest entry.
func (q *recentQueue) pop() {
	e := &q.ring[q.first]
	if e.seq&startBit == 0 {
		if slot := q.slot(e.hash); q.index[slot] == uint32(q.first)+1 {
			q.free(slot)
		}
	}
	q.first = q.place(1)
	if q.n--; q.n < len(q.ring)/8 && len(q.ring) > minRecentRing {
		q.resize(max(minRecentRing, len(q.ring)/2))
	}
}

// recentSeed keeps senders from choosing where their writes go.
var recentSeed = maphash.MakeSeed()

// home returns where the search for a content begins.
func (q *recentQueue) home(h log.Hash) int {
	return int(maphash.Bytes(recentSeed, h[:])) & (len(q.index) - 1)
}

// slot returns the slot of a content: that of its newest write, or the free one where it belongs.
func (q *recentQueue) slot(h log.Hash) int {
	slot := q.home(h)
	for q.index[slot] != 0 && q.ring[q.index[slot]-1].hash != h {
		slot = (slot + 1) & (len(q.index) - 1)
	}
	return slot
}

// free empties a slot, and moves up what was put behind it for want of room.
func (q *recentQueue) free(slot int) {
	mask := len(q.index) - 1
	q.index[slot] = 0
	for next := (slot + 1) & mask; q.index[next] != 0; next = (next + 1) & mask {
		home := q.home(q.ring[q.index[next]-1].hash)
		if (next-home)&mask >= (next-slot)&mask { // its search comes past the empty slot
			q.index[slot], q.index[next] = q.index[next], 0
			slot = next
		}
	}
}

func (q *recentQueue) resize(size int) {
	old := *q
	*q = recentQueue{ring: make([]recentEntry, size), index: make([]uint32, 1<<bits.Len(uint(size+size/3)))}
	for i := range old.n {
		q.push(old.at(i))
	}
}
