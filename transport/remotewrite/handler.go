package remotewrite

// data path 1 of 6: decode and check. Data path 2 of 6, make durable and acknowledge, is called from here.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/ratelimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/time/rate"

	"tidemark/log"
)

// Path is where senders expect the Handler.
const Path = "/api/v1/write"

// Appender makes an event durable.
type Appender interface {
	// Append returns when the event is durable, or an error when it is not known to be.
	Append(ctx context.Context, body log.Body) (log.Seq, error)
}

// Dictionary finds the reference of a series. Equal label bytes always have equal label sets.
type Dictionary interface {
	Hash(raw []byte) log.Hash
	Lookup(log.Hash) (log.SeriesRef, bool)
	// Epoch is another number whenever references that Lookup gave may be forgotten, or have not been looked up for long.
	Epoch() uint64
	Resolve(log.Hash, labels.Labels) (log.SeriesRef, error)
}

// Gate tells whether writes are taken now: nil, ErrSealed, an *Unavailable, or any other error, which means unavailable.
type Gate interface {
	Admit() error
}

// A Handler serves Path.
type Handler struct {
	events     Appender
	dictionary Dictionary
	gate       Gate
	opts       Options

	metrics  *metrics
	inflight *inflight
	arenas   *arenas
	families *familyRecord
	recall   recall
	write    endpoint.Endpoint // takes an *exchange
}

// exchange is one request and its writer. What go-kit calls decoding is left to the endpoint, so that bodies are read
// into memory of our own.
type exchange struct {
	w       http.ResponseWriter
	r       *http.Request
	version version
	written [items]int // into the log, durably
}

// New returns a Handler. Its metrics are registered with reg.
func New(events Appender, dictionary Dictionary, gate Gate, reg prometheus.Registerer, opts Options) (*Handler, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Client == nil {
		opts.Client = address
	}
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("remote write: %w", err)
	}
	h := &Handler{
		events: events, dictionary: dictionary, gate: gate, opts: opts,
		inflight: &inflight{
			max: opts.MaxInflightBytes, maxRequests: int64(opts.MaxInflightRequests),
			maxClient: opts.clientBytes(), maxClientRequests: max(1, int64(float64(opts.MaxInflightRequests)*opts.MaxClientShare)),
		},
		arenas:   newArenas(labelReader{labelLimits: labelLimits{maxCount: opts.MaxLabels, maxName: opts.MaxLabelNameBytes, maxValue: opts.MaxLabelValueBytes}}),
		families: newFamilyRecord(),
	}
	var err error
	if h.metrics, err = newMetrics(reg, h.inflight); err != nil {
		return nil, err
	}
	h.write = func(_ context.Context, request any) (any, error) {
		return nil, h.receive(request.(*exchange))
	}
	if opts.RateLimit > 0 {
		h.write = ratelimit.NewErroringLimiter(rate.NewLimiter(rate.Limit(opts.RateLimit), opts.RateBurst))(h.write)
	}
	return h, nil
}

// SeedMetadata tells the Handler what a durable event says about metric families, so that the same is not logged again.
// Events may come in any order, while requests are served or before.
func (h *Handler) SeedMetadata(seq log.Seq, entries []log.Metadata) {
	if len(entries) > 0 {
		h.families.logged(seq, families(append([]log.Metadata(nil), entries...)))
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := h.opts.Now()
	status := http.StatusNoContent
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", allowed)
		w.WriteHeader(status)
	} else {
		x := &exchange{w: w, r: r, version: version1}
		status = h.reply(x, h.serve(x))
	}
	h.metrics.answered(status, h.opts.Now().Sub(began))
}

// serve judges what can be judged by the headers alone, and then the rest.
func (h *Handler) serve(x *exchange) (err error) {
	if x.r.Method != http.MethodPost {
		return errMethod
	}
	if x.version, err = negotiate(x.r.Header); err != nil {
		return err
	}
	if x.r.ContentLength > h.opts.MaxBodyBytes {
		return &sizeError{what: "bytes of body", got: x.r.ContentLength, limit: h.opts.MaxBodyBytes, unread: true}
	}
	_, err = h.write(x.r.Context(), x)
	return err
}

// writtenHeaders say in an answer of version 2.0 how much of a request was written, whatever the status. A sender that misses
// them takes it that nothing was. Answers of version 1.0 have none of them.
var writtenHeaders = [items]string{
	itemSample:    "X-Prometheus-Remote-Write-Samples-Written",
	itemHistogram: "X-Prometheus-Remote-Write-Histograms-Written",
	itemExemplar:  "X-Prometheus-Remote-Write-Exemplars-Written",
}

const allowed = "POST, OPTIONS"

