package upstream

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	circuit  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_upstream_requests_total",
			Help: "Query requests for the upstream, by outcome.",
		}, []string{"outcome"}),
		circuit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_upstream_circuit_open",
			Help: "1 while nothing is sent to the upstream after too many failures in a row.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.circuit))
}

func (m *metrics) count(err error) {
	outcome := "answered"
	if e, ok := errors.AsType[*Error](err); ok {
		outcome = e.Kind.String()
	}
	m.requests.WithLabelValues(outcome).Inc()
}

func (m *metrics) open(is bool) {
	if is {
		m.circuit.Set(1)
	} else {
		m.circuit.Set(0)
	}
}
