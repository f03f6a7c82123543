package main

// The oracle of the campaign: what the rules of panes say, by brute force over plain maps of raw samples. It shares no code with
// the fold, keeps everything it ever saw, and is as slow as that is.

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// The limits of the rules that no plan moves.
const (
	oracleForgets = 600_000 // ms of log time for which a whole write is remembered
	never         = math.MinInt64
)

// told is one event as the script sent it, with the times that the log's clock gave it.
type told struct {
	logTime, wall int64

	// One of these.
	start     log.StartReason
	plan      *plan.Plan // as it stands in the log
	write     []point1
	watermark *log.Watermark
	tick      bool
	drain     bool
	expired   *log.Expired
	retired   *log.ExperimentRetired
	healed    bool
	control   log.Body // of the control plane, and of no account to panes
}

// point1 is one sample of a write, in the order of the request.
type point1 struct {
	series string // labels.Labels.String
	ls     labels.Labels
	t      int64
	v      float64
}

// naive is the state after some events.
type naive struct {
	events    int
	plan      *plan.Plan
	logTime   int64
	startedAt int64
	maxT      int64
	proven    int64
	byTask    map[string]int64
	sealed    bool
	drainWall int64
	unplanned uint64
	expired   map[plan.StreamID]int64

	streams   map[plan.StreamID]*modelStream
	series    map[string]*modelSeries
	published map[plan.StreamID]map[string]map[int64]*modelBucket // by stream, series, end
	writes    []modelWrite                                        // of the last ten minutes
	judged    int64                                               // log time of the last write or start

	experiments map[string]*modelExperiment

	// Of the streams that were planned from the start on, and their model alone.
	history []told
	later   []*modelGeneration

	ops modelOps
}

// modelOps counts what the campaign is about.
type modelOps struct {
	Applied, Duplicates, Conflicts, Late, Corrected, Repeats, Samples, Requests, Odd uint64
}

type modelStream struct {
	spec               plan.Stream
	coverage, frontier int64
	routed, applied    uint64
	duplicate          uint64
	conflict           uint64
	dropped            uint64
	uncorrectable      uint64
	stale, closed      uint64
}

type modelSeries struct {
	ls      labels.Labels
	held    map[int64]float64 // what one timestamp is compared with
	last    int64             // log time of the last sample applied
	members map[plan.StreamID]*modelMember
}

type modelMember struct {
	maxF, c, gone int64
	samples       map[int64]map[int64]float64 // by bucket end, all that was ever folded
	refused       map[int64][]point1          // by bucket end, what came too late since the last heal, in the order of the log
	open          map[int64]*modelTouch
}

type modelTouch struct{ first, last int64 }

type modelBucket struct {
	samples    map[int64]float64
	incomplete bool
}

type modelWrite struct {
	content string
	logTime int64
}

func newNaive() *naive {
	return &naive{
		plan: &plan.Plan{}, logTime: never, startedAt: never, maxT: never, proven: never, judged: never,
		byTask: map[string]int64{}, expired: map[plan.StreamID]int64{}, streams: map[plan.StreamID]*modelStream{},
		series: map[string]*modelSeries{}, published: map[plan.StreamID]map[string]map[int64]*modelBucket{},
		experiments: map[string]*modelExperiment{},
	}
}

// modelOutcome is what a barrier must answer.
type modelOutcome struct {
	closed  uint64
	later   map[int]uint64 // what later generations closed
	through int64
}

// apply takes the next event.
func (m *naive) apply(e told) modelOutcome {
	m.events++
	m.history = append(m.history, e)
	m.logTime = max(m.logTime, e.logTime)
	before := m.closedCount()
	out := modelOutcome{later: map[int]uint64{}}
	for _, g := range m.later {
		out.later[g.id] = g.apply(e)
	}
	switch {
	case e.start != 0:
		m.startAt(e)
	case e.plan != nil:
		m.replan(e.plan)
	case e.write != nil:
		m.writeAll(e)
	case e.watermark != nil:
		m.barrier(e)
	case e.tick:
		m.tickAt(e)
	case e.drain:
		m.drainAt(e)
	case e.expired != nil:
		m.expire(plan.StreamID(e.expired.Stream), e.expired.Through)
	case e.retired != nil:
		m.retire(e.retired.Experiment)
	case e.healed:
		m.heal()
	}
	out.closed, out.through = m.closedCount()-before, m.proven
	if w := e.watermark; w != nil && w.Scoped {
		if t, ok := m.byTask[w.Experiment]; ok {
			out.through = max(out.through, t)
		}
	}
	return out
}

