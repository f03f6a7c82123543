package bucket

import (
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
)

// FirstBlock returns the first block of a stream that has a piece; ok is false if the stream has none.
func (s *Store) FirstBlock(stream uint64) (block int64, ok bool, err error) {
	if err := s.health.readable(); err != nil {
		return 0, false, err
	}
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: pieceKey(Key{Stream: stream, Block: math.MinInt64}, 0, 0),
		UpperBound: append(pieceKey(Key{Stream: stream, Block: math.MaxInt64}, math.MaxUint8, math.MaxUint64), 0),
	})
	if err != nil {
		return 0, false, fmt.Errorf("bucket: first block: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if !it.First() {
		return 0, false, it.Error()
	}
	k, _, _, err := parsePieceKey(it.Key())
	return k.Block, err == nil, err
}

// Expire deletes the pieces of a stream in all blocks up to one, that one included, and with them the lists of the series that were
// evicted with nothing behind it. seq is the event from which on no reader and
// no fold asks for them: while a restart could still come before it, or a reader's pin stands before it, nothing is deleted and
// the answer is false (P5).
func (s *Store) Expire(stream uint64, through int64, seq uint64) (bool, error) {
	if err := s.writable(); err != nil {
		return false, err
	}
	s.maintaining.Lock()
	defer s.maintaining.Unlock()
	if s.pins.limit() < seq {
		return false, nil
	}
	s.pins.changing(seq)
	lower := pieceKey(Key{Stream: stream, Block: math.MinInt64}, 0, 0)
	upper := append(pieceKey(Key{Stream: stream, Block: through}, math.MaxUint8, math.MaxUint64), 0)
	b := s.db.NewBatch()
	defer b.Close()
	// A series whose last block goes has nothing left.
	if err := errors.Join(
		b.DeleteRange(lower, upper, nil),
		b.DeleteRange(leaveKey(Key{Stream: stream, Block: math.MinInt64}, 0), append(leaveKey(Key{Stream: stream, Block: through}, math.MaxUint8), 0), nil),
		s.db.Apply(b, pebble.NoSync),
	); err != nil {
		return false, fmt.Errorf("bucket: expire stream %x: %w", stream, err)
	}
	return true, s.health.readable()
}
