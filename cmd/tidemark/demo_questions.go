package main

import (
	"fmt"
	"strings"

	"tidemark/projections/query/oracle"
)

// question is one of the fixed queries of the demo. An instant query is asked at the end of the epoch, a range query over
// its steps.
type question struct {
	name  string
	expr  string
	steps bool
}

// questions returns what is asked before and after each barrier. Each reads the last pane of the epoch.
func questions() []question {
	return []question{
		{"samples_seen", "sum by (experiment) (increase(training_samples_total[150s]))", false},
		{"step_p95", "quantile_over_time(0.95, training_step_seconds[150s])", false},
		{"mean_loss", "avg by (experiment) (avg_over_time(training_loss[150s]))", false},
		{"slowest_step", "max by (experiment, task) (max_over_time(training_step_seconds[150s]))", false},
		{"tasks_running", "count by (experiment) (training_running)", false},
		{"fastest_tasks", "topk(3, sum by (task) (rate(training_samples_total[150s])))", false},
		{"samples_per_step", "sum by (task) (increase(training_samples_total[150s])) / sum by (task) (increase(training_steps_total[150s]))", false},
		{"restarts", "sum by (task) (resets(training_steps_total[150s])) > 0", false},
		{"step_rate", "sum by (experiment) (rate(training_steps_total[1m]))", true},
		{"loss_now", "avg by (experiment) (training_loss)", true},
	}
}

// at returns the question about the epoch that ends at end.
func (q question) at(end int64) oracle.Query {
	if q.steps {
		return oracle.Query{Expr: q.expr, Start: end - epochMillis + gridMillis, End: end, Step: gridMillis}
	}
	return oracle.Query{Expr: q.expr, Start: end}
}

// demoConfig is a tidemark.yml that makes the questions warm: each is a materialization.
func demoConfig(qs []question) string {
	var b strings.Builder
	b.WriteString("# The questions of `tidemark demo`. Materializations with the same selector and grid share their panes.\nmaterializations:\n")
	for _, q := range qs {
		fmt.Fprintf(&b, "  - name: %s\n    expr: %s\n    every: %ds\n", q.name, q.expr, gridMillis/1000)
	}
	return b.String()
}
