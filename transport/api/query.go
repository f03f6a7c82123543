package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemark/projections/query"
)

// data path 6 of 6: a question is read, put to the engine, and answered or handed on.

// Engine answers PromQL or says, with a *query.MissError, why it cannot.
type Engine interface {
	Instant(ctx context.Context, p query.InstantParams) (*query.Result, error)
	Range(ctx context.Context, p query.RangeParams) (*query.Result, error)
}

// The headers that tell where an answer came from.
const (
	HeaderRoute           = "X-Tidemark-Route"
	HeaderSeq             = "X-Tidemark-Seq"
	HeaderCompleteThrough = "X-Tidemark-Complete-Through" // ms; absent when no barrier proved anything
)

const (
	routeUpstream = "upstream"
	missNoStore   = "no_store" // the client asked for the exact source
)

// Instant serves /api/v1/query.
func (a *API) Instant(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(f *form, c query.Common) (q question, err *Error) {
		t, err := f.time("time", a.opts.Now())
		if err != nil {
			return q, err
		}
		p := query.InstantParams{Common: c, Time: t}
		return question{start: t, end: t, ask: func(ctx context.Context) (*query.Result, error) { return a.engine.Instant(ctx, p) }}, nil
	})
}

// Range serves /api/v1/query_range.
func (a *API) Range(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(f *form, c query.Common) (q question, err *Error) {
		p := query.RangeParams{Common: c}
		if p.Start, p.End, p.Step, err = f.rangeOf(); err != nil {
			return q, err
		}
		return question{start: p.Start, end: p.End, step: p.Step, ask: func(ctx context.Context) (*query.Result, error) { return a.engine.Range(ctx, p) }}, nil
	})
}

// question is a query, read and checked.
type question struct {
	start, end time.Time
	step       time.Duration                                    // 0: at one time
	ask        func(ctx context.Context) (*query.Result, error) // puts it to the engine
}

// outcome is what became of a question.
type outcome struct {
	route, miss string
	stats       *queryStats // nil: none
	err         error
}

// serve is what both kinds of query have in common; read reads what they have not.
func (a *API) serve(w http.ResponseWriter, r *http.Request, read func(*form, query.Common) (question, *Error)) {
	f, err := readForm(w, r)
	if err != nil {
		WriteError(w, err)
		return
	}
	common, err := a.common(f)
	if err != nil {
		WriteError(w, err)
		return
	}
	common.Exact = exactPlease(r)
	q, err := read(f, common)
	if err != nil {
		WriteError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), common.Timeout)
	defer cancel()
	began := time.Now()
	out := a.answer(ctx, w, r, f, q)
	took := time.Since(began)
	a.metrics.count(out.route, out.miss)
	a.metrics.seconds.WithLabelValues(out.route).Observe(took.Seconds())
	a.opts.Log.note(r, common.Expr, &q, &out, took)
}

func (a *API) common(f *form) (c query.Common, err *Error) {
	c.Expr = f.Get("query")
	if c.Limit, err = f.limit(); err != nil {
		return c, err
	}
	if c.Timeout, err = f.timeout(a.opts.QueryTimeout, a.opts.QueryTimeout); err != nil {
		return c, err
	}
	if c.LookbackDelta, err = f.lookback(); err != nil {
		return c, err
	}
	c.Published, c.Live, err = f.consistency()
	return c, err
}

func (a *API) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, f *form, q question) outcome {
	if a.opts.Copy == nil && exactPlease(r) && a.forwards(f) {
		return a.forward(ctx, w, r, f, missNoStore)
	}
	res, err := q.ask(ctx)
	if err == nil {
		defer res.Close()
		return a.respond(w, f, res)
	}
	reason := missNone
	if miss, ok := errors.AsType[*query.MissError](err); ok {
		reason = miss.Reason
		if a.forwards(f) {
			return a.forward(ctx, w, r, f, reason)
		}
	}
	WriteError(w, classifyQuery(err))
	return outcome{route: routeNone, miss: reason, err: err}
}

// respond writes a result. Everything that can fail is done before the first byte (H5).
func (a *API) respond(w http.ResponseWriter, f *form, res *query.Result) outcome {
	st := statsOf(res)
	out := &answer{value: res.Value, warnings: res.Warnings, infos: res.Infos}
	err := out.check()
	if want := f.Get("stats"); want != "" && err == nil {
		out.stats, err = json.Marshal(st)
		if want == statsAll {
			out.infos = append(out.infos[:len(out.infos):len(out.infos)], st.inWords())
		}
		if warn := statsWarning(want); warn != "" {
			out.warnings = append(out.warnings[:len(out.warnings):len(out.warnings)], warn)
		}
	}
	if err != nil {
		WriteError(w, &Error{Type: TypeInternal, Err: err})
		return outcome{route: routeNone, err: err}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(HeaderRoute, res.Route)
	h.Set(HeaderSeq, strconv.FormatUint(uint64(res.Seq), 10))
	if proven(res.CompleteThrough) {
		h.Set(HeaderCompleteThrough, strconv.FormatInt(res.CompleteThrough, 10))
	}
	w.WriteHeader(http.StatusOK)
	e := encoder{w: w, buf: make([]byte, 0, 4<<10)}
	e.encode(out)
	return outcome{route: res.Route, miss: res.Miss, stats: st}
}

// exactPlease reports whether the client asks for the exact source: Cache-Control: no-store.
func exactPlease(r *http.Request) bool {
	for _, line := range r.Header.Values("Cache-Control") {
		for directive := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(directive), "no-store") {
				return true
			}
		}
	}
	return false
}

// forwards says whether the upstream may answer. What it has nothing of by that name it would answer with an empty success.
func (a *API) forwards(f *form) bool {
	return a.opts.Upstream != nil && (a.opts.Recorded == nil || !a.opts.Recorded.ReadsOwn(f.Get("query")))
}

// forward hands the whole request to the upstream and passes its answer on as it is.
func (a *API) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, f *form, why string) outcome {
	ans, err := a.opts.Upstream.Forward(ctx, r, f.body)
	if err != nil {
		e := *classify(err)
		e.Err = fmt.Errorf("%w (forwarded because of %s)", e.Err, why)
		WriteError(w, &e)
		return outcome{route: routeNone, miss: why, err: e.Err}
	}
	w.Header().Set(HeaderRoute, routeUpstream)
	ans.WriteTo(w)
	return outcome{route: routeUpstream, miss: why}
}
