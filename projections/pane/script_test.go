package pane

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/log"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// TestScripts runs testdata/*.txt against the fold alone: no clock, no store, no goroutine.
//
// Times are milliseconds. Every event takes log=T (log time) and wall=T; both keep their last value where not given. After
// each event the script prints what it published: the series, the bucket, and its samples or columns.
//
//	plan [label=experiment] [idle=60000] [idle_grace=5000] [open_grace=5000] [horizon=600000] [skew=60000] [max_future=0]
//	<selector> pane=MS [origin=MS] [lateness=MS] [left] [drop]      one stream a line
//
//	write            lines as m{a="b"} VALUE@TIME…; VALUE may be stale, NaN, NaN:<hex payload>, +Inf, -Inf; hist@TIME is a native histogram
//	watermark t=MS [experiment=NAME]
//	tick [times=N]   of N ticks only what the last one published is shown
//	expire through=MS [stream=0]  retention, of a stream by its place among all that plans had
//	drain | start [reason=resume]
//	show             frontiers, counters, closure watermarks and open buckets
//	restore          encodes every shard, decodes it again, and goes on with that
//	due              whether a tick at log=T would close something
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", runScript)
}

func runScript(t *testing.T, path string) { datadriven.RunTest(t, path, newScript(t).run) }

func TestCase_C08_TicksMoveNothing(t *testing.T) { runScript(t, "testdata/scripts/ticks.txt") }

type script struct {
	t         *testing.T
	index     *series.Index
	refs      map[string]log.SeriesRef
	sets      map[log.SeriesRef]labels.Labels
	gone      map[log.SeriesRef]*bucket.Evicted
	next      log.SeriesRef
	shards    group
	recent    *recentWrites
	given     []plan.Stream // all that plans had, in the order in which they were written
	seq       log.Seq
	log, wall int64
}

