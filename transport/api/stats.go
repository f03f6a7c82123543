package api

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"tidemark/log"
)

// The values of the parameter stats that have a meaning. Prometheus answers others as statsOn, with a warning.
const (
	statsOn  = "true"
	statsAll = "all"
)

// queryStats is what an answer says about its own making. Only what was measured is in it: the members that Prometheus has
// and that panes give no honest number for are absent.
type queryStats struct {
	queued, evaluated time.Duration
	route             string
	seq               log.Seq
	completeThrough   int64 // ms; math.MinInt64 when nothing is proven
}

func (s *queryStats) append(b []byte) []byte {
	b = appendSeconds(append(b, `{"timings":{"evalTotalTime":`...), s.evaluated)
	b = appendSeconds(append(b, `,"execQueueTime":`...), s.queued)
	b = appendSeconds(append(b, `,"execTotalTime":`...), s.queued+s.evaluated)
	b = appendEscaped(append(b, `},"tidemark":{"route":`...), s.route)
	b = strconv.AppendUint(append(b, `,"seq":`...), uint64(s.seq), 10)
	if s.completeThrough != math.MinInt64 {
		b = strconv.AppendInt(append(b, `,"completeThroughMs":`...), s.completeThrough, 10)
	}
	return append(b, "}}"...)
}

func appendSeconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, d.Seconds(), 'f', -1, 64)
}

// inWords is the info that stats=all adds: people see infos as notices, so only who asks gets one.
func (s *queryStats) inWords() string {
	return fmt.Sprintf("answered by route %s as of log sequence %d", s.route, s.seq)
}

// statsWarning returns the warning for a value of stats that Prometheus calls deprecated, or "".
func statsWarning(v string) string {
	switch v {
	case "", statsOn, statsAll:
		return ""
	}
	return fmt.Sprintf("value %q for parameter \"stats\" is deprecated and will be rejected in the next major release, use %q or %q", v, statsOn, statsAll)
}
