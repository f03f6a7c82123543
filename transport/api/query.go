package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// data path 6 of 6: a question is read, put to the engine, and answered or handed on.

// Engine answers PromQL or says, with a *query.MissError, why it cannot.
type Engine interface {
	Instant(ctx context.Context, p InstantParams) (*Result, error)
	Range(ctx context.Context, p RangeParams) (*Result, error)
}

// The headers that tell where an answer came from.
const (
	HeaderRoute           = "X-Tidemark-Route"
	HeaderSeq             = "X-Tidemark-Seq"
	HeaderCompleteThrough = "X-Tidemark-Complete-Through" // ms; absent when no barrier proved anything
)

const routeUpstream = "upstream"

// question is a query request, read and checked.
type question struct {
	form    *form
	timeout time.Duration
	limit   int // series in the answer; 0 = all
	ask     func(ctx context.Context) (*Result, error)
}

// Instant serves /api/v1/query.
func (a *API) Instant(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(q *question) *Error {
		t, err := q.form.time("time", a.opts.Now())
		if err != nil {
			return err
		}
		p := InstantParams{Query: q.form.Get("query"), Time: millis(t)}
		if p.LookbackDelta, err = q.form.lookback(); err != nil {
			return err
		}
		if p.Consistency, err = q.form.consistency(); err != nil {
			return err
		}
		q.ask = func(ctx context.Context) (*Result, error) { return a.engine.Instant(ctx, p) }
		return nil
	})
}

// Range serves /api/v1/query_range.
func (a *API) Range(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(q *question) *Error {
		start, end, step, err := q.form.rangeOf()
		if err != nil {
			return err
		}
		p := RangeParams{Query: q.form.Get("query"), Start: millis(start), End: millis(end), Step: step.Milliseconds()}
		if p.LookbackDelta, err = q.form.lookback(); err != nil {
			return err
		}
		if p.Consistency, err = q.form.consistency(); err != nil {
			return err
		}
		q.ask = func(ctx context.Context) (*Result, error) { return a.engine.Range(ctx, p) }
		return nil
	})
}

func millis(t time.Time) int64 {
	return t.Unix()*1000 + int64(t.Nanosecond())/int64(time.Millisecond)
}

// serve is what both kinds of query have in common.
func (a *API) serve(w http.ResponseWriter, r *http.Request, read func(*question) *Error) {
	f, err := readForm(w, r)
	if err != nil {
		WriteError(w, err)
		return
	}
	q := &question{form: f}
	if q.limit, err = f.limit(); err != nil {
		WriteError(w, err)
		return
	}
	if q.timeout, err = f.timeout(a.opts.QueryTimeout, a.opts.QueryTimeout); err != nil {
		WriteError(w, err)
		return
	}
	if err = read(q); err != nil {
		WriteError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), q.timeout)
	defer cancel()
	arrived := a.opts.Now()
	if err = a.enter(ctx); err != nil {
		WriteError(w, err)
		return
	}
	defer a.leave()
	a.answer(ctx, w, r, q, arrived)
}

// enter waits for one of the places of Options.MaxConcurrency.
func (a *API) enter(ctx context.Context) *Error {
	select {
	case a.places <- struct{}{}:
		return nil
	default:
	}
	select {
	case a.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &Error{Type: TypeTimeout, RetryAfter: time.Second, Err: fmt.Errorf("query timed out in query queue: %d queries run already", cap(a.places))}
		}
		return classify(ctx.Err(), TypeInternal)
	}
}

func (a *API) leave() { <-a.places }

func (a *API) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, q *question, arrived time.Time) {
	if a.opts.Upstream != nil && exactPlease(r) {
		a.forward(ctx, w, r, q, "no_store")
		return
	}
	began := a.opts.Now()
	res, err := q.ask(ctx)
	if miss, ok := errors.AsType[*MissError](err); ok {
		a.metrics.missed(string(miss.Reason))
		if a.opts.Upstream != nil {
			a.forward(ctx, w, r, q, string(miss.Reason))
			return
		}
		WriteError(w, &Error{Type: TypeExecution, Err: err})
		return
	}
	if err != nil {
		WriteError(w, a.queryError(err, q))
		return
	}
	now := a.opts.Now()
	st := &queryStats{
		queued: began.Sub(arrived), evaluated: now.Sub(began),
		route: string(res.Route), seq: res.Seq, completeThrough: res.CompleteThrough,
	}
	a.respond(w, q, res, st)
}

// queryError words a timeout as Prometheus does, with the time that was allowed.
func (a *API) queryError(err error, q *question) *Error {
	e := classify(err, TypeExecution)
	if e.Type == TypeTimeout && errors.Is(err, context.DeadlineExceeded) {
		return &Error{Type: TypeTimeout, Err: fmt.Errorf("query timed out after %s: %w", q.timeout, err)}
	}
	return e
}

func (a *API) respond(w http.ResponseWriter, q *question, res *Result, st *queryStats) {
	out := &answer{value: res.Value, warnings: res.Warnings, infos: res.Infos}
	if cut, ok := truncate(res.Value, q.limit); ok {
		out.value = cut
		out.warnings = append(out.warnings[:len(out.warnings):len(out.warnings)], warnTruncated)
	}
	want := q.form.Get("stats")
	if want != "" {
		out.stats = st
	}
	if want == statsAll {
		out.infos = append(out.infos[:len(out.infos):len(out.infos)], st.inWords())
	}
	if warn := statsWarning(want); warn != "" {
		out.warnings = append(out.warnings[:len(out.warnings):len(out.warnings)], warn)
	}
	if err := out.check(); err != nil {
		WriteError(w, &Error{Type: TypeInternal, Err: err})
		return
	}
	a.metrics.routed(st.route)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(HeaderRoute, st.route)
	h.Set(HeaderSeq, strconv.FormatUint(uint64(st.seq), 10))
	if st.completeThrough != math.MinInt64 {
		h.Set(HeaderCompleteThrough, strconv.FormatInt(st.completeThrough, 10))
	}
	w.WriteHeader(http.StatusOK)
	e := encoder{w: w, buf: make([]byte, 0, 4<<10)}
	e.encode(out)
}

const warnTruncated = "results truncated due to limit"

// truncate cuts a vector or a matrix to limit series, and tells whether it did.
func truncate(v parser.Value, limit int) (parser.Value, bool) {
	if limit <= 0 {
		return v, false
	}
	switch x := v.(type) {
	case promql.Vector:
		if len(x) > limit {
			return x[:limit], true
		}
	case promql.Matrix:
		if len(x) > limit {
			return x[:limit], true
		}
	}
	return v, false
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

// forward hands the whole request to the upstream and passes its answer on as it is.
func (a *API) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, q *question, why string) {
	ans, err := a.opts.Upstream.Forward(ctx, r, q.form.body)
	if err != nil {
		e := classify(err, TypeInternal)
		e = &Error{Type: e.Type, Status: e.StatusCode(), RetryAfter: e.RetryAfter, Err: fmt.Errorf("%w (forwarded: %s)", err, why)}
		WriteError(w, e)
		return
	}
	a.metrics.routed(routeUpstream)
	w.Header().Set(HeaderRoute, routeUpstream)
	ans.WriteTo(w)
}
