package pane

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// data path 6 of 6: answer. Reads take a view of every shard at one place in the order of events, and do the rest outside.

// Plan returns the plan in force where the workers stand now.
func (p *Projection) Plan() *plan.Plan {
	return p.planNow.Load()
}

// Read answers all requests as of one log sequence, which is at least the head of the log when Read was called. It blocks until
// the workers have been given that sequence, or ctx ends. Requests that are content with what is there do not wait for it.
func (p *Projection) Read(ctx context.Context, reqs []Request) (*Snapshot, error) {
	if slices.ContainsFunc(reqs, func(r Request) bool { return !r.Behind }) {
		if err := p.waitDispatched(ctx, p.events.Head()); err != nil {
			return nil, err
		}
	}
	fresh := p.index.Follow() // before the selection: what comes after it is told of
	defer fresh.End()
	reads := make([]*streamRead, len(reqs))
	for i := range reqs {
		var refs []log.SeriesRef
		if !reqs[i].Tracked { // otherwise no series are asked for
			var err error
			if refs, err = p.index.Select(ctx, reqs[i].Matchers...); err != nil {
				return nil, err
			}
		}
		reads[i] = newStreamRead(&reqs[i], refs)
	}
	defer p.store.Pin()() // before the views are taken, until they are read
	seq, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		// The answer is as of the cut, so it has the series that came since the selection (P6): those of this shard are all there, because
		// its worker made them resident before it applied the events up to here.
		added := p.freshIn(s.id, fresh)
		for _, r := range reads {
			if !r.req.Tracked && s.generation == 0 { // those of later generations come after it, at the same place
				r.add(s.id, added)
			}
			r.take(s, sh)
		}
	})
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{Seq: seq, Answers: make([]Answer, len(reqs))}
	for i, r := range reads {
		if snap.Answers[i], err = p.finish(ctx, r, &snap.room); err != nil {
			snap.Release()
			return nil, err
		}
	}
	return snap, nil
}

// freshSeries is a series that became resident while a read was under way.
type freshSeries struct {
	ref    log.SeriesRef
	labels labels.Labels
}

func (p *Projection) freshIn(shard int, f *series.Follower) (out []freshSeries) {
	for _, ref := range f.Added() {
		if ShardOf(ref) != shard {
			continue
		}
		if ls, ok := p.index.Labels(ref); ok { // otherwise it is gone again, and among the evicted
			out = append(out, freshSeries{ref, ls})
		}
	}
	return out
}

// add adds those of the fresh series that match to what was selected of a shard.
func (r *streamRead) add(shard int, fresh []freshSeries) {
	refs := r.refs[shard]
	for _, f := range fresh {
		if series.MatchAll(f.labels, r.req.Matchers) {
			refs = append(refs, uint64(f.ref))
		}
	}
	if len(refs) > len(r.refs[shard]) {
		slices.Sort(refs)
		r.refs[shard] = slices.Compact(refs)
	}
}

// streamRead gathers one request's answer: first in the workers, one shard each, then outside.
type streamRead struct {
	req    *Request
	refs   [Shards][]uint64
	views  [Shards]bucket.ShardView
	series [Shards][]Series  // parallel to refs
	live   [Shards][]openRun // by increasing ref; what open buckets hold, if it was asked for
	gone   [Shards]departed
	asleep [256]bool // shards on whose disk there may be evicted series that match

	mu       sync.Mutex
	known    bool
	planned  bool // in a later generation, which may not have been taken over yet
	key      uint64
	grid     bucket.Grid
	coverage int64
	expired  int64
	frontier int64
	proven   int64
	tracked  Tracked
	group    *uint32 // of the one experiment that is asked for, if evicted series are told apart by it
}

func newStreamRead(req *Request, refs []log.SeriesRef) *streamRead {
	r := &streamRead{req: req, frontier: math.MinInt64, proven: math.MinInt64}
	for _, ref := range refs {
		r.refs[ShardOf(ref)] = append(r.refs[ShardOf(ref)], uint64(ref))
	}
	return r
}

