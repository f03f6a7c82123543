package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// Format is the version of the encoded plan.
const Format = 1

// Bounds of a plan.
const (
	MaxPlanBytes = 32 << 20 // encoded
	MaxStreams   = 20000
	MaxMatchers  = 100 // to one stream
	// MaxGenerations bounds the streams that are folded apart from the others, counted by the plan events that added them.
	MaxGenerations = 32
)

// Encode returns the plan as canonical JSON: plans that are Equal give equal bytes.
func (p *Plan) Encode() []byte {
	b, err := json.Marshal(p.canonical())
	if err != nil {
		panic("PL2: a plan holds only numbers and text: " + err.Error())
	}
	return b
}

// Equal says that two plans fold alike and hold the same materializations. When they were put in force does not count.
func (p *Plan) Equal(q *Plan) bool {
	return bytes.Equal(p.Begin(0, 0, nil).Encode(), q.Begin(0, 0, nil).Encode())
}

// Begin returns the plan as it is put in force by an event. Its streams that are not in the plan before are folded from the event
// fromSeq on, the oldest that the log has; 0: from the event of the plan itself. coverage is the largest sample time in any
// earlier event, ms, and counts only where fromSeq is beyond 1. handedOver are the generations of streams, by the events that
// began them, increasing, which the live fold has taken over by now: what they have published stays when the plan removes
// their streams.
func (p *Plan) Begin(fromSeq uint64, coverage int64, handedOver []uint64) *Plan {
	c := *p
	c.FromSeq, c.CoverageMillis, c.HandedOver = fromSeq, coverage, slices.Clone(handedOver)
	if fromSeq <= 1 {
		c.CoverageMillis = 0
	}
	return &c
}

// Covered returns the coverage start of the streams that are folded from FromSeq on, ms: MinInt64 if that is the first event.
func (p *Plan) Covered() int64 {
	if p.FromSeq <= 1 {
		return math.MinInt64
	}
	return p.CoverageMillis
}

// canonical returns a copy of the plan in the order of its bytes.
func (p *Plan) canonical() *Plan {
	c := *p
	c.Streams = append([]Stream{}, p.Streams...)
	for i := range c.Streams {
		s := &c.Streams[i]
		s.Matchers = append([]Matcher{}, s.Matchers...)
		slices.SortFunc(s.Matchers, compareMatchers)
	}
	slices.SortStableFunc(c.Streams, func(a, b Stream) int { return cmp.Compare(a.ID, b.ID) })
	c.Materializations = append([]Materialization{}, p.Materializations...)
	for i := range c.Materializations {
		m := &c.Materializations[i]
		m.Labels = maps.Clone(m.Labels)
		m.Streams = append([]StreamID{}, m.Streams...)
		slices.Sort(m.Streams)
		if len(m.Reads) > 0 {
			m.Reads = slices.Sorted(slices.Values(m.Reads))
		}
	}
	slices.SortStableFunc(c.Materializations, func(a, b Materialization) int { return cmp.Compare(a.Name, b.Name) })
	return &c
}

// Decode reads what Encode writes and nothing else: an unknown format, unknown fields, values out of bounds, IDs that do
// not belong to their streams, and any other order or spelling are errors.
func Decode(b []byte) (*Plan, error) {
	if len(b) > MaxPlanBytes {
		return nil, fmt.Errorf("plan: %d bytes, at most %d", len(b), MaxPlanBytes)
	}
	// The format decides how the rest is read, hence it is looked at first.
	var head struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if head.Format == nil {
		return nil, errors.New("plan: no format")
	}
	if *head.Format != Format {
		return nil, fmt.Errorf("plan: format %d, this version reads %d", *head.Format, Format)
	}
	p := new(Plan)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("plan: something follows the end")
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if !bytes.Equal(p.Encode(), b) {
		return nil, errors.New("plan: not in canonical form")
	}
	return p, nil
}

// Validate checks a plan's bounds, and that it is consistent: IDs belong to their streams, no stream and no name is
// there twice, and materializations name streams of the plan.
func (p *Plan) Validate() error {
	if p.Format != Format {
		return fmt.Errorf("plan: format %d, this version knows %d", p.Format, Format)
	}
	if p.ExperimentLabel == "" {
		return errors.New("plan: no experiment label")
	}
	if err := textBound("experiment_label", p.ExperimentLabel, MaxNameBytes); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	err := cmp.Or(
		bound("lookback_ms", p.LookbackMillis, 1, MaxDurationMillis),
		bound("idle_timeout_ms", p.IdleTimeoutMillis, 0, MaxDurationMillis),
		bound("idle_grace_ms", p.IdleGraceMillis, 0, MaxDurationMillis),
		bound("open_grace_ms", p.OpenGraceMillis, 0, MaxDurationMillis),
		bound("correction_horizon_ms", p.HorizonMillis, 0, MaxDurationMillis),
		bound("clock_skew_ms", p.ClockSkewMillis, 0, MaxDurationMillis),
		bound("max_future_ms", p.MaxFutureMillis, 0, MaxDurationMillis),
		bound("streams", int64(len(p.Streams)), 0, MaxStreams),
		bound("materializations", int64(len(p.Materializations)), 0, MaxMaterializations),
	)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	ids := make([]StreamID, 0, len(p.Streams))
	for i := range p.Streams {
		s := &p.Streams[i]
		if err := s.validate(); err != nil {
			return fmt.Errorf("plan: stream %s: %w", s.ID, err)
		}
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			return fmt.Errorf("plan: stream %s: there twice", ids[i])
		}
	}
	names := make(map[string]struct{}, len(p.Materializations))
	for i := range p.Materializations {
		m := &p.Materializations[i]
		if err := m.validate(ids); err != nil {
			return fmt.Errorf("plan: materialization %q: %w", m.Name, err)
		}
		if _, ok := names[m.Name]; ok {
			return fmt.Errorf("plan: materialization %q: there twice", m.Name)
		}
		names[m.Name] = struct{}{}
	}
	return cmp.Or(p.validateBegin(), p.validateReads())
}

