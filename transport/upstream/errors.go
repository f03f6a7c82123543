package upstream

import (
	"fmt"
	"time"
)

// Kind says what went wrong with a forwarded request.
type Kind uint8

// The kinds of failure.
const (
	KindUnreachable Kind = iota + 1 // no connection, or it broke before the answer was complete
	KindBadAnswer                   // an answer came, and it is not Prometheus'
	KindTooLarge                    // the answer is over the bound
	KindTimeout                     // no answer in time
	KindCanceled                    // the client left
	KindOpen                        // not asked: too many failures before
)

// Error is a forwarded request that brought no answer to pass on.
type Error struct {
	Kind       Kind
	Upstream   string        // scheme, host and path, without user and password
	RetryAfter time.Duration // with KindOpen: when it will be asked again, at the latest
	Err        error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("upstream %s: %v", e.Upstream, e.Err) }

// Unwrap implements errors.Unwrap.
func (e *Error) Unwrap() error { return e.Err }

// String returns the value of the metrics' label outcome.
func (k Kind) String() string {
	switch k {
	case KindUnreachable:
		return "unreachable"
	case KindBadAnswer:
		return "bad_answer"
	case KindTooLarge:
		return "too_large"
	case KindTimeout:
		return "timeout"
	case KindCanceled:
		return "canceled"
	case KindOpen:
		return "circuit_open"
	default:
		return "unknown"
	}
}
