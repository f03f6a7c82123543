package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/zeebo/xxh3"
)

// MaxStepsPerBucket bounds the recorded steps that one bucket takes part in. An expression beyond it is evaluated when it
// is read.
const MaxStepsPerBucket = 10_000

// ReadAs returns the name under which queries read the materialization.
func (m *Materialization) ReadAs() string {
	if m.Record != "" {
		return m.Record
	}
	return m.Name
}

// Named are the names under which queries read what a plan materializes, sorted and without repeats.
type Named struct {
	All []string
	// Found are those under which something is recorded per step, as by a rule: they are series like any other, which patterns over names
	// and lists find, too. The others are names for an expression, and are read by whoever gives them.
	Found []string
}

// ReadNames returns those of the names given by a plan that a selector asks for, sorted; none if it means written series,
// as every selector does that says nothing of names. mixed says that the selector may mean both.
func ReadNames(matchers []*labels.Matcher, names Named) (read []string, mixed bool) {
	var named []*labels.Matcher
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel {
			named = append(named, m)
		}
	}
	if len(named) == 0 {
		return nil, false
	}
	selects := func(name string) bool {
		return !slices.ContainsFunc(named, func(m *labels.Matcher) bool { return !m.Matches(name) })
	}
	for _, m := range named {
		list := m.SetMatches()
		switch {
		case m.Type == labels.MatchEqual:
			list = []string{m.Value}
		case m.Type != labels.MatchRegexp || len(list) == 0:
			continue
		}
		// Nothing but what is on the list can be meant.
		written := false
		for _, name := range slices.Sorted(slices.Values(list)) {
			if !selects(name) {
				continue
			}
			if _, ok := slices.BinarySearch(names.All, name); ok {
				read = append(read, name)
			} else {
				written = true
			}
		}
		return slices.Compact(read), written && len(read) > 0
	}
	for _, name := range names.Found {
		if selects(name) {
			read = append(read, name)
		}
	}
	return read, len(read) > 0
}

// WhenRead says why the values of an expression are not recorded but evaluated whenever they are read, though its name may be
// read like any other. It is empty if they are recorded. Steps to record are found from the buckets that their windows
// overlap; an expression with values where there is no data, or with windows that do not move with the step, has steps
// that no bucket leads to.
func WhenRead(expr parser.Expr, leaves []Leaf) string {
	for i := range leaves {
		if leaves[i].Pinned {
			return "@ pins a window, so that one sample may change every step"
		}
	}
	if !needsData(expr) {
		return "it has values where there is no data"
	}
	return ""
}

// needsData says that an expression has no value where none of its selectors has a sample.
func needsData(expr parser.Expr) bool {
	switch n := expr.(type) {
	case *parser.VectorSelector, *parser.MatrixSelector:
		return true
	case *parser.ParenExpr:
		return needsData(n.Expr)
	case *parser.UnaryExpr:
		return needsData(n.Expr)
	case *parser.StepInvariantExpr:
		return needsData(n.Expr)
	case *parser.SubqueryExpr:
		return needsData(n.Expr)
	case *parser.AggregateExpr:
		return needsData(n.Expr)
	case *parser.BinaryExpr:
		l, r := needsData(n.LHS), needsData(n.RHS)
		if m := n.VectorMatching; m != nil && (m.FillValues.LHS != nil || m.FillValues.RHS != nil) {
			return l && r // a side may stand alone
		}
		switch n.Op {
		case parser.LOR:
			return l && r
		case parser.LUNLESS:
			return l
		default:
			return l || r // a scalar is never empty, and a vector meets nothing where the other is empty
		}
	case *parser.Call:
		switch n.Func.Name {
		case "absent", "absent_over_time", "vector", "scalar":
			return false
		}
		for _, a := range n.Args {
			if t := a.Type(); (t == parser.ValueTypeVector || t == parser.ValueTypeMatrix) && needsData(a) {
				return true
			}
		}
		return false
	default:
		return false
	}
}

