package main

import (
	"context"
	"sync"
	"time"

	"tidemark/log"
	"tidemark/transport/api"
)

const (
	// pulseStep is the time between two looks at the log's counters, and pulseSteps how many are kept: an hour.
	pulseStep  = 5 * time.Second
	pulseSteps = 720
)

// pulse keeps how fast the log has grown lately.
type pulse struct {
	metrics func() log.Metrics
	now     func() time.Time

	mu              sync.Mutex
	at              time.Time
	last            log.Metrics
	samples, events []float64 // per second, the newest last
}

func newPulse(metrics func() log.Metrics, now func() time.Time) *pulse {
	return &pulse{metrics: metrics, now: now}
}

// run takes the pulse until ctx ends, and returns nil then.
func (p *pulse) run(ctx context.Context) error {
	every := time.NewTicker(pulseStep)
	defer every.Stop()
	for {
		p.take()
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

// take notes what was added since the last time. The first time there is nothing to compare with.
func (p *pulse) take() {
	now, m := p.now(), p.metrics()
	p.mu.Lock()
	defer p.mu.Unlock()
	since := now.Sub(p.at).Seconds()
	first := p.at.IsZero()
	if !first && since <= 0 {
		return // the clock was set back: what was added shows at the next time
	}
	if !first {
		p.samples = pushRate(p.samples, float64(m.Samples-p.last.Samples)/since)
		p.events = pushRate(p.events, float64(m.Events-p.last.Events)/since)
	}
	p.at, p.last = now, m
}

func pushRate(rates []float64, r float64) []float64 {
	if len(rates) == pulseSteps {
		rates = append(rates[:0], rates[1:]...)
	}
	return append(rates, r)
}

// rates returns a copy of what is kept.
func (p *pulse) rates() api.LogRates {
	p.mu.Lock()
	defer p.mu.Unlock()
	return api.LogRates{
		Step: pulseStep.Milliseconds(), End: p.at.UnixMilli(),
		Samples: append([]float64{}, p.samples...), Events: append([]float64{}, p.events...),
	}
}
