package query_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
)

// recordedExprs are what the plan of TestQ7_Differential records over the metrics of RandomSeries, with integer values only,
// so that recorded values are exact whatever the order of sums.
var recordedExprs = []string{
	"sum(count_over_time(gauge[1m]))",
	"max by (job) (max_over_time(other_gauge[2m]))",
	"gauge",
	"sum without (instance) (changes(requests_total[1m] offset 1m))",
	"count(requests_total) > 2",
	"absent_over_time(odd_counter[30s])",
	"resets(odd_counter[5m]) or vector(3)",
	"max_over_time(sum(gauge)[2m:30s])",
	"last_over_time(other_gauge[45s])",
}

// recordedPlan adds materializations to the streams of Plan: entries and rules in both layouts, some of which read others.
func recordedPlan(t testing.TB) *plan.Plan {
	t.Helper()
	p := querytest.Plan()
	for i, text := range recordedExprs {
		e, err := plan.NewParser().ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		m := plan.Materialization{Name: fmt.Sprintf("rec%d", i), Expr: e.String(), EveryMillis: querytest.Grid << (i % 3), Layout: plan.LayoutFullWindow}
		for _, s := range p.Streams {
			m.Streams = append(m.Streams, s.ID)
		}
		if i%2 == 0 {
			m.Record, m.Name = m.Name, "group/"+m.Name
			m.Labels = map[string]string{"rule": fmt.Sprint(i)}
			if i == 0 {
				m.Labels["job"] = "sum" // beside a label that the expression has
			}
		}
		p.Materializations = append(p.Materializations, m)
	}
	p.Materializations = append(p.Materializations,
		plan.Materialization{Name: "all0", Expr: "sum(rec0)", EveryMillis: 20_000, Layout: plan.LayoutFullWindow, Reads: []string{"rec0"}},
		plan.Materialization{Name: "delta2", Expr: "max by (job) (delta(rec2[2m])) - min(rec5)", EveryMillis: 30_000, Layout: plan.LayoutFullWindow, Reads: []string{"rec2", "rec5"}},
	)
	return p
}

func randomNamedQuery(rng *rand.Rand) oracle.Query {
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	name := func() string {
		if rng.IntN(4) == 0 {
			return pick("all0", "delta2")
		}
		return fmt.Sprintf("rec%d", rng.IntN(len(recordedExprs)))
	}
	selector := func() string {
		s := name()
		if rng.IntN(8) == 0 {
			s = fmt.Sprintf(`{__name__=~"%s|%s"}`, s, name())
		} else if rng.IntN(3) == 0 {
			s += pick(`{job="a"}`, `{job!="b"}`, `{rule=~"2|4"}`, `{job=""}`)
		}
		return s
	}
	at := func(s string) string { return s + pick("", "", "", " offset 45s", " @ 600", " offset -20s") }
	ranged := func() string { return fmt.Sprintf("%s[%ds]", selector(), 10+rng.IntN(400)) }
	term := func() string {
		switch rng.IntN(5) {
		case 0, 1:
			return at(selector())
		case 2:
			return pick("count_over_time", "max_over_time", "sum_over_time", "changes", "last_over_time", "resets", "present_over_time", "absent_over_time", "rate", "delta", "irate") +
				"(" + at(ranged()) + ")"
		case 3:
			return pick("timestamp", "absent") + "(" + at(selector()) + ")"
		default:
			return fmt.Sprintf("max_over_time(%s[%dm:%ds])", selector(), 1+rng.IntN(5), 7+rng.IntN(60))
		}
	}
	q := oracle.Query{Expr: term(), Start: 60_000 + rng.Int64N(querytest.Span-120_000)}
	switch rng.IntN(4) {
	case 0:
		q.Expr = pick("sum", "max by (job)", "count without (instance)") + "(" + q.Expr + ")"
	case 1:
		q.Expr += pick(" or ", " and ", " unless ") + term()
	}
	anyTimes(rng, &q)
	// Rates and sums of what is not integer are relative to their terms.
	q.Terms.Sum = 1e7
	return q
}