func (m *naive) closedCount() uint64 {
	var n uint64
	for _, s := range m.streams {
		n += s.closed
	}
	return n
}

func (m *naive) startAt(e told) {
	// What was forgotten stays so; what was not is young again.
	m.forget(m.judged)
	m.startedAt, m.judged = e.logTime, e.logTime
	if e.start == log.StartProcess && m.sealed {
		m.sealed = false
		m.proven = max(m.proven, m.drainWall)
	}
}

func (m *naive) forget(now int64) {
	keep := m.writes[:0]
	for _, w := range m.writes {
		if sub(now, max(w.logTime, m.startedAt)) <= oracleForgets {
			keep = append(keep, w)
		}
	}
	m.writes = keep
}

// repeats says whether the whole write was seen within ten minutes.
func (m *naive) repeats(e told) bool {
	m.forget(e.logTime)
	bySeries := map[string][]point1{}
	for _, p := range e.write {
		bySeries[p.series] = append(bySeries[p.series], p)
	}
	var b strings.Builder
	for _, name := range sortedKeys(bySeries) {
		ps := bySeries[name]
		sort.SliceStable(ps, func(i, j int) bool { return ps[i].t < ps[j].t })
		fmt.Fprintf(&b, "%s:", name)
		for _, p := range ps {
			fmt.Fprintf(&b, "%d=%x,", p.t, math.Float64bits(p.v))
		}
	}
	content := b.String()
	found := slices.ContainsFunc(m.writes, func(w modelWrite) bool { return w.content == content })
	m.writes, m.judged = append(m.writes, modelWrite{content: content, logTime: e.logTime}), e.logTime
	return found
}

func (m *naive) writeAll(e told) {
	repeats := m.repeats(e)
	m.ops.Requests++
	odd := repeats
	if repeats {
		m.ops.Repeats++
	}
	bySeries := map[string][]point1{}
	for _, p := range e.write {
		m.ops.Samples++
		bySeries[p.series] = append(bySeries[p.series], p)
	}
	was := m.ops
	for name, ps := range bySeries {
		sort.SliceStable(ps, func(i, j int) bool { return ps[i].t < ps[j].t })
		s := m.find(name, ps[0].ls)
		if !repeats && len(s.members) > 0 {
			m.prune(s)
		}
		touched := map[*modelMember]map[int64]bool{}
		x := m.experiment(m.taskOf(s.ls))
		x.series[name] = true
		for _, p := range ps {
			taken := m.sample(s, p, repeats, touched)
			if taken = taken || len(s.members) == 0; taken && !repeats {
				x.accept(e, p)
			}
		}
		if repeats {
			continue
		}
		for id, mb := range s.members {
			st := m.streams[id]
			for end := range touched[mb] {
				m.publish(id, name, mb, end)
			}
			if mb.maxF != never {
				m.closeUpTo(e, id, name, mb, sub(mb.maxF, st.spec.LatenessMillis))
			}
		}
	}
	if !repeats {
		for _, p := range e.write {
			m.maxT = max(m.maxT, p.t)
		}
	}
	if odd || m.ops.Late != was.Late || m.ops.Duplicates != was.Duplicates || m.ops.Conflicts != was.Conflicts || m.ops.Corrected != was.Corrected {
		m.ops.Odd++
	}
}

func (m *naive) find(name string, ls labels.Labels) *modelSeries {
	s := m.series[name]
	if s == nil {
		s = &modelSeries{ls: ls, held: map[int64]float64{}, last: never, members: map[plan.StreamID]*modelMember{}}
		for id, st := range m.streams {
			if wants(st, ls) {
				s.members[id] = newMember()
			}
		}
		m.series[name] = s
	}
	return s
}

func newMember() *modelMember {
	return &modelMember{
		maxF: never, c: never, gone: never, samples: map[int64]map[int64]float64{}, refused: map[int64][]point1{}, open: map[int64]*modelTouch{},
	}
}

func wants(st *modelStream, ls labels.Labels) bool {
	for _, want := range st.spec.Matchers {
		if want.Type != "=" || ls.Get(want.Name) != want.Value {
			return false
		}
	}
	return true
}

