package api

import (
	"context"
	"net/http"

	"tidemark/log"
)

// LogStatus is the data of /api/v1/status/log: the log, what is folded from it, and what keeps it from being cut. Times are in
// ms since the epoch, sizes in bytes.
type LogStatus struct {
	AsOf        int64             `json:"as_of_ms"`
	Ready       bool              `json:"ready"`
	Reasons     []string          `json:"reasons"` // why it is not ready
	Log         LogState          `json:"log"`
	Rates       LogRates          `json:"rates"`
	Projections []ProjectionState `json:"projections"`
	Views       ViewsState        `json:"views"`
	Truncation  Truncation        `json:"truncation"`
	Barriers    Barriers          `json:"barriers"`
}

// LogState is the log itself. Totals are of this process.
type LogState struct {
	Head         log.Seq `json:"head_seq"`
	Floor        log.Seq `json:"floor_seq"`
	Time         int64   `json:"log_time_ms"`
	Events       uint64  `json:"events_total"`
	Samples      uint64  `json:"samples_total"`
	Series       int     `json:"series"`
	Queue        int     `json:"queue_length"` // appends that wait for the committer
	DiskBytes    uint64  `json:"disk_bytes"`
	FreeBytes    uint64  `json:"free_bytes"` // on its disk
	MinFreeBytes uint64  `json:"min_free_bytes"`
	Poisoned     bool    `json:"poisoned"`
}

// LogRates is what went into the log lately: one entry for each step, the newest last. It begins with the process.
type LogRates struct {
	Step    int64     `json:"step_ms"`
	End     int64     `json:"end_ms"` // of the newest step
	Samples []float64 `json:"samples_per_second"`
	Events  []float64 `json:"events_per_second"`
}

// ProjectionState is how far one projection is.
type ProjectionState struct {
	Name               string  `json:"name"`
	State              string  `json:"state"` // replaying, following or stopped
	Error              string  `json:"error,omitempty"`
	Applied            log.Seq `json:"applied_seq"`
	Durable            log.Seq `json:"durable_seq"` // of its checkpoint; a start replays what follows
	LagEvents          int64   `json:"lag_events"`
	LagSeconds         float64 `json:"lag_seconds"`
	CheckpointFailures int64   `json:"checkpoint_consecutive_failures"`
}

// ViewsState is the store of what is published.
type ViewsState struct {
	DiskBytes          uint64 `json:"disk_bytes"`
	PendingCompactions int    `json:"pending_compactions"`
	CompactionFailures uint64 `json:"compaction_consecutive_failures"`
	ExpiryFailures     uint64 `json:"expiry_consecutive_failures"`
	PendingSteps       int64  `json:"pending_recorded_steps"` // published, not yet recorded
	RecordingFailures  uint64 `json:"recording_consecutive_failures"`
}

// Truncation says by what the log is cut, and who still needs it.
type Truncation struct {
	Retention int64   `json:"retention_ms"`   // 0: no limit
	MaxBytes  uint64  `json:"max_size_bytes"` // 0: no limit
	KeptBytes uint64  `json:"kept_bytes"`     // what counts against it
	Base      log.Seq `json:"base_seq"`       // sealed last by this process; 0: none
	Count     uint64  `json:"truncations_total"`
	Failures  uint64  `json:"consecutive_failures"`
	LastError string  `json:"last_error,omitempty"`
	Holds     []Hold  `json:"holds"` // the least sequence first
}

// Hold is somebody who needs the log from a sequence on.
type Hold struct {
	By   string  `json:"by"`
	From log.Seq `json:"from_seq"`
}

// Barriers are the newest watermarks and drains that this process was asked for, the newest first.
type Barriers struct {
	ExperimentLabel string          `json:"experiment_label"` // whose values watermarks may name
	Recent          []RecentBarrier `json:"recent"`
}

// RecentBarrier is a watermark or a drain and what became of it.
type RecentBarrier struct {
	Kind            string  `json:"kind"` // watermark or drain
	At              int64   `json:"at_ms"`
	TookMillis      float64 `json:"took_ms"`
	Mark            *int64  `json:"time_ms,omitempty"`    // of a watermark
	Experiment      *string `json:"experiment,omitempty"` // null: all
	Seq             log.Seq `json:"seq,omitempty"`
	Closed          int64   `json:"closed_buckets"`
	CompleteThrough *int64  `json:"complete_through_ms,omitempty"` // null: nothing is proven
	Error           string  `json:"error,omitempty"`
}

// LogStatusSource knows the state of the log. It must not wait for a projection: the answer is needed most when one hangs.
type LogStatusSource interface {
	LogStatus(ctx context.Context) (LogStatus, error)
}

// NewLogStatus returns the handler of /api/v1/status/log.
func NewLogStatus(s LogStatusSource) http.Handler {
	return newStatus(func(ctx context.Context, _ any) (any, error) {
		st, err := s.LogStatus(ctx)
		if err != nil {
			return nil, err
		}
		// Empty lists are lists, not null.
		st.Reasons, st.Rates.Samples, st.Rates.Events = orEmpty(st.Reasons), orEmpty(st.Rates.Samples), orEmpty(st.Rates.Events)
		st.Projections, st.Truncation.Holds, st.Barriers.Recent = orEmpty(st.Projections), orEmpty(st.Truncation.Holds), orEmpty(st.Barriers.Recent)
		return st, nil
	})
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
