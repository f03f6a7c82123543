package pane

import (
	"hash/maphash"
	"slices"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// recentQueue is a queue of at most maxRecent writes and starts in which the newest write of a content is found. An entry takes 37 to 43
// bytes, and up to 64 where there were more once. Nothing in it is a pointer, and it grows and shrinks by pieces of 128 KiB, as it may be a
// large part of what a service holds.
// The zero value is empty.
type recentQueue struct {
	pieces []*recentPiece // from that of the oldest on
	spare  *recentPiece   // was emptied last
	first  uint64         // the number of the oldest, counted over all that were ever pushed
	next   uint64         // the number of the next

	// The newest write of each content, by its hash: one more than its number modulo recentNumbers, or 0. Open addressing with linear
	// probing; a power of two, of which at least a fourth is free.
	index []uint32
}

const (
	recentPieceLen = 1 << 12
	minRecentIndex = 1 << 10
	// recentNumbers is more than the entries that there may be at one time, and a power of two.
	recentNumbers = 4 * maxRecent
)

type recentPiece [recentPieceLen]recentEntry

type recentEntry struct {
	hash    log.Hash
	logTime int64
	seq     uint64 // startBit with a start
}

const startBit = 1 << 63

func (e *recentEntry) recent() bucket.Recent {
	return bucket.Recent{Seq: e.seq &^ startBit, LogTime: e.logTime, Start: e.seq&startBit != 0, Hash: e.hash}
}

func (q *recentQueue) len() int { return int(q.next - q.first) }

// at returns entry i of those that are held, from the oldest on.
func (q *recentQueue) at(i int) bucket.Recent { return q.entry(q.first + uint64(i)).recent() }

func (q *recentQueue) entry(number uint64) *recentEntry {
	return &q.pieces[number/recentPieceLen-q.first/recentPieceLen][number%recentPieceLen]
}

// push adds an entry, and returns the newest write before it with its content, or 0.
func (q *recentQueue) push(e bucket.Recent) (earlier log.Seq) {
	if q.len()+1 > len(q.index)/4*3 {
		q.resize(max(minRecentIndex, 2*len(q.index)))
	}
	if q.next%recentPieceLen == 0 || len(q.pieces) == 0 {
		if q.spare == nil {
			q.spare = new(recentPiece)
		}
		q.pieces, q.spare = append(q.pieces, q.spare), nil
	}
	number := q.next
	q.next++
	added := q.entry(number)
	*added = recentEntry{hash: e.Hash, logTime: e.LogTime, seq: e.Seq}
	if e.Start {
		added.seq |= startBit
		return 0
	}
	slot := q.slot(&added.hash)
	if was := q.index[slot]; was != 0 {
		earlier = log.Seq(q.entry(q.number(was)).seq)
	}
	q.index[slot] = uint32(number%recentNumbers) + 1
	return earlier
}

// pop removes the oldest entry.
func (q *recentQueue) pop() {
	e := q.entry(q.first)
	if e.seq&startBit == 0 {
		if slot := q.slot(&e.hash); q.number(q.index[slot]) == q.first {
			q.free(slot)
		}
	}
	if q.first++; q.first%recentPieceLen == 0 {
		q.spare = q.pieces[0]
		q.pieces = slices.Delete(q.pieces, 0, 1) // which lets go of the slot behind, too
	}
	if n := len(q.index); q.len() < n/8 && n > minRecentIndex {
		q.resize(n / 2)
	}
}

// number returns the number of an entry from what the index holds.
func (q *recentQueue) number(held uint32) uint64 {
	return q.first + (uint64(held)-1-q.first)%recentNumbers
}

// recentSeed keeps senders from choosing where their writes go.
var recentSeed = maphash.MakeSeed()

// home returns where the search for a content begins.
func (q *recentQueue) home(h *log.Hash) int {
	return int(maphash.Bytes(recentSeed, h[:])) & (len(q.index) - 1)
}

// slot returns the slot of a content: that of its newest write, or the free one where it belongs.
func (q *recentQueue) slot(h *log.Hash) int {
	slot := q.home(h)
	for q.index[slot] != 0 && q.entry(q.number(q.index[slot])).hash != *h {
		slot = (slot + 1) & (len(q.index) - 1)
	}
	return slot
}

// free empties a slot, and moves up what was put behind it for want of room.
func (q *recentQueue) free(slot int) {
	mask := len(q.index) - 1
	q.index[slot] = 0
	for next := (slot + 1) & mask; q.index[next] != 0; next = (next + 1) & mask {
		home := q.home(&q.entry(q.number(q.index[next])).hash)
		if (next-home)&mask >= (next-slot)&mask { // its search comes past the empty slot
			q.index[slot], q.index[next] = q.index[next], 0
			slot = next
		}
	}
}

// resize makes an index of another size.
func (q *recentQueue) resize(size int) {
	old := q.index
	q.index = make([]uint32, size)
	for _, held := range old {
		if held != 0 {
			q.index[q.slot(&q.entry(q.number(held)).hash)] = held
		}
	}
}
