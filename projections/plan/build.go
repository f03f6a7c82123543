package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/accum"
)

// Build reads the rule files and resolves all expressions into a plan. The report covers every entry and every rule, also
// when there is an error, as long as the rule files could be read. The plan is nil if there is an error; errors are of type
// *ConfigError, joined if there are several.
func Build(c *Config) (*Plan, Report, error) {
	if err := c.Validate(); err != nil {
		return nil, Report{}, err
	}
	set, err := loadRules(c)
	if err != nil {
		return nil, Report{}, err
	}
	b := newBuilder(c, set)
	report := Report{Alerts: set.alerts, Notes: set.notes}
	p := &problems{cfg: c}
	for i := range c.Materializations {
		if at, ok := b.recorded[c.Materializations[i].Name]; ok {
			p.add([]any{"materializations", i, "name"}, "%q is also what the rule at %s records", c.Materializations[i].Name, at)
		}
	}
	for i := range b.items {
		b.settle(b.items[i])
	}
	plan := b.plan()
	for i := range b.items {
		b.items[i].noteWhenRead(plan)
		f := b.items[i].finding
		if i >= len(c.Materializations) {
			report.Rules = append(report.Rules, f)
			continue
		}
		for _, reason := range f.Reasons {
			p.add([]any{"materializations", i, "expr"}, "%s cannot become panes: %s", f.Name, reason)
		}
		report.Entries = append(report.Entries, f)
	}
	findTwice(report.Rules)
	b.countShared(report.Entries)
	b.countShared(report.Rules)
	if b.collision != nil {
		p.errs = append(p.errs, b.collision)
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, report, err
	}
	if err := plan.Validate(); err != nil {
		return nil, report, &ConfigError{File: c.file, Msg: err.Error()}
	}
	if n := len(plan.Encode()); n > MaxPlanBytes {
		return nil, report, &ConfigError{File: c.file, Msg: fmt.Sprintf("a plan of %d bytes, at most %d", n, MaxPlanBytes)}
	}
	return plan, report, nil
}

// builder gathers streams and materializations.
type builder struct {
	cfg       *Config
	parser    parser.Parser
	items     []*item            // entries, then rules
	named     map[string][]*item // by the name that queries read
	names     []string           // those names, sorted
	recorded  map[string]string  // what rules record → where
	ruleNames map[string]int     // how often a rule's name was given
	streams   map[StreamID]Stream
	mats      []Materialization
	collision error
}

// item is an entry or a rule on its way into the plan.
type item struct {
	finding Finding
	mat     Materialization // without what the expression gives
	grid    Stream          // membership, lateness and late policy
	state   itemState
}

type itemState int

const (
	itemNew itemState = iota
	itemUnderWay
	itemSettled
)

func newBuilder(c *Config, set *ruleSet) *builder {
	b := &builder{
		cfg:       c,
		parser:    NewParser(),
		named:     make(map[string][]*item),
		recorded:  make(map[string]string),
		ruleNames: make(map[string]int),
		streams:   make(map[StreamID]Stream),
	}
	for i := range c.Materializations {
		e := &c.Materializations[i]
		_, line := find(c.root, "materializations", i)
		b.add(e.Name, &item{
			finding: Finding{File: c.file, Line: line, Name: e.Name, Expr: e.Expr, Every: e.Every.Milliseconds()},
			mat: Materialization{
				Name: e.Name, EveryMillis: e.Every.Milliseconds(), Layout: e.Layout, RetentionMillis: e.Retention.Milliseconds(),
			},
			grid: Stream{Closed: e.Closed, LatenessMillis: e.AllowedLateness.Milliseconds(), Late: e.Late},
		})
	}
	for i := range set.rules {
		r := &set.rules[i]
		if len(r.invalid) == 0 {
			b.recorded[r.record] = place(r.file, r.line)
		}
		b.add(r.record, &item{
			finding: Finding{
				File: r.file, Line: r.line, Group: r.group, Name: r.record, Expr: r.expr, Every: r.every, Limit: r.limit, Labels: r.labels, Reasons: r.invalid,
				Fault: strings.Join(r.invalid, "; "),
			},
			mat: Materialization{
				Name: b.ruleName(r), EveryMillis: r.every, Layout: LayoutFullWindow, Record: r.record, Labels: r.labels,
				RetentionMillis: DefaultRetention.Milliseconds(),
			},
			grid: Stream{Closed: Right, Late: Correct},
		})
	}
	b.names = slices.Sorted(maps.Keys(b.named))
	return b
}

