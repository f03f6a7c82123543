package query

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/schema"
	"github.com/prometheus/prometheus/util/annotations"
	"golang.org/x/sync/errgroup"

	"tidemark/projections/accum"
)

// errSameLabelset is the engine's error where results that differ in their metric name only meet at one time.
var errSameLabelset = errors.New("vector cannot contain metrics with the same labelset")

// checkEvery is the number of evaluations between two looks at the context.
const checkEvery = 4096

// result is what the engine will read in a leaf's place.
type result struct {
	series []promql.Series
	steps  steps // at which the engine evaluates the leaf
	notes  annotations.Annotations
	err    error // of the engine's own, raised when the engine evaluates the leaf

	// beside says that it does not stand for a leaf: these series are selected with what the exact source has.
	beside   bool
	recorded []Series
}

// evaluation turns the answers of one read into results. It belongs to one request.
type evaluation struct {
	sweep
	live     *liveSteps // nil: only what is published may be read
	budget   int        // points that may still be made
	sketched int        // leaves that were read from sketches
	names    []string   // of what is recorded
}

// sweep evaluates a leaf over one series after the other.
type sweep struct {
	ctx     context.Context
	spent   int         // evaluations since ctx was looked at
	slide   accum.Slide // over series of samples
	cursor  accum.Cursor
	machine accum.Evaluator // over the parts that the cursor cuts, where there are columns
	found   accum.Results   // of the series that was evaluated last
	said    struct {        // of which it was said last that it may be no counter
		leaf *leaf
		name string
	}
}

// leaf evaluates l over the series of its answer. The error is a *MissError, or ends the request.
func (v *evaluation) leaf(l *leaf, series []Series) (result, error) {
	if l.steps.count() == 0 {
		return result{}, nil
	}
	if l.fn == accum.Absent {
		return v.absent(l, series)
	}
	if l.aggregation != nil {
		return v.aggregate(l, series)
	}
	var (
		out  = result{series: make([]promql.Series, 0, len(series))}
		same = map[string]int{} // by labels without the name: index into out.series
		key  []byte
	)
	all, err := v.points(l, series)
	if err != nil {
		return result{}, err
	}
	for i, points := range all {
		s := &series[i]
		if len(points) == 0 {
			continue
		}
		v.annotate(l, s.Labels, &out.notes)
		metric := s.Labels
		if l.fn.KeepsName() {
			out.series = append(out.series, promql.Series{Metric: metric, Floats: points})
			continue
		}
		metric = metric.DropReserved(schema.IsMetadataLabel)
		key = metric.Bytes(key)
		if at, ok := same[string(key)]; ok {
			merged, ok := mergePoints(out.series[at].Floats, points)
			if !ok {
				out.err = errSameLabelset
			}
			out.series[at].Floats = merged
			continue
		}
		same[string(key)] = len(out.series)
		out.series = append(out.series, promql.Series{Metric: metric, Floats: points})
	}
	return out, nil
}

// sketchNote is the info of an answer that was read from sketches.
func sketchNote(f accum.Func) error {
	return fmt.Errorf("%w: %s: panes of more than %d values are read from sketches, whose values are exact to %g%%",
		annotations.PromQLInfo, f, accum.MaxValues, 100*accum.SketchError)
}

// annotate adds what the engine would say about a series that has results.
func (v *sweep) annotate(l *leaf, metric labels.Labels, notes *annotations.Annotations) {
	if l.fn.ExpectsQuantile() && (math.IsNaN(l.arg) || l.arg < 0 || l.arg > 1) {
		notes.Add(annotations.NewInvalidQuantileWarning(l.arg, l.argPos))
	}
	if !l.fn.ExpectsCounter() {
		return
	}
	// Series of one name come one after the other: what is said of it is said once.
	if name := metric.Get(model.MetricNameLabel); name != "" && (l != v.said.leaf || name != v.said.name) && !namesCounter(name) {
		v.said.leaf, v.said.name = l, name
		notes.Add(annotations.NewPossibleNonCounterInfo(name, l.selPos))
	}
}

