package query

// This file is data path 6 of 6: answer. It tells of recorded series those who do not evaluate expressions: lists, and other servers.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/log"
	"tidemark/projections/plan"
)

// Bounds of one list. A materialization with more steps in the range is looked at in some of them, and the answer says so.
const (
	// maxListedSteps is the number of steps at which a materialization that is not recorded is evaluated.
	maxListedSteps = 64
	// listedBack is how far back one is evaluated where no time is given. All else would read all panes there are.
	listedBack = time.Hour
	// maxListedValues is the number of recorded values that are looked at, over all materializations.
	maxListedValues = 1_000_000
	// maxListedRecorded is the number of recorded steps that are looked at, however few values they have.
	maxListedRecorded = 11_000
	// maxAhead is how far behind now a step may lie: as far as samples may by default.
	maxAhead = 10 * time.Minute
)

// RecordedSamples returns the recorded series that the matchers select, in label order, as they are at the steps of their grids from
// one time to another, in ms, with stale markers where they end; and the position of the log that they reflect. Selectors that mean
// written series alone get none. Steps that are not published are read from open panes. The error is a *MissError where some step
// cannot be told.
func (e *Engine) RecordedSamples(ctx context.Context, from, to int64, matchers ...*labels.Matcher) ([]Series, log.Seq, error) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	place, err := e.slots.acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer place.release()
	x, err := e.index()
	if err != nil {
		return nil, 0, &SourceError{err}
	}
	names, _ := plan.ReadNames(matchers, x.names)
	var asked []span
	for _, name := range names {
		for _, m := range x.materials[name] {
			k, err := e.keeping(ctx, m)
			if err != nil {
				return nil, 0, err
			}
			asked = append(asked, m.between(max(from, k.first), min(to, k.last)))
		}
	}
	roots, seq, err := e.evaluateAt(ctx, place, x, asked)
	if err != nil {
		return nil, 0, err
	}
	l := leaf{matchers: matchers, named: roots}
	return l.recorded(), seq, nil
}

// RecordedSeries lists the label sets of recorded series that any of the sets of matchers selects, of those that have a value from one
// time to another, in ms; without a set it lists them all. What it gives is in order, each once. With namesOnly it may leave out all but
// one of each name. The warnings say of what something may be missing, and why.
func (e *Engine) RecordedSeries(ctx context.Context, sets [][]*labels.Matcher, from, to int64, namesOnly bool) (out []labels.Labels, warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	place, err := e.slots.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer place.release()
	x, err := e.index()
	if err != nil {
		return nil, nil, &SourceError{err}
	}
	materials := x.selected(sets)
	for _, m := range materials {
		l := listing{engine: e, x: x, place: place, material: m, sets: sets, share: maxListedValues / len(materials)}
		err := l.find(ctx, from, to, namesOnly)
		var miss *MissError
		switch {
		case errors.As(err, &miss):
			warnings = append(warnings, fmt.Sprintf("%s: some of its series may be missing: %s", m.ReadAs(), miss))
		case err != nil:
			return nil, nil, err
		case l.cut:
			warnings = append(warnings, fmt.Sprintf("%s: some of its series may be missing: not all of its steps were looked at; ask for a shorter time", m.ReadAs()))
		}
		out = append(out, l.found...)
	}
	slices.SortFunc(out, labels.Compare)
	return slices.CompactFunc(out, labels.Equal), warnings, nil
}

// ReadsOwn says whether an expression has a selector that means nothing but what an entry of the configuration file is named. No other
// server has series of that name; the names of rules it may have. Of an expression that cannot be read it says no.
func (e *Engine) ReadsOwn(expr string) bool {
	tree, err := plan.NewParser().ParseExpr(expr)
	if err != nil {
		return false
	}
	x, err := e.index()
	if err != nil {
		return false
	}
	own := false
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		if vs, ok := n.(*parser.VectorSelector); ok {
			names, mixed := plan.ReadNames(vs.LabelMatchers, x.names)
			own = own || !mixed && slices.ContainsFunc(names, func(name string) bool {
				return !slices.ContainsFunc(x.materials[name], func(m *material) bool { return m.Record != "" })
			})
		}
		return nil
	})
	return own
}

