package plan

import "github.com/prometheus/prometheus/model/labels"

// StreamID identifies a pane stream: the 64-bit hash of its Identity.
type StreamID uint64

// Membership says which edge a bucket owns.
type Membership string

// LatePolicy says what happens to late samples.
type LatePolicy string

// The values of Membership and LatePolicy.
const (
	Right Membership = "right" // (S, E], as PromQL 3
	Left  Membership = "left"  // [S, E)

	Correct LatePolicy = "correct"
	Drop    LatePolicy = "drop"
)

// Plan is all that the fold reads of the configuration. It is what a plan event holds, as canonical JSON (Encode, Decode).
type Plan struct {
	Format            int               `json:"format"` // 1
	ExperimentLabel   string            `json:"experiment_label"`
	LookbackMillis    int64             `json:"lookback_ms"`
	IdleTimeoutMillis int64             `json:"idle_timeout_ms"`
	IdleGraceMillis   int64             `json:"idle_grace_ms"`
	OpenGraceMillis   int64             `json:"open_grace_ms"`
	HorizonMillis     int64             `json:"correction_horizon_ms"`
	ClockSkewMillis   int64             `json:"clock_skew_ms"`
	MaxFutureMillis   int64             `json:"max_future_ms"` // 0 = unbounded
	Streams           []Stream          `json:"streams"`       // by ID
	Materializations  []Materialization `json:"materializations"`

	// What the log knew when the plan was put in force; see Begin.
	FromSeq        uint64   `json:"from_seq,omitempty"`
	CoverageMillis int64    `json:"coverage_ms,omitempty"`
	HandedOver     []uint64 `json:"handed_over,omitempty"`
}

// Stream is one leaf's selector on one grid. Streams with equal Identity are one stream.
type Stream struct {
	ID              StreamID   `json:"id"`
	Matchers        []Matcher  `json:"matchers"` // sorted, without repeats
	PaneMillis      int64      `json:"pane_ms"`
	OriginMillis    int64      `json:"origin_ms"`
	Closed          Membership `json:"closed"`
	LatenessMillis  int64      `json:"allowed_lateness_ms"`
	Late            LatePolicy `json:"late"`
	RetentionMillis int64      `json:"retention_ms"` // the longest of its materializations'; not part of the identity
}

// Matcher is a label matcher in a form that encodes.
type Matcher struct {
	Type  string `json:"type"` // "=", "!=", "=~" or "!~"
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Materialization is one configured expression with the streams that its leaves read.
type Materialization struct {
	Name            string            `json:"name"`
	Expr            string            `json:"expr"` // canonical form, as the parser prints it
	EveryMillis     int64             `json:"every_ms"`
	Layout          string            `json:"layout"` // "panes" or "full_window"
	Record          string            `json:"record,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"` // added by a recording rule
	RetentionMillis int64             `json:"retention_ms"`
	Streams         []StreamID        `json:"streams"`
	Reads           []string          `json:"reads,omitempty"` // the names of materializations and recorded series that it reads, sorted
}

// LabelMatchers compiles the stream's matchers.
func (s *Stream) LabelMatchers() ([]*labels.Matcher, error) {
	ms := make([]*labels.Matcher, len(s.Matchers))
	for i, m := range s.Matchers {
		c, err := m.compile()
		if err != nil {
			return nil, err
		}
		ms[i] = c
	}
	return ms, nil
}
