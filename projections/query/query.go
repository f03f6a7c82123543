package query

// This file is data path 6 of 6: answer.

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/stats"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/plan"
)

// The routes of an answer.
const (
	RouteWarm   = "warm"   // from published buckets alone, or it needs none
	RouteLive   = "live"   // from panes, at some steps from such that are still open
	RouteHybrid = "hybrid" // some parts of the expression from panes, others from the exact copy
	RouteLocal  = "local"  // from the exact copy alone
)

// Bounds of one request. What is beyond them is refused as bad data before anything is read.
const (
	MaxExpressionBytes = 1 << 20
	MaxTokens          = 10_000    // bounds the depth of the expression too, and with it the stack
	MaxNesting         = 250       // functions and aggregations within one another
	MaxRegexpBytes     = 128 << 10 // per matcher
	MaxLeaves          = plan.MaxLeaves
	maxAttempts        = 4  // reads, where streams that could answer turn out not to hold what is needed
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
	MaxClientShare float64                       // part of them, from 0 to 1, that one client may have; default 0.5. WithClient says whose a query is
	SubqueryStep   func(rangeMillis int64) int64 // ms, of subqueries that name none; default 1m
	Records        Records                       // default: recorded windows are evaluated when they are read
	Live           func() bool                   // whether steps that are not published are answered from open panes; default: they are a miss
	Exact          Exact                         // default: what panes cannot answer is a miss
	Began          func() (int64, error)         // from when on, ms, there are samples in panes, where somebody else has older ones: windows that reach back further are a miss. Default: panes have all there is
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
	if !(o.MaxClientShare > 0 && o.MaxClientShare <= 1) {
		o.MaxClientShare = 0.5
	}
	if o.Live == nil {
		o.Live = func() bool { return false }
	}
	if o.Began == nil {
		o.Began = func() (int64, error) { return math.MinInt64, nil }
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
	Exact         bool          // the exact copy is to answer, if there is one, even what panes could
	Published     bool          // from what is published alone; what was acknowledged last need not be waited for
	Live          bool          // steps that are not published may be answered from open panes, whatever the engine's Options say
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
	Miss            string  // the reason why panes did not answer all of it; "" if they did
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
	Raw     int // parts that the exact copy answered
	Reads   int // of the source
	Series  int // read, over all requests of the last read
	Samples int // held by the panes read
	Columns int // panes read that hold columns
	Pieces  int // read from the store of published buckets; what no checkpoint has written yet comes from memory
	// Sketched are the leaves, of the expression and of what is evaluated for the names in it, that were read from sketches: their
	// values are exact to SketchError.
	Sketched int

	Steps int // at which the expression was evaluated
	Live  int // of them, those for which open panes were read

	Took    time.Duration // from when it was asked, a place to wait for included
	Reading time.Duration // of this, waiting for panes and reading them

	Recorded  int // steps of recorded windows read as they were recorded
	Evaluated int // steps of materializations evaluated because they are read by name and are not recorded
	Engine    *stats.Statistics
}

// SketchError is the relative error of quantiles that were read from sketches.
const SketchError = accum.SketchError

// Engine answers PromQL. It is safe for concurrent use and starts nothing.
type Engine struct {
	src     Source
	opts    Options
	promql  *promql.Engine
	slots   *slots
	streams atomic.Pointer[index] // of the newest plan seen
	metrics metrics
	uses    tally
}

// New returns an Engine over src.
func New(src Source, opts Options) *Engine {
	opts = opts.withDefaults()
	e := &Engine{src: src, opts: opts, slots: newSlots(opts.MaxConcurrency, opts.MaxClientShare), metrics: newMetrics(opts.Registerer)}
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
		Parser:                   plan.NewParser(),
	})
	return e
}

// Instant evaluates an expression at one time. KindOf classifies its errors; a *MissError says that panes cannot answer.
func (e *Engine) Instant(ctx context.Context, p InstantParams) (*Result, error) {
	s, newQuery := e.instant(p)
	return e.answer(ctx, p.Common, s, newQuery)
}

// Range evaluates an expression at each step of a range. KindOf classifies its errors; a *MissError says that panes cannot
// answer every step.
func (e *Engine) Range(ctx context.Context, p RangeParams) (*Result, error) {
	s, newQuery, err := e.ranged(p)
	if err != nil {
		return nil, err
	}
	return e.answer(ctx, p.Common, s, newQuery)
}

func (e *Engine) instant(p InstantParams) (steps, queryMaker) {
	at := toMillis(p.Time)
	return steps{start: at, end: at, every: 1}, func(ctx context.Context, r storage.Queryable) (promql.Query, error) {
		return e.promql.NewInstantQuery(ctx, r, atStepOnly(), p.Expr, p.Time)
	}
}

func (e *Engine) ranged(p RangeParams) (steps, queryMaker, error) {
	every := millis(p.Step)
	if every <= 0 {
		return steps{}, nil, &BadDataError{errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer")}
	}
	return steps{start: toMillis(p.Start), end: toMillis(p.End), every: every}, func(ctx context.Context, r storage.Queryable) (promql.Query, error) {
		return e.promql.NewRangeQuery(ctx, r, atStepOnly(), p.Expr, p.Start, p.End, p.Step)
	}, nil
}

func atStepOnly() promql.QueryOpts { return promql.NewPrometheusQueryOpts(false, readAtStep, nil) }
