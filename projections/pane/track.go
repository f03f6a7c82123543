package pane

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"tidemark/log"
	"tidemark/projections/plan"
)

// tracker is what a stream within one shard remembers for those who keep what was computed from its panes: recorded windows.
// It is part of the shard's state, so it lands in one batch with what changed (P7).
//
// Who has computed everything anew that a bucket takes part in has it forgotten. What is forgotten and comes back after a
// crash, because the forgetting was not on disk, names an event that is no newer than the computation.
type tracker struct {
	since   log.Seq           // changes are known from the events after this one on; 0: the stream is not tracked
	changed map[int64]log.Seq // by bucket end: the last event that opened, closed, corrected or marked a bucket of any series there
	open    map[int64]int     // by bucket end: open buckets

	// The changes in the order of their events, so that who follows them reads only what is new. What it has seen is dropped; it
	// is not part of the state.
	journal []endChange
}

type endChange struct {
	end int64
	seq log.Seq
}

// maxJournal is how much longer than the changes themselves the journal grows while nobody reads it, before it is made anew
// from them.
const maxJournal = 1024

func (t *tracker) tracked() bool { return t.changed != nil }

// begin starts tracking behind the event at seq. The open buckets are to be counted.
func (t *tracker) begin(since log.Seq) {
	*t = tracker{since: since, changed: make(map[int64]log.Seq), open: make(map[int64]int)}
}

// change notes that a bucket ending at e has changed at seq.
func (t *tracker) change(e int64, seq log.Seq) {
	if t.changed == nil || t.changed[e] >= seq { // writes that are folded together come series by series
		return
	}
	t.changed[e] = seq
	t.journal = append(t.journal, endChange{e, seq})
	if len(t.journal) > 4*len(t.changed)+maxJournal {
		t.rewrite()
	}
}

// rewrite makes the journal from the changes.
func (t *tracker) rewrite() {
	t.journal = t.journal[:0]
	for end, seq := range t.changed {
		t.journal = append(t.journal, endChange{end, seq})
	}
	slices.SortFunc(t.journal, func(a, b endChange) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.end, b.end))
	})
}

// settleJournal puts the journal in order after writes were folded together.
func (t *tracker) settleJournal() {
	inOrder := func(a, b endChange) int { return cmp.Compare(a.seq, b.seq) }
	if !slices.IsSortedFunc(t.journal, inOrder) {
		slices.SortStableFunc(t.journal, inOrder)
	}
}

// after returns the changes of events after seq, and drops those before from the journal.
func (t *tracker) after(seq log.Seq) []endChange {
	i, _ := slices.BinarySearchFunc(t.journal, seq+1, func(c endChange, s log.Seq) int { return cmp.Compare(c.seq, s) })
	t.journal = t.journal[i:]
	return t.journal
}

// opened and shut count open buckets, and are changes.
func (t *tracker) opened(e int64, seq log.Seq) {
	if t.changed != nil {
		t.open[e]++
		t.change(e, seq)
	}
}

func (t *tracker) shut(e int64) {
	if t.changed == nil {
		return
	}
	if t.open[e]--; t.open[e] <= 0 {
		delete(t.open, e)
	}
}

// track begins and ends tracking as the plan in force wants it, and counts the open buckets of streams that are newly tracked.
func (s *Shard) track() {
	wanted := s.plan.Tracked()
	counted := make(map[*stream]bool)
	for _, st := range s.streams {
		_, ok := wanted[st.spec.ID]
		switch {
		case ok && !st.track.tracked():
			// What was computed before a generation began is not of its buckets.
			st.track.begin(max(s.seq, s.generation))
			counted[st] = true
		case !ok:
			st.track = tracker{}
		}
	}
	s.countOpen(counted)
}

// countOpen counts the open buckets of streams whose tracker has none yet.
func (s *Shard) countOpen(of map[*stream]bool) {
	if len(of) == 0 {
		return
	}
	for i := range s.series {
		for j := range s.series[i].members {
			m := &s.series[i].members[j]
			if of[m.stream] {
				for _, b := range m.open {
					m.stream.track.open[b.end]++
				}
			}
		}
	}
}

// encodeTracks appends the trackers of all streams: since:u (0: not tracked, and nothing follows), changed: count:u, then by
// increasing end the ends and for each its seq:u.
func (s *Shard) encodeTracks(e *encoder) {
	for _, st := range s.streams {
		if !st.track.tracked() {
			e.u(0)
			continue
		}
		e.u(uint64(st.track.since) + 1)
		ends := slices.Sorted(maps.Keys(st.track.changed))
		e.increasing(ends)
		for _, end := range ends {
			e.u(uint64(st.track.changed[end]))
		}
	}
}