// prune lets go of the samples that no bucket can need: older than every open bucket and every bucket that may be corrected.
func (m *naive) prune(s *modelSeries) {
	keep := int64(math.MaxInt64)
	for id, mb := range s.members {
		spec := &m.streams[id].spec
		for end := range mb.open {
			keep = min(keep, end-spec.PaneMillis-edge(spec))
		}
		if mb.c == never {
			continue
		}
		if s.last != never && sub(m.logTime, s.last) > spec.PaneMillis+m.plan.HorizonMillis {
			mb.gone = max(mb.gone, mb.c)
		}
		keep = min(keep, gridFloor(spec, max(sub(mb.c, m.plan.HorizonMillis), mb.gone))-edge(spec))
	}
	for t := range s.held {
		if t <= keep {
			delete(s.held, t)
		}
	}
}

func edge(s *plan.Stream) int64 {
	if s.Closed == plan.Left {
		return 1
	}
	return 0
}

// gridFloor is the last bucket end at or before t.
func gridFloor(s *plan.Stream, t int64) int64 {
	if t == never {
		return never + 1<<40 // far below anything that is ever asked
	}
	w := s.PaneMillis
	return s.OriginMillis + int64(math.Floor(float64(t-s.OriginMillis)/float64(w)))*w
}

func bucketEnd(s *plan.Stream, t int64) int64 {
	return gridFloor(s, t-1+edge(s)) + s.PaneMillis
}

// sample says whether a stream took the sample.
func (m *naive) sample(s *modelSeries, p point1, repeats bool, touched map[*modelMember]map[int64]bool) bool {
	stale := math.Float64bits(p.v) == 0x7ff0000000000002
	old, have := s.held[p.t]
	if len(s.members) == 0 {
		if !stale && !m.takenLater(s.ls) {
			m.unplanned++
		}
		return false
	}
	applied := false
	for id, mb := range s.members {
		st := m.streams[id]
		result := &st.uncorrectable
		switch {
		case repeats || have && math.Float64bits(old) == math.Float64bits(p.v):
			result = &st.duplicate
			m.ops.Duplicates++
		case have:
			result = &st.conflict
			m.ops.Conflicts++
		case m.file(s, st, mb, p, touched):
			result = &st.applied
			applied = true
			m.ops.Applied++
		case st.spec.Late == plan.Drop:
			result = &st.dropped
			m.ops.Late++
		default:
			m.ops.Late++
		}
		if stale {
			st.stale++
			continue
		}
		st.routed++
		*result++
	}
	if applied {
		s.held[p.t] = p.v
		s.last = m.logTime
	}
	return applied
}

// file says whether a sample that was not there before joins its bucket.
func (m *naive) file(s *modelSeries, st *modelStream, mb *modelMember, p point1, touched map[*modelMember]map[int64]bool) bool {
	end := bucketEnd(&st.spec, p.t)
	if x, ok := m.expired[st.spec.ID]; ok && end <= x {
		return false // gone, and no heal brings it back
	}
	mb.maxF = max(mb.maxF, p.t-1+edge(&st.spec))
	join := func() bool {
		if mb.samples[end] == nil {
			mb.samples[end] = map[int64]float64{}
		}
		mb.samples[end][p.t] = p.v
		return true
	}
	if b := mb.open[end]; b != nil {
		b.last = m.logTime
		return join()
	}
	if mb.c < end {
		mb.open[end] = &modelTouch{first: m.logTime, last: m.logTime}
		return join()
	}
	switch {
	case st.spec.Late == plan.Drop:
		mb.refused[end] = append(mb.refused[end], p)
		return false
	case end > sub(mb.c, m.plan.HorizonMillis) && end > mb.gone:
		if touched[mb] == nil {
			touched[mb] = map[int64]bool{}
		}
		touched[mb][end] = true
		m.ops.Corrected++
		return join()
	}
	mb.refused[end] = append(mb.refused[end], p)
	m.bucketOf(st.spec.ID, s.ls.String(), end).incomplete = true
	return false
}

func (m *naive) bucketOf(id plan.StreamID, series string, end int64) *modelBucket {
	if m.published[id] == nil {
		m.published[id] = map[string]map[int64]*modelBucket{}
	}
	if m.published[id][series] == nil {
		m.published[id][series] = map[int64]*modelBucket{}
	}
	b := m.published[id][series][end]
	if b == nil {
		b = &modelBucket{}
		m.published[id][series][end] = b
	}
	return b
}

