package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/window"
	"tidemark/transport/api"
)

// recordWindows makes the recorder of the node, which evaluates with the engine that answers queries.
func (n *node) recordWindows(engine *query.Engine) error {
	n.engine = engine
	n.recorder = window.New(n.panes, engine, n.windows, window.Options{Logger: n.logger, Now: n.flags.around.time})
	if err := n.registry.Register(newWindowCollector(n)); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// runRecorder records windows once replay is done, until ctx ends.
func (n *node) runRecorder(ctx context.Context) error {
	if err := n.runner.Wait(ctx, n.events.Head()); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return n.recorder.Run(ctx)
}

// RuleGroups implements api.RuleLister: the rules of the rule files, and the materializations that are recorded per step, as a group of
// the configuration file.
func (n *node) RuleGroups(ctx context.Context) ([]api.RuleGroup, error) {
	c := n.current.Load()
	dates, err := n.dates(ctx, c.plan)
	if err != nil {
		return nil, err
	}
	var groups []api.RuleGroup
	layouts := make(map[string]string, len(c.plan.Materializations))
	for i := range c.plan.Materializations {
		layouts[c.plan.Materializations[i].Name] = c.plan.Materializations[i].Layout
	}
	add := func(f *plan.Finding, group string) {
		if k := len(groups); k == 0 || groups[k-1].Name != group || groups[k-1].File != f.File || groups[k-1].Interval != float64(f.Every)/1000 {
			groups = append(groups, api.RuleGroup{Name: group, File: f.File, Interval: float64(f.Every) / 1000, Limit: f.Limit})
		}
		r := api.RecordedRule{Name: f.Name, Query: f.Expr, Labels: f.Labels, Health: api.RuleOK}
		if len(f.Reasons) > 0 {
			r.Health, r.LastError = api.RuleErr, f.Reasons[0]
		}
		g := &groups[len(groups)-1]
		if e, ok := dates[f.Materialization]; ok && len(f.Reasons) == 0 {
			r.LastEvaluation, r.EvaluationTime = e.At, e.Took.Seconds()
			g.EvaluationTime += r.EvaluationTime
			if g.LastEvaluation.Before(e.At) {
				g.LastEvaluation = e.At
			}
		}
		g.Rules = append(g.Rules, r)
	}
	for i := range c.report.Entries {
		if f := &c.report.Entries[i]; layouts[f.Name] == plan.LayoutFullWindow {
			add(f, "materializations")
		}
	}
	for i := range c.report.Rules {
		add(&c.report.Rules[i], c.report.Rules[i].Group)
	}
	return groups, nil
}

// dates says when each materialization of a plan, by its name, was evaluated last, and for how long: when its newest steps were recorded;
// or, where that was before this process or it is evaluated when it is read, up to when its windows are published, which took no time of
// its own. One of which nothing is published has none.
func (n *node) dates(ctx context.Context, p *plan.Plan) (map[string]window.Evaluation, error) {
	if n.recorder == nil {
		return nil, nil
	}
	_, states, _, err := n.panes.Streams(ctx)
	if err != nil {
		return nil, err
	}
	frontiers := make(map[plan.StreamID]int64, len(states))
	for i := range states {
		frontiers[states[i].ID] = states[i].Frontier
	}
	out := make(map[string]window.Evaluation)
	for i := range p.Materializations {
		m := &p.Materializations[i]
		if e, ok := n.recorder.Last(p, m); ok {
			out[m.Name] = e
			continue
		}
		through, known := n.gate.now().UnixMilli(), true
		for id := range p.Behind(m) {
			f, ok := frontiers[id]
			known = known && ok && f != math.MinInt64
			through = min(through, f)
		}
		if known {
			out[m.Name] = window.Evaluation{At: time.UnixMilli(through - (through%m.EveryMillis+m.EveryMillis)%m.EveryMillis).UTC()}
		}
	}
	return out, nil
}

// windowCollector reads the numbers of the recorder when it is asked.
type windowCollector struct {
	n                                          *node
	recorded, pending, lag, failures, shadowed *prometheus.Desc
}

func newWindowCollector(n *node) *windowCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("tidemark_window_"+name, help, nil, nil)
	}
	return &windowCollector{
		n:        n,
		recorded: desc("recorded_steps_total", "Steps of recorded windows that were evaluated and recorded."),
		pending:  desc("pending_steps", "Published steps that the last round left unrecorded; they are answered from panes."),
		lag:      desc("lag_seconds", "Time for which there have been published steps that are not recorded."),
		failures: desc("consecutive_failures", "Rounds of recording that failed in a row. Alert on it."),
		shadowed: desc("shadowed_series", "Series written under the name of a materialization or recorded series, which is read in their place. Rename one of the two."),
	}
}

// Describe implements prometheus.Collector.
func (c *windowCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.recorded, c.pending, c.lag, c.failures, c.shadowed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *windowCollector) Collect(ch chan<- prometheus.Metric) {
	r := c.n.recorder
	steps, lag := r.Lag()
	ch <- prometheus.MustNewConstMetric(c.recorded, prometheus.CounterValue, float64(r.Recorded()))
	ch <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(steps))
	ch <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, lag.Seconds())
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.GaugeValue, float64(r.Failures()))
	if n, err := c.n.shadowedSeries(); err == nil {
		ch <- prometheus.MustNewConstMetric(c.shadowed, prometheus.GaugeValue, float64(n))
	}
}

// shadowedSeries counts the series that nobody reads, because a materialization or a recorded series has their name.
func (n *node) shadowedSeries() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	count := 0
	for _, name := range n.current.Load().plan.Names() {
		m, err := labels.NewMatcher(labels.MatchEqual, model.MetricNameLabel, name)
		if err != nil {
			return 0, err
		}
		refs, err := n.index.Select(ctx, m)
		if err != nil {
			return 0, err
		}
		count += len(refs)
	}
	return count, nil
}
