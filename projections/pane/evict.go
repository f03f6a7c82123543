package pane

import (
	"hash/fnv"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// A series that has stopped leaves the shard: once no bucket of it is open and its tail is over in every stream, by log time, what
// stays is its closure watermark per stream, as a record that whoever runs the fold keeps and gives back (returns) before the
// next event that names the series.
//
// When a tail is over follows from the log times of events alone (over), and so does when the memory goes, a little later: with the
// first event in each span of evictEvery. By then prune has given up the raw samples and every correction, and of the rest the
// watermark says it all. A largest filing time that is forgotten is no loss, because c ≥ maxF − lateness always holds where nothing is
// open.

const (
	// evictEvery divides log time, in ms: series that are due go with the first event in each span, and those of which something is open
	// still are looked at again in the next.
	evictEvery = 10_000
	// leastUnwantedStay is how long at least a series that no stream takes is remembered, in ms of log time; up to twice that.
	leastUnwantedStay = 60 * 1000
	// noEnd is the first bucket end of a member that has none.
	noEnd = math.MaxInt64
)

// groupOf hashes what reads narrow their search for evicted series by: an experiment.
func groupOf(experiment string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(experiment))
	return h.Sum32()
}

// over says whether nothing of the series is open and its tail has ended in every stream, as of log time now.
func (s *seriesState) over(now, horizon int64) bool {
	for i := range s.members {
		m := &s.members[i]
		if len(m.open) > 0 || s.lastApplied != math.MinInt64 && satSub(now, s.lastApplied) <= m.stream.width+horizon {
			return false
		}
	}
	return true
}

// stay returns how long after the last event that named it a series stays in memory if nothing of it is open, in ms of log time: no
// shorter than its longest tail.
func (s *Shard) stay(sr *seriesState) int64 {
	width := int64(0)
	for i := range sr.members {
		width = max(width, sr.members[i].stream.width)
	}
	return satAdd(width, s.plan.HorizonMillis)
}

// enter puts a series into the shard. It is looked at when it may be due for eviction.
func (s *Shard) enter(sr seriesState) int32 {
	var idx int32
	if n := len(s.free); n > 0 {
		idx = s.free[n-1]
		s.free = s.free[:n-1]
		sr.gen = s.series[idx].gen
		s.series[idx] = sr
	} else {
		idx = int32(len(s.series))
		s.series = append(s.series, sr)
	}
	s.slots.set(sr.ref, idx+1)
	s.idle.push(timer{deadline: satAdd(sr.lastNamed, s.stay(&s.series[idx])), series: idx, gen: sr.gen})
	return idx
}

// evictIdle evicts what is due at the log time of the event that was just applied, in every shard that applied it.
func (s *Shard) evictIdle() {
	for s.evicts && len(s.idle) > 0 && s.idle[0].deadline < s.logTime {
		t := s.idle.pop()
		sr := &s.series[t.series]
		if sr.gen != t.gen {
			continue
		}
		due := satAdd(sr.lastNamed, s.stay(sr))
		switch {
		case due >= s.logTime:
			t.deadline = due
			s.idle.push(t)
		case !sr.over(s.logTime, s.plan.HorizonMillis):
			t.deadline = s.logTime // which the next span is beyond
			s.idle.push(t)
		default:
			s.evict(t.series)
		}
	}
	s.forgetUnwanted()
	s.repack()
}

// leastRepack is the number of places for series below which empty ones are left as they are.
const leastRepack = 16

// repack gives back the places of evicted series once three quarters of all are empty.
func (s *Shard) repack() {
	if len(s.series) < leastRepack || len(s.free) < len(s.series)/4*3 {
		return
	}
	kept := make([]seriesState, 0, 2*(len(s.series)-len(s.free)))
	for i := range s.series {
		if sr := &s.series[i]; sr.ref != 0 {
			kept = append(kept, *sr)
			s.slots.set(sr.ref, int32(len(kept)))
		}
	}
	s.series, s.free, s.idle, s.timers = kept, nil, nil, nil
	s.rearm()
}

