package pane

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// A heal event says that from there on the published buckets are what they would be had no sample up to its Through come too late
// to be folded. What it changes is a function of the events alone, and too much to be kept for the case that a heal will come: so it is
// found by going through the events again, twice (see FindLate), when a heal event is to be applied, wherever and how often that is.
//
// Everything of the state that is no published bucket stays as it is: the counters say what has happened, and the closure watermarks,
// by which nothing is too late that was not, prove nothing new.
//
// A bucket into which the fold has refused a sample never changes by itself again: what is beyond correction stays beyond it. So
// what is found for it at the heal holds until the next one, and a sample that is refused later marks it again.
//
// A heal reaches back to the state as of its From, which a base holds. A bucket that was beyond correction there already has lost
// its raw samples for good, and stays as it is, with its mark.
//
// It reaches the streams that are planned when it comes, those of later generations too. A generation that is planned behind it folds
// the same history and refuses what came too late there, until the next heal.

// lateBucket names a bucket into which samples were refused.
type lateBucket struct {
	stream plan.StreamID
	ref    log.SeriesRef
	end    int64
}

// lateSample is a sample that the fold has refused as late. Of a native histogram only the time counts.
type lateSample struct {
	seq       log.Seq
	t         int64
	v         float64
	histogram bool
}

// Healing is what a heal changes.
type Healing struct {
	Plan    *plan.Plan // in force at the heal
	Streams map[plan.StreamID]HealCounts
	Later   int                                 // generations beside the first that it reaches
	buckets map[log.Seq]*[Shards][]healedBucket // of each generation that has some, the first being 0; by stream, series and end
}

// HealCounts says what a heal does to one stream.
type HealCounts struct {
	Samples     uint64 // refused as late since the heal before, and folded now, or found to repeat what is there
	Buckets     uint64 // into which they fell
	Changed     uint64 // of these, how many have another content now
	Marks       uint64 // of these, how many were marked incomplete and no longer are
	Unreachable uint64 // samples that stay refused, because their bucket was beyond correction already where the heal begins
}

func (c HealCounts) plus(o HealCounts) HealCounts {
	return HealCounts{
		Samples: c.Samples + o.Samples, Buckets: c.Buckets + o.Buckets, Changed: c.Changed + o.Changed, Marks: c.Marks + o.Marks,
		Unreachable: c.Unreachable + o.Unreachable,
	}
}

// Total returns the sum over streams.
func (h *Healing) Total() HealCounts {
	var sum HealCounts
	for _, c := range h.Streams {
		sum = sum.plus(c)
	}
	return sum
}

// Of returns the sum over some streams.
func (h *Healing) Of(ids []plan.StreamID) HealCounts {
	var sum HealCounts
	for _, id := range ids {
		sum = sum.plus(h.Streams[id])
	}
	return sum
}

// StreamIDs returns the streams with anything to heal, or to be left unhealed, increasing.
func (h *Healing) StreamIDs() []plan.StreamID { return slices.Sorted(maps.Keys(h.Streams)) }

// healedBucket is what a heal makes of one bucket.
type healedBucket struct {
	lateBucket
	experiment string
	grid       bucket.Grid
	pane       []byte  // encoded
	samples    uint64  // refused since the heal before
	since      log.Seq // the event that planned its stream
	changed    bool    // the pane is not the one that stands
	marked     bool    // it was marked incomplete
}

// heal applies a heal event: what stands from here on, and that it has changed.
func (s *Shard) heal(b *log.Heal, h *Healing) {
	switch {
	case b.Through != s.seq-1:
		// A sample refused in between would lose its mark and would not be there.
		s.corrupt = fmt.Errorf("pane: event %d heals through %d, which is not the event before it", s.seq, b.Through)
		return
	case s.shadow != nil:
		s.shadow.healed = max(s.shadow.healed, b.Through)
		return
	case h == nil:
		s.corrupt = fmt.Errorf("%w: heal at %d, and nothing is there to find what it changes", ErrUnsupportedEvent, s.seq)
		return
	}
	found := h.buckets[s.generation]
	if found == nil {
		return
	}
	for i := range found[s.id] {
		hb := &found[s.id][i]
		key := streamKey(hb.stream, s.generation)
		if x, ok := s.expired[plan.StreamID(key)]; ok && hb.end <= x.through {
			continue
		}
		block, pos := hb.grid.Locate(hb.end)
		k := bucket.Key{Stream: key, Block: block}
		if hb.changed {
			if x := s.stats[hb.experiment]; x != nil { // one that is retired does not return by it
				s.publishedOne(x, plan.StreamID(key), hb.grid, hb.end)
			}
			s.table.Put(k, uint64(hb.ref), pos, func(dst []byte) []byte { return append(dst, hb.pane...) })
		}
		if hb.marked {
			s.table.Heal(k, uint64(hb.ref), pos)
		}
		if st := s.stream(hb.stream); st != nil {
			st.track.change(hb.end, s.seq)
		}
	}
}

