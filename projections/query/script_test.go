package query_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
)

// script is one file of testdata: a plan, samples in the order in which they come, barriers, and questions. Times are ms.
// Every answer is compared with that of Prometheus' engine over the same samples before it is printed.
type script struct {
	plan   *plan.Plan
	model  *querytest.Model
	engine *query.Engine
}

func runScript(t *testing.T, path string) {
	t.Helper()
	s := &script{}
	s.reset()
	datadriven.RunTest(t, path, s.run)
}

// TestQ5_Planning shows what becomes of expressions: which stream answers which part, at which times, or why none does.
func TestQ5_Planning(t *testing.T) { runScript(t, "testdata/planning") }

// TestQ2_Complete shows what proves an answer complete, and every way in which it is not.
func TestQ2_Complete(t *testing.T) { runScript(t, "testdata/complete") }

// TestQ3_Q4_Hazards shows what a rewriting of expressions could get wrong.
func TestQ3_Q4_Hazards(t *testing.T) { runScript(t, "testdata/hazards") }

// TestQ7_Named shows what the names of materializations and rules read.
func TestQ7_Named(t *testing.T) { runScript(t, "testdata/named") }

func TestCase_C13_SampleOnAWindowEdge(t *testing.T) { runScript(t, "testdata/cases/C13") }

func TestCase_C35_DistinctIsOverTheWholeWindow(t *testing.T) { runScript(t, "testdata/cases/C35") }

// TestSketches shows what is read from sketches, and that the answer says so.
func TestSketches(t *testing.T) { runScript(t, "testdata/sketches") }

func TestCase_C44_StoppedSeriesKeepsNothingCold(t *testing.T) { runScript(t, "testdata/cases/C44") }

func TestCase_D12_LookbackEdge(t *testing.T) { runScript(t, "testdata/cases/D12") }

func TestCase_D16_StartNotAMultipleOfStep(t *testing.T) { runScript(t, "testdata/cases/D16") }

func TestCase_D18_NewestWindowIsOpen(t *testing.T) { runScript(t, "testdata/cases/D18") }

