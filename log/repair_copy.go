package log

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// copier puts verified events into a store.
type copier struct {
	db    *pebble.DB
	batch *pebble.Batch
	dict  *Dictionary // for its hashes
	v     verifier
	old   verifier // the series that were defined before the floor

	next Seq
	hash Hash // of the event before next
}

// oldSeries copies an entry of the dictionary.
func (c *copier) oldSeries(key, value []byte) error {
	if len(key) != 9 {
		return nil
	}
	ref := SeriesRef(binary.BigEndian.Uint64(key[1:]))
	if _, err := decodeSeries(ref, value); err != nil || c.old.has(ref) {
		return nil // of no use, or there already
	}
	c.old.define(ref)
	return errors.Join(c.series(ref, value), c.applyWhenLarge())
}

func (c *copier) series(ref SeriesRef, encoded []byte) error {
	key := seriesKey(ref)
	return errors.Join(
		c.batch.Set(key, encoded, nil),
		c.batch.Set(hashKey(c.dict.canonicalHash(encoded)), key[1:], nil))
}

// add checks the event at next and copies it. A *CorruptionError says that it is not what it should be.
func (c *copier) add(raw []byte) error {
	e, err := DecodeEvent(c.next, raw)
	if err != nil {
		return err
	}
	if (c.next == 1 || c.v.report.Events > 0) && e.Prev != c.hash {
		return corrupt(c.next, "predecessor hash is %x, not %x", e.Prev, c.hash)
	}
	w, isWrite := e.Body.(*Write)
	if isWrite && c.v.truncated {
		if err := c.used(w); err != nil {
			return err
		}
	}
	if err := c.v.event(e); err != nil {
		return err
	}
	if isWrite {
		for _, def := range w.Defs {
			if err := c.series(def.Ref, appendLabels(nil, def.Labels)); err != nil {
				return err
			}
		}
	}
	if err := c.batch.Set(eventKey(c.next), raw, nil); err != nil {
		return err
	}
	c.next, c.hash = c.next+1, EventHash(raw)
	return c.applyWhenLarge()
}

// used checks that the labels of every series of a write are known.
func (c *copier) used(w *Write) error {
	for _, ref := range w.Refs {
		defines := slices.ContainsFunc(w.Defs, func(d SeriesDef) bool { return d.Ref == ref })
		if !defines && !c.v.has(ref) && !c.old.has(ref) {
			return corrupt(c.next, "the labels of series %d cannot be read", ref)
		}
	}
	return nil
}

func (c *copier) applyWhenLarge() error {
	if c.batch.Len() < repairBatchBytes {
		return nil
	}
	return c.apply()
}

func (c *copier) apply() error {
	err := c.db.Apply(c.batch, pebble.NoSync)
	c.batch.Close()
	c.batch = c.db.NewBatch()
	return err
}
