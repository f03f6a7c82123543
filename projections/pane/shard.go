package pane

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// data path 4 of 6: fold into panes.

// Shards is the number of shards. It is part of the format of checkpoints and pieces.
const Shards = 64

// ShardOf returns the shard of a series.
func ShardOf(ref log.SeriesRef) int { return int(ref % Shards) }

// Unlabelled is the experiment of the series without the experiment label.
const Unlabelled = "_unlabelled"

// ShardOfExperiment returns the shard that keeps what barriers proved for one experiment.
func ShardOfExperiment(name string) int { return int(xxh3.HashString(name) % Shards) }

// LabelSource knows the label set of every series that an event names by the time the event is applied.
type LabelSource interface {
	Labels(ref log.SeriesRef) (labels.Labels, bool)
}

// ErrUnsupportedEvent is returned for events that this version does not fold. It is never skipped.
var ErrUnsupportedEvent = errors.New("pane: event is not supported")

// unwanted marks a series that no stream takes, and unwantedOld one that was not named since the marks last grew old.
const (
	unwanted    = -1
	unwantedOld = -2
)

// slot tables are indexed by ref / Shards, in pages.
const slotPage = 256

// Shard is the fold of one shard. It is not safe for concurrent use.
type Shard struct {
	id     int
	labels LabelSource

	seq       log.Seq // last event applied
	logTime   int64   // of that event
	startedAt int64   // log time of the last start event: ages count from it
	maxT      int64   // largest sample time in any event so far, of any series; MinInt64 before any
	proven    int64   // largest barrier, clamped; MinInt64 before any
	sealed    bool    // drained, until the next process start
	drainWall int64   // wall time of the drain that sealed
	// What barriers for one experiment proved, by experiment: those that ShardOfExperiment gives to this shard. Clamped like proven.
	experiments map[string]int64
	unplanned   uint64 // samples that no stream takes, stale markers aside

	stats       map[string]*experiment        // what is counted of each experiment, by name
	pending     map[string]*experiment        // those with an open bucket
	corrections map[string]*experiment        // those with a correction that no compaction has covered
	gone        map[string]log.Seq            // dropped by the event, and still in the last checkpoint
	drops       int                           // experiments dropped since the maps above were made
	inUse       *inUse                        // the names of stats, shared with the other shards; may be nil
	rowsAt      log.Seq                       // what was counted up to here stands in rows of the last checkpoint
	unwanted    map[log.SeriesRef]*experiment // of series that no stream takes, as far as they have come up; not part of the state

	plan    *plan.Plan
	plans   *planCache // shared with the other shards; may be nil
	streams []*stream  // those of the plan that this shard folds, in the plan's order
	// The generation that the streams are of, 0 for the first; and in a shard of the first the later ones, by their order, and
	// their streams for what they take.
	generation  log.Seq
	generations []generation
	elsewhere   []*stream
	expired     map[plan.StreamID]expiry
	former      map[plan.StreamID]former // streams that the plan had once

	slots   slotTable
	series  []seriesState // by slot; ref 0 where there is none
	free    []int32       // places in series
	timers  timerHeap
	idle    timerHeap // by when a series may be due for eviction; never late, maybe early
	table   *bucket.Table
	corrupt error // set once; every later Apply returns it

	unwantedSince int64 // log time at which the marks of unwanted series last grew old
	relabelled    bool  // the experiment label has changed: the groups of evicted series do not say which experiment they were of

	evicted   []bucket.Evicted                  // since whoever runs the fold last took them
	returning map[log.SeriesRef]*bucket.Evicted // records of evicted series that the event at hand names; filled before it is applied

	corrected []correction // scratch of applyRun
	evicts    bool         // the event at hand is the first in a span of evictEvery

	shadow *shadow // of a shard that only looks for late samples; else nil
}

// NewShard returns the state before the first event.
func NewShard(id int, ls LabelSource) *Shard {
	return &Shard{
		id: id, labels: ls, table: bucket.NewTable(),
		stats: make(map[string]*experiment), pending: make(map[string]*experiment), corrections: make(map[string]*experiment),
		logTime: math.MinInt64, startedAt: math.MinInt64, maxT: math.MinInt64, proven: math.MinInt64,
		plan: &plan.Plan{}, slots: slotTable{shard: id}, unwantedSince: math.MinInt64,
	}
}

