package master

import (
	"context"
	"math"

	"tidemark/log"
)

// never is a time that has not been.
const never = math.MinInt64

// Source is where the counts of experiments come from: the panes' shards.
type Source interface {
	// Versions returns, as of one sequence, the experiments of which anything was counted since they were last retired, each with
	// the last event that changed its counts.
	Versions(ctx context.Context) (log.Seq, map[string]log.Seq, error)
	// Observe returns the counts of one experiment; false if there are none.
	Observe(ctx context.Context, name string) (Observation, bool, error)
}

// Observation is what was counted of one experiment since it was last retired, as of one sequence.
type Observation struct {
	Seq              log.Seq
	Version          log.Seq // last event that changed any of the counts
	Series, Samples  uint64
	Buckets          uint64
	Corrections      uint64
	WorstBucket      uint64
	LastCorrectedAt  log.Seq // 0 if Corrections is 0
	Pending          int
	OldestPending    int64 // event time, ms; math.MinInt64 if nothing is open
	LastWrite        int64 // wall time, ms; math.MinInt64 if there was no accepted sample
	LastWriteLogTime int64 // log time of the same event, ms
	ClosedThrough    int64 // event time, ms; math.MinInt64 if nothing is closed
	Parts            []log.RetiredPart
}

// Log is what the master asks of the log besides its events.
type Log interface {
	// Append makes an event durable and returns its sequence; 0 for a tick that may not be written now.
	Append(ctx context.Context, body log.Body) (log.Seq, error)
	// LogTime is the log time of an event that would be appended now, ms.
	LogTime() int64
}
