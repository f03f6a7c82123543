package pane

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// Each shard counts experiments over the streams that it folds: one of a later generation their buckets, open panes and corrections,
// and one of the first generation also series and samples, which every series has once, whichever streams take it. Who reads adds up
// the shards of all generations that the live fold has; what one adds is there from the moment at which it is handed over, which no
// event says, so readers are told over which generations was counted (ExperimentVersion.Basis).

// experiment is what one shard has counted of one experiment: the series that carry one value of the experiment label. It stands
// in the shard's checkpoint (P7), as a row of its own, so that a checkpoint writes those that have changed and no others.
type experiment struct {
	name    string
	version log.Seq // last event that changed anything below
	dropped bool    // the shard counts it no more; who still points here looks the name up again

	series   uint64 // defined by an event
	samples  uint64 // accepted: applied to at least one stream, or of a series that no stream takes; stale markers aside
	lastWall int64  // wall time of the last event with an accepted sample, ms; MinInt64 before any
	lastLog  int64  // log time of that event, ms
	closed   int64  // greatest bucket end at or before the closure watermark of any of its series; MinInt64 before any

	pending     int                        // open buckets, over all series and streams
	open        map[log.SeriesRef]struct{} // series that have one
	published   []publishedEnds            // by stream
	forgiven    uint64                     // of the published ends, those counted in a record of its retirement
	corrections []correctedBucket          // by stream and end
}

// publishedEnds are the ends at which at least one of the experiment's series in this shard has a published bucket.
type publishedEnds struct {
	stream plan.StreamID // by its key
	grid   bucket.Grid
	ends   endSet
}

// correctedBucket counts the corrections of one bucket that no compaction has covered yet.
type correctedBucket struct {
	stream plan.StreamID // by its key
	end    int64
	at     []correctedAt // by increasing sequence
}

type correctedAt struct {
	seq log.Seq
	n   uint64
}

// maxCorrectedAt bounds the places in the log that are told apart for one bucket. Beyond it the oldest two become one, at the
// later place: a compaction that reaches between them then leaves both counted, and the next one takes them.
const maxCorrectedAt = 16

// ofName returns what the shard counts of an experiment, from now on if it did not.
func (s *Shard) ofName(name string) *experiment {
	x := s.stats[name]
	if x == nil {
		x = newExperiment(name)
		s.stats[name] = x
		s.inUse.add(name)
		delete(s.gone, name)
	}
	return x
}

func newExperiment(name string) *experiment {
	return &experiment{name: name, lastWall: never, lastLog: never, closed: never}
}

// of returns the experiment of a series.
func (s *Shard) of(sr *seriesState) *experiment {
	if sr.counted == nil || sr.counted.dropped {
		sr.counted = s.ofName(sr.experiment)
	}
	return sr.counted
}

// ofRef returns the experiment of a series of which the shard may have no state.
func (s *Shard) ofRef(ref log.SeriesRef) *experiment {
	if x := s.unwanted[ref]; x != nil && !x.dropped {
		return x
	}
	ls, ok := s.labels.Labels(ref)
	if !ok {
		return nil // lookup has said so
	}
	x := s.ofName(s.experimentOf(ls))
	if s.unwanted == nil {
		s.unwanted = make(map[log.SeriesRef]*experiment)
	}
	s.unwanted[ref] = x
	return x
}

// changed notes that the event at hand has changed what is counted.
//
// Writes that are folded together come series by series, not event by event: what says what came last goes by the sequence.
func (s *Shard) changed(x *experiment) { x.version = max(x.version, s.seq) }

// defined counts a series, at the event that defines it.
func (s *Shard) defined(ls labels.Labels) {
	if s.generation != 0 {
		return
	}
	x := s.ofName(s.experimentOf(ls))
	x.series++
	s.changed(x)
}

// accepted counts samples of an event that were applied; n of them are no stale markers.
func (s *Shard) accepted(x *experiment, ev *log.Event, n uint64) {
	x.samples += n
	if s.seq >= x.version { // else a later event has said it, which had samples too
		x.lastWall, x.lastLog = ev.WallTime, s.logTime
	}
	s.changed(x)
}

// untaken counts what one event says of a series that no stream of the shard takes.
func (s *Shard) untaken(ev *log.Event, ref log.SeriesRef, vs []float64, histograms []int64) {
	n := s.countUnplanned(ref, vs)
	if len(vs)+len(histograms) == 0 || s.corrupt != nil || s.generation != 0 {
		return
	}
	if x := s.ofRef(ref); x != nil {
		s.accepted(x, ev, n+uint64(len(histograms)))
	}
}

// openedOne counts an open bucket of a series.
func (s *Shard) openedOne(sr *seriesState) {
	known := sr.counted != nil && !sr.counted.dropped
	x := s.of(sr)
	if x.pending++; x.pending == 1 {
		s.pending[x.name] = x
	}
	if !known || opens(sr.members) == 1 { // else another one that is open has put it there
		if x.open == nil {
			x.open = make(map[log.SeriesRef]struct{})
		}
		x.open[sr.ref] = struct{}{}
	}
	s.changed(x)
}