// begin takes the event's place in the order; false if the shard has the event already.
func (s *Shard) begin(ev *log.Event) bool {
	if ev.Seq <= s.seq {
		return false
	}
	if ev.Seq != s.seq+1 {
		s.corrupt = fmt.Errorf("pane: shard %d at %d was given event %d", s.id, s.seq, ev.Seq)
		return false
	}
	before := s.logTime
	s.seq, s.logTime = ev.Seq, max(s.logTime, ev.LogTime)
	s.evicts = before/evictEvery != s.logTime/evictEvery
	return true
}

// group is the shards that one worker owns, by their number; nil where a shard is another's.
type group [Shards]*Shard

// apply folds one event into every shard of the group, with one pass over the event's runs. A write that repeats an earlier one
// only counts; healing is what a heal event changes. It returns the number of buckets that a barrier, a drain or a tick closed, and the error that stopped a shard,
// if any: a stopped shard applies nothing more.
func (g *group) apply(ev *log.Event, repeats bool, healing *Healing) (closed uint64, err error) {
	var taking group // those that do not have the event yet
	for i, s := range g {
		switch {
		case s == nil:
		case s.corrupt != nil:
			return 0, s.corrupt
		case s.begin(ev):
			taking[i] = s
		}
	}
	if w, ok := ev.Body.(*log.Write); ok {
		taking.write(ev, w, repeats)
	}
	for _, s := range taking {
		if s != nil {
			closed += s.control(ev, healing)
			s.evictIdle()
		}
	}
	for _, s := range g {
		if s != nil && s.corrupt != nil {
			return closed, s.corrupt
		}
	}
	return closed, nil
}

// write applies the runs of a write event.
func (g *group) write(ev *log.Event, w *log.Write, repeats bool) {
	if repeats {
		g.countRepeated(w)
		return
	}
	for i := range w.Defs {
		if s := g[ShardOf(w.Defs[i].Ref)]; s != nil {
			s.defined(w.Defs[i].Labels)
		}
	}
	histograms := g.histogramTimes(w)
	from := uint32(0)
	for i, ref := range w.Refs {
		to := w.Ends[i]
		if s := g[ShardOf(ref)]; s != nil {
			var hs []int64
			if histograms != nil {
				hs = histograms[ref]
				delete(histograms, ref)
			}
			s.applyRun(ev, ref, w.Times[from:to], w.Values[from:to], hs)
		}
		from = to
	}
	for _, ref := range slices.Sorted(maps.Keys(histograms)) {
		g[ShardOf(ref)].applyRun(ev, ref, nil, nil, histograms[ref])
	}
	for i := range w.Exemplars {
		if ref := w.Exemplars[i].Ref; g[ShardOf(ref)] != nil {
			g[ShardOf(ref)].lookup(ref) // nothing of it is folded, but the series is named
		}
	}
	maxT := newestIn(w)
	for _, s := range g {
		if s != nil {
			s.maxT = max(s.maxT, maxT)
		}
	}
}

// newestIn returns the largest time of a write's samples, native histograms included; MinInt64 if it has none.
func newestIn(w *log.Write) int64 {
	maxT := int64(math.MinInt64)
	for _, end := range w.Ends {
		maxT = max(maxT, w.Times[end-1]) // the samples of a run are in time order
	}
	for i := range w.Histograms {
		maxT = max(maxT, w.Histograms[i].Time)
	}
	return maxT
}

// countRepeated counts each sample of a repeated write as a duplicate in every stream that it would have reached.
func (g *group) countRepeated(w *log.Write) {
	from := uint32(0)
	for i, ref := range w.Refs {
		to := w.Ends[i]
		if s := g[ShardOf(ref)]; s != nil {
			s.countRepeated(ref, w.Values[from:to])
		}
		from = to
	}
	for ref := range namedIn(w) {
		if s := g[ShardOf(ref)]; s != nil {
			s.lookup(ref)
		}
	}
}

// namedIn yields the series that a write names, each at least once.
func namedIn(w *log.Write) iter.Seq[log.SeriesRef] {
	return func(yield func(log.SeriesRef) bool) {
		for _, ref := range w.Refs {
			if !yield(ref) {
				return
			}
		}
		for i := range w.Exemplars {
			if !yield(w.Exemplars[i].Ref) {
				return
			}
		}
		for i := range w.Histograms {
			if !yield(w.Histograms[i].Ref) {
				return
			}
		}
	}
}

