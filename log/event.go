package log

import (
	"math"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// Seq is the position of an event in the log: dense, from 1. 0 means "before the first event".
type Seq uint64

// SeriesRef names a label set in the dictionary: from 1, increasing in the order of definition, never reused. Gaps are legal.
type SeriesRef uint64

// Hash is a 128-bit content hash.
type Hash [16]byte

// Kind tells what an event is. The numbers are on disk: they are never reused.
type Kind uint8

// The kinds of event format 1.
const (
	KindStart     Kind = 1
	KindWrite     Kind = 2
	KindWatermark Kind = 3
	KindTick      Kind = 4
	KindDrain     Kind = 5
	KindPlan      Kind = 6
	KindCompacted Kind = 7
	KindExpired   Kind = 8
	KindHeal      Kind = 9
	// 10 is kept for what backfills panes.
	KindExperimentRetired Kind = 11
	KindTaskQueued        Kind = 12
	KindTaskStarted       Kind = 13
	KindTaskFinished      Kind = 14
)

// String returns the name that `tidemark log dump` prints.
func (k Kind) String() string {
	switch k {
	case KindStart:
		return "start"
	case KindWrite:
		return "write"
	case KindWatermark:
		return "watermark"
	case KindTick:
		return "tick"
	case KindDrain:
		return "drain"
	case KindPlan:
		return "plan"
	case KindCompacted:
		return "compacted"
	case KindExpired:
		return "expired"
	case KindHeal:
		return "heal"
	case KindExperimentRetired:
		return "experiment_retired"
	case KindTaskQueued:
		return "task_queued"
	case KindTaskStarted:
		return "task_started"
	case KindTaskFinished:
		return "task_finished"
	default:
		return "unknown"
	}
}

// Event is one entry of the log as readers see it. Events are shared between subscribers and are never modified.
type Event struct {
	Seq      Seq
	ID       ulid.ULID
	LogTime  int64 // ms; stamped by the committer, never decreases along the log
	WallTime int64 // ms since the epoch when the event was stamped; for the frontier's clamp and for display
	Prev     Hash  // hash of the encoded predecessor; zero for the first event of a log
	Body     Body
}

// Body is what an event says: *Start, *Write, *Watermark, *Tick, *Drain, *Plan, *Expired, *Heal, *Compacted, *ExperimentRetired,
// *TaskQueued, *TaskStarted or *TaskFinished.
type Body interface {
	Kind() Kind
}

// StartReason says why a Start event was appended.
type StartReason uint8

// The reasons of a Start event. The numbers are on disk.
const (
	StartProcess StartReason = 1 // a process began to accept writes
	StartResume  StartReason = 2 // writes are accepted again after all were refused for at least a second
)

// Start marks where acceptance of writes began: ages are counted from it, so that downtime closes nothing.
type Start struct {
	Reason StartReason
}

// Watermark is the producer's word that every sample at or before Time (of one experiment, if named) has been written.
type Watermark struct {
	Time       int64 // ms, any int64
	Experiment string
	Scoped     bool // Experiment is set; an empty experiment name is not the same as no experiment
}

// Tick lets log time pass for the fold when something is due by the clock alone.
type Tick struct{}

// Drain closes every open bucket and seals input until the next Start with StartProcess.
type Drain struct{}

// Plan replaces the plan in force. Spec is opaque to the log (canonical JSON, written and read by projections/plan).
type Plan struct {
	Spec []byte
}

// Expired says that retention has removed the buckets of one pane stream that end at or before Through: they are as if they had
// never been, and samples that would fall into them are late. It carries the stream's grid, because the plan in force may no
// longer have the stream.
type Expired struct {
	Stream  uint64 // identity of the pane stream
	Origin  int64  // ms, of the grid; |Origin| ≤ MaxGridMillis
	Width   int64  // ms, of the grid; from 1 to MaxGridMillis
	Through int64  // ms, a bucket end on the grid; |Through| ≤ MaxGridMillis
}

// MaxGridMillis bounds the times in an Expired event, so that arithmetic on a grid cannot overflow.
const MaxGridMillis = 1 << 60

// valid says whether the event keeps the rules of its fields.
func (e *Expired) valid() bool {
	within := func(t int64) bool { return -MaxGridMillis <= t && t <= MaxGridMillis }
	return e.Width >= 1 && within(e.Width) && within(e.Origin) && within(e.Through) && (e.Through-e.Origin)%e.Width == 0
}

// Heal says that the published buckets are from here on what they would be if no sample of the events up to Through had come too
// late to be folded. It reaches back to the events after From, as of which the fold was sealed in a base; 0 if to the first.
type Heal struct {
	Through Seq // at least 1; the event before this one
	From    Seq // at most Through
}

// SeriesDef binds a reference to its label set. Labels are sorted by name, without empty values.
type SeriesDef struct {
	Ref    SeriesRef
	Labels labels.Labels
}

// Write holds the accepted part of one remote-write request in columns.
//
// Run i holds the samples [Ends[i-1], Ends[i]) of series Refs[i]. Refs are strictly increasing, and the samples of a run
// are in time order, stable for equal times in the order of the request.
type Write struct {
	Hash       Hash        // over everything below except Defs: equal content has an equal hash
	Defs       []SeriesDef // series whose first event this is, by increasing Ref; set by the committer
	Refs       []SeriesRef
	Ends       []uint32
	Times      []int64   // ms
	Values     []float64 // every bit pattern is preserved
	Starts     []int64   // ms, parallel to Times; nil when no sample has a start timestamp
	Exemplars  []Exemplar
	Histograms []Histogram
	Metadata   []Metadata
}

// Newest returns the largest time of a sample or native histogram, ms; MinInt64 if there is none.
func (w *Write) Newest() int64 {
	newest := int64(math.MinInt64)
	for _, t := range w.Times {
		newest = max(newest, t)
	}
	for i := range w.Histograms {
		newest = max(newest, w.Histograms[i].Time)
	}
	return newest
}

// Oldest returns the least time of a sample or native histogram, ms; MaxInt64 if there is none.
func (w *Write) Oldest() int64 {
	oldest := int64(math.MaxInt64)
	for _, t := range w.Times {
		oldest = min(oldest, t)
	}
	for i := range w.Histograms {
		oldest = min(oldest, w.Histograms[i].Time)
	}
	return oldest
}

// Exemplar is one exemplar of a series.
type Exemplar struct {
	Ref    SeriesRef
	Time   int64 // ms
	Value  float64
	Labels labels.Labels
}

// Histogram is one native-histogram sample, kept as the protobuf message prometheus.Histogram in which it came.
type Histogram struct {
	Ref   SeriesRef
	Time  int64 // ms
	Proto []byte
}

// Metadata describes a metric family.
type Metadata struct {
	Family, Type, Help, Unit string
}

// Kind implements Body.
func (*Start) Kind() Kind { return KindStart }

// Kind implements Body.
func (*Write) Kind() Kind { return KindWrite }

// Kind implements Body.
func (*Watermark) Kind() Kind { return KindWatermark }

// Kind implements Body.
func (*Tick) Kind() Kind { return KindTick }

// Kind implements Body.
func (*Drain) Kind() Kind { return KindDrain }

// Kind implements Body.
func (*Plan) Kind() Kind { return KindPlan }

// Kind implements Body.
func (*Expired) Kind() Kind { return KindExpired }

// Kind implements Body.
func (*Heal) Kind() Kind { return KindHeal }
