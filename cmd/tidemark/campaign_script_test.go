package main

// Scripts of the campaign. A seed gives one, to the last sample; what the disk does to it is another choice.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// move is one step of a script.
type move struct {
	what    string
	ms      int64 // of pass and step
	write   []point1
	at      int64 // of a barrier
	scope   string
	workers int
	plan    int
	steps   int    // of a backfill; 0: to its end
	choice  uint64 // of a question or a task
}

func (v move) String() string {
	switch v.what {
	case "pass", "step":
		return fmt.Sprintf("%s %d ms", v.what, v.ms)
	case "write", "busy", "resume":
		return fmt.Sprintf("%s %d samples", v.what, len(v.write))
	case "barrier":
		return fmt.Sprintf("barrier %d %q", v.at, v.scope)
	case "restart", "rebuild", "verify":
		return fmt.Sprintf("%s with %d workers", v.what, v.workers)
	case "plan":
		return fmt.Sprintf("plan %d", v.plan)
	case "backfill":
		return fmt.Sprintf("backfill, %d steps", v.steps)
	}
	return v.what
}

// script is a history with the clock that it begins at.
type script struct {
	seed    uint64
	wall    int64
	workers int
	moves   []move
}

// newLateScript is a script of writes that come late, again, or with other values, with what closes buckets in between.
func newLateScript(seed uint64, length int) script {
	g := &scripted{rng: rand.New(rand.NewPCG(seed, 76)), total: map[string]float64{}}
	s := script{seed: seed, workers: 1 + g.rng.IntN(4), wall: 1_700_000_000_000}
	g.now = s.wall
	for len(s.moves) < length {
		switch g.rng.IntN(24) {
		case 0:
			s.moves = append(s.moves, g.barrier())
		case 1:
			if g.rng.IntN(2) == 0 {
				s.moves = append(s.moves, g.due()...)
				continue
			}
			s.moves = append(s.moves, g.pass(g.rng.Int64N(40_000)), move{what: "tick"})
		case 2:
			if g.rng.IntN(8) == 0 {
				s.moves = append(s.moves, g.restart())
			}
		case 3, 4, 5, 6:
			s.moves = append(s.moves, g.writes()...)
		default:
			if len(g.sent) == 0 {
				s.moves = append(s.moves, move{what: "write", write: g.request()})
			}
			s.moves = append(s.moves, move{what: "write", write: g.again()})
		}
	}
	return s
}

// again is a small request of which something was sent before, or comes late.
func (g *scripted) again() []point1 {
	old := g.sent[g.rng.IntN(len(g.sent))]
	from := g.rng.IntN(len(old))
	out := slices.Clone(old[from:min(len(old), from+1+g.rng.IntN(3))])
	if g.rng.IntN(3) == 0 {
		out[0].v++
	}
	if g.rng.IntN(3) == 0 {
		out[0].t -= g.rng.Int64N(90_000)
	}
	return out
}

// scripted makes scripts.
type scripted struct {
	rng    *rand.Rand
	now    int64 // event time of the senders, ms
	sealed bool
	plan   int
	sent   [][]point1 // recent requests
	total  map[string]float64
}

// newScript makes the script of a seed. The weights are of no account: every kind of move must come often enough.
func newScript(seed uint64, length int) script {
	g := &scripted{rng: rand.New(rand.NewPCG(seed, 77)), total: map[string]float64{}}
	s := script{seed: seed, workers: 1 + g.rng.IntN(4)}
	s.wall = [...]int64{30_000, 1_700_000_000_000}[g.rng.IntN(2)] + g.rng.Int64N(60_000)
	g.now = s.wall
	for len(s.moves) < length {
		s.moves = append(s.moves, g.next()...)
	}
	return s
}

