package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
)

const (
	maxDemoEpochs = 1000
	maxDemoTasks  = 1000
	// asksToTime is how often each question is asked after the barrier; the table shows the median.
	asksToTime = 3
	// shownDifferences bounds the wrong answers that are printed.
	shownDifferences = 5
)

// demo shows the main job: tasks write, one barrier an epoch makes their questions warm, and every answer equals that of
// Prometheus' own engine over the same samples.
type demo struct {
	epochs, tasks int
	seed          uint64
	keep          bool
	// wire is put between this command and the server. Tests use it to show that a wrong answer is found.
	wire func(http.RoundTripper) http.RoundTripper

	out    io.Writer
	client *service
	engine *promql.Engine
	tr     *training
	asked  []askedQuestion
}

// askedQuestion is a question with what became of it in all epochs.
type askedQuestion struct {
	question
	worst float64
	took  []time.Duration
}

// epochRow is a line of the demo's table.
type epochRow struct {
	epoch, tasks, samples int
	before, after         string
	barrier               time.Duration
	worst                 float64
	query                 time.Duration // median
}

func newDemo(app *kingpin.Application) command {
	d := &demo{wire: func(t http.RoundTripper) http.RoundTripper { return t }}
	c := app.Command("demo", "Play training tasks against a server of its own, and check every answer with Prometheus' engine. Takes a few seconds.")
	c.Flag("epochs", "Epochs of 150 s of event time.").Default("10").IntVar(&d.epochs)
	c.Flag("tasks", "Training tasks.").Default("30").IntVar(&d.tasks)
	c.Flag("seed", "Of the values and of when tasks begin and end.").Default("1").Uint64Var(&d.seed)
	c.Flag("keep", "Leave the server running until interrupted, and its data after that.").BoolVar(&d.keep)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		if d.epochs < 1 || d.epochs > maxDemoEpochs || d.tasks < 1 || d.tasks > maxDemoTasks {
			return &exitError{exitUsage, fmt.Errorf("--epochs must be from 1 to %d and --tasks from 1 to %d", maxDemoEpochs, maxDemoTasks)}
		}
		return d.run(ctx, stdout)
	}}
}

// run plays the demo in a directory of its own. It fails unless every epoch was warm and every answer right.
func (d *demo) run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "tidemark-demo-")
	if err != nil {
		return err
	}
	if !d.keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	began := time.Now()
	qs := questions()
	server, err := startServer(ctx, dir, demoConfig(qs))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	d.client = newService(server.url, 1)
	defer d.client.close()
	d.client.http.Transport = d.wire(d.client.http.Transport)
	d.engine = oracle.NewEngine(50_000_000)
	d.out = out
	for _, q := range qs {
		d.asked = append(d.asked, askedQuestion{question: q})
	}
	// The last epoch ends at the newest edge that lies in the past.
	end := began.UnixMilli() / epochMillis * epochMillis
	start := end - int64(d.epochs)*epochMillis
	d.tr = newTraining(d.tasks, start, end, d.seed)

	d.introduce(server)
	verdict, err := d.play(ctx, start)
	if err != nil {
		return err
	}
	d.summarize(verdict, time.Since(began))
	if d.keep {
		// Who opens the page finds the experiments there, and not only after the next scan.
		if _, _, _, err := d.client.call(ctx, "/api/v1/rescan", nil); err != nil {
			return errors.Join(verdict.err(), fmt.Errorf("scan the experiments: %w", err))
		}
		d.wait(ctx, server, end)
	}
	return verdict.err()
}

func (d *demo) introduce(s *ownServer) {
	ranges := 0
	for _, q := range d.asked {
		if q.steps {
			ranges++
		}
	}
	fmt.Fprintf(d.out, `Tidemark demo: %d training tasks over %d epochs of %s, seed %d.

  server   %s, data in %s
  writes   %d series by Remote Write, %d a task; tasks begin late, stop, vanish, and one starts its counters anew
  asks     %d queries over HTTP (%d instant, %d range), before and after the one barrier of each epoch
  checks   every answer after the barrier against Prometheus' own engine over the same samples

`, d.tasks, d.epochs, time.Duration(epochMillis)*time.Millisecond, d.seed, s.url, s.dir,
		len(d.tr.all), len(d.tr.all)/d.tasks, len(d.asked), len(d.asked)-ranges, ranges)
	fmt.Fprintf(d.out, demoHeader, "epoch", "tasks", "samples", "route before", "barrier ms", "route after", "worst rel. error", "query µs")
}

const (
	demoHeader = "  %5s  %5s  %7s  %-12s  %10s  %-11s  %16s  %8s\n"
	demoRow    = "  %5d  %5d  %7d  %-12s  %10.1f  %-11s  %16s  %8d\n"
)

// demoVerdict is what the demo has shown.
type demoVerdict struct {
	epochs, warm int
	answers      int      // compared
	values       int      // in them
	differences  int      // answers that are not equal
	wrong        []string // the first shownDifferences of them
	worst        float64
}

func (v *demoVerdict) err() error {
	switch {
	case v.differences > 0:
		return fmt.Errorf("%d of %d answers differ from Prometheus'", v.differences, v.answers)
	case v.warm < v.epochs:
		return fmt.Errorf("%d of %d epochs were not warm after their barrier", v.epochs-v.warm, v.epochs)
	}
	return nil
}

