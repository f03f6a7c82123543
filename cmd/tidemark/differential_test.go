package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
	"tidemark/transport/remotewrite"
)

// randomPlan plans what querytest's random expressions read: panes of the grid and of a minute per metric, and one stream
// over all jobs for selectors without a name.
func randomPlan() string {
	var b strings.Builder
	b.WriteString("materializations:\n")
	for _, name := range []string{"requests_total", "odd_counter", "gauge", "other_gauge", "temperature", "latency_bucket", "special"} {
		for _, pane := range []string{"15s", "1m"} {
			fmt.Fprintf(&b, "  - {name: planned_%s_%s, expr: 'sum_over_time(%s[%s])', every: %s}\n", name, pane, name, pane, pane)
		}
	}
	for _, pane := range []string{"15s", "30s"} {
		fmt.Fprintf(&b, "  - {name: planned_jobs_%s, expr: 'sum_over_time({job=~\".+\"}[%s])', every: %s}\n", pane, pane, pane)
	}
	return b.String()
}

// delivery is one sample on its way: when it is sent follows from due, not from its own time.
type delivery struct {
	series int
	i      int
	due    int64
}

// deliver returns the bodies of requests that bring all samples: late and out of order by up to five minutes, some requests
// twice, and some samples again with another value, which loses.
func deliver(rng *rand.Rand, all []querytest.Series) [][]byte {
	var todo []delivery
	for s := range all {
		lag := int64(1)
		if rng.IntN(2) == 0 {
			lag += rng.Int64N(300_000)
		}
		for i, at := range all[s].T {
			todo = append(todo, delivery{s, i, at + rng.Int64N(lag)})
		}
	}
	slices.SortStableFunc(todo, func(a, b delivery) int { return int(a.due - b.due) })
	var bodies [][]byte
	for len(todo) > 0 {
		// What is sent again must still be within the correction horizon of what came with it.
		n := 1
		for most := min(len(todo), 1+rng.IntN(600)); n < most && todo[n].due-todo[0].due < 120_000; {
			n++
		}
		body := remotewrite.Encode(request(all, todo[:n], 0))
		bodies = append(bodies, body)
		if len(bodies) == 1 || rng.IntN(8) == 0 {
			bodies = append(bodies, body) // a retry after an answer that was lost
		}
		if len(bodies) == 2 || rng.IntN(8) == 0 {
			bodies = append(bodies, remotewrite.Encode(request(all, todo[:1+rng.IntN(n)], 1)))
		}
		todo = todo[n:]
	}
	return bodies
}

// request gathers deliveries by series, in their order, with something added to the values.
func request(all []querytest.Series, ds []delivery, add float64) []remotewrite.Series {
	var out []remotewrite.Series
	at := map[int]int{}
	for _, d := range ds {
		k, ok := at[d.series]
		if !ok {
			k = len(out)
			at[d.series] = k
			out = append(out, remotewrite.Series{Labels: all[d.series].Labels})
		}
		v := all[d.series].V[d.i]
		if add != 0 && !math.IsNaN(v) {
			v += add
		}
		out[k].Samples = append(out[k].Samples, remotewrite.Sample{Time: all[d.series].T[d.i], Value: v})
	}
	return out
}

// rightReasons are the misses that a complete, published, planned stream may still have, with what the expression must ask
// for to deserve them.
var rightReasons = map[string]*regexp.Regexp{
	query.ReasonNeedsSamples: regexp.MustCompile(`(deriv|stddev_over_time|stdvar_over_time|mad_over_time|predict_linear)\(`),
}

// TestDifferential holds the contract through the whole service: what comes by Remote Write, out of order, repeated and with
// conflicts, answers after a barrier as Prometheus' engine does over the same samples, at the first question. It runs over
// fixed seeds and a fresh one; a failure names its seed.
func TestDifferential(t *testing.T) {
	const each = 800
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	compared := 0
	for _, seed := range []uint64{1, 2, 3, 4, fresh} {
		compared += differential(t, seed, each, panesOnly(), routes)
	}
	t.Logf("fresh seed %d: %d pairs compared, routes and misses: %v", fresh, compared, routes)
	if total := 5 * each; compared < 2000 || routes["warm"] < total*8/10 {
		t.Errorf("%d of %d pairs compared, routes and misses: %v", compared, total, routes)
	}
}