func (s *Shard) countRepeated(ref log.SeriesRef, vs []float64) {
	_, sr := s.lookup(ref)
	if sr == nil || len(sr.members) == 0 {
		s.countUnplanned(ref, vs)
		return
	}
	for _, v := range vs {
		stale := isStale(v)
		for i := range sr.members {
			ct := &sr.members[i].stream.counts
			if stale {
				ct.Stale++
			} else {
				ct.Routed++
				ct.Duplicate++
			}
		}
	}
}

// histogramTimes returns the sample times of the group's native histograms by series; nil where there are none.
func (g *group) histogramTimes(w *log.Write) map[log.SeriesRef][]int64 {
	var out map[log.SeriesRef][]int64
	for i := range w.Histograms {
		if h := &w.Histograms[i]; g[ShardOf(h.Ref)] != nil {
			if out == nil {
				out = make(map[log.SeriesRef][]int64)
			}
			out[h.Ref] = append(out[h.Ref], h.Time)
		}
	}
	return out
}

// control applies every kind of event but the samples of a write, and returns the number of buckets that it closed.
func (s *Shard) control(ev *log.Event, healing *Healing) uint64 {
	before := s.closedCount()
	switch b := ev.Body.(type) {
	case *log.Start:
		s.start(ev, b)
	case *log.Write:
		return 0
	case *log.Watermark:
		s.watermark(ev, b)
	case *log.Tick:
		s.tick(ev)
	case *log.Drain:
		s.drain(ev)
	case *log.Plan:
		if s.generation == 0 {
			s.replan(b)
		} else {
			s.replanGeneration(b)
		}
	case *log.Expired:
		s.expire(b)
	case *log.Heal:
		if s.seq > s.generation {
			s.heal(b, healing)
		}
	case *log.Compacted:
		s.compacted(b)
	case *log.ExperimentRetired:
		s.retire(b)
	case *log.TaskQueued, *log.TaskStarted, *log.TaskFinished:
		// They change no pane.
	default:
		s.corrupt = fmt.Errorf("%w: %s at %d", ErrUnsupportedEvent, ev.Body.Kind(), ev.Seq)
	}
	return s.closedCount() - before
}

func (s *Shard) closedCount() uint64 {
	n := uint64(0)
	for _, st := range s.streams {
		n += st.counts.Closed
	}
	return n
}

func (s *Shard) start(ev *log.Event, b *log.Start) {
	if !plantedDowntimeCloses {
		s.startedAt = ev.LogTime
	}
	if b.Reason == log.StartProcess && s.sealed {
		s.sealed = false
		s.proven = max(s.proven, s.drainWall)
	}
}

// lookup returns the state of a series that the event at hand names, made if a stream takes it; nil if none does.
func (s *Shard) lookup(ref log.SeriesRef) (int32, *seriesState) {
	switch slot := s.slots.get(ref); {
	case slot > 0:
		sr := &s.series[slot-1]
		sr.lastNamed = s.logTime
		return slot - 1, sr
	case slot == unwanted:
		return 0, nil
	case slot == unwantedOld:
		s.slots.set(ref, unwanted)
		return 0, nil
	}
	ls, ok := s.labels.Labels(ref)
	if !ok {
		s.corrupt = fmt.Errorf("pane: event %d names series %d, which no event defined", s.seq, ref)
		return 0, nil
	}
	members := newMembers(s.streams, ls)
	if len(members) == 0 {
		s.slots.set(ref, unwanted)
		return 0, nil
	}
	if e := s.returning[ref]; e != nil {
		for i := range members {
			members[i].returned(e)
		}
		s.shadow.returned(ref, e, members)
	}
	idx := s.enter(s.newSeries(ref, ls, members))
	return idx, &s.series[idx]
}

func errNoLabels(ref log.SeriesRef) error { return fmt.Errorf("pane: series %d has no label set", ref) }

// experimentOf returns the experiment of a label set.
func (s *Shard) experimentOf(ls labels.Labels) string {
	if v := ls.Get(s.plan.ExperimentLabel); v != "" {
		return v
	}
	return Unlabelled
}

// newMembers returns the series' membership in those of the streams that want it.
func newMembers(streams []*stream, ls labels.Labels) []member {
	var out []member
	for _, st := range streams {
		if st.wants(ls) {
			st.seriesN++
			out = append(out, member{stream: st, maxF: math.MinInt64, c: math.MinInt64, tailFloor: math.MinInt64, first: noEnd})
		}
	}
	return out
}

