package query

import (
	"context"
	"errors"

	"tidemark/projections/plan"
)

// Part is a part of an expression that reads series, and what of the plan answers it.
type Part struct {
	Node         string // as the parser prints it
	Func         string // the range function, "timestamp", or "instant" for a selector alone; empty if Miss says it all
	WindowMillis int64  // what each evaluation looks back over

	// The ends of the windows, in ms: First, First+Step, … up to Last; none if Last < First.
	FirstMillis, LastMillis, StepMillis int64

	Reads      []string      // the names of materializations and recorded series that it reads; then no stream is asked
	Stream     plan.StreamID // the stream that is asked first, if Miss is nil
	PaneMillis int64         // its panes
	Miss       *MissError    // why no stream answers the part
	Exact      bool          // then the exact copy does
}

// ExplainInstant says how Instant would answer, without reading anything: the parts in the order of their evaluation. What
// is published is not looked at. KindOf classifies its errors.
func (e *Engine) ExplainInstant(ctx context.Context, p InstantParams) ([]Part, error) {
	s, newQuery := e.instant(p)
	return e.explain(ctx, p.Common, s, newQuery)
}

// ExplainRange says how Range would answer, as ExplainInstant does for Instant.
func (e *Engine) ExplainRange(ctx context.Context, p RangeParams) ([]Part, error) {
	s, newQuery, err := e.ranged(p)
	if err != nil {
		return nil, err
	}
	return e.explain(ctx, p.Common, s, newQuery)
}

func (e *Engine) explain(ctx context.Context, c Common, s steps, newQuery queryMaker) ([]Part, error) {
	q, parts, _, err := e.prepare(ctx, c, s, newQuery, newFeed(), true)
	if errors.Is(err, errUnfit) {
		q, parts, _, err = e.prepare(ctx, c, s, newQuery, newFeed(), false)
	}
	if err != nil {
		return nil, err
	}
	q.Close()
	out := make([]Part, len(parts))
	for i, p := range parts {
		out[i] = explainPart(p)
	}
	return out, nil
}

func explainPart(p part) Part {
	if p.leaf == nil {
		out := Part{Node: p.miss.Node, Miss: p.miss, Exact: p.raw}
		for _, l := range p.beside {
			out.Reads = append(out.Reads, l.reads...)
		}
		return out
	}
	l, times := p.leaf, p.leaf.dataTimes()
	if l.whole != nil {
		return Part{
			Node: l.text, Func: "recorded", Reads: []string{l.whole.material.ReadAs()},
			FirstMillis: times.start, LastMillis: times.last(), StepMillis: times.every,
		}
	}
	out := Part{
		Node: l.text, Func: l.fn.String(), WindowMillis: l.window,
		FirstMillis: times.start, LastMillis: times.end, StepMillis: times.every, Miss: p.miss, Exact: p.raw,
	}
	if times.count() > 0 {
		out.LastMillis = times.last()
	}
	if out.Reads = l.reads; l.beside && p.miss == nil {
		out.Miss, out.Exact = l.raw, true
	}
	if p.miss == nil && len(l.reads) == 0 {
		out.Stream, out.PaneMillis = l.streams[0].ID, l.streams[0].PaneMillis
	}
	return out
}
