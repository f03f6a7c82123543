package querytest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// The random data lies in (0, Span], ms, and panes of Grid divide everything that RandomExpr asks for.
const (
	Span = int64(20 * 60 * 1000)
	Grid = int64(15 * 1000)
)

// The metrics of RandomSeries. Integers have integer values: sums are exact whatever the order. Fractions have not, so
// only their terms bound the error, and RandomExpr keeps them from comparisons.
var (
	counters  = []string{"requests_total", "odd_counter"}
	integers  = []string{"gauge", "other_gauge"}
	fractions = []string{"temperature"}
)

// Plan returns streams for everything that RandomSeries makes: per metric, panes of Grid and of a minute; and one stream
// for all jobs, so that selectors without a name have one too.
func Plan() *plan.Plan {
	p := &plan.Plan{Format: 1}
	add := func(pane int64, ms ...plan.Matcher) {
		p.Streams = append(p.Streams, plan.Stream{
			ID: plan.StreamID(len(p.Streams) + 1), Matchers: ms, PaneMillis: pane, Closed: plan.Right, Late: plan.Correct,
		})
	}
	for _, name := range []string{"requests_total", "odd_counter", "gauge", "other_gauge", "temperature", "latency_bucket", "special"} {
		for _, pane := range []int64{Grid, 4 * Grid} {
			add(pane, plan.Matcher{Type: "=", Name: "__name__", Value: name})
		}
	}
	add(2*Grid, plan.Matcher{Type: "=~", Name: "job", Value: ".+"})
	add(Grid, plan.Matcher{Type: "=~", Name: "job", Value: ".+"})
	return p
}

// RandomSeries makes series of all metrics: counters with resets, gauges, classic histograms, values that are not finite,
// on steady and on jittered rhythms, with gaps, stale markers, late starts and early ends.
func RandomSeries(rng *rand.Rand) []Series {
	var all []Series
	for _, name := range append(append([]string{}, counters...), integers...) {
		for _, job := range []string{"a", "b"} {
			for i := range 1 + rng.IntN(3) {
				s := rhythm(rng, labels.FromStrings("__name__", name, "job", job, "instance", strconv.Itoa(i)))
				walk(rng, &s, name == "requests_total" || name == "odd_counter")
				all = append(all, s)
			}
		}
	}
	for i := range 3 {
		s := rhythm(rng, labels.FromStrings("__name__", "temperature", "job", "c", "instance", strconv.Itoa(i)))
		for k := range s.V {
			if !value.IsStaleNaN(s.V[k]) {
				s.V[k] = math.Round(rng.NormFloat64()*1e4) / 1e3
			}
		}
		all = append(all, s)
	}
	s := rhythm(rng, labels.FromStrings("__name__", "special", "job", "d"))
	for k := range s.V {
		if !value.IsStaleNaN(s.V[k]) {
			s.V[k] = []float64{0, 1, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 7}[rng.IntN(7)]
		}
	}
	return append(append(all, s), histograms(rng)...)
}

// rhythm makes the times of a series, with 0 for values and markers where the series goes stale.
func rhythm(rng *rand.Rand, l labels.Labels) Series {
	s := Series{Labels: l}
	every := []int64{500, 1000, 5000, 10000, 15000, 15000, 30000, 60000}[rng.IntN(8)]
	t, end := every*int64(rng.IntN(4)), Span
	if rng.IntN(4) == 0 {
		t += rng.Int64N(Span)
	}
	if rng.IntN(4) == 0 {
		end = rng.Int64N(Span)
	}
	jitter := rng.IntN(2) == 0
	for ; t <= end; t += every {
		at := t
		if jitter {
			at += rng.Int64N(every)
		}
		switch rng.IntN(60) {
		case 0:
			s.T, s.V = append(s.T, at), append(s.V, math.Float64frombits(value.StaleNaN))
			t += rng.Int64N(4) * every
		case 1:
			t += rng.Int64N(300_000) / every * every
		default:
			s.T, s.V = append(s.T, at), append(s.V, 0)
		}
	}
	return s
}