func (g *scripted) next() []move {
	switch k := g.rng.IntN(100); {
	case k < 48:
		return g.writes()
	case k < 57:
		return []move{g.barrier()}
	case k < 60:
		return []move{g.pass(g.rng.Int64N(30_000)), {what: "tick"}}
	case k < 64:
		return g.due()
	case k < 66:
		return []move{g.pass(60_000 + g.rng.Int64N(120_000)), {what: "tick"}}
	case k < 67:
		return []move{{what: "step", ms: g.rng.Int64N(120_000) - 60_000}}
	case k < 69:
		g.plan = 1 - g.plan
		out := []move{{what: "plan", plan: g.plan}}
		if g.rng.IntN(2) == 0 {
			out = append(out, move{what: "backfill", steps: 1 + g.rng.IntN(3)})
		}
		return out
	case k < 71:
		return []move{{what: "backfill", steps: g.rng.IntN(3)}}
	case k < 73:
		return []move{{what: "checkpoint"}, {what: "round"}}
	case k < 75:
		return []move{{what: "checkpoint"}, {what: "task", choice: g.rng.Uint64()}, {what: "sweep"}}
	case k < 76:
		return []move{{what: "checkpoint"}}
	case k < 79:
		return []move{{what: "checkpoint"}, {what: "compact"}}
	case k < 82:
		return []move{{what: "checkpoint"}, {what: "expire"}}
	case k < 84:
		return []move{{what: "checkpoint"}, {what: "keep"}}
	case k < 87:
		return g.records()
	case k < 93:
		return []move{{what: "query", choice: g.rng.Uint64()}}
	case k < 94:
		g.sealed = true
		return []move{{what: "drain"}, {what: "write", write: g.request()}, g.restart()}
	case k < 96:
		if g.sealed {
			return nil
		}
		return []move{{what: "resume", write: g.request(), ms: 1000 + g.rng.Int64N(3000)}}
	case k < 98:
		return []move{g.restart()}
	case k < 99:
		g.sealed = false
		if g.rng.IntN(3) == 0 {
			return []move{{what: "heal", workers: 1 + g.rng.IntN(4)}}
		}
		return []move{{what: "rebuild", workers: 1 + g.rng.IntN(8)}}
	default:
		g.sealed = false
		return []move{{what: "verify", workers: 1 + g.rng.IntN(8)}}
	}
}

func (g *scripted) restart() move {
	g.sealed = false
	return move{what: "restart", workers: 1 + g.rng.IntN(6)}
}

// due is a tick right at the moment at which a bucket must close, or just before it, and then at it.
func (g *scripted) due() []move {
	g.now += 15_000 // or so; when it is, the play finds out
	at := []move{{what: "due"}, {what: "tick"}}
	if g.rng.IntN(2) == 0 {
		return append([]move{{what: "due", ms: -1}, {what: "tick"}}, at...)
	}
	return at
}

func (g *scripted) pass(ms int64) move {
	g.now += ms
	return move{what: "pass", ms: ms}
}

// writes is a new request, perhaps with time before it, or one that was sent already: whole, in part, or with other values.
func (g *scripted) writes() []move {
	if len(g.sent) > 0 && g.rng.IntN(4) == 0 {
		old := g.sent[g.rng.IntN(len(g.sent))]
		switch g.rng.IntN(4) {
		case 0: // part of it, with something new
			return []move{{what: "write", write: append(slices.Clone(old[:1+g.rng.IntN(len(old))]), g.request()...)}}
		case 1: // with other values
			other := slices.Clone(old)
			for i := range other {
				if g.rng.IntN(2) == 0 {
					other[i].v++
				}
			}
			return []move{{what: "write", write: other}}
		default:
			var out []move
			for range 1 + g.rng.IntN(6) {
				out = append(out, move{what: "write", write: old})
			}
			return out
		}
	}
	var out []move
	if g.rng.IntN(3) > 0 {
		out = append(out, g.pass(g.rng.Int64N(8_000)))
	}
	if g.rng.IntN(8) == 0 {
		return append(out, move{what: "busy", write: g.request()})
	}
	return append(out, move{what: "write", write: g.request()})
}

// records has something recorded, and perhaps corrects some of it, and reads it all again.
func (g *scripted) records() []move {
	if g.plan != 0 || g.rng.IntN(2) == 0 { // the other plan has nothing to record
		return []move{{what: "record"}}
	}
	const step = 20_000 // of what is recorded
	ls := seriesOf("e", g.rng.IntN(4))
	one := func(t int64, v float64) move {
		return move{what: "write", write: []point1{{series: ls.String(), ls: ls, t: t, v: v}}}
	}
	passed := g.pass(step + g.rng.Int64N(5_000)) // as long as a recorder rests
	at := (g.now/step + 1) * step
	return []move{
		passed, one(g.now-2_000, g.rng.Float64()), {what: "barrier", at: at}, {what: "record"},
		one(g.now-3_000-g.rng.Int64N(step), 100+g.rng.Float64()), {what: "reread", at: at}, // more than all others
	}
}

