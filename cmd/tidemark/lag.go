package main

import (
	"sync"
	"time"

	"tidemark/log"
)

// maxLagSamples bounds the heads that a lagMeter remembers; beyond it the oldest stay, which are those that tell the lag.
const maxLagSamples = 4096

// lagMeter tells how far a projection is behind the log, in time: the age of the oldest head of the log, as it was seen once
// a second, that is not applied yet.
type lagMeter struct {
	events interface{ Head() log.Seq }
	folds  interface{ Applied() (log.Seq, error) }
	counts func() bool // whether the lag counts among others yet; nil: always

	mu    sync.Mutex
	heads []seenHead
}

type seenHead struct {
	seq log.Seq
	at  time.Time
}

func newLagMeter(events interface{ Head() log.Seq }, folds interface{ Applied() (log.Seq, error) }) *lagMeter {
	return &lagMeter{events: events, folds: folds}
}

// look notes the head of the log.
func (m *lagMeter) look(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	if h := m.events.Head(); len(m.heads) < maxLagSamples && (len(m.heads) == 0 || m.heads[len(m.heads)-1].seq < h) {
		m.heads = append(m.heads, seenHead{h, now})
	}
}

// forget drops the heads that are applied.
func (m *lagMeter) forget() {
	applied, _ := m.folds.Applied()
	i := 0
	for i < len(m.heads) && m.heads[i].seq <= applied {
		i++
	}
	m.heads = append(m.heads[:0], m.heads[i:]...)
}

// lag returns the lag, to about a second.
func (m *lagMeter) lag(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	if len(m.heads) == 0 {
		return 0
	}
	return now.Sub(m.heads[0].at)
}

// lagMeters tell the lag of whatever is furthest behind, of what counts.
type lagMeters []*lagMeter

func (m lagMeters) look(now time.Time) {
	for _, one := range m {
		one.look(now)
	}
}

func (m lagMeters) lag(now time.Time) (worst time.Duration) {
	for _, one := range m {
		if one.counts == nil || one.counts() {
			worst = max(worst, one.lag(now))
		}
	}
	return worst
}
