package main

// Prometheus' own PromQL test scripts, which ship in its module, put to the service over HTTP.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/zeebo/xxh3"

	"tidemark/projections/query/oracle"
)

// corpusConfig plans one stream over everything, in panes so fine that the scripts' times and ranges are made of them.
const corpusConfig = `
exact: {local: true}
query: {unpublished: live}
materializations:
  - {name: everything, expr: 'sum_over_time({__name__=~".+",__name__!="everything"}[1s])', every: 1s}
`

// corpusExceptions lists the evaluations that answer otherwise than the scripts expect: file, tab, reason, tab, expression.
const corpusExceptions = "testdata/promql_corpus.txt"

// TestPrometheusCorpus runs the scripts that ship with Prometheus' engine. What they load goes through Remote Write and a barrier into a
// service of its own for each storage, and every expression is asked over HTTP; Prometheus' engine, configured as the scripts
// demand, answers beside it, and satisfies the scripts. Where the service answers otherwise, the list in testdata says so and why;
// an entry of the list that is no longer true is an error, too.
func TestPrometheusCorpus(t *testing.T) {
	c := &corpus{
		ref:    promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery),
		plain:  oracle.NewEngine(50_000_000),
		routes: map[string]int{}, floats: map[string]int{}, found: map[string]string{},
	}
	promqltest.RunBuiltinTestsWithStorage(&corpusFiles{t, c}, c, func(t testing.TB) storage.Storage {
		return &corpusStorage{Storage: promqltest.NewBuiltinTestStorage(t), c: c}
	})
	t.Logf("%d evaluations of %d services; routes %v, over plain floats %v; %d differ", c.asked, c.services, c.routes, c.floats, len(c.found))
	total := 0
	for _, n := range c.floats {
		total += n
	}
	if panes := c.floats["warm"] + c.floats["live"]; c.asked < 2000 || panes < total*7/10 {
		t.Errorf("%d evaluations, %d of %d over plain floats by panes", c.asked, panes, total)
	}
	c.compareWithList(t)
}

// corpusFiles tells the corpus which script runs.
type corpusFiles struct {
	*testing.T
	c *corpus
}

func (f *corpusFiles) Run(name string, run func(*testing.T)) bool {
	return f.T.Run(name, func(t *testing.T) {
		f.c.t, f.c.file = t, name[strings.LastIndex(name, "/")+1:]
		run(t)
	})
}

// corpus is a promql.QueryEngine that asks the service besides.
type corpus struct {
	t          *testing.T
	file       string
	ref, plain *promql.Engine
	asked      int
	services   int
	instant    string            // the instant query that was asked last
	routes     map[string]int    // by route of all that agree
	floats     map[string]int    // of those whose data hold no native histograms
	found      map[string]string // file and expression → how they differ
}

// corpusStorage is what the scripts load into, with the service that is given the same.
type corpusStorage struct {
	storage.Storage
	c          *corpus
	service    *hosted
	sent       map[string]map[int64]bool
	changed    bool
	histograms bool
}

func (s *corpusStorage) Appender(ctx context.Context) storage.Appender {
	s.changed = true
	return s.Storage.Appender(ctx)
}

func (s *corpusStorage) AppenderV2(ctx context.Context) storage.AppenderV2 {
	s.changed = true
	return s.Storage.AppenderV2(ctx)
}

func (s *corpusStorage) Close() error {
	if s.service != nil {
		s.service.mustStop()
	}
	return s.Storage.Close()
}

