package bucket

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
)

const (
	// pieceVersion is the version of the piece format.
	pieceVersion = 1
	// maskIncomplete and maskHealed say that further masks follow that of the panes.
	maskIncomplete = 1
	maskHealed     = 1 << 33
)

// ErrCorruptPiece is wrapped by every error about a piece that does not decode.
var ErrCorruptPiece = errors.New("bucket: corrupt piece")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// item is one (series, end) of one source, as merging sees it. Items are collected by age: of two panes for one (ref, idx) the later
// one wins.
type item struct {
	ref     uint64
	idx     uint8
	kind    kind
	payload []byte
}

// sortItems orders by (ref, end, age); until then the age is the place. The result may be another slice.
func sortItems(items []item) []item {
	if slices.IsSortedFunc(items, byPlace) {
		return items
	}
	least, most := items[0].ref, items[0].ref
	for i := range items {
		least, most = min(least, items[i].ref), max(most, items[i].ref)
	}
	const idxBits = 5 // of EndsPerBlock
	ageBits := bits.Len(uint(len(items)))
	if bits.Len64(most-least)+idxBits+ageBits > 64 {
		slices.SortStableFunc(items, byPlace)
		return items
	}
	// Numbers are sorted in a fraction of the time.
	keys := make([]uint64, len(items))
	for i := range items {
		keys[i] = ((items[i].ref-least)<<idxBits|uint64(items[i].idx))<<ageBits | uint64(i)
	}
	slices.Sort(keys)
	sorted := make([]item, len(items))
	for i, k := range keys {
		sorted[i] = items[k&(1<<ageBits-1)]
	}
	return sorted
}

func byPlace(a, b item) int {
	if a.ref != b.ref {
		return cmp.Compare(a.ref, b.ref)
	}
	return cmp.Compare(a.idx, b.idx)
}

// seriesItems is what a block holds of one series after merging: the newest panes, the marks that were not taken back, and where
// older ones are.
type seriesItems struct {
	ref        uint64
	at         int // index among the wanted series, if these are given
	mask       uint32
	incomplete uint32
	healed     uint32
	payloads   []([]byte) // EndsPerBlock
}

// merge calls yield for each series of sorted items (P1).
func merge(items []item, yield func(*seriesItems) error) error {
	s := seriesItems{payloads: make([][]byte, EndsPerBlock)}
	for i := 0; i < len(items); {
		s.ref, s.mask, s.incomplete, s.healed = items[i].ref, 0, 0, 0
		for ; i < len(items) && items[i].ref == s.ref; i++ {
			it := &items[i]
			switch it.kind {
			case mark:
				s.incomplete |= 1 << it.idx
			case healed:
				s.incomplete &^= 1 << it.idx
				s.healed |= 1 << it.idx
			default:
				s.mask |= 1 << it.idx
				s.payloads[it.idx] = it.payload
			}
		}
		if err := yield(&s); err != nil {
			return err
		}
	}
	return nil
}

// appendItemsPiece encodes the newest of items, whose order it may change.
func appendItemsPiece(dst []byte, items []item) []byte {
	items = sortItems(items)
	n := 0
	for i := range items {
		if i == 0 || items[i].ref != items[i-1].ref {
			n++
		}
	}
	start := len(dst)
	dst = append(dst, pieceVersion)
	dst = binary.AppendUvarint(dst, uint64(n))
	prev := uint64(0)
	_ = merge(items, func(s *seriesItems) error {
		dst = binary.AppendUvarint(dst, s.ref-prev)
		prev = s.ref
		m := uint64(s.mask) << 1
		if s.incomplete != 0 {
			m |= maskIncomplete
		}
		if s.healed != 0 {
			m |= maskHealed
		}
		dst = binary.AppendUvarint(dst, m)
		for _, more := range [...]uint32{s.incomplete, s.healed} {
			if more != 0 {
				dst = binary.AppendUvarint(dst, uint64(more))
			}
		}
		for rest := s.mask; rest != 0; rest &= rest - 1 {
			p := s.payloads[bits.TrailingZeros32(rest)]
			dst = binary.AppendUvarint(dst, uint64(len(p)))
			dst = append(dst, p...)
		}
		return nil
	})
	return append(dst[:start], seal(dst[start:])...)
}

// seal appends the checksum of a piece.
func seal(piece []byte) []byte {
	return binary.LittleEndian.AppendUint32(piece, crc32.Checksum(piece, castagnoli))
}

