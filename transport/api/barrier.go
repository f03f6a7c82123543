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
	"unicode/utf8"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"tidemark/log"
)

// Barrier appends a watermark or a drain to the log and waits until every worker has applied it.
type Barrier interface {
	// Watermark says that every sample at or before a time, of one experiment if it names one, has been written and acknowledged.
	Watermark(ctx context.Context, w log.Watermark) (BarrierResult, error)
	// Drain closes every open bucket and seals input until the next start.
	Drain(ctx context.Context) (BarrierResult, error)
}

// BarrierResult is what a barrier did.
type BarrierResult struct {
	Seq             log.Seq
	ClosedBuckets   int64
	CompleteThrough int64 // ms; math.MinInt64 if nothing is proven, as where no pane stream exists
	Warnings        []string
}

// The bounds of the parameter timeout of a barrier.
const (
	DefaultBarrierTimeout = 30 * time.Second
	MaxBarrierTimeout     = 10 * time.Minute
)

// MaxExperimentBytes bounds the name of an experiment in a barrier.
const MaxExperimentBytes = 4 << 10

// farAhead is how far beyond now a watermark succeeds without a word about its unit.
const farAhead = time.Hour

type watermarkRequest struct {
	log.Watermark
	timeout time.Duration
}

type drainRequest struct {
	timeout time.Duration
}

// WatermarkEndpoint is POST /api/v1/precompute/watermark between decoding and encoding.
func WatermarkEndpoint(b Barrier, now func() time.Time) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		q := request.(watermarkRequest)
		at := now()
		ctx, cancel := context.WithTimeout(ctx, q.timeout)
		defer cancel()
		res, err := b.Watermark(ctx, q.Watermark)
		if err != nil {
			return nil, barrierError(ctx, err, q.timeout, fmt.Sprintf("the watermark %d stays in the log and is applied", q.Time))
		}
		if warn := unitWarning(q.Time, at); warn != "" {
			res.Warnings = append(res.Warnings[:len(res.Warnings):len(res.Warnings)], warn)
		}
		return res, nil
	}
}

// DrainEndpoint is POST /api/v1/precompute/drain between decoding and encoding.
func DrainEndpoint(b Barrier) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		q := request.(drainRequest)
		ctx, cancel := context.WithTimeout(ctx, q.timeout)
		defer cancel()
		res, err := b.Drain(ctx)
		if err != nil {
			return nil, barrierError(ctx, err, q.timeout, "the drain stays in the log and is applied")
		}
		return res, nil
	}
}

// barrierError words the one failure after which the event stands in the log all the same.
func barrierError(ctx context.Context, err error, timeout time.Duration, stays string) error {
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Type: TypeTimeout, Err: fmt.Errorf("not every worker was done after %s; if it was appended, %s when they are: %w", timeout, stays, err)}
	}
	return classify(err)
}

// NewWatermark returns the handler of POST /api/v1/precompute/watermark.
func NewWatermark(b Barrier, now func() time.Time) http.Handler {
	return kithttp.NewServer(WatermarkEndpoint(b, now), decodeWatermark, encodeBarrier, kithttp.ServerErrorEncoder(EncodeError))
}

// NewDrain returns the handler of POST /api/v1/precompute/drain.
func NewDrain(b Barrier) http.Handler {
	return kithttp.NewServer(DrainEndpoint(b), decodeDrain, encodeBarrier, kithttp.ServerErrorEncoder(EncodeError))
}

// decodeWatermark reads everything before anything happens (H2). A barrier whose experiment= is misspelt would close the panes of all.
func decodeWatermark(_ context.Context, r *http.Request) (any, error) {
	f, perr := readExactly(nil, r, "time_ms", "experiment", "timeout")
	if perr != nil {
		return nil, perr
	}
	var w log.Watermark
	var err error
	if w.Time, err = oneInt64(f, "time_ms"); err != nil {
		return nil, invalidParam("time_ms", err)
	}
	if w.Experiment, w.Scoped, err = experiment(f); err != nil {
		return nil, invalidParam("experiment", err)
	}
	timeout, perr := f.timeout(DefaultBarrierTimeout, MaxBarrierTimeout)
	if perr != nil {
		return nil, perr
	}
	return watermarkRequest{Watermark: w, timeout: timeout}, nil
}

