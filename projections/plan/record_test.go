package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

func mustBuild(t *testing.T, text string) *Plan {
	t.Helper()
	c, err := Parse([]byte(text), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *Plan) named(t *testing.T, name string) *Materialization {
	t.Helper()
	for i := range p.Materializations {
		if p.Materializations[i].Name == name {
			return &p.Materializations[i]
		}
	}
	t.Fatalf("no materialization %s", name)
	return nil
}

// TestReaches holds which buckets a step depends on, through offsets, subqueries and other records, and which expressions are
// evaluated when they are read.
func TestReaches(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"rate(m[5m])", "(300000, 0]"},
		{"m", "(300000, 0]"},
		{"rate(m[5m] offset 1m)", "(360000, 60000]"},
		{"rate(m[5m] offset -1m)", "(300000, -60000]"},
		{"rate(m[5m]) / rate(m[1m] offset 10m)", "(660000, 0]"},
		{"max_over_time(rate(m[5m])[10m:1m] offset 2m)", "(1020000, 120000]"},
		{"base", "(420000, 60000]"},
		{"max_over_time(base[2m] offset 1m)", "(300000, 120000]"},
		{"m and on () vector(1)", "(300000, 0]"},
		{"m unless n", "(300000, 0] (300000, 0]"},
		{"clamp_min(m, 3)", "(300000, 0]"},
		{"m or n", "(300000, 0] (300000, 0]"},
		{"m or vector(1)", "it has values where there is no data"},
		{"absent(m)", "it has values where there is no data"},
		{"scalar(m)", "it has values where there is no data"},
		{"m * scalar(n)", "(300000, 0] (300000, 0]"},
		{"vector(1) + on () m", "(300000, 0]"},
		{"time()", "it has values where there is no data"},
		{"day_of_month()", "it has values where there is no data"},
		{"day_of_month(m)", "(300000, 0]"},
		{"m @ 100", "@ pins a window, so that one sample may change every step"},
		{"max_over_time(m[5m:1m] @ end())", "@ pins a window, so that one sample may change every step"},
		{"zero", "it has values where there is no data"},
	} {
		p := mustBuild(t, fmt.Sprintf(`
materializations:
  - {name: base, expr: 'sum_over_time(m[1m] offset 1m)', every: 1m, layout: full_window}
  - {name: zero, expr: 'vector(0)', every: 1m, layout: full_window}
  - {name: x, expr: '%s', every: 1m, layout: full_window}
`, c.expr))
		reaches, got, err := p.Reaches(p.named(t, "x"))
		if err != nil {
			t.Fatalf("%s: %v", c.expr, err)
		}
		for _, r := range reaches {
			got += fmt.Sprintf(" (%d, %d]", r.Back, r.Ahead)
		}
		if got = strings.TrimSpace(got); got != c.want {
			t.Errorf("%s: %s, want %s", c.expr, got, c.want)
		}
	}
}

// TestRecordID holds that a record has another name exactly when its values may differ.
func TestRecordID(t *testing.T) {
	id := func(name, text string) uint64 {
		t.Helper()
		p := mustBuild(t, text)
		return p.RecordID(p.named(t, name))
	}
	of := func(entry string) string { return "materializations:\n  - " + entry + "\n" }
	base := id("x", of(`{name: x, expr: 'sum(m)', every: 15s, layout: full_window}`))
	for entry, same := range map[string]bool{
		`{name: x, expr: 'sum(m)', every: 15s, layout: full_window, retention: 1d}`:        true,
		`{name: x, expr: ' sum( m )', every: 15s, layout: full_window}`:                    true,
		`{name: x, expr: 'sum(m)', every: 30s, layout: full_window}`:                       false,
		`{name: x, expr: 'max(m)', every: 15s, layout: full_window}`:                       false,
		`{name: x, expr: 'sum(m)', every: 15s, layout: full_window, late: drop}`:           false,
		`{name: x, expr: 'sum(m)', every: 15s, layout: full_window, closed: left}`:         false,
		`{name: x, expr: 'sum(m)', every: 15s, layout: full_window, allowed_lateness: 1s}`: false,
	} {
		if got := id("x", of(entry)) == base; got != same {
			t.Errorf("%s: the same record: %t", entry, got)
		}
	}
	reader := `
materializations:
  - {name: a, expr: '%s', every: 15s, layout: full_window}
  - {name: x, expr: 'sum(a)', every: 15s, layout: full_window}
`
	if id("x", fmt.Sprintf(reader, "m")) == id("x", fmt.Sprintf(reader, "n")) {
		t.Error("the same record whatever it reads by name")
	}
}

