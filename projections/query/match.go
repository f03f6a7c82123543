package query

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/plan"
)

// stream is a stream of the plan, ready to be matched.
type stream struct {
	*plan.Stream
	matchers []*labels.Matcher
}

// index holds the streams of one plan with their matchers compiled: those that stand in for PromQL's half-open windows, and
// by the name under which it is read each materialization with its own.
type index struct {
	plan      *plan.Plan
	streams   []stream
	names     plan.Named
	materials map[string][]*material
	wholes    *wholes
	owners    map[plan.StreamID][]*uses // of the materializations that have a stream
}

// newIndex makes the index of a plan; used gives a materialization, by its name, its counters.
func newIndex(p *plan.Plan, used func(name string) *uses) (*index, error) {
	x := &index{plan: p, materials: map[string][]*material{}, wholes: &wholes{}, owners: map[plan.StreamID][]*uses{}}
	if p == nil {
		return x, nil
	}
	all := make([]stream, len(p.Streams))
	for i := range p.Streams {
		s := &p.Streams[i]
		ms, err := s.LabelMatchers()
		if err != nil {
			return nil, fmt.Errorf("stream %d of the plan: %w", s.ID, err)
		}
		all[i] = stream{Stream: s, matchers: ms}
	}
	bestFirst(all)
	for _, s := range all {
		// A left-closed bucket owns [S, E): it is read under its materialization's own name only, never in place of PromQL.
		if s.Closed == plan.Right {
			x.streams = append(x.streams, s)
		}
	}
	x.names = p.Named()
	var made []*material // that may stand in for PromQL
	for i := range p.Materializations {
		m := &material{Materialization: &p.Materializations[i], plan: p}
		m.uses = used(m.Name)
		for _, id := range m.Streams {
			x.owners[id] = append(x.owners[id], m.uses)
		}
		for _, s := range all {
			if slices.Contains(m.Streams, s.ID) {
				m.streams = append(m.streams, s)
			}
		}
		x.materials[m.ReadAs()] = append(x.materials[m.ReadAs()], m)
		if !x.covered(m) {
			made = append(made, m)
		}
	}
	x.wholes = newWholes(made)
	return x, nil
}

func bestFirst(streams []stream) {
	// What keeps late samples comes before what drops them. The widest pane is the least to read. Among equals: the one that waits least,
	// then the one that goes back furthest.
	drops := func(s stream) int {
		if s.Late == plan.Drop {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(streams, func(a, b stream) int {
		return cmp.Or(
			cmp.Compare(drops(a), drops(b)),
			cmp.Compare(b.PaneMillis, a.PaneMillis),
			cmp.Compare(a.LatenessMillis, b.LatenessMillis),
			cmp.Compare(b.RetentionMillis, a.RetentionMillis),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// candidates returns the streams that can answer l, the best first, or why there is none. Within the expression of a
// materialization only its own count, and the best of them alone.
func (x *index) candidates(l *leaf, own *material) ([]stream, *MissError) {
	l.near = nil
	var (
		fit     []stream
		offGrid string
		streams = x.streams
	)
	if own != nil {
		streams = own.streams
	}
	for _, s := range streams {
		if !narrower(l.matchers, s.matchers) {
			continue
		}
		if why := l.offGrid(s.Stream); why != "" {
			offGrid = why // the last is of the finest grid
			l.near = append(l.near, s)
			continue
		}
		fit = append(fit, s)
	}
	switch {
	case len(fit) > 0 && own != nil:
		return fit[:1], nil
	case len(fit) > 0:
		return fit, nil
	case offGrid != "":
		return nil, l.miss(ReasonOffGrid, "%s", offGrid)
	default:
		return nil, l.miss(ReasonNoMaterialization, "no stream of the plan covers this selector")
	}
}

// covered says whether late samples that a stream of m drops are kept by another, which answers wherever that stream does.
func (x *index) covered(m *material) bool {
	return slices.ContainsFunc(m.streams, func(s stream) bool {
		return s.Late == plan.Drop && slices.ContainsFunc(x.streams, func(o stream) bool {
			return o.Late != plan.Drop && narrower(s.matchers, o.matchers) &&
				s.PaneMillis%o.PaneMillis == 0 && (s.OriginMillis-o.OriginMillis)%o.PaneMillis == 0
		})
	})
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
