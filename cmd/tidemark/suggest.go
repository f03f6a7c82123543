package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/accum"
	"tidemark/projections/plan"
)

// maxSuggestBytes bounds a file that suggestions are made from.
const maxSuggestBytes = 1 << 30

// suggest makes materializations of what is asked.
type suggest struct {
	queryLog, dashboard string
	source              remote // of the samples; without a URL none
	step, lookback      time.Duration
	least               int
}

func newSuggest(app *kingpin.Application) command {
	var s suggest
	c := app.Command("suggest", "Print the materializations that would answer what repeats in a query log of Prometheus, or what a Grafana dashboard asks.")
	c.Flag("query-log", "Query log of Prometheus: a JSON object a line.").StringVar(&s.queryLog)
	c.Flag("dashboard", "Grafana dashboard: JSON, as Grafana exports it.").StringVar(&s.dashboard)
	c.Flag("url", "Where a service or a Prometheus listens that has the samples; without it nothing is said of series and bytes.").StringVar(&s.source.url)
	s.source.declareCredentials(c)
	c.Flag("step", "Time between evaluations where a file does not say.").Default("15s").DurationVar(&s.step)
	c.Flag("lookback-delta", "How far an instant selector looks back.").Default("5m").DurationVar(&s.lookback)
	c.Flag("min-repeats", "How often an expression must be in a query log.").Default("2").IntVar(&s.least)
	return command{c, s.run}
}

func (s *suggest) run(ctx context.Context, stdout, stderr io.Writer) error {
	if (s.queryLog == "") == (s.dashboard == "") {
		return &exitError{exitUsage, errors.New("one of --query-log and --dashboard is needed")}
	}
	if s.step < time.Second || s.step%time.Millisecond != 0 {
		return &exitError{exitUsage, fmt.Errorf("--step: %s is less than a second, or no whole number of milliseconds", s.step)}
	}
	var (
		uses []plan.Use
		said []string
		err  error
	)
	path := s.queryLog
	if s.dashboard != "" {
		path = s.dashboard
	}
	f, err := os.Open(path)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer f.Close()
	in := io.LimitReader(f, maxSuggestBytes)
	if s.dashboard != "" {
		uses, said, err = dashboardUses(in, s.step)
	} else {
		uses, said, err = queryLogUses(in, s.step, s.least)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	all, not := plan.Suggest(uses, s.lookback)
	for _, line := range said {
		fmt.Fprintln(stderr, line)
	}
	for _, n := range not {
		fmt.Fprintf(stderr, "no materialization for %s: %s\n", n.Expr, n.Reason)
	}
	if len(all) == 0 {
		fmt.Fprintln(stderr, "nothing here is answered better from panes")
		return nil
	}
	return s.print(ctx, stdout, all)
}

// print writes tidemark.yml.
func (s *suggest) print(ctx context.Context, w io.Writer, all []plan.Suggestion) error {
	var b strings.Builder
	b.WriteString("materializations:\n")
	var sum estimate
	for i := range all {
		fmt.Fprintf(&b, "  # answers %d %s, asked %d %s\n", all[i].Parts, plural(all[i].Parts, "expression"), all[i].Times, plural(all[i].Times, "time"))
		if s.source.url != "" {
			e, err := s.estimate(ctx, &all[i])
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "  # %s\n", e)
			sum.series, sum.bytes = sum.series+e.series, sum.bytes+e.bytes
		}
		b.WriteString(all[i].Entry.Lines())
	}
	if s.source.url != "" {
		fmt.Fprintf(&b, "# in all: %s\n", sum)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// estimate is what a materialization reads and keeps, roughly.
type estimate struct {
	series float64
	bytes  float64 // for the default retention
}

func (e estimate) String() string {
	return fmt.Sprintf("about %.0f series and %s for %s", e.series, byteText(e.bytes), plan.DefaultRetention)
}

// How many bytes panes take, roughly: a sample by itself as long as a pane keeps its samples, and columns with the values beyond that.
const (
	bytesPerSample  = 4
	bytesPerPane    = 6
	bytesPerColumns = 80
)

// estimate asks the server how many series a selector has now, and how many samples of them came lately.
func (s *suggest) estimate(ctx context.Context, g *plan.Suggestion) (e estimate, err error) {
	const lately = 10 * time.Minute
	span := model.Duration(lately)
	if e.series, err = s.number(ctx, fmt.Sprintf("count(last_over_time(%s[%s]))", g.Selector, span)); err != nil {
		return e, err
	}
	samples, err := s.number(ctx, fmt.Sprintf("sum(count_over_time(%s[%s]))", g.Selector, span))
	if err != nil || e.series == 0 {
		return e, err
	}
	panes := e.series * float64(time.Duration(plan.DefaultRetention).Milliseconds()/g.PaneMillis)
	perPane := samples / e.series * float64(g.PaneMillis) / float64(lately.Milliseconds())
	size := bytesPerPane + bytesPerSample*perPane
	if perPane > accum.MaxSamples {
		size = bytesPerPane + bytesPerColumns + bytesPerSample*min(perPane, accum.MaxValues)
	}
	if perPane < 1 { // some panes have nothing, and are not there
		panes *= perPane
		size = bytesPerPane + bytesPerSample
	}
	e.bytes = panes * size
	return e, nil
}

// number asks for an expression that has one value, or none, which counts as 0.
func (s *suggest) number(ctx context.Context, expr string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	c, err := s.source.service()
	if err != nil {
		return 0, err
	}
	defer c.close()
	e, res, _, err := c.call(ctx, "/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s: status %d: %s", c.url, expr, res.StatusCode, e.Error)
	}
	v, err := decodeValue(e.Data)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", c.url, expr, err)
	}
	vec, ok := v.(promql.Vector)
	if !ok || len(vec) > 1 {
		return 0, fmt.Errorf("%s: %s: an answer of type %s with %d series", c.url, expr, v.Type(), len(vec))
	}
	if len(vec) == 0 || math.IsNaN(vec[0].F) {
		return 0, nil
	}
	return vec[0].F, nil
}

// byteText is a number of bytes for people.
func byteText(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n >= 1024 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%.3g %s", n, units[i])
}

func millisText(ms int64) string {
	return model.Duration(time.Duration(ms) * time.Millisecond).String()
}
