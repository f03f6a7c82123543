package main

// The oracle's part for what begins later: streams that a plan adds over a history, experiments and their retirement, heals.

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"

	"tidemark/projections/plan"
)

// modelGeneration is the streams that one plan event has added when there was a history: a fold of their own, as if that plan had been in
// force from an earlier event on, which sees nothing of what was before.
type modelGeneration struct {
	id   int // the plan event
	m    *naive
	kept map[string]bool // experiments that were retired before it was planned, and had something open of its streams
}

// addLater begins a generation with the streams that a plan adds, and gives it the history; false if they join the others.
func (m *naive) addLater(p *plan.Plan, added []plan.Stream) bool {
	if len(added) == 0 || p.FromSeq == 0 || int(p.FromSeq) > m.events || m.maxT == never || len(m.later) >= plan.MaxGenerations {
		return false
	}
	g := &modelGeneration{id: m.events, m: newNaive(), kept: map[string]bool{}}
	own := *p
	own.Streams = added
	g.m.plan = &own
	for _, spec := range added {
		g.m.streams[spec.ID] = &modelStream{spec: spec, coverage: p.Covered(), frontier: never}
	}
	m.later = append(m.later, g)
	g.m.events = int(p.FromSeq) - 1
	for _, e := range m.history[p.FromSeq-1:] {
		g.apply(e)
	}
	return true
}

// apply takes the next event, and returns how many buckets it closed.
func (g *modelGeneration) apply(e told) uint64 {
	at := g.m.events + 1
	switch {
	case (e.plan != nil || e.healed) && at <= g.id:
		// The plan that added the streams was in force from the first event on, and a heal is for the streams that were planned when it
		// came.
		g.m.events++
		g.m.logTime = max(g.m.logTime, e.logTime)
		return 0
	case e.retired != nil:
		g.m.events++
		g.m.logTime = max(g.m.logTime, e.logTime)
		g.retire(e.retired.Experiment)
		return 0
	case e.plan != nil:
		own := *e.plan
		own.Streams = slices.DeleteFunc(slices.Clone(own.Streams), func(s plan.Stream) bool { return g.m.streams[s.ID] == nil })
		e.plan = &own
	case e.expired != nil:
		x := *e.expired
		x.Stream = 0
		for id := range g.m.streams {
			if e.expired.Stream == g.key(id) {
				x.Stream = uint64(id)
			}
		}
		if x.Stream == 0 {
			e.expired, e.tick = nil, false // of somebody else
			break
		}
		e.expired = &x
	}
	return g.m.apply(e).closed
}

// key is the name under which events speak of a stream of the generation.
func (g *modelGeneration) key(id plan.StreamID) uint64 {
	var b []byte
	for _, n := range []uint64{uint64(id), uint64(g.id)} {
		for shift := 56; shift >= 0; shift -= 8 {
			b = append(b, byte(n>>shift))
		}
	}
	return xxh3.Hash(b)
}

// laterWith returns the generation that has a stream of the plan.
func (m *naive) laterWith(id plan.StreamID) *modelGeneration {
	for _, g := range m.later {
		if g.m.streams[id] != nil {
			return g
		}
	}
	return nil
}

// owner returns the model that folds a stream.
func (m *naive) owner(id plan.StreamID) *naive {
	if g := m.laterWith(id); g != nil {
		return g.m
	}
	return m
}

// ofKey returns the stream that events call by a name, and the model that folds it; nil if the plan has none.
func (m *naive) ofKey(key uint64) (*naive, *modelStream) {
	for _, g := range m.later {
		for id, st := range g.m.streams {
			if g.key(id) == key {
				return g.m, st
			}
		}
	}
	return m, m.streams[plan.StreamID(key)]
}

// planned returns all streams of the plan.
func (m *naive) planned() map[plan.StreamID]*modelStream {
	all := map[plan.StreamID]*modelStream{}
	for id, st := range m.streams {
		all[id] = st
	}
	for _, g := range m.later {
		for id, st := range g.m.streams {
			all[id] = st
		}
	}
	return all
}

func (m *naive) takenLater(ls labels.Labels) bool {
	for _, g := range m.later {
		for _, st := range g.m.streams {
			if wants(st, ls) {
				return true
			}
		}
	}
	return false
}

// dropLater forgets the generations that have no stream left in the plan.
func (m *naive) dropLater() {
	m.later = slices.DeleteFunc(m.later, func(g *modelGeneration) bool { return len(g.m.streams) == 0 })
}

// modelExperiment is what is counted of an experiment.
type modelExperiment struct {
	series    map[string]bool
	samples   uint64
	lastWrite int64 // wall time, ms
	lastLog   int64 // log time of the same event, ms
	tied      bool  // two events at that log time have other wall times: each shard has its own last one
	retired   bool
}

