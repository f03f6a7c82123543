package window_test

import (
	"fmt"
	"testing"

	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
)

// BenchmarkRead asks for one hour of a rate over 1,000 series in steps of 15 s, from the record and from panes, by its name and as
// it stands.
func BenchmarkRead(b *testing.B) {
	const hour, series = 3_600_000, 1000
	r := newRig(b)
	defer r.stop()
	r.configure(`materializations: [{name: rates, expr: 'sum by (j) (rate(m_total[5m]))', every: 15s, layout: full_window}]`)
	for t := int64(0); t <= hour; t += 15_000 {
		batch := make([]querytest.Series, series)
		for i := range batch {
			batch[i] = one("m_total", fmt.Sprint(i), float64(t), float64(t/1000*int64(i)))
		}
		r.write(batch...)
	}
	r.barrier(hour)
	r.settle()
	for _, bc := range []struct {
		op, expr string
		engine   *query.Engine
	}{
		{"record-by-name", "rates", r.engine},
		{"record-as-it-stands", "sum by (j) (rate(m_total[5m]))", r.engine},
		{"panes", "sum by (j) (rate(m_total[5m]))", r.bare},
	} {
		b.Run(fmt.Sprintf("op=%s/series=%d", bc.op, series), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				res, err := ask(r.ctx, bc.engine, over(bc.expr, 300_000, hour, 15_000))
				if err != nil {
					b.Fatal(err)
				}
				if bc.engine == r.engine && res.Stats.Recorded != 221 {
					b.Fatalf("%d steps from the record", res.Stats.Recorded)
				}
				res.Close()
			}
		})
	}
}
