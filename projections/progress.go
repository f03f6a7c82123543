package projections

import (
	"fmt"
	"time"

	"tidemark/log"
)

const (
	// rateWindow is the time over which the rates of a Meter are taken.
	rateWindow = 10 * time.Second
	// rateMarks is the number of places at which they may begin.
	rateMarks = 10
)

// Meter says how far an offline fold is, how fast it goes, and how long it will take. One goroutine uses it.
type Meter struct {
	now           func() time.Time
	from, through log.Seq
	begun         time.Time
	seq           log.Seq
	samples       uint64
	marks         []mark // by time, the oldest just outside of the window; never empty
}

type mark struct {
	at      time.Time
	seq     log.Seq
	samples uint64
}

// NewMeter measures the fold of the events after from up to through. It begins now.
func NewMeter(from, through log.Seq, now func() time.Time) *Meter {
	m := &Meter{now: now, from: from, through: through, begun: now(), seq: from}
	m.marks = []mark{{at: m.begun, seq: from}}
	return m
}

// Observe notes that the fold has come to seq, by a step with that many samples.
func (m *Meter) Observe(seq log.Seq, samples uint64) {
	m.seq, m.samples = seq, m.samples+samples
	now := m.now()
	if now.Sub(m.marks[len(m.marks)-1].at) < rateWindow/rateMarks {
		return
	}
	m.marks = append(m.marks, mark{at: now, seq: m.seq, samples: m.samples})
	for len(m.marks) > 2 && now.Sub(m.marks[1].at) >= rateWindow {
		m.marks = m.marks[1:]
	}
}

// Progress is what a Meter shows.
type Progress struct {
	Seq, Through     log.Seq
	Percent          float64 // of the events; 100 if there were none
	Events, Samples  uint64  // folded so far
	EventsPerSecond  float64 // over the last seconds; 0 if there is nothing to tell it by
	SamplesPerSecond float64
	Left             time.Duration // negative: unknown
	Elapsed          time.Duration
}

// Progress returns what is known now.
func (m *Meter) Progress() Progress {
	now := m.now()
	p := Progress{
		Seq: m.seq, Through: m.through, Percent: 100, Left: -1,
		Events: uint64(m.seq - m.from), Samples: m.samples, Elapsed: now.Sub(m.begun),
	}
	if m.through > m.from {
		p.Percent = 100 * float64(m.seq-m.from) / float64(m.through-m.from)
	}
	since := m.marks[0]
	if s := now.Sub(since.at).Seconds(); s > 0 {
		p.EventsPerSecond = float64(m.seq-since.seq) / s
		p.SamplesPerSecond = float64(m.samples-since.samples) / s
	}
	switch {
	case m.seq >= m.through:
		p.Left = 0
	case p.EventsPerSecond > 0:
		p.Left = time.Duration(float64(m.through-m.seq) / p.EventsPerSecond * float64(time.Second))
	}
	return p
}

// Total is the progress with its rates over the whole time.
func (m *Meter) Total() Progress {
	p := m.Progress()
	p.EventsPerSecond, p.SamplesPerSecond = 0, 0
	if s := p.Elapsed.Seconds(); s > 0 {
		p.EventsPerSecond, p.SamplesPerSecond = float64(p.Events)/s, float64(p.Samples)/s
	}
	return p
}

// String is the progress on one line.
func (p Progress) String() string {
	left := "unknown"
	if p.Left >= 0 {
		left = p.Left.Round(time.Second).String()
	}
	return fmt.Sprintf("%5.1f%%  event %d of %d  %s events/s  %s samples/s  ETA %s",
		p.Percent, p.Seq, p.Through, short(p.EventsPerSecond), short(p.SamplesPerSecond), left)
}

// short prints three digits and a power of a thousand.
func short(v float64) string {
	for _, unit := range [...]string{"", "k", "M"} {
		if v < 999.5 {
			return fmt.Sprintf("%.3g%s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3gG", v)
}
