package pane

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// benchNode holds series × minutes of one sample each 15 s in panes of a minute, all closed; on disk if checkpointed.
func benchNode(b testing.TB, series, minutes int, checkpointed bool) (*node, func()) {
	b.Helper()
	ctx := context.Background()
	n, err := startNode(vfs.NewMem(), log.Options{}, Options{CheckpointInterval: -1})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := n.log.Append(ctx, benchPlan()); err != nil {
		b.Fatal(err)
	}
	sets := make([]labels.Labels, series)
	for i := range sets {
		sets[i] = labels.FromStrings("__name__", "m", "experiment", fmt.Sprint(i/50), "instance", fmt.Sprint(i), "job", fmt.Sprint(i%10))
	}
	for t := int64(15_000); t <= int64(minutes)*60_000; t += 15_000 {
		for from := 0; from < series; from += 2000 {
			var ss []sample
			for i := from; i < min(series, from+2000); i++ {
				ss = append(ss, sample{sets[i], t, float64(t/1000 + int64(i))})
			}
			if _, err := n.write(ctx, ss...); err != nil {
				b.Fatal(err)
			}
		}
		if checkpointed && t%120_000 == 0 {
			if err := n.panes.Checkpoint(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	if _, err := n.barrier(ctx, int64(minutes)*60_000); err != nil {
		b.Fatal(err)
	}
	if checkpointed {
		if err := n.panes.Checkpoint(ctx); err != nil {
			b.Fatal(err)
		}
	}
	return n, func() {
		if err := n.stop(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, checkpointed := range []bool{false, true} {
		b.Run(fmt.Sprintf("op=read/series=10000/panes=10/disk=%v", checkpointed), func(b *testing.B) {
			n, stop := benchNode(b, 10_000, 10, checkpointed)
			defer stop()
			req := Request{Stream: benchStream().ID, Matchers: matcher("m"), From: 0, To: 600_000}
			b.ReportAllocs()
			for b.Loop() {
				snap, err := n.panes.Read(context.Background(), []Request{req})
				if err != nil || len(snap.Answers[0].Series) != 10_000 {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/pane")
		})
	}
}
