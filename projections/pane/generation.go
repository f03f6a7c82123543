package pane

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// maxRetired bounds the generations that are remembered after their last stream was removed. What the oldest have published is
// dropped beyond it.
const maxRetired = 256

// generation is a set of streams that one plan event has added when there was a history to fold. They are folded apart from all
// others, from an event before the plan on, by shards of their own; so what they hold does not depend on when that was done. The
// shards of the first generation, which was there from the start, keep the list of the others: it is part of their state.
type generation struct {
	id       log.Seq // the plan event that added it
	from     log.Seq // the first event that it folds
	coverage int64   // coverage start of its streams, ms
	handed   bool    // a plan event said that the live fold had taken it over
	until    log.Seq // the plan event that removed its last stream, if it was taken over before; 0: it has streams in the plan
	streams  []generationStream
}

// generationStream is a stream that a generation began with.
type generationStream struct {
	id        plan.StreamID
	grid      bucket.Grid
	retention int64   // ms, as last planned
	removed   log.Seq // the plan event that removed it; 0: it is in the plan
}

func (g *generation) key(id plan.StreamID) uint64 { return streamKey(id, g.id) }

// has says whether the generation began with the stream.
func (g *generation) has(id plan.StreamID) bool {
	return slices.ContainsFunc(g.streams, func(st generationStream) bool { return st.id == id })
}

// streamKey returns under which name the buckets of a stream are stored: its ID, or in a later generation a hash of the ID and the
// generation, so that what a stream of the same ID has published before is not mixed up with it.
func streamKey(id plan.StreamID, generation log.Seq) uint64 {
	if generation == 0 {
		return uint64(id)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(id))
	binary.BigEndian.PutUint64(b[8:], uint64(generation))
	return xxh3.Hash(b[:])
}

// planned returns the generation whose stream the plan in force means; nil if it is none of the later ones.
func (s *Shard) planned(id plan.StreamID) *generation {
	for i := range s.generations {
		for j := range s.generations[i].streams {
			if st := &s.generations[i].streams[j]; st.id == id && st.removed == 0 {
				return &s.generations[i]
			}
		}
	}
	return nil
}

// generationByID returns a later generation; nil if it is not known, or no longer.
func (s *Shard) generationByID(id log.Seq) *generation {
	for i := range s.generations {
		if s.generations[i].id == id {
			return &s.generations[i]
		}
	}
	return nil
}

// releaseAll gives up all series of a shard that has no streams left.
func (s *Shard) releaseAll() {
	s.slots.each(func(ref log.SeriesRef, slot int32) int32 {
		s.evicted = append(s.evicted, bucket.Evicted{Generation: uint64(s.generation), Ref: uint64(ref), Seq: uint64(s.seq)})
		return 0
	})
	s.series, s.free, s.timers, s.idle = nil, nil, nil, nil
}

// ended returns what stays of a shard that has no streams left.
func (s *Shard) ended() *Shard {
	e := NewShard(s.id, s.labels)
	e.generation, e.seq, e.plan = s.generation, s.seq, s.plan
	return e
}

// newGenerationShard returns the state of one shard of a generation before its first event. p is the plan that added it.
func newGenerationShard(id int, ls LabelSource, g *generation, p *plan.Plan) (*Shard, error) {
	s := NewShard(id, ls)
	s.generation, s.seq, s.plan = g.id, g.from-1, p
	for _, spec := range p.Streams {
		if !g.has(spec.ID) {
			continue
		}
		st, err := newStream(spec, g.coverage)
		if err != nil {
			return nil, err
		}
		st.key = g.key(spec.ID)
		s.streams = append(s.streams, st)
	}
	s.track()
	return s, nil
}

// beginStreams puts the streams that are new with a plan into a generation of their own, if the log has a history of them and there is
// room for one more; if not they join the first, and are covered from here on.
func (s *Shard) beginStreams(p *plan.Plan, added []plan.Stream) (joined []*stream, err error) {
	history := p.FromSeq > 0 && log.Seq(p.FromSeq) <= s.seq && s.maxT > math.MinInt64
	inForce := 0
	for i := range s.generations {
		if s.generations[i].until == 0 {
			inForce++
		}
	}
	if len(added) == 0 || !history || inForce >= plan.MaxGenerations {
		for _, spec := range added {
			st, err := newStream(spec, s.maxT)
			if err != nil {
				return nil, err
			}
			st.joined = s.seq
			s.join(st)
			joined = append(joined, st)
		}
		return joined, nil
	}
	g := generation{id: s.seq, from: log.Seq(p.FromSeq), coverage: p.Covered()}
	for i := range added {
		spec := &added[i]
		g.streams = append(g.streams, generationStream{
			id: spec.ID, grid: bucket.Grid{Origin: spec.OriginMillis, Width: spec.PaneMillis}, retention: spec.RetentionMillis,
		})
	}
	s.generations = append(s.generations, g)
	return nil, nil
}

