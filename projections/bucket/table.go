package bucket

import (
	"math"
	"unsafe"
)

// EndsPerBlock is the number of consecutive bucket ends that one piece may cover.
const EndsPerBlock = 32

// Key names the part of a stream that shares a piece: EndsPerBlock consecutive ends of one grid.
type Key struct {
	Stream uint64
	Block  int64
}

// Grid is a stream's grid: ends are Origin + k·Width.
type Grid struct {
	Origin, Width int64 // ms
}

// Locate returns the block and the index within it of a bucket end on the grid.
func (g Grid) Locate(end int64) (block int64, idx int) {
	k := (end - g.Origin) / g.Width // exact: end is on the grid
	block = k >> 5
	return block, int(k & (EndsPerBlock - 1))
}

// End is the inverse of Locate.
func (g Grid) End(block int64, idx int) int64 {
	return g.Origin + (block*EndsPerBlock+int64(idx))*g.Width
}

// kind says what a put is. Kinds are in the order in which they count within one piece.
type kind uint8

const (
	pane   kind = iota // a pane, newer than all before it
	healed             // the marks before it do not count any more
	mark               // the bucket lost late samples
)

// entry is one put: a pane, or with no bytes one of the other kinds.
type entry struct {
	ref  uint64
	off  uint32
	size uint32
	idx  uint8
	kind kind
}

// chunk is a run of entries with their bytes. Both slices are append-only, so a copy of the headers is a view (P2).
type chunk struct {
	entries []entry
	data    []byte
}

// A chunk is made with room for so many entries, twice as many as the one before it in its block, and is hardly ever moved: growing
// one as a slice grows would copy what was put several times over.
const (
	minChunkEntries = 8
	maxChunkEntries = 1 << 14
	maxChunkBytes   = 4 << 20 // but for panes so large that the least number of them takes more
	// chunkPaneBytes is what a pane is taken to need before any was seen.
	chunkPaneBytes = 16
)

// Table holds what a shard closed since its last checkpoint. One goroutine puts; readers work on views taken by it.
type Table struct {
	blocks map[Key][]*chunk
	bytes  int
	puts   int

	// The chunk that was appended to last, and its block: panes of one block come one after the other.
	last *chunk
	at   Key
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{blocks: make(map[Key][]*chunk)}
}

// Put files one pane. encode appends the pane's bytes to its argument; it must append at least one byte.
func (t *Table) Put(k Key, ref uint64, idx int, encode func(dst []byte) []byte) {
	c := t.chunk(k)
	off := len(c.data)
	c.data = encode(c.data)
	size := len(c.data) - off
	if size <= 0 || size > math.MaxUint32 {
		panic("bucket: P1: a pane encodes to at least one byte")
	}
	c.entries = append(c.entries, entry{ref: ref, off: uint32(off), size: uint32(size), idx: uint8(idx)})
	t.bytes += size
	t.puts++
}

// MarkIncomplete notes that the bucket lost late samples.
func (t *Table) MarkIncomplete(k Key, ref uint64, idx int) {
	t.note(k, entry{ref: ref, idx: uint8(idx), kind: mark})
}

// Heal takes back every mark that the bucket has so far.
func (t *Table) Heal(k Key, ref uint64, idx int) {
	t.note(k, entry{ref: ref, idx: uint8(idx), kind: healed})
}

func (t *Table) note(k Key, e entry) {
	c := t.chunk(k)
	c.entries = append(c.entries, e)
	t.puts++
}

// chunk returns the chunk to append to.
func (t *Table) chunk(k Key) *chunk {
	if t.last != nil && t.at == k && t.last.room(t.last.each()) {
		return t.last
	}
	cs := t.blocks[k]
	entries, each := minChunkEntries, chunkPaneBytes
	if n := len(cs); n > 0 {
		last := cs[n-1]
		if each = last.each(); last.room(each) {
			t.last, t.at = last, k
			return last
		}
		entries = max(minChunkEntries, min(2*len(last.entries), maxChunkEntries, maxChunkBytes/each))
	}
	c := &chunk{entries: make([]entry, 0, entries), data: make([]byte, 0, entries*each)}
	t.blocks[k] = append(cs, c)
	t.last, t.at = c, k
	return c
}

// each returns the bytes that one more pane is taken to need, from those that there are.
func (c *chunk) each() int {
	if len(c.entries) == 0 {
		return chunkPaneBytes
	}
	each := len(c.data)/len(c.entries) + 1
	return each + each/2
}

// room says whether one more entry of so many bytes fits.
func (c *chunk) room(each int) bool {
	return len(c.entries) < cap(c.entries) && cap(c.data)-len(c.data) >= each
}

// Len returns the number of puts, and Bytes their payload.
func (t *Table) Len() int   { return t.puts }
func (t *Table) Bytes() int { return t.bytes }

// Memory returns about what the table takes in memory, in bytes.
func (t *Table) Memory() int64 {
	return int64(t.bytes) + int64(t.puts)*int64(unsafe.Sizeof(entry{}))
}

// View is an immutable view of the tables of one shard, oldest first.
type View struct {
	chunks map[Key][]chunk
}

// AddTo copies the headers of the blocks in [from, to] of one stream into v.
func (t *Table) AddTo(v *View, stream uint64, from, to int64) {
	if v.chunks == nil {
		v.chunks = make(map[Key][]chunk)
	}
	add := func(k Key, cs []*chunk) {
		for _, c := range cs {
			v.chunks[k] = append(v.chunks[k], *c)
		}
	}
	if span := to - from; span >= 0 && span < int64(len(t.blocks)) {
		for b := from; b <= to; b++ {
			k := Key{Stream: stream, Block: b}
			add(k, t.blocks[k])
		}
		return
	}
	for k, cs := range t.blocks {
		if k.Stream == stream && k.Block >= from && k.Block <= to {
			add(k, cs)
		}
	}
}

// AddAll copies the headers of every block into v.
func (t *Table) AddAll(v *View) {
	if v.chunks == nil {
		v.chunks = make(map[Key][]chunk, len(t.blocks))
	}
	for k, cs := range t.blocks {
		for _, c := range cs {
			v.chunks[k] = append(v.chunks[k], *c)
		}
	}
}

// Streams returns the streams that the view holds something of.
func (v *View) Streams() map[uint64]struct{} {
	out := make(map[uint64]struct{})
	for k := range v.chunks {
		out[k.Stream] = struct{}{}
	}
	return out
}
