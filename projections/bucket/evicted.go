package bucket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Evicted is what stays of a series that its shard keeps in memory no more.
type Evicted struct {
	Generation uint64 // of the streams that it leaves; 0: the first
	Ref        uint64
	Seq        uint64 // the event with which it was evicted
	Group      uint32 // a hash of what readers may narrow their search by; see EvictedIn
	Streams    []EvictedStream
	// Stays says that the series is in memory still, and only left the streams: what it has there is listed, and it has no record.
	Stays bool
}

// EvictedStream is what stays of the series in one stream.
type EvictedStream struct {
	Stream uint64
	Closed int64 // closure watermark, ms
	Holds  bool  // since it was last made resident, something of it was put into blocks First to Last, and nowhere else
	First  int64 // block
	Last   int64
}

// Bytes returns about what the record takes in memory.
func (e *Evicted) Bytes() int64 { return 64 + 40*int64(len(e.Streams)) }

const (
	// evictedVersion is the version of the record of an evicted series.
	evictedVersion = 1
	// maxEvictedStreams bounds the streams of one record, so that nothing is allocated for what cannot be there.
	maxEvictedStreams = 1 << 16
)

func evictedKey(ref uint64) []byte { return binary.BigEndian.AppendUint64([]byte{keyEvicted}, ref) }

// key names the record: those of later generations lie apart.
func (e *Evicted) key() []byte {
	if e.Generation == 0 {
		return evictedKey(e.Ref)
	}
	return laterKey(e.Generation, e.Ref)
}

func laterKey(generation, ref uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{keyLaterGone}, generation)
	return binary.BigEndian.AppendUint64(b, ref)
}

// leaveKey names the list of the series whose last block in a stream is the given one.
func leaveKey(k Key, shard int) []byte {
	b := append(make([]byte, 0, 18), keyLeave)
	b = binary.BigEndian.AppendUint64(b, k.Stream)
	b = binary.BigEndian.AppendUint64(b, uint64(k.Block)^(1<<63))
	return append(b, byte(shard))
}

func (e *Evicted) encode() []byte {
	b := []byte{evictedVersion}
	b = binary.AppendUvarint(b, e.Seq)
	b = binary.AppendUvarint(b, uint64(len(e.Streams)))
	for _, s := range e.Streams {
		b = binary.BigEndian.AppendUint64(b, s.Stream)
		b = binary.AppendVarint(b, s.Closed)
	}
	return b
}

// decodeEvicted is the inverse of encode. Blocks and group are not in the record: they stand in the lists.
func decodeEvicted(ref uint64, b []byte) (Evicted, error) {
	bad := func() (Evicted, error) {
		return Evicted{}, fmt.Errorf("%w: record of evicted series %d", ErrDamaged, ref)
	}
	if len(b) == 0 || b[0] != evictedVersion {
		return bad()
	}
	b = b[1:]
	e := Evicted{Ref: ref}
	var n uint64
	for _, to := range []*uint64{&e.Seq, &n} {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			return bad()
		}
		*to, b = v, b[k:]
	}
	if n > maxEvictedStreams {
		return bad()
	}
	for range n {
		if len(b) < 9 {
			return bad()
		}
		s := EvictedStream{Stream: binary.BigEndian.Uint64(b)}
		v, k := binary.Varint(b[8:])
		if k <= 0 {
			return bad()
		}
		s.Closed, b = v, b[8+k:]
		e.Streams = append(e.Streams, s)
	}
	if len(b) != 0 {
		return bad()
	}
	return e, nil
}

// setEvicted adds the records of a checkpoint to its batch: of one series the last stands. Every stay of a series in memory goes
// into a list of its own, so those lists only grow.
func setEvicted(b *pebble.Batch, shard int, evicted []Evicted) error {
	lists := make(map[Key][]byte)
	for i := range evicted {
		e := &evicted[i]
		// Of a later generation, what had nothing needs no record: no older one could say anything of its streams.
		if !e.Stays && (e.Generation == 0 || len(e.Streams) > 0) {
			if err := b.Set(e.key(), e.encode(), nil); err != nil {
				return err
			}
		}
		for _, s := range e.Streams {
			if !s.Holds {
				continue
			}
			k := Key{Stream: s.Stream, Block: s.Last}
			lists[k] = appendLeaver(lists[k], e, &s)
		}
	}
	for k, list := range lists {
		if err := b.Merge(leaveKey(k, shard), list, nil); err != nil {
			return err
		}
	}
	return nil
}

func appendLeaver(list []byte, e *Evicted, s *EvictedStream) []byte {
	list = binary.AppendUvarint(list, e.Ref)
	list = binary.AppendUvarint(list, uint64(s.Last)-uint64(s.First))
	return binary.BigEndian.AppendUint32(list, e.Group)
}

// Evicted returns the record of a series that was evicted; false if there is none. That the series is resident again does not show.
func (s *Store) Evicted(ref uint64) (e Evicted, ok bool, err error) { return s.EvictedOf(0, ref) }

