package main

// What the campaign asks a service for, and what the model says the answer is.

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// warmQuestion is one expression that a plan answers, on the grid of its materialization.
type warmQuestion struct {
	expr     string
	metric   string
	pane     int64
	r, every int64
	by       func(labels.Labels) bool
}

func anySeries(labels.Labels) bool { return true }

func warmQuestions(planNo int) []warmQuestion {
	ofX := func(ls labels.Labels) bool { return ls.Get("experiment") == "x" }
	both := []warmQuestion{
		{"sum_over_time(a[20s])", "a", 10_000, 20_000, 10_000, anySeries},
		{"sum by (i) (count_over_time(a[40s]))", "a", 10_000, 40_000, 10_000, anySeries},
		{`stddev_over_time(a{i="1"}[20s])`, "a", 10_000, 20_000, 10_000, func(ls labels.Labels) bool { return ls.Get("i") == "1" }},
		{"rate(b[30s])", "b", 15_000, 30_000, 15_000, anySeries},
		{"sum(increase(b[1m]))", "b", 15_000, 60_000, 15_000, anySeries},
		{"resets(b[30s])", "b", 15_000, 30_000, 15_000, anySeries},
		{"count_over_time(c[20s])", "c", 10_000, 20_000, 10_000, anySeries},
		{`increase(f{experiment="x"}[20s])`, "f", 10_000, 20_000, 10_000, ofX},
	}
	if planNo == 0 {
		return append(both,
			warmQuestion{"max by (i) (max_over_time(e[40s]))", "e", 20_000, 40_000, 20_000, anySeries},
			warmQuestion{"quantile_over_time(0.9, e[20s])", "e", 20_000, 20_000, 20_000, anySeries},
			warmQuestion{"min_over_time(e[20s]) - avg_over_time(e[20s])", "e", 20_000, 20_000, 20_000, anySeries},
		)
	}
	return append(both,
		warmQuestion{"avg_over_time(a[1m])", "a", 60_000, 60_000, 60_000, anySeries},
		warmQuestion{"last_over_time(g[10s])", "g", 10_000, 10_000, 10_000, anySeries},
	)
}

// query puts some questions, each at one of the last steps.
func (p *play) query(ctx context.Context, choice uint64) error {
	qs := warmQuestions(p.plan)
	for n := range uint64(4) {
		q := qs[(choice+n)%uint64(len(qs))]
		now := int64(math.Floor(float64(p.w.clock.wall.Load()) / float64(q.every)))
		if err := p.ask(ctx, q, (now-int64((choice>>32+n)%12))*q.every); err != nil {
			return err
		}
	}
	return nil
}

// reread asks for what is recorded, at all of the last steps up to one.
func (p *play) reread(ctx context.Context, at int64) error {
	for _, q := range warmQuestions(p.plan) {
		for e := at; strings.HasPrefix(q.expr, "max by") && e > at-6*q.every; e -= q.every {
			if err := p.ask(ctx, q, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask puts one question, at e, and holds the answer against Prometheus' engine over what the model has.
func (p *play) ask(ctx context.Context, q warmQuestion, e int64) error {
	if p.m == nil {
		return nil
	}
	st := p.streamOf(q)
	if st == nil {
		return fmt.Errorf("no stream for %s", q.expr)
	}
	m := p.m.owner(st.spec.ID)
	unfinished, _ := p.w.unfinished()
	task := ""
	if q.metric == "f" {
		task = "x"
	}
	must := !unfinished[st.spec.ID] && m.answerable(st.spec.ID, e, q.r, task, q.by) &&
		!(strings.HasPrefix(q.expr, "stddev") && m.densest(st.spec.ID, e, q.r, q.by) > mostSamples)
	r, code, text := p.w.query(q.expr, e)
	p.asked.questions++
	if code != http.StatusOK || r.route != "warm" {
		if must {
			return fmt.Errorf("%s at %d must be answered from panes: status %d, route %q: %.300s", q.expr, e, code, r.route, text)
		}
		return nil
	}
	if !must {
		if q.metric == "a" && p.plan == 1 {
			return nil // the other stream of this metric may know
		}
		return fmt.Errorf("%s at %d was answered from panes, which cannot", q.expr, e)
	}
	p.asked.warm++
	data := m.storage(st.spec.ID)
	var sum float64
	for _, s := range data {
		for i, t := range s.T {
			if t > e-q.r && t <= e && !math.IsNaN(s.V[i]) {
				sum += math.Abs(s.V[i])
			}
		}
	}
	want := oracle.Ask(ctx, p.engine, oracle.Storage(data), oracle.Query{Expr: q.expr, Start: e})
	slices.Sort(r.outcome.Warnings)
	slices.Sort(r.outcome.Infos)
	if err := oracle.Compare(r.outcome, want, oracle.Terms{Sum: sum}); err != nil {
		return fmt.Errorf("%s at %d: %w", q.expr, e, err)
	}
	return nil
}

func (p *play) streamOf(q warmQuestion) *modelStream {
	for _, st := range p.m.planned() {
		if st.spec.PaneMillis == q.pane && slices.ContainsFunc(st.spec.Matchers, func(m plan.Matcher) bool { return m.Name == "__name__" && m.Value == q.metric }) {
			return st
		}
	}
	return nil
}
