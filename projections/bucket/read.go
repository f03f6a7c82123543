package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// ShardView is what a reader took from one shard at its sequence: the tables in memory, and up to where pieces count.
type ShardView struct {
	View     View
	PieceSeq uint64   // pieces of later checkpoints are newer than the view and do not count
	Refs     []uint64 // wanted series of this shard, increasing; nil: all
	Pieces   int      // Collect adds those that it reads
}

// Bucket is one published bucket as a reader meets it.
type Bucket struct {
	Ref        uint64
	At         int    // its index in ShardView.Refs, if these were given
	End        int64  // ms
	Pane       []byte // nil if only marked; valid during the call
	Incomplete bool   // late samples were lost
}

// Run is what one series has published in one block. It is valid during the call that gives it.
type Run struct {
	Ref        uint64
	At         int      // its index in ShardView.Refs, if these were given
	Mask       uint32   // by index of the end: there is a pane
	Incomplete uint32   // by index of the end: late samples were lost
	Panes      [][]byte // EndsPerBlock, by index of the end; those that Mask does not name are not to be read
	First      int64    // the end with index 0, ms
	Width      int64    // from one end to the next, ms
}

// End returns the end with an index, in ms.
func (r *Run) End(idx int) int64 { return r.First + int64(idx)*r.Width }

// each calls yield with every bucket.
func (r *Run) each(yield func(Bucket) error) error {
	for rest := r.Mask | r.Incomplete; rest != 0; rest &= rest - 1 {
		idx := bits.TrailingZeros32(rest)
		b := Bucket{Ref: r.Ref, At: r.At, End: r.End(idx), Incomplete: r.Incomplete&(1<<idx) != 0}
		if r.Mask&(1<<idx) != 0 {
			b.Pane = r.Panes[idx]
		}
		if err := yield(b); err != nil {
			return err
		}
	}
	return nil
}

// Collect is CollectRuns with every bucket for itself: a series' ends come in increasing order.
func (s *Store) Collect(ctx context.Context, stream uint64, g Grid, from, to int64, shards []ShardView, yield func(shard int, b Bucket) error) error {
	return s.CollectRuns(ctx, stream, g, from, to, shards, func(shard int, r *Run) error {
		return r.each(func(b Bucket) error { return yield(shard, b) })
	})
}

// CollectRuns calls yield with all buckets of a stream with an end in (from, to], by block, shard and series. shards is indexed by shard.
// P1 holds as of the views, which were taken under a Pin that is still held; if not, it may fail with ErrStaleView.
func (s *Store) CollectRuns(ctx context.Context, stream uint64, g Grid, from, to int64, shards []ShardView, yield func(shard int, r *Run) error) error {
	if err := s.health.readable(); err != nil {
		return err
	}
	lo, _ := g.Locate(from + g.Width)
	hi, _ := g.Locate(to)
	if hi < lo {
		return nil
	}
	upper := pieceKey(Key{Stream: stream, Block: hi}, 255, math.MaxUint64)
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: pieceKey(Key{Stream: stream, Block: lo}, 0, 0),
		UpperBound: append(upper, 0),
	})
	if err != nil {
		return fmt.Errorf("bucket: iterate: %w", err)
	}
	if err := s.pins.check(shards); err != nil {
		return errors.Join(err, it.Close())
	}
	c := collector{ctx: ctx, it: it, grid: g, from: from, to: to, shards: shards, yield: yield}
	err = c.run(stream, lo, hi)
	if cerr := it.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("bucket: iterate: %w", cerr)
	}
	return err
}

// collector merges the pieces and table chunks of one block after the other.
type collector struct {
	ctx      context.Context
	it       *pebble.Iterator
	grid     Grid
	from, to int64
	shards   []ShardView
	yield    func(int, *Run) error

	cells cells  // where series are wanted by reference
	items []item // where all are
	buf   []byte // copies of the pieces of a block
	found Run    // of the series that is given out
}

func (c *collector) run(stream uint64, lo, hi int64) error {
	blocks := make(map[Key]struct{})
	for i := range c.shards {
		for k := range c.shards[i].View.chunks {
			blocks[k] = struct{}{}
		}
	}
	c.it.First()
	for b := lo; b <= hi; {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		for shard := range c.shards {
			if err := c.shard(Key{Stream: stream, Block: b}, shard); err != nil {
				return err
			}
		}
		next, err := c.nextBlock(stream, b, hi, blocks)
		if err != nil {
			return err
		}
		b = next
	}
	return nil
}

