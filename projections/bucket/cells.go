package bucket

import (
	"math/bits"
	"slices"
)

// cells is one block of one shard by wanted series and end: a place for each, so that panes that come in the order of their
// age are merged without being sorted. It is used for one block after the other.
type cells struct {
	refs       []uint64 // increasing
	finger     int
	used       bool
	mask       []uint32 // by series: ends that have a pane
	incomplete []uint32
	payloads   [][]byte // by series and end
}

// reset makes room for the wanted series, and forgets what there was.
func (c *cells) reset(refs []uint64) {
	if c.used || len(c.mask) != len(refs) {
		n := len(refs)
		c.mask = slices.Grow(c.mask[:0], n)[:n]
		c.incomplete = slices.Grow(c.incomplete[:0], n)[:n]
		clear(c.mask)
		clear(c.incomplete)
		c.payloads = slices.Grow(c.payloads[:0], n*EndsPerBlock)[:n*EndsPerBlock] // what mask does not name is not read
	}
	c.refs, c.finger, c.used = refs, 0, false
}

// find returns the index of ref, -1 if it is not wanted: cheap when asked in increasing order, right in any.
func (c *cells) find(ref uint64) int {
	if i := c.finger; i < len(c.refs) {
		if c.refs[i] == ref {
			return i
		}
		if i+1 < len(c.refs) && c.refs[i+1] == ref {
			c.finger++
			return c.finger
		}
	}
	i, ok := slices.BinarySearch(c.refs, ref)
	if !ok {
		return -1
	}
	c.finger = i
	return i
}

// put files one pane over any older one.
func (c *cells) put(series, idx int, pane []byte) {
	c.used = true
	c.mask[series] |= 1 << idx
	c.payloads[series*EndsPerBlock+idx] = pane
}

// addChunk puts what a chunk has of the wanted series.
func (c *cells) addChunk(ch *chunk) {
	for i := range ch.entries {
		e := &ch.entries[i]
		at := c.find(e.ref)
		switch {
		case at < 0:
		case e.kind == mark:
			c.used = true
			c.incomplete[at] |= 1 << e.idx
		case e.kind == healed:
			c.incomplete[at] &^= 1 << e.idx
		default:
			c.put(at, int(e.idx), ch.payload(e))
		}
	}
}

// addPiece puts what a piece has of the wanted series.
func (c *cells) addPiece(piece []byte) error {
	r, err := openPiece(piece)
	if err != nil {
		return err
	}
	for {
		ok, err := r.next()
		if err != nil || !ok {
			return err
		}
		at := c.find(r.ref)
		for rest := r.mask; rest != 0; rest &= rest - 1 {
			p, err := r.payload()
			if err != nil {
				return err
			}
			if at >= 0 {
				c.put(at, bits.TrailingZeros32(rest), p)
			}
		}
		if at >= 0 && r.incomplete|r.healed != 0 {
			c.used = true
			c.incomplete[at] = c.incomplete[at]&^r.healed | r.incomplete // a mark that stands beside the healing is newer
		}
	}
}

// each calls yield for the series that have anything, in increasing order.
func (c *cells) each(yield func(*seriesItems) error) error {
	if !c.used {
		return nil
	}
	var s seriesItems
	for i := range c.refs {
		if c.mask[i]|c.incomplete[i] == 0 {
			continue
		}
		s = seriesItems{
			ref: c.refs[i], at: i, mask: c.mask[i], incomplete: c.incomplete[i],
			payloads: c.payloads[i*EndsPerBlock : (i+1)*EndsPerBlock],
		}
		if err := yield(&s); err != nil {
			return err
		}
	}
	return nil
}
