package pane

import (
	"fmt"
	"math"

	"tidemark/log"
)

// data path 4 of 6: fold into panes. Here writes that stand one behind the other in the log are folded together, series by series.
//
// A series' state lies in half a dozen places in memory, and between two events of a replay all the other series have driven it out of
// the processor's caches. So the writes of a batch are walked in step: from each the runs of the next few hundred series, then from each
// those of the following. Every series still meets its samples in the order of the log, at the sequence and the log time of their event.
// What is kept beside the series does not depend on the order in which different series meet theirs (P1): it is sums, sets and maxima, and
// where it says what came last, it says it by the sequence. What does depend on it ends the walk: see plainWrites.

// inStep is the number of runs of one event that are folded before the other events' turn comes. The series of so many runs, as far as they
// are a worker's, fit into the cache that one processor has for itself.
const inStep = 128

// plainWrites returns how many of the events from the first on can be folded together: writes that name series in memory and nothing new,
// behind the last of which, at the latest, series or marks are due to be forgotten.
func (w *worker) plainWrites(events []*log.Event, repeats []log.Seq) int {
	if len(w.hosted) > 0 || len(events) < 2 {
		return 0
	}
	at := w.any()
	due := int64(math.MaxInt64) // log time behind which a shard forgets marks of unwanted series
	for _, s := range w.shards {
		switch {
		case s == nil:
			continue
		case s.seq+1 != events[0].Seq || s.corrupt != nil || s.shadow != nil || s.unwantedSince == math.MinInt64:
			return 0
		}
		due = min(due, satAdd(s.unwantedSince, s.unwantedStay()))
	}
	logTime := at.logTime
	for n, ev := range events {
		b, ok := ev.Body.(*log.Write)
		if !ok || ev.Seq != events[0].Seq+log.Seq(n) || repeats != nil && repeats[n] > 0 || !w.allResident(b) {
			return n
		}
		before := logTime
		logTime = max(logTime, ev.LogTime)
		if before/evictEvery != logTime/evictEvery || logTime > due {
			return n + 1
		}
	}
	return len(events)
}

// allResident says whether a write is of nothing but samples of series that the worker's shards know, or that are other workers'.
func (w *worker) allResident(b *log.Write) bool {
	if len(b.Defs)+len(b.Histograms)+len(b.Exemplars) > 0 {
		return false
	}
	for _, ref := range b.Refs {
		if s := w.shards[ShardOf(ref)]; s != nil && s.slots.get(ref) == 0 {
			return false
		}
	}
	return true
}

// together folds plain writes.
func (w *worker) together(events []*log.Event) error {
	start := w.any().logTime
	next := make([]int, len(events)) // the run of each event whose turn it is
	for {
		through, more := lastInStep(events, next)
		if !more {
			break
		}
		logTime := start
		for i, ev := range events {
			logTime = max(logTime, ev.LogTime)
			next[i] = w.shards.runs(ev, next[i], through, logTime)
		}
	}
	w.settleWrites(events, start)
	w.collect()
	last := events[len(events)-1].Seq
	for _, s := range w.shards {
		if s != nil && s.corrupt != nil {
			return fmt.Errorf("apply events %d to %d (writes): %w", events[0].Seq, last, s.corrupt)
		}
	}
	w.applied.Store(uint64(last))
	return nil
}

// lastInStep returns the last series of the next step: so many runs behind the least that is left.
func lastInStep(events []*log.Event, next []int) (through log.SeriesRef, more bool) {
	least := log.SeriesRef(math.MaxUint64)
	for i, ev := range events {
		b := ev.Body.(*log.Write)
		if next[i] < len(b.Refs) && b.Refs[next[i]] <= least {
			least, more = b.Refs[next[i]], true
			through = b.Refs[min(next[i]+inStep, len(b.Refs))-1]
		}
	}
	return through, more
}

// runs applies the runs of a write from one on, up to a series, and returns the run behind them.
func (g *group) runs(ev *log.Event, i int, through log.SeriesRef, logTime int64) int {
	b := ev.Body.(*log.Write)
	from := uint32(0)
	if i > 0 {
		from = b.Ends[i-1]
	}
	for ; i < len(b.Refs) && b.Refs[i] <= through; i++ {
		to := b.Ends[i]
		if s := g[ShardOf(b.Refs[i])]; s != nil {
			s.seq, s.logTime = ev.Seq, logTime
			s.applyRun(ev, b.Refs[i], b.Times[from:to], b.Values[from:to], nil)
		}
		from = to
	}
	return i
}

// settleWrites puts every shard behind the last of the events.
func (w *worker) settleWrites(events []*log.Event, logTime int64) {
	before, maxT := logTime, int64(math.MinInt64)
	for _, ev := range events {
		before, logTime = logTime, max(logTime, ev.LogTime)
		maxT = max(maxT, newestIn(ev.Body.(*log.Write)))
	}
	for _, s := range w.shards {
		if s == nil {
			continue
		}
		s.seq, s.logTime = events[len(events)-1].Seq, logTime
		s.evicts = before/evictEvery != logTime/evictEvery
		s.maxT = max(s.maxT, maxT)
		for _, st := range s.streams {
			st.track.settleJournal()
		}
		s.evictIdle()
	}
}
