package window_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"tidemark/log"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
)

const oneRule = `
materializations:
  - {name: m_sum, expr: 'sum by (i) (sum_over_time(m[30s]))', every: 15s, layout: full_window}
`

// expect asks for one time, and compares how many steps came from the record and how many were evaluated.
func (r *rig) expect(q oracle.Query, recorded, evaluated int) {
	r.t.Helper()
	res, err := r.check(q, r.oracle(-600_000, 600_000))
	if err != nil {
		r.t.Fatalf("%s: %v", q, err)
	}
	defer res.Close()
	if res.Route != "warm" || res.Stats.Recorded != recorded || res.Stats.Evaluated != evaluated {
		r.t.Errorf("%s: %s, %d steps recorded, %d evaluated, want %d and %d", q, res.Route, res.Stats.Recorded, res.Stats.Evaluated, recorded, evaluated)
	}
}

// TestW1_LookUp holds that once recorded a query is a look-up, and that before it is answered from panes and warm all the
// same.
func TestW1_LookUp(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(oneRule)
	r.write(one("m", "a", 5000, 1, 20000, 2, 35000, 3, 50000, 4), one("m", "b", 5000, 10))
	r.barrier(60_000)
	r.expect(over("m_sum", 15_000, 60_000, 15_000), 0, 4)
	if left := r.round(0); left != 0 {
		t.Fatalf("%d steps left", left)
	}
	r.expect(over("m_sum", 15_000, 60_000, 15_000), 4, 0)
	r.expect(at("m_sum", 60_000), 1, 0)
	r.expect(at("m_sum", 59_000), 1, 0)
	r.expect(at("count_over_time(m_sum[1m])", 60_000), 4, 0)
	// Steps that no bucket overlaps are not recorded: they are found empty.
	r.barrier(300_000)
	r.settle()
	r.expect(over("m_sum", 15_000, 150_000, 15_000), 5, 5)
}

// A slow second scraper whose sample arrives after the step was recorded: the record is dirty, the next read is right.
func TestW1_SlowSecondScraper(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(oneRule)
	r.write(one("m", "a", 14_000, 1, 29_000, 2))
	r.barrier(30_000)
	r.settle()
	r.expect(at("m_sum", 30_000), 1, 0)

	// Its first sample opens a bucket that the record knows nothing of: the step is no longer published.
	r.write(one("m", "late", 28_000, 7))
	if _, err := r.check(at("m_sum", 30_000), r.oracle(0, 60_000)); err == nil {
		t.Error("a step with an open bucket was answered")
	}
	if left := r.round(time.Hour); left != 0 {
		t.Errorf("%d published steps left, though the bucket is open", left)
	}
	// The bucket closes: dirty until it is recorded again, and right at once.
	r.barrier(30_000)
	r.expect(at("m_sum", 30_000), 0, 1)
	r.settle()
	r.expect(at("m_sum", 30_000), 1, 0)

	// A correction within the horizon, of a bucket long closed.
	r.write(one("m", "a", 13_000, 100))
	r.expect(at("m_sum", 30_000), 0, 1)
	r.expect(at("m_sum", 15_000), 0, 1)
	r.settle()
	r.expect(at("m_sum", 30_000), 1, 0)
	// A sample that comes again changes nothing, and makes nothing dirty.
	r.write(one("m", "a", 13_000, 100))
	r.expect(at("m_sum", 30_000), 1, 0)
}

// TestW2_Forget holds that changes are forgotten when every step is recorded, and not before: the steps of the future that a
// bucket takes part in are found by what is remembered of it.
func TestW2_Forget(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(oneRule)
	r.write(one("m", "a", 5000, 1))
	r.barrier(15_000)
	r.settle()
	if n := r.changes(); n != 1 {
		t.Errorf("%d changes remembered, want 1: the step at 30000 is not published yet", n)
	}
	r.barrier(30_000)
	r.settle()
	if n := r.changes(); n != 0 {
		t.Errorf("%d changes remembered after all steps were recorded", n)
	}
	r.expect(over("m_sum", 15_000, 30_000, 15_000), 2, 0)
}