// walk gives a series integer values: a counter that now and then falls back, or a gauge that often stays.
func walk(rng *rand.Rand, s *Series, counter bool) {
	v := float64(rng.IntN(1000))
	for i := range s.V {
		switch {
		case counter && rng.IntN(25) == 0:
			v = float64(rng.IntN(5))
		case counter:
			v += float64(rng.IntN(40))
		case rng.IntN(3) > 0:
			v += float64(rng.IntN(41) - 20)
		}
		if !value.IsStaleNaN(s.V[i]) {
			s.V[i] = v
		}
	}
}

// histograms makes the buckets of classic histograms, each job's on one rhythm.
func histograms(rng *rand.Rand) []Series {
	var all []Series
	for _, job := range []string{"a", "b"} {
		base := rhythm(rng, labels.EmptyLabels())
		bounds := []string{"0.1", "0.5", "1", "+Inf"}
		counts := make([]float64, len(bounds))
		series := make([]Series, len(bounds))
		for b, le := range bounds {
			series[b] = Series{Labels: labels.FromStrings("__name__", "latency_bucket", "job", job, "le", le), T: base.T, V: make([]float64, len(base.T))}
		}
		for i := range base.T {
			n := 0.0
			for b := range bounds {
				n += float64(rng.IntN(6))
				counts[b] += n
				series[b].V[i] = counts[b]
				if value.IsStaleNaN(base.V[i]) {
					series[b].V[i] = base.V[i]
				}
			}
		}
		all = append(all, series...)
	}
	return all
}

// Generator makes random expressions over the metrics of RandomSeries.
type Generator struct {
	rng *rand.Rand
	// exact says that the values of the expression being made do not depend on the order of sums: then anything may be
	// asked of them. Otherwise only what is continuous and well-conditioned is.
	exact bool
}

// RandomQuery makes an instant or a range query that panes of Plan can answer, unless it asks for what panes cannot.
func RandomQuery(rng *rand.Rand) oracle.Query {
	g := &Generator{rng: rng, exact: rng.IntN(5) > 0}
	q := oracle.Query{Expr: g.vector(2 + rng.IntN(2))}
	if g.exact && rng.IntN(8) == 0 {
		q.Expr = g.pick("", "sort", "sort_desc", "topk", "bottomk")
		switch plain := g.plain(); q.Expr {
		case "":
			q.Expr = plain
		case "topk", "bottomk":
			q.Expr += "(3, " + plain + ")"
		default:
			q.Expr += "(" + plain + ")"
		}
		q.Terms.Ordered = true
	}
	if !g.exact {
		q.Terms.Sum = 1e6
	}
	q.Start = Grid * (rng.Int64N(Span/Grid+8) + 1)
	if rng.IntN(12) == 0 {
		q.Lookback = Grid * (1 + rng.Int64N(8))
	}
	if rng.IntN(2) == 0 {
		return q
	}
	q.Start = Grid * (rng.Int64N(Span/Grid/2) + 1)
	q.Step = Grid * (1 + rng.Int64N(8))
	q.End = q.Start + Grid*rng.Int64N((Span-q.Start)/Grid)
	if !strings.Contains(q.Expr, "end()") {
		q.End += rng.Int64N(Grid)
	}
	return q
}

// RandomExpr makes an expression of at most the given depth above its leaves.
func RandomExpr(rng *rand.Rand, depth int) string {
	return (&Generator{rng: rng, exact: true}).vector(depth)
}

func (g *Generator) pick(s ...string) string { return s[g.rng.IntN(len(s))] }

func (g *Generator) duration(units int64) string {
	return strconv.FormatInt((1+g.rng.Int64N(units))*Grid/1000, 10) + "s"
}