// take copies what the shard alone knows: its tables' headers, its open buckets, its part of the frontier.
func (r *streamRead) take(s *Shard, sh *shelf) {
	st := s.stream(r.req.Stream)
	if st == nil {
		if s.planned(r.req.Stream) != nil {
			r.mu.Lock()
			r.planned = true
			r.mu.Unlock()
		}
		return
	}
	r.mu.Lock()
	r.key = st.key
	r.known, r.grid, r.coverage, r.expired = true, st.grid, st.coverage, st.expired
	r.frontier = max(r.frontier, s.frontier(st))
	r.proven = max(r.proven, s.proven)
	if name, ok := s.pinned(r.req.Matchers); ok {
		// A barrier for one experiment proves what asks for that experiment alone.
		if t, ok := s.experiments[name]; ok {
			r.proven, r.frontier = max(r.proven, t), max(r.frontier, st.bound(t))
		}
		if !s.relabelled {
			g := groupOf(name)
			r.group = &g
		}
	}
	if r.req.Tracked {
		r.tracked.add(&st.track, r.req.From, r.req.To)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()

	lo, _ := st.grid.Locate(r.req.From + st.width)
	hi, _ := st.grid.Locate(r.req.To)
	v := &r.views[s.id]
	v.PieceSeq, v.Refs = sh.visible(), r.refs[s.id]
	for _, t := range sh.leaving {
		t.AddTo(&v.View, st.key, lo, hi)
	}
	s.table.AddTo(&v.View, st.key, lo, hi)
	if st.evictedThrough > r.req.From {
		r.gone[s.id], r.asleep[s.id] = sh.evicted[:len(sh.evicted):len(sh.evicted)], true
	}

	series := make([]Series, len(v.Refs))
	for i, ref := range v.Refs {
		m, sr := s.member(log.SeriesRef(ref), st)
		if m == nil {
			continue
		}
		for _, b := range m.open {
			if b.end > r.req.From && b.end <= r.req.To {
				series[i].Open = append(series[i].Open, b.end)
			}
		}
		if open := series[i].Open; r.req.Live && len(open) > 0 {
			r.live[s.id] = append(r.live[s.id], sr.openIn(st, open))
		}
	}
	r.series[s.id] = series
}

// openRun is what the open buckets of a series hold.
type openRun struct {
	ref        uint64
	t          []int64
	v          []float64
	histograms []int64 // ends of buckets into which native histograms fell
}

// openIn returns what is in open buckets of a stream, of which it is given the ends. Buckets are closed in the order of their ends, so
// nothing in between has been closed. The samples are not copied: the run is shared from here on (P11).
func (s *seriesState) openIn(st *stream, open []int64) openRun {
	s.raw.shared = true
	out := openRun{ref: uint64(s.ref)}
	out.t, out.v = s.raw.between(st.before(open[0]), open[len(open)-1]-st.edge)
	for _, e := range open {
		if s.histogramIn(st, e) {
			out.histograms = append(out.histograms, e)
		}
	}
	return out
}

// pinned returns the one experiment whose series the matchers can select, if they say so.
func (s *Shard) pinned(ms []*labels.Matcher) (string, bool) {
	for _, m := range ms {
		if m.Name == s.plan.ExperimentLabel && m.Type == labels.MatchEqual {
			if m.Value == "" {
				return Unlabelled, true
			}
			return m.Value, true
		}
	}
	return "", false
}

// stream returns the stream if the plan in force has it.
func (s *Shard) stream(id plan.StreamID) *stream {
	for _, st := range s.streams {
		if st.spec.ID == id {
			return st
		}
	}
	return nil
}

// frontier returns the shard's part of φ, in bucket ends. While sealed, everything is published.
func (s *Shard) frontier(st *stream) int64 {
	if s.sealed {
		return math.MaxInt64
	}
	if s.proven == math.MinInt64 {
		return st.maxC
	}
	return max(st.bound(s.proven), st.maxC)
}

// member returns the series' place in the stream, and the series; nil if it has none.
func (s *Shard) member(ref log.SeriesRef, st *stream) (*member, *seriesState) {
	slot := s.slots.get(ref)
	if slot <= 0 {
		return nil, nil
	}
	sr := &s.series[slot-1]
	for j := range sr.members {
		if sr.members[j].stream == st {
			return &sr.members[j], sr
		}
	}
	return nil, nil
}

// finish reads the pieces, decodes the panes, and puts the series into label order.
func (p *Projection) finish(ctx context.Context, r *streamRead, room *room) (Answer, error) {
	a := Answer{Known: r.known, Materializing: r.planned && !r.known, CoverageStart: r.coverage, Frontier: r.frontier, Proven: r.proven}
	if !r.known {
		return a, nil
	}
	if r.req.Tracked {
		a.Tracked = r.tracked
		a.Tracked.settle()
		return a, nil
	}
	for i := range r.views {
		if r.views[i].Refs == nil {
			r.views[i].Refs = []uint64{} // none wanted, where nil would mean all
		}
	}
	from := max(r.req.From, min(r.expired, r.req.To))
	if err := p.wake(ctx, r, from); err != nil {
		return Answer{}, err
	}
	var err error
	if a.Pieces, err = p.collect(ctx, r, from, room); err != nil {
		return Answer{}, err
	}
	r.addLive()
	a.Series, err = p.ordered(r)
	return a, err
}

const (
	// sharedPanes is how many panes are worth a reader of their own.
	sharedPanes = 1 << 15
	// maxReaders bounds the readers of one request.
	maxReaders = 8
)

// collect decodes the panes of the views with an end in (from, To], and returns how many pieces they were in. Of a large read each reader
// takes some of the shards.
func (p *Projection) collect(ctx context.Context, r *streamRead, from int64, room *room) (pieces int, err error) {
	wanted := int64(0)
	for shard := range r.views {
		wanted += int64(len(r.views[shard].Refs))
	}
	wanted *= (r.req.To - from) / r.grid.Width
	readers := int(max(1, min(wanted/sharedPanes, int64(runtime.GOMAXPROCS(0)), maxReaders)))
	parts := make([]part, readers)
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		g.Go(func() error {
			own := part{to: r.req.To}
			views := r.views // a copy
			for shard := range views {
				if shard%readers != i {
					views[shard].View, views[shard].Refs = bucket.View{}, []uint64{}
				}
			}
			err := p.store.CollectRuns(ctx, r.key, r.grid, from, r.req.To, views[:], func(shard int, run *bucket.Run) error {
				return own.add(&r.series[shard][run.At], run)
			})
			for shard := range views {
				own.pieces += views[shard].Pieces
			}
			parts[i] = own
			return err
		})
	}
	err = g.Wait()
	for i := range parts {
		room.taken = append(room.taken, parts[i].room.taken...)
		pieces += parts[i].pieces
	}
	return pieces, err
}