// Reach says where the buckets lie that an expression's value at a step T depends on: those of Stream with ends b such that
// T − Back < b ≤ T − Ahead. Both are in ms; Ahead is negative where an offset reaches beyond T.
type Reach struct {
	Stream      StreamID
	Back, Ahead int64
}

// Reaches returns the reaches of a materialization, those of what it reads by name included, at most one to a stream, by
// stream. whenRead is not empty if its steps are evaluated when they are read (see WhenRead); there are no reaches then.
func (p *Plan) Reaches(m *Materialization) (reaches []Reach, whenRead string, err error) {
	found := make(map[StreamID]Reach)
	if whenRead, err = p.reach(m, 0, 0, found, 0); err != nil || whenRead != "" {
		return nil, whenRead, err
	}
	for _, r := range found {
		if (r.Back-r.Ahead)/m.EveryMillis > MaxStepsPerBucket {
			return nil, fmt.Sprintf("one bucket takes part in more than %d steps", MaxStepsPerBucket), nil
		}
		reaches = append(reaches, r)
	}
	slices.SortFunc(reaches, func(a, b Reach) int {
		if a.Stream < b.Stream {
			return -1
		}
		return 1
	})
	return reaches, "", nil
}

// reach adds what m reads when it is evaluated at times in (T − back, T − ahead], or at T alone where both are 0.
func (p *Plan) reach(m *Materialization, back, ahead int64, found map[StreamID]Reach, depth int) (whenRead string, err error) {
	if depth > maxReadDepth {
		return fmt.Sprintf("more than %d recorded series read one another", maxReadDepth), nil
	}
	expr, err := NewParser().ParseExpr(m.Expr)
	if err != nil {
		return "", fmt.Errorf("materialization %q: %w", m.Name, err)
	}
	leaves, err := Leaves(expr, time.Duration(p.LookbackMillis)*time.Millisecond)
	if err != nil {
		return "", fmt.Errorf("materialization %q: %w", m.Name, err)
	}
	if why := WhenRead(expr, leaves); why != "" {
		return why, nil
	}
	names := p.Named()
	for i := range leaves {
		l := &leaves[i]
		leafBack, leafAhead := saturatingAdd(back, l.ReachMillis), saturatingAdd(ahead, l.LatestMillis)
		read, _ := ReadNames(l.Selector.LabelMatchers, names)
		for _, name := range read {
			for j := range p.Materializations {
				if o := &p.Materializations[j]; o.ReadAs() == name {
					if why, err := p.reach(o, leafBack, leafAhead, found, depth+1); err != nil || why != "" {
						return why, err
					}
				}
			}
		}
		if len(read) > 0 {
			continue
		}
		own := Stream{Matchers: matchersOf(l.Selector.LabelMatchers)}.Resolved()
		for j := range p.Streams {
			s := &p.Streams[j]
			if !slices.Contains(m.Streams, s.ID) || !slices.Equal(s.Matchers, own.Matchers) {
				continue
			}
			r, ok := found[s.ID]
			if !ok {
				r = Reach{Stream: s.ID, Ahead: math.MaxInt64}
			}
			found[s.ID] = Reach{Stream: s.ID, Back: max(r.Back, leafBack), Ahead: min(r.Ahead, leafAhead)}
		}
	}
	return "", nil
}

// maxReadDepth bounds how many recorded series may stand behind one another.
const maxReadDepth = 20

