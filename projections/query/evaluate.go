package query

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/schema"
	"github.com/prometheus/prometheus/util/annotations"

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
	ctx      context.Context
	live     *liveSteps // nil: only what is published may be read
	budget   int        // points that may still be made
	spent    int        // evaluations since ctx was looked at
	sketched int        // leaves that were read from sketches
	names    []string   // of what is recorded
	said     struct {   // of which it was said last that it may be no counter
		leaf *leaf
		name string
	}
	slide   accum.Slide // over series of samples
	cursor  accum.Cursor
	machine accum.Evaluator // over the parts that the cursor cuts, where there are columns
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
	for i := range series {
		s := &series[i]
		points, err := v.points(l, &s.Window)
		if err != nil {
			return result{}, err
		}
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
func (v *evaluation) annotate(l *leaf, metric labels.Labels, notes *annotations.Annotations) {
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

// points evaluates l over one series at each of its steps at which the series has a value.
func (v *evaluation) points(l *leaf, w *accum.Window) ([]promql.FPoint, error) {
	var points []promql.FPoint
	err := v.each(l, w, func(ts int64, value float64) error {
		if v.budget--; v.budget < 0 {
			return promql.ErrTooManySamples("query execution")
		}
		points = append(points, promql.FPoint{T: ts, F: value})
		return nil
	})
	return points, err
}

// each calls found for the steps at which l has a value over w. Steps whose windows lie outside w are never visited, so
// that a short-lived series costs little in a long range.
func (v *evaluation) each(l *leaf, w *accum.Window, found func(ts int64, value float64) error) error {
	oldest, newest, ok := extent(w)
	if !ok {
		return nil
	}
	edge := l.edge()
	slides := v.slide.Reset(l.fn, w)
	v.slide.Edge = edge
	if !slides {
		v.cursor.Reset(w)
		v.cursor.Edge = edge
	}
	k, n := int64(0), l.steps.count()
	if !l.pinned {
		if behind := oldest - l.dataTime(l.steps.start); behind > 0 {
			k = (behind + l.steps.every - 1) / l.steps.every
		}
	}
	for ; k < n; k++ {
		if v.spent++; v.spent >= checkEvery {
			v.spent = 0
			if err := ended(v.ctx, "expression evaluation"); err != nil {
				return err
			}
		}
		ts := l.steps.at(k)
		e := l.dataTime(ts)
		if e-l.window-edge >= newest {
			return nil
		}
		begin := e - l.window
		if l.lookback {
			begin -= edge // the newest sample counts if it lies behind this
		}
		var (
			value float64
			ok    bool
			err   error
		)
		if slides {
			v.slide.Machine.Offset = ts - e
			value, ok, err = v.slide.Next(e-l.window, e, begin, l.arg)
		} else {
			part := v.cursor.Cut(e-l.window, e)
			v.machine.Offset = ts - e
			value, ok, err = v.machine.Eval(l.fn, &part, begin, e, l.arg)
		}
		switch {
		case errors.Is(err, accum.ErrNeedsSamples):
			return l.miss(ReasonNeedsSamples, "panes of more than %d samples hold no samples", accum.MaxSamples)
		case err != nil:
			return err
		}
		if ok {
			if err := found(ts, value); err != nil {
				return err
			}
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
		err := v.each(l, &series[i].Window, func(ts int64, _ float64) error {
			present[(ts-l.steps.start)/l.steps.every] = true
			return nil
		})
		if err != nil {
			return result{}, err
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