// shadow makes of a Shard one that publishes nothing. In the first pass it collects the samples that are refused as late, and in the
// second, in which it has only the series with such samples, it folds their buckets with them in place.
type shadow struct {
	late        map[lateBucket][]lateSample
	unreachable map[plan.StreamID]uint64
	healed      log.Seq // everything refused up to here was healed before

	reach map[memberID]reach // in the first pass, of the members that had closed something where the heal begins
	began log.Seq            // where that is

	wanted map[log.SeriesRef]struct{} // nil in the first pass
	added  map[plan.StreamID]log.Seq  // the event that planned a stream, if that is not before the heal begins
	found  map[lateBucket]*healedBucket
}

// memberID names a series within a stream.
type memberID struct {
	stream plan.StreamID
	ref    log.SeriesRef
}

// reach is what a series held of raw samples in a stream where the heal begins: those of all buckets but the ones with E ≤ beyond,
// and of those that were open nevertheless.
type reach struct {
	beyond int64
	open   []int64
}

func (r *reach) has(e int64) bool { return e > r.beyond || slices.Contains(r.open, e) }

func newShadow() *shadow {
	return &shadow{
		late: make(map[lateBucket][]lateSample), unreachable: make(map[plan.StreamID]uint64), reach: make(map[memberID]reach),
		added: make(map[plan.StreamID]log.Seq),
	}
}

// second returns the shadow of the second pass; nil if the first has found nothing to heal.
func (h *shadow) second() *shadow {
	n := newShadow()
	n.late, n.healed, n.wanted, n.found = h.late, h.healed, make(map[log.SeriesRef]struct{}), make(map[lateBucket]*healedBucket)
	for b, samples := range h.late {
		if samples[len(samples)-1].seq <= h.healed {
			continue // by increasing sequence: nothing is new
		}
		n.wanted[b.ref] = struct{}{}
	}
	if len(n.wanted) == 0 {
		return nil
	}
	return n
}

// ignores says that the pass does without a series.
func (h *shadow) ignores(ref log.SeriesRef) bool {
	if h == nil || h.wanted == nil {
		return false
	}
	_, ok := h.wanted[ref]
	return !ok
}

// begin notes, where the heal begins, which buckets have their raw samples still. In the second pass it folds those of them that
// are closed.
func (h *shadow) begin(s *Shard) {
	if h.wanted != nil {
		h.foldClosed(s)
		return
	}
	h.began = s.seq
	for i := range s.series {
		sr := &s.series[i]
		for j := range sr.members {
			m := &sr.members[j]
			if m.c == math.MinInt64 {
				continue
			}
			r := reach{beyond: max(satSub(m.c, s.plan.HorizonMillis), m.tailFloor)}
			for _, b := range m.open {
				if b.end <= r.beyond {
					r.open = append(r.open, b.end)
				}
			}
			h.reach[memberID{m.stream.spec.ID, sr.ref}] = r
		}
	}
}

func (h *shadow) foldClosed(s *Shard) {
	for b := range h.late {
		st := s.stream(b.stream)
		if st == nil {
			continue
		}
		m, sr := s.member(b.ref, st)
		if m == nil || b.end > m.c {
			continue
		}
		if _, open := m.openAt(b.end); !open {
			h.fold(s, sr, m, b.end)
		}
	}
}

// returned notes that a series has come back which was evicted before the heal begins: then it had no raw samples there.
func (h *shadow) returned(ref log.SeriesRef, e *bucket.Evicted, members []member) {
	if h == nil || h.wanted != nil || log.Seq(e.Seq) > h.began {
		return
	}
	for i := range members {
		id := memberID{members[i].stream.spec.ID, ref}
		if _, known := h.reach[id]; !known && members[i].c != math.MinInt64 {
			h.reach[id] = reach{beyond: members[i].c}
		}
	}
}