// TestW3_Coalesced holds that dirty steps are evaluated at most once in an interval.
func TestW3_Coalesced(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(oneRule)
	r.write(one("m", "a", 5000, 1))
	r.barrier(30_000)
	r.round(0)
	before := r.recorder.Recorded()
	for i := range 10 {
		r.write(one("m", "a", float64(5001+i), 1))
		r.round(time.Second)
	}
	if n := r.recorder.Recorded(); n != before {
		t.Errorf("%d steps recorded within the interval", n-before)
	}
	r.expect(at("m_sum", 30_000), 0, 1)
	r.round(5 * time.Second)
	if n := r.recorder.Recorded(); n != before+2 {
		t.Errorf("%d steps recorded after the interval, want 2", n-before)
	}
	if left, since := r.recorder.Lag(); left != 0 || since != 0 {
		t.Errorf("lag: %d steps, %s", left, since)
	}
	r.expect(at("m_sum", 30_000), 1, 0)
}

// TestW1_Refused holds that what panes cannot answer is not recorded, not tried again for ever, and a miss like before.
func TestW1_Refused(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
correction_horizon: 10s
materializations:
  - {name: m_sum, expr: 'sum(sum_over_time(m[30s]))', every: 15s, layout: full_window}
`)
	r.write(one("m", "a", 5000, 1, 50_000, 2))
	r.write(one("m", "a", 6000, 5)) // beyond the horizon: the bucket is incomplete
	r.barrier(60_000)
	r.settle()
	before := r.recorder.Recorded()
	r.settle()
	if n := r.recorder.Recorded(); n != before {
		t.Errorf("%d steps were evaluated again", n-before)
	}
	if n := r.changes(); n != 1 {
		t.Errorf("%d changes remembered, want that of the bucket which the step at 75000 waits for", n)
	}
	if _, err := r.check(at("m_sum", 15_000), nil); err == nil {
		t.Error("an incomplete bucket was answered")
	}
	r.expect(at("m_sum", 60_000), 1, 0)
	// A step that stands recorded when one of its buckets loses a sample is not read any more.
	r.write(one("m", "a", 40_000, 3))
	if _, err := r.check(at("m_sum", 60_000), nil); err == nil {
		t.Error("a bucket that became incomplete was answered from the record")
	}
}

// TestW1_RulesOfRules holds that a rule that reads another inherits its dirtiness and its publication.
func TestW1_RulesOfRules(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
materializations:
  - {name: base, expr: 'sum by (i) (sum_over_time(m[30s]))', every: 15s, layout: full_window}
  - {name: top, expr: 'max_over_time(base[1m])', every: 30s, layout: full_window}
`)
	r.write(one("m", "a", 5000, 1, 20_000, 2, 35_000, 3, 50_000, 4))
	r.barrier(60_000)
	r.settle()
	r.expect(at("top", 60_000), 1, 0)
	r.write(one("m", "a", 4000, 100))
	r.expect(at("base", 15_000), 0, 1)
	// top is evaluated from what is clean of base, and from panes for the rest.
	r.expect(at("top", 60_000), 2, 1+2)
	r.settle()
	r.expect(at("top", 60_000), 1, 0)
	if _, err := r.check(at("top", 90_000), nil); err == nil {
		t.Error("a step beyond the frontier was answered")
	}
}

// TestW5_DigestAndRestart holds that recording changes nothing that is published, and that a restart and a rebuild of the
// views find everything again.
func TestW5_DigestAndRestart(t *testing.T) {
	r := newRig(t)
	defer func() { r.stop() }()
	r.configure(oneRule)
	r.write(one("m", "a", 5000, 1, 20000, 2, 35000, 3, 50000, 4), one("m", "b", 5000, 10))
	r.barrier(60_000)
	digest := r.digest()
	r.settle()
	if d := r.digest(); d != digest {
		t.Errorf("W5: digest %s before recording, %s after", digest, d)
	}
	r.stop()
	r.start()
	r.setPlan(r.plan)
	r.expect(over("m_sum", 15_000, 60_000, 15_000), 4, 0)
	recorded := r.recorder.Recorded()
	r.settle()
	if n := r.recorder.Recorded() - recorded; n != 0 {
		t.Errorf("%d steps recorded again after a restart", n)
	}
	if d := r.digest(); d != digest {
		t.Errorf("digest %s before the restart, %s after", digest, d)
	}
	// Under another plan, which the recorder does not get to see, the fold does not remember what changes. What was recorded
	// before is then of no use, though the record is the same again.
	p := r.plan
	r.configure(`materializations: [{name: m_sum, expr: 'sum by (i) (sum_over_time(m[30s]))', every: 15s}]`)
	r.write(one("m", "a", 49_000, 1000))
	r.setPlan(p)
	r.expect(at("m_sum", 60_000), 0, 1)
}

