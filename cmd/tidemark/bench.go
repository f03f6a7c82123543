package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/model"

	"tidemark/log"
)

// benchConfig is what a server needs to be measured. ownBenchConfig is the tidemark.yml of bench's own, which keeps no exact copy:
// what is measured is the log and the panes.
const benchConfig = `materializations:
  - name: bench
    expr: sum by (group) (rate(tidemark_bench[5m]))
    every: 1m
`

const ownBenchConfig = "exact: {local: false}\n" + benchConfig

// paneConfig is ownBenchConfig with panes of another width.
func paneConfig(pane time.Duration) string {
	return strings.Replace(ownBenchConfig, "every: 1m", "every: "+model.Duration(pane).String(), 1)
}

// benchFlags are the flags of the load tools.
type benchFlags struct {
	url      string
	shape    loadShape
	duration time.Duration // of the load
	limit    time.Duration // of each query
	requests int           // of each query
	rounds   int           // barriers
	samples  int64         // of a log that is made; 0: there is one
	pane     time.Duration // of the streams of a log that is made
	expr     string
	atMillis int64
	span     time.Duration
	step     time.Duration
	dir      string
}

// newBench returns the load tools. Without --url each starts a server of its own in a temporary directory.
func newBench(app *kingpin.Application) []command {
	group := app.Command("bench", "Load tools. Figures are printed in the format of Go's benchmarks.")
	sub := func(name, help string, flags func(*kingpin.CmdClause, *benchFlags), run func(*benchFlags, context.Context, *bench) error) command {
		f := &benchFlags{}
		c := group.Command(name, help)
		flags(c, f)
		return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
			if err := f.check(); err != nil {
				return err
			}
			return run(f, ctx, &bench{report: newReport(stdout), progress: stderr})
		}}
	}
	return []command{
		newBenchPeers(group),
		newBenchIsolation(group),
		newBenchGrowth(group),
		newBenchMemory(group),
		sub("write", "Write for a time, then check that everything acknowledged is there.", func(c *kingpin.CmdClause, f *benchFlags) {
			f.urlFlag(c)
			f.loadFlags(c, 2000)
			f.durationFlag(c)
		}, (*benchFlags).write),
		sub("query", "Write series and ask warm queries over them; or, with --query, ask one of your own.", func(c *kingpin.CmdClause, f *benchFlags) {
			f.urlFlag(c)
			f.loadFlags(c, 2000)
			f.queryFlags(c)
			c.Flag("query", "Ask this instead of writing series.").StringVar(&f.expr)
			c.Flag("at-ms", "With --query: its time, or its end, in milliseconds since the epoch.").Int64Var(&f.atMillis)
			c.Flag("range", "With --query: how far before --at-ms a range query begins. 0 = an instant query.").Default("0s").DurationVar(&f.span)
			c.Flag("step", "With --range: its step.").Default("1m").DurationVar(&f.step)
		}, (*benchFlags).query),
		sub("barrier", "Open one pane for each series, and close all by a barrier; again and again.", func(c *kingpin.CmdClause, f *benchFlags) {
			f.urlFlag(c)
			f.loadFlags(c, 2000)
			f.roundsFlag(c)
		}, (*benchFlags).barrier),
		sub("replay", "Fold a log, which no process has open, into fresh panes. With --samples, make one first, and measure besides how long "+
			"a start after kill -9 takes, and what a rebuild and its verification make of it.", func(c *kingpin.CmdClause, f *benchFlags) {
			storageFlag(c, &f.dir)
			f.loadFlags(c, 2000)
			c.Flag("samples", "Make a log of so many samples, of --series series, in a temporary directory, by a service that is then killed. 0 = take the log in --storage.path.").
				Default("0").Int64Var(&f.samples)
			c.Flag("pane", "With --samples: the width of the panes, which divides 5m. A sample comes every 15s.").Default("1m").DurationVar(&f.pane)
		}, (*benchFlags).replay),
		sub("all", "Measure writing, the log's size, replay, barriers and queries, on servers of its own, in a minute or so.", func(c *kingpin.CmdClause, f *benchFlags) {
			f.loadFlags(c, 2000)
			f.durationFlag(c)
			f.queryFlags(c)
			f.roundsFlag(c)
		}, (*benchFlags).all),
	}
}

func (f *benchFlags) urlFlag(c *kingpin.CmdClause) {
	c.Flag("url", "The service to measure. Without it a server of its own is started, and removed at the end.").StringVar(&f.url)
}

func (f *benchFlags) loadFlags(c *kingpin.CmdClause, perRequest int) {
	f.requests, f.rounds, f.step, f.pane = 1, 1, time.Minute, time.Minute
	c.Flag("series", "Series.").Default("10000").IntVar(&f.shape.series)
	c.Flag("labels", "Labels of a series, the name included.").Default("10").IntVar(&f.shape.labels)
	c.Flag("per-request", "Samples of a request, each an entry of its own.").Default(fmt.Sprint(perRequest)).IntVar(&f.shape.perRequest)
	c.Flag("senders", "Connections that write at one time.").Default("8").IntVar(&f.shape.senders)
}

func (f *benchFlags) durationFlag(c *kingpin.CmdClause) {
	c.Flag("duration", "How long to write.").Default("10s").DurationVar(&f.duration)
}

func (f *benchFlags) queryFlags(c *kingpin.CmdClause) {
	c.Flag("requests", "How often each query is asked, at most.").Default("500").IntVar(&f.requests)
	c.Flag("query-time", "How long each query is asked, at most.").Default("3s").DurationVar(&f.limit)
}