// TestQ7_Differential holds that a name stands for what Prometheus' rules would have recorded: values at the steps of the
// materialization's grid, with stale markers where a series ends, whatever the times of the query.
func TestQ7_Differential(t *testing.T) {
	const each = 400
	fresh := uint64(time.Now().UnixNano())
	answered, values, mended, missed := 0, 0, 0, map[string]int{}
	for _, seed := range []uint64{1, 2, 3, fresh} {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := recordedPlan(t)
		model := querytest.NewModel(p, querytest.RandomSeries(rng))
		model.Barrier(2 * querytest.Span)
		all, err := querytest.Record(t.Context(), p, model.Series(), -querytest.Span/2, 2*querytest.Span)
		if err != nil {
			t.Fatal(err)
		}
		engine, reference, data := query.New(model, query.Options{}), oracle.NewEngine(50_000_000), oracle.Storage(all)
		for i := range each {
			q := randomNamedQuery(rng)
			res, err := answer(t.Context(), engine, q)
			got := oracle.Outcome{Err: err}
			if err == nil {
				got = oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
			} else if query.KindOf(err) == query.KindExecution && strings.Contains(err.Error(), "not answerable") {
				missed[err.Error()]++
				continue
			}
			want := oracle.Ask(t.Context(), reference, data, q)
			if err := oracle.Compare(got, want, q.Terms); err != nil {
				t.Errorf("seed %d, query %d: %s: %v", seed, i, q, err)
			}
			if err == nil {
				if m, ok := res.Value.(promql.Matrix); ok {
					values += len(m)
				}
				res.Close()
			}
			answered++
		}
		mended += askLossy(t, rng, model, reference, data)
	}
	t.Logf("fresh seed %d: %d answered, %d series, missed %v; %d with the help of the copy", fresh, answered, values, missed, mended)
	if mended < 200 {
		t.Errorf("the copy helped with %d queries only", mended)
	}
	if answered < 1400 || values < 500 {
		t.Errorf("the generator has lost its force: %d answered, %d series, missed %v", answered, values, missed)
	}
}

// askLossy asks a model of which a tenth of the buckets lost samples, beside a copy that has them all: no query misses, and a name stands for
// the same. It returns how many queries panes alone would not have answered.
func askLossy(t *testing.T, rng *rand.Rand, model *querytest.Model, reference *promql.Engine, data storage.Queryable) (mended int) {
	t.Helper()
	for _, s := range model.Plan().Streams {
		for _, series := range model.Series() {
			for end := int64(0); end < querytest.Span; end += s.PaneMillis {
				if rng.IntN(10) == 0 {
					model.MarkIncomplete(s.ID, series.Labels, end)
				}
			}
		}
	}
	open := make(chan struct{})
	close(open)
	engine := query.New(model, query.Options{Exact: lagging{oracle.Storage(model.Series()), open}, Live: func() bool { return true }})
	for range 150 {
		q := randomNamedQuery(rng)
		res, err := answer(t.Context(), engine, q)
		got := oracle.Outcome{Err: err}
		if err == nil {
			got = oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
			if res.Miss != "" {
				mended++
				if res.Miss != query.ReasonLateUncorrectable || res.Route != query.RouteHybrid || res.Stats.Raw == 0 {
					t.Errorf("%s: %s, %s, %+v", q, res.Miss, res.Route, res.Stats)
				}
			}
		}
		if err := oracle.Compare(got, oracle.Ask(t.Context(), reference, data, q), q.Terms); err != nil {
			t.Errorf("with buckets that lost samples: %s: %v", q, err)
		}
		if err == nil {
			res.Close()
		}
	}
	return mended
}