// TestW1_WholesThatAreNone holds that a selection is not read from its record where it may be another than that of the expression: the
// engine looks at k over all steps of a range before it selects at any, and gives the groups of a vector the order in which their first
// series come, selected or not.
func TestW1_WholesThatAreNone(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
materializations:
  - {name: moving, expr: 'topk(scalar(sum(k)), m_total)', every: 15s, layout: full_window}
  - {name: within, expr: 'sum by (i) (limitk(scalar(sum(k)) - 1, m_total))', every: 15s, layout: full_window}
  - {name: constant, expr: 'topk(3 - 1, m_total)', every: 15s, layout: full_window}
  - {name: grouped, expr: 'topk by (j) (1, m_total)', every: 15s, layout: full_window}
  - {name: remaining, expr: 'bottomk without (i) (1, -m_total)', every: 15s, layout: full_window}
  - {name: planned, expr: 'sum(k) + sum(m_total)', every: 15s}
`)
	m := func(i, j string, v float64) querytest.Series {
		return querytest.Series{
			Labels: labels.FromStrings("__name__", "m_total", "i", i, "j", j),
			T:      []int64{5000, 20_000, 35_000, 50_000}, V: []float64{v, v, v, v},
		}
	}
	r.write(m("a", "y", 1), m("b", "x", 5), m("c", "y", 9), one("k", "a", 5000, 1, 20_000, 2, 35_000, math.Inf(-1), 50_000, 0))
	r.barrier(60_000)
	r.settle()
	var written []querytest.Series
	for _, w := range r.ledger {
		written = append(written, *w)
	}
	for _, c := range []struct {
		expr string
		of   int // the steps of a range, for each that is read from the record 1
	}{
		{"topk(scalar(sum(k)), m_total)", 0},
		{"sum by (i) (limitk(scalar(sum(k)) - 1, m_total))", 0},
		{"topk(3 - 1, m_total)", 1},
		{"topk by (j) (1, m_total)", 1},
		{"bottomk without (i) (1, -m_total)", 1},
	} {
		r.same(over(c.expr, 15_000, 30_000, 15_000), written, 2*c.of)
		r.same(over(c.expr, 15_000, 60_000, 15_000), written, 4*c.of)
		r.same(over(c.expr, 45_000, 60_000, 15_000), written, 2*c.of) // no k selects anything
		for _, t := range []int64{15_000, 45_000, 60_000} {
			q := at(c.expr, t)
			q.Terms.Ordered = true
			r.same(q, written, 0)
		}
	}
}

// same holds that the engine answers as the oracle does over all, or with the same error, and reads so many steps from records.
func (r *rig) same(q oracle.Query, all []querytest.Series, recorded int) {
	r.t.Helper()
	res, err := ask(r.ctx, r.engine, q)
	got := oracle.Outcome{Err: err}
	if err == nil {
		defer res.Close()
		got = oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
		if res.Stats.Recorded != recorded {
			r.t.Errorf("%s: %d steps recorded, want %d", q, res.Stats.Recorded, recorded)
		}
		points := 0
		switch v := res.Value.(type) {
		case promql.Matrix:
			points = v.TotalSamples()
		case promql.Vector:
			points = v.TotalSamples()
		}
		if s := res.Stats.Engine.Samples; recorded > 0 && points > 0 && (s.TotalSamples == 0 || s.TotalSeries == 0 || s.PeakSamples < points) {
			r.t.Errorf("%s: %d samples were read, and %d at one time, for an answer of %d", q, s.TotalSamples, s.PeakSamples, points)
		}
	}
	if err := oracle.Compare(got, oracle.Ask(r.ctx, oracle.NewEngine(50_000_000), oracle.Storage(all), q), q.Terms); err != nil {
		r.t.Errorf("%s: %v", q, err)
	}
}

// TestW1_Wholes holds that the expression of a record is read from it wherever it stands, with matchers on its output labels and
// in coarser groups; and that nothing of that shows: warnings, infos and the labels of absent() are those of the text.
func TestW1_Wholes(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
materializations:
  - {name: s, expr: 'sum by (i, j) (sum_over_time(m_total[30s]))', every: 15s, layout: full_window}
  - {name: c, expr: 'count by (i) (m_total)', every: 15s, layout: full_window}
  - {name: odd_rate, expr: 'sum by (i) (rate(odd[1m]))', every: 15s, layout: full_window}
  - {name: top, expr: 'topk(1, m_total)', every: 15s, layout: full_window}
  - {name: bottom, expr: 'bottomk(3, m_total)', every: 15s, layout: full_window}
  - {name: equal, expr: 'bottomk(3, count by (i, j) (m_total))', every: 15s, layout: full_window}
  - {name: some, expr: 'limitk(1, m_total)', every: 15s, layout: full_window}
  - {name: left, expr: 'max by (i) (max_over_time(m_total[30s]))', every: 15s, layout: full_window, closed: left}
`)
	r.write(
		one("m_total", "a", 5000, 1, 20000, 2, 35000, 3, 50000, 4), one("m_total", "b", 5000, 10, 50000, 11),
		one("odd", "a", 5000, 1, 20000, 2, 35000, 3, 50000, 4),
		querytest.Series{
			Labels: labels.FromStrings("__name__", "m_total", "i", "a", "j", "x"), T: []int64{6000, 51_000}, V: []float64{100, 200},
		},
	)
	r.barrier(60_000)
	r.settle()
	for _, c := range []struct {
		expr  string
		steps int // from the record
	}{
		{"sum by (i, j) (sum_over_time(m_total[30s]))", 4},
		{"sum by (j, i) (sum_over_time(m_total[30s]))", 4},
		{"1 + (sum by (i, j) (sum_over_time(m_total[30s])))", 4},
		{`sum by (i, j) (sum_over_time(m_total{i="a"}[30s]))`, 4},
		{`sum by (i, j) (sum_over_time(m_total{i=~"b|x",j=""}[30s]))`, 4},
		{"sum by (i) (sum_over_time(m_total[30s]))", 4},
		{"sum(sum_over_time(m_total[30s]))", 4},
		{`count(m_total{i!="a"})`, 4},
		{"count(m_total)", 4},
		{"absent(count by (i) (m_total))", 4},
		{"absent(m_total)", 0},
		{"count by (j) (m_total)", 0},
		{`count(m_total{job="x"})`, 0},
		{"min by (i) (sum_over_time(m_total[30s]))", 0},
		{"sum by (i) (rate(odd[1m]))", 4}, // the engine doubts that it is a counter, and says where
		{"sum(topk(1, m_total))", 0},      // in another order the sum may be another
		{"topk(2, m_total)", 0},
	} {
		q := over(c.expr, 15_000, 60_000, 15_000)
		r.expect(q, c.steps, 0)
		q = at(c.expr, 60_000)
		r.expect(q, c.steps/4, 0)
	}
	// A matrix does not show the order of a selection. A vector does, and where two values are equal it hangs on all that it selects from.
	r.expect(over("topk(1, m_total)", 15_000, 60_000, 15_000), 4, 0)
	r.expect(over("limitk(1, m_total)", 15_000, 60_000, 15_000), 4, 0)
	r.expect(at("topk(1, m_total)", 60_000), 1, 0)
	r.expect(at("bottomk(3, m_total)", 60_000), 1, 0)
	r.expect(at("bottomk(3, count by (i, j) (m_total))", 60_000), 0, 0)
	r.expect(at("limitk(1, m_total)", 60_000), 0, 0)
	// Off the steps of the record panes do not answer either: nothing is rounded.
	if _, err := r.check(at("count(m_total)", 59_000), nil); err == nil {
		t.Error("answered between steps")
	}
	// The part that is not recorded yet is evaluated beside the rest.
	r.write(one("m_total", "a", 65_000, 9))
	r.barrier(75_000)
	r.expect(over("sum by (i, j) (sum_over_time(m_total[30s]))", 15_000, 75_000, 15_000), 4, 1)
}

