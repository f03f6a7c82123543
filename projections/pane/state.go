package pane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"tidemark/log"
)

// A shard's state, version 4, is a sequence of varints (v: zigzag, u: unsigned), in this order:
//
//	version:u = 4, seq:u, log time:v, started at:v, largest sample time:v, proven:v, sealed:u, drain wall time:v, unplanned:u,
//	  relabelled:u
//	experiments with barriers: count:u, then each by name: length:u, name, proven:v
//	plan: length:u, canonical JSON (length 0: none yet)
//	generation of the streams:u, 0 the first
//	later generations, in a shard of the first, by id: count:u, then each: id:u, from:u, coverage:v, handed over:u, until:u, streams: count:u,
//	  then each: stream:u, origin:v, width:v, retention:v, removed:u
//	per stream of the plan, in its order: 1 if the shard folds it (0: nothing follows), coverage:v, joined:u, evicted through:v, maxC:v,
//	  nine counters:u
//	unwanted series: marks aged at:v, those named since: count:u, then ref delta:u each; the others likewise
//	series: count:u, then each by reference:
//	  ref delta:u, last applied:v, last named:v
//	  sealed samples: count:u, and if there are any the sample before the first: time:v, distance:v, bits of its value:8, little-endian,
//	    then bytes:u, and these (see sealed)
//	  samples: count:u, first time:v, then time delta:u each; values, 8 bytes little-endian each
//	  histogram times: count:u, first:v, then delta:u
//	  members: count:u, then each: stream's position:u, maxF:v, c:v, tail floor:v, first end:v, open buckets: count:u, then end:v, first:v, last:v
//	expired streams: count:u, then each by stream: stream:u, origin:v, width:v, through:v, seq:u
//	former streams: count:u, then each by stream: stream:u, origin:v, width:v, retention:v, evicted through:v
//	per stream that the shard folds, in the plan's order: tracked since:u, plus 1 (0: not tracked, and nothing follows), changed ends: count:u,
//	  first:v, then delta:u; then for each its seq:u
//
// The bytes are a function of the events, but for the changes that were forgotten because they had been taken note of, and for
// how soon after it was due a series was evicted, which is not the same after a restart.
const stateVersion = 4

// ErrCorruptState is wrapped by every error about a shard state that does not decode.
var ErrCorruptState = errors.New("pane: corrupt shard state")

// Encode returns the shard's state, without what the table holds.
func (s *Shard) Encode() []byte { return s.AppendState(nil) }

// AppendState appends the shard's state, without what the table holds. Where b has room it allocates next to nothing, whatever the number
// of series: whoever allocates is made to help the garbage collector, for longer than the encoding takes.
func (s *Shard) AppendState(b []byte) []byte {
	e := encoder{b: b}
	e.u(stateVersion)
	e.u(uint64(s.seq))
	e.v(s.logTime)
	e.v(s.startedAt)
	e.v(s.maxT)
	e.v(s.proven)
	sealed := uint64(0)
	if s.sealed {
		sealed = 1
	}
	e.u(sealed)
	e.v(s.drainWall)
	e.u(s.unplanned)
	relabelled := uint64(0)
	if s.relabelled {
		relabelled = 1
	}
	e.u(relabelled)
	e.u(uint64(len(s.experiments)))
	for _, name := range slices.Sorted(maps.Keys(s.experiments)) {
		e.u(uint64(len(name)))
		e.b = append(e.b, name...)
		e.v(s.experiments[name])
	}
	if len(s.streams) == 0 && s.plan.Format == 0 {
		e.u(0)
	} else {
		spec := s.plans.encode(s.plan)
		e.u(uint64(len(spec)))
		e.b = append(e.b, spec...)
	}
	e.u(uint64(s.generation))
	s.encodeGenerations(&e)
	position := make(map[*stream]uint64, len(s.streams))
	next := 0
	for _, spec := range s.plan.Streams {
		if next == len(s.streams) || s.streams[next].spec.ID != spec.ID {
			e.u(0)
			continue
		}
		st := s.streams[next]
		position[st] = uint64(next)
		next++
		e.u(1)
		e.v(st.coverage)
		e.u(uint64(st.joined))
		e.v(st.evictedThrough)
		e.v(st.maxC)
		for _, c := range st.counts.fields() {
			e.u(*c)
		}
	}
	s.encodeUnwanted(&e)
	e.u(uint64(s.resident()))
	prev := log.SeriesRef(0)
	s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
		if slot > 0 {
			e.u(uint64(ref - prev))
			prev = ref
			e.series(&s.series[slot-1], position)
		}
		return slot
	})
	s.encodeExpired(&e)
	s.encodeTracks(&e)
	return e.b
}

