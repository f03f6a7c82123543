package window_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemark/log"
	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
)

const manyRules = `
materializations:
  - {name: sums, expr: 'sum by (i) (sum_over_time(m[1m]))', every: 15s, layout: full_window}
  - {name: rates, expr: 'rate(n[45s])', every: 15s, layout: full_window}
  - {name: newest, expr: 'm', every: 30s, layout: full_window}
  - {name: pair, expr: 'sum(count_over_time(m[30s])) / sum(count_over_time(n[30s]))', every: 30s, layout: full_window}
  - {name: earlier, expr: 'max_over_time(m[30s] offset 1m)', every: 15s, layout: full_window}
  - {name: sub, expr: 'max_over_time(sum(m)[1m:15s])', every: 15s, layout: full_window}
  - {name: top, expr: 'max_over_time(sums[1m]) - on (i) min_over_time(newest[1m])', every: 30s, layout: full_window}
  - {name: gone, expr: 'absent(m)', every: 30s, layout: full_window}
  - {name: best, expr: 'topk(1, sum by (i) (sum_over_time(m[1m])) * 1)', every: 30s, layout: full_window}
  - {name: panes, expr: 'sum(m)', every: 15s}
`

// TestW1_Differential holds that answers by name are those of Prometheus' rules over the same samples, whatever was written
// late, recorded meanwhile, restarted or lost by a crash; and that recording changes no digest.
func TestW1_Differential(t *testing.T) {
	fresh := uint64(time.Now().UnixNano())
	recorded, evaluated, missed := 0, 0, 0
	for _, seed := range []uint64{1, 2, 3, fresh} {
		rng := rand.New(rand.NewPCG(seed, 3))
		r, plain := newRig(t), newRig(t) // the second never records and never stops
		for _, x := range []*rig{r, plain} {
			x.configure(manyRules)
		}
		h := &history{rng: rng, at: map[string]int64{}}
		for range 40 {
			h.step(r, plain)
			if rng.IntN(4) == 0 {
				a, b, c := h.ask(r)
				recorded, evaluated, missed = recorded+a, evaluated+b, missed+c
			}
		}
		for _, x := range []*rig{r, plain} {
			x.barrier(h.newest)
		}
		r.settle()
		for range 10 {
			a, b, c := h.ask(r)
			recorded, evaluated, missed = recorded+a, evaluated+b, missed+c
		}
		if a, b := r.digest(), plain.digest(); a != b {
			t.Errorf("seed %d: W5: digest %s, and without recording %s", seed, a, b)
		}
		r.stop()
		plain.stop()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("fresh seed %d: %d steps recorded, %d evaluated, %d misses", fresh, recorded, evaluated, missed)
	if recorded < 500 || evaluated < 200 || missed < 5 {
		t.Error("the generator has lost its force")
	}
}

// wholeExprs are read from records because they are recorded as they are, or nearly so.
var wholeExprs = []string{
	"sum by (i) (sum_over_time(m[1m]))",
	"sum(sum_over_time(m[1m]))",
	`sum by (i) (sum_over_time(m{i="a"}[1m])) / 2`,
	`sum(sum_over_time(m{i!="b"}[1m]))`,
	"rate(n[45s])",
	"sum(count_over_time(m[30s])) / sum(count_over_time(n[30s]))",
	"max_over_time(sum(m)[1m:15s]) or vector(1)",
	"absent(sum by (i) (sum_over_time(m[1m])))",
	"max_over_time(sum by (i) (sum_over_time(m[1m]))[2m:30s])",
	"topk(1, sum by (i) (sum_over_time(m[1m])) * 1)",
}

// history makes random input, the same for two rigs.
type history struct {
	rng    *rand.Rand
	at     map[string]int64
	newest int64
}

func (h *history) step(r, plain *rig) {
	rng := h.rng
	switch k := rng.IntN(20); {
	case k < 10:
		var batch []querytest.Series
		for _, name := range []string{"m", "n"} {
			for _, i := range []string{"a", "b", "c"} {
				if rng.IntN(4) > 0 {
					batch = append(batch, h.samples(name, i, 1+rng.IntN(4)))
				}
			}
		}
		r.write(batch...)
		plain.write(batch...)
	case k < 12: // late, within the horizon
		name, i := []string{"m", "n"}[rng.IntN(2)], []string{"a", "b", "c"}[rng.IntN(3)]
		if last := h.at[name+i]; last > 20_000 {
			s := one(name, i, float64(last-1-rng.Int64N(min(last-1, 120_000))), float64(rng.IntN(50)))
			if have := r.ledger[s.Labels.String()]; have != nil && !slices.Contains(have.T, s.T[0]) {
				r.write(s)
				plain.write(s)
			}
		}
	case k < 14:
		t := h.newest - rng.Int64N(30_000)
		r.barrier(t)
		plain.barrier(t)
	case k < 17:
		r.round(time.Duration(rng.IntN(20)) * time.Second)
	case k < 18:
		if err := r.panes.Checkpoint(r.ctx); err != nil {
			r.t.Fatal(err)
		}
	case k < 19:
		r.stop()
		r.start()
		plain.append(&log.Start{Reason: log.StartProcess})
	default:
		r.crash([]int{0, 50, 100}[rng.IntN(3)], rng)
		plain.append(&log.Start{Reason: log.StartProcess})
	}
}

// samples continues a series.
func (h *history) samples(name, i string, n int) querytest.Series {
	s := one(name, i)
	for range n {
		h.at[name+i] += 1000 + h.rng.Int64N(20_000)
		s.T, s.V = append(s.T, h.at[name+i]), append(s.V, float64(h.rng.IntN(100)))
		h.newest = max(h.newest, h.at[name+i])
	}
	return s
}

// ask asks some queries over the time so far.
func (h *history) ask(r *rig) (recorded, evaluated, missed int) {
	if h.newest < 60_000 {
		return 0, 0, 0
	}
	all := r.oracle(-300_000, h.newest+60_000)
	for _, name := range []string{"sums", "rates", "newest", "pair", "earlier", "sub", "top", "gone", "best", "panes"} {
		from := h.rng.Int64N(h.newest)
		to := min(from+h.rng.Int64N(120_000), h.newest)
		q := over(name, from, to, 1000*(1+h.rng.Int64N(40)))
		switch h.rng.IntN(4) {
		case 0:
			q.Expr = fmt.Sprintf("count_over_time(%s[1m])", name)
		case 1:
			q.Expr = fmt.Sprintf("sum(%s) or absent(%s)", name, name)
		}
		q.Terms.Sum = 1e5
		if h.rng.IntN(2) == 0 {
			q.Expr = wholeExprs[h.rng.IntN(len(wholeExprs))]
			q.Start -= q.Start % 30_000
			q.End, q.Step = max(q.End, q.Start), 30_000*(1+h.rng.Int64N(2))
		}
		res, err := r.check(q, all)
		var miss *query.MissError
		if errors.As(err, &miss) {
			missed++
			continue
		}
		recorded, evaluated = recorded+res.Stats.Recorded, evaluated+res.Stats.Evaluated
		res.Close()
	}
	return recorded, evaluated, missed
}
