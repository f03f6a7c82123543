package bucket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

const keyRow = 'o'

// ExperimentRow is what a shard has counted of one experiment.
type ExperimentRow struct {
	Name   string
	Counts []byte // nil: nothing any more
}

// experimentsKey is what the rows of a shard begin with. Generation 0 is the first.
func experimentsKey(generation uint64, shard int) []byte {
	if generation == 0 {
		return []byte{keyExperiment, byte(shard)}
	}
	return append(binary.BigEndian.AppendUint64([]byte{keyLaterCount}, generation), byte(shard))
}

func setExperiments(b *pebble.Batch, generation uint64, shard int, rows []ExperimentRow) error {
	key := experimentsKey(generation, shard)
	n := len(key)
	for _, r := range rows {
		var err error
		if key = append(key[:n], r.Name...); r.Counts == nil {
			err = b.Delete(key, nil)
		} else {
			err = b.Set(key, r.Counts, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Experiments returns the rows of the newest checkpoint of a shard of a generation, by name. Generation 0 is the first.
func (s *Store) Experiments(generation uint64, shard int) ([]ExperimentRow, error) {
	var out []ExperimentRow
	err := s.each(experimentsKey(generation, shard), nil, func(k, v []byte) (bool, error) {
		out = append(out, ExperimentRow{Name: string(k), Counts: bytes.Clone(v)})
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("bucket: read experiments of generation %d, shard %d: %w", generation, shard, err)
	}
	return out, nil
}

// each calls yield with what lies under a prefix, by key and without the prefix, from a key on, until it returns false. Both
// slices are valid during the call.
func (s *Store) each(prefix, from []byte, yield func(key, value []byte) (bool, error)) (err error) {
	if err := s.health.readable(); err != nil {
		return err
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: append(bytes.Clone(prefix), from...), UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if more, err := yield(it.Key()[len(prefix):], v); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// after returns the least key behind all that begin with a prefix, whose last byte is not 255.
func after(prefix []byte) []byte {
	b := bytes.Clone(prefix)
	b[len(b)-1]++
	return b
}

// Rows is a part of the store that belongs to a read model beside the panes: keys and values, whole batches at a time. It lives and
// dies with the views: what a crash takes is folded again from the log, and a base holds it.
type Rows struct {
	store  *Store
	prefix []byte
}

// Rows returns the part with a number below 255. Each read model has its own.
func (s *Store) Rows(space byte) *Rows { return &Rows{store: s, prefix: []byte{keyRow, space}} }

// Get returns a value; ok is false if there is none.
func (r *Rows) Get(key []byte) (value []byte, ok bool, err error) {
	if err := r.store.health.readable(); err != nil {
		return nil, false, err
	}
	v, closer, err := r.store.db.Get(r.key(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("bucket: read row: %w", err)
	}
	defer closer.Close()
	return bytes.Clone(v), true, nil
}

// Each calls yield with the rows whose keys begin with a prefix, by key, from a key on (of which nil is the first), until it
// returns false. The slices are valid during the call.
func (r *Rows) Each(prefix, from []byte, yield func(key, value []byte) (bool, error)) error {
	at := bytes.TrimPrefix(from, prefix)
	if err := r.store.each(r.key(prefix), at, func(k, v []byte) (bool, error) {
		return yield(append(bytes.Clone(prefix), k...), v)
	}); err != nil {
		return fmt.Errorf("bucket: read rows: %w", err)
	}
	return nil
}

func (r *Rows) key(k []byte) []byte { return append(bytes.Clone(r.prefix), k...) }

// RowBatch is a set of changes that land together, or not at all.
type RowBatch struct {
	puts    []row
	deletes [][]byte
}

type row struct{ key, value []byte }

// Put sets a row. The batch keeps both slices.
func (b *RowBatch) Put(key, value []byte) { b.puts = append(b.puts, row{key, value}) }

// Delete removes a row.
func (b *RowBatch) Delete(key []byte) { b.deletes = append(b.deletes, key) }

// Len returns the number of changes.
func (b *RowBatch) Len() int { return len(b.puts) + len(b.deletes) }

// Commit makes the changes of a batch, deletes first. They are durable after the next Flush.
func (r *Rows) Commit(b *RowBatch) error {
	if err := r.store.writable(); err != nil {
		return err
	}
	pb := r.store.db.NewBatch()
	defer pb.Close()
	for _, k := range b.deletes {
		if err := pb.Delete(r.key(k), nil); err != nil {
			return fmt.Errorf("bucket: commit rows: %w", err)
		}
	}
	for _, p := range b.puts {
		if err := pb.Set(r.key(p.key), p.value, nil); err != nil {
			return fmt.Errorf("bucket: commit rows: %w", err)
		}
	}
	if err := r.store.db.Apply(pb, pebble.NoSync); err != nil {
		return fmt.Errorf("bucket: commit rows: %w", err)
	}
	return r.store.health.writable()
}