// TestReadNames holds when a selector means what is recorded.
func TestReadNames(t *testing.T) {
	names := Named{All: []string{"a", "ab", "alias", "b"}, Found: []string{"a", "ab", "b"}}
	for _, c := range []struct {
		selector string
		want     []string
		mixed    bool
	}{
		{"a", []string{"a"}, false},
		{`{__name__="a",x="y"}`, []string{"a"}, false},
		{"c", nil, false},
		{`{x="y"}`, nil, false},
		{`{__name__=~"a|b"}`, []string{"a", "b"}, false},
		{`{__name__=~"a|c"}`, []string{"a"}, true},
		{`{__name__=~"a|c",__name__!="c"}`, []string{"a"}, false},
		{`{__name__=~"c|d"}`, nil, false},
		{`{__name__=~"a.*"}`, []string{"a", "ab"}, true},
		{`{__name__=~"c.*"}`, nil, false},
		{`{__name__!="a"}`, []string{"ab", "b"}, true},
		{`{__name__="a",__name__!~"a.*"}`, nil, false},
		{"alias", []string{"alias"}, false},
		{`{__name__=~"alias|c"}`, []string{"alias"}, true},
		{`{__name__=~"alia.*"}`, nil, false},
	} {
		var ms []*labels.Matcher
		ms, err := NewParser().ParseMetricSelector(c.selector)
		if err != nil {
			t.Fatal(err)
		}
		got, mixed := ReadNames(ms, names)
		if !slices.Equal(got, c.want) || mixed != c.mixed {
			t.Errorf("%s: %v, mixed %t; want %v, %t", c.selector, got, mixed, c.want, c.mixed)
		}
	}
}

// A plan whose materializations read themselves, or what is not there, is not a plan.
func TestValidate_Reads(t *testing.T) {
	m := func(name string, reads ...string) Materialization {
		return Materialization{
			Name: name, Expr: "1", EveryMillis: 1000, Layout: LayoutFullWindow, RetentionMillis: 1000, Streams: []StreamID{}, Reads: reads,
		}
	}
	chain := []Materialization{m("n0")}
	for i := range maxReadDepth + 1 {
		chain = append(chain, m(fmt.Sprintf("n%d", i+1), fmt.Sprintf("n%d", i)))
	}
	for _, c := range []struct {
		mats []Materialization
		err  string
	}{
		{[]Materialization{m("a"), m("b", "a"), m("c", "a", "b")}, ""},
		{[]Materialization{m("a", "a")}, "reads itself"},
		{[]Materialization{m("a", "b"), m("b", "c"), m("c", "a")}, "reads itself"},
		{[]Materialization{m("a", "b")}, "not in the plan"},
		{[]Materialization{m("a"), m("b", "a", "a")}, "twice"},
		{chain[:maxReadDepth+1], ""},
		{chain, "read one another"},
	} {
		p := &Plan{Format: Format, ExperimentLabel: "experiment", LookbackMillis: 1, Streams: []Stream{}, Materializations: c.mats}
		err := p.Validate()
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%v: %v", c.mats, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%v: %v, want %q", c.mats, err, c.err)
		case c.err == "":
			if back, err := Decode(p.Encode()); err != nil || !back.Equal(p) {
				t.Errorf("%v does not come back: %v", c.mats, err)
			}
		}
	}
}