// load sends what is new to the service, which is started when it is first needed.
func (s *corpusStorage) load(t *testing.T) {
	if s.service == nil {
		s.service = startService(t, wipeable(t, setup{config: corpusConfig, flags: []string{"--write.max-future=0s", "--projection.workers=1"}}))
		s.sent = map[string]map[int64]bool{}
		s.changed = true
		s.c.services++
	}
	if !s.changed {
		return
	}
	s.changed = false
	req, newest := s.fresh(t)
	for chunk := range slices.Chunk(req.Timeseries, 1000) {
		body, err := (&prompb.WriteRequest{Timeseries: chunk}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.service.write.Send(t.Context(), snappy.Encode(nil, body)); err != nil {
			t.Fatal(err)
		}
	}
	if newest != math.MinInt64 {
		s.service.barrier(newest)
	}
}

// fresh returns the samples of the storage that were not sent yet.
func (s *corpusStorage) fresh(t *testing.T) (req prompb.WriteRequest, newest int64) {
	q, err := s.Storage.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	newest = math.MinInt64
	set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".*"))
	for set.Next() {
		series := set.At()
		key := series.Labels().String()
		if s.sent[key] == nil {
			s.sent[key] = map[int64]bool{}
		}
		ts := prompb.TimeSeries{Labels: prompb.FromLabels(series.Labels(), nil)}
		it := series.Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			at := it.AtT()
			newest = max(newest, at)
			if s.sent[key][at] {
				continue
			}
			s.sent[key][at] = true
			switch kind {
			case chunkenc.ValFloat:
				_, v := it.At()
				ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: at, Value: v})
			case chunkenc.ValHistogram:
				_, h := it.AtHistogram(nil)
				ts.Histograms, s.histograms = append(ts.Histograms, prompb.FromIntHistogram(at, h)), true
			default:
				_, h := it.AtFloatHistogram(nil)
				ts.Histograms, s.histograms = append(ts.Histograms, prompb.FromFloatHistogram(at, h)), true
			}
		}
		if len(ts.Samples)+len(ts.Histograms) > 0 {
			req.Timeseries = append(req.Timeseries, ts)
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return req, newest
}

// NewInstantQuery implements promql.QueryEngine.
func (c *corpus) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, expr string, at time.Time) (promql.Query, error) {
	if strings.Contains(expr, " @ ") && c.file != "at_modifier.test" && xxh3.HashString(expr)%8 != 0 {
		// The scripts ask every instant query with several forms of @, too.
		return c.ref.NewInstantQuery(ctx, q, opts, expr, at)
	}
	c.instant = expr
	params := []string{"query", expr, "time", seconds(at.UnixMilli())}
	return c.both(ctx, q, "/api/v1/query", params, expr, func(e *promql.Engine) (promql.Query, error) {
		return e.NewInstantQuery(ctx, q, opts, expr, at)
	})
}

// NewRangeQuery implements promql.QueryEngine.
func (c *corpus) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, expr string, start, end time.Time, step time.Duration) (promql.Query, error) {
	if derived := c.instant == expr && step == time.Minute && end.Sub(start) == 2*time.Minute; derived && xxh3.HashString(expr)%8 != 0 {
		// The scripts ask every instant query as a range, too: over HTTP one in eight is enough.
		return c.ref.NewRangeQuery(ctx, q, opts, expr, start, end, step)
	}
	params := []string{"query", expr, "start", seconds(start.UnixMilli()), "end", seconds(end.UnixMilli()), "step", seconds(step.Milliseconds())}
	return c.both(ctx, q, "/api/v1/query_range", params, expr, func(e *promql.Engine) (promql.Query, error) {
		return e.NewRangeQuery(ctx, q, opts, expr, start, end, step)
	})
}

// both asks the service and Prometheus' engine, notes whether they agree, and returns the engine's query.
func (c *corpus) both(ctx context.Context, q storage.Queryable, path string, params []string, expr string, ask func(*promql.Engine) (promql.Query, error)) (promql.Query, error) {
	s := q.(*corpusStorage)
	s.load(c.t)
	code, header, body := s.service.form(path, params...)
	c.asked++
	want := evaluated(ctx, expr, ask, c.ref)
	err := agree(code, body, want, expr)
	if err != nil {
		// What Prometheus does by default may not be what the scripts demand.
		if agree(code, body, evaluated(ctx, expr, ask, c.plain), expr) == nil {
			err = errors.New("as Prometheus answers by default, without the feature flags of the script")
		}
		c.found[c.file+"\t"+strings.Join(strings.Fields(expr), " ")] = err.Error()
	} else {
		route := cmp.Or(header.Get("X-Tidemark-Route"), "error")
		c.routes[route]++
		if !s.histograms {
			c.floats[route]++
		}
	}
	return ask(c.ref)
}

// evaluatedResult is what an engine says.
type evaluatedResult struct {
	value           parser.Value
	err             error
	warnings, infos []string
}

func evaluated(ctx context.Context, expr string, ask func(*promql.Engine) (promql.Query, error), e *promql.Engine) (out evaluatedResult) {
	q, err := ask(e)
	if err != nil {
		return evaluatedResult{err: err}
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return evaluatedResult{err: res.Err}
	}
	out.warnings, out.infos = res.Warnings.AsStrings(expr, 0, 0)
	// The value lives no longer than the query: it is compared as JSON.
	raw, err := json.Marshal(res.Value)
	if err != nil {
		return evaluatedResult{err: err}
	}
	out.value = jsonValue{res.Value.Type(), raw}
	return out
}

