package query_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	commonmodel "github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"tidemark/log"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
)

// sourceFunc is a source whose reads a test takes into its own hands.
type sourceFunc struct {
	query.Source
	read func(context.Context, []query.Request) (*query.Snapshot, error)
}

func (s sourceFunc) Read(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
	return s.read(ctx, reqs)
}

// model holds n series of m over ten minutes, everything closed, in panes of a minute.
func model(t testing.TB, n int) *querytest.Model {
	t.Helper()
	p := &plan.Plan{Format: 1, Streams: []plan.Stream{{
		ID: 7, Matchers: []plan.Matcher{{Type: "=", Name: "__name__", Value: "m"}}, PaneMillis: 60_000, Closed: plan.Right, Late: plan.Correct,
	}}}
	m := querytest.NewModel(p, nil)
	for i := range n {
		s := querytest.Series{Labels: labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))}
		for at := int64(0); at <= 600_000; at += 30_000 {
			s.T, s.V = append(s.T, at), append(s.V, float64(at/1000))
		}
		m.Add(s)
	}
	m.Barrier(600_000)
	return m
}

func at(expr string, ms int64) query.InstantParams {
	return query.InstantParams{Common: query.Common{Expr: expr}, Time: time.UnixMilli(ms)}
}

// TestQ1_OneRead holds that all leaves are read at once, and what overlaps only once.
func TestQ1_OneRead(t *testing.T) {
	m := model(t, 2)
	var got [][]query.Request
	e := query.New(sourceFunc{m, func(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
		got = append(got, reqs)
		return m.Read(ctx, reqs)
	}}, query.Options{})
	res, err := e.Instant(t.Context(), at(`sum(rate(m[2m])) / count(m offset 4m) + sum(increase(m{i="0"}[1m])) + sum(sum_over_time(m[1m] offset 1m))`, 600_000))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	if len(got) != 1 {
		t.Fatalf("Q1: %d reads: %v", len(got), got)
	}
	want := []string{
		"7 (480000, 600000] m", // rate over 2m, and sum_over_time over 1m one minute ago
		"7 (60000, 360000] m",  // the lookback four minutes ago
		`7 (540000, 600000] i="0" m`,
	}
	if len(got[0]) != len(want) {
		t.Fatalf("requests: %v", got[0])
	}
	for i, r := range got[0] {
		var ms []string
		for _, m := range r.Matchers {
			if m.Name == commonmodel.MetricNameLabel {
				ms = append(ms, m.Value)
			} else {
				ms = append(ms, m.String())
			}
		}
		if text := fmt.Sprintf("%d (%d, %d] %s", uint64(r.Stream), r.From, r.To, strings.Join(ms, " ")); text != want[i] {
			t.Errorf("request %d: %s, want %s", i, text, want[i])
		}
	}
	if res.Stats.Leaves != 4 || res.Stats.Reads != 1 || res.Stats.Series != 5 {
		t.Errorf("stats: %+v", res.Stats)
	}
}

// TestQ6_Samples holds that points are counted as they are made, in the engine's words; where an aggregation takes them at once,
// those of its groups.
func TestQ6_Samples(t *testing.T) {
	e := query.New(model(t, 100), query.Options{MaxSamples: 500})
	for _, expr := range []string{"m", "rate(m[1m])", "sum by (i) (count_over_time(m[1m]))", "sum(count_over_time(m[1m]))", "absent_over_time(m[1m])", "max_over_time(absent_over_time(m[1m])[10m:1m])"} {
		_, err := e.Range(t.Context(), query.RangeParams{Common: query.Common{Expr: expr}, Start: time.UnixMilli(0), End: time.UnixMilli(600_000), Step: time.Minute})
		if strings.Contains(expr, "absent") || strings.HasPrefix(expr, "sum(") {
			if err != nil {
				t.Errorf("%s: %v", expr, err)
			}
			continue
		}
		if want := promql.ErrTooManySamples("query execution"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", expr, err, want)
		}
		if query.KindOf(err) != query.KindExecution {
			t.Errorf("%s: kind %s", expr, query.KindOf(err))
		}
	}
	// Nothing is allocated for steps before they are known to fit.
	_, err := e.Instant(t.Context(), at("count_over_time(absent_over_time(m[1m] @ 60)[1000000d:1ms])", 600_000))
	if err == nil {
		t.Error("a subquery of 8.64e13 steps was answered")
	}
}

