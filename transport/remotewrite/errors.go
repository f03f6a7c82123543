package remotewrite

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-kit/kit/ratelimit"

	"tidemark/log"
)

// ErrSealed is returned by a Gate after a drain: input is over until the next start. The sender drops.
var ErrSealed = errors.New("input is sealed by a drain")

// Unavailable is returned by a Gate while writes cannot be taken: the sender is told to come again.
type Unavailable struct {
	Reason     string        // a few words for the sender, e.g. "disk is below its reserve"
	RetryAfter time.Duration // 0: the default
}

// Error implements error.
func (e *Unavailable) Error() string { return e.Reason }

// Wait returns when it is worth while to come again.
func (e *Unavailable) Wait() time.Duration {
	if e.RetryAfter > 0 {
		return e.RetryAfter
	}
	return defaultRetryAfter
}

// LimitError is returned by a Dictionary for a series that is new and would be one too many. The series is refused, and the rest of
// its request is written: to come again would not help.
type LimitError struct {
	Reason     Reason // ReasonExperimentSeries or ReasonExperiments
	Experiment string
	Limit      int
}

// Error implements error.
func (e *LimitError) Error() string {
	return refusal{reason: e.Reason, value: []byte(e.Experiment), limit: int64(e.Limit)}.String()
}

// Faults of a request as a whole. Nothing of it is written.
var (
	errMethod      = errors.New("only POST is served here")
	errMediaType   = errors.New("unsupported Content-Type, send application/x-protobuf")
	errMessage     = errors.New("unknown proto parameter in Content-Type, send prometheus.WriteRequest or io.prometheus.write.v2.Request")
	errVersion     = errors.New("unsupported X-Prometheus-Remote-Write-Version, send 0.1.0 with prometheus.WriteRequest")
	errVersion2    = errors.New("unsupported X-Prometheus-Remote-Write-Version, send 2.0.0 with io.prometheus.write.v2.Request")
	errEncoding    = errors.New("unsupported Content-Encoding, send snappy")
	errEmptyBody   = errors.New("empty body, not a snappy block")
	errFramed      = errors.New("framed snappy, not a snappy block")
	errSnappy      = errors.New("not a snappy block")
	errOnlyUnknown = errors.New("no field of the message that Content-Type names in the body")
	errFirstSymbol = errors.New("the first symbol is not the empty string")
	errBody        = errors.New("body cannot be read to its end")
	errInflight    = errors.New("too many bytes of writes are in flight")
	errRequests    = errors.New("too many writes are in flight")
	errClient      = errors.New("too much of this client is in flight")
	errBodySlow    = errors.New("body did not arrive in time")
)

// sizeError is a request beyond a bound.
type sizeError struct {
	what       string
	got, limit int64 // got is 0 when nobody counted to the end
	unread     bool  // the body was not read to its end
}

func (e *sizeError) Error() string {
	if e.got == 0 {
		return fmt.Sprintf("%s over the limit of %d", e.what, e.limit)
	}
	return fmt.Sprintf("%d %s, the limit is %d", e.got, e.what, e.limit)
}

// encodingError names a content coding that is refused.
type encodingError struct{ coding string }

func (e *encodingError) Error() string {
	return fmt.Sprintf("%v: %q", errEncoding, echo([]byte(e.coding)))
}
func (e *encodingError) Unwrap() error { return errEncoding }

// partialError reports a request of which the good part was written.
type partialError struct{ message string }

func newPartialError(t *tally) *partialError {
	c := t.counts[itemSample]
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d samples written, %d rejected", c.logged(), c.received, c.rejected)
	if c := t.counts[itemHistogram]; c.rejected > 0 {
		fmt.Fprintf(&b, ", %d of %d histograms rejected", c.rejected, c.received)
	}
	fmt.Fprintf(&b, "; %d of %d series refused; first fault: %v", t.badSeries, t.series, t.first)
	return &partialError{message: b.String()}
}

func (e *partialError) Error() string { return e.message }

// answer is what a sender is told, and whether it should come again.
type answer struct {
	status int
	retry  time.Duration // of Retry-After; 0: none, the sender drops
	close  bool          // the connection is of no more use
}

// defaultRetryAfter is sent where nothing better is known.
const defaultRetryAfter = 5 * time.Second

// answerTo is the table of errors and answers: the only place that knows status codes. Stock senders repeat a request
// on 5xx alone and drop it on every 4xx, 429 included; so 5xx means "may succeed later", and nothing else.
func answerTo(err error) answer {
	var (
		scan        *ScanError
		size        *sizeError
		partial     *partialError
		unavailable *Unavailable
	)
	switch {
	case err == nil:
		return answer{status: http.StatusNoContent}
	case errors.Is(err, errMethod):
		return answer{status: http.StatusMethodNotAllowed}
	case errors.Is(err, errMediaType), errors.Is(err, errMessage), errors.Is(err, errVersion2),
		errors.Is(err, errVersion), errors.Is(err, errEncoding):
		return answer{status: http.StatusUnsupportedMediaType}
	case errors.As(err, &size):
		return answer{status: http.StatusRequestEntityTooLarge, close: size.unread}
	case errors.Is(err, log.ErrTooLarge):
		return answer{status: http.StatusRequestEntityTooLarge}
	case errors.As(err, &scan), errors.As(err, &partial), errors.Is(err, errEmptyBody), errors.Is(err, errFramed),
		errors.Is(err, errSnappy), errors.Is(err, errOnlyUnknown), errors.Is(err, errFirstSymbol):
		return answer{status: http.StatusBadRequest}
	case errors.Is(err, errBody):
		return answer{status: http.StatusBadRequest, close: true}
	case errors.Is(err, ErrSealed):
		return answer{status: http.StatusConflict}
	case errors.As(err, &unavailable):
		return answer{status: http.StatusServiceUnavailable, retry: unavailable.Wait()}
	case errors.Is(err, errInflight), errors.Is(err, errRequests), errors.Is(err, errClient), errors.Is(err, ratelimit.ErrLimited):
		return answer{status: http.StatusServiceUnavailable, retry: time.Second}
	case errors.Is(err, errBodySlow):
		return answer{status: http.StatusServiceUnavailable, retry: defaultRetryAfter, close: true}
	case errors.Is(err, log.ErrInvalid):
		// An event that the log calls invalid is a fault of this program. 500 keeps the data at the sender.
		return answer{status: http.StatusInternalServerError}
	default:
		// log.ErrPoisoned, log.ErrClosed, log.ErrDictionaryFull and whatever else keeps the log from taking an event.
		return answer{status: http.StatusServiceUnavailable, retry: defaultRetryAfter}
	}
}

// bodyError tells what an error of reading a request body means.
func bodyError(err error, limit int64) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &sizeError{what: "bytes of body", limit: limit, unread: true}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errBodySlow
	default:
		// Cut short, chunked wrongly, or the sender is gone: then nobody reads the answer.
		return fmt.Errorf("%w: %w", errBody, err)
	}
}

// maxErrorBytes bounds the body of an error answer.
const maxErrorBytes = 1 << 10

// errorLine is the body of an error answer: one line of text.
func errorLine(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(s) >= maxErrorBytes {
		s = strings.ToValidUTF8(s[:maxErrorBytes-1], "")
	}
	return s + "\n"
}
