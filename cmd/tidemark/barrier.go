package main

import (
	"context"
	"fmt"
	"math"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/pane"
	"tidemark/transport/api"
)

// barrier appends watermarks and drains, and waits until every worker has applied them. It implements api.Barrier.
type barrier struct {
	gate   *gate
	events *log.Log
	panes  *pane.Projection
	runner *projections.Runner
	known  func(ctx context.Context, experiment string) (bool, error)
	recent recentBarriers
}

// Watermark implements api.Barrier.
func (b *barrier) Watermark(ctx context.Context, w log.Watermark) (api.BarrierResult, error) {
	asked := api.RecentBarrier{Kind: "watermark", Mark: &w.Time}
	if w.Scoped {
		asked.Experiment = &w.Experiment
	}
	return b.remembered(asked, func() (api.BarrierResult, error) {
		seq, err := b.events.Append(ctx, &w)
		if err != nil {
			return api.BarrierResult{}, err
		}
		res, err := b.wait(ctx, seq)
		if err != nil {
			return res, err
		}
		res.Warnings = append(b.warnings(ctx, &w, &res), res.Warnings...)
		return res, nil
	})
}

// maxWarned bounds what a warning repeats of an experiment's name, in bytes.
const maxWarned = 200

// warnings says what a producer may not have meant by a watermark that was applied.
func (b *barrier) warnings(ctx context.Context, w *log.Watermark, res *api.BarrierResult) (out []string) {
	if res.CompleteThrough != math.MinInt64 && w.Time > res.CompleteThrough {
		out = append(out, fmt.Sprintf("time_ms=%d is farther ahead of now than --write.max-future: what was open up to it is closed, and complete is what ends at or before %d",
			w.Time, res.CompleteThrough))
	}
	if !w.Scoped {
		return out
	}
	// What it closed says that there was something. A name that nobody can look up now is not called unknown.
	if res.ClosedBuckets > 0 {
		return out
	}
	if known, err := b.known(ctx, w.Experiment); err == nil && !known {
		name := w.Experiment
		if len(name) > maxWarned {
			name = name[:maxWarned] + "…"
		}
		out = append(out, fmt.Sprintf("no experiment %q is known: no sample with this name was written before the watermark, so it has closed nothing", name))
	}
	return out
}

// Drain implements api.Barrier.
func (b *barrier) Drain(ctx context.Context) (api.BarrierResult, error) {
	return b.remembered(api.RecentBarrier{Kind: "drain"}, func() (api.BarrierResult, error) {
		seq, err := b.gate.drain(ctx)
		if err != nil {
			return api.BarrierResult{}, err
		}
		return b.wait(ctx, seq)
	})
}

// remembered runs a barrier and notes what became of it.
func (b *barrier) remembered(asked api.RecentBarrier, run func() (api.BarrierResult, error)) (api.BarrierResult, error) {
	began := b.gate.now()
	asked.At = began.UnixMilli()
	res, err := run()
	b.recent.note(asked, res, b.gate.now().Sub(began), err)
	return res, err
}

func (b *barrier) wait(ctx context.Context, seq log.Seq) (api.BarrierResult, error) {
	if err := b.runner.Wait(ctx, seq); err != nil {
		return api.BarrierResult{}, err
	}
	o, ok := b.panes.Outcome(seq)
	if !ok {
		return api.BarrierResult{}, fmt.Errorf("the outcome of event %d is no longer known", seq)
	}
	res := api.BarrierResult{Seq: seq, ClosedBuckets: int64(o.Closed), CompleteThrough: o.CompleteThrough}
	if p := b.panes.Plan(); p == nil || len(p.Streams) == 0 {
		res.CompleteThrough = math.MinInt64
	}
	return res, nil
}