// TestQ6_Sizes holds that oversized expressions are refused as bad data, before anything is read.
func TestQ6_Sizes(t *testing.T) {
	m := model(t, 1)
	e := query.New(m, query.Options{})
	regexp := func(n int) string { return `m{i=~"0|` + strings.Repeat("a", n-2) + `"}` }
	for _, tc := range []struct {
		name, expr string
		refused    string
	}{
		{"a query of 64 KiB", regexp(64 << 10), ""},
		{"the longest regexp", regexp(query.MaxRegexpBytes), ""},
		{"a longer regexp", regexp(query.MaxRegexpBytes + 1), "regular expression"},
		{"many selectors", "m" + strings.Repeat(" or m", query.MaxLeaves-1), ""},
		{"more selectors", "m" + strings.Repeat(" or m", query.MaxLeaves-1) + " or (m or m)", "selectors"},
		{"deep", strings.Repeat("(", query.MaxTokens/2-1) + "1" + strings.Repeat(")", query.MaxTokens/2-1), ""},
		{"deep unary", strings.Repeat("-", query.MaxTokens-2) + "m", ""},
		{"deeper", strings.Repeat("(", query.MaxTokens) + "1" + strings.Repeat(")", query.MaxTokens), "tokens"},
		{"nested", strings.Repeat("sum(", query.MaxNesting) + "m" + strings.Repeat(")", query.MaxNesting), ""},
		{"nested deeper", strings.Repeat("sum(", query.MaxNesting+1) + "m" + strings.Repeat(")", query.MaxNesting+1), "nested"},
		{"a chain", "m" + strings.Repeat("+1", query.MaxLeaves), ""},
		{"a longer chain", "m" + strings.Repeat("+1", query.MaxLeaves+1), "nested"},
		{"long", `"` + strings.Repeat("x", query.MaxExpressionBytes) + `"`, "bytes"},
	} {
		res, err := e.Instant(t.Context(), at(tc.expr, 600_000))
		switch {
		case tc.refused == "" && err != nil:
			t.Errorf("%s: %.200v", tc.name, err)
		case tc.refused == "":
			res.Close()
		case err == nil || query.KindOf(err) != query.KindBadData || !strings.Contains(err.Error(), tc.refused):
			t.Errorf("%s: %.200v", tc.name, err)
		}
	}
}

// TestQ6_Timeout holds that waiting for the panes ends with the query's own timeout, the engine's, or the caller.
func TestQ6_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := query.New(sourceFunc{model(t, 1), func(ctx context.Context, _ []query.Request) (*query.Snapshot, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("waiting for the panes: %w", ctx.Err())
		}}, query.Options{Timeout: time.Minute})
		for _, tc := range []struct{ asked, want time.Duration }{{0, time.Minute}, {time.Second, time.Second}, {time.Hour, time.Minute}} {
			p := at("m", 60_000)
			p.Timeout = tc.asked
			start := time.Now()
			_, err := e.Instant(t.Context(), p)
			if query.KindOf(err) != query.KindTimeout || time.Since(start) != tc.want {
				t.Errorf("timeout %s: %v after %s", tc.asked, err, time.Since(start))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := e.Instant(ctx, at("m", 60_000)); query.KindOf(err) != query.KindCanceled {
			t.Errorf("canceled: %v", err)
		}
	})
}

