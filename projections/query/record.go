package query

// This file is data path 6 of 6: answer. It reads recorded windows, and evaluates what is to be recorded.

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// Records is where recorded windows are read. *bucket.Windows is one.
type Records interface {
	// Steps returns the recorded steps of a record at from, from + every, … up to to, in their order, and the label sets of their series
	// by number; or bucket.ErrTooManyValues. The label sets must not be changed.
	Steps(ctx context.Context, record uint64, from, to, every int64, maxValues int) ([]bucket.Recorded, []labels.Labels, error)
	// Sets returns the label sets that a record has had, in no order. The result must not be changed.
	Sets(record uint64) ([]labels.Labels, error)
}

// maxRuns bounds the runs of steps, of one expression for one request, that are evaluated because the record does not have
// them. Where there are more, what lies between them is evaluated too.
const maxRuns = 4

// lookup finds out under which name m is recorded, and what its steps depend on.
func (m *material) lookup() error {
	m.look.Do(func() {
		if m.Layout != plan.LayoutFullWindow {
			return
		}
		m.id = m.plan.RecordID(m.Materialization)
		m.reaches, _, m.err = m.plan.Reaches(m.Materialization)
	})
	return m.err
}

// look takes from the record what it has of the steps of in.
func (d *demand) look(ctx context.Context, in *inner) error {
	m := in.material
	if d.engine.opts.Records == nil || in.bypass {
		return nil
	}
	if err := m.lookup(); err != nil {
		return &SourceError{err}
	}
	if len(m.reaches) == 0 {
		return nil
	}
	found, sets, err := d.engine.opts.Records.Steps(ctx, m.id, in.steps.start, in.steps.end, in.steps.every, d.engine.opts.MaxSamples)
	switch {
	case errors.Is(err, bucket.ErrTooManyValues):
		return promql.ErrTooManySamples("query execution")
	case err != nil:
		if end := ended(ctx, "reading recorded windows"); end != nil {
			return end
		}
		return &SourceError{err}
	}
	for _, s := range found {
		if !s.Refused && !in.dirty[s.Time] {
			in.recorded = append(in.recorded, s)
		}
	}
	in.sets = sets
	return nil
}

// gaps returns the steps of in that are not taken from the record, as runs. Where these are many, recorded steps between them
// are given up.
func (in *inner) gaps() []steps {
	var runs []steps
	s, next := in.steps, in.steps.start
	missing := func(from, to int64) {
		if from <= to {
			runs = append(runs, steps{start: from, end: to, every: s.every})
		}
	}
	for _, r := range in.recorded {
		missing(next, r.Time-s.every)
		next = r.Time + s.every
	}
	missing(next, s.last())
	if len(runs) <= maxRuns {
		return runs
	}
	all := steps{start: runs[0].start, end: runs[len(runs)-1].end, every: s.every}
	kept := in.recorded[:0]
	for _, r := range in.recorded {
		if r.Time < all.start || r.Time > all.end {
			kept = append(kept, r)
		}
	}
	in.recorded = kept
	return []steps{all}
}

// noted says that the engine had something to say about a step, which the record does not keep.
func noted(s bucket.Recorded) bool { return s.Notes }

// track adds the requests that say what changed under the recorded steps of in.
func (in *inner) track(reqs []Request) []Request {
	in.tracked = in.tracked[:0]
	if len(in.recorded) == 0 {
		return reqs
	}
	first, last := in.recorded[0].Time, in.recorded[len(in.recorded)-1].Time
	for i, r := range in.material.reaches {
		st := in.material.reached(i)
		in.tracked = append(in.tracked, len(reqs))
		reqs = append(reqs, Request{
			Stream: r.Stream, Matchers: st.matchers, From: first - r.Back, To: last - r.Ahead + st.PaneMillis, Tracked: true,
		})
	}
	return reqs
}

// reached returns the stream of a reach.
func (m *material) reached(i int) stream {
	for j := range m.plan.Streams {
		if s := &m.plan.Streams[j]; s.ID == m.reaches[i].Stream {
			ms, err := s.LabelMatchers()
			if err != nil {
				panic("PL2: the matchers of a stream in the index compile: " + err.Error())
			}
			return stream{Stream: s, matchers: ms}
		}
	}
	panic("PL2: a reach is of a stream of the plan")
}