func (g *scripted) request() []point1 {
	var out []point1
	for range 1 + g.rng.IntN(6) {
		metric := string("abcdefgh"[g.rng.IntN(8)])
		out = append(out, g.run(seriesOf(metric, g.rng.IntN(4)), metric)...)
	}
	if g.rng.IntN(4) == 0 {
		g.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	g.sent = append(g.sent, out)
	if len(g.sent) > 12 {
		g.sent = g.sent[1:]
	}
	return out
}

// run is some samples of one series: mostly new, sometimes late, far ahead, or twice at one time.
func (g *scripted) run(ls labels.Labels, metric string) []point1 {
	n := 1 + g.rng.IntN(4)
	if g.rng.IntN(12) == 0 || metric == "b" && g.rng.IntN(4) == 0 {
		n = 20 + g.rng.IntN(30) // more than a pane keeps as they are
	}
	name := ls.String()
	t := g.now - g.rng.Int64N(9_000)
	switch k := g.rng.IntN(40); {
	case k < 6:
		t -= g.rng.Int64N(50_000)
	case k < 9:
		t -= g.rng.Int64N(400_000)
	case k == 9:
		t += 20_000 + g.rng.Int64N(200_000)
	case k < 14: // at an edge, or beside it
		t = t/10_000*10_000 + g.rng.Int64N(3) - 1
	}
	var out []point1
	for range n {
		v := float64(g.rng.IntN(200)) / 4
		if metric == "a" || metric == "e" {
			v = g.rng.Float64() // sums depend on the order, in the last bits
		}
		if metric == "b" || metric == "f" {
			if g.total[name] += v; g.rng.IntN(10) == 0 {
				g.total[name] = v
			}
			v = g.total[name]
		}
		switch g.rng.IntN(60) {
		case 0:
			v = math.Float64frombits(0x7ff0000000000002)
		case 1:
			v = math.Copysign(0, -1)
		}
		out = append(out, point1{series: name, ls: ls, t: t, v: v})
		if g.rng.IntN(25) > 0 { // else two at one time
			t += 1 + g.rng.Int64N(1_500)
		}
	}
	return out
}

func (g *scripted) barrier() move {
	v := move{what: "barrier", at: g.now - g.rng.Int64N(30_000)}
	switch k := g.rng.IntN(20); {
	case k == 0:
		v.at = math.MaxInt64
	case k == 1:
		v.at = math.MinInt64
	case k == 2:
		v.at = -g.rng.Int64N(1_000_000)
	case k == 3:
		v.at += g.rng.Int64N(2_000_000)
	case k < 8:
		v.at = v.at / 10_000 * 10_000
	case k < 11:
		v.at = v.at/10_000*10_000 - 1
	}
	switch g.rng.IntN(6) {
	case 0:
		v.scope = "x"
	case 1:
		v.scope = [...]string{"y", "nobody", "_unlabelled"}[g.rng.IntN(3)]
	}
	return v
}

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

func (p *play) outcome(a barrierAnswer, out modelOutcome) error {
	if p.m == nil || uint64(a.ClosedBuckets) == out.closed && a.CompleteThrough == out.through && a.Seq == uint64(len(p.tolds)) {
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

// warmQuestion is one expression that a plan answers, on the grid of its materialization.
type warmQuestion struct {
	expr     string
	metric   string
	pane     int64
	r, every int64
	by       func(labels.Labels) bool
}

func anySeries(labels.Labels) bool { return true }

func warmQuestions(planNo int) []warmQuestion {
	ofX := func(ls labels.Labels) bool { return ls.Get("experiment") == "x" }
	both := []warmQuestion{
		{"sum_over_time(a[20s])", "a", 10_000, 20_000, 10_000, anySeries},
		{"sum by (i) (count_over_time(a[40s]))", "a", 10_000, 40_000, 10_000, anySeries},
		{`stddev_over_time(a{i="1"}[20s])`, "a", 10_000, 20_000, 10_000, func(ls labels.Labels) bool { return ls.Get("i") == "1" }},
		{"rate(b[30s])", "b", 15_000, 30_000, 15_000, anySeries},
		{"sum(increase(b[1m]))", "b", 15_000, 60_000, 15_000, anySeries},
		{"resets(b[30s])", "b", 15_000, 30_000, 15_000, anySeries},
		{"count_over_time(c[20s])", "c", 10_000, 20_000, 10_000, anySeries},
		{`increase(f{experiment="x"}[20s])`, "f", 10_000, 20_000, 10_000, ofX},
	}
	if planNo == 0 {
		return append(both,
			warmQuestion{"max by (i) (max_over_time(e[40s]))", "e", 20_000, 40_000, 20_000, anySeries},
			warmQuestion{"quantile_over_time(0.9, e[20s])", "e", 20_000, 20_000, 20_000, anySeries},
			warmQuestion{"min_over_time(e[20s]) - avg_over_time(e[20s])", "e", 20_000, 20_000, 20_000, anySeries},
		)
	}
	return append(both,
		warmQuestion{"avg_over_time(a[1m])", "a", 60_000, 60_000, 60_000, anySeries},
		warmQuestion{"last_over_time(g[10s])", "g", 10_000, 10_000, 10_000, anySeries},
	)
}

// query puts some questions, each at one of the last steps.
func (p *play) query(ctx context.Context, choice uint64) error {
	qs := warmQuestions(p.plan)
	for n := range uint64(4) {
		q := qs[(choice+n)%uint64(len(qs))]
		now := int64(math.Floor(float64(p.w.clock.wall.Load()) / float64(q.every)))
		if err := p.ask(ctx, q, (now-int64((choice>>32+n)%12))*q.every); err != nil {
			return err
		}
	}
	return nil
}

// reread asks for what is recorded, at all of the last steps up to one.
func (p *play) reread(ctx context.Context, at int64) error {
	for _, q := range warmQuestions(p.plan) {
		for e := at; strings.HasPrefix(q.expr, "max by") && e > at-6*q.every; e -= q.every {
			if err := p.ask(ctx, q, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask puts one question, at e, and holds the answer against Prometheus' engine over what the model has.
func (p *play) ask(ctx context.Context, q warmQuestion, e int64) error {
	if p.m == nil {
		return nil
	}
	st := p.streamOf(q)
	if st == nil {
		return fmt.Errorf("no stream for %s", q.expr)
	}
	m := p.m.owner(st.spec.ID)
	unfinished, _ := p.w.unfinished()
	task := ""
	if q.metric == "f" {
		task = "x"
	}
	must := !unfinished[st.spec.ID] && m.answerable(st.spec.ID, e, q.r, task, q.by) &&
		!(strings.HasPrefix(q.expr, "stddev") && m.densest(st.spec.ID, e, q.r, q.by) > mostSamples)
	r, code, text := p.w.query(q.expr, e)
	p.asked.questions++
	if code != http.StatusOK || r.route != "warm" {
		if must {
			return fmt.Errorf("%s at %d must be answered from panes: status %d, route %q: %.300s", q.expr, e, code, r.route, text)
		}
		return nil
	}
	if !must {
		if q.metric == "a" && p.plan == 1 {
			return nil // the other stream of this metric may know
		}
		return fmt.Errorf("%s at %d was answered from panes, which cannot", q.expr, e)
	}
	p.asked.warm++
	data := m.storage(st.spec.ID)
	var sum float64
	for _, s := range data {
		for i, t := range s.T {
			if t > e-q.r && t <= e && !math.IsNaN(s.V[i]) {
				sum += math.Abs(s.V[i])
			}
		}
	}
	want := oracle.Ask(ctx, p.engine, oracle.Storage(data), oracle.Query{Expr: q.expr, Start: e})
	slices.Sort(r.outcome.Warnings)
	slices.Sort(r.outcome.Infos)
	if err := oracle.Compare(r.outcome, want, oracle.Terms{Sum: sum}); err != nil {
		return fmt.Errorf("%s at %d: %w", q.expr, e, err)
	}
	return nil
}

func (p *play) streamOf(q warmQuestion) *modelStream {
	for _, st := range p.m.planned() {
		if st.spec.PaneMillis == q.pane && slices.ContainsFunc(st.spec.Matchers, func(m plan.Matcher) bool { return m.Name == "__name__" && m.Value == q.metric }) {
			return st
		}
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