// The boundary table: a bucket closes exactly when the largest time that it may own is at or before the barrier, for both
// memberships and both layouts; what comes then at the edges counts where it belongs.
func TestBoundaryTable(t *testing.T) {
	const start, end = 100_000, 110_000
	for _, closed := range []string{"right", "left"} {
		for _, layout := range []string{"panes", "full_window"} {
			for _, barrier := range []int64{end - 2, end - 1, end, end + 1} {
				r := newRig(t)
				r.configure(fmt.Sprintf("materializations: [{name: total, expr: 'sum(sum_over_time(m[10s]))', every: 10s, layout: %s, closed: %s}]", layout, closed))
				r.write(one("m", "a", start, 1, start+1, 2, end-1, 4))
				r.barrier(barrier)
				r.settle()
				largest := int64(end)
				if closed == "left" {
					largest = end - 1
				}
				res, err := r.check(at("total", end), r.oracle(0, 300_000))
				if (err == nil) != (largest <= barrier) {
					t.Errorf("%s, %s, barrier at E%+d: %v", closed, layout, barrier-end, err)
				}
				if err == nil {
					if want := map[string]int{"panes": 0, "full_window": 1}[layout]; res.Stats.Recorded != want {
						t.Errorf("%s, %s: %d steps recorded, want %d", closed, layout, res.Stats.Recorded, want)
					}
					res.Close()
				}
				// Samples at E, at E+1 and inside the bucket, which may be closed by now.
				r.write(one("m", "a", end, 8))
				r.write(one("m", "a", end+1, 16))
				r.write(one("m", "a", start+5, 32))
				r.barrier(end + 20_000)
				for range 2 {
					for _, step := range []int64{start, end, end + 10_000, end + 20_000} {
						res, err := r.check(at("total", step), r.oracle(0, 300_000))
						if err != nil {
							t.Fatalf("%s, %s: %v", closed, layout, err)
						}
						res.Close()
					}
					r.settle()
				}
				r.stop()
			}
		}
	}
}

