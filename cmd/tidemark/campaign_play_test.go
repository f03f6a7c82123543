package main

// A script of the campaign, played against a service and beside the model.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/promql"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// reference is what a script must come to, by sequence.
type reference struct {
	tolds  []told         // event i+1
	bodies [][]byte       // likewise
	said   map[int]string // by head: what the folds say, unless some streams were still being folded
}

// play runs a script against a world, and against the model where it has one.
type play struct {
	w      *world
	m      *naive // nil: the world is not compared
	tolds  []told
	ref    *reference // filled if set
	plan   int
	base   int64 // of log time at this start
	mono   int64
	acked  func(head int) // called when all that was sent so far is acknowledged
	asked  struct{ questions, warm int }
	engine *promql.Engine
	did    map[string]uint64 // what has happened, by kind
	every  int               // compare after every so many events only; 0: after each
	fails  bool              // the disk may fail: a refusal is no finding
}

// errRefused: the disk failed and the service said so.
var errRefused = errors.New("refused")

func newPlay(w *world, m *naive) *play {
	return &play{w: w, m: m, acked: func(int) {}, engine: oracle.NewEngine(1e6), did: map[string]uint64{}}
}

func newReference() *reference {
	return &reference{said: map[int]string{}}
}

// start opens the world and begins.
func (p *play) start() error {
	if err := p.w.open(p.plan); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	return p.begin()
}

// begin begins on a world that is open and holds the events that were told.
func (p *play) begin() error {
	last := int64(never)
	if n := len(p.tolds); n > 0 {
		last = p.tolds[n-1].logTime
	}
	p.base, p.mono = max(last, p.w.openedWall), p.w.openedMono
	if err := p.w.begin(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return p.tell(told{start: log.StartProcess}, told{plan: p.w.plans[p.plan].plan})
}

func (p *play) logTime() int64 { return p.base + p.w.clock.mono.Load() - p.mono }

// tell gives the model the events that stand in the log now, and compares.
func (p *play) tell(events ...told) error {
	_, err := p.tellOutcome(events...)
	return err
}

func (p *play) tellOutcome(events ...told) (out modelOutcome, err error) {
	from := len(p.tolds) + 1
	_, unfinished := p.w.unfinished()
	for _, e := range events {
		e.logTime, e.wall = p.logTime(), p.w.clock.wall.Load()
		if e.plan != nil {
			if e.plan, err = p.planAt(log.Seq(len(p.tolds) + 1)); err != nil {
				return out, p.refused(err)
			}
		}
		p.tolds = append(p.tolds, e)
		if p.m != nil {
			out = p.m.apply(e)
		}
	}
	for id, n := range out.later {
		if !unfinished[id] {
			out.closed += n
		}
	}
	head := int(p.w.n.events.Head())
	if head != len(p.tolds) {
		return out, fmt.Errorf("the log ends at %d, %d events were acknowledged", head, len(p.tolds))
	}
	p.acked(head)
	if p.m == nil || p.every > 0 && head%p.every != 0 {
		return out, nil
	}
	if err := p.w.wait(); err != nil {
		return out, err
	}
	bodies, evs, err := p.w.bodies(log.Seq(from))
	if err != nil {
		return out, err
	}
	for i, ev := range evs {
		if t := p.tolds[from-1+i]; ev.LogTime != t.logTime || ev.WallTime != t.wall {
			return out, fmt.Errorf("event %d: log time %d, wall %d; by the clock it is %d, %d", ev.Seq, ev.LogTime, ev.WallTime, t.logTime, t.wall)
		}
	}
	if p.ref != nil {
		p.ref.bodies = append(p.ref.bodies, bodies...)
		p.ref.tolds = p.tolds
		if _, unfinished = p.w.unfinished(); len(unfinished) == 0 {
			if p.ref.said[head], err = p.w.sayAll(); err != nil {
				return out, err
			}
		}
	}
	return out, p.w.compare(p.m)
}

// planAt reads a plan out of the log: when it comes into force it says of itself what it goes back to.
func (p *play) planAt(seq log.Seq) (*plan.Plan, error) {
	ev, err := p.w.n.events.NewReader(seq).Next()
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", seq, err)
	}
	body, ok := ev.Body.(*log.Plan)
	if !ok {
		return nil, fmt.Errorf("event %d is a %s, and should be a plan", seq, ev.Body.Kind())
	}
	return plan.Decode(body.Spec)
}

