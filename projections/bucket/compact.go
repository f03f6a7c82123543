package bucket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// defaultMinPieces is the number of pieces in one place from which merging them is worth what it writes.
	defaultMinPieces = 8
	// maxMergeBytes bounds what one compaction holds in memory, and so the size of a merged piece: a piece that alone is
	// larger than half of it is merged no more.
	maxMergeBytes = 64 << 20
	// maxTouched bounds the places that are remembered for compaction; beyond it they are left to the sweep.
	maxTouched = 1 << 18
)

// spot is where pieces lie that can be merged.
type spot struct {
	key   Key
	shard int
}

// Compaction says what a compaction did; Pieces is 0 if nothing was merged.
type Compaction struct {
	Pieces        int   // merged into one
	Read, Written int64 // bytes of pieces
	TooLarge      bool  // there are pieces, but together they are beyond what is merged
	Busy          bool  // somebody else merges there, or has changed the pieces meanwhile: another try may find more
}

// input is one piece as a compaction found it.
type input struct {
	seq   uint64
	piece []byte
}

// sum is the checksum at the end of a piece, by which it is recognised.
func (in *input) sum() uint32 {
	if len(in.piece) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(in.piece[len(in.piece)-4:])
}

// Compact merges the pieces of one block of a stream in one shard into one, the newest pane of each series and end winning and
// marks kept: no reader can tell (P1, P5). Only pieces at or below the durable checkpoint and every pin take part. The merged
// piece takes the place of the newest of them, so that it is older than all that were left out.
//
// The pieces are read without a lock. What is written replaces exactly them, or nothing: if one has changed or gone meanwhile,
// the result says that nothing was merged. Nothing is durable before the next Flush, and nothing needs to be.
func (s *Store) Compact(k Key, shard int) (Compaction, error) {
	if err := s.writable(); err != nil {
		return Compaction{}, err
	}
	if !s.claim(spot{k, shard}) {
		return Compaction{Busy: true}, nil
	}
	defer s.unclaim(spot{k, shard})
	inputs, tooLarge, err := s.newest(k, shard, s.pins.limit(), maxMergeBytes)
	if err != nil {
		return Compaction{}, err
	}
	if len(inputs) < 2 {
		return Compaction{TooLarge: tooLarge}, nil
	}
	c := Compaction{Pieces: len(inputs)}
	var items []item
	for i, in := range inputs {
		if plantedCompactionLoses && i == 0 {
			continue
		}
		c.Read += int64(len(in.piece))
		if items, err = appendPieceItems(items, in.piece); err != nil {
			return Compaction{}, fmt.Errorf("%w (stream %x, block %d, shard %d, seq %d)", err, k.Stream, k.Block, shard, in.seq)
		}
	}
	merged := appendItemsPiece(nil, items)
	c.Written = int64(len(merged))
	done, err := s.replace(k, shard, inputs, merged)
	if err != nil || !done {
		return Compaction{Busy: err == nil}, err
	}
	return c, nil
}

// claim makes the caller the only one who merges the pieces of a spot; false if somebody else does.
func (s *Store) claim(sp spot) bool {
	s.touching.Lock()
	defer s.touching.Unlock()
	if _, ok := s.merging[sp]; ok {
		return false
	}
	if s.merging == nil {
		s.merging = make(map[spot]struct{})
	}
	s.merging[sp] = struct{}{}
	return true
}

func (s *Store) unclaim(sp spot) {
	s.touching.Lock()
	defer s.touching.Unlock()
	delete(s.merging, sp)
}

// MergeLimit returns the sequence up to which Compact takes pieces now. It never decreases.
func (s *Store) MergeLimit() uint64 { return s.pins.limit() }

// newest reads the pieces of one spot up to a sequence, oldest first: all of them, or the longest run that ends with the newest
// and holds at most so many bytes. Leaving out the oldest changes no order of age.
func (s *Store) newest(k Key, shard int, limit uint64, bytes int) (out []input, more bool, err error) {
	it, err := s.spot(k, shard, 0, limit)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.Last(); it.Valid(); it.Prev() {
		in, err := readInput(it)
		if err != nil {
			return nil, false, err
		}
		if bytes -= len(in.piece); bytes < 0 {
			more = true
			break
		}
		out = append(out, in)
	}
	slices.Reverse(out)
	return out, more, it.Error()
}