func (s *Shard) decodeTracks(d *decoder) {
	counted := make(map[*stream]bool)
	for _, st := range s.streams {
		since := d.u()
		if d.err != nil || since == 0 {
			continue
		}
		st.track.begin(log.Seq(since - 1))
		counted[st] = true
		for _, end := range d.increasing(d.count(2)) {
			st.track.changed[end] = log.Seq(d.u())
		}
		st.track.rewrite()
	}
	if d.err == nil {
		s.countOpen(counted)
	}
}

// Tracked is what a stream says of the buckets of all its series, for those who keep what was computed from them.
type Tracked struct {
	// Since is the event after which changes are known. What was computed as of an earlier one cannot be judged.
	Since log.Seq
	// Changed gives for the ends of buckets the last event that opened, closed, corrected or marked one there, until it is
	// forgotten.
	Changed map[int64]log.Seq
	// Open are the ends at which a series has an open bucket, increasing.
	Open []int64
}

// add takes over what one shard knows of the ends in (from, to].
func (t *Tracked) add(o *tracker, from, to int64) {
	if t.Changed == nil {
		t.Changed = make(map[int64]log.Seq)
	}
	t.Since = max(t.Since, o.since)
	for end, seq := range o.changed {
		if end > from && end <= to {
			t.Changed[end] = max(t.Changed[end], seq)
		}
	}
	for end := range o.open {
		if end > from && end <= to {
			t.Open = append(t.Open, end)
		}
	}
}

// follow takes over what one shard knows that is newer than the event at seq.
func (t *Tracked) follow(o *tracker, after log.Seq) {
	if t.Changed == nil {
		t.Changed = make(map[int64]log.Seq)
	}
	t.Since = max(t.Since, o.since)
	if after == 0 {
		o.rewrite()
	}
	for _, c := range o.after(after) {
		t.Changed[c.end] = max(t.Changed[c.end], c.seq)
	}
	for end := range o.open {
		t.Open = append(t.Open, end)
	}
}

// settle puts Open in order.
func (t *Tracked) settle() {
	slices.Sort(t.Open)
	t.Open = slices.Compact(t.Open)
}

// TrackedStream is a tracked stream over all shards, as of one sequence.
type TrackedStream struct {
	ID            plan.StreamID
	PaneMillis    int64
	CoverageStart int64 // ms; math.MinInt64 if folded from the first event
	Frontier      int64 // φ, ms; math.MinInt64 before anything closed; math.MaxInt64 while input is sealed
	Tracked
}

// TrackedStreams returns the tracked streams of the plan in force. Of those that are known, with their Since, Changed has the
// changes of events after the given one, for one who follows them: what came before is not told again. Of others, which may bring
// their history with them, it has all that is not forgotten.
func (p *Projection) TrackedStreams(ctx context.Context, after log.Seq, known map[plan.StreamID]log.Seq) (log.Seq, []TrackedStream, error) {
	var mu sync.Mutex
	at := make(map[plan.StreamID]int)
	var out []TrackedStream
	seq, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		mu.Lock()
		defer mu.Unlock()
		for _, st := range s.streams {
			if !st.track.tracked() {
				continue
			}
			i, ok := at[st.spec.ID]
			if !ok {
				i = len(out)
				at[st.spec.ID] = i
				out = append(out, TrackedStream{
					ID: st.spec.ID, PaneMillis: st.width, CoverageStart: st.coverage, Frontier: math.MinInt64,
				})
			}
			frontier := s.frontier(st)
			for _, t := range s.experimentsOf(st) {
				frontier = max(frontier, st.bound(t))
			}
			out[i].Frontier = max(out[i].Frontier, frontier)
			from := log.Seq(0)
			if since, ok := known[st.spec.ID]; ok && since == st.track.since {
				from = after
			}
			out[i].follow(&st.track, from)
		}
	})
	if err != nil {
		return 0, nil, err
	}
	for i := range out {
		out[i].settle()
	}
	return seq, out, nil
}

// experimentsOf returns what barriers proved for the one experiment that the stream's selector pins, if it does.
func (s *Shard) experimentsOf(st *stream) []int64 {
	if name, ok := s.pinned(st.matchers); ok {
		if t, ok := s.experiments[name]; ok {
			return []int64{t}
		}
	}
	return nil
}

// Forget has the streams forget changes up to the given events. It may be called with what is forgotten already.
func (p *Projection) Forget(ctx context.Context, changes map[plan.StreamID]map[int64]log.Seq) error {
	_, err := p.cut(ctx, func(s *Shard, _ *shelf) {
		for _, st := range s.streams {
			for end, seq := range changes[st.spec.ID] {
				if have, ok := st.track.changed[end]; ok && have <= seq {
					delete(st.track.changed, end)
				}
			}
		}
	})
	return err
}
