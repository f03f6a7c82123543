package remotewrite

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// item is what is counted: the three kinds of data of a series, each apart.
type item uint8

const (
	itemSample item = iota
	itemHistogram
	itemExemplar
	items // how many there are
)

// String returns the plural that metric names hold.
func (i item) String() string {
	return [items]string{"samples", "histograms", "exemplars"}[i]
}

// count is the fate of the items of one kind in a request.
type count struct {
	received, rejected int
}

func (c count) logged() int { return c.received - c.rejected }

// tally is what became of one request. For each kind of item, received = rejected + logged.
type tally struct {
	series, badSeries int
	counts            [items]count
	reasons           [items][reasons]int
	metadata          int // logged
	badMetadata       int
	first             refusal // of a series, a sample or a histogram
}

func (t *tally) receive(k item, n int) { t.counts[k].received += n }

func (t *tally) reject(k item, why Reason, n int) {
	t.counts[k].rejected += n
	t.reasons[k][why] += n
}

// fault notes the first fault that the sender is told.
func (t *tally) fault(r refusal) {
	if t.first.reason == reasonNone {
		t.first = r
	}
}

// limited refuses what is left of the current series if err is a *LimitError, and returns any other: before is the count as it was
// when the series began, and nothing of it was kept.
func (t *tally) limited(err error, before [items]count, s *Scanner) error {
	var limit *LimitError
	if !errors.As(err, &limit) {
		return err
	}
	why := refusal{reason: limit.Reason, value: []byte(limit.Experiment), limit: int64(limit.Limit)}
	t.badSeries++
	t.fault(why)
	for k, n := range [items]int{itemSample: s.Samples(), itemHistogram: s.Histograms(), itemExemplar: s.Exemplars()} {
		t.reject(item(k), why.reason, n-(t.counts[k].rejected-before[k].rejected))
	}
	return nil
}

// lost turns everything that would have been logged into rejected.
func (t *tally) lost() {
	for k := range items {
		t.reject(k, ReasonUnavailable, t.counts[k].logged())
	}
	t.metadata = 0
}

// metrics are counted per process. A request that is refused as a whole before its samples are known counts none.
type metrics struct {
	received, logged [items]prometheus.Counter
	rejected         [items]*prometheus.CounterVec
	metadataLogged   prometheus.Counter
	metadataRejected prometheus.Counter
	requests         *prometheus.CounterVec
	bodyBytes        prometheus.Counter
	decodedBytes     prometheus.Counter
	duration         prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, load *inflight) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "write", Name: name, Help: help})
	}
	vector := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "write", Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		metadataLogged:   counter("metadata_logged_total", "Metadata entries that were logged because they changed."),
		metadataRejected: counter("metadata_rejected_total", "Metadata entries without family, too long, or not valid UTF-8."),
		requests:         vector("requests_total", "Write requests by status code of the answer.", "code"),
		bodyBytes:        counter("body_bytes_total", "Bytes of request bodies as they came."),
		decodedBytes:     counter("decoded_bytes_total", "Bytes of request bodies after decompression."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tidemark", Subsystem: "write", Name: "request_duration_seconds",
			Help:    "Time from the headers of a write request to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	all := []prometheus.Collector{
		m.metadataLogged, m.metadataRejected, m.requests, m.bodyBytes, m.decodedBytes, m.duration,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tidemark", Subsystem: "write", Name: "inflight_bytes", Help: "Memory that write requests hold now.",
		}, func() float64 { return float64(load.used.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tidemark", Subsystem: "write", Name: "inflight_requests", Help: "Write requests under way now.",
		}, func() float64 { return float64(load.requests.Load()) }),
	}
	for k := range items {
		m.received[k] = counter(k.String()+"_received_total", "Received "+k.String()+", in requests that could be decoded.")
		m.logged[k] = counter(k.String()+"_logged_total", "Logged "+k.String()+".")
		m.rejected[k] = vector(k.String()+"_rejected_total", "Rejected "+k.String()+" by reason.", "reason")
		for why := reasonNone + 1; why < reasons; why++ {
			if why != ReasonMetadata {
				m.rejected[k].WithLabelValues(why.String())
			}
		}
		all = append(all, m.received[k], m.logged[k], m.rejected[k])
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register write metrics: %w", err)
		}
	}
	return m, nil
}

// settle counts a request whose items are known.
func (m *metrics) settle(t *tally) {
	for k := range items {
		c := t.counts[k]
		m.received[k].Add(float64(c.received))
		m.logged[k].Add(float64(c.logged()))
		if c.rejected == 0 {
			continue
		}
		for why, n := range t.reasons[k] {
			if n > 0 {
				m.rejected[k].WithLabelValues(Reason(why).String()).Add(float64(n))
			}
		}
	}
	m.metadataLogged.Add(float64(t.metadata))
	m.metadataRejected.Add(float64(t.badMetadata))
}

// answered counts a request by its answer.
func (m *metrics) answered(status int, took time.Duration) {
	m.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	m.duration.Observe(took.Seconds())
}
