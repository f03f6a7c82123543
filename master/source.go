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
	// Versions returns what is counted, as of one sequence.
	Versions(ctx context.Context) (Versions, error)
	// Observe returns the counts of one experiment; false if there are none.
	Observe(ctx context.Context, name string) (Observation, bool, error)
}

// Version says as of what an experiment was counted: counts with the same one are the same.
type Version struct {
	Seq   log.Seq // last event that changed them
	Basis uint64  // over what was counted; it says nothing but whether it is the same
}

// Versions is which experiments are counted, as of one sequence.
type Versions struct {
	Seq    log.Seq
	Behind bool               // as in Observation
	Of     map[string]Version // those of which anything was counted since they were last retired
}

// Observation is what was counted of one experiment since it was last retired, as of one sequence.
type Observation struct {
	Seq              log.Seq
	Version          log.Seq // last event that changed any of the counts
	Basis            uint64  // as in Version
	Behind           bool    // some of what is planned is not counted yet: more may be open than is known
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
	Later            []log.RetiredLater
}

// Log is what the master asks of the log besides its events.
type Log interface {
	// Append makes an event durable and returns its sequence; 0 for a tick that may not be written now.
	Append(ctx context.Context, body log.Body) (log.Seq, error)
	// LogTime is the log time of an event that would be appended now, ms.
	LogTime() int64
}