func (f *benchFlags) roundsFlag(c *kingpin.CmdClause) {
	c.Flag("rounds", "Barriers.").Default("20").IntVar(&f.rounds)
}

// maxBenchOperations bounds --requests and --rounds.
const maxBenchOperations = 1_000_000

func (f *benchFlags) check() error {
	usage := func(format string, args ...any) error { return &exitError{exitUsage, fmt.Errorf(format, args...)} }
	switch {
	case f.requests < 1 || f.requests > maxBenchOperations || f.rounds < 1 || f.rounds > maxBenchOperations:
		return usage("--requests and --rounds must be from 1 to %d", maxBenchOperations)
	case f.duration < 0 || f.limit < 0 || f.span < 0:
		return usage("durations must not be negative")
	case f.samples < 0:
		return usage("--samples must not be negative")
	case f.pane < time.Second || f.pane%time.Second != 0 || 5*time.Minute%f.pane != 0:
		return usage("--pane must be whole seconds that divide 5m")
	case f.step < time.Millisecond:
		return usage("--step must be at least 1ms")
	case f.expr != "" && (f.url == "" || f.atMillis == 0):
		return usage("--query asks a service that has the data: give its --url, and --at-ms")
	}
	return f.shape.check()
}

// bench is a run of a load tool.
type bench struct {
	report   *report
	progress io.Writer
}

func (b *bench) step(format string, args ...any) {
	fmt.Fprintf(b.progress, "# "+format+"\n", args...)
}

// on runs measure against the service at --url, or against a server of its own.
func (f *benchFlags) on(ctx context.Context, b *bench, measure func(context.Context, *service) error) error {
	if f.url != "" {
		s := newService(f.url, f.shape.senders)
		defer s.close()
		return measure(ctx, s)
	}
	return inScratch(func(dir string) error { return f.onOwn(ctx, b, dir, measure) })
}

// inScratch gives work a temporary directory and removes it afterwards.
func inScratch(work func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return work(dir)
}

// onOwn runs measure against a server whose storage is in dir, and stops the server.
func (f *benchFlags) onOwn(ctx context.Context, b *bench, dir string, measure func(context.Context, *service) error) (err error) {
	b.step("starting a server in %s", dir)
	server, err := startServer(ctx, dir, ownBenchConfig)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	s := newService(server.url, f.shape.senders)
	defer s.close()
	return measure(ctx, s)
}

func (f *benchFlags) write(ctx context.Context, b *bench) error {
	return f.on(ctx, b, func(ctx context.Context, s *service) error {
		_, err := b.write(ctx, s, f.shape, f.duration)
		return err
	})
}

func (f *benchFlags) query(ctx context.Context, b *bench) error {
	return f.on(ctx, b, func(ctx context.Context, s *service) error {
		if f.expr != "" {
			return b.ownQuery(ctx, s, f)
		}
		return b.query(ctx, s, f.shape, f.requests, f.limit)
	})
}

func (f *benchFlags) barrier(ctx context.Context, b *bench) error {
	return f.on(ctx, b, func(ctx context.Context, s *service) error { return b.barrier(ctx, s, f.shape, f.rounds) })
}

func (f *benchFlags) replay(ctx context.Context, b *bench) error {
	if f.samples > 0 {
		return f.replayMade(ctx, b)
	}
	_, err := b.replay(ctx, f.dir)
	return err
}

// all measures everything on two servers: one takes the load and leaves its log, the other answers.
func (f *benchFlags) all(ctx context.Context, b *bench) error {
	if err := inScratch(func(dir string) error { return f.writeAndReplay(ctx, b, dir) }); err != nil {
		return err
	}
	debug.FreeOSMemory() // what the load left behind is not to be paid by what comes next
	return inScratch(func(dir string) error {
		return f.onOwn(ctx, b, dir, func(ctx context.Context, s *service) error {
			if err := b.barrier(ctx, s, f.shape, f.rounds); err != nil {
				return err
			}
			return b.query(ctx, s, f.shape, f.requests, f.limit)
		})
	})
}

// writeAndReplay measures a load in which each request has as many series as samples, what its log takes, and its replay.
func (f *benchFlags) writeAndReplay(ctx context.Context, b *bench, dir string) error {
	shape := f.shape
	shape.series = max(shape.series, shape.perRequest*shape.senders)
	var samples uint64
	if err := f.onOwn(ctx, b, dir, func(ctx context.Context, s *service) (err error) {
		samples, err = b.write(ctx, s, shape, f.duration)
		return err
	}); err != nil {
		return err
	}
	storage := filepath.Join(dir, ownStorage)
	if err := b.size(storage, samples); err != nil {
		return err
	}
	_, err := b.replay(ctx, storage)
	return err
}

// size reports what a log takes on disk. It is opened for writing before, as by a next start, so that what is only in the
// store's own write-ahead log becomes tables.
func (b *bench) size(storage string, samples uint64) error {
	dir := filepath.Join(storage, logDir)
	l, err := log.Open(dir, log.Options{})
	if err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	if l, err = log.OpenReadOnly(dir, log.Options{}); err != nil {
		return err
	}
	st, err := l.Stat()
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	b.report.figure("LogSize", samples, float64(st.DiskBytes)/float64(max(1, samples)), "disk-B/sample")
	return nil
}