// part is what one reader of several needs and has found.
type part struct {
	to     int64 // ms, the end of what is read
	room   room
	pieces int
}

// addLive puts what open buckets hold behind what closed ones do: per series they come later.
func (r *streamRead) addLive() {
	for shard := range r.live {
		i := 0
		for _, live := range r.live[shard] {
			for r.refs[shard][i] != live.ref {
				i++
			}
			s := &r.series[shard][i]
			n := len(s.T)
			s.T, s.V = append(s.T[:n:n], live.t...), append(s.V[:n:n], live.v...)
			s.Histograms = append(s.Histograms, live.histograms...)
		}
	}
}

// wake adds the evicted series that match and may have something in (from, To] to what was selected. The disk may tell of more than there
// was when the views were taken: those were resident then, and are in the selection if they match.
func (p *Projection) wake(ctx context.Context, r *streamRead, from int64) error {
	if from >= r.req.To || !slices.Contains(r.asleep[:], true) {
		return nil
	}
	lo, _ := r.grid.Locate(from + r.grid.Width)
	hi, _ := r.grid.Locate(r.req.To)
	var found [Shards][]uint64
	seen := make(map[uint64]struct{})
	meet := func(shard int, ref uint64) error {
		if _, ok := slices.BinarySearch(r.refs[shard], ref); ok {
			return nil
		}
		if _, ok := seen[ref]; ok {
			return nil
		}
		seen[ref] = struct{}{}
		ls, ok, err := p.index.Find(log.SeriesRef(ref))
		if err == nil && ok && series.MatchAll(ls, r.req.Matchers) {
			found[shard] = append(found[shard], ref)
		}
		return err
	}
	for shard, gone := range r.gone {
		if err := gone.in(r.key, lo, hi, r.group, func(ref uint64) error { return meet(shard, ref) }); err != nil {
			return err
		}
	}
	if err := p.store.EvictedIn(ctx, r.key, lo, hi, &r.asleep, r.group, meet); err != nil {
		return err
	}
	for shard := range found {
		r.widen(shard, found[shard])
	}
	return nil
}