// contest says how a service is compared with the oracle.
type contest struct {
	config  string
	plans   bool                            // the configuration has pane streams
	through int64                           // of the barrier, ms; 0: beyond everything, negative: none is called
	adapt   func(*rand.Rand, *oracle.Query) // changes what is asked; may be nil
	miss    func(answered, oracle.Query) bool
	check   func(*testing.T, numbers) // of the service after the first half
}

// panesOnly plans everything, and has no exact source.
func panesOnly() contest {
	return contest{
		config: randomPlan(), plans: true, check: panesWereTried,
		miss: func(a answered, q oracle.Query) bool {
			may := rightReasons[a.miss]
			return may != nil && may.MatchString(q.Expr)
		},
	}
}

// timestampAtOffset is where Prometheus depends on its storage: its engine tells the storage of the offset, and drops it when it
// evaluates timestamp() of a selector with @. TSDB then has no samples at the time that is evaluated; the oracle's memory has.
var timestampAtOffset = regexp.MustCompile(`timestamp\([^()]*@[^()]*offset`)

func panesWereTried(t *testing.T, m numbers) {
	if lost := m.of(t, "pane_samples_total", "result", "late_uncorrectable"); lost != 0 {
		t.Errorf("%v samples came too late to be folded", lost)
	}
	if m.of(t, "pane_samples_total", "result", "duplicate") == 0 || m.of(t, "pane_samples_total", "result", "conflict") == 0 {
		t.Error("nothing was sent twice")
	}
}

func differential(t *testing.T, seed uint64, n int, how contest, routes map[string]int) (compared int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	all := querytest.RandomSeries(rng)
	flags := []string{"--projection.workers", fmt.Sprint(1 + rng.IntN(4))}
	if seed%2 == 0 {
		flags = append(flags, "--projection.checkpoint-interval", "64ms") // pieces are written all the while
	}
	v := startService(t, setup{config: how.config, flags: flags})
	for _, body := range deliver(rng, all) {
		if err := v.write.Send(t.Context(), body); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if through := how.through; through >= 0 {
		if through == 0 {
			through = 2 * querytest.Span
		}
		if o := v.barrier(through); o.Closed == 0 && how.plans && how.through == 0 {
			t.Fatalf("seed %d: the barrier closed nothing: %+v", seed, o)
		}
	}
	queries := make([]oracle.Query, n)
	for i := range queries {
		queries[i] = querytest.RandomQuery(rng)
		if how.adapt != nil {
			how.adapt(rng, &queries[i])
		}
	}
	engine, data := oracle.NewEngine(50_000_000), oracle.Storage(all)
	var mu sync.Mutex
	ask := func(i int) {
		q := queries[i]
		got := v.query(q)
		slices.Sort(got.Warnings)
		slices.Sort(got.Infos)
		want := oracle.Ask(t.Context(), engine, data, q)
		mu.Lock()
		defer mu.Unlock()
		if got.miss != "" {
			routes["miss "+got.miss]++
			if !how.miss(got, q) {
				t.Errorf("seed %d, query %d: %s: a miss for no good reason: %v", seed, i, q, got.Err)
			}
			return
		}
		compared++
		if got.Err == nil {
			routes[got.route]++
		} else {
			routes["error "+got.errorType]++
		}
		if oracle.Sketched(&got.Outcome) {
			routes["sketched"]++ // what is made of the values may be off by more than they are
			if !strings.Contains(q.Expr, "quantile_over_time") {
				t.Errorf("seed %d, query %d: %s: read from sketches", seed, i, q)
			}
			return
		}
		if got.route != "warm" && timestampAtOffset.MatchString(q.Expr) {
			return
		}
		if err := oracle.Compare(got.Outcome, want, q.Terms); err != nil {
			t.Errorf("seed %d, query %d: %s: %v", seed, i, q, err)
		}
	}
	inParallel := func(from, to int) {
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				for i := from + w; i < to; i += 2 {
					ask(i)
				}
			})
		}
		wg.Wait()
	}
	inParallel(0, n/2)
	how.check(t, v.numbers())
	v = v.restart() // from here on everything is read from disk
	inParallel(n/2, n)
	v.mustStop()
	return compared
}
