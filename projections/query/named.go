package query

// This file is data path 6 of 6: answer. It answers selectors that name a materialization or a recorded series.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// maxInnerSteps bounds the steps at which one materialization is evaluated for one request.
const maxInnerSteps = 1_000_000

// errSameRecorded is Prometheus' error where the labels of a rule make two of its series one.
var errSameRecorded = errors.New("vector contains metrics with the same labelset after applying rule labels")

// material is a materialization, ready to be evaluated for those who read its name. Its expression reads its own streams and
// no others, so that its lateness, its membership and its panes are those that were configured.
type material struct {
	*plan.Materialization
	plan    *plan.Plan
	streams []stream // the best first

	uses    *uses
	look    sync.Once
	id      uint64       // under which it is recorded
	reaches []plan.Reach // what its steps depend on; none if they are evaluated when they are read
	err     error
}

// stepsFor returns the steps of m that l reads as samples. Of an instant selector that is one for each evaluation: the newest
// at or before it, whether or not it has a value, as after a stale marker.
func (m *material) stepsFor(l *leaf) steps {
	times, every := l.dataTimes(), m.EveryMillis
	none := steps{start: 0, end: -1, every: every}
	if times.count() == 0 {
		return none
	}
	s := steps{start: floorTo(times.start, every), end: floorTo(times.last(), every), every: every}
	switch {
	case !l.lookback:
		s.start = floorTo(times.start-l.window, every) + every
	case times.count() == 1 && s.start <= times.start-l.window:
		return none // lookback ends before the newest step
	case times.count() > 1 && times.every%every == 0:
		s.every = times.every
	}
	return s
}

// floorTo returns the greatest multiple of every at or before t.
func floorTo(t, every int64) int64 {
	m := t % every
	if m < 0 {
		m += every
	}
	return t - m
}

// inner is the expression of a materialization, evaluated at steps of its grid for one request.
type inner struct {
	material *material
	steps    steps

	recorded []bucket.Recorded // steps that are read from the record
	sets     []labels.Labels   // of their series, by number
	tracked  []int             // for each reach the request that says what changed, if there are recorded steps
	dirty    map[int64]bool    // steps that were found not to be clean
	bypass   bool              // the record is not looked at
	strict   bool              // it stands for a part of the expression as it was sent, see errUnfit
	named    bool              // it is read by name
	missed   string            // why it cannot be told, as a reason; "": it can, or nobody knows yet

	runs   []*run           // steps that are evaluated
	notes  bool             // the engine had something to say about them that is not in doubts
	doubts map[int64]uint64 // by evaluated step, as in bucket.Step

	matrix promql.Matrix // the values at all steps, with the labels of the expression
	out    []Series      // the same, in label order, under the labels of the record; stale markers where a series ends
}

// run is an inner expression at successive steps.
type run struct {
	steps  steps
	query  promql.Query
	from   *feed
	leaves []*leaf

	doubts      []doubt
	doubtsKnown bool // nothing else is said of counters than what they are about
}

// demand is what one request reads: the leaves of its own expression, and behind the names that these read those of other
// expressions.
type demand struct {
	engine *Engine
	x      *index
	byKey  map[innerKey]*inner
	old    map[innerKey]*inner // of the attempt before, with what it found out
	order  []*inner            // each behind all that it reads itself
	leaves int                 // of all expressions
	read   reading             // how panes are read
	roots  []*inner            // what is asked for, in the place of leaves of an expression of the request

	// copied says that the exact source, if there is one, may stand in for panes that cannot tell what is behind a name. What is
	// evaluated to be recorded must come from panes alone.
	copied  bool
	copyHas log.Seq // what the exact source has at least, if it has all that the request must see; 0: nobody knows
}

type innerKey struct {
	material *material
	steps    steps
}

