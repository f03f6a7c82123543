package pane

import (
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/plan"
)

// Request asks for the series of one stream that match, and their closed panes with ends in (From, To].
type Request struct {
	Stream   plan.StreamID
	Matchers []*labels.Matcher // in full: at least as narrow as the stream's
	From, To int64             // ms, both on the stream's grid, From < To

	// Live asks for the samples in open buckets, too.
	Live bool
	// Behind says that what stands in the log and is not yet given to the workers need not be waited for. It counts if all requests
	// of a read say so.
	Behind bool
	// Tracked asks for Answer.Tracked of the ends in (From, To], and for no series.
	Tracked bool
}

// Snapshot is the answer to a Read: one Answer for each Request, in their order, all as of Seq.
type Snapshot struct {
	Seq     log.Seq
	Answers []Answer

	room room
}

// Release gives back the memory in which the samples of the answers lie. It need not be called; once it was, the windows of the answers
// must not be read any more.
func (s *Snapshot) Release() { s.room.release() }

// Answer is what a stream holds for a Request.
type Answer struct {
	Known         bool  // the stream is in the plan as of Seq, and can be read
	Materializing bool  // the stream is in the plan as of Seq, and is still being folded from the log
	CoverageStart int64 // ms; math.MinInt64 if the stream was folded from the first event
	Frontier      int64 // φ, ms; math.MinInt64 before anything closed; math.MaxInt64 while input is sealed
	Proven        int64 // the part of φ that barriers proved, ms; math.MinInt64 if none did
	Series        []Series
	Pieces        int     // read from the store; what is newer comes from memory
	Tracked       Tracked // if it was asked for
}

// Series is one series of an Answer. Answers hold their series in label order (labels.Compare). A series without anything in
// the range is left out.
type Series struct {
	Labels       labels.Labels
	accum.Window         // everything closed in (From, To]; if Live was asked for, behind it what is in open buckets
	Open         []int64 // ends of its open buckets in (From, To], increasing
	Incomplete   []int64 // ends of buckets in (From, To] that lost late samples, increasing
	Histograms   []int64 // ends of buckets in (From, To] into which native histograms fell, increasing
}