// TestConcurrency holds that queries beyond the limit wait, and that waiting ends with the caller.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model(t, 1)
		gate, inside := make(chan struct{}), 0
		e := query.New(sourceFunc{m, func(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
			inside++
			<-gate
			return m.Read(ctx, reqs)
		}}, query.Options{MaxConcurrency: 1})
		done := make(chan error, 2)
		for range 2 {
			go func() {
				res, err := e.Instant(t.Context(), at("m", 60_000))
				if err == nil {
					res.Close()
				}
				done <- err
			}()
		}
		synctest.Wait()
		if inside != 1 {
			t.Fatalf("%d queries read at one time", inside)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.Instant(ctx, at("1", 0)); query.KindOf(err) != query.KindCanceled {
			t.Errorf("in the queue: %v", err)
		}
		close(gate)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// lagging is an exact copy that has nothing before it is released.
type lagging struct {
	storage.Queryable
	released <-chan struct{}
}

func (l lagging) Wait(ctx context.Context, _ bool) (log.Seq, error) {
	select {
	case <-l.released:
		return 1, nil
	default:
	}
	select {
	case <-l.released:
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (lagging) Oldest() int64 { return math.MinInt64 }

// TestConcurrency_TheCopyLags holds that queries which wait for the exact copy alone keep no place from others, take one again before
// they are evaluated, and end with their timeout.
func TestConcurrency_TheCopyLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		e := query.New(model(t, 1), query.Options{MaxConcurrency: 1, Exact: lagging{oracle.Storage(nil), released}})
		done := make(chan error, 3)
		for range cap(done) {
			go func() {
				res, err := e.Instant(t.Context(), at("nobody_planned_this", 60_000))
				if err == nil {
					res.Close()
				}
				done <- err
			}()
		}
		synctest.Wait()
		res, err := e.Instant(t.Context(), at("m", 60_000)) // would wait for its place, and for ever
		if err != nil {
			t.Fatal(err)
		}
		res.Close()
		p := at("nobody_planned_this", 60_000)
		p.Timeout = time.Second
		if _, err := e.Instant(t.Context(), p); query.KindOf(err) != query.KindTimeout || !strings.Contains(err.Error(), "exact copy") {
			t.Errorf("%v; want a timeout that names the exact copy", err)
		}
		close(released)
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if res, err = e.Instant(t.Context(), at("m", 60_000)); err != nil { // all places are free
			t.Fatal(err)
		}
		res.Close()
	})
}

// TestConcurrency_TheCopyLagsBehindPanes holds the same of those who need the copy beside panes: behind a name, or in another part of the
// expression. What they have read until then is given up.
func TestConcurrency_TheCopyLagsBehindPanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model(t, 1)
		m.Plan().Materializations = []plan.Materialization{
			{Name: "named", Expr: "sum_over_time(m[1m])", EveryMillis: 60_000, Layout: plan.LayoutFullWindow, Streams: []plan.StreamID{7}},
		}
		m.MarkIncomplete(7, m.Series()[0].Labels, 300_000)
		released := make(chan struct{})
		e := query.New(m, query.Options{MaxConcurrency: 1, Exact: lagging{oracle.Storage(m.Series()), released}})
		done := make(chan error, 5)
		for _, expr := range []string{"named", "sum(named) + sum(m)", "sum_over_time(m[1m] offset 1m) + on () absent(nobody_planned_this)"} {
			go func() {
				res, err := e.Instant(t.Context(), at(expr, 300_000))
				if err == nil {
					if v := res.Value.(promql.Vector); len(v) != 1 || res.Route != query.RouteHybrid || res.Seq != 1 {
						err = fmt.Errorf("%s: %v by route %s as of %d", expr, v, res.Route, res.Seq)
					}
					res.Close()
				}
				done <- err
			}()
		}
		name := labels.MustNewMatcher(labels.MatchEqual, "__name__", "named")
		go func() {
			_, _, err := e.RecordedSamples(t.Context(), 300_000, 300_000, name)
			done <- err
		}()
		go func() {
			_, _, err := e.RecordedSeries(t.Context(), [][]*labels.Matcher{{name}}, 300_000, 300_000, false)
			done <- err
		}()
		synctest.Wait()
		res, err := e.Instant(t.Context(), at("m", 600_000)) // would wait for its place, and for ever
		if err != nil {
			t.Fatal(err)
		}
		res.Close()
		p := at("named", 300_000)
		p.Timeout = time.Second
		if _, err := e.Instant(t.Context(), p); query.KindOf(err) != query.KindTimeout || !strings.Contains(err.Error(), "exact copy") {
			t.Errorf("%v; want a timeout that names the exact copy", err)
		}
		close(released)
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSourceErrors holds that a failing read is an internal error that keeps its cause.
func TestSourceErrors(t *testing.T) {
	m, broken := model(t, 1), errors.New("shard 3 is broken")
	e := query.New(sourceFunc{m, func(context.Context, []query.Request) (*query.Snapshot, error) { return nil, broken }}, query.Options{})
	if _, err := e.Instant(t.Context(), at("m", 60_000)); query.KindOf(err) != query.KindInternal || !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	e = query.New(sourceFunc{m, func(context.Context, []query.Request) (*query.Snapshot, error) { return &query.Snapshot{}, nil }}, query.Options{})
	if _, err := e.Instant(t.Context(), at("m", 60_000)); query.KindOf(err) != query.KindInternal {
		t.Errorf("%v", err)
	}
	// What reads nothing does not need the source.
	res, err := e.Instant(t.Context(), at("vector(1)", 60_000))
	if err != nil {
		t.Fatal(err)
	}
	res.Close()
}