// add keeps an item, under its name unless it is invalid.
func (b *builder) add(name string, it *item) {
	it.finding.Materialization = it.mat.Name
	b.items = append(b.items, it)
	if len(it.finding.Reasons) == 0 && name != "" {
		b.named[name] = append(b.named[name], it)
	}
}

// noteWhenRead says of an item that its steps are not recorded, if they are not.
func (it *item) noteWhenRead(p *Plan) {
	if it.mat.Layout != LayoutFullWindow || len(it.finding.Reasons) > 0 {
		return
	}
	for i := range p.Materializations {
		if m := &p.Materializations[i]; m.Name == it.mat.Name {
			// An expression that does not parse has been refused.
			if _, why, err := p.Reaches(m); err == nil && why != "" {
				it.finding.Notes = append(it.finding.Notes, "evaluated when it is read: "+why)
			}
		}
	}
}

// findTwice notes of each rule that is recorded where an earlier one stands that may record the same series: one of the same name that adds
// the same labels. Reading prefers the earlier one (see query).
func findTwice(rules []Finding) {
	first := make(map[string]*Finding)
	for i := range rules {
		f := &rules[i]
		if len(f.Reasons) > 0 {
			continue
		}
		key := fmt.Sprintf("%q %q", f.Name, f.Labels) // maps are printed in the order of their keys
		if before := first[key]; before != nil {
			f.Twice = place(before.File, before.Line)
			continue
		}
		first[key] = f
	}
}

// settle resolves an item once, after all that it reads by name.
func (b *builder) settle(it *item) {
	if it.state != itemNew {
		return
	}
	it.state = itemUnderWay
	b.resolve(&it.finding, it.mat, it.grid)
	it.state = itemSettled
}

// ruleName returns a name for a rule: group and record, and a number where that was given before. It holds a slash, hence
// it is not a metric name and never that of an entry.
func (b *builder) ruleName(r *rule) string {
	name := r.group + "/" + r.record
	b.ruleNames[name]++
	if n := b.ruleNames[name]; n > 1 {
		return fmt.Sprintf("%s#%d", name, n)
	}
	return name
}

// resolve finds the streams of f.Expr. It adds m and its streams to the plan, or gives f the reasons why it cannot.
// The grid that comes in has its membership, lateness and late policy.
func (b *builder) resolve(f *Finding, m Materialization, grid Stream) {
	if len(f.Reasons) > 0 {
		return
	}
	expr, leaves, reason := b.parse(f.Expr)
	if m.EveryMillis < MinPaneMillis { // an entry's every has been checked
		reason = fmt.Sprintf("it is evaluated every %s, at least %s", millis(m.EveryMillis), millis(MinPaneMillis))
	}
	if reason != "" {
		f.Reasons = []string{reason}
		return
	}
	refuse := func(l *Leaf, format string, args ...any) {
		r := shorten(l.Node.String()) + ": " + fmt.Sprintf(format, args...)
		if !slices.Contains(f.Reasons, r) {
			f.Reasons = append(f.Reasons, r)
		}
	}
	note := func(format string, args ...any) {
		if n := fmt.Sprintf(format, args...); !slices.Contains(f.Notes, n) {
			f.Notes = append(f.Notes, n)
		}
	}
	streams := make([]Stream, 0, len(leaves))
	for i := range leaves {
		l := &leaves[i]
		names, circular, reason := b.byName(l)
		if reason != "" {
			refuse(l, "%s", reason)
			if circular && f.Group != "" {
				f.Fault = reason
			}
			continue
		}
		if len(names) > 0 {
			m.Reads = append(m.Reads, names...)
			f.Leaves = append(f.Leaves, LeafFinding{Expr: l.Node.String(), Reads: names})
			continue
		}
		if reason := b.unanswerable(l, m.RetentionMillis); reason != "" {
			refuse(l, "%s", reason)
			continue
		}
		pane, panes, err := b.pane(l, m.EveryMillis)
		if err != nil {
			refuse(l, "%s", err)
			continue
		}
		s := grid
		s.Matchers = matchersOf(l.Selector.LabelMatchers)
		s.PaneMillis = pane
		s.RetentionMillis = max(m.RetentionMillis, pane)
		s = s.Resolved()
		if err := s.validate(); err != nil {
			refuse(l, "%s", err)
			continue
		}
		streams = append(streams, s)
		f.Leaves = append(f.Leaves, LeafFinding{
			Expr: l.Node.String(), Stream: s.ID, PaneMillis: pane, PanesPerWindow: panes,
		})
		switch {
		case l.SamplesOnly:
			note("%s() is answered only while its panes hold few enough samples to keep them all", l.Func)
		case l.Func == "quantile_over_time":
			note("%s() is exact while a pane holds at most %d values, and beyond that to %g %%, which the answer then says", l.Func, accum.MaxValues, accum.SketchError*100)
		}
	}
	if len(f.Reasons) > 0 {
		f.Leaves, f.Notes = nil, nil
		return
	}
	if m.Layout == LayoutPanes && len(leaves) == 0 {
		f.Reasons = []string{"it reads no series"}
		return
	}
	m.Expr = expr.String()
	m.Streams = idsOf(streams)
	slices.Sort(m.Reads)
	m.Reads = slices.Compact(m.Reads)
	if err := m.validate(m.Streams); err != nil {
		f.Leaves, f.Notes, f.Reasons = nil, nil, []string{err.Error()}
		return
	}
	b.keep(m, streams)
}

