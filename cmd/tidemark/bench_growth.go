package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"tidemark/transport/remotewrite"
)

const (
	// growthSamples is how many samples are written, at least, for each number of series, and growthRounds how many of each series.
	growthSamples = 2_000_000
	growthRounds  = 4
	// growthBarriers is how many barriers are measured over the least and the most series.
	growthBarriers = 5
	// besideBatch is how many samples a write beside a barrier has, and besidePace how long after the one before it it comes.
	besideBatch = 500
	besidePace  = 5 * time.Millisecond
	besideAlone = 3 * time.Second
)

// growthFlags are the flags of bench growth.
type growthFlags struct {
	series  string
	samples int64
}

func newBenchGrowth(group *kingpin.CmdClause) command {
	f := &growthFlags{}
	c := group.Command("growth", "Measure what a sample, a new series and a barrier cost as series become more, each number of series on a service of its own, in a process of its own.")
	c.Flag("series", "Numbers of series, separated by commas.").Default("1000,10000,100000,1000000").StringVar(&f.series)
	c.Flag("samples", "Samples that are written for each, at least.").Default(strconv.Itoa(growthSamples)).Int64Var(&f.samples)
	return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
		numbers, err := f.numbers()
		if err != nil {
			return &exitError{exitUsage, err}
		}
		b := &bench{report: newReport(stdout), progress: stderr}
		for _, n := range numbers {
			if err := b.growth(ctx, n, f.samples); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (f *growthFlags) numbers() (out []int, err error) {
	for text := range strings.SplitSeq(f.series, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < besideBatch || n > maxLoadSeries {
			return nil, fmt.Errorf("--series: %q is no number from %d to %d", text, besideBatch, maxLoadSeries)
		}
		out = append(out, n)
	}
	if f.samples < 1 {
		return nil, errors.New("--samples must be positive")
	}
	return out, nil
}

// onChild runs measure against a service in a process of its own.
func onChild(ctx context.Context, config string, measure func(c *child, s *service, dir string) error) error {
	return inScratch(func(dir string) (err error) {
		c, err := startChild(ctx, dir, config)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.end(os.Interrupt)) }()
		s := newService(c.url, maxLoadSenders)
		defer s.close()
		return measure(c, s, dir)
	})
}

// growth measures one number of series: first samples, more samples, memory, and barriers.
func (b *bench) growth(ctx context.Context, series int, samples int64) error {
	shape := loadShape{series: series, labels: 10, perRequest: min(2000, series), senders: 8}
	name := fmt.Sprintf("/series=%d", series)
	if err := onChild(ctx, ownBenchConfig, func(c *child, s *service, _ string) error {
		l := newLoad(shape, loadEvery, time.Now())
		empty, err := s.liveHeap(ctx)
		if err != nil {
			return err
		}
		b.step("the first sample of each of %d series", series)
		cpu := c.processor()
		first, err := l.rounds(ctx, s, 1)
		if err != nil {
			return err
		}
		if err := applied(ctx, s, l.start); err != nil {
			return err
		}
		b.report.figure("GrowthNew"+name, first.samples, float64(first.samples)/first.elapsed.Seconds(), "series/s")
		b.report.figure("GrowthNew"+name, first.samples, (c.processor()-cpu).Seconds()*1e6/float64(first.samples), "cpu-µs/series")

		rounds := max(growthRounds, samples/int64(series))
		b.step("%d samples more of each", rounds)
		cpu = c.processor()
		began := time.Now()
		more, err := l.rounds(ctx, s, 1+rounds)
		if err != nil {
			return err
		}
		if err := applied(ctx, s, l.start); err != nil {
			return err
		}
		b.report.figure("GrowthWrite"+name, more.samples, float64(more.samples)/time.Since(began).Seconds(), "samples/s")
		b.report.figure("GrowthWrite"+name, more.samples, (c.processor()-cpu).Seconds()*1e9/float64(more.samples), "cpu-ns/sample")
		full, err := s.liveHeap(ctx)
		if err != nil {
			return err
		}
		b.report.figure("GrowthHeap"+name, first.samples, (full-empty)/float64(series), "B/series")
		return nil
	}); err != nil {
		return err
	}
	return onChild(ctx, ownBenchConfig, func(_ *child, s *service, _ string) error { return b.barriersBeside(ctx, s, shape) })
}

// liveHeap returns the bytes that are in use behind a collection of garbage.
func (s *service) liveHeap(ctx context.Context) (float64, error) {
	if err := s.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
		return 0, err
	}
	return s.metric(ctx, "go_memstats_heap_alloc_bytes")
}