// fields lists the counters in the order of their encoding.
func (c *Counts) fields() [9]*uint64 {
	return [9]*uint64{
		&c.Routed, &c.Applied, &c.Duplicate, &c.Conflict, &c.LateDropped, &c.LateUncorrectable, &c.Corrected, &c.Stale, &c.Closed,
	}
}

// resident returns the number of series that the shard keeps.
func (s *Shard) resident() int { return len(s.series) - len(s.free) }

// unwantedRefs yields the series that no stream takes, increasing.
func (s *Shard) unwantedRefs() iter.Seq[log.SeriesRef] {
	return func(yield func(log.SeriesRef) bool) {
		more := true
		s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
			if slot < 0 && more {
				more = yield(ref)
			}
			return slot
		})
	}
}

func (s *Shard) encodeUnwanted(e *encoder) {
	e.v(s.unwantedSince)
	for _, age := range [...]int32{unwanted, unwantedOld} {
		var refs []log.SeriesRef
		s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
			if slot == age {
				refs = append(refs, ref)
			}
			return slot
		})
		e.u(uint64(len(refs)))
		prev := log.SeriesRef(0)
		for _, r := range refs {
			e.u(uint64(r - prev))
			prev = r
		}
	}
}

// encoder appends the parts of a state.
type encoder struct{ b []byte }

func (e *encoder) u(v uint64) { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) v(v int64)  { e.b = binary.AppendVarint(e.b, v) }

// increasing appends strictly increasing times.
func (e *encoder) increasing(ts []int64) {
	e.u(uint64(len(ts)))
	for i, t := range ts {
		if i == 0 {
			e.v(t)
			continue
		}
		e.u(uint64(t - ts[i-1]))
	}
}

func (e *encoder) series(sr *seriesState, position map[*stream]uint64) {
	e.v(sr.lastApplied)
	e.v(sr.lastNamed)
	e.run(&sr.raw)
	e.increasing(sr.histograms.times())
	e.u(uint64(len(sr.members)))
	for i := range sr.members {
		m := &sr.members[i]
		e.u(position[m.stream])
		e.v(m.maxF)
		e.v(m.c)
		if plantedTailReturns {
			m.tailFloor = math.MinInt64
		}
		e.v(m.tailFloor)
		e.v(m.first)
		e.u(uint64(len(m.open)))
		for _, b := range m.open {
			e.v(b.end)
			e.v(b.first)
			e.v(b.last)
		}
	}
}

// DecodeShard restores a shard from Encode's bytes.
func DecodeShard(id int, ls LabelSource, b []byte) (*Shard, error) {
	return decodeShard(id, ls, b, nil)
}

func decodeShard(id int, ls LabelSource, b []byte, plans *planCache) (*Shard, error) {
	s := NewShard(id, ls)
	s.plans = plans
	d := decoder{b: b}
	if v := d.u(); d.err == nil && v != stateVersion {
		return nil, fmt.Errorf("%w: version %d", ErrCorruptState, v)
	}
	s.seq = log.Seq(d.u())
	s.logTime = d.v()
	s.startedAt = d.v()
	s.maxT = d.v()
	s.proven = d.v()
	s.sealed = d.u() != 0
	s.drainWall = d.v()
	s.unplanned = d.u()
	s.relabelled = d.u() != 0
	s.decodeExperiments(&d)
	if n := d.count(1); n > 0 {
		p, err := s.plans.decode(d.take(n))
		if d.err == nil && err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorruptState, err)
		}
		if d.err == nil {
			s.plan = p
		}
	}
	s.generation = log.Seq(d.u())
	s.decodeGenerations(&d)
	if err := s.decodeStreams(&d); err != nil {
		return nil, err
	}
	s.decodeUnwanted(&d)
	n := d.count(5)
	s.series = make([]seriesState, 0, n)
	ref := uint64(0)
	for range n {
		ref += d.u()
		d.series(s, ref)
		if d.err != nil {
			break
		}
	}
	s.decodeExpired(&d)
	s.decodeTracks(&d)
	if d.err == nil && len(d.b) != 0 {
		d.fail("bytes behind the last stream")
	}
	if d.err != nil {
		return nil, d.err
	}
	s.rearm()
	return s, nil
}