// applyRun applies what one event says of one series: samples in time order, lateness judged against the state before the
// event, closing afterwards. histograms are the times of native-histogram samples, of which only the place counts.
func (s *Shard) applyRun(ev *log.Event, ref log.SeriesRef, ts []int64, vs []float64, histograms []int64) {
	if s.shadow.ignores(ref) {
		return
	}
	idx, sr := s.lookup(ref)
	if sr == nil || len(sr.members) == 0 {
		s.untaken(ev, ref, vs, histograms)
		return
	}
	sr.prune(s.logTime, s.plan.HorizonMillis)
	s.corrected = s.corrected[:0]
	applied, n := false, uint64(0)
	for i, t := range ts {
		if plantedUnsorted {
			i = len(ts) - 1 - i
			t = ts[i]
		}
		if plantedLateAfter {
			for j := range sr.members {
				if m := &sr.members[j]; m.maxF != math.MinInt64 {
					s.closeThrough(ev, sr, m, satSub(m.maxF, m.stream.spec.LatenessMillis))
				}
			}
		}
		if s.applySample(idx, sr, t, vs[i]) {
			applied = true
			if !isStale(vs[i]) {
				n++
			}
		}
	}
	for _, t := range histograms {
		if s.applyHistogram(idx, sr, t) {
			applied, n = true, n+1
		}
	}
	if applied && s.generation == 0 {
		s.accepted(s.of(sr), ev, n)
	}
	for i := range sr.members {
		m := &sr.members[i]
		for _, c := range s.corrected {
			if c.member == i {
				s.publish(sr, m, c.end)
				s.correctedOne(sr, m.stream, c.end)
			}
		}
		if m.maxF != math.MinInt64 {
			w := satSub(m.maxF, m.stream.spec.LatenessMillis)
			s.closeThrough(ev, sr, m, w)
		}
	}
	if len(sr.raw.t) >= sealAt {
		sr.settle()
	}
}

// applySample files one sample with every stream of its series, and reports whether one took it. For one timestamp the first value
// in log order stands.
func (s *Shard) applySample(idx int32, sr *seriesState, t int64, v float64) bool {
	stale := isStale(v)
	pos, have := sr.raw.find(t)
	same := have && math.Float64bits(sr.raw.v[pos]) == math.Float64bits(v)
	applied := false
	if plantedDuplicateTouches && have {
		for i := range sr.members {
			m := &sr.members[i]
			if j, ok := m.openAt(m.stream.endOf(t)); ok {
				m.open[j].last = s.logTime
			}
		}
	}
	for i := range sr.members {
		ok := !have && s.file(idx, sr, i, lateSample{t: t, v: v})
		applied = applied || ok
		ct := &sr.members[i].stream.counts
		if stale {
			ct.Stale++
			continue
		}
		ct.Routed++
		switch {
		case same:
			ct.Duplicate++
		case have:
			if plantedConflictWins {
				sr.raw.v[pos] = v
			}
			ct.Conflict++
		case ok:
			ct.Applied++
		case sr.members[i].stream.spec.Late == plan.Drop:
			ct.LateDropped++
		default:
			ct.LateUncorrectable++
		}
	}
	if applied {
		sr.raw.insert(pos, t, v)
		sr.lastApplied = s.logTime
	}
	return applied
}

// applyHistogram files the time of a native-histogram sample, and reports whether a stream took it: its bucket says that it holds
// what panes cannot answer.
func (s *Shard) applyHistogram(idx int32, sr *seriesState, t int64) bool {
	ts := sr.histograms.times()
	pos, have := slices.BinarySearch(ts, t)
	if have {
		return false
	}
	applied := false
	for i := range sr.members {
		if s.file(idx, sr, i, lateSample{t: t, histogram: true}) {
			applied = true
		}
	}
	if applied {
		sr.histograms = newHistogramTimes(slices.Insert(ts, pos, t))
		sr.lastApplied = s.logTime
	}
	return applied
}

// correction is a closed bucket that a late sample of the event at hand changes.
type correction struct {
	member int
	end    int64
}

