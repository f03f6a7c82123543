package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemark/projections/plan"
	"tidemark/transport/api"
)

// Every rule of the rule files is listed, what is recorded with it, and what is skipped with the reason; beside them the
// materializations that are recorded per step.
func TestRuleGroups(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(`
groups:
  - name: g
    interval: 30s
    rules:
      - {record: a, expr: 'sum(rate(m[1m]))', labels: {team: x}}
      - {record: b, expr: 'max_over_time(a[5m])'}
      - {record: c, expr: 'double_exponential_smoothing(m[5m], 0.5, 0.5)'}
      - {alert: d, expr: 'm > 1'}
  - name: h
    rules:
      - {record: a, expr: 'sum(n)'}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := plan.Parse([]byte(`
rule_files: [r.yml]
materializations:
  - {name: e, expr: 'sum(m)', every: 15s, layout: full_window}
  - {name: f, expr: 'sum(m)', every: 15s}
`), dir)
	if err != nil {
		t.Fatal(err)
	}
	p, report, err := plan.Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{}
	n.current.Store(&loaded{cfg: cfg, plan: p, report: report, ok: true})
	groups, err := n.RuleGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups {
		for _, r := range g.Rules {
			line := strings.Join([]string{g.File, g.Name, r.Name, r.Query, r.Health, r.Labels["team"]}, " ")
			if g.Interval <= 0 || (r.Health == api.RuleErr) != (r.LastError != "") {
				t.Errorf("%+v in %+v", r, g)
			}
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"tidemark.yml materializations e sum(m) ok",
		"r.yml g a sum(rate(m[1m])) ok x",
		"r.yml g b max_over_time(a[5m]) ok",
		"r.yml g c double_exponential_smoothing(m[5m], 0.5, 0.5) err",
		"r.yml h a sum(n) ok",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