// A barrier that names an experiment publishes, and lets be recorded, only what selects that experiment.
func TestExperimentBarrier(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
experiment_label: i
materializations:
  - {name: of_a, expr: 'sum(sum_over_time(m{i="a"}[30s]))', every: 15s, layout: full_window}
  - {name: of_all, expr: 'sum(sum_over_time(m[30s]))', every: 15s, layout: full_window}
`)
	r.write(one("m", "a", 5_000, 1, 20_000, 2), one("m", "b", 5_000, 10))
	r.append(&log.Watermark{Time: 30_000, Scoped: true, Experiment: "a"})
	r.settle()
	r.expect(at("of_a", 30_000), 1, 0)
	if _, err := r.check(at("of_all", 30_000), nil); err == nil {
		t.Error("the other experiment's open bucket was overlooked")
	}
	r.barrier(30_000)
	r.settle()
	r.expect(at("of_all", 30_000), 1, 0)
}

// While input is sealed everything is published, and may be recorded. Once it is open again, steps behind the drain are not
// published any more, though they are recorded.
func TestDrain(t *testing.T) {
	r := newRig(t)
	defer func() { r.stop() }()
	r.configure(oneRule)
	later := time.Now().Add(5*time.Minute).UnixMilli() / 15_000 * 15_000
	r.write(one("m", "a", float64(later-20_000), 1))
	r.append(&log.Drain{})
	r.settle()
	r.expectAround(at("m_sum", later), later, 1)
	r.stop()
	r.start()
	if _, err := r.check(at("m_sum", later), nil); err == nil {
		t.Error("a step beyond everything that was proven was answered from its record")
	}
	r.write(one("m", "b", float64(later-1_000), 5))
	r.barrier(later)
	r.settle()
	r.expectAround(at("m_sum", later), later, 1)
}

// expectAround is expect around a time of today.
func (r *rig) expectAround(q oracle.Query, around int64, recorded int) {
	r.t.Helper()
	res, err := r.check(q, r.oracle(around-600_000, around+60_000))
	if err != nil {
		r.t.Fatalf("%s: %v", q, err)
	}
	defer res.Close()
	if res.Stats.Recorded != recorded {
		r.t.Errorf("%s: %d steps recorded, want %d", q, res.Stats.Recorded, recorded)
	}
}

// What the engine says of steps that are evaluated beside recorded ones is said of the text as it was sent.
func TestW1_NotesBesideTheRecord(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`materializations: [{name: rates, expr: 'sum(rate(odd[30s]))', every: 15s, layout: full_window}]`)
	r.write(one("odd", "a", 5000, 1))
	r.barrier(15_000)
	r.settle()
	q := over("1 - sum(rate(odd[30s]))", 15_000, 30_000, 15_000)
	r.write(one("odd", "a", 20_000, 2))
	r.barrier(30_000)
	res, err := r.check(q, r.oracle(0, 60_000))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Infos) != 1 {
		t.Errorf("infos: %q, want the doubt whether it is a counter", res.Infos)
	}
	res.Close()
	r.expect(over("rates", 15_000, 30_000, 15_000), 1, 1)
}

// What the engine says of metrics that by their names are no counters is recorded with the steps, and said of the text as it was sent;
// whatever else it says is not, and then the step is evaluated.
func TestW1_DoubtfulCounters(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.configure(`
materializations:
  - {name: rates, expr: 'sum by (i) (rate(odd[30s]))', every: 15s, layout: full_window}
  - {name: two, expr: 'sum(increase(odd[30s])) + sum(rate(even[30s]))', every: 15s, layout: full_window}
  - {name: both, expr: 'sum(increase(odd[30s])) - sum(rate(odd[30s]))', every: 15s, layout: full_window}
  - {name: bad, expr: 'sum(rate(odd[30s])) * sum(quantile_over_time(2, odd[30s]))', every: 15s, layout: full_window}
`)
	r.write(one("odd", "a", 5000, 1, 20_000, 3, 35_000, 9, 50_000, 12), one("odd", "b", 35_000, 1, 50_000, 2), one("even", "a", 40_000, 5, 50_000, 8))
	r.barrier(60_000)
	r.settle()
	all := r.oracle(0, 120_000)
	for _, tc := range []struct {
		q        oracle.Query
		recorded int
		infos    int
	}{
		{over("1 - sum by (i) (rate(odd[30s]))", 15_000, 60_000, 15_000), 4, 1},
		{over("1 - sum by (i) (rate(odd[30s]))", 15_000, 15_000, 15_000), 1, 0}, // one sample: nothing has a rate
		{at("sum by (i) (rate(odd[30s]))", 60_000), 1, 1},
		{over("sum by (i) (rate(odd{i=\"b\"}[30s]))", 15_000, 60_000, 15_000), 4, 1},
		{over("sum by (i) (rate(odd{i=\"b\"}[30s]))", 15_000, 30_000, 15_000), 2, 0}, // b has come later
		{over("sum by (i) (rate(odd{i=\"none\"}[30s]))", 15_000, 60_000, 15_000), 4, 0},
		{over("sum(rate(odd[30s]))", 15_000, 60_000, 15_000), 4, 1},
		{over("-(sum(increase(odd[30s])) + sum(rate(even[30s])))", 15_000, 60_000, 15_000), 4, 2},
		{over("-(sum(increase(odd[30s])) + sum(rate(even[30s])))", 15_000, 30_000, 15_000), 2, 1},
		{over("sum(increase(odd[30s])) - sum(rate(odd[30s]))", 15_000, 60_000, 15_000), 0, 1},              // two places, of which one is told
		{over("sum(rate(odd[30s])) * sum(quantile_over_time(2, odd[30s]))", 15_000, 60_000, 15_000), 0, 1}, // and a warning
	} {
		res, err := r.check(tc.q, all)
		if err != nil {
			t.Errorf("%s: %v", tc.q, err)
			continue
		}
		if res.Stats.Recorded != tc.recorded || len(res.Infos) != tc.infos {
			t.Errorf("%s: %d steps recorded, infos %q; want %d and %d", tc.q, res.Stats.Recorded, res.Infos, tc.recorded, tc.infos)
		}
		res.Close()
	}
}
