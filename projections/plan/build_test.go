package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"pgregory.net/rapid"
)

// buildOne builds the plan of one entry with the name "one".
func buildOne(fields string) (*Plan, Report, error) {
	c, err := Parse([]byte("materializations:\n  - {name: one, "+fields+"}\n"), ".")
	if err != nil {
		return nil, Report{}, err
	}
	return Build(c)
}

// TestCase_C17_WindowIsNoMultipleOfTheSlide: panes divide both, so that a window is made of whole panes.
func TestCase_C17_WindowIsNoMultipleOfTheSlide(t *testing.T) {
	p, r, err := buildOne("expr: 'sum_over_time(m[25s])', every: 10s")
	if err != nil {
		t.Fatal(err)
	}
	if l := r.Entries[0].Leaves[0]; l.PaneMillis != 5000 || l.PanesPerWindow != 5 {
		t.Errorf("%+v", l)
	}
	s := p.Streams[0]
	n := 0
	for at := int64(1000); at <= 30_000; at += 1000 {
		if end := s.BucketEnd(at); end > 5_000 && end <= 30_000 {
			n++
		}
	}
	if n != 25 {
		t.Errorf("the window (5s, 30s] has %d samples, one a second", n)
	}
	_, _, err = buildOne("expr: 'sum_over_time(m[25300ms])', every: 10700ms")
	if err == nil || !strings.Contains(err.Error(), "every 10s700ms and range 25s300ms have panes of 100ms, at least 1s") {
		t.Errorf("want both numbers: %v", err)
	}
}

// TestCase_C18_ImpossibleWindows: each is refused, by the name of the field.
func TestCase_C18_ImpossibleWindows(t *testing.T) {
	for _, tc := range []struct{ name, fields, want string }{
		{"size 0", "expr: 'rate(m[0s])', every: 10s", "materializations[0].expr: one cannot become panes: not PromQL"},
		{"slide 0", "expr: 'rate(m[1m])', every: 0s", "materializations[0].every: 0s, at least 1s"},
		{"no slide", "expr: 'rate(m[1m])'", "materializations[0].every: missing"},
		{"size -60s", "expr: 'rate(m[-60s])', every: 10s", "materializations[0].expr: one cannot become panes: not PromQL"},
		{"slide -60s", "expr: 'rate(m[1m])', every: -60s", "materializations[0].every: not a valid duration"},
		{"size 1ms", "expr: 'rate(m[1ms])', every: 10s", "every 10s and range 1ms have panes of 1ms, at least 1s"},
		{"slide 1ms", "expr: 'rate(m[1m])', every: 1ms", "materializations[0].every: 1ms, at least 1s"},
		{"size 292e9 s", "expr: 'rate(m[292000000000s])', every: 10s", "materializations[0].expr: one cannot become panes: not PromQL"},
		{"slide 292e9 s", "expr: 'rate(m[1m])', every: 292000000000s", "materializations[0].every: duration out of range"},
		{"size 292y", "expr: 'rate(m[292y])', every: 292y", "materializations[0].every: 292y, at most 100y"},
		{"size 200y", "expr: 'rate(m[200y])', every: 100y", "it reads samples of the last 200y, and panes are kept for 1w"},
		{"offset 292y", "expr: 'rate(m[1m] offset -292y)', every: 1m", "offset -292y, at most 100y"},
		{"lateness", "expr: 'rate(m[1m])', every: 1m, allowed_lateness: 101y", "materializations[0].allowed_lateness: 101y, at most 100y"},
		{"unit", "expr: 'rate(m[1m])', every: 60", "materializations[0].every: not a valid duration"},
	} {
		p, _, err := buildOne(tc.fields)
		if err == nil || p != nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "tidemark.yml:2: ") {
			t.Errorf("%s: no file and line in %v", tc.name, err)
		}
	}
	// Two with one name.
	_, err := Parse([]byte("materializations:\n- {name: a, expr: m, every: 15s}\n- {name: a, expr: n, every: 15s}\n"), ".")
	if err == nil || !strings.Contains(err.Error(), `tidemark.yml:3: materializations[1].name: "a" is also the name of`) {
		t.Errorf("%v", err)
	}
	// A slide longer than the window is legal.
	if _, r, err := buildOne("expr: 'rate(m[1m])', every: 90s"); err != nil || r.Entries[0].Leaves[0].PaneMillis != 30_000 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestPL4_PanesMakeTheWindows draws grids, and holds each leaf to the edges that it needs.