func (s *script) reset() {
	s.plan = &plan.Plan{Format: 1}
	s.model = querytest.NewModel(s.plan, nil)
	s.engine = query.New(s.model, query.Options{})
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	lines := strings.FieldsFunc(d.Input, func(r rune) bool { return r == '\n' })
	switch d.Cmd {
	case "plan":
		s.reset()
		for _, line := range lines {
			s.planLine(t, d, line)
		}
	case "series":
		for _, line := range lines {
			s.model.Add(series(t, d, line))
		}
	case "barrier":
		s.model.Barrier(number(t, d, d.CmdArgs[0].Key))
	case "cover":
		s.model.Cover(plan.StreamID(arg(t, d, "stream")), arg(t, d, "from"))
	case "incomplete":
		s.model.MarkIncomplete(plan.StreamID(arg(t, d, "stream")), series(t, d, lines[0]).Labels, arg(t, d, "end"))
	case "histogram":
		s.model.MarkHistogram(plan.StreamID(arg(t, d, "stream")), series(t, d, lines[0]).Labels, arg(t, d, "end"))
	case "explain":
		var b strings.Builder
		for _, line := range lines {
			b.WriteString(s.explain(t, request(t, d, line)))
		}
		return b.String()
	case "query":
		var b strings.Builder
		for _, line := range lines {
			b.WriteString(s.query(t, d, request(t, d, line)))
		}
		return b.String()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

// planLine reads "stream=1 pane=15000 closed=left origin=0 <selector>", or
// "name=x record=y every=15000 streams=1,2 reads=z label=a:b layout=full_window <expression>".
func (s *script) planLine(t *testing.T, d *datadriven.TestData, line string) {
	st := plan.Stream{Closed: plan.Right, Late: plan.Correct}
	var m plan.Materialization
	for line != "" {
		word, rest, _ := strings.Cut(line, " ")
		key, val, ok := strings.Cut(word, "=")
		if !ok || strings.ContainsAny(key, "{") {
			break
		}
		line = rest
		switch key {
		case "stream":
			st.ID = plan.StreamID(number(t, d, val))
		case "pane":
			st.PaneMillis = number(t, d, val)
		case "origin":
			st.OriginMillis = number(t, d, val)
		case "closed":
			st.Closed = plan.Membership(val)
		case "name":
			m.Name = val
		case "record":
			m.Record = val
		case "layout":
			m.Layout = val
		case "every":
			m.EveryMillis = number(t, d, val)
		case "reads":
			m.Reads = strings.Split(val, ",")
		case "label":
			name, v, _ := strings.Cut(val, ":")
			m.Labels = map[string]string{name: v}
		case "streams":
			for _, id := range strings.Split(val, ",") {
				m.Streams = append(m.Streams, plan.StreamID(number(t, d, id)))
			}
		}
	}
	if st.ID == 0 {
		m.Expr = line
		s.plan.Materializations = append(s.plan.Materializations, m)
		return
	}
	ms, err := plan.NewParser().ParseMetricSelector(line)
	if err != nil {
		d.Fatalf(t, "%s: %v", line, err)
	}
	for _, m := range ms {
		st.Matchers = append(st.Matchers, plan.Matcher{Type: m.Type.String(), Name: m.Name, Value: m.Value})
	}
	s.plan.Streams = append(s.plan.Streams, st)
}

func (s *script) explain(t *testing.T, q oracle.Query) string {
	var (
		parts []query.Part
		err   error
		c     = common(q)
	)
	if q.Step == 0 {
		parts, err = s.engine.ExplainInstant(t.Context(), query.InstantParams{Common: c, Time: time.UnixMilli(q.Start)})
	} else {
		parts, err = s.engine.ExplainRange(t.Context(), query.RangeParams{Common: c, Start: time.UnixMilli(q.Start), End: time.UnixMilli(q.End), Step: time.Duration(q.Step) * time.Millisecond})
	}
	if err != nil {
		return fmt.Sprintf("%s: %v\n", query.KindOf(err), err)
	}
	if len(parts) == 0 {
		return "reads nothing\n"
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Node + ": ")
		switch {
		case len(p.Reads) > 0 && p.Miss == nil:
			fmt.Fprintf(&b, "%s over %d, from %s", p.Func, p.WindowMillis, strings.Join(p.Reads, ", "))
		case p.Miss != nil:
			fmt.Fprintf(&b, "%s: %s", p.Miss.Reason, p.Miss.Detail)
		case p.LastMillis < p.FirstMillis:
			fmt.Fprintf(&b, "%s over %d, never, from stream %d", p.Func, p.WindowMillis, p.Stream)
		case p.LastMillis == p.FirstMillis:
			fmt.Fprintf(&b, "%s over %d at %d, from stream %d", p.Func, p.WindowMillis, p.FirstMillis, p.Stream)
		default:
			fmt.Fprintf(&b, "%s over %d at %d..%d by %d, from stream %d", p.Func, p.WindowMillis, p.FirstMillis, p.LastMillis, p.StepMillis, p.Stream)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *script) query(t *testing.T, d *datadriven.TestData, q oracle.Query) string {
	res, err := answer(t.Context(), s.engine, q)
	var miss *query.MissError
	if errors.As(err, &miss) {
		return fmt.Sprintf("miss %s: %s: %s\n", miss.Reason, miss.Node, miss.Detail)
	}
	got := oracle.Outcome{Err: err}
	if err == nil {
		defer res.Close()
		got = oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
	}
	if q.Limit == 0 {
		all, err := querytest.Record(t.Context(), s.plan, s.model.Series(), -3_600_000, 7_200_000)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		want := oracle.Ask(t.Context(), oracle.NewEngine(50_000_000), oracle.Storage(all), q)
		if oracle.Sketched(&got) {
			q.Terms.Stated = query.SketchError
		}
		if err := oracle.Compare(got, want, q.Terms); err != nil {
			d.Fatalf(t, "%s: not what Prometheus answers: %v", q, err)
		}
	}
	if err != nil {
		return fmt.Sprintf("%s: %v\n", query.KindOf(err), err)
	}
	var b strings.Builder
	shown := strings.SplitAfter(show(res.Value), "\n")
	if !strings.HasPrefix(q.Expr, "sort") {
		slices.Sort(shown) // the engine leaves the order of some vectors to chance
	}
	b.WriteString(strings.Join(shown, ""))
	for _, w := range res.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, i := range res.Infos {
		fmt.Fprintf(&b, "info: %s\n", i)
	}
	if strings.Contains(b.String(), "__tidemark") && !strings.Contains(q.Expr, "__tidemark") {
		d.Fatalf(t, "Q4: the rewriting shows: %s", b.String())
	}
	if d.HasArg("proof") {
		fmt.Fprintf(&b, "%s, seq %d, complete through %s\n", res.Route, res.Seq, showTime(res.CompleteThrough))
	}
	return b.String()
}

func showTime(ms int64) string {
	switch ms {
	case math.MaxInt64:
		return "ever"
	case math.MinInt64:
		return "nothing"
	default:
		return strconv.FormatInt(ms, 10)
	}
}

func show(v parser.Value) string {
	var b strings.Builder
	switch v := v.(type) {
	case promql.Vector:
		for _, s := range v {
			fmt.Fprintf(&b, "%s %v\n", s.Metric, s.F)
		}
	case promql.Matrix:
		for _, s := range v {
			b.WriteString(s.Metric.String())
			for _, p := range s.Floats {
				fmt.Fprintf(&b, " %v@%d", p.F, p.T)
			}
			b.WriteByte('\n')
		}
	case promql.Scalar:
		fmt.Fprintf(&b, "scalar %v\n", v.V)
	case promql.String:
		fmt.Fprintf(&b, "string %q\n", v.V)
	}
	if b.Len() == 0 {
		return "empty\n"
	}
	return b.String()
}

func request(t *testing.T, d *datadriven.TestData, expr string) oracle.Query {
	q := oracle.Query{Expr: expr}
	for key, to := range map[string]*int64{"at": &q.Start, "start": &q.Start, "end": &q.End, "step": &q.Step, "lookback": &q.Lookback, "limit": &q.Limit} {
		if d.HasArg(key) {
			*to = arg(t, d, key)
		}
	}
	return q
}

func arg(t *testing.T, d *datadriven.TestData, key string) int64 {
	var text string
	d.ScanArgs(t, key, &text)
	return number(t, d, text)
}

func number(t *testing.T, d *datadriven.TestData, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

// series reads `m{i="a"} 1@1000 stale@2000`, and `1@0..60000/5000` for a run of equal values, both ends included.
func series(t *testing.T, d *datadriven.TestData, line string) querytest.Series {
	text, samples := line, ""
	if at := strings.LastIndex(line, "} "); at >= 0 {
		text, samples = line[:at+1], line[at+2:]
	} else if name, rest, ok := strings.Cut(line, " "); ok {
		text, samples = name, rest
	}
	l, err := plan.NewParser().ParseMetric(text)
	if err != nil {
		d.Fatalf(t, "%s: %v", text, err)
	}
	s := querytest.Series{Labels: l}
	for _, sample := range strings.Fields(samples) {
		v, at, _ := strings.Cut(sample, "@")
		f := math.Float64frombits(value.StaleNaN)
		if v != "stale" {
			if f, err = strconv.ParseFloat(v, 64); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		from, rest, run := strings.Cut(at, "..")
		first, last, every := number(t, d, from), number(t, d, from), int64(1)
		if run {
			end, by, _ := strings.Cut(rest, "/")
			last, every = number(t, d, end), number(t, d, by)
		}
		for at := first; at <= last; at += every {
			s.T, s.V = append(s.T, at), append(s.V, f)
		}
	}
	return s
}