// vector makes an instant vector.
func (g *Generator) vector(depth int) string {
	if depth <= 0 {
		return g.leaf()
	}
	in := func() string { return g.vector(depth - 1) }
	if !g.exact {
		return g.smooth(depth)
	}
	switch g.rng.IntN(21) {
	case 0, 1, 2:
		return fmt.Sprintf("%s%s (%s)", g.pick("sum", "count", "min", "max", "avg", "group", "stddev"), g.grouping(), in())
	case 3:
		return fmt.Sprintf("%s%s (%d, %s)", g.pick("topk", "bottomk", "limitk"), g.grouping(), g.rng.IntN(4), g.plain())
	case 4:
		return fmt.Sprintf("quantile%s (%s, %s)", g.grouping(), g.pick("0.5", "0.9", "2", "-1", "NaN"), in())
	case 5:
		// Rounded, because the label that it makes shows every bit of a value.
		return fmt.Sprintf("count_values%s (\"v\", round(%s))", g.grouping(), in())
	case 6, 7:
		return fmt.Sprintf("(%s) %s %s(%s)", in(), g.pick("+", "-", "*", "/", "%", "==", "> bool", "<"), g.matching(), in())
	case 8:
		return fmt.Sprintf("(%s) %s %s(%s)", in(), g.pick("and", "or", "unless"), g.pick("", "on (job) ", "ignoring (instance) "), in())
	case 9:
		return fmt.Sprintf("(%s) %s %s", in(), g.pick("+", "*", ">", "!=", "< bool"), g.pick("2", "0.5", "-1", "time()", "scalar("+in()+")"))
	case 10:
		return fmt.Sprintf("%s(%s)", g.pick("abs", "ceil", "sgn", "sort", "sort_desc", "timestamp", "absent", "round", "-"), in())
	case 11:
		return fmt.Sprintf("histogram_quantile(%s, %s)", g.pick("0.5", "0.99", "-1", "1.5"), g.buckets())
	case 12:
		return fmt.Sprintf(`label_replace(%s, "x", "$1", "job", "(.*)")`, in())
	case 13:
		return fmt.Sprintf(`label_join(%s, "y", "-", "job", "instance")`, in())
	case 14, 15:
		return g.subquery(in())
	case 16:
		return fmt.Sprintf("(%s) or vector(%d)", in(), g.rng.IntN(3))
	case 17:
		return fmt.Sprintf("vector(scalar(%s))", in())
	case 18:
		return fmt.Sprintf("clamp(%s, -5, 50)", in())
	case 19:
		return fmt.Sprintf("(%s) %s on (job) group_left sum by (job) (%s)", in(), g.pick("+", "/", "-"), in())
	default:
		return in()
	}
}

// smooth makes a vector over fractions, where only continuous functions are asked for.
func (g *Generator) smooth(depth int) string {
	in := func() string { return g.vector(depth - 1) }
	switch g.rng.IntN(6) {
	case 0, 1:
		return fmt.Sprintf("%s%s (%s)", g.pick("sum", "avg", "min", "max", "count"), g.grouping(), in())
	case 2:
		return fmt.Sprintf("(%s) %s 2", in(), g.pick("+", "*", "/"))
	case 3:
		return "-(" + in() + ")"
	case 4:
		return fmt.Sprintf("(%s) or (%s)", in(), in())
	default:
		return in()
	}
}

func (g *Generator) grouping() string {
	return g.pick("", "", " by (job)", " by (instance)", " without (instance)", " by (job, le)", " without (job)")
}

func (g *Generator) matching() string {
	return g.pick("", "", "", "ignoring (v) ", "on (job, instance) ", "on (job) group_left () ", "on (instance) ")
}

func (g *Generator) buckets() string {
	return g.pick(
		fmt.Sprintf("sum by (job, le) (rate(latency_bucket[%s]))", g.duration(20)),
		fmt.Sprintf("rate(latency_bucket[%s]%s)", g.duration(20), g.modifier()),
		fmt.Sprintf("sum by (le) (increase(latency_bucket{job=\"a\"}[%s]))", g.duration(20)),
		"latency_bucket",
	)
}