func (p *Plan) validateBegin() error {
	if p.FromSeq <= 1 && p.CoverageMillis != 0 {
		return errors.New("plan: coverage_ms where everything is covered")
	}
	if n := len(p.HandedOver); n > MaxGenerations {
		return fmt.Errorf("plan: handed_over: %d generations, at most %d", n, MaxGenerations)
	}
	for i, g := range p.HandedOver {
		if g == 0 || i > 0 && g <= p.HandedOver[i-1] {
			return errors.New("plan: handed_over: not increasing")
		}
	}
	return nil
}

func (s *Stream) validate() error {
	err := cmp.Or(
		bound("pane_ms", s.PaneMillis, MinPaneMillis, MaxDurationMillis),
		bound("origin_ms", s.OriginMillis, -MaxTimeMillis, MaxTimeMillis),
		bound("allowed_lateness_ms", s.LatenessMillis, 0, MaxDurationMillis),
		bound("retention_ms", s.RetentionMillis, 1, MaxDurationMillis),
		bound("matchers", int64(len(s.Matchers)), 1, MaxMatchers),
	)
	if err != nil {
		return err
	}
	if s.Closed != Right && s.Closed != Left {
		return fmt.Errorf("closed: %q is neither %s nor %s", s.Closed, Right, Left)
	}
	if s.Late != Correct && s.Late != Drop {
		return fmt.Errorf("late: %q is neither %s nor %s", s.Late, Correct, Drop)
	}
	for _, m := range s.Matchers {
		if err := m.validate(); err != nil {
			return err
		}
	}
	if r := s.Resolved(); r.ID != s.ID || !slices.Equal(r.Matchers, s.Matchers) {
		return fmt.Errorf("PL1: not the id of its identity, which has %s", r.ID)
	}
	return nil
}

func (m Matcher) validate() error {
	if m.Name == "" {
		return errors.New("matcher without a label name")
	}
	if err := textBound("matcher", m.Name+m.Value, MaxExprBytes); err != nil {
		return err
	}
	_, err := m.compile()
	return err
}

// validate checks a materialization in a plan whose streams have the given IDs, sorted.
func (m *Materialization) validate(ids []StreamID) error {
	if m.Name == "" || m.Expr == "" {
		return errors.New("without name or expression")
	}
	err := cmp.Or(
		textBound("name", m.Name, maxPlanNameBytes),
		textBound("record", m.Record, maxPlanNameBytes),
		textBound("expr", m.Expr, maxPlanExprBytes),
		bound("every_ms", m.EveryMillis, MinPaneMillis, MaxDurationMillis),
		bound("retention_ms", m.RetentionMillis, 1, MaxDurationMillis),
		bound("streams", int64(len(m.Streams)), 0, MaxLeaves),
		bound("reads", int64(len(m.Reads)), 0, MaxLeaves),
		bound("labels", int64(len(m.Labels)), 0, MaxMatchers),
	)
	if err != nil {
		return err
	}
	if m.Layout != LayoutPanes && m.Layout != LayoutFullWindow {
		return fmt.Errorf("layout: %q is neither %s nor %s", m.Layout, LayoutPanes, LayoutFullWindow)
	}
	if m.Layout == LayoutPanes && len(m.Streams)+len(m.Reads) == 0 {
		return fmt.Errorf("layout %s without streams", LayoutPanes)
	}
	read := slices.Sorted(slices.Values(m.Reads))
	for i, name := range read {
		if err := textBound("reads", name, maxPlanNameBytes); err != nil {
			return err
		}
		if i > 0 && name == read[i-1] {
			return fmt.Errorf("reads %q twice", name)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		if k == "" {
			return errors.New("label without a name")
		}
		if err := textBound("label", k+m.Labels[k], MaxExprBytes); err != nil {
			return err
		}
	}
	reads := slices.Sorted(slices.Values(m.Streams))
	for i, id := range reads {
		if _, ok := slices.BinarySearch(ids, id); !ok {
			return fmt.Errorf("stream %s is not in the plan", id)
		}
		if i > 0 && id == reads[i-1] {
			return fmt.Errorf("stream %s is there twice", id)
		}
	}
	return nil
}

// The names of rules are made of group and record. An expression may grow when the parser prints it.
const (
	maxPlanNameBytes = 4 << 10
	maxPlanExprBytes = 4 * MaxExprBytes
)

func bound(field string, v, least, most int64) error {
	if v < least || v > most {
		return fmt.Errorf("%s: %d is not within [%d, %d]", field, v, least, most)
	}
	return nil
}

func textBound(field, v string, most int) error {
	if len(v) > most {
		return fmt.Errorf("%s: %d bytes, at most %d", field, len(v), most)
	}
	if !utf8.ValidString(v) {
		return fmt.Errorf("%s: not valid UTF-8", field)
	}
	return nil
}