// opens counts the open buckets.
func opens(members []member) (n int) {
	for i := range members {
		n += len(members[i].open)
	}
	return n
}

// shutSome counts n open buckets of a series as closed; they are no longer among those of its members.
func (s *Shard) shutSome(sr *seriesState, n int) {
	if n == 0 {
		return
	}
	x := s.of(sr)
	if x.pending -= n; x.pending == 0 {
		delete(s.pending, x.name)
	}
	if opens(sr.members) == 0 {
		delete(x.open, sr.ref)
	}
	s.changed(x)
}

// publishedOne counts the bucket of a stream that ends at e, once.
func (s *Shard) publishedOne(x *experiment, id plan.StreamID, g bucket.Grid, e int64) {
	i, ok := slices.BinarySearchFunc(x.published, id, func(p publishedEnds, id plan.StreamID) int { return cmp.Compare(p.stream, id) })
	if !ok {
		x.published = slices.Insert(x.published, i, publishedEnds{stream: id, grid: g})
	}
	if x.published[i].ends.add(bucketNumber(g, e)) {
		s.changed(x)
	}
}

// bucketNumber is the place of a bucket end on its grid.
func bucketNumber(g bucket.Grid, end int64) int64 { return (end - g.Origin) / g.Width }

// correctedOne counts a correction of the bucket that ends at e.
func (s *Shard) correctedOne(sr *seriesState, st *stream, e int64) {
	x, id := s.of(sr), plan.StreamID(st.key)
	i, ok := slices.BinarySearchFunc(x.corrections, correctedBucket{stream: id, end: e}, compareCorrected)
	if !ok {
		x.corrections = slices.Insert(x.corrections, i, correctedBucket{stream: id, end: e})
	}
	c := &x.corrections[i]
	if n, ok := slices.BinarySearchFunc(c.at, s.seq, func(at correctedAt, seq log.Seq) int { return cmp.Compare(at.seq, seq) }); ok {
		c.at[n].n++
	} else {
		c.at = slices.Insert(c.at, n, correctedAt{s.seq, 1})
	}
	if len(c.at) > maxCorrectedAt {
		c.at[1].n += c.at[0].n
		c.at = slices.Delete(c.at, 0, 1)
	}
	s.corrections[x.name] = x
	s.changed(x)
}

func compareCorrected(a, b correctedBucket) int {
	return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.end, b.end))
}

// closedThrough moves what is closed of a series' stream from one closure watermark to a later one.
func (s *Shard) closedThrough(sr *seriesState, m *member, before int64) {
	e := m.stream.floorEnd(m.c)
	if e > m.c {
		return // the watermark is before all that a grid reaches
	}
	x := s.of(sr)
	if e > x.closed {
		x.closed = e
		s.changed(x)
		return
	}
	// It may have been the least of those with something open.
	if x.version != s.seq && (before == never || e > m.stream.floorEnd(before)) {
		s.changed(x)
	}
}

// compacted takes the corrections up to an event out of the count. One from before the plan that added the streams has seen nothing
// of them.
func (s *Shard) compacted(b *log.Compacted) {
	x := s.corrections[b.Experiment]
	if x == nil || s.seq <= s.generation {
		return
	}
	for i := range x.corrections {
		c := &x.corrections[i]
		n := 0
		for n < len(c.at) && c.at[n].seq <= b.Through {
			n++
		}
		if n > 0 {
			c.at = slices.Delete(c.at, 0, n)
			s.changed(x)
		}
	}
	s.withoutEmpty(x)
}

// withoutEmpty forgets buckets without corrections.
func (s *Shard) withoutEmpty(x *experiment) {
	x.corrections = slices.DeleteFunc(x.corrections, func(c correctedBucket) bool { return len(c.at) == 0 })
	if len(x.corrections) == 0 {
		x.corrections = nil
		delete(s.corrections, x.name)
	}
}

// expireStats takes what a retention delete removes of a stream out of what is counted.
func (s *Shard) expireStats(id plan.StreamID, through int64) {
	for _, x := range s.stats {
		for i := range x.published {
			p := &x.published[i]
			if p.stream == id && p.ends.dropThrough(bucketNumber(p.grid, through)) > 0 {
				s.changed(x)
			}
		}
		x.published = slices.DeleteFunc(x.published, func(p publishedEnds) bool { return p.ends.n == 0 })
		for i := range x.corrections {
			if c := &x.corrections[i]; c.stream == id && c.end <= through {
				c.at = nil
				s.changed(x)
			}
		}
		if x.corrections != nil {
			s.withoutEmpty(x)
		}
	}
}

