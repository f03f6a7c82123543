package bucket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// GenerationState is the state of one shard of a generation: streams that are folded apart from the others (projections/pane).
type GenerationState struct {
	Generation uint64 // from 1
	Seq        uint64 // of the last event that State reflects
	State      []byte

	Experiments []ExperimentRow // those that have changed since the last checkpoint that was committed
	Ended       bool            // it has no streams left, and counts nothing any more
}

// GenerationPart is what one shard of a generation adds to a GenerationCheckpoint.
type GenerationPart struct {
	Shard int
	Seq   uint64 // of the last event that State reflects; at or beyond that of the checkpoint
	State []byte
	Table *Table // what was closed since the last checkpoint

	Evicted []Evicted // series that left the shard's memory since the last checkpoint, oldest first

	Experiments []ExperimentRow // as in GenerationState
	Ended       bool
}

// GenerationCheckpoint is how far a generation has come that is folded in the background: all of its shards, in one batch.
type GenerationCheckpoint struct {
	Generation uint64
	Seq        uint64 // every shard reflects the events up to here
	Note       []byte // what else the fold goes on from
	Parts      []GenerationPart
}

func generationKey(shard int, generation uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyCheckpoint, byte(shard)}, generation)
}

func generationNoteKey(generation uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyGeneration}, generation)
}

// CommitGeneration writes a checkpoint of a generation. It is durable after the next Flush. It fails while flushes do.
func (s *Store) CommitGeneration(c GenerationCheckpoint) error {
	if err := s.writable(); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("bucket: commit generation %d: %w", c.Generation, err) }
	b := s.db.NewBatch()
	defer b.Close()
	var piece []byte
	var lay layout
	for i := range c.Parts {
		p := &c.Parts[i]
		for k, cs := range p.Table.blocks {
			piece = lay.appendPiece(piece[:0], cs)
			if err := b.Set(pieceKey(k, p.Shard, p.Seq), piece, nil); err != nil {
				return fail(err)
			}
		}
		if err := setEvicted(b, p.Shard, p.Evicted); err != nil {
			return fail(err)
		}
		state := GenerationState{Generation: c.Generation, Seq: p.Seq, State: p.State, Experiments: p.Experiments, Ended: p.Ended}
		if err := setGeneration(b, p.Shard, &state); err != nil {
			return fail(err)
		}
	}
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(c.Note)), c.Seq)
	if err := b.Set(generationNoteKey(c.Generation), append(v, c.Note...), nil); err != nil {
		return fail(err)
	}
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return fail(err)
	}
	for i := range c.Parts {
		for k := range c.Parts[i].Table.blocks {
			s.touch(k, c.Parts[i].Shard)
		}
	}
	return s.health.writable()
}

// setGenerations adds the states of generations to the batch of a shard's checkpoint.
func setGenerations(b *pebble.Batch, shard int, states []GenerationState) error {
	for i := range states {
		if err := setGeneration(b, shard, &states[i]); err != nil {
			return err
		}
	}
	return nil
}

// setGeneration adds the state of one shard of a generation, and what it has counted, to a batch.
func setGeneration(b *pebble.Batch, shard int, g *GenerationState) error {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(g.State)), g.Seq)
	if err := b.Set(generationKey(shard, g.Generation), append(v, g.State...), nil); err != nil {
		return err
	}
	if g.Ended {
		key := experimentsKey(g.Generation, shard)
		return b.DeleteRange(key, after(key), nil)
	}
	return setExperiments(b, g.Generation, shard, g.Experiments)
}

// GenerationState returns the newest state of a shard of a generation; ok is false if there is none.
func (s *Store) GenerationState(generation uint64, shard int) (seq uint64, state []byte, ok bool, err error) {
	return s.sequenced(generationKey(shard, generation), fmt.Sprintf("generation %d, shard %d", generation, shard))
}

// GenerationNote returns the note of the last CommitGeneration and its sequence; ok is false if there was none.
func (s *Store) GenerationNote(generation uint64) (seq uint64, note []byte, ok bool, err error) {
	return s.sequenced(generationNoteKey(generation), fmt.Sprintf("note of generation %d", generation))
}

// sequenced reads a value that begins with a sequence.
func (s *Store) sequenced(key []byte, what string) (seq uint64, rest []byte, ok bool, err error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil, false, nil
	}
	if err != nil {
		return 0, nil, false, fmt.Errorf("bucket: read checkpoint of %s: %w", what, err)
	}
	defer closer.Close()
	if len(v) < 8 {
		return 0, nil, false, fmt.Errorf("%w: checkpoint of %s has %d bytes", ErrDamaged, what, len(v))
	}
	return binary.BigEndian.Uint64(v), bytes.Clone(v[8:]), true, nil
}

// Generations returns the generations of which there is a state, increasing.
func (s *Store) Generations() ([]uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyCheckpoint}, UpperBound: []byte{keyCheckpoint + 1}})
	if err != nil {
		return nil, fmt.Errorf("bucket: list generations: %w", err)
	}
	defer it.Close()
	var out []uint64
	for it.First(); it.Valid(); it.Next() {
		if k := it.Key(); len(k) == 10 {
			out = append(out, binary.BigEndian.Uint64(k[2:]))
		}
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: list generations: %w", err)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// DropGeneration deletes the states of a generation, so that it is folded from its beginning or not at all. Its pieces stay: a
// fold of the same events writes them again, and newer ones win.
func (s *Store) DropGeneration(generation uint64) error {
	if err := s.writable(); err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.Delete(generationNoteKey(generation), nil),
		b.DeleteRange(laterKey(generation, 0), append(laterKey(generation, 1<<64-1), 0), nil),
		b.DeleteRange(experimentsKey(generation, 0), after(experimentsKey(generation, 255)), nil),
	)
	for shard := range 256 {
		err = errors.Join(err, b.Delete(generationKey(shard, generation), nil))
	}
	if err == nil {
		err = s.db.Apply(b, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("bucket: drop generation %d: %w", generation, err)
	}
	return s.health.writable()
}