// appendItems appends the chunk's entries, in the order in which they were put.
func (c *chunk) appendItems(items []item) []item {
	for i := range c.entries {
		e := &c.entries[i]
		items = append(items, item{ref: e.ref, idx: e.idx, kind: e.kind, payload: c.payload(e)})
	}
	return items
}

// payload is the pane of an entry; it aliases the chunk.
func (c *chunk) payload(e *entry) []byte { return c.data[e.off : e.off+e.size : e.off+e.size] }

// pieceReader walks the series of an encoded piece.
type pieceReader struct {
	buf  []byte
	left uint64
	ref  uint64

	mask, incomplete, healed uint32
}

// openPiece checks the checksum and the version.
func openPiece(p []byte) (pieceReader, error) {
	if len(p) < 6 {
		return pieceReader{}, fmt.Errorf("%w: %d bytes", ErrCorruptPiece, len(p))
	}
	body, sum := p[:len(p)-4], binary.LittleEndian.Uint32(p[len(p)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return pieceReader{}, fmt.Errorf("%w: checksum", ErrCorruptPiece)
	}
	if body[0] != pieceVersion {
		return pieceReader{}, fmt.Errorf("%w: version %d", ErrCorruptPiece, body[0])
	}
	r := pieceReader{buf: body[1:]}
	var err error
	if r.left, err = r.uvarint(); err != nil {
		return pieceReader{}, err
	}
	return r, nil
}

func (r *pieceReader) uvarint() (uint64, error) {
	if len(r.buf) > 0 && r.buf[0] < 0x80 { // as most are
		v := r.buf[0]
		r.buf = r.buf[1:]
		return uint64(v), nil
	}
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		return 0, fmt.Errorf("%w: cut short", ErrCorruptPiece)
	}
	r.buf = r.buf[n:]
	return v, nil
}

// next moves to the next series; false at the end. Its payloads must be read, or skipped, by payload.
func (r *pieceReader) next() (bool, error) {
	if r.left == 0 {
		if len(r.buf) != 0 {
			return false, fmt.Errorf("%w: %d bytes behind the last series", ErrCorruptPiece, len(r.buf))
		}
		return false, nil
	}
	r.left--
	d, err := r.uvarint()
	if err != nil {
		return false, err
	}
	if d == 0 || r.ref+d < r.ref {
		return false, fmt.Errorf("%w: series out of order", ErrCorruptPiece)
	}
	r.ref += d
	m, err := r.uvarint()
	if err != nil {
		return false, err
	}
	if m > 2*maskHealed-1 || m == 0 {
		return false, fmt.Errorf("%w: mask %#x", ErrCorruptPiece, m)
	}
	r.mask = uint32(m >> 1)
	if r.incomplete, err = r.more(m & maskIncomplete); err == nil {
		r.healed, err = r.more(m & maskHealed)
	}
	return err == nil, err
}

// more reads a further mask if there is one.
func (r *pieceReader) more(flag uint64) (uint32, error) {
	if flag == 0 {
		return 0, nil
	}
	m, err := r.uvarint()
	if err == nil && (m == 0 || m>>32 != 0) {
		err = fmt.Errorf("%w: further mask %#x", ErrCorruptPiece, m)
	}
	return uint32(m), err
}

// payload returns the next pane of the current series; it aliases the piece.
func (r *pieceReader) payload() ([]byte, error) {
	n, err := r.uvarint()
	if err != nil {
		return nil, err
	}
	if n == 0 || n > uint64(len(r.buf)) {
		return nil, fmt.Errorf("%w: pane of %d bytes, %d left", ErrCorruptPiece, n, len(r.buf))
	}
	p := r.buf[:n:n]
	r.buf = r.buf[n:]
	return p, nil
}

// appendPieceItems appends what the piece holds, as one age.
func appendPieceItems(items []item, piece []byte) ([]item, error) {
	r, err := openPiece(piece)
	if err != nil {
		return items, err
	}
	for {
		ok, err := r.next()
		if err != nil || !ok {
			return items, err
		}
		for rest := r.mask; rest != 0; rest &= rest - 1 {
			p, err := r.payload()
			if err != nil {
				return items, err
			}
			items = append(items, item{ref: r.ref, idx: uint8(bits.TrailingZeros32(rest)), payload: p})
		}
		// A mark that stands beside the healing is newer.
		for _, more := range [...]struct {
			mask uint32
			kind kind
		}{{r.healed, healed}, {r.incomplete, mark}} {
			for rest := more.mask; rest != 0; rest &= rest - 1 {
				items = append(items, item{ref: r.ref, idx: uint8(bits.TrailingZeros32(rest)), kind: more.kind})
			}
		}
	}
}