// retire takes what an experiment had counted when it was read out of what is counted. What has come since stays, and with it
// the experiment. Of streams that a later plan added, whoever retired it had read nothing: what was closed of them by then goes with it,
// and is in no record.
func (s *Shard) retire(b *log.ExperimentRetired) {
	x := s.stats[b.Experiment]
	if x == nil {
		return // it has no series here
	}
	if x.pending == 0 && (s.seq <= s.generation || x.version <= b.AtVersion && len(x.corrections) == 0) {
		s.releaseExperiment(x.name)
		s.drop(x)
		return
	}
	if s.seq <= s.generation {
		s.releaseExperiment(x.name)
		x.published, x.corrections, x.forgiven = nil, nil, 0
		s.withoutEmpty(x)
		s.changed(x)
		return
	}
	if s.generation != 0 {
		for _, p := range b.Later {
			if p.Generation == s.generation && p.Shard == uint32(s.id) {
				x.forgiven += p.Buckets
				s.changed(x)
			}
		}
		return
	}
	i, ok := slices.BinarySearchFunc(b.Parts, uint32(s.id), func(p log.RetiredPart, id uint32) int { return cmp.Compare(p.Shard, id) })
	if !ok {
		return
	}
	p := b.Parts[i]
	x.series -= min(p.Series, x.series)
	x.samples -= min(p.Samples, x.samples)
	x.forgiven += p.Buckets
	s.changed(x)
}

// drop counts an experiment no more.
func (s *Shard) drop(x *experiment) {
	x.dropped = true
	delete(s.stats, x.name)
	s.inUse.remove(x.name)
	delete(s.pending, x.name)
	delete(s.corrections, x.name)
	if s.drops++; s.drops >= leastRepack && s.drops > 3*len(s.stats) {
		// Maps give nothing back of what they once held.
		s.stats, s.pending, s.corrections, s.drops = regrown(s.stats), regrown(s.pending), regrown(s.corrections), 0
	}
	if s.gone == nil {
		s.gone = make(map[string]log.Seq)
	}
	s.gone[x.name] = s.seq
}

// regrown returns a map with the same entries that has no room for more.
func regrown[K comparable, V any](m map[K]V) map[K]V {
	out := make(map[K]V, len(m))
	maps.Copy(out, m)
	return out
}

// buckets is the number of published buckets: distinct ends of a stream in this shard.
func (x *experiment) buckets() uint64 {
	n := uint64(0)
	for i := range x.published {
		n += uint64(x.published[i].ends.n)
	}
	return n - min(n, x.forgiven)
}

// outstanding returns the corrections that no compaction has covered, of all buckets and of the worst.
func (x *experiment) outstanding() (all, worst uint64) {
	for i := range x.corrections {
		n := uint64(0)
		for _, at := range x.corrections[i].at {
			n += at.n
		}
		all, worst = all+n, max(worst, n)
	}
	return all, worst
}

// changedAll notes that the event at hand, a change of plan, has changed what is counted of every experiment, or may have: what
// shards of later generations count comes and goes with their streams.
func (s *Shard) changedAll() {
	for _, x := range s.stats {
		s.changed(x)
	}
}

// uncount takes what a stream of a later generation has published out of the count, when it leaves the plan. The generation's last
// stream takes its shards with it; so that it does not matter which was the last, each takes what is its own.
func (s *Shard) uncount(st *stream) {
	id := plan.StreamID(st.key)
	for _, x := range s.stats {
		had := len(x.published) + len(x.corrections)
		x.published = slices.DeleteFunc(x.published, func(p publishedEnds) bool { return p.stream == id })
		x.corrections = slices.DeleteFunc(x.corrections, func(c correctedBucket) bool { return c.stream == id })
		if len(x.published)+len(x.corrections) < had {
			s.changed(x)
		}
		s.withoutEmpty(x)
	}
}

// recount counts open buckets anew, after the plan has changed. Under another experiment label everything begins anew: series
// that are in memory are counted under their new names, and what was counted before is gone.
func (s *Shard) recount(relabelled bool) {
	before := make(map[string]int, len(s.stats))
	if relabelled {
		for _, x := range maps.Clone(s.stats) {
			s.drop(x)
		}
		for ref := range s.unwantedRefs() {
			if ls, ok := s.labels.Labels(ref); ok {
				s.defined(ls)
			}
		}
		for i := range s.series {
			if s.series[i].ref == 0 || s.generation != 0 {
				continue
			}
			x := s.of(&s.series[i])
			x.series++
			s.changed(x)
		}
	}
	s.unwanted = nil
	for _, x := range s.stats {
		before[x.name] = x.pending
	}
	s.countPending()
	for _, x := range s.stats {
		if x.pending != before[x.name] {
			s.changed(x)
		}
	}
}

// countPending counts the open buckets of all series.
func (s *Shard) countPending() {
	clear(s.pending)
	for _, x := range s.stats {
		x.pending, x.open = 0, nil
	}
	for i := range s.series {
		sr := &s.series[i]
		n := opens(sr.members)
		if n == 0 {
			continue
		}
		x := s.of(sr)
		x.pending += n
		s.pending[x.name] = x
		if x.open == nil {
			x.open = make(map[log.SeriesRef]struct{})
		}
		x.open[sr.ref] = struct{}{}
	}
}