// barriersBeside measures barriers that close one pane of each series, and small writes alone and while a barrier is under way.
func (b *bench) barriersBeside(ctx context.Context, s *service, shape loadShape) error {
	l := newLoad(shape, paneWidth, time.Now())
	small := newLoad(loadShape{series: besideBatch, labels: 10, perRequest: besideBatch, senders: 1}, time.Millisecond, time.Now())
	small.start = l.start + (growthBarriers+2)*paneWidth.Milliseconds() // beyond every barrier
	a := small.lanes[0]
	write := func() error {
		a.fill(small, 1<<62)
		a.sent = remotewrite.Compress(a.sent, a.body)
		return a.acknowledged(ctx, s.writer())
	}
	b.step("small writes alone")
	for end := time.Now().Add(besideAlone); time.Now().Before(end); {
		if err := write(); err != nil {
			return err
		}
		time.Sleep(besidePace)
	}
	alone := a.took
	a.loadResult = loadResult{}
	b.step("%d barriers over %d open panes, beside small writes", growthBarriers, shape.series)
	var took latencies
	for i := range int64(growthBarriers) {
		if _, err := l.rounds(ctx, s, i+1); err != nil {
			return err
		}
		begin := l.start + i*l.every
		if _, _, err := s.watermark(ctx, begin, publishTimeout); err != nil { // closes nothing, and returns when all panes are open
			return err
		}
		over := make(chan error, 1)
		go func() {
			answer, d, err := s.watermark(ctx, begin+l.every, publishTimeout)
			if took.add(d); err == nil && answer.ClosedBuckets < int64(shape.series) {
				err = fmt.Errorf("a barrier over %d open panes closed %d", shape.series, answer.ClosedBuckets)
			}
			over <- err
		}()
		for done := false; !done; {
			if err := write(); err != nil {
				return errors.Join(err, <-over)
			}
			select {
			case err := <-over:
				if done = true; err != nil {
					return err
				}
			case <-time.After(besidePace):
			}
		}
	}
	name := fmt.Sprintf("GrowthBarrier/panes=%d", shape.series)
	b.report.latency(name, &took, time.Millisecond, "ms")
	b.report.latency(name+"/write=alone", &alone, time.Millisecond, "ms")
	b.report.latency(name+"/write=beside", &a.took, time.Millisecond, "ms")
	return nil
}

// memoryEvery is the time between two looks of bench memory.
const memoryEvery = 2 * time.Second

// memoryConfig keeps a day of event time and a part of the log, so that what is kept is of one size after a while.
const memoryConfig = ownBenchConfig + `    retention: 1d
log: {retention: 5m, max_size: 512MiB}
`

// memoryFlags are the flags of bench memory.
type memoryFlags struct {
	shape    loadShape
	duration time.Duration
}

func newBenchMemory(group *kingpin.CmdClause) command {
	f := &memoryFlags{}
	c := group.Command("memory", "Write as fast as the service takes it, and compare what it takes of memory and disk, and how many goroutines it has, in the last third of the time with the third before. "+
		"A day of event time is kept, and five minutes of the log; the service remembers the requests of ten minutes, so that the first third fills what is to stay full if --duration is 30m or more.")
	c.Flag("series", "Series.").Default("10000").IntVar(&f.shape.series)
	c.Flag("senders", "Connections that write at one time.").Default("8").IntVar(&f.shape.senders)
	c.Flag("duration", "How long to write.").Default("30m").DurationVar(&f.duration)
	return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
		f.shape.labels, f.shape.perRequest = 10, 2000
		if err := f.shape.check(); err != nil {
			return err
		}
		if f.duration < 4*memoryEvery {
			return &exitError{exitUsage, fmt.Errorf("--duration must be at least %s", 4*memoryEvery)}
		}
		b := &bench{report: newReport(stdout), progress: stderr}
		return onChild(ctx, memoryConfig, func(_ *child, s *service, dir string) error { return b.memory(ctx, s, dir, f) })
	}}
}

// memory writes for a time and watches the service.
func (b *bench) memory(ctx context.Context, s *service, dir string, f *memoryFlags) error {
	looks := []struct {
		name, unit string
		look       func() (float64, error)
		seen       []float64
	}{
		{name: "resident", unit: "MB", look: func() (float64, error) { return s.metric(ctx, "process_resident_memory_bytes") }},
		{name: "heap", unit: "MB", look: func() (float64, error) { return s.metric(ctx, "go_memstats_heap_inuse_bytes") }},
		{name: "goroutines", unit: "goroutines", look: func() (float64, error) { return s.metric(ctx, "go_goroutines") }},
		{name: "disk", unit: "MB", look: func() (float64, error) {
			n, err := sizeOf(filepath.Join(dir, ownStorage))
			return float64(n), err
		}},
	}
	l := newLoad(f.shape, loadEvery, time.Now())
	b.step("writing to %d series for %s", f.shape.series, f.duration)
	type result struct {
		loadResult
		err error
	}
	over := make(chan result, 1)
	go func() {
		res, err := l.forDuration(ctx, s, f.duration)
		over <- result{res, err}
	}()
	every := time.NewTicker(memoryEvery)
	defer every.Stop()
	var res result
	for writing := true; writing; {
		select {
		case res = <-over:
			writing = false
		case <-every.C:
			for i := range looks {
				v, err := looks[i].look()
				if err != nil {
					return errors.Join(err, (<-over).err)
				}
				looks[i].seen = append(looks[i].seen, v)
			}
		}
	}
	if res.err != nil {
		return res.err
	}
	name := fmt.Sprintf("Memory/series=%d", f.shape.series)
	b.report.figure(name, res.samples, float64(res.samples)/res.elapsed.Seconds(), "samples/s")
	b.report.latency(name, &res.took, time.Millisecond, "ms")
	for _, k := range looks {
		n := len(k.seen)
		if n < 3 {
			return fmt.Errorf("%d looks in %s are too few to compare", n, f.duration)
		}
		before, last := slices.Max(k.seen[n/3:2*n/3]), slices.Max(k.seen[2*n/3:])
		per := 1.0
		if k.unit == "MB" {
			per = 1 << 20
		}
		b.report.figure(name+"/"+k.name, res.samples, last/per, k.unit)
		b.report.figure(name+"/"+k.name, res.samples, last/before, "last-third/middle-third")
	}
	return nil
}
