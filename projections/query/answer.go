package query

// This file is data path 6 of 6: answer.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"tidemark/log"
	"tidemark/projections/plan"
)

// answer is the whole life of a request.
func (e *Engine) answer(ctx context.Context, c Common, s steps, newQuery queryMaker) (*Result, error) {
	timeout := e.opts.Timeout
	if c.Timeout > 0 {
		timeout = min(timeout, c.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	began := time.Now()
	res, err := e.evaluate(ctx, c, s, newQuery)
	if res != nil {
		res.Stats.Took = time.Since(began)
	}
	e.metrics.observe(res, err)
	return res, err
}

func (e *Engine) evaluate(ctx context.Context, c Common, s steps, newQuery queryMaker) (*Result, error) {
	place, err := e.slots.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer place.release()

	var res *Result
	err = e.besideCopy(ctx, place, !c.Published, func(has log.Seq) (err error) {
		res, err = e.evaluateOnce(ctx, c, s, newQuery, place, attempt{direct: true, copyHas: has})
		if errors.Is(err, errUnfit) {
			res, err = e.evaluateOnce(ctx, c, s, newQuery, place, attempt{copyHas: has})
		}
		return err
	})
	return res, err
}

// attempt says how a request is evaluated. Direct, parts of its expression are read from records as wholes, and aggregations are evaluated
// with their leaves; otherwise the engine is given every leaf.
type attempt struct {
	direct  bool
	copyHas log.Seq // as in demand
}

// evaluateOnce evaluates the request. Errors are errUnfit only where direct, and errCopyLags only without copyHas.
func (e *Engine) evaluateOnce(ctx context.Context, c Common, s steps, newQuery queryMaker, place *slot, how attempt) (*Result, error) {
	from := newFeed()
	q, parts, d, err := e.prepare(ctx, c, s, newQuery, from, how.direct)
	if err != nil {
		return nil, err
	}
	if d != nil {
		d.copyHas = how.copyHas
	}
	res, err := e.evaluateParts(ctx, c, s, q, parts, d, from, place)
	d.count(parts, err)
	return res, err
}

func (e *Engine) evaluateParts(ctx context.Context, c Common, s steps, q promql.Query, parts []part, d *demand, from *feed, place *slot) (*Result, error) {
	var leaves []*leaf
	for i := range parts {
		switch p := &parts[i]; {
		case p.raw:
			leaves = append(leaves, p.beside...)
		case p.miss != nil:
			return nil, p.miss
		default:
			leaves = append(leaves, p.leaf)
		}
	}
	res := &Result{CompleteThrough: math.MaxInt64, query: q}
	read := reading{behind: c.Published}
	if (e.opts.Live() || c.Live) && !c.Published {
		read.live = &liveSteps{outer: s}
	}
	if d != nil {
		d.read = read
	}
	if err := e.fill(ctx, leaves, d, from.values, res); err != nil {
		return nil, err
	}
	if err := e.route(ctx, parts, c, s, from, place, read.live, d, res); err != nil {
		return nil, err
	}

	out := execute(ctx, q, parts, from)
	if miss := from.missed(); miss != nil {
		q.Close()
		return nil, miss
	}
	if out.Err != nil {
		q.Close()
		return nil, out.Err
	}
	res.Value = out.Value
	res.Stats.Engine = q.Stats()
	if truncate(res, c.Limit) {
		out.Warnings.Add(errors.New("results truncated due to limit"))
	}
	res.Warnings, res.Infos = notes(out.Warnings, c.Expr)
	return res, nil
}

// execute has the engine evaluate what stands for the expression. Where that is a record as it is, there is nothing to evaluate.
func execute(ctx context.Context, q promql.Query, parts []part, from *feed) *promql.Result {
	if len(parts) != 1 || parts[0].leaf == nil || parts[0].leaf.whole == nil || !parts[0].leaf.whole.answer {
		return q.Exec(ctx)
	}
	took := q.Stats().Timers
	defer took.GetTimer(stats.ExecTotalTime).Start().Stop()
	defer took.GetTimer(stats.EvalTotalTime).Start().Stop()
	if err := ended(ctx, "expression evaluation"); err != nil {
		return &promql.Result{Err: err}
	}
	record := from.values[parts[0].leaf.mark]
	m := record.matrix()
	points := m.TotalSamples()
	read := q.Stats().Samples
	read.TotalSamples, read.SamplesRead, read.TotalSeries = int64(points), int64(points), int64(len(record.series))
	read.UpdatePeak(points)
	out := &promql.Result{Value: m, Warnings: record.notes}
	if stmt := q.Statement().(*parser.EvalStmt); stmt.Interval == 0 {
		out.Value = vectorOf(m, toMillis(stmt.Start))
	} else {
		sort.Sort(m)
	}
	return out
}

// rewrite replaces the leaves of the statement's expression, in place, by synthetic selectors. The engine has parsed and
// preprocessed the expression and not yet read anything, and what it will evaluate is what the statement holds then. All
// nodes keep their positions in the text that was sent, so warnings and errors point into that text (Q4). The parts come in
// the order in which the engine evaluates them, leaves with what can answer them.
func (e *Engine) rewrite(ctx context.Context, stmt *parser.EvalStmt, c Common, s steps, direct bool) ([]part, *demand, error) {
	if err := checkSelectors(stmt.Expr); err != nil {
		return nil, nil, &BadDataError{err}
	}
	// A sample at the evaluation time itself counts whatever the lookback.
	r := rewriter{direct: direct, root: &stmt.Expr, ranged: stmt.Interval > 0, lookback: max(1, millis(e.lookback(c))), defaultStep: e.opts.SubqueryStep}
	x, err := e.index()
	if err != nil {
		return nil, nil, &SourceError{err}
	}
	if direct && e.opts.Records != nil && (e.opts.Exact == nil || !c.Exact) {
		r.wholes = x.wholes
	}
	resolveOffsets(stmt.Expr, s.start, 0)
	r.rewrite(&stmt.Expr, s)
	if err := r.checkInner(e.opts.MaxSamples); err != nil {
		return nil, nil, err
	}
	if len(r.parts) == 0 {
		return nil, nil, nil
	}
	d := &demand{engine: e, x: x, byKey: map[innerKey]*inner{}, copied: true}
	for i := range r.parts {
		if err := d.decide(ctx, &r, &r.parts[i], c); err != nil {
			return nil, nil, err
		}
	}
	return r.parts, d, r.checkInner(e.opts.MaxSamples)
}

// decide finds what answers a part: panes and records, or the exact source.
func (d *demand) decide(ctx context.Context, r *rewriter, p *part, c Common) error {
	there := d.engine.opts.Exact != nil
	if p.leaf == nil {
		if !there {
			return nil
		}
		all, ok := r.besides(d.x, p.node, p.at)
		if !ok {
			return nil // it reads what no exact source has
		}
		for _, l := range all {
			l.turnRaw(p.miss)
			err := d.provide(ctx, l, nil)
			if errors.As(err, &p.miss) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		p.raw, p.beside = true, all
		return nil
	}
	reads := meansNone
	if p.node != nil {
		reads = d.x.meaning(p.leaf)
	}
	exact := there && p.node != nil && reads != meansRecorded
	p.leaf.exact = exact
	if exact && c.Exact && reads == meansNone {
		p.miss = p.leaf.miss(reasonAsked, "the exact copy was asked for")
	} else if err := d.provide(ctx, p.leaf, nil); err != nil && !errors.As(err, &p.miss) {
		return err
	}
	if p.miss != nil && exact && reads == meansNone {
		p.raw = true
		p.leaf.turnRaw(p.miss)
	}
	return nil
}

// lookback is that of instant selectors.
func (e *Engine) lookback(c Common) time.Duration {
	if c.LookbackDelta > 0 {
		return c.LookbackDelta
	}
	return e.opts.LookbackDelta
}

// index returns the streams of the plan in force.
func (e *Engine) index() (*index, error) {
	p := e.src.Plan()
	if x := e.streams.Load(); x != nil && x.plan == p {
		return x, nil
	}
	x, err := newIndex(p, e.uses.of)
	if err != nil {
		return nil, err
	}
	e.streams.Store(x)
	return x, nil
}

// fill reads the panes of all leaves at one sequence (Q1) and evaluates the leaves into values. Where a stream does not hold
// what a leaf needs and another may, and where recorded steps turn out not to be clean, all are read again.
func (e *Engine) fill(ctx context.Context, leaves []*leaf, d *demand, values results, res *Result) error {
	for {
		again, miss, err := e.tryFill(ctx, leaves, d, values, res)
		if err != nil || miss == nil && !again {
			return err
		}
		if miss != nil {
			l := miss.leaf
			if l.first == nil {
				l.first = miss.why
			}
			switch {
			case res.Stats.Reads < maxAttempts && l.chosen+1 < len(l.streams):
				l.chosen++
			case l.exact:
				l.turnRaw(l.first)
			default:
				return l.first // of the stream that should have answered
			}
		}
		if err := d.renew(ctx, leaves, res.Stats.Reads >= maxAttempts-1); err != nil {
			return err
		}
	}
}

// leafMiss is a miss that another stream may cure.
type leafMiss struct {
	leaf *leaf
	why  *MissError
}

// tryFill reads once. again says that recorded steps were not clean as of that read.
func (e *Engine) tryFill(ctx context.Context, leaves []*leaf, d *demand, values results, res *Result) (again bool, miss *leafMiss, err error) {
	all := slices.Clone(leaves)
	for _, in := range d.inners() {
		for _, r := range in.runs {
			all = append(all, r.leaves...)
		}
	}
	reqs, of := requests(all, d.how())
	for _, in := range d.inners() {
		reqs = in.track(reqs)
	}
	snap, err := e.read(ctx, reqs, res)
	if err != nil {
		return false, nil, err
	}
	defer snap.Release() // what is evaluated shares nothing with it
	answers := snap.Answers
	read := make(map[*leaf]*Answer, len(all))
	for i, l := range all {
		if of[i] >= 0 {
			read[l] = &answers[of[i]]
		}
	}
	began, err := e.opts.Began()
	if err != nil {
		return false, nil, &SourceError{err}
	}
	covered(leaves, read, began)
	for _, in := range d.inners() {
		from := int64(math.MinInt64) // what is recorded under a name is what there were samples for
		if in.strict {
			from = began
			for _, r := range in.runs {
				covered(r.leaves, read, began)
			}
		}
		if !in.judge(answers, from) {
			again = true
		}
	}
	if again {
		return true, nil, nil
	}
	v := evaluation{sweep: sweep{ctx: ctx}, budget: e.opts.MaxSamples, live: d.how().live, names: d.names().All}
	v.live.reset()
	res.Stats.Recorded, res.Stats.Evaluated = 0, 0
	for _, in := range d.inners() {
		in.missed = ""
		for _, r := range in.runs {
			if err := d.fillRun(&v, in, r, read); err != nil {
				return false, nil, err
			}
			res.Stats.Evaluated += int(r.steps.count())
		}
		res.Stats.Recorded += len(in.recorded)
		if err := v.evaluate(in); err != nil {
			return false, nil, err
		}
	}
	miss, err = v.fill(leaves, read, values)
	res.Stats.Sketched = v.sketched
	return false, miss, err
}

// covered has what was read for leaves cover nothing before a time, in ms.
func covered(leaves []*leaf, read map[*leaf]*Answer, from int64) {
	for _, l := range leaves {
		if a := read[l]; a != nil && a.CoverageStart < from {
			later := *a // others read the same
			later.CoverageStart = from
			read[l] = &later
		}
	}
}

// fillRun evaluates the leaves of a run. The exact source stands in for those that panes cannot tell, if it may.
func (d *demand) fillRun(v *evaluation, in *inner, r *run, read map[*leaf]*Answer) error {
	before := *v
	for {
		miss, err := v.fill(r.leaves, read, r.from.values)
		switch {
		case err != nil:
			return err
		case miss == nil:
			return nil
		case in.strict:
			return errUnfit
		}
		in.missed = miss.why.Reason
		if !d.standsIn(in.material, miss.why) {
			return in.miss(miss.why)
		}
		if err := d.copyLeaf(v.ctx, in.material, r, miss); err != nil {
			return err
		}
		v.budget, v.sketched = before.budget, before.sketched // the leaves are evaluated again
	}
}

// names are those under which something else than what was written is read; d may be nil.
func (d *demand) names() plan.Named {
	if d == nil {
		return plan.Named{}
	}
	return d.x.names
}

// inners returns the inner expressions, each behind all that it reads. d may be nil.
func (d *demand) inners() []*inner {
	if d == nil {
		return nil
	}
	return d.order
}

// fill evaluates leaves, given what was read for each, into values. What the names stand for that they read is evaluated.
func (v *evaluation) fill(leaves []*leaf, read map[*leaf]*Answer, values results) (*leafMiss, error) {
	for _, l := range leaves {
		switch {
		case l.raw != nil && l.beside:
			values[l.matchers[0]] = result{beside: true, recorded: l.recorded()}
			continue
		case l.raw != nil:
			continue
		case l.whole != nil:
			values[l.mark] = l.whole.result()
			continue
		}
		v.machine.Sketched = false
		out, err := v.readLeaf(l, read[l])
		var miss *MissError
		if errors.As(err, &miss) {
			l.passOver(miss)
		}
		switch {
		case miss != nil && l.exact && l.chosen+1 >= len(l.streams):
			l.turnRaw(miss)
		case miss != nil:
			return &leafMiss{l, miss}, nil
		case err != nil:
			return nil, err
		default:
			if v.machine.Sketched {
				v.sketched++
				out.notes.Add(sketchNote(l.fn))
			}
			out.steps = l.steps
			values[l.mark] = out
		}
	}
	return nil, nil
}

// readLeaf evaluates one leaf over what was read for it. The error is a *MissError, or ends the request.
func (v *evaluation) readLeaf(l *leaf, a *Answer) (result, error) {
	var series []Series
	switch {
	case a != nil:
		if miss := l.check(a, v.live); miss != nil {
			return result{}, miss
		}
		if series = a.Series; l.unnamed() {
			series = ownWritten(series, v.names)
		}
	case len(l.named) > 0:
		series = l.recorded()
	}
	return v.leaf(l, series)
}

// queryMaker parses and preprocesses an expression; nothing is read at that time.
type queryMaker func(context.Context, storage.Queryable) (promql.Query, error)

// prepare makes the engine's query, with its leaves replaced, and finds the streams for them. The engine will read from from; its
// values are to be filled.
func (e *Engine) prepare(ctx context.Context, c Common, s steps, newQuery queryMaker, from *feed, direct bool) (promql.Query, []part, *demand, error) {
	if err := checkSize(c.Expr); err != nil {
		return nil, nil, nil, &BadDataError{err}
	}
	q, err := newQuery(ctx, from)
	if err != nil {
		return nil, nil, nil, &BadDataError{err}
	}
	stmt := q.Statement().(*parser.EvalStmt)
	if err := CheckNesting(stmt.Expr); err != nil {
		q.Close()
		return nil, nil, nil, &BadDataError{err}
	}
	parts, d, err := e.rewrite(ctx, stmt, c, s, direct)
	return q, parts, d, err
}

// truncate cuts the answer to limit series.
func truncate(res *Result, limit int) bool {
	if limit <= 0 {
		return false
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	case promql.Matrix:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	}
	return false
}

// notes renders the engine's annotations with their positions in expr.
func notes(a annotations.Annotations, expr string) (warnings, infos []string) {
	warnings, infos = a.AsStrings(expr, 0, 0)
	return capped(warnings, "%d more warning annotations omitted"), capped(infos, "%d more info annotations omitted")
}

func capped(s []string, more string) []string {
	slices.Sort(s)
	if n := len(s) - maxNotes; n > 0 {
		s = append(s[:maxNotes], fmt.Sprintf(more, n))
	}
	return s
}