// file finds the bucket of a new sample: an open one, one that it opens, or, under late policy correct, a closed one that it
// corrects. It reports false if the sample is too late to be folded; under policy correct the bucket is then marked incomplete, unless retention has removed it.
func (s *Shard) file(idx int32, sr *seriesState, mi int, sample lateSample) bool {
	m := &sr.members[mi]
	t := sample.t
	e := m.stream.endOf(t)
	if e <= m.stream.expired {
		return false // not even a mark: there is no bucket to mark any more
	}
	m.maxF = max(m.maxF, m.stream.filing(t))
	i, isOpen := m.openAt(e)
	switch {
	case isOpen:
		m.open[i].last = s.logTime
	case m.c < e:
		m.first = min(m.first, e)
		if b := (openBucket{end: e, first: s.logTime, last: s.logTime}); i == len(m.open) {
			m.open = append(m.open, b)
		} else {
			m.open = slices.Insert(m.open, i, b)
		}
		m.stream.openN++
		s.openedOne(sr)
		m.stream.track.opened(e, s.seq)
		if !m.armed {
			m.armed = true
			s.timers.push(timer{deadline: s.deadline(m, &m.open[i]), series: idx, member: uint16(mi), gen: sr.gen})
		}
	case m.stream.spec.Late == plan.Drop:
		m.first = min(m.first, e) // a heal may put it there
		if s.shadow != nil {
			s.shadow.refuse(s, sr, m, e, sample)
		}
		return false
	case e > satSub(m.c, s.plan.HorizonMillis) && e > m.tailFloor:
		m.stream.counts.Corrected++
		m.first = min(m.first, e)
		if c := (correction{member: mi, end: e}); !slices.Contains(s.corrected, c) {
			s.corrected = append(s.corrected, c)
		}
	case s.shadow != nil:
		s.shadow.refuse(s, sr, m, e, sample)
		return false
	default:
		m.first = min(m.first, e)
		block, pos := m.stream.grid.Locate(e)
		m.stream.track.change(e, s.seq)
		s.table.MarkIncomplete(bucket.Key{Stream: m.stream.key, Block: block}, uint64(sr.ref), pos)
		return false
	}
	return true
}

// closeThrough closes the open buckets of a member with E ≤ c and raises its closure watermark to c.
func (s *Shard) closeThrough(ev *log.Event, sr *seriesState, m *member, c int64) {
	n := 0
	for n < len(m.open) && m.open[n].end <= c {
		s.publish(sr, m, m.open[n].end)
		m.stream.track.shut(m.open[n].end)
		n++
	}
	if n > 0 {
		m.open = slices.Delete(m.open, 0, n)
		s.closed(sr, m, n)
	}
	s.raise(ev, sr, m, c)
}

// closed counts n buckets of a member as closed, once they are no longer among its open ones.
func (s *Shard) closed(sr *seriesState, m *member, n int) {
	m.stream.openN -= n
	m.stream.counts.Closed += uint64(n)
	s.shutSome(sr, n)
}

// raise moves the closure watermark, and with it the stream's part of the frontier (P4).
func (s *Shard) raise(ev *log.Event, sr *seriesState, m *member, c int64) {
	if c > m.c {
		before := m.c
		m.c = c
		s.closedThrough(sr, m, before)
		m.stream.raiseFrontier(c, ev.WallTime, s.plan.ClockSkewMillis)
	}
}

// publish folds one bucket from the raw run and files it as the newest (P3).
func (s *Shard) publish(sr *seriesState, m *member, e int64) {
	if s.shadow != nil {
		s.shadow.publish(s, sr, m, e)
		return
	}
	p := accum.Fold(sr.raw.between(m.stream.before(e), e-m.stream.edge))
	p.HasHistogram = sr.histogramIn(m.stream, e)
	if !plantedDirtyForgotten {
		m.stream.track.change(e, s.seq)
	}
	s.publishedOne(s.of(sr), plan.StreamID(m.stream.key), m.stream.grid, e)
	block, pos := m.stream.grid.Locate(e)
	s.table.Put(bucket.Key{Stream: m.stream.key, Block: block}, uint64(sr.ref), pos, func(dst []byte) []byte {
		return p.AppendEncode(dst, e)
	})
}

// watermark applies a barrier, to all series or to those of one experiment: per series, buckets up to B' = min(B, end of its latest open bucket) close. The open buckets
// are walked, never the grid.
func (s *Shard) watermark(ev *log.Event, b *log.Watermark) {
	s.prove(b, ClampBarrier(b.Time, ev.WallTime, s.plan.MaxFutureMillis))
	for i := range s.series {
		sr := &s.series[i]
		if b.Scoped && sr.experiment != b.Experiment {
			continue
		}
		for j := range sr.members {
			m := &sr.members[j]
			if n := len(m.open); n > 0 {
				s.closeThrough(ev, sr, m, min(m.stream.bound(b.Time), m.open[n-1].end))
			}
		}
		// A series that has stopped gets no event of its own any more: this is where its tail is given up.
		sr.prune(s.logTime, s.plan.HorizonMillis)
	}
}