// endStreams takes the streams of later generations that a plan no longer has out of it. Those of a generation that was taken over
// keep what they published, as all streams do; one that was still being folded goes as if it had never been.
func (s *Shard) endStreams(p *plan.Plan) {
	retention := streamsOf(p)
	counted := false // something that a later generation counts may go
	for i := range s.generations {
		g := &s.generations[i]
		if slices.Contains(p.HandedOver, uint64(g.id)) {
			g.handed = true
		}
		left := false
		for j := range g.streams {
			st := &g.streams[j]
			if st.removed != 0 {
				continue
			}
			if r, ok := retention[st.id]; ok {
				st.retention, left = r, true
				continue
			}
			st.removed, counted = s.seq, true
			if !g.handed {
				s.vanish(g, st)
				continue
			}
			if s.former == nil {
				s.former = make(map[plan.StreamID]former)
			}
			s.former[plan.StreamID(g.key(st.id))] = former{grid: st.grid, retention: st.retention, evictedThrough: math.MinInt64}
		}
		if !left && g.until == 0 {
			g.until = s.seq
		}
	}
	if counted {
		s.changedAll()
	}
	s.generations = slices.DeleteFunc(s.generations, func(g generation) bool { return g.until != 0 && !g.handed })
	retired := 0
	for i := len(s.generations) - 1; i >= 0; i-- {
		g := &s.generations[i]
		if g.until == 0 {
			continue
		}
		if retired++; retired > maxRetired {
			for j := range g.streams {
				s.vanish(g, &g.streams[j])
			}
			s.generations = slices.Delete(s.generations, i, i+1)
		}
	}
}

// vanish makes everything that a stream of a generation has published or will go, as retention does (P8).
func (s *Shard) vanish(g *generation, st *generationStream) {
	id := plan.StreamID(g.key(st.id))
	delete(s.former, id)
	if s.expired == nil {
		s.expired = make(map[plan.StreamID]expiry)
	}
	const far = 2 * plan.MaxTimeMillis
	s.expired[id] = expiry{grid: st.grid, through: far - floorMod(far-st.grid.Origin, st.grid.Width), seq: s.seq}
}

func floorMod(a, n int64) int64 {
	m := a % n
	if m < 0 {
		m += n
	}
	return m
}

// streamsOf returns the retention of each stream of a plan.
func streamsOf(p *plan.Plan) map[plan.StreamID]int64 {
	out := make(map[plan.StreamID]int64, len(p.Streams))
	for i := range p.Streams {
		out[p.Streams[i].ID] = p.Streams[i].RetentionMillis
	}
	return out
}

// replanGeneration puts a plan in force in a shard of a later generation: it adds nothing there.
func (s *Shard) replanGeneration(b *log.Plan) {
	if s.seq <= s.generation {
		// The plan that added it was in force from its first event on. What it has counted by now is counted from now on.
		if s.seq == s.generation {
			s.changedAll()
		}
		return
	}
	p, err := s.plans.decode(b.Spec)
	if err != nil {
		s.corrupt = fmt.Errorf("pane: plan at %d: %w", s.seq, err)
		return
	}
	s.settle()
	retention := streamsOf(p)
	var kept []*stream
	gone := make(map[plan.StreamID]*stream)
	for _, st := range s.streams {
		if r, ok := retention[st.spec.ID]; ok {
			st.spec.RetentionMillis = r
			kept = append(kept, st)
		} else {
			gone[st.spec.ID] = st
		}
	}
	s.adopt(p, kept, nil, gone)
}

// lookElsewhere makes the matchers of the streams that later generations take.
func (s *Shard) lookElsewhere() error {
	s.elsewhere = nil
	if len(s.generations) == 0 {
		return nil
	}
	for _, spec := range s.plan.Streams {
		if s.planned(spec.ID) == nil {
			continue
		}
		st, err := newStream(spec, 0)
		if err != nil {
			return err
		}
		s.elsewhere = append(s.elsewhere, st)
	}
	return nil
}

// countUnplanned counts samples that no stream takes, in the first generation's shard alone. It returns how many samples there are,
// stale markers aside.
func (s *Shard) countUnplanned(ref log.SeriesRef, vs []float64) uint64 {
	n := uint64(0)
	for _, v := range vs {
		if !isStale(v) {
			n++
		}
	}
	if s.generation != 0 {
		return n
	}
	if len(s.elsewhere) > 0 {
		ls, ok := s.labels.Labels(ref)
		if !ok || slices.ContainsFunc(s.elsewhere, func(st *stream) bool { return st.wants(ls) }) {
			return n
		}
	}
	s.unplanned += n
	return n
}

// encodeGenerations appends the later generations, by their order.
func (s *Shard) encodeGenerations(e *encoder) {
	e.u(uint64(len(s.generations)))
	for i := range s.generations {
		g := &s.generations[i]
		handed := uint64(0)
		if g.handed {
			handed = 1
		}
		e.u(uint64(g.id))
		e.u(uint64(g.from))
		e.v(g.coverage)
		e.u(handed)
		e.u(uint64(g.until))
		e.u(uint64(len(g.streams)))
		for _, st := range g.streams {
			e.u(uint64(st.id))
			e.v(st.grid.Origin)
			e.v(st.grid.Width)
			e.v(st.retention)
			e.u(uint64(st.removed))
		}
	}
}

func (s *Shard) decodeGenerations(d *decoder) {
	for range d.count(6) {
		g := generation{id: log.Seq(d.u()), from: log.Seq(d.u()), coverage: d.v(), handed: d.u() != 0, until: log.Seq(d.u())}
		for range d.count(5) {
			st := generationStream{id: plan.StreamID(d.u()), grid: bucket.Grid{Origin: d.v(), Width: d.v()}, retention: d.v(), removed: log.Seq(d.u())}
			if st.grid.Width <= 0 {
				d.fail("grid without width")
				return
			}
			g.streams = append(g.streams, st)
		}
		if d.err == nil && (g.from == 0 || g.from > g.id || g.id > s.seq) {
			d.fail("generation that does not fit the log")
			return
		}
		s.generations = append(s.generations, g)
	}
}