// settle evicts all that is due, and ends the tails that are over. It comes before a change of plan: tails end, and series go, by the plan
// under which they were kept, however late the one or the other is carried out.
func (s *Shard) settle() {
	for i := range s.series {
		sr := &s.series[i]
		if sr.ref == 0 {
			continue
		}
		if satAdd(sr.lastNamed, s.stay(sr)) < s.logTime && sr.over(s.logTime, s.plan.HorizonMillis) {
			s.evict(int32(i))
			continue
		}
		sr.prune(s.logTime, s.plan.HorizonMillis)
	}
}

// releaseExperiment evicts the series of one experiment that have nothing open. What is left of their tails is given up.
func (s *Shard) releaseExperiment(name string) {
	for i := range s.series {
		sr := &s.series[i]
		if sr.ref == 0 || sr.experiment != name || slices.ContainsFunc(sr.members, func(m member) bool { return len(m.open) > 0 }) {
			continue
		}
		s.evict(int32(i))
	}
}

// evict takes a series out of the shard and leaves its record.
func (s *Shard) evict(idx int32) {
	sr := &s.series[idx]
	e := bucket.Evicted{Generation: uint64(s.generation), Ref: uint64(sr.ref), Seq: uint64(s.seq), Group: groupOf(sr.experiment)}
	for i := range sr.members {
		m := &sr.members[i]
		m.stream.seriesN--
		if m.c != math.MinInt64 { // otherwise it never had a bucket, or none that is not gone
			e.Streams = append(e.Streams, m.record())
		}
	}
	s.evicted = append(s.evicted, e)
	s.slots.set(sr.ref, 0)
	*sr = seriesState{gen: sr.gen + 1}
	s.free = append(s.free, idx)
}

// record says what stays of a member, which has nothing open any more.
func (m *member) record() bucket.EvictedStream {
	out := bucket.EvictedStream{Stream: m.stream.key, Closed: m.c}
	last := m.stream.floorEnd(m.c)
	if last < m.c {
		last = satAdd(last, m.stream.width)
	}
	if m.first != noEnd && last > m.stream.expired {
		out.Holds = true
		out.First, _ = m.stream.grid.Locate(min(m.first, last))
		out.Last, _ = m.stream.grid.Locate(last)
		m.stream.evictedThrough = max(m.stream.evictedThrough, last)
	}
	return out
}

// leave takes a series out of streams that leave the plan. What it has published there stands, and is listed.
func (s *Shard) leave(sr *seriesState, old map[plan.StreamID]*stream) {
	e := bucket.Evicted{Generation: uint64(s.generation), Ref: uint64(sr.ref), Seq: uint64(s.seq), Group: groupOf(sr.experiment), Stays: true}
	sr.members = slices.DeleteFunc(sr.members, func(m member) bool {
		if old[m.stream.spec.ID] != m.stream {
			return false
		}
		if m.c != math.MinInt64 {
			e.Streams = append(e.Streams, m.record())
		}
		return true
	})
	if len(e.Streams) > 0 {
		s.evicted = append(s.evicted, e)
	}
}

// returned gives a member what the record of the series says of its stream. A stream that has left the plan since and come back begins
// anew with every series.
func (m *member) returned(e *bucket.Evicted) {
	for _, s := range e.Streams {
		if s.Stream == m.stream.key && log.Seq(e.Seq) >= m.stream.joined {
			m.c, m.tailFloor = s.Closed, s.Closed
		}
	}
}

// A series that no stream takes has no state, only a mark in its slot, so that its label set need not be asked for with every
// sample. Marks are forgotten by generations.
func (s *Shard) unwantedStay() int64 {
	width := int64(0)
	for _, st := range s.streams {
		width = max(width, st.width)
	}
	return max(leastUnwantedStay, satAdd(width, s.plan.HorizonMillis))
}