func TestPL4_PanesMakeTheWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every := 500 * rapid.Int64Range(2, 2000).Draw(t, "every")
		length := 500 * rapid.Int64Range(1, 20000).Draw(t, "range")
		offset := 500 * rapid.Int64Range(-100, 100).Draw(t, "offset")
		instant := rapid.Bool().Draw(t, "instant")
		text := fmt.Sprintf("rate(m[%dms]", length)
		if instant {
			text, length = "m", 300_000
		}
		if offset != 0 {
			text = fmt.Sprintf("%s offset %s", text, millis(offset))
		}
		if !instant {
			text += ")"
		}
		p, r, err := buildOne(fmt.Sprintf("expr: '%s', every: %dms", text, every))
		if err != nil {
			if g := gcd(gcd(every, length), max(offset, -offset)); g >= MinPaneMillis && length/g <= MaxPanes {
				t.Fatalf("%s every %d is refused: %v", text, every, err)
			}
			return
		}
		l, s := r.Entries[0].Leaves[0], p.Streams[0]
		if s.PaneMillis < MinPaneMillis || l.PanesPerWindow > MaxPanes || s.PaneMillis != l.PaneMillis {
			t.Fatalf("%+v", l)
		}
		if !instant && l.PanesPerWindow*s.PaneMillis != length {
			t.Fatalf("%d panes of %d do not make a window of %d", l.PanesPerWindow, s.PaneMillis, length)
		}
		if l.PanesPerWindow*s.PaneMillis < length {
			t.Fatalf("%d panes of %d do not cover %d", l.PanesPerWindow, s.PaneMillis, length)
		}
		for k := int64(-3); k <= 3; k++ {
			if e := k*every - offset; !s.OnGrid(e) {
				t.Fatalf("%s every %d: evaluation at %d reads at %d, which is no edge of %d", text, every, k*every, e, s.PaneMillis)
			}
		}
	})
}

// TestBuildIsTheSameEveryTime: the order of maps does not reach the plan, nor does the order of the entries.
func TestBuildIsTheSameEveryTime(t *testing.T) {
	var entries []string
	for i := range 20 {
		entries = append(entries, fmt.Sprintf("- {name: n%d, expr: 'rate(m%d[5m]) / rate(m%d[5m])', every: 15s}\n", i, i%7, i%5))
	}
	var first *Plan
	for i := range 10 {
		entries = append(entries[1:], entries[0])
		c, err := Parse([]byte("materializations:\n"+strings.Join(entries, "")), ".")
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := Build(c)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = p
		}
		if !p.Equal(first) || len(p.Streams) != 7 {
			t.Fatalf("round %d: %s\nwant %s", i, p.Encode(), first.Encode())
		}
	}
}

// TestLeavesOfPreprocessedExpressions: the engine's own preparation of an expression does not hide its leaves, and resolves
// what depends on the query.
func TestLeavesOfPreprocessedExpressions(t *testing.T) {
	start, end := time.UnixMilli(1_000_000), time.UnixMilli(2_000_000)
	for text, want := range map[string]string{
		"rate(m[5m] @ end())":                    "rate at 2000000 over 300000",
		"timestamp((m @ start()))":               "timestamp at 1000000 over 300000",
		"sum(rate((m[5m])))":                     "rate over 300000",
		"rate(m[step()])":                        "rate over 15000",
		"m offset step()":                        " offset 15000 over 300000",
		"max_over_time((m @ 10)[1h:1m])":         " at 10000 over 300000 step 60000",
		"max_over_time(rate(m[5m])[1h:1m] @ 10)": "rate over 300000 step 60000",
	} {
		e, err := NewParser().ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		if e, err = promql.PreprocessExpr(e, start, end, 15*time.Second); err != nil {
			t.Fatal(err)
		}
		leaves, err := Leaves(e, 5*time.Minute)
		if err != nil || len(leaves) != 1 {
			t.Errorf("%s: %+v, %v", text, leaves, err)
			continue
		}
		l := leaves[0]
		got := l.Func
		if l.At != nil {
			got += fmt.Sprintf(" at %d", *l.At)
		}
		if l.OffsetMillis != 0 {
			got += fmt.Sprintf(" offset %d", l.OffsetMillis)
		}
		got += fmt.Sprintf(" over %d", l.RangeMillis)
		if l.InSubquery {
			got += fmt.Sprintf(" step %d", l.StepMillis)
		}
		if got != want || l.Reason != "" {
			t.Errorf("%s: %q (%s), want %q", text, got, l.Reason, want)
		}
	}
}

// TestLeavesAreBounded: an expression with too many selectors is refused, and one with just enough is not.
func TestLeavesAreBounded(t *testing.T) {
	for n, ok := range map[int]bool{MaxLeaves: true, MaxLeaves + 1: false} {
		e, err := NewParser().ParseExpr(strings.Repeat("m+", n-1) + "m")
		if err != nil {
			t.Fatal(err)
		}
		leaves, err := Leaves(e, time.Minute)
		if ok != (err == nil) || ok && len(leaves) != n {
			t.Errorf("%d selectors: %d leaves, %v", n, len(leaves), err)
		}
	}
	_, _, err := buildOne("every: 15s, expr: '" + strings.Repeat("m+", MaxLeaves) + "m'")
	if err == nil || !strings.Contains(err.Error(), "more than 1000 selectors") {
		t.Errorf("%v", err)
	}
}
