package pane

import (
	"cmp"
	"iter"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// What the fold must not do itself, because it does no I/O, is done here, in the worker, before and after each event: the label set and
// the record of a series that is not in memory are looked up before, and what was evicted is taken over after.

// goneKey names a series that a generation has evicted.
type goneKey struct {
	generation uint64
	ref        log.SeriesRef
}

// each yields the worker's shards of one number: of the first generation, and of those that were taken over.
func (w *worker) each(id int) iter.Seq[*Shard] {
	return func(yield func(*Shard) bool) {
		if w.shards[id] == nil || !yield(w.shards[id]) {
			return
		}
		for _, h := range w.hosted {
			if h.shards[id] != nil && !yield(h.shards[id]) {
				return
			}
		}
	}
}

// admit makes the series that an event names resident, and has the records of those that were evicted earlier at hand.
func (w *worker) admit(ev *log.Event) error {
	b, ok := ev.Body.(*log.Write)
	if !ok {
		return nil
	}
	for id := range Shards {
		for s := range w.each(id) {
			clear(s.returning)
		}
	}
	for _, ref := range b.Refs {
		// Nearly always the series is there.
		if s := w.shards[ShardOf(ref)]; s == nil || s.slots.get(ref) != 0 && len(w.hosted) == 0 {
			continue
		}
		if err := w.admitNamed(ev, b, ref); err != nil {
			return err
		}
	}
	if len(b.Exemplars)+len(b.Histograms) == 0 {
		return nil
	}
	for ref := range namedIn(b) {
		if err := w.admitNamed(ev, b, ref); err != nil {
			return err
		}
	}
	return nil
}

// admitNamed admits a series that an event names to the shards that have it still to apply.
func (w *worker) admitNamed(ev *log.Event, b *log.Write, ref log.SeriesRef) error {
	for s := range w.each(ShardOf(ref)) {
		if s.seq >= ev.Seq || s.slots.get(ref) != 0 {
			continue
		}
		if err := w.admitSeries(s, ref, b); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) admitSeries(s *Shard, ref log.SeriesRef, b *log.Write) error {
	if ls, ok := definedIn(b, ref); ok {
		// It was never named before, so nothing was ever evicted.
		w.p.index.Add(ref, ls)
		return nil
	}
	ls, ok, err := w.p.index.Find(ref)
	if err != nil || !ok {
		return err // the fold says that no event has defined it
	}
	w.p.index.Add(ref, ls)
	return s.remember(ref, w.shelves[s.id].gone, w.p.store)
}

// definedIn returns the label set of a series that a write defines.
func definedIn(b *log.Write, ref log.SeriesRef) (labels.Labels, bool) {
	i, ok := slices.BinarySearchFunc(b.Defs, ref, func(d log.SeriesDef, ref log.SeriesRef) int { return cmp.Compare(d.Ref, ref) })
	if !ok {
		return labels.EmptyLabels(), false
	}
	return b.Defs[i].Labels, true
}

// remember has the record of a series at hand, if the shard has evicted it.
func (s *Shard) remember(ref log.SeriesRef, gone map[goneKey]*bucket.Evicted, store *bucket.Store) error {
	e := gone[goneKey{uint64(s.generation), ref}]
	if e == nil {
		stored, ok, err := store.EvictedOf(uint64(s.generation), uint64(ref))
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

// collect takes over what the shards have evicted. A series that no generation has in memory any more is no longer resident.
func (w *worker) collect() {
	for id := range Shards {
		for s := range w.each(id) {
			w.collectFrom(s)
		}
	}
}

func (w *worker) collectFrom(s *Shard) {
	if len(s.evicted) == 0 {
		return
	}
	refs := w.shelves[s.id].depart(s)
	w.p.index.Evict(slices.DeleteFunc(refs, func(ref log.SeriesRef) bool {
		for other := range w.each(s.id) {
			if other.slots.get(ref) != 0 {
				return true
			}
		}
		return false
	}))
}

// depart takes over what a shard has evicted, and returns the series that are out of its memory.
func (sh *shelf) depart(s *Shard) (refs []log.SeriesRef) {
	if sh.gone == nil {
		sh.gone = make(map[goneKey]*bucket.Evicted)
	}
	for i := range s.evicted {
		if e := &s.evicted[i]; !e.Stays {
			refs = append(refs, log.SeriesRef(e.Ref))
			sh.gone[goneKey{e.Generation, log.SeriesRef(e.Ref)}] = e
		}
	}
	sh.evicted = append(sh.evicted, s.evicted...)
	s.evicted = nil
	return refs
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
		key := goneKey{e.Generation, log.SeriesRef(e.Ref)}
		if now := sh.gone[key]; now != nil && now.Seq == e.Seq {
			delete(sh.gone, key)
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
