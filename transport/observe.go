package transport

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// observer counts requests and measures how long they take (T4).
type observer struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	now      func() time.Time
}

func newObserver(reg prometheus.Registerer, now func() time.Time) (*observer, error) {
	o := &observer{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_http_requests_total",
			Help: "HTTP requests, by handler and status code.",
		}, []string{"handler", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_http_request_duration_seconds",
			Help:    "Time from the request's header to the end of the answer, by handler.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 120},
		}, []string{"handler"}),
		now: now,
	}
	return o, errors.Join(reg.Register(o.requests), reg.Register(o.seconds))
}

func (o *observer) wrap(name string, h http.Handler) http.Handler {
	seconds := o.seconds.WithLabelValues(name)
	requests := o.requests.MustCurryWith(prometheus.Labels{"handler": name})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := o.now()
		c := &codeWriter{ResponseWriter: w}
		defer func() {
			seconds.Observe(o.now().Sub(began).Seconds())
			requests.WithLabelValues(strconv.Itoa(c.status())).Inc()
		}()
		h.ServeHTTP(c, r)
	})
}

// codeWriter remembers the status that was sent.
type codeWriter struct {
	http.ResponseWriter
	code int
}

func (c *codeWriter) WriteHeader(code int) {
	if c.code == 0 && code >= http.StatusOK {
		c.code = code
	}
	c.ResponseWriter.WriteHeader(code)
}

func (c *codeWriter) Write(p []byte) (int, error) {
	if c.code == 0 {
		c.code = http.StatusOK
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (c *codeWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// status returns what the client sees: 200 if the handler wrote nothing at all.
func (c *codeWriter) status() int {
	if c.code == 0 {
		return http.StatusOK
	}
	return c.code
}