// unchanged says whether exactly the given pieces stand from the first to the last of them.
func (s *Store) unchanged(k Key, shard int, inputs []input) (ok bool, err error) {
	it, err := s.spot(k, shard, inputs[0].seq, inputs[len(inputs)-1].seq)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		in, err := readInput(it)
		if err != nil {
			return false, err
		}
		if len(inputs) == 0 || !same(&in, &inputs[0]) {
			return false, nil
		}
		inputs = inputs[1:]
	}
	return len(inputs) == 0, it.Error()
}

// spot iterates over the pieces of one spot with sequences in [from, to].
func (s *Store) spot(k Key, shard int, from, to uint64) (*pebble.Iterator, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: pieceKey(k, shard, from), UpperBound: append(pieceKey(k, shard, to), 0)})
	if err != nil {
		return nil, fmt.Errorf("bucket: compact: %w", err)
	}
	return it, nil
}

func readInput(it *pebble.Iterator) (input, error) {
	_, _, seq, err := parsePieceKey(it.Key())
	if err != nil {
		return input{}, err
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return input{}, fmt.Errorf("bucket: read piece: %w", err)
	}
	return input{seq: seq, piece: slices.Clone(v)}, nil
}

// same says whether two inputs are the same piece.
func same(a, b *input) bool {
	return a.seq == b.seq && len(a.piece) == len(b.piece) && a.sum() == b.sum()
}

// replace puts the merged piece in the place of its inputs, in one batch, if they still stand as they were read.
func (s *Store) replace(k Key, shard int, inputs []input, merged []byte) (bool, error) {
	newest := inputs[len(inputs)-1].seq
	s.maintaining.Lock()
	defer s.maintaining.Unlock()
	if ok, err := s.unchanged(k, shard, inputs); err != nil || !ok {
		return false, err
	}
	b := s.db.NewBatch()
	defer b.Close()
	for _, in := range inputs[:len(inputs)-1] {
		if err := b.Delete(pieceKey(k, shard, in.seq), nil); err != nil {
			return false, fmt.Errorf("bucket: compact: %w", err)
		}
	}
	if err := b.Set(pieceKey(k, shard, newest), merged, nil); err != nil {
		return false, fmt.Errorf("bucket: compact: %w", err)
	}
	s.pins.changing(newest)
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return false, fmt.Errorf("bucket: compact: %w", err)
	}
	return true, s.health.readable()
}

// touch remembers that a checkpoint has written a piece.
func (s *Store) touch(k Key, shard int) {
	s.touching.Lock()
	defer s.touching.Unlock()
	if s.touched == nil || len(s.touched) >= maxTouched {
		s.touched = make(map[spot]int)
	}
	s.touched[spot{k, shard}]++
}

// crowded returns the spots that checkpoints have given at least n pieces since they were last compacted.
func (s *Store) crowded(n int) []spot {
	s.touching.Lock()
	defer s.touching.Unlock()
	var out []spot
	for sp, pieces := range s.touched {
		if pieces >= n {
			out = append(out, sp)
		}
	}
	return out
}

// settled forgets the pieces of a spot that a compaction has dealt with.
func (s *Store) settled(sp spot, pieces int) {
	s.touching.Lock()
	defer s.touching.Unlock()
	if left := s.touched[sp] - pieces; left > 0 {
		s.touched[sp] = left
	} else {
		delete(s.touched, sp)
	}
}

// survey walks piece keys from one on and calls visit with every spot it has seen whole and the number of its pieces up to the
// limit, until it has walked n keys. It returns the key to go on with; nil at the end.
func (s *Store) survey(ctx context.Context, from []byte, n int, limit uint64, visit func(spot, int)) (next []byte, err error) {
	if from == nil {
		from = []byte{keyPiece}
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: []byte{keyPiece + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: survey: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var at spot
	pieces := 0
	for it.First(); it.Valid(); it.Next() {
		k, shard, seq, err := parsePieceKey(it.Key())
		if err != nil {
			return nil, err
		}
		if sp := (spot{k, shard}); sp != at {
			if pieces > 0 {
				visit(at, pieces)
			}
			if n <= 0 || ctx.Err() != nil {
				return slices.Clone(it.Key()), ctx.Err()
			}
			at, pieces = sp, 0
		}
		if seq <= limit {
			pieces++
		}
		n--
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: survey: %w", err)
	}
	if pieces > 0 {
		visit(at, pieces)
	}
	return nil, nil
}
