package main

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// A quantile over a pane of more than 256 values is answered within the error that the answer states, in its infos, in its stats,
// and in the list of materializations; before and after a restart. One over fewer values is exact and says nothing.
func TestSketchesStateTheirError(t *testing.T) {
	v := startService(t, setup{config: `
exact: {local: false}
materializations:
  - {name: tail, expr: "quantile_over_time(0.9, m[1m])", every: 1m}
  - {name: top, expr: "max_over_time(m[1m])", every: 1m}
`})
	var samples []sent
	for i := range 600 {
		samples = append(samples, sent{"m", int64(60_001 + 100*i), 1 + float64(i)/10})
	}
	for i := range 200 {
		samples = append(samples, sent{"m", int64(120_001 + 100*i), float64(i)})
	}
	v.send(samples...)
	v.barrier(180_000)
	check := func() {
		t.Helper()
		exact := 1 + 0.9*599/10
		_, _, body := v.form("/api/v1/query", "query", "quantile_over_time(0.9, m[1m])", "time", "120", "stats", "all")
		o, err := parseAnswer(string(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := soleValue(t, o); math.Abs(got/exact-1) > 0.005 || got == exact {
			t.Errorf("%v, want %v within 0.5%%", got, exact)
		}
		for _, want := range []string{
			"PromQL info: quantile_over_time: panes of more than 256 values are read from sketches, whose values are exact to 0.5%",
			"1 of its leaves were read from sketches, exact to 0.5%", `"sketchedLeaves":1,"sketchError":0.005`,
		} {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s\ndoes not say %s", body, want)
			}
		}
		_, _, body = v.form("/api/v1/query", "query", "quantile_over_time(0.9, m[1m])", "time", "180")
		if o, err = parseAnswer(string(body)); err != nil || soleValue(t, o) != 0.9*199 || o.Infos != nil {
			t.Errorf("%s, %v", body, err)
		}
		_, list := v.get("/api/v1/materializations")
		for name, bound := range map[string]string{"tail": "0.005", "top": "null"} {
			at := strings.Index(list, fmt.Sprintf(`"name":%q`, name))
			if at < 0 || !strings.HasPrefix(list[at+strings.Index(list[at:], `"quantile_error":`):], `"quantile_error":`+bound) {
				t.Errorf("%s of\n%s", name, list)
			}
		}
	}
	check()
	v = v.restart()
	check()
	v.mustStop()
}
