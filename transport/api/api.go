package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"tidemark/transport/upstream"
)

// The bounds of an API where Options say nothing else.
const (
	DefaultQueryTimeout = 2 * time.Minute
	// MaxListed bounds the entries of a list of series, names or values when the request sets no limit of its own.
	MaxListed = 1_000_000
)

// Forwarder is an exact source for whole requests; *upstream.Client is one.
type Forwarder interface {
	Forward(ctx context.Context, r *http.Request, body []byte) (*upstream.Answer, error)
}

// Options of an API. The zero value is usable.
type Options struct {
	Upstream     Forwarder                 // where misses go; nil: they are errors
	Copy         Copy                      // the exact copy that the engine has: it comes first where the exact source is wanted; nil: none
	Recorded     Recorded                  // lists what is recorded; nil: nothing is
	Exemplars    storage.ExemplarQueryable // nil: none are kept
	Lookback     time.Duration             // of instant selectors; 0 = 5m
	QueryTimeout time.Duration             // bound and default of the parameter timeout; 0 = DefaultQueryTimeout
	Log          *QueryLog                 // nil: none is kept
	Now          func() time.Time          // nil = time.Now
	Registerer   prometheus.Registerer     // nil: no metrics
}

func (o Options) withDefaults() Options {
	if o.QueryTimeout == 0 {
		o.QueryTimeout = DefaultQueryTimeout
	}
	if o.Lookback == 0 {
		o.Lookback = defaultLookback
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) validate() error {
	if o.QueryTimeout < 0 {
		return fmt.Errorf("query timeout %s is negative", o.QueryTimeout)
	}
	return nil
}

// API holds the handlers that read the query engine and the series index.
type API struct {
	engine  Engine
	series  SeriesIndex
	opts    Options
	parser  parser.Parser
	metrics *metrics
}

// New returns the handlers in front of an engine and a series index.
func New(engine Engine, series SeriesIndex, opts Options) (*API, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return &API{
		engine: engine, series: series, opts: opts, metrics: m,
		parser: parser.NewParser(parser.Options{}),
	}, nil
}

// The label values of a query that no route answered, or that nothing missed.
const (
	routeNone = "none"
	missNone  = ""
)

type metrics struct {
	queries *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_http_queries_total",
			Help: "Queries put to the engine or the upstream, by the route of the answer (none: an error) and the reason why panes did not give it.",
		}, []string{"route", "miss"}),
	}
	m.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "tidemark_http_query_duration_seconds",
		Help:    "Time from when a query was read to the end of its answer, by the route of the answer (none: an error).",
		Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 120},
	}, []string{"route"})
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.queries), reg.Register(m.seconds))
}

func (m *metrics) count(route, miss string) { m.queries.WithLabelValues(route, miss).Inc() }