// points evaluates l over each series at each of its steps at which the series has a value. Of many series each of several sweeps takes
// some.
func (v *evaluation) points(l *leaf, series []Series) ([][]promql.FPoint, error) {
	all := make([][]promql.FPoint, len(series))
	made := make([]int, v.sweeps(l, series))
	err := v.share(len(made), func(i int, s *sweep) error {
		for k := len(series) * i / len(made); k < len(series)*(i+1)/len(made); k++ {
			points, err := s.points(l, &series[k].Window)
			if err != nil {
				return err
			}
			if made[i] += len(points); made[i] > v.budget {
				return promql.ErrTooManySamples("query execution")
			}
			all[k] = points
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, n := range made {
		if v.budget -= n; v.budget < 0 {
			return nil, promql.ErrTooManySamples("query execution")
		}
	}
	return all, nil
}

func (v *sweep) points(l *leaf, w *accum.Window) ([]promql.FPoint, error) {
	if err := v.each(l, w, 0, l.steps.count()); err != nil || len(v.found.At) == 0 {
		return nil, err
	}
	points := make([]promql.FPoint, len(v.found.At))
	for i, k := range v.found.At {
		points[i] = promql.FPoint{T: l.steps.at(k), F: v.found.V[i]}
	}
	return points, nil
}

const (
	// sharedEvaluations is how many evaluations are worth a sweep of their own.
	sharedEvaluations = 1 << 16
	// maxSweeps bounds the sweeps of one leaf.
	maxSweeps = 8
)

// sweeps returns how many sweeps are to share in the evaluation of l.
func (v *evaluation) sweeps(l *leaf, series []Series) int {
	work := l.steps.count() * int64(len(series)) / sharedEvaluations
	return int(max(1, min(work, int64(runtime.GOMAXPROCS(0)), maxSweeps)))
}

// share has n sweeps work at one time.
func (v *evaluation) share(n int, work func(i int, s *sweep) error) error {
	if n == 1 {
		return work(0, &v.sweep)
	}
	others := make([]sweep, n)
	var g errgroup.Group
	for i := range others {
		others[i].ctx = v.ctx
		g.Go(func() error { return work(i, &others[i]) })
	}
	err := g.Wait()
	for i := range others {
		v.machine.Sketched = v.machine.Sketched || others[i].machine.Sketched
	}
	return err
}

// each evaluates l over w at its steps from number from to before number to, and puts what there is, by number of the step, into v.found.
// Steps whose windows lie outside w are never visited, so that a short-lived series costs little in a long range.
func (v *sweep) each(l *leaf, w *accum.Window, from, to int64) error {
	v.found.Reset()
	oldest, newest, ok := extent(w)
	if !ok {
		return nil
	}
	edge := l.edge()
	run := accum.Windows{From: from, End: l.dataTime(l.steps.start), Every: l.steps.every, Width: l.window}
	if l.lookback {
		run.Before = edge // the newest sample counts if it lies behind this
	}
	reach := newest + l.window + edge // windows that end here or later begin behind all there is
	switch {
	case l.pinned && run.End >= reach:
		return nil
	case l.pinned:
		run.Every = 0
	case run.End >= reach:
		return nil
	default:
		to = min(to, (reach-1-run.End)/run.Every+1)
		if behind := oldest - run.End; behind > 0 {
			run.From = max(from, (behind+run.Every-1)/run.Every)
		}
	}
	slides := v.slide.Reset(l.fn, w)
	v.slide.Edge = edge
	if !slides {
		v.cursor.Reset(w)
		v.cursor.Edge = edge
	}
	for ; run.From < to; run.From = run.To {
		run.To = min(to, run.From+int64(checkEvery-v.spent))
		if l.pinned {
			run.To = run.From + 1 // each has an offset of its own
		}
		if v.spent += int(run.To - run.From); v.spent >= checkEvery {
			v.spent = 0
			if err := ended(v.ctx, "expression evaluation"); err != nil {
				return err
			}
		}
		offset := l.steps.at(run.From) - (run.End + run.From*run.Every)
		var err error
		if slides {
			v.slide.Machine.Offset = offset
			err = v.slide.Steps(run, l.arg, &v.found)
		} else {
			v.machine.Offset = offset
			err = v.columns(l, run)
		}
		switch {
		case errors.Is(err, accum.ErrNeedsSamples):
			return l.miss(ReasonNeedsSamples, "panes of more than %d samples hold no samples", accum.MaxSamples)
		case err != nil:
			return err
		}
	}
	return nil
}

// columns evaluates l over windows of a series that has columns.
func (v *sweep) columns(l *leaf, run accum.Windows) error {
	for k := run.From; k < run.To; k++ {
		end := run.End + k*run.Every
		part := v.cursor.Cut(end-run.Width, end)
		value, ok, err := v.machine.Eval(l.fn, &part, end-run.Width-run.Before, end, l.arg)
		if err != nil {
			return err
		}
		if ok {
			v.found.Add(k, value)
		}
	}
	return nil
}

// absent evaluates absent_over_time: 1 at each step at which no series has a sample, under the labels that the matchers pin.
func (v *evaluation) absent(l *leaf, series []Series) (result, error) {
	n := l.steps.count()
	if n > int64(v.budget) {
		return result{}, promql.ErrTooManySamples("query execution")
	}
	present := make([]bool, n)
	for i := range series {
		if err := v.each(l, &series[i].Window, 0, n); err != nil {
			return result{}, err
		}
		for _, k := range v.found.At {
			present[k] = true
		}
	}
	var points []promql.FPoint
	for k, there := range present {
		if !there {
			points = append(points, promql.FPoint{T: l.steps.at(int64(k)), F: 1})
		}
	}
	if len(points) == 0 {
		return result{}, nil
	}
	v.budget -= len(points)
	return result{series: []promql.Series{{Metric: absentLabels(l.matchers), Floats: points}}}, nil
}

// absentLabels are the labels that the engine gives to the result of absent_over_time: a label is set by its first equality
// matcher and taken away by any matcher of it that follows. Names and metadata are never set.
func absentLabels(matchers []*labels.Matcher) labels.Labels {
	b := labels.NewBuilder(labels.EmptyLabels())
	pinned := map[string]bool{}
	for _, m := range matchers {
		switch {
		case schema.IsMetadataLabel(m.Name):
		case m.Type == labels.MatchEqual && !pinned[m.Name]:
			pinned[m.Name] = true
			b.Set(m.Name, m.Value)
		default:
			b.Del(m.Name)
		}
	}
	return b.Labels()
}

// extent returns bounds of the times that decide windows of w: no window that ends before oldest, or begins at or after
// newest, holds anything. ok is false if w is empty.
func extent(w *accum.Window) (oldest, newest int64, ok bool) {
	oldest, newest = math.MaxInt64, math.MinInt64
	if n := len(w.T); n > 0 {
		oldest, newest, ok = w.T[0], w.T[n-1], true
	}
	if n := len(w.Cols); n > 0 {
		// A column pane belongs to the windows that its end is in.
		oldest, newest, ok = min(oldest, w.Cols[0].End), max(newest, w.Cols[n-1].End), true
	}
	return oldest, newest, ok
}

// mergePoints merges two runs of points in time order; ok is false if they share a time.
func mergePoints(a, b []promql.FPoint) (merged []promql.FPoint, ok bool) {
	merged = make([]promql.FPoint, 0, len(a)+len(b))
	ok = true
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].T < b[0].T:
			merged, a = append(merged, a[0]), a[1:]
		case b[0].T < a[0].T:
			merged, b = append(merged, b[0]), b[1:]
		default:
			ok = false
			merged, a, b = append(merged, a[0]), a[1:], b[1:]
		}
	}
	return append(append(merged, a...), b...), ok
}