// planned notes that an event has planned a stream that was not planned before it. What there was of it is of no concern to it.
func (h *shadow) planned(id plan.StreamID, at log.Seq) {
	if h == nil {
		return
	}
	h.added[id] = at
	maps.DeleteFunc(h.reach, func(m memberID, _ reach) bool { return m.stream == id })
}

// refuse takes note of a sample that the fold refuses as late.
func (h *shadow) refuse(s *Shard, sr *seriesState, m *member, e int64, late lateSample) {
	b := lateBucket{m.stream.spec.ID, sr.ref, e}
	if h.wanted != nil {
		if f, ok := h.found[b]; !ok || f.since != h.added[b.stream] {
			h.fold(s, sr, m, e) // nothing else has come into this bucket
		}
		return
	}
	if r, ok := h.reach[memberID{b.stream, b.ref}]; ok && !r.has(e) {
		h.unreachable[b.stream]++
		return
	}
	late.seq = s.seq
	h.late[b] = append(h.late[b], late)
}

// publish is what the fold does where it would publish a bucket: in the second pass, fold it with what was refused.
func (h *shadow) publish(s *Shard, sr *seriesState, m *member, e int64) {
	if h.wanted != nil {
		h.fold(s, sr, m, e)
	}
}

// fold folds a bucket with the samples that were refused in place, if there are any.
func (h *shadow) fold(s *Shard, sr *seriesState, m *member, e int64) {
	b := lateBucket{m.stream.spec.ID, sr.ref, e}
	late := h.late[b]
	if len(late) == 0 || late[len(late)-1].seq <= h.healed {
		return
	}
	// What came before the stream was planned anew belongs to the buckets of the old one, in whose place those of the new one stand.
	since := h.added[b.stream]
	ours := late[firstAfter(late, since):]
	stood := foldBucket(sr, m.stream, e, ours[:firstAfter(ours, h.healed)])
	now := foldBucket(sr, m.stream, e, ours)
	h.found[b] = &healedBucket{
		lateBucket: b, experiment: sr.experiment, grid: m.stream.grid, pane: now, samples: uint64(len(late) - firstAfter(late, h.healed)),
		since: since, changed: !bytes.Equal(stood, now), marked: m.stream.spec.Late != plan.Drop,
	}
}

// firstAfter returns the index of the first sample of an event after seq.
func firstAfter(late []lateSample, seq log.Seq) int {
	i, _ := slices.BinarySearchFunc(late, seq+1, func(l lateSample, s log.Seq) int { return cmp.Compare(l.seq, s) })
	return i
}

// foldBucket encodes what a bucket is with the raw samples of a series and those that were refused, of which the first in
// the log stands; nil if it never had a sample.
func foldBucket(sr *seriesState, st *stream, e int64, late []lateSample) []byte {
	var all run
	ts, vs := sr.raw.between(st.before(e), e-st.edge)
	all.t, all.v = slices.Clone(ts), slices.Clone(vs)
	histogram := sr.histogramIn(st, e)
	for _, l := range late {
		if l.histogram {
			histogram = true
			continue
		}
		if i, have := all.find(l.t); !have {
			all.insert(i, l.t, l.v)
		}
	}
	if len(all.t) == 0 && !histogram {
		return nil
	}
	p := accum.Fold(all.t, all.v)
	p.HasHistogram = histogram
	return p.AppendEncode(nil, e)
}

// healing gathers what the second pass of one shard has found.
func (h *shadow) healing(s *Shard, out *Healing) {
	if len(h.found) == 0 {
		return
	}
	all := out.buckets[s.generation]
	if all == nil {
		all = new([Shards][]healedBucket)
		out.buckets[s.generation] = all
	}
	for _, hb := range h.found {
		if x, ok := s.expired[plan.StreamID(streamKey(hb.stream, s.generation))]; ok && hb.end <= x.through {
			continue
		}
		c := out.Streams[hb.stream]
		c.Samples += hb.samples
		c.Buckets++
		if hb.changed {
			c.Changed++
		}
		if hb.marked {
			c.Marks++
		}
		out.Streams[hb.stream] = c
		all[s.id] = append(all[s.id], *hb)
	}
	slices.SortFunc(all[s.id], func(a, b healedBucket) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.ref, b.ref), cmp.Compare(a.end, b.end))
	})
}

// lost adds the samples that the first pass could not reach.
func (h *shadow) lost(out *Healing) {
	for _, id := range slices.Sorted(maps.Keys(h.unreachable)) {
		c := out.Streams[id]
		c.Unreachable += h.unreachable[id]
		out.Streams[id] = c
	}
}
