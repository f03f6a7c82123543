//go:build planted

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// plantedBugs are the bugs that planted_on.go files name, each with the modes of the campaign that find it soonest.
var plantedBugs = []struct{ name, modes string }{
	{"ack-before-sync", "crash"},
	{"fatal-returns", "fault"},
	{"no-directory-sync", "crash"},
	{"head-ahead", "crash"},
	{"short-accepted", "damage"},
	{"random-seed", "model"},
	{"recent-lost", "model crash"},
	{"tick-late", "late model"},
	{"truncated-division", "model"},
	{"checkpoint-ahead", "crash model"},
	{"late-after", "late"},
	{"barrier-wide", "late"},
	{"fast-clock", "model"},
	{"unsorted", "late"},
	{"tail-returns", "model crash"},
	{"conflict-wins", "late"},
	{"duplicate-touches", "late model"},
	{"downtime-closes", "late model"},
	{"retention-eager", "model"},
	{"dirty-forgotten", "model"},
	{"state-apart", "crash"},
	{"compaction-loses", "model"},
	{"pane-local", "model"},
	{"map-order", "model"},
	{"stale-counts", "model"},
	{"dedupe-at-door", "late"},
}

// plantedTime is what the campaign may take to find one.
const plantedTime = 5 * time.Minute

// TestPlanted plants the bugs one by one and holds that the campaign finds each in time. PLANTED names some, or is "three": those whose
// turn it is by the date.
func TestPlanted(t *testing.T) {
	l := ledger{path: filepath.Join(root(t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		l.path = path
	}
	which := os.Getenv("PLANTED")
	day := int(time.Now().Unix() / 86400)
	for i, b := range plantedBugs {
		turn := (i-3*day%len(plantedBugs)+len(plantedBugs))%len(plantedBugs) < 3
		if which == "three" && !turn || which != "three" && which != "" && !strings.Contains(" "+which+" ", " "+b.name+" ") {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Setenv("TIDEMARK_PLANTED", b.name)
			t.Setenv("CAMPAIGN_FIRST", "1") // finding is enough
			if b.modes == "fault" {
				t.Setenv("CAMPAIGN_SLICE", "1") // more seeds, with a few points each
			}
			began := time.Now()
			found, seeds := findPlanted(t, strings.Fields(b.modes), began)
			took := time.Since(began)
			if found == "" || took > plantedTime {
				t.Fatalf("not found in %s, with %d seeds; %.300s", took.Round(time.Second), seeds, found)
			}
			t.Logf("found after %s, with seed %d: %.300s", took.Round(time.Millisecond), seeds, found)
			if which == "three" {
				return
			}
			if err := l.add(ledgerLine{
				Date: began.UTC().Format(time.RFC3339), Mode: "planted " + b.name, From: 1, To: seeds, Commit: os.Getenv("CAMPAIGN_COMMIT"),
				Seconds: int64(took.Seconds() + 1), Counts: map[string]uint64{"found": 1}, Found: fmt.Sprintf("%.300s", found),
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// findPlanted tries seed after seed, in each of the modes by turns, until there is a finding.
func findPlanted(t *testing.T, modes []string, began time.Time) (finding string, seeds uint64) {
	for seed := uint64(1); time.Since(began) < plantedTime; seed++ {
		for _, name := range modes {
			for _, m := range campaignModes {
				if m.name != name {
					continue
				}
				if r := runChunk(t, m, seed, seed); len(r.Findings) > 0 {
					return r.Findings[0], seed
				}
			}
		}
	}
	return "", 0
}
