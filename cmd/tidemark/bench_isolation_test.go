package main

import (
	"strings"
	"testing"
)

// bench isolation measures each side alone and beside the other, by the routes that it names, and leaves nothing behind.
func TestBenchIsolation(t *testing.T) {
	dir := t.TempDir()
	cmd := tidemarkIn(t, dir, "bench", "isolation", "--series=100", "--senders=2", "--askers=4", "--duration=200ms")
	cmd.Env = append(cmd.Environ(), "TMPDIR="+t.TempDir())
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	figures := benchFigures(t, out.String())
	for _, name := range []string{
		"Isolation/write/beside=nothing p99-ms", "Isolation/query=warm/beside=nothing p99-ms", "Isolation/query=local/beside=nothing p99-ms",
		"Isolation/write/beside=warm p99-ms", "Isolation/write/beside=warm p99-ratio", "Isolation/write/beside=warm queries/s",
		"Isolation/write/beside=local p99-ms", "Isolation/write/beside=local p99-ratio", "Isolation/write/beside=local queries/s",
		"Isolation/query=warm/beside=writes p99-ms", "Isolation/query=warm/beside=writes p99-ratio", "Isolation/query=warm/beside=writes samples/s",
		"Isolation/query=local/beside=writes p99-ms", "Isolation/query=local/beside=writes p99-ratio", "Isolation/query=local/beside=writes samples/s",
	} {
		if figures[name] <= 0 {
			t.Errorf("%s: %v", name, figures[name])
		}
	}
}
