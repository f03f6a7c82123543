package pane

import (
	"math"
	"sync"
	"unsafe"

	"tidemark/log"
	"tidemark/projections/bucket"
)

const (
	// recentSpan is how long a write is remembered, in ms of log time, counted from the last start where that is later.
	recentSpan = 10 * 60 * 1000
	// maxRecent bounds the writes that are remembered; beyond it the oldest are forgotten, by count, so that every run forgets
	// the same ones.
	maxRecent = 1 << 20
)

// recentWrites finds writes that repeat an earlier one, whole: a retry after an acknowledgement was lost, also across crashes
// of either side. It is part of the fold: what it says of an event depends on the events before it alone.
//
// What it remembers is a suffix of the write and start events, from some sequence on. Checkpoints keep that suffix on disk, a
// little more of it than is remembered now: a restart replays from an earlier event, at which more was remembered. Going
// through the kept suffix again gives the memory as it was there, because a write that is gone from disk was forgotten before.
//
// One goroutine judges; another takes what is to be written with a checkpoint.
type recentWrites struct {
	mu        sync.Mutex
	queue     recentQueue // by sequence: starts, and writes, each the newest of its content or superseded
	logTime   int64       // of the last write or start
	startedAt int64       // log time of the last start
	judged    log.Seq     // last event seen

	savedTo log.Seq // everything up to here is in committed checkpoints
	// What was forgotten before it was saved. It grows while checkpoints fail; so it counts as waiting, and beyond a bound of that writes are
	// refused (see Projection.Waiting).
	spill []bucket.Recent
	keep  log.Seq      // what stands before it on disk is not needed by any restart
	marks []recentMark // by sequence
}

// recentMark says what was the oldest write remembered at an event.
type recentMark struct{ at, oldest log.Seq }

func newRecentWrites() *recentWrites {
	return &recentWrites{logTime: math.MinInt64, startedAt: math.MinInt64}
}

// restoreRecent goes through what the store kept, up to the event from which the fold goes on.
func restoreRecent(store *bucket.Store, at log.Seq) (*recentWrites, error) {
	r := newRecentWrites()
	kept, err := store.Recent(uint64(at))
	if err != nil {
		return nil, err
	}
	r.savedTo = at
	for _, e := range kept {
		r.see(e)
	}
	r.judged = at
	return r, nil
}

// judge takes events in order and gives for each write that repeats an earlier one the newest of those; nil if none does.
func (r *recentWrites) judge(events []*log.Event) []log.Seq {
	r.mu.Lock()
	defer r.mu.Unlock()
	var repeats []log.Seq
	for i, ev := range events {
		r.judged = ev.Seq
		switch b := ev.Body.(type) {
		case *log.Start:
			r.see(bucket.Recent{Seq: uint64(ev.Seq), LogTime: ev.LogTime, Start: true})
		case *log.Write:
			if earlier := r.see(bucket.Recent{Seq: uint64(ev.Seq), LogTime: ev.LogTime, Hash: b.Hash}); earlier != 0 {
				if repeats == nil {
					repeats = make([]log.Seq, len(events))
				}
				repeats[i] = earlier
			}
		}
	}
	return repeats
}

// see takes one write or start. Of a write that repeats one which is remembered it returns that one.
func (r *recentWrites) see(e bucket.Recent) (earlier log.Seq) {
	if e.Start {
		// What was forgotten by the event before stays forgotten; what was remembered is young again.
		r.forget(r.logTime)
		r.startedAt = e.LogTime
	} else {
		r.forget(e.LogTime)
	}
	r.logTime = e.LogTime
	return r.queue.push(e)
}

// forget drops the writes that are too old at a log time, or too many for one more, and the starts before them.
func (r *recentWrites) forget(now int64) {
	for r.queue.len() > 0 {
		e := r.queue.at(0)
		if !e.Start && r.queue.len() < maxRecent && satSub(now, max(e.LogTime, r.startedAt)) <= recentSpan {
			break
		}
		if log.Seq(e.Seq) > r.savedTo {
			r.spill = append(r.spill, e)
		}
		r.queue.pop()
	}
}

// unsaved returns what a checkpoint at seq adds to those that are committed, and from where on the disk must keep.
func (r *recentWrites) unsaved(seq log.Seq) (add []bucket.Recent, keep log.Seq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.spill {
		if log.Seq(e.Seq) <= seq {
			add = append(add, e)
		}
	}
	for i := r.queue.len() - 1; i >= 0; i-- {
		e := r.queue.at(i)
		if log.Seq(e.Seq) <= r.savedTo {
			break
		}
		if log.Seq(e.Seq) <= seq {
			add = append(add, e)
		}
	}
	return add, r.keep
}

// saved notes that a checkpoint at seq was committed.
func (r *recentWrites) saved(seq log.Seq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq <= r.savedTo {
		return
	}
	r.savedTo = seq
	kept := r.spill[:0]
	for _, e := range r.spill {
		if log.Seq(e.Seq) > seq {
			kept = append(kept, e)
		}
	}
	if len(kept) == 0 {
		kept = nil // it may have been long
	}
	r.spill = kept
}

// spilled returns the bytes of what was forgotten before a checkpoint could save it.
func (r *recentWrites) spilled() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(cap(r.spill)) * int64(unsafe.Sizeof(bucket.Recent{}))
}

// durable notes that every restart from now on replays from seq or later: what was forgotten there can go.
func (r *recentWrites) durable(seq log.Seq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.marks) > 0 && r.marks[0].at <= seq {
		r.keep = r.marks[0].oldest
		r.marks = r.marks[1:]
	}
	oldest := r.judged + 1
	if r.queue.len() > 0 {
		oldest = log.Seq(r.queue.at(0).Seq)
	}
	if n := len(r.marks); n == 0 || r.marks[n-1].oldest < oldest {
		r.marks = append(r.marks, recentMark{at: r.judged, oldest: oldest})
	}
}

// encode returns what is remembered; decode is its inverse.
func (r *recentWrites) encode() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := encoder{b: make([]byte, 0, 16+32*r.queue.len())}
	e.v(r.logTime)
	e.v(r.startedAt)
	e.u(uint64(r.queue.len()))
	for i := range r.queue.len() {
		q := r.queue.at(i)
		e.u(q.Seq)
		e.v(q.LogTime)
		if q.Start {
			e.u(1)
			continue
		}
		e.u(0)
		e.b = append(e.b, q.Hash[:]...)
	}
	return e.b
}

func (r *recentWrites) decode(b []byte, at log.Seq) error {
	d := decoder{b: b}
	r.logTime, r.startedAt, r.judged = d.v(), d.v(), at
	for range d.count(3) {
		q := bucket.Recent{Seq: d.u(), LogTime: d.v(), Start: d.u() != 0}
		if !q.Start {
			copy(q.Hash[:], d.take(len(q.Hash)))
		}
		r.queue.push(q)
	}
	if d.err == nil && len(d.b) != 0 {
		d.fail("bytes behind the last write")
	}
	return d.err
}