func (s *Shard) forgetUnwanted() {
	if s.unwantedSince == math.MinInt64 {
		s.unwantedSince = s.logTime
	}
	if satSub(s.logTime, s.unwantedSince) <= s.unwantedStay() {
		return
	}
	s.unwantedSince = s.logTime
	before := len(s.unwanted)
	s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
		switch slot {
		case unwanted:
			return unwantedOld
		case unwantedOld:
			s.evicted = append(s.evicted, bucket.Evicted{Generation: uint64(s.generation), Ref: uint64(ref), Seq: uint64(s.seq)})
			delete(s.unwanted, ref)
			return 0
		}
		return slot
	})
	if left := len(s.unwanted); before-left >= leastRepack && before > 4*left {
		s.unwanted = regrown(s.unwanted)
	}
}

// reconsiderUnwanted looks at the series that no stream took when streams have come: those that one takes now begin with it.
func (s *Shard) reconsiderUnwanted(added []*stream) {
	if len(added) == 0 {
		return
	}
	var taken []seriesState
	s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
		if slot >= 0 {
			return slot
		}
		ls, ok := s.labelsOf(ref)
		if !ok {
			return slot
		}
		if members := newMembers(added, ls); len(members) > 0 {
			taken = append(taken, s.newSeries(ref, ls, members))
			delete(s.unwanted, ref)
		}
		return slot
	})
	for _, sr := range taken {
		s.enter(sr)
	}
}

// labelsOf returns the label set of a series in the shard. Without one the shard is corrupt.
func (s *Shard) labelsOf(ref log.SeriesRef) (labels.Labels, bool) {
	ls, ok := s.labels.Labels(ref)
	if !ok {
		s.corrupt = errNoLabels(ref)
	}
	return ls, ok
}

func (s *Shard) newSeries(ref log.SeriesRef, ls labels.Labels, members []member) seriesState {
	return seriesState{ref: ref, experiment: s.experimentOf(ls), members: members, lastApplied: math.MinInt64, lastNamed: s.logTime}
}

// slotTable says where each series of a shard stands: 0 nowhere, unwanted, or index+1 into the shard's series. Its pages come and go
// with what stands on them; what stays of one is a pointer for slotPage·Shards references.
type slotTable struct {
	shard int
	pages []*slotPageOf
}

type slotPageOf struct {
	used int
	at   [slotPage]int32
}

func (t *slotTable) get(ref log.SeriesRef) int32 {
	i := int(ref / Shards)
	if p := i / slotPage; p < len(t.pages) && t.pages[p] != nil {
		return t.pages[p].at[i%slotPage]
	}
	return 0
}

func (t *slotTable) set(ref log.SeriesRef, v int32) {
	i := int(ref / Shards)
	p := i / slotPage
	for len(t.pages) <= p {
		t.pages = append(t.pages, nil)
	}
	if t.pages[p] == nil {
		t.pages[p] = new(slotPageOf)
	}
	t.setAt(p, i%slotPage, v)
}

func (t *slotTable) setAt(p, i int, v int32) {
	pg := t.pages[p]
	switch was := pg.at[i]; {
	case was == 0 && v != 0:
		pg.used++
	case was != 0 && v == 0:
		pg.used--
	}
	pg.at[i] = v
	if pg.used == 0 {
		t.pages[p] = nil
	}
}

// each calls visit with every series that has a slot, by reference, and sets the slot to what it returns.
func (t *slotTable) each(visit func(log.SeriesRef, int32) int32) {
	for p := range t.pages {
		for i := 0; i < slotPage && t.pages[p] != nil; i++ {
			if v := t.pages[p].at[i]; v != 0 {
				if now := visit(log.SeriesRef((p*slotPage+i)*Shards+t.shard), v); now != v {
					t.setAt(p, i, now)
				}
			}
		}
	}
}
