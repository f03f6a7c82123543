package bucket

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// data path 5 of 6: publish. The panes of a block are put into the order of a piece.

// maxSparse is the number of places per entry up to which a layout is worth while.
const maxSparse = 16

// layout is memory in which the panes of a block find their places. The series of a shard that put something into a block lie at
// regular distances, and most have something at most ends: so there is a place for each series and end, and nothing is sorted. It is used
// for one block after the other.
type layout struct {
	least uint64 // series of the first row
	shift int    // of the distance of two rows
	at    []place
	masks []uint32 // by row: the ends at which there is a pane
}

// place says which entry stands there.
type place struct{ chunk, entry uint32 }

// appendPiece encodes what the chunks of one block hold.
func (l *layout) appendPiece(dst []byte, chunks []*chunk) []byte {
	if !l.span(chunks) {
		n := 0
		for _, c := range chunks {
			n += len(c.entries)
		}
		items := make([]item, 0, n)
		for _, c := range chunks {
			items = c.appendItems(items)
		}
		return appendItemsPiece(dst, items)
	}
	series := uint64(0)
	for i, c := range chunks { // from old to new: of two panes in one place the newer stays
		for j := range c.entries {
			e := &c.entries[j]
			row := int((e.ref - l.least) >> l.shift)
			if l.masks[row] == 0 {
				series++
			}
			l.masks[row] |= 1 << e.idx
			l.at[row*EndsPerBlock+int(e.idx)] = place{uint32(i), uint32(j)}
		}
	}
	start := len(dst)
	dst = append(dst, pieceVersion)
	dst = binary.AppendUvarint(dst, series)
	prev := uint64(0)
	for row, mask := range l.masks {
		if mask == 0 {
			continue
		}
		ref := l.least + uint64(row)<<l.shift
		dst = binary.AppendUvarint(dst, ref-prev)
		dst = binary.AppendUvarint(dst, uint64(mask)<<1)
		prev = ref
		for ; mask != 0; mask &= mask - 1 {
			at := l.at[row*EndsPerBlock+bits.TrailingZeros32(mask)]
			c := chunks[at.chunk]
			p := c.payload(&c.entries[at.entry])
			dst = binary.AppendUvarint(dst, uint64(len(p)))
			dst = append(dst, p...)
		}
	}
	return append(dst[:start], seal(dst[start:])...)
}

// span makes room for the entries of the chunks; false if there are other things than panes among them, or they lie too far apart.
func (l *layout) span(chunks []*chunk) bool {
	if len(chunks) == 0 {
		return false
	}
	least, most, n := uint64(math.MaxUint64), uint64(0), 0
	first, differ := chunks[0].entries[0].ref, uint64(0)
	for _, c := range chunks {
		n += len(c.entries)
		for i := range c.entries {
			e := &c.entries[i]
			if e.kind != pane {
				return false
			}
			least, most = min(least, e.ref), max(most, e.ref)
			differ |= e.ref ^ first
		}
	}
	// Where all have the lowest bits of the first, rows are so far apart.
	l.least, l.shift = least, bits.TrailingZeros64(differ)&63
	apart := (most - least) >> l.shift
	if apart > uint64(maxSparse*n/EndsPerBlock) {
		return false
	}
	rows := int(apart) + 1
	l.masks = cleared(l.masks, rows)
	if need := rows * EndsPerBlock; cap(l.at) < need {
		l.at = make([]place, need)
	} else {
		l.at = l.at[:need] // what stands there from before is behind no mask
	}
	return true
}

// cleared returns n zeros, in the memory of s where they fit.
func cleared(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	s = s[:n]
	clear(s)
	return s
}