func (m *naive) experiment(name string) *modelExperiment {
	x := m.experiments[name]
	if x == nil {
		x = &modelExperiment{series: map[string]bool{}, lastWrite: never, lastLog: never}
		m.experiments[name] = x
	}
	return x
}

// accept counts a sample that was taken.
func (x *modelExperiment) accept(e told, p point1) {
	if math.Float64bits(p.v) != 0x7ff0000000000002 {
		x.samples++
	}
	x.tied = x.lastLog == e.logTime && (x.tied || x.lastWrite != e.wall)
	x.lastWrite, x.lastLog, x.retired = e.wall, e.logTime, false
}

// nextDeadline is the log time at which the next bucket closes by the clock, of those that are open now; else the time it is now.
func (m *naive) nextDeadline(now int64) int64 {
	next := int64(math.MaxInt64)
	for _, s := range m.series {
		for id, mb := range s.members {
			for _, b := range mb.open {
				if at := m.deadline(&m.streams[id].spec, b); at > now {
					next = min(next, at)
				}
			}
		}
	}
	if next == math.MaxInt64 {
		return now
	}
	return next
}

// pending is the number of an experiment's open buckets.
func (m *naive) pending(name string) (n int) {
	for _, s := range m.series {
		if m.taskOf(s.ls) == name {
			for _, mb := range s.members {
				n += len(mb.open)
			}
		}
	}
	return n
}

// allPending is the same over all streams of the plan, but for those of generations that are behind.
func (m *naive) allPending(name string, behind map[int]bool) int {
	n := m.pending(name)
	for _, g := range m.later {
		if !behind[g.id] {
			n += g.m.pending(name)
		}
	}
	return n
}

// isRetired says whether an experiment is retired, as far as those tell that are not behind.
func (m *naive) isRetired(name string, behind map[int]bool) bool {
	return m.experiments[name].retired && !slices.ContainsFunc(m.later, func(g *modelGeneration) bool {
		return g.kept[name] && !behind[g.id]
	})
}

// retire gives up the tails of those series of an experiment that have nothing open. Some may have if whoever retired it knew nothing of
// these streams.
func (g *modelGeneration) retire(name string) {
	delete(g.kept, name)
	for _, s := range g.m.series {
		if g.m.taskOf(s.ls) != name {
			continue
		}
		open := 0
		for _, mb := range s.members {
			open += len(mb.open)
		}
		for _, mb := range s.members {
			if open == 0 {
				mb.gone = max(mb.gone, mb.c)
			}
		}
		g.kept[name] = g.kept[name] || open > 0
	}
}

// retire gives up the tails of an experiment's series.
func (m *naive) retire(name string) {
	m.experiment(name).retired = true
	for _, s := range m.series {
		if m.taskOf(s.ls) != name {
			continue
		}
		for _, mb := range s.members {
			mb.gone = max(mb.gone, mb.c)
		}
	}
}

// retirable says why an experiment must not be retired now.
func (m *naive) retirable(name string, now, after int64) error {
	x := m.experiments[name]
	switch n := m.allPending(name, nil); {
	case x == nil:
		return fmt.Errorf("experiment %s was never seen", name)
	case n > 0:
		return fmt.Errorf("experiment %s has %d open buckets", name, n)
	case x.lastLog != never && now-x.lastLog < after:
		return fmt.Errorf("experiment %s was written to %d ms ago", name, now-x.lastLog)
	case m.isRetired(name, nil):
		return fmt.Errorf("experiment %s is retired already", name)
	}
	return nil
}

// mostSamples is the number of samples up to which a pane keeps them as they are.
const mostSamples = 16

// densest is the number of samples in the fullest bucket that an evaluation overlaps.
func (m *naive) densest(id plan.StreamID, e, r int64, match func(labels.Labels) bool) (most int) {
	for name, s := range m.series {
		if !match(s.ls) {
			continue
		}
		for end, b := range m.published[id][name] {
			if end > e-r && end-m.streams[id].spec.PaneMillis < e {
				most = max(most, len(b.samples))
			}
		}
	}
	return most
}

// heal puts what came too late in its place: behind what is there, in the order in which it came.
func (m *naive) heal() {
	for name, s := range m.series {
		for id, mb := range s.members {
			for end, ps := range mb.refused {
				if x, ok := m.expired[id]; ok && end <= x {
					continue
				}
				if mb.samples[end] == nil {
					mb.samples[end] = map[int64]float64{}
				}
				for _, p := range ps {
					if _, ok := mb.samples[end][p.t]; !ok {
						mb.samples[end][p.t] = p.v
					}
				}
				m.publish(id, name, mb, end)
				m.bucketOf(id, name, end).incomplete = false
			}
			clear(mb.refused)
		}
	}
}
