package api

import (
	"context"
	"net/http"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"tidemark/projections/plan"
	"tidemark/projections/query"
)

// Explainer says how an expression would be answered, without reading anything.
type Explainer interface {
	ExplainInstant(ctx context.Context, p query.InstantParams) ([]query.Part, error)
	ExplainRange(ctx context.Context, p query.RangeParams) ([]query.Part, error)
}

// explained is one part of an expression in /api/v1/explain. Either a stream answers it or miss says why none does.
type explained struct {
	Node    string       `json:"node"`
	Func    string       `json:"func,omitempty"`
	Window  int64        `json:"window_ms,omitempty"`
	First   int64        `json:"first_ms"` // ends of the windows: first, first+step, … up to last
	Last    int64        `json:"last_ms"`
	Step    int64        `json:"step_ms"`
	Reads   []string     `json:"reads,omitempty"` // the names of materializations and recorded series that it reads
	Stream  string       `json:"stream,omitempty"`
	PaneMs  int64        `json:"pane_ms,omitempty"`
	Source  string       `json:"source"` // panes, recorded or local; none if nothing here answers it
	Missing *missingPart `json:"miss,omitempty"`
}

type missingPart struct {
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// explanation is the data of /api/v1/explain.
type explanation struct {
	Parts []explained    `json:"parts"` // in the order of their evaluation
	Tree  *explainedNode `json:"tree"`
	Add   string         `json:"add,omitempty"` // lines for tidemark.yml with which panes would answer more
}

// NewExplain returns the handler of /api/v1/explain: with start, end or step it explains a range query, else an instant one.
func (a *API) NewExplain(x Explainer) http.Handler {
	return kithttp.NewServer(a.explainEndpoint(x), a.decodeExplain, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

func (a *API) decodeExplain(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	common, perr := a.common(f)
	if perr != nil {
		return nil, perr
	}
	if f.Has("start") || f.Has("end") || f.Has("step") {
		p := query.RangeParams{Common: common}
		if p.Start, p.End, p.Step, perr = f.rangeOf(); perr != nil {
			return nil, perr
		}
		return p, nil
	}
	// Who names no time wants to know about the expression, not about now, which is on nobody's grid.
	t, perr := f.time("time", a.opts.Now().Truncate(time.Minute))
	if perr != nil {
		return nil, perr
	}
	return query.InstantParams{Common: common, Time: t}, nil
}

func (a *API) explainEndpoint(x Explainer) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, a.opts.QueryTimeout)
		defer cancel()
		var (
			parts  []query.Part
			err    error
			common query.Common
			step   time.Duration // of a range query
		)
		switch p := request.(type) {
		case query.InstantParams:
			common = p.Common
			parts, err = x.ExplainInstant(ctx, p)
		case query.RangeParams:
			common, step = p.Common, p.Step
			parts, err = x.ExplainRange(ctx, p)
		}
		if err != nil {
			return nil, classifyQuery(err)
		}
		expr, err := plan.NewParser().ParseExpr(common.Expr)
		if err != nil {
			return nil, invalidParam("query", err)
		}
		out := make([]explained, len(parts))
		for i, p := range parts {
			out[i] = explained{
				Node: p.Node, Func: p.Func, Window: p.WindowMillis, First: p.FirstMillis, Last: p.LastMillis, Step: p.StepMillis,
			}
			if p.Miss != nil {
				out[i].Source, out[i].Missing = "none", &missingPart{p.Miss.Reason, p.Miss.Detail}
				if p.Exact {
					out[i].Source = query.RouteLocal
				}
				continue
			}
			if out[i].Reads = p.Reads; len(p.Reads) > 0 {
				out[i].Source = "recorded"
				continue
			}
			out[i].Source = "panes"
			out[i].Stream, out[i].PaneMs = p.Stream.String(), p.PaneMillis
		}
		return explanation{Parts: out, Tree: explainTree(expr, out), Add: toAdd(common, step, out)}, nil
	}
}