// play runs the epochs and prints a line for each.
func (d *demo) play(ctx context.Context, start int64) (*demoVerdict, error) {
	v := &demoVerdict{epochs: d.epochs}
	for i := range d.epochs {
		row, err := d.epoch(ctx, v, start+int64(i)*epochMillis)
		if err != nil {
			return nil, fmt.Errorf("epoch %d: %w", i+1, err)
		}
		row.epoch = i + 1
		fmt.Fprintf(d.out, demoRow, row.epoch, row.tasks, row.samples, row.before, milliseconds(row.barrier), row.after, relative(row.worst), row.query.Microseconds())
		if row.after == query.RouteWarm {
			v.warm++
		}
		v.worst = max(v.worst, row.worst)
	}
	return v, nil
}

// epoch writes one epoch, asks, calls the barrier, and asks again.
func (d *demo) epoch(ctx context.Context, v *demoVerdict, from int64) (row epochRow, err error) {
	to := from + epochMillis
	row.tasks = d.tr.runningIn(from, to)
	requests, samples := d.tr.play(from, to)
	row.samples = samples
	writer := d.client.writer()
	for _, r := range requests {
		if err := writer.Write(ctx, r); err != nil {
			return row, err
		}
	}
	var before, after []string
	for i := range d.asked {
		r, err := d.client.ask(ctx, d.asked[i].at(to))
		if err != nil {
			return row, err
		}
		before = append(before, r.route)
	}
	if _, row.barrier, err = d.client.watermark(ctx, to, barrierTimeout); err != nil {
		return row, err
	}
	data := oracle.Storage(d.tr.all)
	var took []time.Duration
	for i := range d.asked {
		a := &d.asked[i]
		q := a.at(to)
		want := oracle.Ask(ctx, d.engine, data, q)
		for range asksToTime {
			r, err := d.client.ask(ctx, q)
			if err != nil {
				return row, err
			}
			after, took, a.took = append(after, r.route), append(took, r.took), append(a.took, r.took)
			worst, err := oracle.Difference(r.outcome, want, q.Terms)
			v.note(q, want, err)
			a.worst, row.worst = max(a.worst, worst), max(row.worst, worst)
		}
	}
	row.before, row.after, row.query = routes(before), routes(after), median(took)
	return row, nil
}

// note counts an answer that was compared.
func (v *demoVerdict) note(q oracle.Query, want oracle.Outcome, difference error) {
	v.answers++
	v.values += countValues(want.Value)
	if difference == nil {
		return
	}
	v.differences++
	if len(v.wrong) < shownDifferences {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %v", q, difference))
	}
}

// countValues counts the points of an answer.
func countValues(v parser.Value) int {
	switch v := v.(type) {
	case promql.Vector:
		return len(v)
	case promql.Matrix:
		n := 0
		for _, s := range v {
			n += len(s.Floats)
		}
		return n
	}
	return 0
}

// routes sums up the routes of several answers: the one that all took, or each with its number.
func routes(all []string) string {
	counts := map[string]int{}
	for _, r := range all {
		counts[r]++
	}
	if len(counts) == 1 {
		return all[0]
	}
	var parts []string
	for r, n := range counts {
		parts = append(parts, fmt.Sprintf("%d:%s", n, r))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// median returns the upper one of an even number, and zero of none.
func median[T cmp.Ordered](all []T) (m T) {
	if len(all) == 0 {
		return m
	}
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// relative renders a relative error.
func relative(e float64) string {
	if e == 0 {
		return "0"
	}
	return strconv.FormatFloat(e, 'e', 0, 64)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// summarize prints the questions one by one and the verdict.
func (d *demo) summarize(v *demoVerdict, took time.Duration) {
	fmt.Fprintf(d.out, "\n  %8s  %16s  %s\n", "query µs", "worst rel. error", "question")
	for _, a := range d.asked {
		kind := "at the end of the epoch"
		if a.steps {
			kind = fmt.Sprintf("every %ds of the epoch", gridMillis/1000)
		}
		fmt.Fprintf(d.out, "  %8d  %16s  %s, %s\n", median(a.took).Microseconds(), relative(a.worst), a.expr, kind)
	}
	fmt.Fprintln(d.out)
	for _, w := range v.wrong {
		fmt.Fprintf(d.out, "  WRONG  %s\n", w)
	}
	word := "PASS"
	if v.err() != nil {
		word = "FAIL"
	}
	fmt.Fprintf(d.out, "%s: %d of %d epochs warm after one barrier; %d of %d answers (%d values) equal Prometheus'; worst relative error %s, allowed %s; %.1f s.\n",
		word, v.warm, v.epochs, v.answers-v.differences, v.answers, v.values, relative(v.worst), relative(oracle.Tolerance), took.Seconds())
	if !d.keep {
		fmt.Fprint(d.out, `
Next:
  tidemark demo --keep       the same, and then the server is yours to look at
  tidemark serve             your own: point Prometheus' remote_write to http://127.0.0.1:9697/api/v1/write
  tidemark check rules FILE  which of your recording rules become panes, and why others do not
`)
	}
}

// wait leaves the server running until ctx ends.
func (d *demo) wait(ctx context.Context, s *ownServer, end int64) {
	q := d.asked[0].at(end)
	fmt.Fprintf(d.out, `
The server runs until you press Ctrl-C; its data stays after that.
  URL        %[1]s
  directory  %[2]s

Open the URL in a browser for what the demo has written, or try:
  curl -si '%[1]s/api/v1/query?%[3]s'
  curl -s '%[1]s/api/v1/materializations'
  tidemark watermark --url %[1]s --time-ms now
`, s.url, s.dir, url.Values{"query": {q.Expr}, "time": {seconds(q.Start)}}.Encode())
	select {
	case <-ctx.Done():
	case <-s.done:
	}
}
