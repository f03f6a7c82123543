package pane

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// oneJob knows a label set for every reference, all of one job.
type oneJob struct{}

func (oneJob) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	return labels.FromStrings("__name__", "m", "experiment", "e"), true
}

// activeShards holds series that have been scraped every 15 s for longer than the horizon, in panes of a minute.
func activeShards(b testing.TB, series int) *group {
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

// BenchmarkFreeze is how long encoding the state of one shard takes, which is the better part of what a checkpoint holds its worker for.
// It also measures what an active series takes in memory.
func BenchmarkFreeze(b *testing.B) {
	for _, series := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("op=freeze/series=%d", series), func(b *testing.B) {
			before := liveHeap()
			g := activeShards(b, series)
			held := liveHeap() - before
			var longest, worked time.Duration
			bytes := 0
			var room []byte
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := 0; b.Loop(); i++ {
				began, used := time.Now(), threadTime(b)
				room = g[i%Shards].AppendState(room[:0])
				n := len(room)
				longest, worked = max(longest, time.Since(began)), max(worked, threadTime(b)-used)
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
			b.ReportMetric(float64(worked.Microseconds())/1000, "cpu-ms-longest")
			b.ReportMetric(float64(held)/float64(series), "B/series")
			b.ReportMetric(float64(bytes)/float64(min(b.N, Shards))*Shards/float64(series), "B-state/series")
		})
	}
}

// threadTime is what this thread has used of the processor.
func threadTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(1, &u); err != nil { // RUSAGE_THREAD
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHold is for how long a checkpoint holds a worker while all workers fold as fast as they can: each operation is a checkpoint of
// all shards. On a machine that does other things too, that
// counts as well.
func BenchmarkHold(b *testing.B) {
	const series, perWrite = 100_000, 2_000
	b.Run(fmt.Sprintf("op=checkpoint/series=%d", series), func(b *testing.B) {
		ctx := context.Background()
		n, err := startNode(vfs.NewMem(), log.Options{}, Options{CheckpointInterval: -1})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := n.log.Append(ctx, benchPlan()); err != nil {
			b.Fatal(err)
		}
		refs := make([]log.SeriesRef, series)
		for i := range refs {
			ls := labels.FromStrings("__name__", "m", "experiment", fmt.Sprint(i/50), "instance", fmt.Sprint(i))
			if refs[i], err = n.log.Dictionary().Resolve(n.log.Dictionary().Hash(ls.Bytes(nil)), ls); err != nil {
				b.Fatal(err)
			}
		}
		scrape := func(k int64) {
			for from := 0; from < series; from += perWrite {
				w := log.NewWriteBuilder()
				for i := from; i < from+perWrite; i++ {
					w.Series(refs[i])
					w.Sample(k*15_000+int64(i)%15_000, float64(i)+float64(k*7)/4)
				}
				seq, err := n.log.Append(ctx, w.Finish())
				if err == nil && from == 0 {
					err = n.runner.Wait(ctx, seq)
				}
				if err != nil {
					b.Error(err)
				}
			}
		}
		k := int64(0)
		for ; k < 45; k++ { // until the horizon has passed
			scrape(k)
		}
		over, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for ; ; k++ {
				select {
				case <-over:
					return
				default:
					scrape(k)
				}
			}
		}()
		b.ResetTimer()
		for b.Loop() {
			if err := n.panes.Checkpoint(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		close(over)
		<-done
		held := n.panes.ckpt.held.Load()
		b.ReportMetric(float64(held)/1e6, "ms-longest")
		if err := n.stop(); err != nil {
			b.Fatal(err)
		}
	})
}