// provide finds what answers l: streams (of own alone, if l is part of its expression) or expressions behind a name. The
// error is a *MissError if nothing does.
func (d *demand) provide(ctx context.Context, l *leaf, own *material) error {
	if l.whole != nil {
		return d.provideWhole(ctx, l)
	}
	if d.leaves++; d.leaves > MaxLeaves {
		return l.miss(ReasonUnsupportedFunction, "recorded series and what they read have more than %d selectors", MaxLeaves)
	}
	names, mixed := plan.ReadNames(l.matchers, d.x.names)
	switch {
	case mixed && (own != nil || !l.exact):
		return l.miss(ReasonNoMaterialization, "the selector may mean both %s, which is recorded, and written series", names[0])
	case len(names) == 0:
		var miss *MissError
		if l.streams, miss = d.x.candidates(l, own); miss != nil {
			return miss
		}
		return nil
	}
	l.reads, l.named = names, nil
	if mixed && l.raw == nil {
		l.turnRaw(l.miss(ReasonNoMaterialization, "the selector may mean both %s, which is recorded, and written series", names[0]))
	}
	l.beside = l.raw != nil
	for _, name := range names {
		for _, m := range d.x.materials[name] {
			s := m.stepsFor(l)
			if s.count() == 0 {
				continue
			}
			in, err := d.behind(ctx, m, s)
			var miss *MissError
			if errors.As(err, &miss) {
				l.lacks = m
				return l.missBehind(m, miss)
			}
			if err != nil {
				return err
			}
			in.named = true
			l.named = append(l.named, in)
		}
	}
	return nil
}

// missBehind says that l cannot be answered because of what stands behind a name that it reads.
func (l *leaf) missBehind(m *material, why *MissError) *MissError {
	return l.miss(why.Reason, "%s reads %s: %s", m.ReadAs(), why.Node, why.Detail)
}

// miss says that what a name stands for cannot be answered.
func (in *inner) miss(why *MissError) *MissError {
	return &MissError{Reason: why.Reason, Node: in.material.ReadAs(), Detail: fmt.Sprintf("it reads %s: %s", why.Node, why.Detail)}
}

// behind returns m evaluated at s; what is asked for twice is evaluated once.
func (d *demand) behind(ctx context.Context, m *material, s steps) (*inner, error) {
	if s.count() > maxInnerSteps {
		return nil, promql.ErrTooManySamples("query execution")
	}
	key := innerKey{m, s}
	if in, ok := d.byKey[key]; ok {
		return in, nil
	}
	in := d.old[key]
	if in == nil {
		in = &inner{material: m, steps: s}
	}
	if err := d.prepare(ctx, in); err != nil {
		return nil, err
	}
	d.byKey[key] = in
	d.order = append(d.order, in)
	return in, nil
}

// prepare takes what it can from the record, makes the engine's queries for the other steps, and finds what answers their
// leaves. Plans hold no circles, so it ends.
func (d *demand) prepare(ctx context.Context, in *inner) error {
	in.recorded, in.sets, in.tracked, in.runs, in.notes, in.doubts, in.matrix, in.out = nil, nil, nil, nil, false, nil, nil, nil
	if err := d.look(ctx, in); err != nil {
		return err
	}
	for _, s := range in.gaps() {
		r, err := d.run(ctx, in.material, s)
		if err != nil {
			return err
		}
		in.runs = append(in.runs, r)
	}
	return nil
}

// run makes the engine's query of m at s.
func (d *demand) run(ctx context.Context, m *material, s steps) (*run, error) {
	out := &run{steps: s, from: newFeed()}
	q, err := d.engine.promql.NewRangeQuery(ctx, out.from, atStepOnly(), m.Expr, toTime(s.start), toTime(s.end), toDuration(s.every))
	if err != nil {
		return nil, &SourceError{fmt.Errorf("materialization %s: %w", m.Name, err)}
	}
	out.query = q
	expr := &q.Statement().(*parser.EvalStmt).Expr
	out.doubts, out.doubtsKnown = doubts(*expr)
	r := rewriter{lookback: d.lookback(m), defaultStep: d.engine.opts.SubqueryStep}
	resolveOffsets(*expr, s.start, 0)
	r.rewrite(expr, s)
	if err := r.checkInner(d.engine.opts.MaxSamples); err != nil {
		return nil, err
	}
	for _, p := range r.parts {
		if p.miss != nil {
			return nil, p.miss
		}
		if err := d.provide(ctx, p.leaf, m); err != nil {
			return nil, err
		}
		out.leaves = append(out.leaves, p.leaf)
	}
	return out, nil
}

// lookback returns that of an expression behind a name, ms: its panes were made for that.
func (d *demand) lookback(m *material) int64 {
	if m.plan.LookbackMillis > 0 {
		return m.plan.LookbackMillis
	}
	return millis(d.engine.opts.LookbackDelta)
}

