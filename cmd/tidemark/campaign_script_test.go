package main

// Scripts of the campaign. A seed gives one, to the last sample; what the disk does to it is another choice.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
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
