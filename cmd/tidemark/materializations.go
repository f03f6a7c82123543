package main

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/transport/api"
)

// The states of a materialization.
const (
	// materializing: some of its streams are still being folded from the log; queries over it miss.
	stateMaterializing = "materializing"
	// ready: it is folded as far as the log goes. It is about to be handed over, or its steps are still being recorded, and
	// answered from panes until then.
	stateReady = "ready"
	// serving: it answers.
	stateServing = "serving"
)

// Materializations implements api.Materializations.
func (n *node) Materializations(ctx context.Context) ([]api.Materialization, error) {
	_, states, _, err := n.panes.Streams(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := n.views.Stats()
	if err != nil {
		return nil, err
	}
	byID := make(map[plan.StreamID]*pane.StreamState, len(states))
	for i := range states {
		byID[states[i].ID] = &states[i]
	}
	applied, err := n.panes.Applied()
	if err != nil {
		return nil, err
	}
	filling := make(map[plan.StreamID]*pane.Backfill)
	fills := n.panes.Backfills()
	for i := range fills {
		for _, id := range fills[i].Streams {
			filling[id] = &fills[i]
		}
	}
	p := n.panes.Plan()
	out := make([]api.Materialization, 0, len(p.Materializations))
	for i := range p.Materializations {
		m := &p.Materializations[i]
		row := api.Materialization{
			Name: m.Name, Expr: m.Expr, Layout: m.Layout, State: stateServing, LagEvents: int64(n.events.Head() - applied),
			Every: model.Duration(time.Duration(m.EveryMillis) * time.Millisecond).String(),
		}
		used := n.engine.Uses(m.Name)
		row.Hits, row.Misses = used.Hits, used.Misses
		if m.Layout == plan.LayoutFullWindow && n.recorder.Recording(p, m) {
			row.State = stateReady
		}
		for _, id := range m.Streams {
			st := byID[id]
			if st == nil {
				row.State, row.Backfill = n.backfillOf(filling[id], row)
				continue
			}
			row.OpenBuckets += int64(st.Open)
			row.Pieces += int64(stats[st.Key].Pieces)
			row.Bytes += stats[st.Key].Bytes
		}
		if row.Backfill == nil {
			row.Frontier = frontierOf(p.Behind(m), byID)
		}
		if takesQuantiles(m.Expr) {
			bound := query.SketchError
			row.QuantileError = &bound
		}
		out = append(out, row)
	}
	return out, nil
}

// frontierOf returns the least frontier of streams, ms: math.MaxInt64 while input is sealed. It is nil where there is none: nothing is read,
// or of a stream nothing is published yet.
func frontierOf(streams map[plan.StreamID]struct{}, states map[plan.StreamID]*pane.StreamState) *int64 {
	if len(streams) == 0 {
		return nil
	}
	least := int64(math.MaxInt64)
	for id := range streams {
		st := states[id]
		if st == nil || st.Frontier == math.MinInt64 {
			return nil
		}
		least = min(least, st.Frontier)
	}
	return &least
}

// backfillOf returns the state of a materialization with a stream that is still being folded from the log, and how far that is. Of
// several it shows the one with the longest way to go.
func (n *node) backfillOf(f *pane.Backfill, row api.Materialization) (string, *api.Backfill) {
	if f == nil {
		// The fold has just been given the plan.
		head := uint64(n.events.Head())
		f = &pane.Backfill{Target: n.events.Head(), Left: -1}
		if row.Backfill != nil && row.Backfill.Target == head {
			return stateMaterializing, row.Backfill
		}
	}
	if row.Backfill != nil && row.Backfill.Seq < uint64(f.Seq) {
		return row.State, row.Backfill
	}
	b := &api.Backfill{From: uint64(f.From), Seq: uint64(f.Seq), Target: uint64(f.Target)}
	if f.Left >= 0 {
		left := f.Left.Round(100 * time.Millisecond).Seconds()
		b.Left = &left
	}
	if f.Err != nil {
		b.Error = f.Err.Error()
	}
	if f.CatchingUp && f.Err == nil {
		return stateReady, b
	}
	return stateMaterializing, b
}

// takesQuantiles says whether an expression reads quantiles of values out of panes.
func takesQuantiles(text string) bool {
	expr, err := plan.NewParser().ParseExpr(text)
	if err != nil {
		return false // of another version: it says nothing
	}
	found := false
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if c, ok := n.(*parser.Call); ok && c.Func.Name == "quantile_over_time" {
			found = true
		}
		return nil
	})
	return found
}