func (s *Shard) decodeExperiments(d *decoder) {
	last := ""
	for i := range d.count(2) {
		name := string(d.take(d.count(1)))
		if i > 0 && name <= last {
			d.fail("experiments out of order")
			return
		}
		last = name
		if s.experiments == nil {
			s.experiments = make(map[string]int64)
		}
		s.experiments[name] = d.v()
	}
}

func (s *Shard) decodeStreams(d *decoder) error {
	for _, spec := range s.plan.Streams {
		if d.u() == 0 {
			continue
		}
		st, err := newStream(spec, d.v())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorruptState, err)
		}
		st.key = streamKey(spec.ID, s.generation)
		st.joined = log.Seq(d.u())
		st.evictedThrough = d.v()
		st.maxC = d.v()
		for _, c := range st.counts.fields() {
			*c = d.u()
		}
		s.streams = append(s.streams, st)
	}
	if err := s.lookElsewhere(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorruptState, err)
	}
	return nil
}

// setSlot is for references that come from bytes: those of another shard, or beyond any that a log can hold, fail.
func (s *Shard) setSlot(d *decoder, ref uint64, v int32) {
	const maxRef = 1 << 34 // the pages' pointers for more would not fit in memory
	switch {
	case d.err != nil:
	case ref == 0 || ref > maxRef || int(ref%Shards) != s.id:
		d.fail("series of another shard")
	case s.slots.get(log.SeriesRef(ref)) != 0:
		d.fail("series twice")
	default:
		s.slots.set(log.SeriesRef(ref), v)
	}
}

func (s *Shard) decodeUnwanted(d *decoder) {
	s.unwantedSince = d.v()
	for _, age := range [...]int32{unwanted, unwantedOld} {
		ref := uint64(0)
		for range d.count(1) {
			ref += d.u()
			if s.setSlot(d, ref, age); d.err != nil {
				return
			}
			if _, ok := s.labels.Labels(log.SeriesRef(ref)); !ok {
				d.fail("series that no event defined")
				return
			}
		}
	}
}

// decoder takes the parts of a state. The first fault sticks, and everything after it reads as zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s, %d bytes left", ErrCorruptState, what, len(d.b))
	}
	d.b = nil
}

func (d *decoder) u() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("cut short")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) v() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("cut short")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a count of things that take at least size bytes each, so that nothing is allocated for what cannot be there.
func (d *decoder) count(size int) int {
	n := d.u()
	if n > uint64(len(d.b)/size) {
		d.fail("count beyond the bytes that are left")
		return 0
	}
	return int(n)
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail("cut short")
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) increasing(n int) []int64 {
	if n == 0 {
		return nil
	}
	ts := make([]int64, n)
	for i := range ts {
		if i == 0 {
			ts[0] = d.v()
			continue
		}
		ts[i] = ts[i-1] + int64(d.u())
		if ts[i] <= ts[i-1] {
			d.fail("times out of order")
			return nil
		}
	}
	return ts
}

func (d *decoder) series(s *Shard, ref uint64) {
	sr := seriesState{ref: log.SeriesRef(ref), lastApplied: d.v(), lastNamed: d.v()}
	s.setSlot(d, ref, int32(len(s.series)+1))
	sr.raw = d.run()
	sr.histograms = newHistogramTimes(d.increasing(d.count(1)))
	for range d.count(6) {
		p := d.u()
		if p >= uint64(len(s.streams)) {
			d.fail("unknown stream")
			return
		}
		m := member{stream: s.streams[p], maxF: d.v(), c: d.v(), tailFloor: d.v(), first: d.v()}
		for range d.count(3) {
			m.open = append(m.open, openBucket{end: d.v(), first: d.v(), last: d.v()})
		}
		m.stream.openN += len(m.open)
		m.stream.seriesN++
		sr.members = append(sr.members, m)
	}
	ls, ok := s.labels.Labels(sr.ref)
	if d.err == nil && !ok {
		d.fail("series that no event defined")
	}
	if d.err == nil {
		sr.experiment = s.experimentOf(ls)
		s.series = append(s.series, sr)
	}
}
