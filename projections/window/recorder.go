package window

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

const (
	// defaultInterval is the time between two rounds while there is nothing to catch up with.
	defaultInterval = time.Second
	// maxRun bounds the steps of one evaluation.
	maxRun = 128
	// maxRoundSteps bounds the steps of one materialization that one round evaluates (W4).
	maxRoundSteps = 2048
	// expireEvery is the number of rounds between two looks for steps that are kept no longer.
	expireEvery = 600
)

// Panes is what the Recorder asks of the fold. *pane.Projection is one.
type Panes interface {
	Plan() *plan.Plan
	TrackedStreams(ctx context.Context, after log.Seq, known map[plan.StreamID]log.Seq) (log.Seq, []pane.TrackedStream, error)
	Forget(ctx context.Context, changes map[plan.StreamID]map[int64]log.Seq) error
	PublishedEnds(ctx context.Context, id plan.StreamID) ([]int64, error)
}

// Evaluator evaluates a materialization, by its name, at each step of its grid from start to end, as of one sequence. *query.Engine is one.
type Evaluator interface {
	Evaluate(ctx context.Context, name string, start, end int64) ([]bucket.Step, error)
}

// Store is where steps are kept. *bucket.Windows is one.
type Store interface {
	Put(record uint64, steps []bucket.Step) error
	AsOf(ctx context.Context, record uint64, from, to int64) (map[int64]uint64, error)
	Expire(record uint64, before int64) error
	Keep(records map[uint64]struct{}) error
	Whole(record, since uint64) (bool, error)
	SetWhole(record, since uint64) error
}

// pending is an error that may be gone without a change of the steps that met it. Others stand until a bucket changes.
type pending interface {
	error
	Pending() bool
}

// Options of a Recorder. The zero value is usable.
type Options struct {
	Interval time.Duration    // between rounds; default 1s
	Now      func() time.Time // default time.Now; it decides when steps are evaluated, never what they are
	Logger   *slog.Logger     // default: discards
}

// Recorder keeps recorded windows up with the fold.
type Recorder struct {
	panes Panes
	eval  Evaluator
	store Store
	opts  Options

	plan    *plan.Plan
	records []*record
	rounds  uint64
	seen    log.Seq                             // changes up to this event are in changed
	changed map[plan.StreamID]map[int64]log.Seq // what the fold has not been told to forget
	since   map[plan.StreamID]log.Seq           // TrackedStream.Since

	behind   atomic.Int64 // published steps that the last look at each record left
	laggedAt atomic.Int64 // wall time, ms, from which on some were left; 0: none are
	recorded atomic.Uint64
	failures atomic.Uint64
	whole    sync.Map // the records, by id, of which a look left nothing once
	last     sync.Map // the newest Evaluation of each record, by id
}

// record is one recorded window. Materializations that differ only in what they are called share one.
type record struct {
	name      string // of a materialization, for the evaluator
	id        uint64
	every     int64
	retention int64
	reaches   []plan.Reach
	next      time.Time        // when it is looked at again (W3)
	left      int              // published steps that were left then
	asOf      map[int64]uint64 // of the steps that some change, not forgotten yet, takes part in; nil: not read yet
	history   history
}

// New returns a recorder. Run starts it.
func New(panes Panes, eval Evaluator, store Store, opts Options) *Recorder {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Recorder{panes: panes, eval: eval, store: store, opts: opts}
}