// randomMixedQuery asks of names of which some are recorded and some are not, and by functions that panes do not answer. The second
// text is what means the same where recorded series are written.
func randomMixedQuery(rng *rand.Rand) (q oracle.Query, meant string) {
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	const bare = `{job=~"a|b",instance!="nobody"}`
	selector := func() string {
		return pick(`{__name__=~"rec.*|gauge"}`, `{__name__=~"rec[0-4]|requests_total",job=~"a|b|sum"}`, `{__name__!~"rec[1-3]|odd.*",job!=""}`,
			`{__name__=~".+"}`, `{__name__=~"rec0|gauge|nothing"}`, `{__name__=~"all.|del.*"}`, "rec2", "rec0", "gauge", bare)
	}
	at := func(s string) string { return s + pick("", "", "", " offset 45s", " @ 600", " offset -20s") }
	ranged := func() string { return fmt.Sprintf("%s[%ds]", selector(), 10+rng.IntN(400)) }
	term := func() string {
		switch rng.IntN(6) {
		case 0, 1:
			return at(selector())
		case 2:
			return pick("last_over_time", "count_over_time", "max_over_time", "absent_over_time") + "(" + at(ranged()) + ")"
		case 3:
			return pick("timestamp", "absent") + "(" + at(selector()) + ")"
		case 4:
			return pick("double_exponential_smoothing(%s, 0.5, 0.1)", "quantile_over_time(scalar(rec4), %s)", "max_over_time(double_exponential_smoothing(%s, 0.5, 0.1)[3m:25s])")
		default:
			return fmt.Sprintf("max_over_time(%s[%dm:%ds])", at(selector()), 1+rng.IntN(5), 7+rng.IntN(60))
		}
	}
	text := term()
	if strings.Contains(text, "%s") {
		text = fmt.Sprintf(text, at(ranged()))
	}
	q = oracle.Query{Expr: text, Start: 60_000 + rng.Int64N(querytest.Span-120_000)}
	if rng.IntN(2) == 0 {
		q.Expr = pick("sum", "max by (job, __name__)", "count by (__name__)", "group by (__name__, job)") + "(" + q.Expr + ")"
	}
	anyTimes(rng, &q)
	q.Terms.Sum = 1e9
	written := `{job=~"a|b",instance!="nobody",__name__!~"rec.|all0|delta2"}`
	return q, strings.ReplaceAll(q.Expr, bare, written)
}

// TestQ9_Differential holds that selectors which may mean recorded and written series find both, as if the first were written, that a
// written series under the name of a recorded one is found by nobody, and that functions which panes do not know read what is recorded.
func TestQ9_Differential(t *testing.T) {
	const each = 500
	open := make(chan struct{})
	close(open)
	fresh := uint64(time.Now().UnixNano())
	routes := map[string]int{}
	for _, seed := range []uint64{1, 2, fresh} {
		rng := rand.New(rand.NewPCG(seed, 9))
		p := recordedPlan(t)
		model := querytest.NewModel(p, querytest.RandomSeries(rng))
		model.Barrier(2 * querytest.Span)
		all, err := querytest.Record(t.Context(), p, model.Series(), -querytest.Span/2, 2*querytest.Span)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			foreign := querytest.Series{Labels: labels.FromStrings("__name__", fmt.Sprintf("rec%d", 2*i), "job", "a", "instance", "foreign")}
			for at := int64(0); at < querytest.Span; at += 5000 {
				foreign.T, foreign.V = append(foreign.T, at), append(foreign.V, 1e6)
			}
			model.Add(foreign)
		}
		exact := lagging{oracle.Storage(model.Series()), open}
		engine, reference, data := query.New(model, query.Options{Exact: exact, Live: func() bool { return true }}), oracle.NewEngine(50_000_000), oracle.Storage(all)
		for i := range each {
			q, meant := randomMixedQuery(rng)
			res, err := answer(t.Context(), engine, q)
			got := oracle.Outcome{Err: err}
			if err == nil {
				got = oracle.Outcome{Value: res.Value}
				routes[res.Route]++
			}
			asked := q
			asked.Expr = meant
			want := oracle.Ask(t.Context(), reference, data, asked)
			want.Warnings, want.Infos = nil, nil // their places in the text differ
			if err := oracle.Compare(got, want, q.Terms); err != nil {
				t.Errorf("seed %d, query %d: %s: %v", seed, i, q, err)
			}
			if err == nil {
				res.Close()
			}
		}
	}
	if routes[query.RouteHybrid] < each/4 || routes[query.RouteLocal] == 0 {
		t.Errorf("routes: %v", routes)
	}
}

// anyTimes makes a range of half of the queries, and puts a third of them on the grid.
func anyTimes(rng *rand.Rand, q *oracle.Query) {
	if rng.IntN(2) == 0 {
		q.Step = 1 + rng.Int64N(60_000)
		q.End = min(q.Start+rng.Int64N(40)*q.Step, querytest.Span)
	}
	if rng.IntN(3) == 0 {
		q.Start -= q.Start % querytest.Grid
	}
}
