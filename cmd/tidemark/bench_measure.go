package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
)

const (
	// loadEvery is the distance of a series' samples in the loads of write and query.
	loadEvery = 15 * time.Second
	// paneWidth is the width of the panes that benchConfig makes.
	paneWidth = time.Minute
	// publishTimeout bounds how long a server may need to fold what a load has left.
	publishTimeout = 10 * time.Minute

	loggedSamples = "tidemark_log_samples_total"
)

// write measures a load, once its series are known and before that, and then checks that all that was acknowledged is there. It returns the samples acknowledged.
func (b *bench) write(ctx context.Context, s *service, shape loadShape, d time.Duration) (uint64, error) {
	l := newLoad(shape, loadEvery, time.Now())
	logged, err := s.metric(ctx, loggedSamples)
	if err != nil {
		return 0, err
	}
	parameters := fmt.Sprintf("/series=%d/labels=%d/batch=%d/senders=%d", shape.series, shape.labels, shape.perRequest, shape.senders)
	b.step("writing the first sample of each series")
	first, err := l.rounds(ctx, s, 1)
	if err != nil {
		return 0, err
	}
	b.report.figure("WriteNew"+parameters, first.requests, float64(first.samples)/first.elapsed.Seconds(), "series/s")

	b.step("writing for %s", d)
	res, err := l.forDuration(ctx, s, d)
	if err != nil {
		return 0, err
	}
	name := "Write" + parameters
	b.report.figure(name, res.requests, float64(res.samples)/res.elapsed.Seconds(), "samples/s")
	b.report.latency(name, &res.took, time.Millisecond, "ms")
	b.report.figure(name, res.requests, float64(first.refused+res.refused), "non-2xx")

	began := time.Now()
	if _, _, err := s.watermark(ctx, l.end(), publishTimeout); err != nil {
		return 0, err
	}
	b.report.figure(name, 1, time.Since(began).Seconds(), "s-to-publish")
	samples := first.samples + res.samples
	return samples, b.verify(ctx, s, l, samples, logged)
}

// verify counts the samples of a load by queries over published panes. A service without panes for them is asked how many
// samples its log has taken since.
func (b *bench) verify(ctx context.Context, s *service, l *load, want uint64, logged float64) error {
	got := uint64(0)
	for t := l.start + loadGrid; t <= l.end(); t += loadGrid {
		r, err := s.ask(ctx, oracle.Query{Expr: "sum(count_over_time(" + l.selector("") + "[1h]))", Start: t})
		switch {
		case err != nil:
			return err
		case r.route == query.ReasonNoMaterialization || r.route == query.ReasonBeforeRetention:
			return b.verifyLogged(ctx, s, want, logged)
		case r.outcome.Err != nil:
			return r.outcome.Err
		}
		if v := r.outcome.Value.(promql.Vector); len(v) > 0 {
			got += uint64(v[0].F)
		}
	}
	if got != want {
		return fmt.Errorf("%d samples were acknowledged, and the panes hold %d", want, got)
	}
	b.step("all %d samples acknowledged are answered for", want)
	return nil
}

func (b *bench) verifyLogged(ctx context.Context, s *service, want uint64, before float64) error {
	after, err := s.metric(ctx, loggedSamples)
	if err != nil {
		return err
	}
	if got := after - before; got < float64(want) {
		return fmt.Errorf("%d samples were acknowledged, and the log has taken %.0f", want, got)
	}
	b.step("the log has taken all %d samples acknowledged; to count them in panes, add this to the service's configuration:\n%s", want, benchConfig)
	return nil
}

// metric reads a metric without labels from /metrics.
func (s *service) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		return 0, &exitError{exitUsage, err}
	}
	res, err := s.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(res.Body, maxQueryBytes))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, fmt.Errorf("%s/metrics: status %d, no %s: %w", s.url, res.StatusCode, name, errors.Join(lines.Err(), errors.New("is it Tidemark?")))
}