// Names returns the names under which queries read materializations, sorted and without repeats.
func (p *Plan) Names() []string {
	names := make([]string, len(p.Materializations))
	for i := range p.Materializations {
		names[i] = p.Materializations[i].ReadAs()
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Named returns the names under which queries read materializations.
func (p *Plan) Named() Named {
	n := Named{All: p.Names()}
	for i := range p.Materializations {
		if m := &p.Materializations[i]; m.Record != "" || m.Layout == LayoutFullWindow {
			n.Found = append(n.Found, m.ReadAs())
		}
	}
	slices.Sort(n.Found)
	n.Found = slices.Compact(n.Found)
	return n
}

// validateReads refuses names that nothing gives, and materializations that read themselves, directly or through others.
func (p *Plan) validateReads() error {
	byName := make(map[string][]*Materialization)
	for i := range p.Materializations {
		m := &p.Materializations[i]
		byName[m.ReadAs()] = append(byName[m.ReadAs()], m)
	}
	depth := make(map[*Materialization]int) // 0: not visited, −1: under way, else 1 + the longest way down
	var visit func(m *Materialization) error
	visit = func(m *Materialization) error {
		switch d := depth[m]; {
		case d > 0:
			return nil
		case d < 0:
			return fmt.Errorf("plan: materialization %q reads itself", m.Name)
		}
		depth[m] = -1
		deepest := 0
		for _, name := range m.Reads {
			if len(byName[name]) == 0 {
				return fmt.Errorf("plan: materialization %q reads %q, which is not in the plan", m.Name, name)
			}
			for _, o := range byName[name] {
				if err := visit(o); err != nil {
					return err
				}
				deepest = max(deepest, depth[o])
			}
		}
		if depth[m] = deepest + 1; depth[m] > maxReadDepth+1 {
			return fmt.Errorf("plan: more than %d materializations read one another, up to %q", maxReadDepth, m.Name)
		}
		return nil
	}
	for i := range p.Materializations {
		if err := visit(&p.Materializations[i]); err != nil {
			return err
		}
	}
	return nil
}

// Behind returns the streams that a materialization of the plan reads, those behind the names that it reads included. One that has values
// where there is no data may read none.
func (p *Plan) Behind(m *Materialization) map[StreamID]struct{} {
	found := make(map[StreamID]struct{}, len(m.Streams))
	p.streamsBehind(m, found, make(map[*Materialization]struct{}))
	return found
}

// streamsBehind adds to found the streams behind m, unless m was seen before.
func (p *Plan) streamsBehind(m *Materialization, found map[StreamID]struct{}, seen map[*Materialization]struct{}) {
	if _, ok := seen[m]; ok {
		return
	}
	seen[m] = struct{}{}
	for _, id := range m.Streams {
		found[id] = struct{}{}
	}
	if len(m.Reads) == 0 {
		return
	}
	for i := range p.Materializations {
		if o := &p.Materializations[i]; slices.Contains(m.Reads, o.ReadAs()) {
			p.streamsBehind(o, found, seen)
		}
	}
}

// Tracked returns the streams that materializations of layout full_window read, those behind the names that they read
// included. It says nothing of whether the expression is recorded or evaluated when it is read, and parses nothing, so
// that the fold may depend on it.
func (p *Plan) Tracked() map[StreamID]struct{} {
	tracked := make(map[StreamID]struct{})
	seen := make(map[*Materialization]struct{})
	for i := range p.Materializations {
		if m := &p.Materializations[i]; m.Layout == LayoutFullWindow {
			p.streamsBehind(m, tracked, seen)
		}
	}
	return tracked
}

// RecordID names what is recorded of a materialization: the hash of all that its values depend on besides the samples. Its
// own name, labels and retention are not part of it; those of what it reads are, as far as they show.
func (p *Plan) RecordID(m *Materialization) uint64 {
	return xxh3.Hash(p.appendRecordIdentity(nil, m, 0))
}

func (p *Plan) appendRecordIdentity(b []byte, m *Materialization, depth int) []byte {
	number := func(v int64) {
		b = strconv.AppendInt(b, v, 10)
		b = append(b, ';')
	}
	text := func(v string) {
		number(int64(len(v)))
		b = append(b, v...)
	}
	text(m.Expr)
	number(m.EveryMillis)
	number(p.LookbackMillis)
	number(int64(len(m.Streams)))
	for _, id := range slices.Sorted(slices.Values(m.Streams)) {
		text(id.String())
	}
	if depth > maxReadDepth {
		return b
	}
	for _, name := range slices.Sorted(slices.Values(m.Reads)) {
		for i := range p.Materializations {
			o := &p.Materializations[i]
			if o.ReadAs() != name {
				continue
			}
			text(name)
			number(int64(len(o.Labels)))
			for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
				text(k)
				text(o.Labels[k])
			}
			b = p.appendRecordIdentity(b, o, depth+1)
		}
	}
	return b
}