// selected returns the materializations whose names any of the sets of matchers may mean; without a set those that are found by all.
func (x *index) selected(sets [][]*labels.Matcher) (out []*material) {
	names := slices.Clone(x.names.Found)
	if len(sets) > 0 {
		names = nil
	}
	for _, ms := range sets {
		read, _ := plan.ReadNames(ms, x.names)
		names = append(names, read...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		out = append(out, x.materials[name]...)
	}
	return out
}

// span is the steps of a materialization in some range.
type span struct {
	*material
	steps
}

// between returns the steps of m's grid from one time to another.
func (m *material) between(from, to int64) span {
	s := steps{start: 0, end: -1, every: m.EveryMillis}
	if from <= to {
		s.start, s.end = floorTo(from+s.every-1, s.every), floorTo(to, s.every)
	}
	return span{m, s}
}

// keeping bounds the times, in ms, at which a materialization may have values that are still kept.
type keeping struct {
	first, last int64
	newest      int64 // no sample that it reads is newer
}

func (e *Engine) keeping(ctx context.Context, m *material) (keeping, error) {
	reaches, _, err := m.plan.Reaches(m.Materialization)
	if err != nil {
		return keeping{}, &SourceError{err}
	}
	k := keeping{last: time.Now().Add(maxAhead).UnixMilli()}
	k.newest = k.last
	reqs := make([]Request, len(reaches))
	for i, r := range reaches {
		reqs[i] = Request{Stream: r.Stream, Tracked: true} // of no end at all
	}
	if len(reqs) > 0 {
		var res Result
		snap, err := e.read(ctx, reqs, &res)
		if err != nil {
			return keeping{}, err
		}
		defer snap.Release()
		newest, last := int64(math.MinInt64), int64(math.MinInt64)
		for i, a := range snap.Answers {
			if a.Frontier == math.MinInt64 || a.Frontier == math.MaxInt64 {
				newest, last = max(newest, a.Frontier), max(last, a.Frontier)
				continue
			}
			// None is further ahead of the frontier than the lateness and a pane.
			at := a.Frontier + m.slack(reaches[i].Stream)
			newest, last = max(newest, at), max(last, at+reaches[i].Back)
		}
		if newest != math.MinInt64 { // nothing has closed: what is open may be anywhere
			k.newest, k.last = min(k.newest, newest), min(k.last, last)
		}
	}
	k.first = k.last - max(m.RetentionMillis, m.EveryMillis)
	return k, nil
}

// slack is how far ahead of the frontier of a stream its samples may be.
func (m *material) slack(id plan.StreamID) int64 {
	for i := range m.plan.Streams {
		if s := &m.plan.Streams[i]; s.ID == id {
			return s.LatenessMillis + s.PaneMillis
		}
	}
	return 0
}

// evaluateAt evaluates materializations by name at steps, all as of one sequence. Those without steps are left out.
func (e *Engine) evaluateAt(ctx context.Context, place *slot, x *index, at []span) (roots []*inner, seq log.Seq, err error) {
	err = e.besideCopy(ctx, place, true, func(has log.Seq) (err error) {
		roots, seq, err = e.tryAt(ctx, x, at, has)
		return err
	})
	return roots, seq, err
}

func (e *Engine) tryAt(ctx context.Context, x *index, at []span, has log.Seq) ([]*inner, log.Seq, error) {
	live := &liveSteps{outer: steps{start: 0, end: -1, every: 1}}
	d := &demand{engine: e, x: x, byKey: map[innerKey]*inner{}, read: reading{live: live}, copied: true, copyHas: has}
	for _, s := range at {
		if s.count() == 0 {
			continue
		}
		in, err := d.behind(ctx, s.material, s.steps)
		if err != nil {
			return nil, 0, err
		}
		in.named = true
		d.roots = append(d.roots, in)
	}
	var res Result
	if err := e.fill(ctx, nil, d, nil, &res); err != nil {
		return nil, 0, err
	}
	if len(d.copies()) > 0 {
		res.Seq = min(res.Seq, d.copyHas)
	}
	return d.roots, res.Seq, nil
}

// listing finds the label sets of one materialization.
type listing struct {
	engine   *Engine
	x        *index
	place    *slot
	material *material
	sets     [][]*labels.Matcher // none: all
	share    int                 // of maxListedValues
	found    []labels.Labels
	cut      bool // not all steps were looked at
}

func (l *listing) find(ctx context.Context, from, to int64, namesOnly bool) error {
	k, err := l.engine.keeping(ctx, l.material)
	if err != nil || max(from, k.first) > min(to, k.last) {
		return err
	}
	known, err := l.known()
	if err != nil {
		return err
	}
	whole := from <= k.first && to >= k.last
	if whole {
		for _, ls := range known {
			l.add(l.material.label(ls))
		}
		from = k.newest - listedBack.Milliseconds()
		l.cut = len(known) == 0
	}
	if namesOnly && len(l.found) > 0 {
		return nil
	}
	s := l.material.between(max(from, k.first), min(to, k.newest))
	if s.count() == 0 {
		s = l.material.between(max(from, k.first), min(to, k.last)) // behind the newest samples, which its windows may still hold
	}
	if s.count() == 0 {
		return nil
	}
	if namesOnly {
		newest := s
		newest.start = s.last()
		if err := l.at(ctx, newest); err != nil || len(l.found) > 0 {
			l.cut = l.cut && err != nil
			return err
		}
	}
	looks := int64(maxListedSteps)
	if n := len(known); n > 0 {
		looks = min(max(looks, int64(l.share/n)), maxListedRecorded)
	}
	if n := s.count(); n > looks {
		l.cut = l.cut || !whole
		end := s.last()
		s.every *= (n + looks - 1) / looks
		s.start = end - (end-s.start)/s.every*s.every
		s.end = end
	}
	return l.at(ctx, s)
}

// known returns all label sets that were ever recorded, without the name.
func (l *listing) known() ([]labels.Labels, error) {
	if l.engine.opts.Records == nil {
		return nil, nil
	}
	if err := l.material.lookup(); err != nil || l.material.id == 0 {
		return nil, err
	}
	known, err := l.engine.opts.Records.Sets(l.material.id)
	if err != nil {
		return nil, &SourceError{err}
	}
	return known, nil
}

// at adds what has a value at steps.
func (l *listing) at(ctx context.Context, s span) error {
	roots, _, err := l.engine.evaluateAt(ctx, l.place, l.x, []span{s})
	if err != nil {
		return err
	}
	for _, in := range roots {
		for i := range in.out {
			l.add(in.out[i].Labels)
		}
	}
	return nil
}

func (l *listing) add(ls labels.Labels) {
	matches := func(ms []*labels.Matcher) bool {
		read, _ := plan.ReadNames(ms, l.x.names)
		return slices.Contains(read, l.material.ReadAs()) && !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(ls.Get(m.Name)) })
	}
	if len(l.sets) == 0 || slices.ContainsFunc(l.sets, matches) {
		l.found = append(l.found, ls)
	}
}