// Run records until ctx ends, and returns nil then. A round that fails is logged and counted, and tried again: queries are
// answered from panes meanwhile.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(r.opts.Interval)
	defer tick.Stop()
	for {
		if _, err := r.Round(ctx); err != nil && ctx.Err() == nil {
			if n := r.failures.Add(1); n == 1 || n%60 == 0 {
				r.opts.Logger.Error("recording windows failed; queries are answered from panes", "consecutive", n, "err", err)
			}
		} else {
			r.failures.Store(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Lag says how long there have been published steps that are not recorded, and how many the last round left.
func (r *Recorder) Lag() (steps int64, since time.Duration) {
	at := r.laggedAt.Load()
	if at == 0 {
		return 0, 0
	}
	return r.behind.Load(), max(0, r.opts.Now().Sub(time.UnixMilli(at)))
}

// Evaluation is one of a record by the Recorder, of one or more steps at once.
type Evaluation struct {
	At   time.Time // when it began
	Took time.Duration
}

// Last returns the newest evaluation of a materialization of a plan that was recorded since the process began; false if there was none.
func (r *Recorder) Last(p *plan.Plan, m *plan.Materialization) (Evaluation, bool) {
	e, ok := r.last.Load(p.RecordID(m))
	if !ok {
		return Evaluation{}, false
	}
	return e.(Evaluation), true
}

// Recorded returns the number of steps recorded so far.
func (r *Recorder) Recorded() uint64 { return r.recorded.Load() }

// Failures returns the number of rounds that failed in a row.
func (r *Recorder) Failures() uint64 { return r.failures.Load() }

// Round looks once at what changed, records the steps that are due, and has forgotten what is recorded (W2). It returns the
// number of published steps that it left.
func (r *Recorder) Round(ctx context.Context) (left int, err error) {
	if err := r.adopt(); err != nil || r.plan == nil {
		return 0, err
	}
	seq, byID, err := r.follow(ctx)
	if err != nil {
		return 0, err
	}
	needs := make(needed)
	var errs []error
	for _, rec := range r.records {
		if r.opts.Now().Before(rec.next) {
			needs.all(rec)
		} else if rec.left, err = r.bringUp(ctx, rec, seq, byID, needs); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		left += rec.left
	}
	errs = append(errs, r.forget(ctx, byID, needs), r.expire(byID))
	r.note(left)
	return left, errors.Join(errs...)
}

// follow takes over what changed since the last round, and gives each stream all that is not forgotten.
func (r *Recorder) follow(ctx context.Context) (log.Seq, map[plan.StreamID]*pane.TrackedStream, error) {
	seq, streams, err := r.panes.TrackedStreams(ctx, r.seen, r.since)
	if err != nil {
		return 0, nil, err
	}
	byID := make(map[plan.StreamID]*pane.TrackedStream, len(streams))
	changed, since := make(map[plan.StreamID]map[int64]log.Seq, len(streams)), make(map[plan.StreamID]log.Seq, len(streams))
	for i := range streams {
		st := &streams[i]
		if was, ok := r.changed[st.ID]; ok && r.since[st.ID] == st.Since {
			maps.Copy(was, st.Changed) // later events only
			st.Changed = was
		}
		changed[st.ID], since[st.ID] = st.Changed, st.Since
		byID[st.ID] = st
	}
	r.seen, r.changed, r.since = seq, changed, since
	return seq, byID, nil
}

// needed says by stream which changes some step still needs.
type needed map[plan.StreamID]*neededEnds

type neededEnds struct {
	all  bool
	ends map[int64]bool
}

func (n needed) of(id plan.StreamID) *neededEnds {
	if n[id] == nil {
		n[id] = &neededEnds{ends: make(map[int64]bool)}
	}
	return n[id]
}

// all keeps everything that a record depends on.
func (n needed) all(rec *record) {
	for _, reach := range rec.reaches {
		n.of(reach.Stream).all = true
	}
}

// note keeps what Lag tells.
func (r *Recorder) note(left int) {
	r.behind.Store(int64(left))
	switch {
	case left == 0:
		r.laggedAt.Store(0)
	case r.laggedAt.Load() == 0:
		r.laggedAt.Store(r.opts.Now().UnixMilli())
	}
}

// adopt takes over the plan in force, and drops the records that are not of it.
func (r *Recorder) adopt() error {
	p := r.panes.Plan()
	if p == nil || p == r.plan {
		return nil
	}
	old := make(map[uint64]*record, len(r.records))
	for _, rec := range r.records {
		old[rec.id] = rec
	}
	var records []*record
	byID := make(map[uint64]*record)
	for i := range p.Materializations {
		m := &p.Materializations[i]
		if m.Layout != plan.LayoutFullWindow {
			continue
		}
		reaches, _, err := p.Reaches(m)
		if err != nil {
			return fmt.Errorf("window: %w", err)
		}
		if len(reaches) == 0 {
			continue
		}
		id := p.RecordID(m)
		if same := byID[id]; same != nil {
			same.retention = max(same.retention, m.RetentionMillis)
			continue
		}
		rec := &record{name: m.Name, id: id, every: m.EveryMillis, retention: m.RetentionMillis, reaches: reaches}
		if was := old[id]; was != nil {
			rec.next = was.next
		}
		byID[id] = rec
		records = append(records, rec)
	}
	keep := make(map[uint64]struct{}, len(byID))
	for id := range byID {
		keep[id] = struct{}{}
	}
	if err := r.store.Keep(keep); err != nil {
		return err
	}
	for _, of := range []*sync.Map{&r.whole, &r.last} {
		of.Range(func(id, _ any) bool {
			if _, ok := keep[id.(uint64)]; !ok {
				of.Delete(id)
			}
			return true
		})
	}
	r.plan, r.records = p, records
	return nil
}

// bringUp records the published dirty steps of a record, and adds to needs the ends that are not to be forgotten. It returns the
// number of published steps that are still dirty.
func (r *Recorder) bringUp(ctx context.Context, rec *record, seq log.Seq, streams map[plan.StreamID]*pane.TrackedStream, needs needed) (left int, err error) {
	dirty := make(map[int64]log.Seq)
	since := log.Seq(0)
	for _, reach := range rec.reaches {
		st := streams[reach.Stream]
		if st == nil {
			needs.all(rec)
			return 0, nil // the fold has another plan by now
		}
		since = max(since, st.Since)
		dirtySteps(dirty, reach, rec.every, st.PaneMillis, st.Changed)
	}
	err = r.addHistory(ctx, rec, since, streams, dirty)
	if err == nil {
		err = r.load(ctx, rec, dirty, since)
	}
	if err != nil {
		needs.all(rec)
		return 0, err
	}
	var todo, open []int64
	for _, t := range slices.Sorted(maps.Keys(dirty)) {
		switch asOf, ok := rec.asOf[t]; {
		case ok && asOf >= uint64(dirty[t]):
		case !rec.covered(t, streams): // it never will be
		case rec.published(t, streams):
			todo = append(todo, t)
		default:
			open = append(open, t)
		}
	}
	var failed []int64
	if len(todo) > 0 {
		n := min(len(todo), maxRoundSteps)
		if n == len(todo) {
			rec.next = r.opts.Now().Add(time.Duration(rec.every) * time.Millisecond)
		}
		failed, err = r.record(ctx, rec, seq, todo[:n])
		todo = append(failed, todo[n:]...)
	}
	rec.want(streams, needs, append(open, todo...))
	if len(todo) == 0 && err == nil {
		r.whole.Store(rec.id, true)
	}
	if err == nil {
		err = r.doneHistory(rec, streams, append(open, todo...))
	}
	return len(todo), err
}

// Recording says whether a materialization of a plan is recorded and its history is not yet: its steps are answered from panes until
// then. Once it is, that stays so for this process.
func (r *Recorder) Recording(p *plan.Plan, m *plan.Materialization) bool {
	if reaches, _, err := p.Reaches(m); err != nil || len(reaches) == 0 {
		return false // evaluated when it is read
	}
	_, whole := r.whole.Load(p.RecordID(m))
	return !whole
}

// load reads which of the dirty steps were recorded before, once after a start or a change of plan, and forgets those that are
// no longer dirty.
func (r *Recorder) load(ctx context.Context, rec *record, dirty map[int64]log.Seq, since log.Seq) error {
	if rec.asOf == nil {
		rec.asOf = make(map[int64]uint64)
		if len(dirty) == 0 {
			return nil
		}
		from, to := int64(math.MaxInt64), int64(math.MinInt64)
		for t := range dirty {
			from, to = min(from, t), max(to, t)
		}
		asOf, err := r.store.AsOf(ctx, rec.id, from, to)
		if err != nil {
			rec.asOf = nil
			return err
		}
		rec.asOf = asOf
	}
	for t, asOf := range rec.asOf {
		// Before that, changes were not kept.
		if _, ok := dirty[t]; !ok || asOf < uint64(since) {
			delete(rec.asOf, t)
		}
	}
	return nil
}

func (rec *record) covered(t int64, streams map[plan.StreamID]*pane.TrackedStream) bool {
	for _, reach := range rec.reaches {
		if !covered(t, reach, streams[reach.Stream]) {
			return false
		}
	}
	return true
}

func (rec *record) published(t int64, streams map[plan.StreamID]*pane.TrackedStream) bool {
	for _, reach := range rec.reaches {
		if !published(t, reach, streams[reach.Stream]) {
			return false
		}
	}
	return true
}

// record evaluates and stores steps, in runs of successive ones. It returns those that are to be tried again.
func (r *Recorder) record(ctx context.Context, rec *record, seq log.Seq, todo []int64) (failed []int64, err error) {
	for i := 0; i < len(todo); {
		j := i + 1
		for j < len(todo) && j-i < maxRun && todo[j] == todo[j-1]+rec.every {
			j++
		}
		again, rerr := r.run(ctx, rec, seq, todo[i], todo[j-1])
		failed = append(failed, again...)
		if rerr != nil {
			return append(failed, todo[j:]...), rerr
		}
		i = j
	}
	return failed, nil
}

// run evaluates and stores the steps from start to end. Where that fails, each half is tried by itself, so that one step which
// panes cannot answer keeps no other from being recorded.
func (r *Recorder) run(ctx context.Context, rec *record, seq log.Seq, start, end int64) (failed []int64, err error) {
	began := r.opts.Now()
	steps, err := r.eval.Evaluate(ctx, rec.name, start, end)
	took := r.opts.Now().Sub(began)
	var p pending
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case start < end:
		half := start + floorTo((end-start)/2, rec.every)
		for _, part := range []span{{start, half}, {half + rec.every, end}} {
			again, err := r.run(ctx, rec, seq, part.first, part.last)
			failed = append(failed, again...)
			if err != nil {
				return failed, err
			}
		}
		return failed, nil
	case errors.As(err, &p) && !p.Pending():
		// It stays so until a bucket changes. The evaluation was of an event at or behind seq.
		steps = []bucket.Step{{Time: start, AsOf: uint64(seq), Refused: true}}
	default:
		return []int64{start}, nil
	}
	if err := r.store.Put(rec.id, steps); err != nil {
		return nil, err
	}
	for _, s := range steps {
		rec.asOf[s.Time] = s.AsOf
	}
	r.last.Store(rec.id, Evaluation{began, took})
	r.recorded.Add(uint64(len(steps)))
	return nil, nil
}

// want adds the ends of which one of the steps is still needed.
func (rec *record) want(streams map[plan.StreamID]*pane.TrackedStream, needs needed, steps []int64) {
	slices.Sort(steps)
	for _, reach := range rec.reaches {
		st, of := streams[reach.Stream], needs.of(reach.Stream)
		for end := range st.Changed {
			if spanOf(reach, rec.every, st.PaneMillis, end).meets(steps) {
				of.ends[end] = true
			}
		}
	}
}

// forget has the fold forget the changes that no step needs any more.
func (r *Recorder) forget(ctx context.Context, streams map[plan.StreamID]*pane.TrackedStream, needs needed) error {
	done := make(map[plan.StreamID]map[int64]log.Seq)
	for id, st := range streams {
		of := needs.of(id)
		if of.all {
			continue
		}
		ends := make(map[int64]log.Seq)
		for end, seq := range st.Changed {
			if !of.ends[end] {
				ends[end] = seq
			}
		}
		if len(ends) > 0 {
			done[id] = ends
		}
	}
	if len(done) == 0 {
		return nil
	}
	if err := r.panes.Forget(ctx, done); err != nil {
		return err
	}
	for id, ends := range done {
		for end := range ends {
			delete(r.changed[id], end)
		}
	}
	return nil
}

// expire deletes, now and then, the steps that are kept no longer: those further behind the frontier than the retention.
func (r *Recorder) expire(streams map[plan.StreamID]*pane.TrackedStream) error {
	r.rounds++
	if r.rounds%expireEvery != 0 {
		return nil
	}
	var errs []error
	for _, rec := range r.records {
		frontier := int64(math.MaxInt64)
		for _, reach := range rec.reaches {
			if st := streams[reach.Stream]; st != nil {
				frontier = min(frontier, st.Frontier)
			}
		}
		if before := frontier - rec.retention; frontier != math.MaxInt64 && before < frontier {
			errs = append(errs, r.store.Expire(rec.id, before))
		}
	}
	return errors.Join(errs...)
}
