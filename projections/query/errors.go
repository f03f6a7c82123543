package query

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/promql"
)

// Kind says whose fault a failed query is, in the words of Prometheus' HTTP API.
type Kind int

// The kinds of errors, with the status that Prometheus answers.
const (
	KindInternal  Kind = iota // 500 internal: reading the panes failed
	KindBadData               // 400 bad_data: the request cannot be understood
	KindExecution             // 422 execution: the expression cannot be evaluated, or not from panes
	KindTimeout               // 503 timeout
	KindCanceled              // 499 canceled: whoever asked has gone
)

// String returns Prometheus' errorType.
func (k Kind) String() string {
	switch k {
	case KindBadData:
		return "bad_data"
	case KindExecution:
		return "execution"
	case KindTimeout:
		return "timeout"
	case KindCanceled:
		return "canceled"
	default:
		return "internal"
	}
}

// BadDataError says that a request cannot be understood. Its text is the parser's.
type BadDataError struct{ Err error }

func (e *BadDataError) Error() string { return e.Err.Error() }

func (e *BadDataError) Unwrap() error { return e.Err }

// SourceError says that the panes could not be read.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return fmt.Sprintf("reading panes: %v", e.Err) }

func (e *SourceError) Unwrap() error { return e.Err }

// The reasons of a MissError. They are part of the HTTP API and of metrics.
const (
	ReasonNoMaterialization   = "no_materialization"    // no stream holds the samples of a selector
	ReasonMaterializing       = "materializing"         // a stream will, and is still being folded from the log
	ReasonOffGrid             = "off_grid"              // streams do, but ranges or evaluation times are not on their grids
	ReasonBeforeRetention     = "before_retention"      // a window begins before the stream's coverage
	ReasonUnpublished         = "unpublished"           // a window is not closed for every series of the population
	ReasonLateUncorrectable   = "late_uncorrectable"    // a bucket in a window lost late samples
	ReasonNativeHistogram     = "native_histogram"      // native histograms fell into a bucket of a window
	ReasonNeedsSamples        = "needs_samples"         // the result needs samples where panes hold columns
	ReasonUnsupportedFunction = "unsupported_function"  // panes cannot answer this function, modifier or selector
	ReasonNonConstantArgument = "non_constant_argument" // a function's scalar argument is not a constant
)

// MissError says why an expression cannot be answered from panes. Nothing is wrong with the expression: an exact source
// may answer it.
type MissError struct {
	Reason string // one of the Reason constants
	Detail string // for people: what stands in the way, with times in ms
	Node   string // the part of the expression that missed, as the parser prints it
}

func (e *MissError) Error() string {
	return fmt.Sprintf("not answerable from panes (%s): %s: %s", e.Reason, e.Node, e.Detail)
}

// KindOf classifies an error of Engine.Instant or Engine.Range. A MissError is an execution error to whoever has no
// exact source to forward to.
func KindOf(err error) Kind {
	var (
		miss     *MissError
		bad      *BadDataError
		source   *SourceError
		canceled promql.ErrQueryCanceled
		timeout  promql.ErrQueryTimeout
		stored   promql.ErrStorage
	)
	switch {
	case errors.As(err, &miss):
		return KindExecution
	case errors.As(err, &bad):
		return KindBadData
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	case errors.As(err, &source), errors.As(err, &stored):
		return KindInternal
	default:
		return KindExecution
	}
}

// ended turns the end of ctx into the engine's error for it, and returns nil while ctx goes on.
func ended(ctx context.Context, doing string) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return promql.ErrQueryTimeout(doing)
	default:
		return promql.ErrQueryCanceled(doing)
	}
}