// judge finds the recorded steps that are not clean as of the answers: those are kept in in.dirty. A step is clean if it is
// published, reaches back no further than from, in ms, and no bucket that overlaps it was opened, closed or corrected after the event that
// it is as of.
func (in *inner) judge(answers []Answer, from int64) (clean bool) {
	clean = true
	for i, r := range in.material.reaches {
		if len(in.tracked) == 0 {
			return true
		}
		a, width := &answers[in.tracked[i]], in.material.reached(i).PaneMillis
		for _, s := range in.recorded {
			if s.Time-r.Back < from || !isClean(&s, r, width, a) {
				if in.dirty == nil {
					in.dirty = map[int64]bool{}
				}
				in.dirty[s.Time] = true
				clean = false
			}
		}
	}
	return clean
}

func isClean(s *bucket.Recorded, r plan.Reach, width int64, a *Answer) bool {
	t := &a.Tracked
	begin, end := s.Time-r.Back, s.Time-r.Ahead
	if !a.Known || t.Since == 0 || s.AsOf < uint64(t.Since) || end > a.Frontier {
		return false
	}
	if a.CoverageStart != math.MinInt64 && begin < a.CoverageStart {
		return false
	}
	for b, seq := range t.Changed {
		if b > begin && b-width < end && uint64(seq) > s.AsOf {
			return false
		}
	}
	for _, b := range t.Open {
		if b > begin && b-width < end {
			return false
		}
	}
	return true
}

// Evaluate returns what a materialization is at each step of its grid from start to end, both included, as of one sequence,
// with the labels of its expression, to be recorded. Its own record is not looked at. Errors are of type *StepError.
func (e *Engine) Evaluate(ctx context.Context, name string, start, end int64) ([]bucket.Step, error) {
	steps, err := e.evaluateSteps(ctx, name, start, end)
	if err != nil {
		return nil, &StepError{Name: name, Start: start, End: end, Err: err}
	}
	return steps, nil
}

// StepError says why a materialization could not be evaluated at some step from Start to End, ms.
type StepError struct {
	Name       string
	Start, End int64
	Err        error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("evaluate %s from %d to %d: %v", e.Name, e.Start, e.End, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// Pending says that the same steps may be answered later though no bucket has changed that they depend on.
func (e *StepError) Pending() bool {
	var miss *MissError
	if errors.As(e.Err, &miss) {
		return miss.Reason == ReasonUnpublished || miss.Reason == ReasonNoMaterialization || miss.Reason == ReasonMaterializing
	}
	return KindOf(e.Err) != KindExecution
}

func (e *Engine) evaluateSteps(ctx context.Context, name string, start, end int64) ([]bucket.Step, error) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	place, err := e.slots.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer place.release()
	x, err := e.index()
	if err != nil {
		return nil, &SourceError{err}
	}
	m := x.byName(name)
	if m == nil {
		return nil, fmt.Errorf("no materialization %q in the plan", name)
	}
	s := steps{start: start, end: end, every: m.EveryMillis}
	if start%s.every != 0 || s.count() == 0 || s.count() > maxInnerSteps {
		return nil, fmt.Errorf("materialization %q: no steps from %d to %d", name, start, end)
	}
	in := &inner{material: m, steps: s, bypass: true}
	d := &demand{engine: e, x: x, byKey: map[innerKey]*inner{}, old: map[innerKey]*inner{{m, s}: in}, roots: []*inner{in}}
	if _, err := d.behind(ctx, m, s); err != nil {
		return nil, err
	}
	var res Result
	if err := e.fill(ctx, nil, d, nil, &res); err != nil {
		return nil, err
	}
	out := make([]bucket.Step, s.count())
	for k := range out {
		out[k] = bucket.Step{Time: s.at(int64(k)), AsOf: uint64(res.Seq), Notes: in.notes}
		out[k].Doubts = in.doubts[out[k].Time]
	}
	for _, series := range in.matrix {
		for _, p := range series.Floats {
			k := (p.T - s.start) / s.every
			out[k].Values = append(out[k].Values, bucket.StepValue{Labels: series.Metric, V: p.F})
		}
	}
	return out, nil
}

// byName returns a materialization by its own name.
func (x *index) byName(name string) *material {
	for _, ms := range x.materials {
		for _, m := range ms {
			if m.Name == name {
				return m
			}
		}
	}
	return nil
}
