package pane

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// Experiment is what the fold has counted of one experiment since it was last retired, over all shards, as of one sequence.
type Experiment struct {
	Name              string
	Version           log.Seq // last event that changed any of the following
	Series, Samples   uint64
	Basis             uint64 // as in ExperimentVersion
	Behind            bool   // streams of the plan are still being folded from the log, and are not counted yet
	Buckets           uint64 // published: distinct (stream, shard, end)
	Corrections       uint64 // of its buckets that no compaction has covered
	WorstBucket       uint64 // most such corrections of one bucket
	Pending           int    // open buckets of its series
	OldestPending     int64  // end of the earliest of them, event time in ms; math.MinInt64 if there is none
	LastWrite         int64  // wall time of the event with the last accepted sample, ms; math.MinInt64 before any
	LastWriteLogTime  int64  // log time of that event, ms
	ClosedThrough     int64  // ms; math.MinInt64 if nothing is known to be closed
	Parts             []log.RetiredPart
	Later             []log.RetiredLater
	LastCorrectedAt   log.Seq // last event with a correction that no compaction has covered; 0 if there is none
	shardsWithOpen    int
	leastClosedOfOpen int64
}

// ExperimentVersion says as of what an experiment was counted: counts with the same one are the same.
type ExperimentVersion struct {
	Version log.Seq // last event that changed them
	Basis   uint64  // which later generations were counted; 0: none. It says nothing but whether it is the same.
}

// ExperimentVersions is what is counted, as of one sequence.
type ExperimentVersions struct {
	Seq    log.Seq
	Behind bool                         // as in Experiment
	Of     map[string]ExperimentVersion // by name, of those of which anything was counted since they were last retired
}

// ExperimentVersions returns the versions of all experiments.
func (p *Projection) ExperimentVersions(ctx context.Context) (ExperimentVersions, error) {
	type entry struct {
		name       string
		version    log.Seq
		generation log.Seq
	}
	var parts [Shards][]entry
	var present presence
	seq, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		present.note(s)
		// The shards of one number are one worker's.
		out := slices.Grow(parts[s.id], len(s.stats))
		for name, x := range s.stats {
			out = append(out, entry{name, x.version, s.generation})
		}
		parts[s.id] = out
	})
	if err != nil {
		return ExperimentVersions{}, err
	}
	most := 0
	for _, part := range parts {
		most += len(part)
	}
	out := ExperimentVersions{Seq: seq, Behind: present.behind(), Of: make(map[string]ExperimentVersion, most)}
	for _, part := range parts {
		for _, e := range part {
			v := out.Of[e.name]
			out.Of[e.name] = ExperimentVersion{Version: max(v.Version, e.version), Basis: v.Basis + basisOf(e.generation)}
		}
	}
	return out, nil
}

// basisOf is what one shard that counts an experiment adds to the basis of the sum. An unchanged version has the same shards of the
// generations that were there already, so one that is handed over only ever adds.
func basisOf(generation log.Seq) uint64 { return uint64(generation) }

// presence is which generations a cut has met. Shard 0 of each tells.
type presence struct {
	planned []log.Seq // that have streams in the plan
	met     []log.Seq
}

func (p *presence) note(s *Shard) {
	if s.id != 0 {
		return
	}
	p.met = append(p.met, s.generation)
	for i := range s.generations {
		if s.generations[i].until == 0 {
			p.planned = append(p.planned, s.generations[i].id)
		}
	}
}

// behind says whether a planned generation is not among those that were met: it is still being folded in the background.
func (p *presence) behind() bool {
	return slices.ContainsFunc(p.planned, func(id log.Seq) bool { return !slices.Contains(p.met, id) })
}

// Experiment returns what is counted of one experiment; false if there is nothing.
func (p *Projection) Experiment(ctx context.Context, name string) (log.Seq, Experiment, bool, error) {
	var mu sync.Mutex
	found := false
	out := Experiment{
		Name: name, OldestPending: never, LastWrite: never, LastWriteLogTime: never, ClosedThrough: never, leastClosedOfOpen: math.MaxInt64,
	}
	var present presence
	seq, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		present.note(s)
		if x := s.stats[name]; x != nil {
			mu.Lock()
			defer mu.Unlock()
			found = true
			s.addTo(&out, x)
		}
	})
	if err != nil {
		return 0, Experiment{}, false, err
	}
	if out.shardsWithOpen > 0 {
		out.ClosedThrough = out.leastClosedOfOpen
	}
	out.Behind = present.behind()
	slices.SortFunc(out.Parts, func(a, b log.RetiredPart) int { return cmp.Compare(a.Shard, b.Shard) })
	slices.SortFunc(out.Later, func(a, b log.RetiredLater) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Shard, b.Shard))
	})
	return seq, out, found, nil
}

