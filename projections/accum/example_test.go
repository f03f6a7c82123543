package accum_test

import (
	"fmt"

	"tidemark/projections/accum"
)

// Two buckets of a minute are folded and encoded when they close; a query over both reads them back.
func Example() {
	first := accum.Fold([]int64{10_000, 50_000}, []float64{100, 160})
	second := accum.Fold([]int64{70_000, 110_000}, []float64{200, 260})
	stored := map[int64][]byte{
		60_000:  first.AppendEncode(nil, 60_000),
		120_000: second.AppendEncode(nil, 120_000),
	}

	var w accum.Window
	for _, end := range []int64{60_000, 120_000} {
		if _, err := accum.AppendDecoded(&w, stored[end], end); err != nil {
			fmt.Println(err)
			return
		}
	}
	var steps accum.Cursor
	steps.Reset(&w)
	var eval accum.Evaluator
	for at := int64(60_000); at <= 180_000; at += 60_000 {
		part := steps.Cut(at-120_000, at)
		v, ok, err := eval.Eval(accum.Increase, &part, at-120_000, at, 0)
		fmt.Println(at, v, ok, err)
	}
	// Output:
	// 60000 105 true <nil>
	// 120000 192 true <nil>
	// 180000 105 true <nil>
}