// TestPlanChange holds that another plan in force is seen at once, and that a stream which is dropped between planning and
// reading is a miss.
func TestPlanChange(t *testing.T) {
	m := model(t, 1)
	e := query.New(m, query.Options{})
	ask := func() error {
		res, err := e.Instant(t.Context(), at("m", 600_000))
		if err == nil {
			res.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	old := m.Plan()
	m.Replace(&plan.Plan{Format: 1})
	var miss *query.MissError
	if err := ask(); !errors.As(err, &miss) || miss.Reason != query.ReasonNoMaterialization {
		t.Errorf("after the stream is gone: %v", err)
	}
	m.Replace(old)
	e = query.New(sourceFunc{m, func(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
		m.Replace(&plan.Plan{Format: 1})
		return m.Read(ctx, reqs)
	}}, query.Options{})
	if err := ask(); !errors.As(err, &miss) || miss.Reason != query.ReasonNoMaterialization {
		t.Errorf("dropped while reading: %v", err)
	}
}

// TestMetrics holds that answers and misses are counted by route and reason, and that errors are neither.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := query.New(model(t, 1), query.Options{Registerer: reg})
	for _, p := range []query.InstantParams{at("m", 60_000), at("1", 0), at("m", 61_000), at("m", 660_000), at("m m", 0)} {
		if res, err := e.Instant(t.Context(), p); err == nil {
			res.Close()
		}
	}
	const want = `
# HELP tidemark_query_answers_total Queries answered, by route.
# TYPE tidemark_query_answers_total counter
tidemark_query_answers_total{route="warm"} 2
# HELP tidemark_query_misses_total Queries that panes could not answer, by the reason of the first miss.
# TYPE tidemark_query_misses_total counter
tidemark_query_misses_total{reason="off_grid"} 1
tidemark_query_misses_total{reason="unpublished"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "tidemark_query_answers_total", "tidemark_query_misses_total"); err != nil {
		t.Error(err)
	}
}

func TestRangeStep(t *testing.T) {
	e := query.New(model(t, 1), query.Options{})
	for _, step := range []time.Duration{0, -time.Second, time.Microsecond} {
		if _, err := e.Range(t.Context(), query.RangeParams{Common: query.Common{Expr: "1"}, Step: step}); query.KindOf(err) != query.KindBadData {
			t.Errorf("step %s: %v", step, err)
		}
	}
	// A range whose end lies before its start has no steps: nothing is read, and nothing missing is missed.
	res, err := e.Range(t.Context(), query.RangeParams{Common: query.Common{Expr: "m + rate(m[1m] @ 7200)"}, Start: time.UnixMilli(60_000), End: time.UnixMilli(0), Step: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	if m, ok := res.Value.(promql.Matrix); !ok || len(m) > 0 || res.Stats.Reads > 0 {
		t.Errorf("%v after %d reads", res.Value, res.Stats.Reads)
	}
}

// A subquery over decades is refused before the engine makes its steps: with or without a selector, nested, and in a range.
func TestSubqueriesAreBounded(t *testing.T) {
	e := query.New(model(t, 1), query.Options{MaxSamples: 100_000})
	for _, expr := range []string{
		"max_over_time(vector(1)[20y:10s])", "max_over_time(vector(time())[290y:10s])", "max_over_time(sum(sum_over_time(counter[1m]))[20y:15s])",
		"max_over_time(max_over_time(vector(1)[1y:1m])[1y:1h])", "vector(1) + max_over_time(vector(1)[20y:10s] @ 60)",
	} {
		_, err := e.Instant(t.Context(), query.InstantParams{Common: query.Common{Expr: expr}, Time: time.UnixMilli(600_000)})
		if err == nil || !strings.Contains(err.Error(), "too many samples") || query.KindOf(err) != query.KindExecution {
			t.Errorf("%s: %v", expr, err)
		}
	}
}