// renew looks for all inner expressions anew, and makes their queries: the engine evaluates each once. What is read by none
// any more goes. With bypass no record is looked at any more, so that attempts end.
func (d *demand) renew(ctx context.Context, leaves []*leaf, bypass bool) error {
	if d == nil {
		return nil
	}
	old := d.byKey
	d.leaves, d.order, d.byKey = 0, nil, map[innerKey]*inner{}
	d.old = old
	for _, in := range old {
		in.bypass = in.bypass || bypass
	}
	for _, root := range d.roots {
		old[innerKey{root.material, root.steps}] = root
		if _, err := d.behind(ctx, root.material, root.steps); err != nil {
			return err
		}
	}
	for _, l := range leaves {
		if len(l.reads) == 0 && l.whole == nil || l.raw != nil && !l.beside {
			d.leaves++
			continue
		}
		if err := d.provide(ctx, l, nil); err != nil {
			return err
		}
	}
	return nil
}

// evaluate puts the values of an inner expression into in.out, once those of its leaves are in the values of its runs.
func (v *evaluation) evaluate(in *inner) error {
	in.gather()
	if err := v.evaluateRuns(in); err != nil {
		return err
	}
	for i := range in.matrix {
		if v.budget -= len(in.matrix[i].Floats); v.budget < 0 {
			return promql.ErrTooManySamples("query execution")
		}
	}
	if in.strict && in.notes {
		return errUnfit
	}
	if !in.named {
		return nil
	}
	var err error
	if in.out, err = in.record(); err != nil {
		return fmt.Errorf("%s: %w", in.material.ReadAs(), err)
	}
	return nil
}

// gather puts what is recorded into in.matrix: series in the order in which they come, points in the order of their times.
func (in *inner) gather() {
	total := 0
	for i := range in.recorded {
		total += len(in.recorded[i].Series)
	}
	var (
		index   = make([]int32, 0, total) // of each value's series in in.matrix
		numbers []uint32                  // of the series in in.matrix
		points  []int32                   // that they have
		at      = map[uint32]int32{}
	)
	for i := range in.recorded {
		k := int32(0) // steps mostly have the same series in the same order
		for _, n := range in.recorded[i].Series {
			if int(k) >= len(numbers) || numbers[k] != n {
				var ok bool
				if k, ok = at[n]; !ok {
					k = int32(len(numbers))
					at[n] = k
					numbers, points = append(numbers, n), append(points, 0)
				}
			}
			index = append(index, k)
			points[k]++
			k++
		}
	}
	in.matrix = make(promql.Matrix, len(numbers))
	room := make([]promql.FPoint, total)
	for k, n := range numbers {
		in.matrix[k] = promql.Series{Metric: in.sets[n], Floats: room[:0:points[k]]}
		room = room[points[k]:]
	}
	for i := range in.recorded {
		step := &in.recorded[i]
		for k, v := range step.Floats {
			floats := &in.matrix[index[k]].Floats
			*floats = append(*floats, promql.FPoint{T: step.Time, F: v})
		}
		index = index[len(step.Floats):]
	}
}

// evaluateRuns adds to in.matrix what is evaluated.
func (v *evaluation) evaluateRuns(in *inner) error {
	if len(in.runs) == 0 {
		return nil
	}
	at := make(map[string]int, len(in.matrix))
	var key []byte
	for i := range in.matrix {
		key = in.matrix[i].Metric.Bytes(key)
		at[string(key)] = i
	}
	points := func(metric labels.Labels) *[]promql.FPoint {
		key = metric.Bytes(key)
		i, ok := at[string(key)]
		if !ok {
			i = len(in.matrix)
			at[string(key)] = i
			in.matrix = append(in.matrix, promql.Series{Metric: metric})
		}
		return &in.matrix[i].Floats
	}
	for _, r := range in.runs {
		if err := v.exec(in, r, points); err != nil {
			return err
		}
	}
	for i := range in.matrix {
		slices.SortFunc(in.matrix[i].Floats, func(a, b promql.FPoint) int { return cmp.Compare(a.T, b.T) })
	}
	return nil
}