// reply writes the one answer of a request and returns its status.
func (h *Handler) reply(x *exchange, err error) int {
	w, a := x.w, answerTo(err)
	header := w.Header()
	if x.version == version2 {
		for k, name := range writtenHeaders {
			header.Set(name, strconv.Itoa(x.written[k]))
		}
	}
	if a.status == http.StatusMethodNotAllowed {
		header.Set("Allow", allowed)
	}
	if a.retry > 0 {
		header.Set("Retry-After", strconv.Itoa(int((a.retry+time.Second-1)/time.Second)))
	}
	if a.close {
		header.Set("Connection", "close")
	}
	if err == nil {
		w.WriteHeader(a.status)
		return a.status
	}
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.status)
	// A sender that has gone cannot be told.
	_, _ = w.Write([]byte(errorLine(err)))
	return a.status
}

// receive reads, checks and appends one request.
func (h *Handler) receive(x *exchange) error {
	if err := h.gate.Admit(); err != nil {
		return err
	}
	l, err := h.inflight.enter(h.opts.Client(x.r))
	if err != nil {
		return err
	}
	defer l.release()
	a := h.arenas.get()
	defer h.arenas.put(a)
	if err := h.readBody(x.w, x.r, a, l); err != nil {
		return err
	}
	if err := h.decompress(a, l); err != nil {
		return err
	}
	check := h.check
	if x.version == version2 {
		check = h.check2
	}
	c, err := check(a, l)
	if err != nil {
		return err
	}
	if err := l.grow(eventBytes(c, len(a.decoded))); err != nil {
		return err
	}
	return h.append(x, a)
}

// check judges a body of version 1.0 as a whole and puts the scanner before it.
func (h *Handler) check(a *arena, _ *lease) (Counts, error) {
	c, err := Check(a.decoded)
	if err == nil {
		err = h.measure(c)
	}
	a.scan.Reset(a.decoded, c)
	return c, err
}

// check2 is check for version 2.0. The index of the symbols is paid for before it is made.
func (h *Handler) check2(a *arena, l *lease) (Counts, error) {
	c, err := Count2(a.decoded)
	if err != nil {
		return c, err
	}
	if err := h.measure(c); err != nil {
		return c, err
	}
	if err := l.grow(int64(c.Symbols) * symbolBytes); err != nil {
		return c, err
	}
	a.symbols.at = slices.Grow(a.symbols.at[:0], c.Symbols)
	if c, err = Check2(a.decoded, &a.symbols); err != nil {
		return c, err
	}
	if err := errors.Join(a.symbols.checkFirst(), h.measure(c)); err != nil {
		return c, err
	}
	a.scan.Reset2(a.decoded, &a.symbols, a.reader.labelLimits)
	return c, nil
}

// measure holds the counts of a request against their bounds.
func (h *Handler) measure(c Counts) error {
	switch n := c.Samples + c.Histograms + c.Exemplars; {
	case c.Series+c.Metadata+c.Symbols == 0 && c.Unknown > 0:
		return errOnlyUnknown
	case c.Symbols > maxSymbols:
		return &sizeError{what: "symbols", got: int64(c.Symbols), limit: maxSymbols}
	case c.Series+c.Metadata > h.opts.MaxSeries:
		return &sizeError{what: "series", got: int64(c.Series + c.Metadata), limit: int64(h.opts.MaxSeries)}
	case n > h.opts.MaxSamples:
		return &sizeError{what: "samples", got: int64(n), limit: int64(h.opts.MaxSamples)}
	case c.Expanded > h.opts.MaxDecodedBytes:
		return &sizeError{what: "bytes of labels and texts, written out", got: c.Expanded, limit: h.opts.MaxDecodedBytes}
	}
	return nil
}

// append builds the event of a checked request, appends it unless it says nothing, and settles the counts.
func (h *Handler) append(x *exchange, a *arena) error {
	var t tally
	err := h.collect(a, &t)
	changed := h.families.changed(a.metadata)
	for _, family := range changed {
		for _, m := range family {
			a.builder.Metadata(m)
			t.metadata++
		}
	}
	if err == nil && !a.builder.Empty() {
		// What is handed to the log is not taken back when the sender goes away: the counts would be wrong (R5), and the
		// memory of the event would no longer be accounted for (R6). The log answers, or ends all appends with itself.
		var seq log.Seq
		if seq, err = h.events.Append(context.WithoutCancel(x.r.Context()), a.builder.Finish()); err == nil {
			h.families.logged(seq, changed)
		}
	}
	if err != nil {
		t.lost()
	}
	h.metrics.settle(&t)
	for k := range items {
		x.written[k] = t.counts[k].logged()
	}
	if err == nil && t.first.reason != reasonNone {
		return newPartialError(&t)
	}
	return err
}
