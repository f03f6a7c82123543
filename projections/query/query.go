package query

// This file is data path 6 of 6: answer.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"tidemark/log"
)

// RouteWarm is the route of an answer that comes from published buckets alone, or needs none.
const RouteWarm = "warm"

// Bounds of one request. What is beyond them is refused as bad data before anything is read.
const (
	MaxExpressionBytes = 1 << 20
	MaxTokens          = 20_000    // bounds the depth of the expression too, and with it the stack
	MaxRegexpBytes     = 128 << 10 // per matcher
	MaxLeaves          = 512
	maxAttempts        = 8  // reads, where streams that could answer turn out not to hold what is needed
	maxNotes           = 10 // warnings, and infos, in an answer; more are counted, as Prometheus does
)

// readAtStep is the engine's lookback over the synthetic selectors. Only a value at the step's own time counts, so nothing
// can leak from one step into a later one (Q3).
const readAtStep = time.Millisecond

// Options are the limits and collaborators of an Engine. The zero value of each field stands for its default.
type Options struct {
	Timeout        time.Duration                 // of one query, waiting included; default 2m
	MaxSamples     int                           // in memory for one query; default 50,000,000
	LookbackDelta  time.Duration                 // default 5m
	MaxConcurrency int                           // queries at one time, others wait; default 20
	SubqueryStep   func(rangeMillis int64) int64 // ms, of subqueries that name none; default 1m
	Experimental   bool                          // accept PromQL's experimental functions, such as mad_over_time
	Logger         *slog.Logger                  // default: none
	Registerer     prometheus.Registerer         // default: metrics are kept and not registered
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.MaxSamples <= 0 {
		o.MaxSamples = 50_000_000
	}
	if o.LookbackDelta <= 0 {
		o.LookbackDelta = 5 * time.Minute
	}
	if o.MaxConcurrency <= 0 {
		o.MaxConcurrency = 20
	}
	if o.SubqueryStep == nil {
		o.SubqueryStep = func(int64) int64 { return time.Minute.Milliseconds() }
	}
	if o.Logger == nil {
		o.Logger = promslog.NewNopLogger()
	}
	return o
}

// Common holds what instant and range queries share.
type Common struct {
	Expr          string
	LookbackDelta time.Duration // of this query; ≤ 0: the engine's
	Timeout       time.Duration // of this query; ≤ 0 or beyond the engine's: the engine's
	Limit         int           // series in the answer; 0: no limit
}

// InstantParams asks for the value of an expression at one time.
type InstantParams struct {
	Common
	Time time.Time
}

// RangeParams asks for the values of an expression at Start, Start+Step, … up to End.
type RangeParams struct {
	Common
	Start, End time.Time
	Step       time.Duration
}

// Result is an answer. Its Value may be used until Close.
type Result struct {
	Value           parser.Value
	Warnings, Infos []string // sorted, with positions in the expression as it was sent
	Route           string
	Seq             log.Seq // the log position that the answer reflects; 0 if it reads no series
	// CompleteThrough is the time up to which barriers prove the answer complete, ms: the least over the streams read.
	// math.MinInt64 if no barrier proves anything, math.MaxInt64 if the answer reads no series.
	CompleteThrough int64
	Stats           Stats

	query promql.Query
}

// Close gives the memory of Value back.
func (r *Result) Close() { r.query.Close() }

// Stats counts what an answer took.
type Stats struct {
	Leaves  int // parts of the expression that panes answered
	Reads   int // of the source
	Series  int // read, over all requests of the last read
	Samples int // held by the panes read
	Columns int // panes read that hold columns
	Engine  *stats.Statistics
}

// Engine answers PromQL. It is safe for concurrent use and starts nothing.
type Engine struct {
	src     Source
	opts    Options
	promql  *promql.Engine
	slots   slots
	streams atomic.Pointer[index] // of the newest plan seen
	metrics metrics
}

// New returns an Engine over src.
func New(src Source, opts Options) *Engine {
	opts = opts.withDefaults()
	e := &Engine{src: src, opts: opts, slots: make(slots, opts.MaxConcurrency), metrics: newMetrics(opts.Registerer)}
	e.promql = promql.NewEngine(promql.EngineOpts{
		Logger:                   opts.Logger,
		Reg:                      opts.Registerer,
		MaxSamples:               opts.MaxSamples,
		Timeout:                  opts.Timeout,
		ActiveQueryTracker:       e.slots,
		LookbackDelta:            readAtStep,
		NoStepSubqueryIntervalFn: opts.SubqueryStep,
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		Parser:                   parser.NewParser(parser.Options{EnableExperimentalFunctions: opts.Experimental}),
	})
	return e
}

