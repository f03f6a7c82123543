package master

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
)

// BenchmarkList lists pages of 30,000 experiments, of which 1 % are written, while rounds, compactions and upkeep run.
func BenchmarkList(b *testing.B) {
	for _, q := range []struct {
		name string
		req  ListRequest
	}{
		{"op=name", ListRequest{Limit: 50, Offset: 15_000}}, {"op=last_write", ListRequest{Limit: 50, Sort: "-last_write_ms", Rates: 48}},
		{"op=search", ListRequest{Limit: 50, Search: "999"}},
	} {
		b.Run(q.name+"/experiments=30000", func(b *testing.B) {
			r := startBench(b)
			b.ReportAllocs()
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				if _, err := r.master.List(context.Background(), q.req); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			r.stop()
		})
	}
}

// startBench runs what maintains a table of 30,000, without a pause.
func startBench(b *testing.B) *rig {
	r := startRigOn(b, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: time.Hour})
	const n = 30_000
	r.many(n)
	r.round()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	loop := func(f func(i int) error) {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := f(i); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	loop(func(i int) error {
		seq, err := r.events.Append(ctx, &log.Tick{})
		if err != nil {
			return err
		}
		r.model.mu.Lock()
		for k := range n / 100 {
			o := r.model.x[numbered((i*n/100+k)%n)]
			o.Samples++
			o.Corrections, o.LastCorrectedAt = 20, seq
			o.Version = seq
		}
		r.model.mu.Unlock()
		_, err = r.master.Round(ctx)
		return err
	})
	loop(func(i int) error { _, _, err := r.master.compact(ctx, numbered(i%n)); return err })
	loop(func(int) error { return r.master.Upkeep(ctx) })
	stop := r.stop
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		stop()
	})
	return r
}
