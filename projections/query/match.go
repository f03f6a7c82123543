package query

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/plan"
)

// stream is a stream of the plan, ready to be matched.
type stream struct {
	*plan.Stream
	matchers []*labels.Matcher
}

// index holds the streams of one plan that stand in for PromQL's half-open windows, with their matchers compiled.
type index struct {
	plan    *plan.Plan
	streams []stream
	names   map[string]string // what the plan itself gives a name to, and what it is
}

func newIndex(p *plan.Plan) (*index, error) {
	x := &index{plan: p, names: map[string]string{}}
	if p == nil {
		return x, nil
	}
	for _, m := range p.Materializations {
		if m.Name != "" {
			x.names[m.Name] = "a materialization"
		}
		if m.Record != "" {
			x.names[m.Record] = "a recording rule"
		}
	}
	for i := range p.Streams {
		s := &p.Streams[i]
		// A left-closed bucket owns [S, E): it is read under its materialization's own name only, never in place of PromQL.
		if s.Closed != plan.Right {
			continue
		}
		ms, err := s.LabelMatchers()
		if err != nil {
			return nil, fmt.Errorf("stream %d of the plan: %w", s.ID, err)
		}
		x.streams = append(x.streams, stream{Stream: s, matchers: ms})
	}
	// The widest pane is the least to read. Among equals: the one that waits least, then the one that goes back furthest.
	slices.SortStableFunc(x.streams, func(a, b stream) int {
		return cmp.Or(
			cmp.Compare(b.PaneMillis, a.PaneMillis),
			cmp.Compare(a.LatenessMillis, b.LatenessMillis),
			cmp.Compare(b.RetentionMillis, a.RetentionMillis),
			cmp.Compare(a.ID, b.ID),
		)
	})
	return x, nil
}

// candidates returns the streams that can answer l, the best first, or why there is none.
func (x *index) candidates(l *leaf) ([]stream, *MissError) {
	if name, what := x.derived(l.matchers); name != "" {
		return nil, l.miss(ReasonNoMaterialization, "%s is the name of %s, and panes are made from written series only", name, what)
	}
	var (
		fit     []stream
		offGrid string
	)
	for _, s := range x.streams {
		if !narrower(l.matchers, s.matchers) {
			continue
		}
		if why := l.offGrid(s.Stream); why != "" {
			offGrid = why // the last is of the finest grid
			continue
		}
		fit = append(fit, s)
	}
	switch {
	case len(fit) > 0:
		return fit, nil
	case offGrid != "":
		return nil, l.miss(ReasonOffGrid, "%s", offGrid)
	default:
		return nil, l.miss(ReasonNoMaterialization, "no stream of the plan covers this selector")
	}
}

// derived returns a name, given by the plan, that a selector asks for, and what it is. A selector that says nothing of
// names means written series.
func (x *index) derived(matchers []*labels.Matcher) (name, what string) {
	var named []*labels.Matcher
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel {
			named = append(named, m)
		}
	}
	if len(named) == 0 {
		return "", ""
	}
	for n, w := range x.names {
		// The least name, so that the text does not depend on the map's order.
		if (name == "" || n < name) && !slices.ContainsFunc(named, func(m *labels.Matcher) bool { return !m.Matches(n) }) {
			name, what = n, w
		}
	}
	return name, what
}

// offGrid says why l's windows are not made of whole panes of s, or returns "".
func (l *leaf) offGrid(s *plan.Stream) string {
	width := s.PaneMillis
	// The window of an instant selector may begin within a pane: the last sample's own time decides.
	if !l.lookback && l.window%width != 0 {
		return fmt.Sprintf("the range of %d ms is no multiple of the pane of %d ms", l.window, width)
	}
	times := l.dataTimes()
	if times.count() == 0 {
		return ""
	}
	if !s.OnGrid(times.start) {
		return fmt.Sprintf("the evaluation time %d is not on the grid of %d ms from %d", times.start, width, s.OriginMillis)
	}
	if times.count() > 1 && times.every%width != 0 {
		return fmt.Sprintf("the step of %d ms is no multiple of the pane of %d ms", times.every, width)
	}
	return ""
}

// narrower says that every label set that all of query select is selected by all of held.
// It may say no where the answer is yes, never the reverse.
func narrower(query, held []*labels.Matcher) bool {
	for _, h := range held {
		if !slices.ContainsFunc(query, func(q *labels.Matcher) bool { return implies(q, h) }) {
			return false
		}
	}
	return true
}

// implies says that what q selects, h selects.
func implies(q, h *labels.Matcher) bool {
	if q.Name != h.Name {
		return false
	}
	if q.Type == h.Type && q.Value == h.Value {
		return true
	}
	switch q.Type {
	case labels.MatchEqual:
		return h.Matches(q.Value)
	case labels.MatchRegexp:
		values := q.SetMatches() // what the regexp matches, where that is a plain list
		return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return !h.Matches(v) })
	default:
		return false
	}
}