// Instant evaluates an expression at one time. KindOf classifies its errors; a *MissError says that panes cannot answer.
func (e *Engine) Instant(ctx context.Context, p InstantParams) (*Result, error) {
	at := toMillis(p.Time)
	return e.answer(ctx, p.Common, steps{start: at, end: at, every: 1}, func(ctx context.Context, r results) (promql.Query, error) {
		return e.promql.NewInstantQuery(ctx, r, atStepOnly(), p.Expr, p.Time)
	})
}

// Range evaluates an expression at each step of a range. KindOf classifies its errors; a *MissError says that panes cannot
// answer every step.
func (e *Engine) Range(ctx context.Context, p RangeParams) (*Result, error) {
	every := millis(p.Step)
	if every <= 0 {
		return nil, &BadDataError{errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer")}
	}
	s := steps{start: toMillis(p.Start), end: toMillis(p.End), every: every}
	return e.answer(ctx, p.Common, s, func(ctx context.Context, r results) (promql.Query, error) {
		return e.promql.NewRangeQuery(ctx, r, atStepOnly(), p.Expr, p.Start, p.End, p.Step)
	})
}

func atStepOnly() promql.QueryOpts { return promql.NewPrometheusQueryOpts(false, readAtStep, nil) }

// answer is the whole life of a request. newQuery parses and preprocesses the expression; nothing is read at that time.
func (e *Engine) answer(ctx context.Context, c Common, s steps, newQuery func(context.Context, results) (promql.Query, error)) (*Result, error) {
	timeout := e.opts.Timeout
	if c.Timeout > 0 {
		timeout = min(timeout, c.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	res, err := e.evaluate(ctx, c, s, newQuery)
	e.metrics.observe(err)
	return res, err
}

func (e *Engine) evaluate(ctx context.Context, c Common, s steps, newQuery func(context.Context, results) (promql.Query, error)) (*Result, error) {
	if err := checkSize(c.Expr); err != nil {
		return nil, &BadDataError{err}
	}
	release, err := e.slots.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()

	values := results{}
	q, err := newQuery(ctx, values)
	if err != nil {
		return nil, &BadDataError{err}
	}
	leaves, err := e.rewrite(q.Statement().(*parser.EvalStmt), c, s)
	if err != nil {
		return nil, err
	}
	res := &Result{Route: RouteWarm, CompleteThrough: math.MaxInt64, query: q}
	res.Stats.Leaves = len(leaves)
	if err := e.fill(ctx, leaves, values, res); err != nil {
		return nil, err
	}

	out := q.Exec(ctx)
	if out.Err != nil {
		q.Close()
		return nil, out.Err
	}
	res.Value = out.Value
	res.Stats.Engine = q.Stats()
	if truncate(res, c.Limit) {
		out.Warnings.Add(errors.New("results truncated due to limit"))
	}
	res.Warnings, res.Infos = notes(out.Warnings, c.Expr)
	return res, nil
}

// rewrite replaces the leaves of the statement's expression, in place, by synthetic selectors. The engine has parsed and
// preprocessed the expression and not yet read anything, and what it will evaluate is what the statement holds then. All
// nodes keep their positions in the text that was sent, so warnings and errors point into that text (Q4).
func (e *Engine) rewrite(stmt *parser.EvalStmt, c Common, s steps) ([]*leaf, error) {
	if err := checkRegexps(stmt.Expr); err != nil {
		return nil, &BadDataError{err}
	}
	lookback := e.opts.LookbackDelta
	if c.LookbackDelta > 0 {
		lookback = c.LookbackDelta
	}
	r := rewriter{
		// A sample at the evaluation time itself counts whatever the lookback.
		lookback:    max(1, millis(lookback)),
		defaultStep: e.opts.SubqueryStep,
		maxLeaves:   MaxLeaves,
	}
	resolveOffsets(stmt.Expr, s.start, 0)
	if err := r.rewrite(&stmt.Expr, s); err != nil {
		return nil, err
	}
	if len(r.leaves) == 0 {
		return nil, nil
	}
	x, err := e.index()
	if err != nil {
		return nil, &SourceError{err}
	}
	for _, l := range r.leaves {
		var miss *MissError
		if l.streams, miss = x.candidates(l); miss != nil {
			return nil, miss
		}
	}
	return r.leaves, nil
}

// index returns the streams of the plan in force.
func (e *Engine) index() (*index, error) {
	p := e.src.Plan()
	if x := e.streams.Load(); x != nil && x.plan == p {
		return x, nil
	}
	x, err := newIndex(p)
	if err != nil {
		return nil, err
	}
	e.streams.Store(x)
	return x, nil
}

// fill reads the panes of all leaves at one sequence (Q1) and evaluates the leaves into values. Where a stream does not hold
// what a leaf needs and another may, all are read again.
func (e *Engine) fill(ctx context.Context, leaves []*leaf, values results, res *Result) error {
	for {
		miss, err := e.tryFill(ctx, leaves, values, res)
		if err != nil || miss == nil {
			return err
		}
		if res.Stats.Reads >= maxAttempts || miss.leaf.chosen+1 >= len(miss.leaf.streams) {
			return miss.why
		}
		miss.leaf.chosen++
	}
}

// leafMiss is a miss that another stream may cure.
type leafMiss struct {
	leaf *leaf
	why  *MissError
}

func (e *Engine) tryFill(ctx context.Context, leaves []*leaf, values results, res *Result) (*leafMiss, error) {
	reqs, of := requests(leaves)
	answers, err := e.read(ctx, reqs, res)
	if err != nil {
		return nil, err
	}
	v := evaluation{ctx: ctx, budget: e.opts.MaxSamples}
	for i, l := range leaves {
		var series []Series
		if of[i] >= 0 {
			a := &answers[of[i]]
			if miss := l.check(a); miss != nil {
				return &leafMiss{l, miss}, nil
			}
			series = a.Series
		}
		out, err := v.leaf(l, series)
		var miss *MissError
		if errors.As(err, &miss) {
			return &leafMiss{l, miss}, nil
		}
		if err != nil {
			return nil, err
		}
		values[l.mark] = out
	}
	return nil, nil
}

// read reads all requests at once and accounts for what came.
func (e *Engine) read(ctx context.Context, reqs []Request, res *Result) ([]Answer, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	res.Stats.Reads++
	snap, err := e.src.Read(ctx, reqs)
	if err != nil {
		if end := ended(ctx, "reading panes"); end != nil {
			return nil, end
		}
		return nil, &SourceError{err}
	}
	if len(snap.Answers) != len(reqs) {
		return nil, &SourceError{fmt.Errorf("%d answers to %d requests", len(snap.Answers), len(reqs))}
	}
	res.Seq = snap.Seq
	res.CompleteThrough = math.MaxInt64
	res.Stats.Series, res.Stats.Samples, res.Stats.Columns = 0, 0, 0
	for i := range snap.Answers {
		a := &snap.Answers[i]
		res.CompleteThrough = min(res.CompleteThrough, a.Proven)
		res.Stats.Series += len(a.Series)
		for j := range a.Series {
			res.Stats.Samples += len(a.Series[j].T)
			res.Stats.Columns += len(a.Series[j].Cols)
		}
	}
	return snap.Answers, nil
}

// requests returns what to read for the leaves, and for each leaf the index of its request, −1 if it needs none. Leaves
// that read overlapping ranges of the same series share a request.
func requests(leaves []*leaf) (reqs []Request, of []int) {
	type source struct {
		stream   uint64
		matchers string
	}
	bySource := map[source][]int{}
	of = make([]int, len(leaves))
next:
	for i, l := range leaves {
		of[i] = -1
		if l.steps.count() == 0 {
			continue
		}
		r := l.request()
		key := source{uint64(r.Stream), matchersKey(l)}
		for _, j := range bySource[key] {
			if have := &reqs[j]; r.From <= have.To && have.From <= r.To {
				have.From, have.To = min(have.From, r.From), max(have.To, r.To)
				of[i] = j
				continue next
			}
		}
		of[i] = len(reqs)
		bySource[key] = append(bySource[key], len(reqs))
		reqs = append(reqs, r)
	}
	return reqs, of
}

func matchersKey(l *leaf) string {
	parts := make([]string, len(l.matchers))
	for i, m := range l.matchers {
		parts[i] = m.String()
	}
	slices.Sort(parts)
	return strings.Join(parts, "\x00")
}

// truncate cuts the answer to limit series.
func truncate(res *Result, limit int) bool {
	if limit <= 0 {
		return false
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	case promql.Matrix:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	}
	return false
}

// notes renders the engine's annotations with their positions in expr.
func notes(a annotations.Annotations, expr string) (warnings, infos []string) {
	warnings, infos = a.AsStrings(expr, 0, 0)
	return capped(warnings, "%d more warning annotations omitted"), capped(infos, "%d more info annotations omitted")
}

func capped(s []string, more string) []string {
	slices.Sort(s)
	if n := len(s) - maxNotes; n > 0 {
		s = append(s[:maxNotes], fmt.Sprintf(more, n))
	}
	return s
}
