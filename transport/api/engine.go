package api

import (
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/log"
)

// InstantParams asks for the value of an expression at one time.
type InstantParams struct {
	Query         string
	Time          int64         // ms
	LookbackDelta time.Duration // 0 = the engine's own
	Consistency   string
}

// RangeParams asks for the values of an expression at start, start+step, … up to end.
type RangeParams struct {
	Query            string
	Start, End, Step int64 // ms
	LookbackDelta    time.Duration
	Consistency      string
}

// Result is an answer and where it came from.
type Result struct {
	Value           parser.Value
	Warnings, Infos []string
	Seq             log.Seq
	CompleteThrough int64
	Route           string
}

// MissError says why an expression cannot be answered.
type MissError struct {
	Reason string
	Detail string
}

func (e *MissError) Error() string { return e.Reason + ": " + e.Detail }
