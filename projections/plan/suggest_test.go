package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSuggest(t *testing.T) {
	uses := []Use{
		{`sum by (job) (rate(requests_total[5m]))`, 15_000, 7},
		{`rate(requests_total{job="api"}[1m] offset 30s)`, 30_000, 2}, // narrower, on a grid that is coarser: covered
		{`requests_total`, 60_000, 1},
		{`quantile_over_time(0.9, latency{a='it''s'}[1m])`, 10_000, 1}, // not PromQL
		{`quantile_over_time(0.9, latency{a="it's"}[1m])`, 10_000, 3},
		{`latency{a="b"}`, 7_000, 1},
		{`rate(x[1500ms])`, 1_000, 1},
		{`histogram_count(h)`, 15_000, 1},
		{`1 + time()`, 15_000, 9},
		{`max_over_time(sum_over_time(y[30s])[5m:1m])`, 15_000, 1},
		{`{__name__=~"a|b", z="1"}`, 60_000, 1},
	}
	got, not := Suggest(uses, 5*time.Minute)
	var b strings.Builder
	b.WriteString("materializations:\n")
	for _, s := range got {
		fmt.Fprintf(&b, "  # %d times, %d parts, %s\n%s", s.Times, s.Parts, s.Selector, s.Entry.Lines())
	}
	want := `materializations:
  # 10 times, 3 parts, requests_total
  - name: 'requests_total:15s'
    expr: 'rate(requests_total[5m])'
    every: 15s
  # 3 times, 1 parts, latency{a="it's"}
  - name: 'latency:10s'
    expr: 'quantile_over_time(0.9, latency{a="it''s"}[1m])'
    every: 10s
  # 1 times, 1 parts, latency{a="b"}
  - name: 'latency:1s'
    expr: 'latency{a="b"}'
    every: 1s
  # 1 times, 1 parts, {__name__=~"a|b",z="1"}
  - name: 'selection:1m'
    expr: '{__name__=~"a|b",z="1"}'
    every: 1m
  # 1 times, 1 parts, y
  - name: 'y:30s'
    expr: 'sum_over_time(y[30s])'
    every: 30s
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	cfg, err := Parse([]byte(b.String()), "")
	if err != nil {
		t.Fatal(err)
	}
	p, report, err := Build(cfg)
	if err != nil || report.Skipped() != 0 || len(p.Materializations) != len(got) {
		t.Fatalf("%v: %s", err, report.String())
	}
	for _, n := range not {
		t.Log(n)
	}
	if len(not) != 3 || !strings.Contains(not[0].Reason, "parse error") || !strings.Contains(not[1].Reason, "grid") || !strings.Contains(not[2].Reason, "histogram") {
		t.Errorf("not suggested: %v", not)
	}
}
