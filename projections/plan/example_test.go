package plan_test

import (
	"fmt"

	"tidemark/projections/plan"
)

// From a configuration to the grid of a stream.
func Example() {
	c, err := plan.Parse([]byte(`
materializations:
  - name: error_ratio
    expr: sum(rate(http_requests_total{code=~"5.."}[5m])) / sum(rate(http_requests_total[5m]))
    every: 30s
`), ".")
	if err != nil {
		fmt.Println(err)
		return
	}
	p, report, err := plan.Build(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(report.String())

	again, err := plan.Decode(p.Encode())
	fmt.Println(len(p.Streams), "streams;", again.Equal(p), err)
	s := &p.Streams[0]
	fmt.Println(s.BucketStart(30_000), s.BucketEnd(30_000), s.BucketEnd(30_001))
	// Output:
	// materializations
	//   tidemark.yml:3: error_ratio every 30s
	//     rate(http_requests_total{code=~"5.."}[5m]): stream 099d73c40b4cdc2f, 10 panes of 30s
	//     rate(http_requests_total[5m]): stream 4a2b1f68d25110ba, 10 panes of 30s
	// 2 streams; true <nil>
	// 0 30000 60000
}

// A selector inside a range function is a leaf; what stands around it is not.
func ExampleLeaves() {
	expr, err := plan.NewParser().ParseExpr(`histogram_quantile(0.9, sum by (le) (rate(latency_bucket[5m] offset 1h))) > on () up`)
	if err != nil {
		fmt.Println(err)
		return
	}
	leaves, err := plan.Leaves(expr, 5*60e9)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range leaves {
		fmt.Println(l.Node, l.Instant, l.RangeMillis, l.OffsetMillis)
	}
	// Output:
	// rate(latency_bucket[5m] offset 1h) false 300000 3600000
	// up true 300000 0
}