// widen adds series of a shard that have nothing open.
func (r *streamRead) widen(shard int, found []uint64) {
	if len(found) == 0 {
		return
	}
	open := make(map[uint64][]int64)
	for i, ref := range r.refs[shard] {
		if o := r.series[shard][i].Open; o != nil {
			open[ref] = o
		}
	}
	refs := append(slices.Clone(r.refs[shard]), found...)
	slices.Sort(refs)
	r.refs[shard], r.views[shard].Refs = refs, refs
	r.series[shard] = make([]Series, len(refs))
	for i, ref := range refs {
		r.series[shard][i].Open = open[ref]
	}
}

// Stored implements series.Stored.
func (p *Projection) Stored(ctx context.Context, yield func(log.SeriesRef) error) error {
	var mu sync.Mutex
	gone := make([]departed, 0, Shards)
	expired := make(map[uint64]expiry)
	if _, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		mu.Lock()
		defer mu.Unlock()
		gone = append(gone, sh.evicted[:len(sh.evicted):len(sh.evicted)])
		for id, e := range s.expired {
			expired[uint64(id)] = e
		}
	}); err != nil {
		return err
	}
	streams, err := p.store.EvictedStreams()
	if err != nil {
		return err
	}
	for _, d := range gone {
		for i := range d {
			for _, s := range d[i].Streams {
				streams = append(streams, s.Stream)
			}
		}
	}
	slices.Sort(streams)
	for _, id := range slices.Compact(streams) {
		from := int64(math.MinInt64)
		if e, ok := expired[id]; ok {
			from, _ = e.grid.Locate(e.through + e.grid.Width)
		}
		for _, d := range gone {
			if err := d.in(id, from, math.MaxInt64, nil, func(ref uint64) error { return yield(log.SeriesRef(ref)) }); err != nil {
				return err
			}
		}
		if err := p.store.EvictedIn(ctx, id, from, math.MaxInt64, nil, nil, func(_ int, ref uint64) error {
			return yield(log.SeriesRef(ref))
		}); err != nil {
			return err
		}
	}
	return nil
}

// add appends the buckets of one block behind what the series has.
func (p *part) add(s *Series, run *bucket.Run) error {
	for rest := run.Incomplete; rest != 0; rest &= rest - 1 {
		s.Incomplete = append(s.Incomplete, run.End(bits.TrailingZeros32(rest)))
	}
	t, v := s.T, s.V
	for rest := run.Mask; rest != 0; rest &= rest - 1 {
		idx := bits.TrailingZeros32(rest)
		pane, end := run.Panes[idx], run.End(idx)
		if len(t) < cap(t) && len(v) < cap(v) {
			if at, x, ok := accum.DecodeOne(pane, end); ok {
				t, v = append(t, at), append(v, x)
				continue
			}
		}
		s.T, s.V = t, v
		if err := p.addPane(s, pane, end, run); err != nil {
			return err
		}
		t, v = s.T, s.V
	}
	s.T, s.V = t, v
	return nil
}

func (p *part) addPane(s *Series, pane []byte, end int64, run *bucket.Run) error {
	if accum.EncodedHasHistogram(pane) {
		s.Histograms = append(s.Histograms, end)
	}
	if n := accum.EncodedSamples(pane); len(s.T)+n > cap(s.T) {
		p.room.reserve(&s.Window, n, int((p.to-end)/run.Width)+1)
	}
	if _, err := accum.AppendDecoded(&s.Window, pane, end); err != nil {
		return fmt.Errorf("pane: series %d, bucket %d: %w", run.Ref, end, err)
	}
	return nil
}
