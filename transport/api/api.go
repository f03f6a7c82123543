package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/transport/upstream"
)

// The bounds of an API where Options say nothing else.
const (
	DefaultQueryTimeout   = 2 * time.Minute
	DefaultMaxConcurrency = 20 // as Prometheus' --query.max-concurrency
	// MaxListed bounds the entries of a list of series, names or values when the request sets no limit of its own.
	MaxListed = 1_000_000
)

// Forwarder is an exact source for whole requests; *upstream.Client is one.
type Forwarder interface {
	Forward(ctx context.Context, r *http.Request, body []byte) (*upstream.Answer, error)
}

// Options of an API. The zero value is usable.
type Options struct {
	Upstream       Forwarder             // where misses go; nil: they are errors
	QueryTimeout   time.Duration         // bound and default of the parameter timeout; 0 = DefaultQueryTimeout
	MaxConcurrency int                   // queries at work at once, others wait; 0 = DefaultMaxConcurrency
	Now            func() time.Time      // nil = time.Now
	Registerer     prometheus.Registerer // nil: no metrics
}

func (o Options) withDefaults() Options {
	if o.QueryTimeout == 0 {
		o.QueryTimeout = DefaultQueryTimeout
	}
	if o.MaxConcurrency == 0 {
		o.MaxConcurrency = DefaultMaxConcurrency
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
	if o.MaxConcurrency < 0 {
		return fmt.Errorf("query concurrency %d is negative", o.MaxConcurrency)
	}
	return nil
}

// API holds the handlers that read the query engine and the series index.
type API struct {
	engine  Engine
	series  SeriesIndex
	opts    Options
	parser  parser.Parser
	places  chan struct{} // one token per query at work
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
		places: make(chan struct{}, opts.MaxConcurrency),
	}, nil
}

type metrics struct {
	routes, misses *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		routes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_queries_total",
			Help: "Answered queries, by the route that the answer took.",
		}, []string{"route"}),
		misses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_query_misses_total",
			Help: "Queries that panes could not answer, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.routes), reg.Register(m.misses))
}

func (m *metrics) routed(route string)  { m.routes.WithLabelValues(route).Inc() }
func (m *metrics) missed(reason string) { m.misses.WithLabelValues(reason).Inc() }
