package pane

import (
	"context"
	"fmt"
	"time"

	"tidemark/log"
)

// tickInterval is the least time between two ticks.
const tickInterval = time.Second

// TickLog is where ticks are appended.
type TickLog interface {
	Append(ctx context.Context, body log.Body) (log.Seq, error)
	LogTime() int64
}

// Ticker lets log time pass: it appends a tick when a bucket is due by the clock, at most once a second. The clock only
// decides when the event is written; what it closes follows from the log time in it.
type Ticker struct {
	panes  *Projection
	events TickLog
}

// NewTicker returns a ticker; Run starts it.
func NewTicker(p *Projection, events TickLog) *Ticker {
	return &Ticker{panes: p, events: events}
}

// Run ticks until ctx ends, and returns nil then.
func (t *Ticker) Run(ctx context.Context) error {
	every := time.NewTicker(tickInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		due, err := t.panes.Due(ctx, t.events.LogTime())
		if err == nil && due {
			_, err = t.events.Append(ctx, &log.Tick{})
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("tick: %w", err)
		}
	}
}
