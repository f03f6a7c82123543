package pane

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/bits"

	"github.com/zeebo/xxh3"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// Sum is a digest of a set of published buckets: the sum, modulo 2^128, of a 128-bit hash of each. It does not depend on
// references, shards, pieces or any order, only on which buckets of which label sets are published with which content.
type Sum struct {
	Hi, Lo  uint64
	Buckets uint64
}

func (d *Sum) add(h xxh3.Uint128) {
	var carry uint64
	d.Lo, carry = bits.Add64(d.Lo, h.Lo, 0)
	d.Hi, _ = bits.Add64(d.Hi, h.Hi, carry)
	d.Buckets++
}

// String prints the digest in hexadecimal with the number of buckets.
func (d Sum) String() string { return fmt.Sprintf("%016x%016x/%d", d.Hi, d.Lo, d.Buckets) }

// Digest is the logical digest of everything published, as of one sequence. Streams that are still being folded from the log have no
// part in it: whoever compares digests folds them first (Fold).
type Digest struct {
	Seq     log.Seq
	All     Sum
	Streams map[plan.StreamID]Sum // by the stream's key, which names streams that are no longer planned too
	Keys    map[plan.StreamID]uint64
}

// Of returns the digest of a stream of the plan.
func (d *Digest) Of(id plan.StreamID) Sum { return d.Streams[plan.StreamID(d.Keys[id])] }

// indexGrid numbers buckets by their place on the grid, whatever the grid is, so that streams that are no longer planned
// have a digest too.
var indexGrid = bucket.Grid{Width: 1}

// Digest computes the logical digest of all published buckets.
func (p *Projection) Digest(ctx context.Context) (Digest, error) {
	var views [Shards]bucket.ShardView
	var expired map[plan.StreamID]expiry
	keys := make(map[plan.StreamID]uint64)
	defer p.store.Pin()() // before the views are taken, until they are read
	seq, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		v := &views[s.id]
		v.PieceSeq = sh.visible()
		if s.generation == 0 {
			for _, t := range sh.leaving {
				t.AddAll(&v.View)
			}
		}
		s.table.AddAll(&v.View)
		if s.id != 0 {
			return
		}
		if s.generation == 0 {
			expired = maps.Clone(s.expired)
		}
		for _, st := range s.streams {
			keys[st.spec.ID] = st.key
		}
	})
	if err != nil {
		return Digest{}, err
	}
	onDisk, err := p.store.Streams()
	if err != nil {
		return Digest{}, err
	}
	ids := make(map[uint64]struct{})
	for _, id := range onDisk {
		ids[id] = struct{}{}
	}
	for i := range views {
		for id := range views[i].View.Streams() {
			ids[id] = struct{}{}
		}
	}
	d := Digest{Seq: seq, Streams: make(map[plan.StreamID]Sum, len(ids)), Keys: keys}
	const far = math.MaxInt64 / 4
	var buf []byte
	for id := range ids {
		var sum Sum
		from := int64(-far)
		if x, ok := expired[plan.StreamID(id)]; ok {
			from = (x.through - x.grid.Origin) / x.grid.Width // exact: it is on the grid
		}
		err := p.store.Collect(ctx, id, indexGrid, from, far, views[:], func(_ int, b bucket.Bucket) error {
			ls, ok, err := p.index.Find(log.SeriesRef(b.Ref))
			if err != nil || !ok {
				return cmp.Or(err, errNoLabels(log.SeriesRef(b.Ref)))
			}
			buf = binary.BigEndian.AppendUint64(buf[:0], id)
			buf = binary.BigEndian.AppendUint64(buf, uint64(b.End))
			if b.Incomplete {
				buf = append(buf, 1)
			} else {
				buf = append(buf, 0)
			}
			set := ls.Bytes(nil)
			buf = binary.AppendUvarint(buf, uint64(len(set)))
			buf = append(buf, set...)
			buf = append(buf, b.Pane...)
			h := xxh3.Hash128(buf)
			sum.add(h)
			d.All.add(h)
			return nil
		})
		if err != nil {
			return Digest{}, err
		}
		if sum.Buckets > 0 {
			d.Streams[plan.StreamID(id)] = sum
		}
	}
	return d, nil
}
