package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// TestBenchPeers runs the comparison on little, with what is installed: every figure of every one is there, and Tidemark's answers were
// warm, or it fails.
func TestBenchPeers(t *testing.T) {
	want := []string{peerTidemark}
	if _, err := exec.LookPath("prometheus"); err == nil {
		want = append(want, peerPrometheus)
	}
	s := newSite(t, "")
	code, out, errs := s.tool("bench", "peers", "--series=300", "--history=10m", "--runs=1", "--requests=1", "--with=tidemark,prometheus")
	if code != exitOK {
		t.Fatalf("exit code %d\n%s", code, lastLines(errs, 10))
	}
	rows, columns := 0, len(want)+len(want)-1 // of each, and how Tidemark compares
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| |") {
			continue
		}
		rows++
		if n := strings.Count(line, "|") - 2; n != columns || strings.Contains(line, " 0 (") || strings.Contains(line, "NaN") || strings.Contains(line, "Inf") {
			t.Errorf("%d figures, want %d: %s", n, columns, line)
		}
	}
	if rows != 6+4*len(dashboard) {
		t.Errorf("%d rows:\n%s", rows, out)
	}
}

// The buckets of a histogram never grow less than those of lower bounds, so that a quantile of them is one.
func TestDashboardLoadIsWhatItSays(t *testing.T) {
	l := newDashboardLoad(loadShape{series: 900, labels: 10, perRequest: 100, senders: 2}, 15*time.Second, time.Now())
	if len(l.sets) != 900 || len(l.lanes) != 2 || l.lanes[1].first != 450 {
		t.Fatalf("%d series, %d lanes", len(l.sets), len(l.lanes))
	}
	for h := range 900 / 3 / len(dashboardEdges) {
		last := -1.0
		for edge := range dashboardEdges {
			v := 0.0
			for round := range int64(20) {
				v = dashboardValue((h*len(dashboardEdges)+edge)*3+2, round, v, 0)
			}
			if v < last {
				t.Fatalf("histogram %d: %g at bound %d, %g before", h, v, edge, last)
			}
			last = v
		}
	}
}

// What is out of bounds, and who is not known, is refused before anything is started.
func TestBenchPeersRefusesWhatItCannotDo(t *testing.T) {
	for _, args := range [][]string{{"--series=10"}, {"--runs=0"}, {"--history=1m"}, {"--with=nobody"}} {
		app := kingpin.New("tidemark", "").Terminate(nil)
		c := newBenchPeers(app.Command("bench", ""))
		if _, err := app.Parse(append([]string{"bench", "peers"}, args...)); err != nil {
			t.Fatal(err)
		}
		err := c.run(context.Background(), &strings.Builder{}, &strings.Builder{})
		if e, ok := err.(*exitError); !ok || e.code != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}
