package main

import (
	"strings"
	"testing"
)

// bench growth and bench memory print every figure that they name.
func TestBenchGrowthAndMemory(t *testing.T) {
	for _, x := range []struct {
		args  []string
		wants []string
	}{
		{
			[]string{"growth", "--series=500,600", "--samples=3000"},
			[]string{
				"GrowthNew/series=500 series/s", "GrowthNew/series=600 cpu-µs/series", "GrowthWrite/series=500 samples/s", "GrowthWrite/series=600 cpu-ns/sample",
				"GrowthHeap/series=600 B/series", "GrowthBarrier/panes=600 p99-ms", "GrowthBarrier/panes=600/write=alone p99-ms", "GrowthBarrier/panes=600/write=beside p99-ms",
			},
		},
		{
			[]string{"memory", "--series=500", "--senders=2", "--duration=12s"},
			[]string{
				"Memory/series=500 samples/s", "Memory/series=500/resident MB", "Memory/series=500/resident last-third/middle-third", "Memory/series=500/heap last-third/middle-third",
				"Memory/series=500/goroutines last-third/middle-third", "Memory/series=500/disk last-third/middle-third",
			},
		},
	} {
		cmd := tidemarkIn(t, t.TempDir(), append([]string{"bench"}, x.args...)...)
		cmd.Env = append(cmd.Environ(), "TMPDIR="+t.TempDir())
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s%s", err, &out, &errs)
		}
		figures := benchFigures(t, out.String())
		for _, name := range x.wants {
			if figures[name] <= 0 {
				t.Errorf("%s: %v in\n%s", name, figures[name], &out)
			}
		}
	}
}