// barrier measures barriers that close one pane of every series. Everything else has been folded when the clock starts.
func (b *bench) barrier(ctx context.Context, s *service, shape loadShape, rounds int) error {
	l := newLoad(shape, paneWidth, time.Now())
	b.step("%d barriers over %d open panes", rounds, shape.series)
	var took latencies
	for i := range int64(rounds) {
		if _, err := l.rounds(ctx, s, i+1); err != nil {
			return err
		}
		begin := l.start + i*l.every
		// A barrier at the panes' beginning closes none of them, and returns when all are open.
		if _, _, err := s.watermark(ctx, begin, publishTimeout); err != nil {
			return err
		}
		a, d, err := s.watermark(ctx, begin+l.every, publishTimeout)
		if err != nil {
			return err
		}
		if a.ClosedBuckets < int64(shape.series) {
			return fmt.Errorf("a barrier over %d open panes closed %d; the service's configuration needs this:\n%s", shape.series, a.ClosedBuckets, benchConfig)
		}
		took.add(d)
	}
	b.report.latency(fmt.Sprintf("Barrier/panes=%d", shape.series), &took, time.Millisecond, "ms")
	return nil
}

// query measures warm queries over series of its own.
func (b *bench) query(ctx context.Context, s *service, shape loadShape, requests int, limit time.Duration) error {
	const minutes = 10
	l := newLoad(shape, loadEvery, time.Now())
	b.step("writing %d minutes of %d series to ask for", minutes, shape.series)
	if _, err := l.rounds(ctx, s, minutes*int64(time.Minute/loadEvery)); err != nil {
		return err
	}
	end := l.start + minutes*time.Minute.Milliseconds()
	if _, _, err := s.watermark(ctx, end, publishTimeout); err != nil {
		return err
	}
	all := "sum by (group) (rate(" + l.selector("") + "[5m]))"
	for _, q := range []struct {
		name string
		q    oracle.Query
	}{
		{fmt.Sprintf("Query/op=instant/series=%d", shape.series), oracle.Query{Expr: all, Start: end}},
		{fmt.Sprintf("Query/op=range/steps=6/series=%d", shape.series), oracle.Query{
			Expr: all, Start: end - 5*paneWidth.Milliseconds(), End: end, Step: paneWidth.Milliseconds(),
		}},
		{"Query/op=instant/series=1", oracle.Query{Expr: "rate(" + l.selector(`,series="0"`) + "[5m])", Start: end}},
	} {
		b.step("asking %s", q.q)
		if err := b.ask(ctx, s, q.name, q.q, requests, limit); err != nil {
			return err
		}
	}
	return nil
}

// ownQuery measures the query that the flags name.
func (b *bench) ownQuery(ctx context.Context, s *service, f *benchFlags) error {
	q, name := oracle.Query{Expr: f.expr, Start: f.atMillis}, "Query/op=instant"
	if f.span > 0 {
		q.Start, q.End, q.Step = f.atMillis-f.span.Milliseconds(), f.atMillis, f.step.Milliseconds()
		name = fmt.Sprintf("Query/op=range/steps=%d", f.span/f.step+1)
	}
	return b.ask(ctx, s, name, q, f.requests, f.limit)
}

// ask asks one query, one request after the other, up to requests times or until limit has passed, and at least once. An
// answer that is not warm is an error.
func (b *bench) ask(ctx context.Context, s *service, name string, q oracle.Query, requests int, limit time.Duration) error {
	var took latencies
	for began := time.Now(); took.n == 0 || took.n < uint64(requests) && time.Since(began) < limit; {
		r, err := s.ask(ctx, q)
		if err != nil {
			return err
		}
		if r.outcome.Err != nil {
			return fmt.Errorf("%s: %w", q, r.outcome.Err)
		}
		if r.route != query.RouteWarm {
			return fmt.Errorf("%s: the answer is not warm, but %s", q, r.route)
		}
		took.add(r.took)
	}
	b.report.latency(name, &took, time.Microsecond, "µs")
	return nil
}
