package pane

import (
	"tidemark/log"
	"tidemark/projections/plan"
)

// timer is the earliest log time at which a member may have a bucket to close by the clock. Touches move the true deadline
// later without touching the heap, so an entry may be early, and is then put back; it is never late.
type timer struct {
	deadline int64 // log time, ms
	series   int32
	member   uint16
	gen      uint16 // of the series' place
}

// timerHeap is a binary min-heap by deadline.
type timerHeap []timer

func (h *timerHeap) push(t timer) {
	*h = append(*h, t)
	q := *h
	for i := len(q) - 1; i > 0; {
		p := (i - 1) / 2
		if q[p].deadline <= q[i].deadline {
			break
		}
		q[p], q[i] = q[i], q[p]
		i = p
	}
}

func (h *timerHeap) pop() timer {
	q := *h
	top := q[0]
	n := len(q) - 1
	q[0] = q[n]
	q = q[:n]
	*h = q
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && q[c+1].deadline < q[c].deadline {
			c++
		}
		if q[i].deadline <= q[c].deadline {
			break
		}
		q[i], q[c] = q[c], q[i]
		i = c
	}
	return top
}

// deadline returns the log time at which an open bucket closes by the clock if nothing touches it. Ages count from the later
// of the touch and the last start, so that downtime closes nothing that the backlog is about to fill.
func (s *Shard) deadline(m *member, b *openBucket) int64 {
	patience := satAdd(max(m.stream.width, s.plan.IdleTimeoutMillis), m.stream.spec.LatenessMillis)
	idle := satAdd(satAdd(max(b.last, s.startedAt), patience), s.plan.IdleGraceMillis)
	if plantedTickLate {
		idle++
	}
	if m.stream.spec.Late == plan.Drop {
		return idle
	}
	// Late samples are corrections, so a bucket need not stay open for as long as it is written.
	open := satAdd(satAdd(max(b.first, s.startedAt), patience), s.plan.OpenGraceMillis)
	return min(idle, open)
}

// tick closes what is due by the clock. A bucket closes for itself alone: an older one of the series that is still written
// stays open until its own deadline.
func (s *Shard) tick(ev *log.Event) {
	for len(s.timers) > 0 && s.timers[0].deadline <= s.logTime {
		t := s.timers.pop()
		sr := &s.series[t.series]
		if sr.gen != t.gen {
			continue // it is gone
		}
		m := &sr.members[t.member]
		keep, n := m.open[:0], 0
		for _, b := range m.open {
			if s.deadline(m, &b) > s.logTime {
				keep = append(keep, b)
				continue
			}
			s.publish(sr, m, b.end)
			m.stream.track.shut(b.end)
			s.raise(ev, sr, m, b.end)
			n++
		}
		m.open = keep
		s.closed(sr, m, n)
		s.arm(t.series, t.member)
	}
}

// arm puts a member with open buckets into the heap, under its earliest deadline.
func (s *Shard) arm(series int32, mi uint16) {
	m := &s.series[series].members[mi]
	m.armed = len(m.open) > 0
	if !m.armed {
		return
	}
	d := s.deadline(m, &m.open[0])
	for i := range m.open[1:] {
		d = min(d, s.deadline(m, &m.open[i+1]))
	}
	s.timers.push(timer{deadline: d, series: series, member: mi, gen: s.series[series].gen})
}

// rearm builds both heaps anew, when members or timers have changed.
func (s *Shard) rearm() {
	s.timers, s.idle = s.timers[:0], s.idle[:0]
	for i := range s.series {
		sr := &s.series[i]
		if sr.ref == 0 {
			continue
		}
		for j := range sr.members {
			s.arm(int32(i), uint16(j))
		}
		s.idle.push(timer{deadline: satAdd(sr.lastNamed, s.stay(sr)), series: int32(i), gen: sr.gen})
	}
}

// Due reports whether a tick at the given log time would close something. It puts early timers back, which changes no
// content.
func (s *Shard) Due(logTime int64) bool {
	for len(s.timers) > 0 && s.timers[0].deadline <= logTime {
		t := s.timers.pop()
		if s.series[t.series].gen != t.gen {
			continue
		}
		s.arm(t.series, t.member)
		if s.memberDue(t, logTime) {
			return true
		}
	}
	return false
}

// memberDue says whether a member has a bucket to close at the log time.
func (s *Shard) memberDue(t timer, logTime int64) bool {
	m := &s.series[t.series].members[t.member]
	for i := range m.open {
		if s.deadline(m, &m.open[i]) <= logTime {
			return true
		}
	}
	return false
}
