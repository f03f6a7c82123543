package main

import (
	"os"
	"strings"
	"testing"
)

// With --samples, bench replay makes a log by a service that it kills, starts that again, and replays, rebuilds and verifies what is
// there: all of it, and equal. Nothing is left behind.
func TestBenchReplayMakesALog(t *testing.T) {
	dir := t.TempDir()
	cmd := tidemarkIn(t, dir, tiny("bench", "replay", "--samples", "20000")...)
	cmd.Env = append(cmd.Environ(), "TMPDIR="+dir)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	figures := benchFigures(t, out.String())
	for _, name := range []string{
		"Write/series=50 samples/s", "ReadyAfterKill s", "Replay/series=50 samples/s", "Replay/live ratio", "Replay cpu-ns/sample", "Replay/heap second-half/first-half",
		"Rebuild samples/s", "Rebuild/live ratio", "RebuildVerify samples/s", "RebuildVerify/heap second-half/first-half",
	} {
		// A rebuild of so little may end before its heap is looked at twice.
		if v, ok := figures[name]; !ok || v <= 0 && !strings.Contains(name, "/heap") {
			t.Errorf("no figure %s in\n%s", name, &out)
		}
	}
	if strings.Count(errs.String(), "equal") != 2 || strings.Contains(errs.String(), "different") || !strings.Contains(out.String(), " 20000 ") {
		t.Errorf("%s%s", &out, &errs)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "tidemark-bench-") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}
