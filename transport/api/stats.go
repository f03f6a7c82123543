package api

import (
	"fmt"
	"math"

	"github.com/prometheus/prometheus/util/stats"

	"tidemark/log"
	"tidemark/projections/query"
)

// The values of the parameter stats that have a meaning. Prometheus answers others as statsOn, with a warning.
const (
	statsOn  = "true"
	statsAll = "all"
)

// queryStats is data.stats of an answer: Prometheus' own members, and ours beside them.
type queryStats struct {
	*stats.BuiltinStats
	Tidemark ownStats `json:"tidemark"`
}

// ownStats says where an answer came from and what it took.
type ownStats struct {
	Route           string         `json:"route"`
	Seq             log.Seq        `json:"seq"`
	CompleteThrough *int64         `json:"completeThroughMs"` // null when no barrier proved anything, or nothing was read
	Miss            string         `json:"miss,omitempty"`    // the reason why panes did not answer all of it
	Steps           map[string]int `json:"steps"`             // by route
	Leaves          int            `json:"leaves"`
	Raw             int            `json:"raw"` // parts of the expression that the exact copy answered
	Reads           int            `json:"reads"`
	Series          int            `json:"series"`
	Samples         int            `json:"samples"`
	Columns         int            `json:"columns"`
	Pieces          int            `json:"pieces"`         // read from the store of published buckets
	Sketched        int            `json:"sketchedLeaves"` // read from sketches, exact to sketchError
	SketchError     float64        `json:"sketchError,omitempty"`
	Recorded        int            `json:"recordedSteps"`  // of recorded windows, read as they were recorded
	Evaluated       int            `json:"evaluatedSteps"` // of materializations, evaluated because they are not recorded
	Timings         ownTimings     `json:"timings"`
}

// ownTimings are in seconds. What the engine took of them stands among Prometheus' members.
type ownTimings struct {
	Total   float64 `json:"totalTime"`   // from when the query was asked, a place to wait for included
	Reading float64 `json:"readingTime"` // of this, waiting for panes and reading them
}

func statsOf(res *query.Result) *queryStats {
	s := &queryStats{Tidemark: ownStats{
		Route: res.Route, Seq: res.Seq, Miss: res.Miss, Leaves: res.Stats.Leaves, Raw: res.Stats.Raw, Reads: res.Stats.Reads,
		Series: res.Stats.Series, Samples: res.Stats.Samples, Columns: res.Stats.Columns, Pieces: res.Stats.Pieces,
		Recorded: res.Stats.Recorded, Evaluated: res.Stats.Evaluated,
		Timings: ownTimings{Total: res.Stats.Took.Seconds(), Reading: res.Stats.Reading.Seconds()},
	}}
	s.Tidemark.Steps = map[string]int{res.Route: res.Stats.Steps}
	if res.Route == query.RouteLive {
		s.Tidemark.Steps = map[string]int{query.RouteWarm: res.Stats.Steps - res.Stats.Live, query.RouteLive: res.Stats.Live}
	}
	if res.Stats.Sketched > 0 {
		s.Tidemark.Sketched, s.Tidemark.SketchError = res.Stats.Sketched, query.SketchError
	}
	if proven(res.CompleteThrough) {
		s.Tidemark.CompleteThrough = &res.CompleteThrough
	}
	if res.Stats.Engine != nil {
		builtin := stats.NewQueryStats(res.Stats.Engine).Builtin()
		s.BuiltinStats = &builtin
	}
	return s
}

// proven tells a time that barriers proved from the two values that mean "nothing proven" and "nothing read".
func proven(completeThrough int64) bool {
	return completeThrough != math.MinInt64 && completeThrough != math.MaxInt64
}

// inWords is the info that stats=all adds: people see infos as notices, so only who asks gets one.
func (s *queryStats) inWords() string {
	text := fmt.Sprintf("answered by route %s as of log sequence %d", s.Tidemark.Route, s.Tidemark.Seq)
	if s.Tidemark.Sketched > 0 {
		text += fmt.Sprintf("; %d of its leaves were read from sketches, exact to %g%%", s.Tidemark.Sketched, 100*s.Tidemark.SketchError)
	}
	return text
}

// statsWarning returns the warning for a value of stats that Prometheus calls deprecated, or "".
func statsWarning(v string) string {
	switch v {
	case "", statsOn, statsAll:
		return ""
	}
	return fmt.Sprintf("value %q for parameter \"stats\" is deprecated and will be rejected in the next major release, use %q or %q", v, statsOn, statsAll)
}
