package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
)

const (
	benchSeries  = 10_000
	benchScrapes = 120
	benchRequest = 2_000 // samples, as a sender batches them
)

// benchLog makes a log of counters that are scraped every 15 s, with a plan of panes of so many seconds over all of them.
func benchLog(b *testing.B, dir string, pane int) {
	b.Helper()
	l, err := log.Open(dir+"/log", log.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	rng := rand.New(rand.NewPCG(1, 2))
	refs, values := make([]log.SeriesRef, benchSeries), make([]float64, benchSeries)
	for i := range refs {
		ls := labels.FromStrings("__name__", "m", "job", fmt.Sprint(i%100), "instance", fmt.Sprintf("10.0.%d.%d:9100", i/250, i%250))
		if refs[i], err = l.Dictionary().Resolve(l.Dictionary().Hash(ls.Bytes(nil)), ls); err != nil {
			b.Fatal(err)
		}
	}
	bodies := []log.Body{&log.Start{Reason: log.StartProcess}, offlinePlan(map[string][]string{"first": {fmt.Sprintf("m/%d", pane)}})}
	for scrape := range benchScrapes {
		for from := 0; from < benchSeries; from += benchRequest {
			w := log.NewWriteBuilder()
			for i := from; i < from+benchRequest; i++ {
				values[i] += float64(rng.IntN(1000))
				w.Series(refs[i])
				w.Sample(int64(scrape)*15_000+int64(i%15_000), values[i])
			}
			bodies = append(bodies, w.Finish())
		}
		if _, err := l.AppendAll(ctx, bodies...); err != nil {
			b.Fatal(err)
		}
		bodies = nil
	}
	cancel()
	if err := errors.Join(<-done, l.Close()); err != nil {
		b.Fatal(err)
	}
}

// cpuTime is what the process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkFold(b *testing.B) {
	for _, pane := range []int{60, 300} {
		b.Run(fmt.Sprintf("pane=%ds", pane), func(b *testing.B) { benchFold(b, pane) })
	}
}

func benchFold(b *testing.B, pane int) {
	dir := b.TempDir()
	benchLog(b, dir, pane)
	// Beside the rate, what it costs: on a machine that does other things too, only that says something.
	var before time.Duration
	begin := func() { before = cpuTime(b) }
	report := func(b *testing.B) {
		n := float64(benchSeries*benchScrapes) * float64(b.N)
		b.ReportMetric(n/b.Elapsed().Seconds(), "samples/s")
		b.ReportMetric(float64(cpuTime(b)-before)/n, "cpu-ns/sample")
	}
	b.Run(fmt.Sprintf("op=read/series=%d", benchSeries), func(b *testing.B) {
		begin()
		for b.Loop() {
			l, err := log.OpenReadOnly(dir+"/log", log.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for r := l.NewReader(0); err == nil; _, err = r.Next() {
			}
			if !errors.Is(err, io.EOF) || l.Close() != nil {
				b.Fatal(err)
			}
		}
		report(b)
	})
	b.Run(fmt.Sprintf("op=replay/series=%d", benchSeries), func(b *testing.B) { // what a start does, from nothing, without checkpoints
		begin()
		for b.Loop() {
			o, err := openOffline(vfs.Default, dir, 0, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			if err := benchReplay(o); err != nil {
				b.Fatal(err)
			}
		}
		report(b)
	})
	b.Run(fmt.Sprintf("op=rebuild/series=%d", benchSeries), func(b *testing.B) {
		begin()
		for b.Loop() {
			r := &rebuild{fs: vfs.Default, path: dir, now: time.Now}
			if err := r.run(b.Context(), io.Discard, io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		report(b)
	})
}

func benchReplay(o *offline) error {
	store, err := bucket.Open("views", o.events.Identity(), bucket.Options{FS: vfs.NewMem()})
	if err != nil {
		return err
	}
	mode := foldMode{run: (*pane.Projection).RunReadOnly, options: func(*pane.Projection, log.Seq) projections.ReplayOptions { return projections.ReplayOptions{} }}
	err = o.replay(context.Background(), store, o.events.Head(), mode, func(*pane.Projection) error { return nil })
	return errors.Join(err, store.Close(), o.close())
}
