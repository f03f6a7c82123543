package main

import (
	"strings"
	"testing"
)

// Without any plan the exact copy answers, by the same rules.
func TestCase_D11_D12_D16_D18_D24_FromTheCopy(t *testing.T) {
	v := startService(t, setup{config: "exact: {local: true}"})
	v.send(sent{"edge", 0, 9}, sent{"steps", 1_700_000, 1}, sent{"steps", 5_300_000, 2}, sent{"steps", 8_900_000, 3})
	for at := int64(60_000); at <= 170_000; at += 10_000 {
		v.send(sent{"open", at, 1})
	}
	ask := func(path string, params ...string) string {
		t.Helper()
		code, header, body := v.form(path, params...)
		if route := header.Get("X-Tidemark-Route"); code != 200 || strings.Contains(path, "query") && route != "local" {
			t.Fatalf("%s %v: status %d, route %q: %s", path, params, code, route, body)
		}
		return string(body)
	}
	value := func(at, v string) string { return `"value":[` + at + `,"` + v + `"]` }
	const none = `"result":[]`
	for _, c := range []struct{ expr, at, lookback, want string }{
		{"edge", "299.999", "", value("299.999", "9")}, {"edge", "300", "", none}, // D12
		{"edge", "59.999", "60s", value("59.999", "9")}, {"edge", "60", "60s", none}, {"edge", "1", "0.5", none},
		{"count_over_time(open[1m])", "120", "", value("120", "6")}, {"count_over_time(open[1m])", "180", "", value("180", "5")}, // D18
		{"nope", "60", "", none}, // D11
	} {
		if got := ask("/api/v1/query", "query", c.expr, "time", c.at, "lookback_delta", c.lookback); !strings.Contains(got, c.want) {
			t.Errorf("%s at %s, lookback %q: %s; want %s", c.expr, c.at, c.lookback, got, c.want)
		}
	}
	if got := ask("/api/v1/query_range", "query", "steps", "start", "1800", "end", "9000", "step", "3600"); !strings.Contains(got, `"values":[[1800,"1"],[5400,"2"],[9000,"3"]]`) { // D16
		t.Errorf("steps: %s", got)
	}
	if got := ask("/api/v1/series", "match[]", "steps", "match[]", `{__name__=~"st.*"}`); got != `{"status":"success","data":[{"__name__":"steps"}]}` { // D24
		t.Errorf("series: %s", got)
	}
	for _, path := range []string{"/api/v1/series", "/api/v1/labels"} {
		if got := ask(path, "match[]", "nope"); got != `{"status":"success","data":[]}` { // D11
			t.Errorf("%s: %s", path, got)
		}
	}
	v.mustStop()
}
