package query_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"tidemark/projections/query"
)

// BenchmarkRange answers a dashboard's panel: sum of rates over 1,000 series, 10 steps of a minute. What the source does
// is done once, outside.
func BenchmarkRange(b *testing.B) {
	const n = 1000
	m := model(b, n)
	for _, expr := range []string{"sum(rate(m[2m]))", "m", "quantile_over_time(0.9, m[5m])"} {
		b.Run(fmt.Sprintf("op=%s/series=%d", expr, n), func(b *testing.B) {
			var snap *query.Snapshot
			e := query.New(sourceFunc{m, func(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
				if snap != nil {
					return snap, nil
				}
				s, err := m.Read(ctx, reqs)
				snap = s
				return s, err
			}}, query.Options{})
			b.ReportAllocs()
			for b.Loop() {
				res, err := e.Range(b.Context(), query.RangeParams{
					Common: query.Common{Expr: expr}, Start: time.UnixMilli(60_000), End: time.UnixMilli(600_000), Step: time.Minute,
				})
				if err != nil {
					b.Fatal(err)
				}
				res.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n/10, "ns/evaluation")
		})
	}
}