// modifier makes an offset, an @, both, or nothing.
func (g *Generator) modifier() string {
	switch g.rng.IntN(12) {
	case 0, 1:
		return " offset " + g.duration(20)
	case 2:
		return " offset -" + g.duration(8)
	case 3:
		return " @ " + strconv.FormatInt(Grid*g.rng.Int64N(Span/Grid)/1000, 10)
	case 4:
		return g.pick(" @ start()", " @ end()")
	case 5:
		return fmt.Sprintf(" @ %d offset %s", Grid*g.rng.Int64N(Span/Grid)/1000, g.duration(10))
	default:
		return ""
	}
}

func (g *Generator) subquery(inner string) string {
	step := g.pick(":", ":1m", ":30s", ":15s", ":2m")
	fn := g.pick("max_over_time", "min_over_time", "count_over_time", "sum_over_time", "last_over_time", "rate", "changes", "absent_over_time", "delta", "present_over_time")
	return fmt.Sprintf("%s((%s)[%s%s]%s)", fn, inner, g.duration(24), step, g.modifier())
}

func (g *Generator) selector() string {
	name := g.pick(append(append([]string{}, counters...), integers...)...)
	if !g.exact {
		name = g.pick(fractions...)
	}
	var with []string
	switch g.rng.IntN(8) {
	case 0:
		with = append(with, `job="a"`)
	case 1:
		with = append(with, `job!="b"`)
	case 2:
		with = append(with, `instance=~"0|1"`)
	case 3:
		with = append(with, `job="a"`, `instance="0"`)
	case 4:
		if g.exact {
			return g.pick(`{job=~"a|b",__name__=~"gauge|other_gauge"}`, `{job="a",__name__=~".*_total"}`, `{__name__=~"gauge|requests_total",job="b"}`)
		}
	}
	if len(with) == 0 {
		return name
	}
	return name + "{" + strings.Join(with, ",") + "}"
}

// plain makes a leaf whose series the engine itself gives in label order, where it leaves the order of others to chance.
func (g *Generator) plain() string {
	name := g.pick(append(append([]string{}, counters...), integers...)...)
	if g.rng.IntN(3) == 0 {
		return name + g.modifier()
	}
	return g.pick("rate", "delta", "sum_over_time", "max_over_time", "count_over_time", "last_over_time") + "(" + name + "[" + g.duration(24) + "]" + g.modifier() + ")"
}

// leaf makes what panes answer whole.
func (g *Generator) leaf() string {
	sel, mod := g.selector(), g.modifier()
	ranged := fmt.Sprintf("%s[%s]%s", sel, g.duration(24), mod)
	if !g.exact {
		return g.pick("sum_over_time(", "avg_over_time(", "max_over_time(", "last_over_time(", "count_over_time(", "quantile_over_time(0.3, ") + ranged + ")"
	}
	switch g.rng.IntN(16) {
	case 0, 1:
		return sel + mod
	case 2:
		return "timestamp(" + sel + mod + ")"
	case 3:
		return "absent(" + sel + mod + ")"
	case 4:
		return "absent_over_time(" + ranged + ")"
	case 5:
		return fmt.Sprintf("quantile_over_time(%s, %s)", g.pick("0.5", "0.95", "0", "1", "1.2", "-0.1", "1/3"), ranged)
	case 6:
		return fmt.Sprintf("predict_linear(%s, %s)", ranged, g.pick("60", "3600", "-300"))
	case 7:
		return g.pick("deriv", "stddev_over_time", "stdvar_over_time", "mad_over_time") + "(" + ranged + ")"
	case 8:
		return g.pick("min_over_time", "max_over_time", "last_over_time", "count_over_time", "present_over_time", "sum_over_time", "changes", "resets") +
			"(special[" + g.duration(24) + "]" + mod + ")"
	default:
		return g.pick("rate", "increase", "delta", "irate", "idelta", "resets", "changes", "sum_over_time", "count_over_time", "avg_over_time",
			"min_over_time", "max_over_time", "last_over_time", "first_over_time", "present_over_time") + "(" + ranged + ")"
	}
}