// jsonValue is a parser.Value that is JSON already.
type jsonValue struct {
	kind parser.ValueType
	raw  []byte
}

func (v jsonValue) Type() parser.ValueType { return v.kind }
func (v jsonValue) String() string         { return string(v.raw) }

// agree says how an answer differs from what an engine said, or nil.
func agree(code int, body []byte, want evaluatedResult, expr string) error {
	var got struct {
		Error           string
		Warnings, Infos []string
		Data            struct {
			ResultType string
			Result     any
		}
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	switch {
	case code != 200 && want.err == nil:
		return fmt.Errorf("status %d: %s", code, got.Error)
	case code == 200 && want.err != nil:
		return fmt.Errorf("no error, but %w is expected", want.err)
	case code != 200:
		return nil
	case got.Data.ResultType != string(want.value.Type()):
		return fmt.Errorf("%s, not %s", got.Data.ResultType, want.value.Type())
	}
	var expected any
	if err := json.Unmarshal(want.value.(jsonValue).raw, &expected); err != nil {
		return err
	}
	if !sameJSON(bySeries(got.Data.Result), bySeries(expected)) {
		return errors.New("another value")
	}
	slices.Sort(got.Warnings)
	slices.Sort(want.warnings)
	slices.Sort(got.Infos)
	slices.Sort(want.infos)
	if !slices.Equal(got.Warnings, want.warnings) || !slices.Equal(got.Infos, want.infos) {
		return errors.New("other annotations")
	}
	return nil
}

// bySeries makes a map by label set of a list of series: their order is compared by tests of their own.
func bySeries(v any) any {
	list, ok := v.([]any)
	if !ok && v != nil { // the engine's empty results are null
		return v
	}
	out := map[string]any{}
	for _, x := range list {
		m, ok := x.(map[string]any)
		if !ok {
			return v
		}
		key := fmt.Sprint(m["metric"])
		if _, twice := out[key]; twice {
			return v
		}
		out[key] = m
	}
	return out
}

// sameJSON compares values; numbers, also within strings, may differ by what sums in another order differ by.
func sameJSON(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && maps.EqualFunc(x, y, sameJSON)
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameJSON)
	case float64:
		y, ok := b.(float64)
		return ok && oracle.Close(x, y, 1e3*math.Abs(y))
	case string:
		y, ok := b.(string)
		if !ok || x == y {
			return ok
		}
		f, err := strconv.ParseFloat(x, 64)
		g, err2 := strconv.ParseFloat(y, 64)
		return err == nil && err2 == nil && oracle.Close(f, g, 1e3*max(1e-6, math.Abs(g)))
	default:
		return a == nil && b == nil
	}
}

// compareWithList holds what was found to the list. With REWRITE set the list is written anew, with what is found for a reason.
func (c *corpus) compareWithList(t *testing.T) {
	raw, err := os.ReadFile(corpusExceptions)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		if file, rest, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "#") {
			reason, expr, _ := strings.Cut(rest, "\t")
			listed[file+"\t"+expr] = reason
		}
	}
	if os.Getenv("REWRITE") != "" {
		c.write(t, listed)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(c.found)) {
		if _, ok := listed[key]; !ok {
			t.Errorf("not in %s: %s: %s", corpusExceptions, key, c.found[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(listed)) {
		if _, ok := c.found[key]; !ok {
			t.Errorf("in %s, and yet it passes, or is no longer in the scripts: %s", corpusExceptions, key)
		}
	}
}

func (c *corpus) write(t *testing.T, listed map[string]string) {
	var b strings.Builder
	b.WriteString("# Evaluations of Prometheus' PromQL test scripts that the service answers otherwise: script, reason, expression.\n")
	for _, key := range slices.Sorted(maps.Keys(c.found)) {
		file, expr, _ := strings.Cut(key, "\t")
		fmt.Fprintf(&b, "%s\t%s\t%s\n", file, cmp.Or(listed[key], strings.Join(strings.Fields(c.found[key]), " ")), expr)
	}
	if err := os.WriteFile(corpusExceptions, []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
}