// EvictedOf is Evicted of a generation.
func (s *Store) EvictedOf(generation, ref uint64) (e Evicted, ok bool, err error) {
	if err := s.health.readable(); err != nil {
		return Evicted{}, false, err
	}
	v, closer, err := s.db.Get((&Evicted{Generation: generation, Ref: ref}).key())
	if errors.Is(err, pebble.ErrNotFound) {
		return Evicted{}, false, nil
	}
	if err != nil {
		return Evicted{}, false, fmt.Errorf("bucket: read evicted series: %w", err)
	}
	e, err = decodeEvicted(ref, v)
	e.Generation = generation
	return e, err == nil, errors.Join(err, closer.Close())
}

// EvictedIn yields the series of a stream that were evicted after they had put something into blocks that overlap [from, to], in
// the shards for which wanted holds. Some may have nothing there, some be resident again, and some come more than once. With nil
// the group does not matter.
func (s *Store) EvictedIn(ctx context.Context, stream uint64, from, to int64, wanted *[256]bool, group *uint32, yield func(shard int, ref uint64) error) (err error) {
	if err := s.health.readable(); err != nil {
		return err
	}
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: leaveKey(Key{Stream: stream, Block: from}, 0),
		UpperBound: append(leaveKey(Key{Stream: stream, Block: math.MaxInt64}, math.MaxUint8), 0),
	})
	if err != nil {
		return fmt.Errorf("bucket: evicted series: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		key := it.Key()
		if len(key) != 18 {
			return fmt.Errorf("%w: list key %x", ErrDamaged, key)
		}
		shard, last := int(key[17]), int64(binary.BigEndian.Uint64(key[9:])^(1<<63))
		if wanted != nil && !wanted[shard] {
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("bucket: evicted series: %w", err)
		}
		if err := eachLeaver(v, last, func(ref uint64, first int64, g uint32) error {
			if first > to || group != nil && *group != g {
				return nil
			}
			return yield(shard, ref)
		}); err != nil {
			return err
		}
	}
	return it.Error()
}

func eachLeaver(list []byte, last int64, yield func(ref uint64, first int64, group uint32) error) error {
	for len(list) > 0 {
		ref, n := binary.Uvarint(list)
		if n <= 0 {
			return fmt.Errorf("%w: list of evicted series", ErrDamaged)
		}
		span, k := binary.Uvarint(list[n:])
		if k <= 0 || len(list) < n+k+4 {
			return fmt.Errorf("%w: list of evicted series", ErrDamaged)
		}
		group := binary.BigEndian.Uint32(list[n+k:])
		list = list[n+k+4:]
		if err := yield(ref, last-int64(span), group); err != nil {
			return err
		}
	}
	return nil
}

// EvictedStreams returns the streams that have lists of evicted series.
func (s *Store) EvictedStreams() ([]uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyLeave}, UpperBound: []byte{keyLeave + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: evicted series: %w", err)
	}
	defer it.Close()
	var out []uint64
	for ok := it.First(); ok; {
		if len(it.Key()) != 18 {
			return nil, fmt.Errorf("%w: list key %x", ErrDamaged, it.Key())
		}
		stream := binary.BigEndian.Uint64(it.Key()[1:])
		out = append(out, stream)
		if stream == math.MaxUint64 {
			break
		}
		ok = it.SeekGE(leaveKey(Key{Stream: stream + 1, Block: math.MinInt64}, 0))
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: evicted series: %w", err)
	}
	return out, nil
}

// EvictedFrom returns at most n records of evicted series, by reference, from one on.
func (s *Store) EvictedFrom(ref uint64, n int) (out []Evicted, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: evictedKey(ref), UpperBound: []byte{keyEvicted + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: evicted series: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid() && len(out) < n; it.Next() {
		v, err := it.ValueAndErr()
		if err == nil && len(it.Key()) != 9 {
			err = fmt.Errorf("%w: key %x", ErrDamaged, it.Key())
		}
		if err != nil {
			return nil, fmt.Errorf("bucket: evicted series: %w", err)
		}
		e, err := decodeEvicted(binary.BigEndian.Uint64(it.Key()[1:]), v)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, it.Error()
}

// ForgetEvicted deletes records of evicted series, each only if it still is what it was: a series that has come back and gone again
// meanwhile keeps its newer one.
func (s *Store) ForgetEvicted(records []Evicted) (int, error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	s.evicting.Lock() // no checkpoint between the look and the delete
	defer s.evicting.Unlock()
	b := s.db.NewBatch()
	defer b.Close()
	n := 0
	for _, old := range records {
		now, ok, err := s.Evicted(old.Ref)
		if err != nil {
			return 0, err
		}
		if !ok || now.Seq != old.Seq || !slices.Equal(now.Streams, old.Streams) {
			continue
		}
		if err := b.Delete(evictedKey(old.Ref), nil); err != nil {
			return 0, fmt.Errorf("bucket: forget evicted series: %w", err)
		}
		n++
	}
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return 0, fmt.Errorf("bucket: forget evicted series: %w", err)
	}
	return n, s.health.readable()
}