// addTo adds what the shard has counted.
func (s *Shard) addTo(out *Experiment, x *experiment) {
	out.Version, out.Basis = max(out.Version, x.version), out.Basis+basisOf(s.generation)
	part := log.RetiredPart{Shard: uint32(s.id), Series: x.series, Samples: x.samples, Buckets: x.buckets()}
	if s.generation == 0 {
		out.Parts = append(out.Parts, part)
	} else {
		out.Later = append(out.Later, log.RetiredLater{Generation: s.generation, Shard: uint32(s.id), Buckets: part.Buckets})
	}
	out.Series, out.Samples, out.Buckets = out.Series+part.Series, out.Samples+part.Samples, out.Buckets+part.Buckets
	all, worst := x.outstanding()
	out.Corrections, out.WorstBucket = out.Corrections+all, max(out.WorstBucket, worst)
	for i := range x.corrections {
		c := &x.corrections[i]
		out.LastCorrectedAt = max(out.LastCorrectedAt, c.at[len(c.at)-1].seq)
	}
	if x.lastLog > out.LastWriteLogTime || x.lastLog == out.LastWriteLogTime && x.lastWall > out.LastWrite {
		out.LastWrite, out.LastWriteLogTime = x.lastWall, x.lastLog
	}
	out.ClosedThrough = max(out.ClosedThrough, x.closed)
	out.Pending += x.pending
	if x.pending == 0 {
		return
	}
	out.shardsWithOpen++
	s.eachOpen(x, func(m *member) {
		if e := m.open[0].end; out.OldestPending == never || e < out.OldestPending {
			out.OldestPending = e
		}
		closed := int64(never)
		if m.c != never {
			closed = m.stream.floorEnd(m.c)
		}
		out.leastClosedOfOpen = min(out.leastClosedOfOpen, closed)
	})
}

// eachOpen visits the places of an experiment's series in streams in which they have an open bucket.
func (s *Shard) eachOpen(x *experiment, visit func(*member)) {
	for ref := range x.open {
		sr := &s.series[s.slots.get(ref)-1]
		for i := range sr.members {
			if m := &sr.members[i]; len(m.open) > 0 {
				visit(m)
			}
		}
	}
}

// ExperimentLoad is what maintenance may have to do for an experiment.
type ExperimentLoad struct {
	Name        string
	Corrections uint64 // as in Experiment
	WorstBucket uint64
	Pending     int
	// StuckAt is the log time from which the earliest of its open buckets has been untouched for twice the time after which it
	// should have closed, ms; math.MaxInt64 if none is open.
	StuckAt int64
}

// ExperimentLoads returns, as of one sequence and by name, the experiments that have an open bucket or a correction that no
// compaction has covered. The shards keep them apart, so the rest costs nothing.
func (p *Projection) ExperimentLoads(ctx context.Context) (log.Seq, []ExperimentLoad, error) {
	var mu sync.Mutex
	loads := make(map[string]*ExperimentLoad)
	of := func(name string) *ExperimentLoad {
		if loads[name] == nil {
			loads[name] = &ExperimentLoad{Name: name, StuckAt: math.MaxInt64}
		}
		return loads[name]
	}
	seq, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		mu.Lock()
		defer mu.Unlock()
		for name, x := range s.corrections {
			all, worst := x.outstanding()
			l := of(name)
			l.Corrections, l.WorstBucket = l.Corrections+all, max(l.WorstBucket, worst)
		}
		for name, x := range s.pending {
			l := of(name)
			l.Pending += x.pending
			s.eachOpen(x, func(m *member) {
				for i := range m.open {
					l.StuckAt = min(l.StuckAt, s.stuckAt(m, &m.open[i]))
				}
			})
		}
	})
	if err != nil {
		return 0, nil, err
	}
	out := make([]ExperimentLoad, 0, len(loads))
	for _, name := range slices.Sorted(maps.Keys(loads)) {
		out = append(out, *loads[name])
	}
	return seq, out, nil
}

// stuckAt is the log time at which an open bucket will have been untouched for twice as long as it may be.
func (s *Shard) stuckAt(m *member, b *openBucket) int64 {
	idle := satAdd(satAdd(max(m.stream.width, s.plan.IdleTimeoutMillis), m.stream.spec.LatenessMillis), s.plan.IdleGraceMillis)
	return satAdd(max(b.last, s.startedAt), satAdd(idle, idle))
}

// CorrectedSpot is where pieces lie that hold corrections of an experiment's buckets.
type CorrectedSpot struct {
	Key   bucket.Key
	Shard int
	Last  log.Seq // last event with a correction there
}

// CorrectedSpots returns, as of one sequence, where the corrections of an experiment lie that no compaction has covered, by
// stream, block and shard.
func (p *Projection) CorrectedSpots(ctx context.Context, name string) (log.Seq, []CorrectedSpot, error) {
	var mu sync.Mutex
	var out []CorrectedSpot
	seq, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		x := s.corrections[name]
		if x == nil {
			return
		}
		last := make(map[bucket.Key]log.Seq)
		for i := range x.corrections {
			c := &x.corrections[i]
			j, ok := slices.BinarySearchFunc(x.published, publishedEnds{stream: c.stream}, func(a, b publishedEnds) int { return cmp.Compare(a.stream, b.stream) })
			if !ok {
				continue // what retention has removed
			}
			block, _ := x.published[j].grid.Locate(c.end)
			k := bucket.Key{Stream: uint64(c.stream), Block: block}
			last[k] = max(last[k], c.at[len(c.at)-1].seq)
		}
		mu.Lock()
		defer mu.Unlock()
		for k, seq := range last {
			out = append(out, CorrectedSpot{Key: k, Shard: s.id, Last: seq})
		}
	})
	if err != nil {
		return 0, nil, err
	}
	slices.SortFunc(out, func(a, b CorrectedSpot) int {
		return cmp.Or(cmp.Compare(a.Key.Stream, b.Key.Stream), cmp.Compare(a.Key.Block, b.Key.Block), cmp.Compare(a.Shard, b.Shard))
	})
	return seq, out, nil
}