// experiment reads the parameter that narrows a barrier: at most one value, which must be one that the label can have.
func experiment(f *form) (name string, scoped bool, err error) {
	values := f.Values["experiment"]
	switch {
	case len(values) == 0:
		return "", false, nil
	case len(values) > 1:
		return "", false, errors.New("more than one value")
	case values[0] == "":
		return "", false, errors.New("empty; leave it out to close for all, and name the series without the label _unlabelled")
	case len(values[0]) > MaxExperimentBytes:
		return "", false, fmt.Errorf("%d bytes, the limit is %d", len(values[0]), MaxExperimentBytes)
	case !utf8.ValidString(values[0]):
		return "", false, errors.New("not valid UTF-8")
	}
	return values[0], true, nil
}

func decodeDrain(_ context.Context, r *http.Request) (any, error) {
	f, perr := readExactly(nil, r, "timeout", "experiment")
	if perr != nil {
		return nil, perr
	}
	if f.Has("experiment") {
		return nil, invalidParam("experiment", errors.New("a drain is always for all experiments"))
	}
	timeout, perr := f.timeout(DefaultBarrierTimeout, MaxBarrierTimeout)
	if perr != nil {
		return nil, perr
	}
	return drainRequest{timeout: timeout}, nil
}

// oneInt64 reads a decimal integer that must be given exactly once: no sign but -, no blanks, no fraction, no exponent.
func oneInt64(f *form, name string) (int64, error) {
	values := f.Values[name]
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return 0, errors.New("missing: want milliseconds since the epoch")
	case len(values) > 1:
		return 0, fmt.Errorf("given %d times", len(values))
	}
	v := values[0]
	digits := strings.TrimPrefix(v, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a decimal integer of milliseconds", shorten(v))
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q does not fit into 64 bits", shorten(v))
	}
	return n, nil
}

// shorten bounds what of a client's text is repeated to it.
func shorten(s string) string {
	const longest = 64
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}

// unitWarning names the unit that a watermark seems to be in, if it is far beyond now or just looks like seconds. A mark
// that is far ahead is harmless to the fold, but most likely not what the producer meant.
func unitWarning(t int64, now time.Time) string {
	ms := now.UnixMilli()
	ahead := t > ms && uint64(t)-uint64(ms) > uint64(farAhead.Milliseconds())
	switch {
	case ahead && near(t/1_000_000, ms):
		return fmt.Sprintf("time_ms=%d is far ahead of now and looks like nanoseconds; milliseconds are expected", t)
	case ahead && near(t/1_000, ms):
		return fmt.Sprintf("time_ms=%d is far ahead of now and looks like microseconds; milliseconds are expected", t)
	case ahead && t == math.MaxInt64:
		return "time_ms is the largest integer: what is open now was closed, and what is written later is aggregated as usual"
	case ahead:
		return fmt.Sprintf("time_ms=%d is more than %s ahead of now", t, farAhead)
	case t > 0 && t <= math.MaxInt64/1000 && near(t*1000, ms):
		return fmt.Sprintf("time_ms=%d looks like seconds; milliseconds are expected", t)
	}
	return ""
}

// near reports whether two times in ms are within about ten years of each other.
func near(a, b int64) bool {
	const tenYears = 10 * 365 * 24 * int64(time.Hour/time.Millisecond)
	return a-b < tenYears && b-a < tenYears
}

func encodeBarrier(_ context.Context, w http.ResponseWriter, response any) error {
	res := response.(BarrierResult)
	b := strconv.AppendUint([]byte(`{"status":"success","data":{"seq":`), uint64(res.Seq), 10)
	b = strconv.AppendInt(append(b, `,"closed_buckets":`...), res.ClosedBuckets, 10)
	if b = append(b, `,"complete_through_ms":`...); res.CompleteThrough == math.MinInt64 {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, res.CompleteThrough, 10)
	}
	b = appendStrings(append(b, '}'), `,"warnings":`, res.Warnings)
	writeJSON(w, http.StatusOK, append(b, '}'))
	return nil
}

// EncodeError is the error encoder of go-kit servers: it puts any error into the envelope.
func EncodeError(_ context.Context, err error, w http.ResponseWriter) {
	WriteError(w, classify(err))
}
