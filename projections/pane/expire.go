package pane

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// expiry is what retention has removed of one stream: the buckets with E ≤ through. Streams are named by their keys here; see streamKey.
type expiry struct {
	grid    bucket.Grid
	through int64   // ms, on the grid
	seq     log.Seq // the event that moved it last
}

// former is a stream that the plan in force no longer has. What it published stands until its retention ends.
type former struct {
	grid           bucket.Grid
	retention      int64 // ms, as it was last planned
	evictedThrough int64 // as the stream had it
}

// expire applies a retention delete (P8). Buckets that end at or before it are gone: those still open close in the same step and
// are gone too, none of them opens again, and a sample for one is late and beyond correction, but marks nothing. Windows that
// reach below are no longer covered.
func (s *Shard) expire(b *log.Expired) {
	id := plan.StreamID(b.Stream)
	grid := bucket.Grid{Origin: b.Origin, Width: b.Width}
	old, known := s.expired[id]
	st := s.stored(b.Stream)
	if s.generation != 0 && st == nil {
		return // the first generation's shards keep what retention has removed of all others
	}
	if known && old.grid != grid || st != nil && st.grid != grid {
		s.corrupt = fmt.Errorf("pane: event %d expires stream %s on another grid than its own", s.seq, id)
		return
	}
	if known && b.Through <= old.through {
		return
	}
	if s.expired == nil {
		s.expired = make(map[plan.StreamID]expiry)
	}
	s.expired[id] = expiry{grid: grid, through: b.Through, seq: s.seq}
	s.expireStats(id, b.Through)
	if st == nil {
		return
	}
	st.expire(b.Through)
	s.forgetExperiments()
	for i := range s.series {
		sr := &s.series[i]
		for j := range sr.members {
			m := &sr.members[j]
			if m.stream != st {
				continue
			}
			n := 0
			for n < len(m.open) && m.open[n].end <= b.Through {
				n++
			}
			if n > 0 {
				before := m.c
				m.c = max(m.c, m.open[n-1].end) // P4; what nobody can read proves nothing, so the frontier stays
				m.open = slices.Delete(m.open, 0, n)
				s.closed(sr, m, n)
				s.closedThrough(sr, m, before)
			}
		}
	}
}

// stored returns the stream by the name under which its buckets are stored; nil if this shard does not fold it now.
func (s *Shard) stored(key uint64) *stream {
	for _, st := range s.streams {
		if st.key == key {
			return st
		}
	}
	return nil
}

// forgetExperiments drops what barriers proved for experiments of which nothing is retained at those times.
func (s *Shard) forgetExperiments() {
	least := int64(math.MaxInt64)
	for _, st := range s.streams {
		least = min(least, st.expired)
	}
	maps.DeleteFunc(s.experiments, func(_ string, t int64) bool { return t <= least })
}

// expire moves what retention removed.
func (st *stream) expire(through int64) {
	st.expired = max(st.expired, through)
	st.coverage = max(st.coverage, through)
}

// part remembers a stream that leaves the plan, and join forgets it again.
func (s *Shard) part(st *stream) {
	if s.former == nil {
		s.former = make(map[plan.StreamID]former)
	}
	s.former[st.spec.ID] = former{grid: st.grid, retention: st.spec.RetentionMillis, evictedThrough: st.evictedThrough}
}

// join gives a stream that enters the plan what is known of it from before: what retention has removed, and what its series have left.
func (s *Shard) join(st *stream) {
	if f, ok := s.former[st.spec.ID]; ok {
		st.evictedThrough = f.evictedThrough
	}
	delete(s.former, st.spec.ID)
	if e, ok := s.expired[st.spec.ID]; ok {
		st.expire(e.through)
	}
}

// encodeExpired appends what retention has removed, and the streams that are no longer planned, each by stream.
func (s *Shard) encodeExpired(e *encoder) {
	e.u(uint64(len(s.expired)))
	for _, id := range sortedStreams(s.expired) {
		x := s.expired[id]
		e.u(uint64(id))
		e.v(x.grid.Origin)
		e.v(x.grid.Width)
		e.v(x.through)
		e.u(uint64(x.seq))
	}
	e.u(uint64(len(s.former)))
	for _, id := range sortedStreams(s.former) {
		f := s.former[id]
		e.u(uint64(id))
		e.v(f.grid.Origin)
		e.v(f.grid.Width)
		e.v(f.retention)
		e.v(f.evictedThrough)
	}
}

func sortedStreams[V any](m map[plan.StreamID]V) []plan.StreamID {
	return slices.SortedFunc(maps.Keys(m), func(a, b plan.StreamID) int { return cmp.Compare(a, b) })
}

func (s *Shard) decodeExpired(d *decoder) {
	for range d.count(5) {
		id := plan.StreamID(d.u())
		x := expiry{grid: bucket.Grid{Origin: d.v(), Width: d.v()}, through: d.v(), seq: log.Seq(d.u())}
		if x.grid.Width <= 0 {
			d.fail("grid without width")
			return
		}
		if s.expired == nil {
			s.expired = make(map[plan.StreamID]expiry)
		}
		s.expired[id] = x
		if st := s.stored(uint64(id)); st != nil {
			st.expire(x.through)
		}
	}
	for range d.count(5) {
		id := plan.StreamID(d.u())
		f := former{grid: bucket.Grid{Origin: d.v(), Width: d.v()}, retention: d.v(), evictedThrough: d.v()}
		if f.grid.Width <= 0 {
			d.fail("grid without width")
			return
		}
		if s.former == nil {
			s.former = make(map[plan.StreamID]former)
		}
		s.former[id] = f
	}
}