// exec evaluates one run.
func (v *evaluation) exec(in *inner, r *run, points func(labels.Labels) *[]promql.FPoint) error {
	defer r.query.Close()
	res := r.query.Exec(v.ctx)
	if miss := r.from.missed(); miss != nil {
		return in.miss(miss)
	}
	if res.Err != nil {
		if ended(v.ctx, "") != nil {
			return res.Err
		}
		if in.strict {
			return errUnfit // the error is to be that of the expression as it was sent
		}
		return fmt.Errorf("%s: %w", in.material.ReadAs(), res.Err)
	}
	matrix, err := res.Matrix()
	if err != nil {
		return fmt.Errorf("%s: %w", in.material.ReadAs(), err)
	}
	at, ok := r.doubted(res.Warnings)
	in.notes = in.notes || !ok
	if in.doubts == nil {
		in.doubts = at
	} else {
		maps.Copy(in.doubts, at) // runs have no step in common
	}
	for i := range matrix {
		if len(matrix[i].Histograms) > 0 {
			return in.miss(&MissError{
				Reason: ReasonNativeHistogram, Node: in.material.Expr, Detail: fmt.Sprintf("%s is a native histogram", matrix[i].Metric),
			})
		}
		p := points(matrix[i].Metric)
		*p = append(*p, matrix[i].Floats...)
	}
	return nil
}

// record makes recorded series of the values of an expression. Two of its series may be one under the labels of the rule, as
// long as they have no time in common.
func (in *inner) record() ([]Series, error) {
	matrix := slices.Clone(in.matrix)
	for i := range matrix {
		matrix[i].Metric = in.material.label(matrix[i].Metric)
	}
	slices.SortFunc(matrix, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	out := make([]Series, 0, len(matrix))
	for i := 0; i < len(matrix); {
		s, points := Series{Labels: matrix[i].Metric}, matrix[i].Floats
		for i++; i < len(matrix) && labels.Equal(matrix[i].Metric, s.Labels); i++ {
			merged, ok := mergePoints(points, matrix[i].Floats)
			if !ok {
				return nil, errSameRecorded
			}
			points = merged
		}
		s.T, s.V = sampled(points, in.steps)
		out = append(out, s)
	}
	return out, nil
}

// label gives a series of the expression the labels under which it is read.
func (m *material) label(metric labels.Labels) labels.Labels {
	b := labels.NewBuilder(metric)
	b.Set(model.MetricNameLabel, m.ReadAs())
	for name, v := range m.Labels {
		b.Set(name, v)
	}
	return b.Labels()
}

// sampled makes samples of the values at steps: a stale marker at the first step at which there is none any more.
func sampled(points []promql.FPoint, s steps) (ts []int64, vs []float64) {
	ts, vs = make([]int64, 0, len(points)+1), make([]float64, 0, len(points)+1)
	for i, p := range points {
		ts, vs = append(ts, p.T), append(vs, p.F)
		if next := p.T + s.every; next <= s.end && (i+1 == len(points) || points[i+1].T > next) {
			ts, vs = append(ts, next), append(vs, math.Float64frombits(value.StaleNaN))
		}
	}
	return ts, vs
}

// recorded returns the series that l selects from what stands behind the names it reads, in label order.
func (l *leaf) recorded() []Series {
	var out []Series
	for _, in := range l.named {
		for _, s := range in.out {
			if !slices.ContainsFunc(l.matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels.Get(m.Name)) }) {
				out = append(out, s)
			}
		}
	}
	if len(l.named) < 2 {
		return out
	}
	slices.SortStableFunc(out, func(a, b Series) int { return labels.Compare(a.Labels, b.Labels) })
	merged := out[:0]
	for _, s := range out {
		if n := len(merged); n > 0 && labels.Equal(merged[n-1].Labels, s.Labels) {
			merged[n-1] = mergeRecorded(merged[n-1], s)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// mergeRecorded makes one series of what two rules record under the same labels. At one time a value wins over a stale marker,
// and the first rule's over the second's.
func mergeRecorded(a, b Series) Series {
	out := Series{Labels: a.Labels}
	for i, j := 0, 0; i < len(a.T) || j < len(b.T); {
		fromB := i == len(a.T) || j < len(b.T) && (b.T[j] < a.T[i] || b.T[j] == a.T[i] && value.IsStaleNaN(a.V[i]))
		t := int64(0)
		if fromB {
			t = b.T[j]
			out.T, out.V = append(out.T, t), append(out.V, b.V[j])
		} else {
			t = a.T[i]
			out.T, out.V = append(out.T, t), append(out.V, a.V[i])
		}
		if i < len(a.T) && a.T[i] == t {
			i++
		}
		if j < len(b.T) && b.T[j] == t {
			j++
		}
	}
	return out
}