// idsOf returns the IDs of streams, sorted and without repeats.
func idsOf(streams []Stream) []StreamID {
	ids := make([]StreamID, len(streams))
	for i := range streams {
		ids[i] = streams[i].ID
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// parse returns the leaves of an expression.
func (b *builder) parse(text string) (parser.Expr, []Leaf, string) {
	if len(text) > MaxExprBytes {
		return nil, nil, fmt.Sprintf("an expression of %d bytes, at most %d", len(text), MaxExprBytes)
	}
	expr, err := b.parser.ParseExpr(text)
	if err != nil {
		return nil, nil, "not PromQL: " + shorten(err.Error())
	}
	if t := expr.Type(); t != parser.ValueTypeVector && t != parser.ValueTypeScalar {
		return nil, nil, fmt.Sprintf("its value is a %s; want an instant vector", parser.DocumentedType(t))
	}
	b.resolveSteps(expr)
	leaves, err := Leaves(expr, time.Duration(b.cfg.Lookback))
	if err != nil {
		return nil, nil, err.Error()
	}
	return expr, leaves, ""
}

// resolveSteps gives the subqueries that name no step the one that they have by default, so that the plan says all that its
// values depend on.
func (b *builder) resolveSteps(expr parser.Node) {
	if sub, ok := expr.(*parser.SubqueryExpr); ok && sub.Step == 0 && sub.StepExpr == nil {
		sub.Step = time.Duration(b.cfg.EvaluationInterval)
	}
	for child := range parser.ChildrenIter(expr) {
		b.resolveSteps(child)
	}
}

// unanswerable says why no stream of its own could answer a leaf, apart from its grid.
func (b *builder) unanswerable(l *Leaf, retention int64) string {
	if l.Reason != "" {
		return l.Reason
	}
	if l.ReachMillis > retention {
		return fmt.Sprintf("it reads samples of the last %s, and panes are kept for %s", millis(l.ReachMillis), millis(retention))
	}
	return ""
}

// byName returns the names of materializations or recorded series that a leaf reads, none if it reads written series, or
// why it cannot read them, which is because what it belongs to reads itself if circular.
func (b *builder) byName(l *Leaf) (names []string, circular bool, reason string) {
	names, mixed := ReadNames(l.Selector.LabelMatchers, Named{All: b.names, Found: b.names})
	switch {
	case len(names) == 0:
		return nil, false, ""
	case l.Reason != "":
		return nil, false, l.Reason
	case mixed:
		return nil, false, fmt.Sprintf("it may read both %s, which is recorded, and written series", names[0])
	}
	for _, name := range names {
		for _, it := range b.named[name] {
			if it.state == itemUnderWay {
				return nil, true, fmt.Sprintf("it reads %s, and so itself", name)
			}
			b.settle(it)
			if len(it.finding.Reasons) > 0 {
				return nil, false, fmt.Sprintf("it reads %s, which cannot be materialized", name)
			}
			if l.ReachMillis > it.mat.RetentionMillis {
				return nil, false, fmt.Sprintf("it reads %s over the last %s, and it is kept for %s", name, millis(l.ReachMillis), millis(it.mat.RetentionMillis))
			}
		}
	}
	return names, false, ""
}

// pane returns the width of the panes for a leaf, in milliseconds, and how many of them make its window. Every evaluation
// time must be an edge of a pane, after @ and offset: those of the outermost expression are the multiples of every, those
// inside a subquery the multiples of its step.
func (b *builder) pane(l *Leaf, every int64) (pane, panes int64, err error) {
	grid, what := every, "every"
	if l.InSubquery {
		grid, what = l.StepMillis, "subquery step"
		if grid == 0 {
			grid = b.cfg.EvaluationInterval.Milliseconds()
		}
	}
	if l.At != nil {
		grid, what = *l.At, "@"
		if grid > MaxTimeMillis || grid < -MaxTimeMillis {
			return 0, 0, fmt.Errorf("@ %dms is beyond every sample", grid)
		}
		grid = max(grid, -grid)
	}
	offset := min(max(l.OffsetMillis, -MaxDurationMillis), MaxDurationMillis)
	if offset != l.OffsetMillis {
		return 0, 0, fmt.Errorf("offset %s, at most %s", millis(l.OffsetMillis), millis(MaxDurationMillis))
	}
	edges := gcd(grid, max(offset, -offset))
	pane = gcd(edges, l.RangeMillis)
	if l.Instant {
		pane = instantPane(edges, l.RangeMillis)
	}
	parts := fmt.Sprintf("%s %s and range %s", what, millis(grid), millis(l.RangeMillis))
	if offset != 0 {
		parts = fmt.Sprintf("%s, offset %s", parts, millis(offset))
	}
	if pane < MinPaneMillis {
		return 0, 0, fmt.Errorf("%s have panes of %s, at least %s", parts, millis(pane), millis(MinPaneMillis))
	}
	if pane > MaxDurationMillis {
		return 0, 0, fmt.Errorf("%s have panes of %dms, at most %s", parts, pane, millis(MaxDurationMillis))
	}
	panes = (l.RangeMillis-1)/pane + 1
	if panes > MaxPanes {
		return 0, 0, fmt.Errorf("%s have %d panes of %s to a window, at most %d", parts, panes, millis(pane), MaxPanes)
	}
	return pane, panes, nil
}

// instantPane returns the width of the panes for an instant selector that is evaluated at the multiples of edges. Its lookback
// need not be a whole number of panes, because the time of the newest sample decides. A pane no longer than the lookback
// is therefore as wide as the evaluation times allow; where these are further apart, dividing the lookback spares the open
// panes the samples that no evaluation reads.
func instantPane(edges, lookback int64) int64 {
	divisor := gcd(edges, lookback)
	if edges >= MinPaneMillis && edges <= lookback || divisor < MinPaneMillis || lookback/divisor > MaxPanes {
		return edges
	}
	return divisor
}

// keep adds a materialization with its streams. A stream that is there already keeps the longest retention.
func (b *builder) keep(m Materialization, streams []Stream) {
	for _, s := range streams {
		if old, ok := b.streams[s.ID]; ok {
			if old.Identity() != s.Identity() && b.collision == nil {
				b.collision = &ConfigError{File: b.cfg.file, Msg: fmt.Sprintf(
					"PL1: %s of %s and %s have the same hash %s; change one of the two", s.Identity(), m.Name, old.Identity(), s.ID)}
			}
			s.RetentionMillis = max(s.RetentionMillis, old.RetentionMillis)
		}
		b.streams[s.ID] = s
	}
	b.mats = append(b.mats, m)
}

// countShared tells each leaf how many materializations read its stream.
func (b *builder) countShared(fs []Finding) {
	readers := make(map[StreamID]int)
	for i := range b.mats {
		for _, id := range b.mats[i].Streams {
			readers[id]++
		}
	}
	for i := range fs {
		for j := range fs[i].Leaves {
			fs[i].Leaves[j].Shared = readers[fs[i].Leaves[j].Stream]
		}
	}
}

func (b *builder) plan() *Plan {
	c := b.cfg
	p := &Plan{
		Format:            Format,
		ExperimentLabel:   c.ExperimentLabel,
		LookbackMillis:    c.Lookback.Milliseconds(),
		IdleTimeoutMillis: c.Timers.IdleTimeout.Milliseconds(),
		IdleGraceMillis:   c.Timers.IdleGrace.Milliseconds(),
		OpenGraceMillis:   c.Timers.OpenGrace.Milliseconds(),
		HorizonMillis:     c.CorrectionHorizon.Milliseconds(),
		ClockSkewMillis:   c.ClockSkew.Milliseconds(),
		MaxFutureMillis:   c.MaxFuture.Milliseconds(),
		Streams:           slices.Collect(maps.Values(b.streams)),
		Materializations:  b.mats,
	}
	return p.canonical()
}