// nextBlock skips blocks that hold nothing, so that a wide range costs what it holds.
func (c *collector) nextBlock(stream uint64, b, hi int64, inMemory map[Key]struct{}) (int64, error) {
	next := hi + 1
	if c.it.Valid() {
		k, _, _, err := parsePieceKey(c.it.Key())
		if err != nil {
			return 0, err
		}
		next = min(next, k.Block)
	} else if err := c.it.Error(); err != nil {
		return 0, fmt.Errorf("bucket: iterate: %w", err)
	}
	for k := range inMemory {
		if k.Stream == stream && k.Block > b {
			next = min(next, k.Block)
		}
	}
	return max(next, b+1), nil
}

// shard merges one block of one shard. The iterator stands at its first piece, or beyond it.
func (c *collector) shard(k Key, shard int) error {
	sv := &c.shards[shard]
	wanted := sv.Refs != nil
	c.items, c.buf = c.items[:0], c.buf[:0]
	c.cells.reset(sv.Refs)
	for c.it.Valid() {
		pk, ps, seq, err := parsePieceKey(c.it.Key())
		if err != nil {
			return err
		}
		if pk != k || ps != shard {
			break
		}
		if seq <= sv.PieceSeq && (!wanted || len(sv.Refs) > 0) {
			sv.Pieces++
			v, err := c.it.ValueAndErr()
			if err != nil {
				return fmt.Errorf("bucket: read piece: %w", err)
			}
			// What is read aliases the piece, and the iterator's buffer is reused.
			n := len(c.buf)
			c.buf = append(c.buf, v...)
			if wanted {
				err = c.cells.addPiece(c.buf[n:])
			} else {
				c.items, err = appendPieceItems(c.items, c.buf[n:])
			}
			if err != nil {
				return fmt.Errorf("%w (stream %x, block %d, shard %d, seq %d)", err, k.Stream, k.Block, shard, seq)
			}
		}
		c.it.Next()
	}
	for _, ch := range sv.View.chunks[k] {
		if wanted {
			c.cells.addChunk(&ch)
		} else {
			c.items = ch.appendItems(c.items)
		}
	}
	within := c.within(k.Block)
	each := func(s *seriesItems) error {
		if c.found = s.run(c.grid, k.Block, within); c.found.Mask|c.found.Incomplete == 0 {
			return nil
		}
		return c.yield(shard, &c.found)
	}
	if wanted {
		return c.cells.each(each)
	}
	c.items = sortItems(c.items)
	return merge(c.items, each)
}

// Each calls yield with every bucket of the view, by block, series and end.
func (v *View) Each(g Grid, yield func(Bucket) error) error {
	keys := slices.SortedFunc(maps.Keys(v.chunks), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Block, b.Block))
	})
	for _, k := range keys {
		var items []item
		for _, ch := range v.chunks[k] {
			items = ch.appendItems(items)
		}
		items = sortItems(items)
		if err := merge(items, func(s *seriesItems) error {
			r := s.run(g, k.Block, math.MaxUint32)
			return r.each(yield)
		}); err != nil {
			return err
		}
	}
	return nil
}

// within returns which ends of a block are in (from, to].
func (c *collector) within(block int64) (mask uint32) {
	for idx := range EndsPerBlock {
		if e := c.grid.End(block, idx); e > c.from && e <= c.to {
			mask |= 1 << idx
		}
	}
	return mask
}

// run returns what the series has in a block at some of the ends.
func (s *seriesItems) run(g Grid, block int64, within uint32) Run {
	return Run{
		Ref: s.ref, At: s.at, Mask: s.mask & within, Incomplete: s.incomplete & within,
		Panes: s.payloads, First: g.End(block, 0), Width: g.Width,
	}
}

// StreamStats counts what a stream has on disk.
type StreamStats struct {
	Pieces int
	Bytes  int64
}

// Stats walks all pieces and counts them by stream.
func (s *Store) Stats() (map[uint64]StreamStats, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyPiece}, UpperBound: []byte{keyPiece + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: stats: %w", err)
	}
	defer it.Close()
	out := make(map[uint64]StreamStats)
	for it.First(); it.Valid(); it.Next() {
		k, _, _, err := parsePieceKey(it.Key())
		if err != nil {
			return nil, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("bucket: stats: %w", err)
		}
		st := out[k.Stream]
		st.Pieces++
		st.Bytes += int64(len(v))
		out[k.Stream] = st
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: stats: %w", err)
	}
	return out, nil
}

// Streams returns the streams that have pieces.
func (s *Store) Streams() ([]uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyPiece}, UpperBound: []byte{keyPiece + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: streams: %w", err)
	}
	defer it.Close()
	var out []uint64
	for ok := it.First(); ok; {
		k, _, _, err := parsePieceKey(it.Key())
		if err != nil {
			return nil, err
		}
		out = append(out, k.Stream)
		if k.Stream == math.MaxUint64 {
			break
		}
		ok = it.SeekGE(pieceKey(Key{Stream: k.Stream + 1, Block: math.MinInt64}, 0, 0))
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: streams: %w", err)
	}
	return out, nil
}
