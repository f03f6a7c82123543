package main

import (
	"errors"
	"fmt"
	"io"

	"tidemark/log"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// wantedEvent returns the first event that the streams need that are being folded from the log, as far as plans say that the views
// know, and those behind them.
func wantedEvent(events *log.Log, panes *pane.Projection, applied log.Seq) (log.Seq, error) {
	wanted := panes.Wanted()
	known := make(map[plan.StreamID]struct{})
	for i := range panes.Plan().Streams {
		known[panes.Plan().Streams[i].ID] = struct{}{}
	}
	for r := events.NewReader(max(applied+1, events.Floor())); ; {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return wanted, nil
		}
		if err != nil {
			return 0, err
		}
		body, ok := ev.Body.(*log.Plan)
		if !ok {
			continue
		}
		p, err := plan.Decode(body.Spec)
		if err != nil {
			return 0, fmt.Errorf("event %d: %w", ev.Seq, err)
		}
		now := make(map[plan.StreamID]struct{})
		for i := range p.Streams {
			id := p.Streams[i].ID
			if _, ok := known[id]; !ok && p.FromSeq > 0 {
				wanted = min(wanted, log.Seq(p.FromSeq))
			}
			now[id] = struct{}{}
		}
		known = now
	}
}
