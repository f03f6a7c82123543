package pane

import (
	"slices"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// What the fold must not do itself, because it does no I/O, is done here, in the worker, before and after each event: the label set and
// the record of a series that is not in memory are looked up before, and what was evicted is taken over after.

// admit makes the series that an event names resident, and has the records of those that were evicted earlier at hand.
func (w *worker) admit(ev *log.Event) error {
	b, ok := ev.Body.(*log.Write)
	if !ok {
		return nil
	}
	for _, s := range w.shards {
		if s != nil {
			clear(s.returning)
		}
	}
	for ref := range namedIn(b) {
		s := w.shards[ShardOf(ref)]
		if s == nil || s.seq >= ev.Seq || s.slots.get(ref) != 0 {
			continue
		}
		if err := w.admitSeries(s, ref, b); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) admitSeries(s *Shard, ref log.SeriesRef, b *log.Write) error {
	if i, ok := slices.BinarySearchFunc(b.Defs, ref, func(d log.SeriesDef, ref log.SeriesRef) int {
		switch {
		case d.Ref < ref:
			return -1
		case d.Ref > ref:
			return 1
		}
		return 0
	}); ok {
		// It was never named before, so nothing was ever evicted.
		w.p.index.Add(ref, b.Defs[i].Labels)
		return nil
	}
	ls, ok, err := w.p.index.Find(ref)
	if err != nil || !ok {
		return err // the fold says that no event has defined it
	}
	w.p.index.Add(ref, ls)
	sh := w.shelves[s.id]
	e := sh.gone[ref]
	if e == nil {
		stored, ok, err := w.p.store.Evicted(uint64(ref))
		if err != nil || !ok {
			return err
		}
		e = &stored
	}
	if s.returning == nil {
		s.returning = make(map[log.SeriesRef]*bucket.Evicted)
	}
	s.returning[ref] = e
	return nil
}

// collect takes over what the shards have evicted.
func (w *worker) collect() {
	for id, s := range w.shards {
		if s == nil || len(s.evicted) == 0 {
			continue
		}
		sh := w.shelves[id]
		var refs []log.SeriesRef
		if sh.gone == nil {
			sh.gone = make(map[log.SeriesRef]*bucket.Evicted)
		}
		for i := range s.evicted {
			if e := &s.evicted[i]; !e.Stays {
				refs = append(refs, log.SeriesRef(e.Ref))
				sh.gone[log.SeriesRef(e.Ref)] = e
			}
		}
		sh.evicted = append(sh.evicted, s.evicted...)
		s.evicted = nil
		w.p.index.Evict(refs)
	}
}

// writing returns the records that the next checkpoint writes, and the bytes of those that none has tried to write before.
func (sh *shelf) writing() (all []bucket.Evicted, fresh int64) {
	for i := sh.tried; i < len(sh.evicted); i++ {
		fresh += sh.evicted[i].Bytes()
	}
	sh.tried = len(sh.evicted)
	return sh.evicted[:sh.tried:sh.tried], fresh
}

// stand forgets the records that now stand on disk, and returns their bytes.
func (sh *shelf) stand(written []bucket.Evicted) (bytes int64) {
	for i := range written {
		e := &written[i]
		bytes += e.Bytes()
		if now := sh.gone[log.SeriesRef(e.Ref)]; now != nil && now.Seq == e.Seq {
			delete(sh.gone, log.SeriesRef(e.Ref))
		}
	}
	sh.evicted = slices.Clone(sh.evicted[len(written):])
	sh.tried -= len(written)
	if len(sh.gone) == 0 {
		sh.gone = nil // a map keeps the room that it once needed
	}
	return bytes
}

// departed are the series that a shard evicted and no checkpoint has written when a view was taken.
type departed []bucket.Evicted

// in yields those that put something of the stream into blocks that overlap [from, to].
func (d departed) in(stream uint64, from, to int64, group *uint32, yield func(ref uint64) error) error {
	for i := range d {
		if group != nil && d[i].Group != *group {
			continue
		}
		for _, s := range d[i].Streams {
			if s.Stream == stream && s.Holds && s.First <= to && s.Last >= from {
				if err := yield(d[i].Ref); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
