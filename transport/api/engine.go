package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/stats"

	"tidemark/log"
)

type Common struct {
	Expr          string
	LookbackDelta time.Duration
	Timeout       time.Duration
	Limit         int
}
type InstantParams struct {
	Common
	Time time.Time
}
type RangeParams struct {
	Common
	Start, End time.Time
	Step       time.Duration
}
type Result struct {
	Value           parser.Value
	Warnings, Infos []string
	Route           string
	Seq             log.Seq
	CompleteThrough int64
	Stats           Stats
}

func (*Result) Close() {}

type Stats struct {
	Leaves, Reads, Series, Samples, Columns int
	Engine                                  *stats.Statistics
}
type MissError struct{ Reason, Detail, Node string }

func (e *MissError) Error() string {
	return fmt.Sprintf("not answerable from panes (%s): %s: %s", e.Reason, e.Node, e.Detail)
}

type BadDataError struct{ Err error }

func (e *BadDataError) Error() string { return e.Err.Error() }
func (e *BadDataError) Unwrap() error { return e.Err }

type Kind int

const (
	KindInternal Kind = iota
	KindBadData
	KindExecution
	KindTimeout
	KindCanceled
)

func KindOf(err error) Kind {
	var (
		bad      *BadDataError
		canceled promql.ErrQueryCanceled
		timeout  promql.ErrQueryTimeout
		stored   promql.ErrStorage
	)
	switch {
	case errors.As(err, &bad):
		return KindBadData
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	case errors.As(err, &stored):
		return KindInternal
	default:
		return KindExecution
	}
}