func (m *naive) publish(id plan.StreamID, series string, mb *modelMember, end int64) {
	b := m.bucketOf(id, series, end)
	b.samples = map[int64]float64{}
	for t, v := range mb.samples[end] {
		b.samples[t] = v
	}
}

func (m *naive) closeUpTo(e told, id plan.StreamID, series string, mb *modelMember, c int64) {
	for end := range mb.open {
		if end <= c {
			m.shut(id, series, mb, end)
		}
	}
	m.raise(e, id, mb, c)
}

func (m *naive) shut(id plan.StreamID, series string, mb *modelMember, end int64) {
	m.publish(id, series, mb, end)
	delete(mb.open, end)
	m.streams[id].closed++
}

func (m *naive) raise(e told, id plan.StreamID, mb *modelMember, c int64) {
	if c <= mb.c {
		return
	}
	mb.c = c
	if c > add(e.wall, m.plan.ClockSkewMillis) {
		c = e.wall
	}
	st := m.streams[id]
	st.frontier = max(st.frontier, c)
}

func (m *naive) barrier(e told) {
	w := e.watermark
	t := w.Time
	if m.plan.MaxFutureMillis > 0 {
		t = min(t, add(e.wall, m.plan.MaxFutureMillis))
	}
	if !w.Scoped {
		m.proven = max(m.proven, t)
	} else if old, ok := m.byTask[w.Experiment]; !ok || t > old {
		m.byTask[w.Experiment] = t
	}
	for name, s := range m.series {
		if w.Scoped && m.taskOf(s.ls) != w.Experiment {
			continue
		}
		for id, mb := range s.members {
			if latest, ok := newest(mb); ok {
				m.closeUpTo(e, id, name, mb, min(add(w.Time, edge(&m.streams[id].spec)), latest))
			}
		}
	}
}

func (m *naive) taskOf(ls labels.Labels) string {
	if v := ls.Get(m.plan.ExperimentLabel); v != "" {
		return v
	}
	return "_unlabelled"
}

func newest(mb *modelMember) (int64, bool) {
	latest, ok := int64(never), false
	for end := range mb.open {
		latest, ok = max(latest, end), true
	}
	return latest, ok
}

func (m *naive) deadline(spec *plan.Stream, b *modelTouch) int64 {
	patience := max(spec.PaneMillis, m.plan.IdleTimeoutMillis) + spec.LatenessMillis
	at := max(b.last, m.startedAt) + patience + m.plan.IdleGraceMillis
	if spec.Late == plan.Correct {
		at = min(at, max(b.first, m.startedAt)+patience+m.plan.OpenGraceMillis)
	}
	return at
}

// due says whether a tick at a log time would close something.
func (m *naive) due(logTime int64) bool {
	for _, s := range m.series {
		for id, mb := range s.members {
			for _, b := range mb.open {
				if m.deadline(&m.streams[id].spec, b) <= logTime {
					return true
				}
			}
		}
	}
	return false
}

func (m *naive) tickAt(e told) {
	for name, s := range m.series {
		for id, mb := range s.members {
			for _, end := range sortedKeys(mb.open) { // one at a time: the frontier takes what each moves it to
				if m.deadline(&m.streams[id].spec, mb.open[end]) <= m.logTime {
					m.shut(id, name, mb, end)
					m.raise(e, id, mb, end)
				}
			}
		}
	}
}

func (m *naive) drainAt(e told) {
	m.sealed, m.drainWall = true, e.wall
	for name, s := range m.series {
		for id, mb := range s.members {
			if latest, ok := newest(mb); ok {
				m.closeUpTo(e, id, name, mb, latest)
			}
		}
	}
}

func (m *naive) expire(id plan.StreamID, through int64) {
	if old, ok := m.expired[id]; ok && through <= old {
		return
	}
	m.expired[id] = through
	for _, bySeries := range m.published[id] {
		for end := range bySeries {
			if end <= through {
				delete(bySeries, end)
			}
		}
	}
	st := m.streams[id]
	if st == nil {
		return
	}
	st.coverage = max(st.coverage, through)
	for _, s := range m.series {
		mb := s.members[id]
		if mb == nil {
			continue
		}
		for end := range mb.open {
			if end <= through {
				delete(mb.open, end)
				st.closed++
				mb.c = max(mb.c, end)
			}
		}
	}
}

