package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tidemark/projections/query/oracle"
)

// copyWasTried says that the copy met what it has to decide.
func copyWasTried(t *testing.T, m numbers) {
	if m.of(t, "sample_repeated_total") == 0 || m.of(t, "sample_appended_total", "order", "late") == 0 {
		t.Error("nothing was sent twice, or nothing out of order")
	}
	if refused := m.of(t, "sample_refused_total"); refused != 0 {
		t.Errorf("%v samples were refused", refused)
	}
}

// offGrid asks at times of no grid, half of the time.
func offGrid(rng *rand.Rand, q *oracle.Query) {
	if rng.IntN(2) == 0 {
		return
	}
	q.Start += rng.Int64N(15_000)
	if q.Step > 0 {
		q.End = max(q.Start, q.End)
		q.Step += 125 * rng.Int64N(16) // seconds that are exact
	}
}

func neverMisses(answered, oracle.Query) bool { return false }

// Without a plan and without an upstream every expression is answered, at any time, as Prometheus does over the same samples, the
// first value of each time: from the exact copy.
func TestDifferential_Local(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	compared := 0
	how := contest{config: "exact: {local: true}", adapt: offGrid, miss: neverMisses, check: copyWasTried}
	for _, seed := range []uint64{11, fresh} {
		compared += differential(t, seed, each, how, routes)
	}
	t.Logf("fresh seed %d: %d pairs compared, routes: %v", fresh, compared, routes)
	if compared != 2*each || routes["local"] < compared*8/10 || routes["hybrid"] > 0 {
		t.Errorf("%d pairs compared, routes: %v", compared, routes)
	}
}

// Where some parts of an expression are planned and others are not, or not at these times, panes and the exact copy answer together.
func TestDifferential_Hybrid(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	compared := 0
	var some []string
	for _, line := range strings.Split(randomPlan(), "\n") {
		if !strings.Contains(line, "planned_gauge") && !strings.Contains(line, "latency") && !strings.Contains(line, "jobs") {
			some = append(some, line)
		}
	}
	how := contest{
		config: strings.Join(some, "\n") + "\nexact: {local: true}\n", plans: true, miss: neverMisses,
		check: func(t *testing.T, m numbers) {
			panesWereTried(t, m)
			copyWasTried(t, m)
		},
		adapt: func(rng *rand.Rand, q *oracle.Query) {
			if rng.IntN(4) == 0 {
				offGrid(rng, q)
			}
		},
	}
	for _, seed := range []uint64{12, fresh} {
		compared += differential(t, seed, each, how, routes)
	}
	t.Logf("fresh seed %d: %d pairs compared, routes: %v", fresh, compared, routes)
	if compared != 2*each || routes["local"] < each/10 || routes["hybrid"] < each/10 || routes["warm"] < each/10 {
		t.Errorf("%d pairs compared, routes: %v", compared, routes)
	}
}