// tellNew tells the model of what the control plane has put into the log, and holds that it was allowed to.
func (p *play) tellNew() error {
	_, evs, err := p.w.bodies(log.Seq(len(p.tolds) + 1))
	if err != nil {
		return p.refused(err)
	}
	var events []told
	for _, ev := range evs {
		switch b := ev.Body.(type) {
		case *log.ExperimentRetired:
			if p.m != nil {
				after := time.Duration(p.w.plans[p.plan].cfg.Stats.RetireAfter).Milliseconds()
				if err := p.m.retirable(b.Experiment, p.logTime(), after); err != nil {
					return err
				}
			}
			events = append(events, told{retired: b})
			p.did["retirements"]++
		case *log.Tick:
			events = append(events, told{tick: true})
		case *log.Compacted, *log.TaskQueued, *log.TaskStarted, *log.TaskFinished:
			events = append(events, told{control: b})
			p.did["events of the control plane"]++
		default:
			return fmt.Errorf("the control plane appended a %s", b.Kind())
		}
	}
	if len(events) == 0 {
		return p.same()
	}
	return p.tell(events...)
}

// run plays moves to their end; the error names the move.
func (p *play) run(moves []move) error {
	for i, v := range moves {
		if v.what == "due" && p.m != nil {
			// For who plays the script again, without a model, it is settled now.
			v = move{what: "pass", ms: max(0, p.m.nextDeadline(p.logTime())+v.ms-p.logTime())}
			moves[i] = v
		}
		if err := p.do(v); err != nil {
			return fmt.Errorf("move %d (%s): %w", i, v, err)
		}
	}
	return nil
}

func (p *play) do(v move) error {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	n := p.w.n
	switch v.what {
	case "pass":
		p.w.clock.pass(v.ms)
	case "step":
		p.w.clock.wall.Add(v.ms)
	case "write":
		return p.write(v.write)
	case "resume":
		return p.resume(v)
	case "barrier":
		return p.barrier(v)
	case "drain":
		return p.drain()
	case "tick":
		return p.tick(ctx)
	case "plan":
		p.plan = v.plan
		if n.current.Load().plan.Equal(p.w.plans[v.plan].plan) {
			return nil
		}
		if err := p.w.reload(ctx, v.plan); err != nil {
			return p.refused(err)
		}
		return p.tell(told{plan: p.w.plans[v.plan].plan})
	case "checkpoint":
		return p.refused(n.panes.Checkpoint(ctx))
	case "busy":
		return p.busy(ctx, v.write)
	case "compact":
		if err := p.w.compact.Pass(ctx); err != nil {
			return p.refused(err)
		}
		return p.same()
	case "expire":
		return p.expire(ctx)
	case "keep":
		if err := cmpErr(n.folding.Wait(ctx, n.events.Head()), n.keeper.keep(ctx)); err != nil {
			return p.refused(err)
		}
		return p.same()
	case "record":
		_, err := n.recorder.Round(ctx)
		return p.refused(err)
	case "backfill":
		_, before := p.w.unfinished()
		if err := p.w.backfill(ctx, v.steps); err != nil {
			return p.refused(err)
		}
		_, after := p.w.unfinished()
		p.did["backfills"] += uint64(len(before) - len(after))
		return p.same()
	case "round":
		if _, err := p.w.master.Round(ctx); err != nil {
			return p.refused(err)
		}
		return p.tellNew()
	case "sweep":
		if _, _, err := p.w.master.Sweep(ctx); err != nil {
			return p.refused(err)
		}
		if err := p.w.work(ctx); err != nil {
			return p.refused(err)
		}
		return p.tellNew()
	case "task":
		kind := [...]log.TaskKind{log.TaskCompact, log.TaskPublish, log.TaskRescan}[v.choice%3]
		name := modelExperiments[v.choice/3%uint64(len(modelExperiments))]
		if _, _, err := p.w.master.Enqueue(ctx, kind, name); err != nil && !errors.Is(err, master.ErrUnknown) {
			return p.refused(err)
		}
		return p.tellNew()
	case "heal":
		return p.heal(v.workers)
	case "query":
		return p.query(ctx, v.choice)
	case "reread":
		return p.reread(ctx, v.at)
	case "restart":
		return p.restart(v.workers, nil)
	case "rebuild":
		return p.restart(v.workers, func() error { return p.w.rebuild(v.workers, false) })
	case "verify":
		return p.restart(v.workers, func() error { return p.w.rebuild(v.workers, true) })
	}
	return nil
}