// replan: what both plans have goes on, what only the old one had loses its open buckets. What is new is folded apart from the rest, from
// the oldest event that the log has, or begins here where there is no history.
func (m *naive) replan(p *plan.Plan) {
	for _, s := range m.series {
		if len(s.members) > 0 {
			m.prune(s)
		}
	}
	next := map[plan.StreamID]*modelStream{}
	var added []plan.Stream
	for _, spec := range p.Streams {
		switch {
		case m.streams[spec.ID] != nil:
			next[spec.ID] = m.streams[spec.ID]
			next[spec.ID].spec = spec
		case m.laterWith(spec.ID) == nil:
			added = append(added, spec)
		}
	}
	if m.addLater(p, added) {
		added = nil
	}
	for _, spec := range added {
		st := m.streams[spec.ID]
		if st == nil {
			st = &modelStream{spec: spec, coverage: m.maxT, frontier: never}
			if x, ok := m.expired[spec.ID]; ok {
				st.coverage = max(st.coverage, x)
			}
		}
		st.spec = spec
		next[spec.ID] = st
	}
	for _, s := range m.series {
		for id := range s.members {
			if next[id] == nil {
				delete(s.members, id)
			}
		}
		for id, st := range next {
			if m.streams[id] == nil && wants(st, s.ls) {
				s.members[id] = newMember()
			}
		}
		if len(s.members) == 0 {
			s.held = map[int64]float64{}
		}
	}
	if p.ExperimentLabel != m.plan.ExperimentLabel {
		m.byTask = map[string]int64{}
	}
	m.plan, m.streams = p, next
	m.dropLater()
}

// frontierOf is φ of a stream in bucket ends, for everything.
func (m *naive) frontierOf(st *modelStream) int64 {
	if m.sealed {
		return math.MaxInt64
	}
	if m.proven == never {
		return st.frontier
	}
	return max(st.frontier, add(m.proven, edge(&st.spec)))
}

func (m *naive) openCount(id plan.StreamID) (n int) {
	for _, s := range m.series {
		if mb := s.members[id]; mb != nil {
			n += len(mb.open)
		}
	}
	return n
}

// answerable says whether panes must answer an evaluation at e over (e−r, e] of a stream, for series that match. task is the one
// experiment whose series the query can select; empty: any.
func (m *naive) answerable(id plan.StreamID, e, r int64, task string, match func(labels.Labels) bool) bool {
	st := m.streams[id]
	if st == nil || e-r < st.coverage {
		return false
	}
	frontier := m.frontierOf(st)
	if t, ok := m.byTask[task]; ok {
		frontier = max(frontier, add(t, edge(&st.spec))) // a barrier for it proves what asks for it alone
	}
	if e > frontier {
		return false
	}
	for name, s := range m.series {
		if !match(s.ls) || s.members[id] == nil {
			continue
		}
		for end := range s.members[id].open {
			if end > e-r && end-st.spec.PaneMillis < e {
				return false
			}
		}
		for end, b := range m.published[id][name] {
			if b.incomplete && end > e-r && end-st.spec.PaneMillis < e {
				return false
			}
		}
	}
	return true
}

// storage is what Prometheus would hold, had it been given what the stream was given and nothing else. Stale markers are samples.
func (m *naive) storage(id plan.StreamID) []oracle.Series {
	var out []oracle.Series
	for _, name := range sortedKeys(m.published[id]) {
		all := map[int64]float64{}
		for _, b := range m.published[id][name] {
			for t, v := range b.samples {
				all[t] = v
			}
		}
		if len(all) == 0 {
			continue
		}
		s := oracle.Series{Labels: m.series[name].ls}
		for _, t := range sortedKeys(all) {
			s.T = append(s.T, t)
			s.V = append(s.V, all[t])
		}
		out = append(out, s)
	}
	return out
}

func sub(a, b int64) int64 {
	if a == never {
		return never
	}
	if b == never {
		return math.MaxInt64
	}
	d := a - b
	if b > 0 && d > a {
		return never
	}
	return d
}

func add(a, b int64) int64 {
	if d := a + b; b <= 0 || d >= a {
		return d
	}
	return math.MaxInt64
}

func sortedKeys[K interface{ ~int64 | ~string }, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
