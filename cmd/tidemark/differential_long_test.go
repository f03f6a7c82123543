package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"tidemark/projections/query/querytest"
)

// TestDifferential_Long compares at least as many pairs of a random query and random data with Prometheus' engine as DIFFERENTIAL_PAIRS says,
// by all routes, from the seed DIFFERENTIAL_SEED on, and appends what it did to the ledger of the campaign: `make differential`.
func TestDifferential_Long(t *testing.T) {
	if os.Getenv("DIFFERENTIAL_PAIRS") == "" {
		t.Skip("DIFFERENTIAL_PAIRS is not set; `make differential` sets it")
	}
	pairs, err := strconv.Atoi(os.Getenv("DIFFERENTIAL_PAIRS"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.ParseUint(os.Getenv("DIFFERENTIAL_SEED"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	const each = 800
	local := contest{config: "exact: {local: true}", adapt: offGrid, miss: neverMisses, check: func(*testing.T, numbers) {}}
	hybrid := contest{config: someOfThePlan() + "exact: {local: true}\n", plans: true, miss: neverMisses, adapt: offGrid, check: func(*testing.T, numbers) {}}
	live, half := panesOnly(), panesOnly()
	live.config, live.through = live.config+"query: {unpublished: live}\n", -1
	half.config, half.through = half.config+"query: {unpublished: live}\n", querytest.Span/2
	contests := []contest{panesOnly(), local, hybrid, live, half}

	began := time.Now()
	x := ledgerLine{Date: began.UTC().Format(time.RFC3339), Mode: "differential", From: first, Commit: os.Getenv("CAMPAIGN_COMMIT"), Counts: map[string]uint64{}}
	routes := map[string]int{}
	for seed := first; x.Counts["pairs"] < uint64(pairs) && !t.Failed(); seed++ {
		for _, how := range contests {
			x.Counts["pairs"] += uint64(differential(t, seed, each, how, routes))
		}
		x.To = seed
		t.Logf("seed %d: %d pairs in %s", seed, x.Counts["pairs"], time.Since(began).Round(time.Second))
	}
	for route, n := range routes {
		x.Counts[route] = uint64(n)
	}
	x.Seconds = int64(time.Since(began).Seconds())
	if t.Failed() {
		x.Findings = []string{fmt.Sprintf("a difference with seed %d", x.To)}
	}
	if err := (ledger{filepath.Join("..", "..", "testdata", "campaign.jsonl")}).add(x); err != nil {
		t.Fatal(err)
	}
}
