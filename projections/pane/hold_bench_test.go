package pane

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// oneJob knows a label set for every reference, all of one job.
type oneJob struct{}

func (oneJob) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	return labels.FromStrings("__name__", "m", "experiment", "e"), true
}

// activeShards holds series that have been scraped every 15 s for longer than the horizon, in panes of a minute.
func activeShards(b *testing.B, series int) *group {
	var g group
	for id := range g {
		g[id] = NewShard(id, oneJob{})
	}
	apply := func(ev *log.Event) {
		if _, err := g.apply(ev, false, nil); err != nil {
			b.Fatal(err)
		}
	}
	apply(&log.Event{Seq: 1, Body: benchPlan()})
	for i := range int64(60) {
		w := log.NewWriteBuilder()
		for ref := 1; ref <= series; ref++ {
			w.Series(log.SeriesRef(ref))
			w.Sample(i*15_000+int64(ref)%15_000, float64(ref)+float64(i*7)/4)
		}
		apply(&log.Event{Seq: log.Seq(i + 2), LogTime: i * 15_000, WallTime: i * 15_000, Body: w.Finish()})
		for _, s := range g {
			s.table = nil
			s.table = NewShard(0, nil).table // as checkpoints leave it
		}
	}
	return &g
}

// BenchmarkFreeze is how long a checkpoint holds the fold: the state of one shard is encoded in its worker. It also measures what
// an active series takes in memory.
func BenchmarkFreeze(b *testing.B) {
	for _, series := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("op=freeze/series=%d", series), func(b *testing.B) {
			before := liveHeap()
			g := activeShards(b, series)
			held := liveHeap() - before
			var longest time.Duration
			bytes := 0
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				n := len(g[i%Shards].Encode())
				longest = max(longest, time.Since(began))
				if i < Shards {
					bytes += n
				}
			}
			tail, n := 0, 0
			for _, s := range g {
				for i := range s.series {
					r := &s.series[i].raw
					tail += cap(r.old.b) + 8*cap(r.t) + 8*cap(r.v)
					n += r.old.n + len(r.t)
				}
			}
			b.ReportMetric(float64(tail)/float64(series), "B-tail/series")
			b.ReportMetric(float64(n)/float64(series), "samples/series")
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
			b.ReportMetric(float64(held)/float64(series), "B/series")
			b.ReportMetric(float64(bytes)/float64(min(b.N, Shards))*Shards/float64(series), "B-state/series")
		})
	}
}
