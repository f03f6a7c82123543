package querytest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/plan"
	"tidemark/projections/query/oracle"
)

// Record returns the series with those that the materializations of p record of them at the multiples of their steps in
// [from, to], ms, by brute force: Prometheus' engine evaluates each expression at each step, and a series without a value is
// ended by a stale marker, as Prometheus' rules do it. What was written under a recorded name is left out. For a
// materialization over left-closed streams every sample is taken as one millisecond later, which moves [e−R, e) to (e−R, e].
func Record(ctx context.Context, p *plan.Plan, series []Series, from, to int64) ([]Series, error) {
	names := p.Names()
	all := slices.DeleteFunc(slices.Clone(series), func(s Series) bool {
		return slices.Contains(names, s.Labels.Get("__name__"))
	})
	written := len(all)
	done := map[string]bool{}
	for len(done) < len(p.Materializations) {
		before := len(done)
		for i := range p.Materializations {
			m := &p.Materializations[i]
			ready := !slices.ContainsFunc(p.Materializations, func(o plan.Materialization) bool {
				return slices.Contains(m.Reads, o.ReadAs()) && !done[o.Name]
			})
			if done[m.Name] || !ready {
				continue
			}
			made, err := recordOne(ctx, p, m, all, written, from, to)
			if err != nil {
				return nil, err
			}
			all = append(all, made...)
			done[m.Name] = true
		}
		if len(done) == before {
			return nil, fmt.Errorf("materializations read one another in a circle")
		}
	}
	return all, nil
}

func recordOne(ctx context.Context, p *plan.Plan, m *plan.Materialization, all []Series, written int, from, to int64) ([]Series, error) {
	data := slices.Clone(all)
	if slices.ContainsFunc(p.Streams, func(s plan.Stream) bool { return s.Closed == plan.Left && slices.Contains(m.Streams, s.ID) }) {
		for i := range data[:written] {
			data[i].T = slices.Clone(data[i].T)
			for j := range data[i].T {
				data[i].T[j]++
			}
		}
	}
	engine, storage := oracle.NewEngine(50_000_000), oracle.Storage(data)
	opts := promql.NewPrometheusQueryOpts(false, 0, nil)
	byLabels := map[string]int{}
	var out []Series
	var last map[string]bool
	for t := floorTo(from+m.EveryMillis-1, m.EveryMillis); t <= to; t += m.EveryMillis {
		q, err := engine.NewInstantQuery(ctx, storage, opts, m.Expr, time.UnixMilli(t))
		if err != nil {
			return nil, err
		}
		res := q.Exec(ctx)
		if res.Err != nil {
			return nil, fmt.Errorf("%s at %d: %w", m.Name, t, res.Err)
		}
		vector, ok := res.Value.(promql.Vector)
		if s, scalar := res.Value.(promql.Scalar); scalar {
			vector, ok = promql.Vector{{F: s.V}}, true
		}
		if !ok {
			return nil, fmt.Errorf("%s: a %s", m.Name, res.Value.Type())
		}
		now := map[string]bool{}
		for _, sample := range vector {
			b := labels.NewBuilder(sample.Metric)
			b.Set("__name__", m.ReadAs())
			for k, v := range m.Labels {
				b.Set(k, v)
			}
			l := b.Labels()
			key := l.String()
			if _, ok := byLabels[key]; !ok {
				byLabels[key] = len(out)
				out = append(out, Series{Labels: l})
			}
			s := &out[byLabels[key]]
			s.T, s.V = append(s.T, t), append(s.V, sample.F)
			now[key] = true
		}
		for key := range last {
			if !now[key] {
				s := &out[byLabels[key]]
				s.T, s.V = append(s.T, t), append(s.V, math.Float64frombits(value.StaleNaN))
			}
		}
		last = now
		q.Close()
	}
	return out, nil
}

func floorTo(t, every int64) int64 {
	m := t % every
	if m < 0 {
		m += every
	}
	return t - m
}