// prove keeps what a barrier proves: for everything, or for one experiment beside it.
func (s *Shard) prove(b *log.Watermark, t int64) {
	if !b.Scoped {
		s.proven = max(s.proven, t)
		// What it proves, it proves for every experiment.
		maps.DeleteFunc(s.experiments, func(_ string, old int64) bool { return old <= s.proven })
		return
	}
	if t <= s.proven {
		return
	}
	if ShardOfExperiment(b.Experiment) != s.id {
		return
	}
	if s.experiments == nil {
		s.experiments = make(map[string]int64)
	}
	if old, ok := s.experiments[b.Experiment]; !ok || t > old {
		s.experiments[b.Experiment] = t
	}
}

// ClampBarrier returns the time up to which a barrier counts: at most maxFuture (0: unbounded) beyond its event's wall time.
func ClampBarrier(t, wall, maxFuture int64) int64 {
	if maxFuture > 0 {
		return min(t, satAdd(wall, maxFuture))
	}
	return t
}

// drain closes everything and seals.
func (s *Shard) drain(ev *log.Event) {
	s.sealed, s.drainWall = true, ev.WallTime
	for i := range s.series {
		sr := &s.series[i]
		for j := range sr.members {
			m := &sr.members[j]
			if n := len(m.open); n > 0 {
				s.closeThrough(ev, sr, m, m.open[n-1].end)
			}
		}
	}
}

// replan puts another plan in force. Streams that both plans have go on; those of the old one alone lose their open buckets
// and keep what they published; new ones begin where the plan says.
func (s *Shard) replan(b *log.Plan) {
	p, err := s.plans.decode(b.Spec)
	if err != nil {
		s.corrupt = fmt.Errorf("pane: plan at %d: %w", s.seq, err)
		return
	}
	s.settle()
	s.endStreams(p)
	old := make(map[plan.StreamID]*stream, len(s.streams))
	for _, st := range s.streams {
		old[st.spec.ID] = st
	}
	all := make(map[plan.StreamID]*stream, len(p.Streams))
	var fresh []plan.Stream
	for _, spec := range p.Streams {
		switch st := old[spec.ID]; {
		case st != nil:
			st.spec.RetentionMillis = spec.RetentionMillis
			all[spec.ID] = st
			delete(old, spec.ID)
		case s.planned(spec.ID) == nil:
			fresh = append(fresh, spec)
		}
	}
	added, err := s.beginStreams(p, fresh)
	if err != nil {
		s.corrupt = err
		return
	}
	for _, st := range added {
		all[st.spec.ID] = st
		s.shadow.planned(st.spec.ID, s.seq)
	}
	streams := make([]*stream, 0, len(all))
	for _, spec := range p.Streams {
		if st := all[spec.ID]; st != nil {
			streams = append(streams, st)
		}
	}
	s.adopt(p, streams, added, old)
}

// adopt puts a plan in force with the given streams. Of those that were added the series become members, of those that are gone
// they are no longer.
func (s *Shard) adopt(p *plan.Plan, streams, added []*stream, gone map[plan.StreamID]*stream) {
	relabelled := p.ExperimentLabel != s.plan.ExperimentLabel
	if relabelled {
		s.experiments = nil // they are values of another label
		s.relabelled = s.relabelled || s.plan.ExperimentLabel != ""
	}
	horizon := s.plan.HorizonMillis
	s.plan, s.streams = p, streams
	if err := s.lookElsewhere(); err != nil {
		s.corrupt = err
		return
	}
	for i := range s.series {
		sr := &s.series[i]
		if sr.ref == 0 {
			continue
		}
		for j := range sr.members {
			// Raw samples that a shorter horizon has given up do not come back with a longer one.
			m := &sr.members[j]
			m.tailFloor = max(m.tailFloor, satSub(m.c, horizon))
		}
		s.leave(sr, gone)
		ls, ok := s.labelsOf(sr.ref)
		if !ok {
			return
		}
		sr.members = append(sr.members, newMembers(added, ls)...)
		if relabelled {
			sr.experiment, sr.counted = s.experimentOf(ls), nil
		}
		if len(sr.members) == 0 {
			sr.raw, sr.histograms = run{}, nil // nothing can read them any more
		}
	}
	for _, st := range gone {
		if s.generation == 0 { // of the others the first generation's shards keep account
			s.part(st)
		} else {
			s.uncount(st)
		}
	}
	s.recount(relabelled)
	s.reconsiderUnwanted(added)
	if s.shadow == nil {
		s.track()
	}
	s.rearm()
}