// busy writes while a checkpoint is made: the request is written over and over, so that some shards are frozen between an event's fsync and
// its fold.
func (p *play) busy(ctx context.Context, ps []point1) error {
	saved := make(chan error, 1)
	go func() { saved <- p.w.n.panes.Checkpoint(ctx) }()
	var err error
	for n := 0; n < 4 && err == nil; n++ {
		err = p.write(ps)
		ps = slices.Clone(ps)
		for i := range ps {
			ps[i].t += 10 // ms
		}
	}
	return cmpErr(err, p.refused(<-saved))
}

// refused makes a refusal of a failure that is allowed to be.
func (p *play) refused(err error) error {
	if err != nil && p.fails {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// same holds that nothing logical has changed.
func (p *play) same() error {
	if p.m == nil {
		return nil
	}
	return p.w.compare(p.m)
}

func (p *play) restart(workers int, between func() error) error {
	if err := p.w.stop(); err != nil {
		return p.refused(fmt.Errorf("stop: %w", err))
	}
	if between != nil {
		if err := between(); err != nil {
			return p.refused(err)
		}
	}
	p.w.workers = workers
	if err := p.start(); err != nil {
		return p.refused(err)
	}
	return nil
}

// heal stops, puts in place what came too late, as `tidemark rebuild --heal` does, and starts again. It does so only where it can go back
// to the first event: the model knows nothing of what a base has lost.
func (p *play) heal(workers int) error {
	if p.w.n.events.Floor() > 1 {
		return nil
	}
	if err := p.w.stop(); err != nil {
		return p.refused(fmt.Errorf("stop: %w", err))
	}
	last := int64(never)
	if n := len(p.tolds); n > 0 {
		last = p.tolds[n-1].logTime
	}
	p.base, p.mono = max(last, p.w.clock.wall.Load()), p.w.clock.mono.Load()
	if err := p.w.heal(workers); err != nil {
		return p.refused(err)
	}
	p.w.workers = workers
	if err := p.w.open(p.plan); err != nil {
		return p.refused(fmt.Errorf("open: %w", err))
	}
	if int(p.w.n.events.Head()) > len(p.tolds) {
		p.did["heals"]++
		if err := p.tell(told{healed: true}); err != nil {
			return err
		}
	}
	if err := p.begin(); err != nil {
		return p.refused(err)
	}
	return nil
}

func (p *play) isSealed() bool {
	p.w.n.gate.sealing.RLock()
	defer p.w.n.gate.sealing.RUnlock()
	return p.w.n.gate.sealed
}

func (p *play) write(ps []point1) error {
	sealed := p.isSealed()
	code, body := p.w.write(ps)
	switch {
	case sealed && code == http.StatusConflict:
		return p.tell()
	case code == http.StatusNoContent && !sealed:
		return p.tell(told{write: ps})
	case p.fails:
		return fmt.Errorf("%w: write: status %d", errRefused, code)
	}
	return fmt.Errorf("write: status %d: %.300s", code, body)
}

// resume has the disk below its reserve for a while, and then writes.
func (p *play) resume(v move) error {
	p.w.free = 0
	if err := p.w.n.gate.lookAtDisk(); err != nil {
		return err
	}
	code, body := p.w.write(v.write)
	p.w.free = 1 << 40
	if err := p.w.n.gate.lookAtDisk(); err != nil {
		return err
	}
	if code != http.StatusServiceUnavailable {
		return fmt.Errorf("write on a full disk: status %d: %.300s", code, body)
	}
	p.w.clock.pass(v.ms)
	code, body = p.w.write(v.write)
	switch {
	case code == http.StatusNoContent:
		return p.tell(told{start: log.StartResume}, told{write: v.write})
	case p.fails:
		return fmt.Errorf("%w: write: status %d", errRefused, code)
	}
	return fmt.Errorf("write after the disk was full: status %d: %.300s", code, body)
}

func (p *play) barrier(v move) error {
	params := []string{"time_ms", strconv.FormatInt(v.at, 10)}
	if v.scope != "" {
		params = append(params, "experiment", v.scope)
	}
	code, a, body := p.w.barrier("/api/v1/precompute/watermark", params...)
	if code != http.StatusOK {
		if p.fails {
			return fmt.Errorf("%w: barrier: status %d", errRefused, code)
		}
		return fmt.Errorf("barrier: status %d: %.300s", code, body)
	}
	out, err := p.tellOutcome(told{watermark: &log.Watermark{Time: v.at, Experiment: v.scope, Scoped: v.scope != ""}})
	return cmpErr(err, p.outcome(a, out))
}

func (p *play) drain() error {
	code, a, body := p.w.barrier("/api/v1/precompute/drain")
	if code != http.StatusOK {
		if p.fails {
			return fmt.Errorf("%w: drain: status %d", errRefused, code)
		}
		return fmt.Errorf("drain: status %d: %.300s", code, body)
	}
	out, err := p.tellOutcome(told{drain: true})
	return cmpErr(err, p.outcome(a, out))
}

// through is what the answer proves, as the model says it.
func (a barrierAnswer) through() int64 {
	if a.CompleteThrough == nil {
		return math.MinInt64
	}
	return *a.CompleteThrough
}

func (p *play) outcome(a barrierAnswer, out modelOutcome) error {
	if p.m == nil || uint64(a.ClosedBuckets) == out.closed && a.through() == out.through && a.Seq == uint64(len(p.tolds)) {
		return nil
	}
	return fmt.Errorf("the answer is %+v; the model closed %d, and is complete through %d", a, out.closed, out.through)
}

func (p *play) tick(ctx context.Context) error {
	if err := p.w.wait(); err != nil {
		return p.refused(err)
	}
	due, err := p.w.n.panes.Due(ctx, p.w.n.events.LogTime())
	if err != nil {
		return p.refused(err)
	}
	if p.m != nil {
		want := p.m.due(p.logTime())
		_, unfinished := p.w.unfinished()
		for _, g := range p.m.later {
			want = want || !unfinished[g.id] && g.m.due(p.logTime())
		}
		if due != want {
			return fmt.Errorf("due at %d: %v, the model says %v", p.logTime(), due, want)
		}
	}
	if !due {
		return nil
	}
	seq, err := tickLog{p.w.n.gate}.Append(ctx, &log.Tick{})
	if err != nil || seq == 0 {
		return p.refused(cmpErr(err, errors.New("the tick was not written")))
	}
	return p.tell(told{tick: true})
}

// expire makes a pass of retention. Which events it appends is its own choice, but each must be due.
func (p *play) expire(ctx context.Context) error {
	n := p.w.n
	before := n.events.Head()
	if err := n.expirer.Pass(ctx); err != nil {
		return p.refused(err)
	}
	if n.events.Head() == before {
		return p.same()
	}
	_, evs, err := p.w.bodies(before + 1)
	if err != nil {
		return err
	}
	var events []told
	for _, ev := range evs {
		x, ok := ev.Body.(*log.Expired)
		if !ok {
			return fmt.Errorf("retention appended a %s", ev.Body.Kind())
		}
		if p.m != nil {
			if err := p.isDue(x); err != nil {
				return err
			}
		}
		events = append(events, told{expired: x})
	}
	return p.tell(events...)
}

// isDue holds a retention delete against the event time that the model has.
func (p *play) isDue(x *log.Expired) error {
	m, st := p.m.ofKey(x.Stream)
	if st == nil {
		return nil
	}
	if limit := max(st.frontier, m.proven) - st.spec.RetentionMillis; x.Through > limit {
		return fmt.Errorf("retention removes what ends at %d; only what ends at or before %d is due", x.Through, limit)
	}
	return nil
}

// record plays a script on a sound disk beside the model, and says what it came to.
func record(s script, plans []*loaded) (*reference, *play, error) {
	w := newWorld(vfs.NewMem(), &simClock{}, plans, s.workers)
	w.clock.wall.Store(s.wall)
	w.clock.mono.Store(int64(time.Hour / time.Millisecond))
	p := newPlay(w, newNaive())
	p.ref = newReference()
	err := p.start()
	if err == nil {
		if err = p.run(s.moves); err == nil {
			err = p.finish()
		}
	}
	if err != nil {
		return nil, p, fmt.Errorf("seed %d: %w", s.seed, err)
	}
	return p.ref, p, nil
}

// finish stops, and folds the log afresh.
func (p *play) finish() error {
	if err := p.w.wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	if err := cmpErr(p.w.backfill(ctx, 0), p.same()); err != nil {
		return err
	}
	head := p.w.n.events.Head()
	said, err := p.w.say()
	if err != nil {
		return err
	}
	if err := p.w.stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	fresh, err := p.w.fresh(1+int(head)%5, head)
	if err == nil && fresh != said {
		err = fmt.Errorf("a fresh fold:\n got %s\nwant %s", fresh, said)
	}
	return err
}
