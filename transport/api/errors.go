package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemark/log"
	"tidemark/projections/query"
	"tidemark/transport/upstream"
)

// ErrorType is the errorType of Prometheus' error envelope.
type ErrorType string

// The error types in use.
const (
	TypeBadData     ErrorType = "bad_data"
	TypeExecution   ErrorType = "execution"
	TypeTimeout     ErrorType = "timeout"
	TypeCanceled    ErrorType = "canceled"
	TypeInternal    ErrorType = "internal"
	TypeUnavailable ErrorType = "unavailable"
	TypeNotFound    ErrorType = "not_found"
)

// StatusClientClosed is the status recorded when the client left before the answer; nobody reads it.
const StatusClientClosed = 499

// status is the table from error type to status. It also says which failures are worth a retry with the same content: those
// with 5xx, and no others.
func (t ErrorType) status() int {
	switch t {
	case TypeBadData:
		return http.StatusBadRequest
	case TypeExecution:
		return http.StatusUnprocessableEntity
	case TypeTimeout, TypeUnavailable:
		return http.StatusServiceUnavailable
	case TypeCanceled:
		return StatusClientClosed
	case TypeNotFound:
		return http.StatusNotFound
	default:
		return http.StatusInternalServerError
	}
}

// Error is an error that knows what a client is told.
type Error struct {
	Type       ErrorType
	Status     int           // 0: what the type stands for
	RetryAfter time.Duration // 0: no Retry-After header
	Err        error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap implements errors.Unwrap.
func (e *Error) Unwrap() error { return e.Err }

// StatusCode returns the HTTP status of the error.
func (e *Error) StatusCode() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Type.status()
}

func badData(format string, args ...any) *Error {
	return &Error{Type: TypeBadData, Err: fmt.Errorf(format, args...)}
}

func invalidParam(name string, err error) *Error {
	return &Error{Type: TypeBadData, Err: fmt.Errorf("invalid parameter %q: %w", name, err)}
}

// retryLog is when a client that met a log that cannot be written should come again: a supervisor's restart takes seconds.
const retryLog = 5 * time.Second

// ErrSealed is returned by a Barrier whose input was sealed by a drain.
var ErrSealed = errors.New("input is sealed by a drain until the next start")

// classify turns any error of a collaborator other than the engine into what the client is told. What no row knows is
// internal.
func classify(err error) *Error {
	var (
		own *Error
		up  *upstream.Error
		// later is of whoever keeps events out of the log for a while.
		later interface{ Wait() time.Duration }
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &up):
		return classifyUpstream(up)
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Type: TypeTimeout, Err: err}
	case errors.Is(err, context.Canceled):
		return &Error{Type: TypeCanceled, Err: err}
	case errors.Is(err, ErrSealed):
		return &Error{Type: TypeUnavailable, Status: http.StatusConflict, Err: err}
	case errors.As(err, &later):
		return &Error{Type: TypeUnavailable, RetryAfter: max(later.Wait(), time.Second), Err: err}
	case errors.Is(err, log.ErrPoisoned), errors.Is(err, log.ErrClosed):
		return &Error{Type: TypeUnavailable, RetryAfter: retryLog, Err: err}
	}
	if miss := (*query.MissError)(nil); errors.As(err, &miss) {
		return &Error{Type: TypeExecution, Err: err} // what is recorded cannot be told
	}
	switch query.KindOf(err) {
	case query.KindTimeout:
		return &Error{Type: TypeTimeout, Err: err}
	case query.KindCanceled:
		return &Error{Type: TypeCanceled, Err: err}
	default:
		return &Error{Type: TypeInternal, Err: err}
	}
}

// classifyQuery does the same for errors of the engine.
func classifyQuery(err error) *Error {
	switch query.KindOf(err) {
	case query.KindBadData:
		return invalidParam("query", err)
	case query.KindExecution:
		return &Error{Type: TypeExecution, Err: err}
	case query.KindTimeout:
		return &Error{Type: TypeTimeout, Err: err}
	case query.KindCanceled:
		return &Error{Type: TypeCanceled, Err: err}
	default:
		return &Error{Type: TypeInternal, Err: err}
	}
}

func classifyUpstream(err *upstream.Error) *Error {
	switch err.Kind {
	case upstream.KindTimeout:
		return &Error{Type: TypeTimeout, Err: err}
	case upstream.KindCanceled:
		return &Error{Type: TypeCanceled, Err: err}
	case upstream.KindOpen:
		return &Error{Type: TypeUnavailable, RetryAfter: err.RetryAfter, Err: err}
	case upstream.KindTooLarge:
		return &Error{Type: TypeExecution, Err: err}
	default:
		return &Error{Type: TypeUnavailable, Status: http.StatusBadGateway, Err: err}
	}
}

// WriteError writes the error envelope.
func WriteError(w http.ResponseWriter, err *Error) {
	if err.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((err.RetryAfter+time.Second-1)/time.Second)))
	}
	body := append([]byte(nil), `{"status":"error","errorType":`...)
	body = appendEscaped(body, string(err.Type))
	body = append(body, `,"error":`...)
	body = appendEscaped(body, err.Error())
	body = append(body, '}')
	writeJSON(w, err.StatusCode(), body)
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left is told nothing
}

// Unavailable is an error for a service that cannot answer yet and may be asked again after some seconds.
func Unavailable(seconds int, text string) *Error {
	return &Error{Type: TypeUnavailable, RetryAfter: time.Duration(seconds) * time.Second, Err: errors.New(text)}
}