func newScript(t *testing.T) *script {
	s := &script{t: t, index: series.New(), refs: make(map[string]log.SeriesRef), sets: make(map[log.SeriesRef]labels.Labels), gone: make(map[log.SeriesRef]*bucket.Evicted)}
	s.recent = newRecentWrites()
	for id := range s.shards {
		s.shards[id] = NewShard(id, s.index)
	}
	return s
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	d.MaybeScanArgs(t, "log", &s.log)
	d.MaybeScanArgs(t, "wall", &s.wall)
	switch d.Cmd {
	case "plan":
		return s.apply(&log.Plan{Spec: s.planOf(d).Encode()})
	case "write":
		return s.apply(s.writeOf(d.Input))
	case "watermark":
		w := &log.Watermark{}
		d.ScanArgs(t, "t", &w.Time)
		if d.HasArg("experiment") {
			w.Scoped = true
			d.ScanArgs(t, "experiment", &w.Experiment)
		}
		return s.apply(w)
	case "tick":
		times := 1
		d.MaybeScanArgs(t, "times", &times)
		for range times - 1 {
			s.apply(&log.Tick{})
		}
		return s.apply(&log.Tick{})
	case "drain":
		return s.apply(&log.Drain{})
	case "start":
		reason := "process"
		d.MaybeScanArgs(t, "reason", &reason)
		if reason == "resume" {
			return s.apply(&log.Start{Reason: log.StartResume})
		}
		return s.apply(&log.Start{Reason: log.StartProcess})
	case "expire":
		e, at := &log.Expired{}, 0
		d.MaybeScanArgs(t, "stream", &at)
		d.ScanArgs(t, "through", &e.Through)
		e.Stream, e.Origin, e.Width = uint64(s.given[at].ID), s.given[at].OriginMillis, s.given[at].PaneMillis
		return s.apply(e)
	case "due":
		due := false
		for _, sh := range s.shards {
			due = sh.Due(s.log) || due
		}
		return fmt.Sprintln(due)
	case "restore":
		return s.restore()
	case "show":
		return s.show()
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (s *script) planOf(d *datadriven.TestData) *plan.Plan {
	p := &plan.Plan{
		Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, IdleGraceMillis: 5_000,
		OpenGraceMillis: 5_000, HorizonMillis: 600_000, ClockSkewMillis: 60_000,
	}
	d.MaybeScanArgs(s.t, "label", &p.ExperimentLabel)
	for arg, to := range map[string]*int64{
		"idle": &p.IdleTimeoutMillis, "idle_grace": &p.IdleGraceMillis, "open_grace": &p.OpenGraceMillis,
		"horizon": &p.HorizonMillis, "skew": &p.ClockSkewMillis, "max_future": &p.MaxFutureMillis,
	} {
		d.MaybeScanArgs(s.t, arg, to)
	}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		if line == "" {
			continue
		}
		fields := strings.Fields(line)
		st := plan.Stream{Closed: plan.Right, Late: plan.Correct, RetentionMillis: 86_400_000}
		ms, err := plan.NewParser().ParseMetricSelector(fields[0])
		s.must(err)
		for _, m := range ms {
			st.Matchers = append(st.Matchers, plan.Matcher{Type: m.Type.String(), Name: m.Name, Value: m.Value})
		}
		for _, f := range fields[1:] {
			switch f {
			case "left":
				st.Closed = plan.Left
				continue
			case "drop":
				st.Late = plan.Drop
				continue
			}
			k, v, _ := strings.Cut(f, "=")
			n, err := strconv.ParseInt(v, 10, 64)
			s.must(err)
			switch k {
			case "pane":
				st.PaneMillis = n
			case "origin":
				st.OriginMillis = n
			case "lateness":
				st.LatenessMillis = n
			default:
				d.Fatalf(s.t, "unknown argument %s", k)
			}
		}
		p.Streams = append(p.Streams, st.Resolved())
	}
	for _, st := range p.Streams {
		if !slices.ContainsFunc(s.given, func(g plan.Stream) bool { return g.ID == st.ID }) {
			s.given = append(s.given, st)
		}
	}
	slices.SortFunc(p.Streams, func(a, b plan.Stream) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return p
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// ref returns the reference of a label set, defined in w if it is new.
func (s *script) ref(w *log.Write, ls labels.Labels) log.SeriesRef {
	if ref, ok := s.refs[ls.String()]; ok {
		return ref
	}
	s.next++
	s.refs[ls.String()] = s.next
	w.Defs = append(w.Defs, log.SeriesDef{Ref: s.next, Labels: ls})
	return s.next
}

func (s *script) writeOf(input string) *log.Write {
	b := log.NewWriteBuilder()
	var defs log.Write
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		name, rest, ok := strings.Cut(line, " ")
		if !ok {
			s.t.Fatalf("write: %q", line)
		}
		expr, err := plan.NewParser().ParseExpr(name)
		s.must(err)
		lb := labels.NewScratchBuilder(4)
		for _, m := range expr.(*parser.VectorSelector).LabelMatchers {
			lb.Add(m.Name, m.Value)
		}
		lb.Sort()
		ref := s.ref(&defs, lb.Labels())
		for _, f := range strings.Fields(rest) {
			vs, ts, _ := strings.Cut(f, "@")
			t, err := strconv.ParseInt(ts, 10, 64)
			s.must(err)
			if vs == "hist" {
				b.Histogram(log.Histogram{Ref: ref, Time: t})
				continue
			}
			b.Series(ref)
			b.Sample(t, s.value(vs))
		}
	}
	w := b.Finish()
	w.Defs = defs.Defs
	return w
}

func (s *script) value(v string) float64 {
	if v == "stale" {
		return math.Float64frombits(staleBits)
	}
	if hex, ok := strings.CutPrefix(v, "NaN:"); ok {
		bits, err := strconv.ParseUint(hex, 16, 64)
		s.must(err)
		return math.Float64frombits(0x7ff8000000000000 | bits)
	}
	f, err := strconv.ParseFloat(v, 64)
	s.must(err)
	return f
}

// apply folds one event and prints what it published.
func (s *script) apply(body log.Body) string {
	s.seq++
	ev := &log.Event{Seq: s.seq, LogTime: s.log, WallTime: s.wall, Body: body}
	s.admit(body)
	repeats := s.recent.judge([]*log.Event{ev})
	if _, err := s.shards.apply(ev, repeats != nil, nil); err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return s.published() + s.collect()
}

// admit does what a worker does before an event: it makes the series resident that are not, with the records that it has of them.
func (s *script) admit(body log.Body) {
	w, ok := body.(*log.Write)
	if !ok {
		return
	}
	for _, d := range w.Defs {
		s.sets[d.Ref] = d.Labels
	}
	for ref := range namedIn(w) {
		sh := s.shards[ShardOf(ref)]
		sh.returning = s.gone
		s.index.Add(ref, s.sets[ref])
	}
}

// collect does what a worker does after an event, and prints what was evicted.
func (s *script) collect() string {
	var lines []string
	for _, sh := range s.shards {
		for i := range sh.evicted {
			e := &sh.evicted[i]
			line := fmt.Sprintf("evicted %s at %d:", s.sets[log.SeriesRef(e.Ref)], e.Seq)
			if e.Stays {
				line = fmt.Sprintf("left by %s at %d:", s.sets[log.SeriesRef(e.Ref)], e.Seq)
			} else {
				s.gone[log.SeriesRef(e.Ref)] = e
				s.index.Evict([]log.SeriesRef{log.SeriesRef(e.Ref)})
			}
			for _, st := range e.Streams {
				line += fmt.Sprintf(" c=%s", ms(st.Closed))
				if st.Holds {
					line += fmt.Sprintf(" blocks %d to %d", st.First, st.Last)
				}
			}
			lines = append(lines, line)
		}
		sh.evicted = nil
	}
	sort.Strings(lines)
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// published prints and clears the tables.
func (s *script) published() string {
	var lines []string
	for _, sh := range s.shards {
		for _, st := range s.shards[0].streams {
			lines = append(lines, s.publishedBy(sh, st)...)
		}
		sh.table = bucket.NewTable()
	}
	sort.Strings(lines)
	if len(lines) == 0 {
		return "ok\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func (s *script) publishedBy(sh *Shard, st *stream) []string {
	var v bucket.View
	sh.table.AddTo(&v, uint64(st.spec.ID), math.MinInt64/4, math.MaxInt64/4)
	var lines []string
	s.must(v.Each(st.grid, func(b bucket.Bucket) error {
		ls := s.sets[log.SeriesRef(b.Ref)]
		line := fmt.Sprintf("%s %s", ls, st.span(b.End))
		if b.Pane != nil {
			p, n, err := accum.DecodePane(b.Pane, b.End)
			if err != nil || n != len(b.Pane) {
				return fmt.Errorf("pane of %d bytes, %d read: %w", len(b.Pane), n, err)
			}
			line += ":" + describe(&p)
		}
		if b.Incomplete {
			line += " incomplete"
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// span shows what a bucket owns.
func (s *stream) span(e int64) string {
	if s.edge == 1 {
		return fmt.Sprintf("[%d,%d)", e-s.width, e)
	}
	return fmt.Sprintf("(%d,%d]", e-s.width, e)
}

func describe(p *accum.Pane) string {
	var sb strings.Builder
	for i, t := range p.T {
		v := fmt.Sprint(p.V[i])
		if isStale(p.V[i]) {
			v = "stale"
		}
		fmt.Fprintf(&sb, " %s@%d", v, t)
	}
	if c := p.Columns; c != nil {
		fmt.Fprintf(&sb, " count=%d sum=%v min=%v max=%v first=%v@%d last=%v@%d resets=%d changes=%d",
			c.Count, c.Sum+c.Comp, c.Min, c.Max, c.First.V, c.First.T, c.Last.V, c.Last.T, c.Resets, c.Changes)
	}
	if p.HasHistogram {
		sb.WriteString(" histogram")
	}
	return sb.String()
}

func (s *script) restore() string {
	for id, sh := range s.shards {
		b := sh.Encode()
		back, err := DecodeShard(id, s.index, b)
		s.must(err)
		if !slices.Equal(back.Encode(), b) {
			s.t.Fatalf("shard %d: state differs after a round trip", id)
		}
		saved := sh.rowsAt
		sh.rowsAt = 0
		rows := sh.experimentRows()
		sh.rowsAt = saved
		s.must(back.restoreExperiments(slices.DeleteFunc(rows, func(r bucket.ExperimentRow) bool { return r.Counts == nil })))
		for name, x := range sh.stats {
			if y := back.stats[name]; y == nil || !slices.Equal(y.encode(), x.encode()) || !maps.Equal(y.open, x.open) {
				s.t.Fatalf("shard %d: what is counted of %q differs after a round trip", id, name)
			}
		}
		s.shards[id] = back
	}
	return "ok\n"
}

func ms(t int64) string {
	switch t {
	case math.MinInt64:
		return "-inf"
	case math.MaxInt64:
		return "+inf"
	}
	return strconv.FormatInt(t, 10)
}

func (s *script) show() string {
	var sb strings.Builder
	for i, st := range s.shards[0].streams {
		frontier, proven, open := int64(math.MinInt64), int64(math.MinInt64), 0
		var c Counts
		for _, sh := range s.shards {
			x := sh.streams[i]
			frontier, proven = max(frontier, sh.frontier(x)), max(proven, sh.proven)
			open += x.openN
			c.add(&x.counts)
		}
		var sel []string
		for _, m := range st.spec.Matchers {
			sel = append(sel, fmt.Sprintf("%s%s%q", m.Name, m.Type, m.Value))
		}
		fmt.Fprintf(&sb, "stream {%s}/%d: frontier=%s proven=%s coverage=%s open=%d\n", strings.Join(sel, ","), st.width,
			ms(frontier), ms(proven), ms(st.coverage), open)
		for _, sh := range s.shards {
			for _, name := range slices.Sorted(maps.Keys(sh.experiments)) {
				fmt.Fprintf(&sb, "  experiment %s: proven=%s\n", name, ms(sh.experiments[name]))
			}
		}
		fmt.Fprintf(&sb, "  routed=%d applied=%d duplicate=%d conflict=%d dropped=%d uncorrectable=%d corrected=%d stale=%d closed=%d\n",
			c.Routed, c.Applied, c.Duplicate, c.Conflict, c.LateDropped, c.LateUncorrectable, c.Corrected, c.Stale, c.Closed)
		if c.Routed != c.Applied+c.Duplicate+c.Conflict+c.LateDropped+c.LateUncorrectable {
			s.t.Errorf("P5: %+v", c)
		}
	}
	var lines []string
	for _, sh := range s.shards {
		for i := range sh.series {
			sr := &sh.series[i]
			ls := s.sets[sr.ref]
			for j := range sr.members {
				m := &sr.members[j]
				line := fmt.Sprintf("%s/%d: c=%s", ls, m.stream.width, ms(m.c))
				for _, b := range m.open {
					line += fmt.Sprintf(" open%s touched %d..%d", m.stream.span(b.end), b.first, b.last)
				}
				lines = append(lines, line)
			}
		}
	}
	sort.Strings(lines)
	for _, l := range lines {
		sb.WriteString(l + "\n")
	}
	return sb.String()
}
