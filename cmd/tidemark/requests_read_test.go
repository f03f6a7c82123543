package main

// Reading requests of the random campaign: questions, lists and barriers that no client in its right mind would send.

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
)

// asker makes requests of the query API and of what acts.
type asker struct{ r *rand.Rand }

func (a *asker) one(of ...string) string { return of[a.r.IntN(len(of))] }

func (a *asker) duration() string {
	return a.one("1m", "5m", "30s", "1h", "0s", "1ms", "90s", "7", "1y", "-1m")
}

func (a *asker) selector() string {
	s := a.one("m", "n", "up", "http_requests_total", "{__name__=~\"m|n\"}", "{\"räume.belegt\"}", "{}", "nothing", "{__name__!=\"\"}")
	if a.r.IntN(2) == 0 && !strings.HasPrefix(s, "{") {
		s += a.one(`{job="a"}`, `{job!~"a|b"}`, `{experiment=~".+"}`, `{le="+Inf",code=""}`, `{"grüße"="b"}`, `{job=~"("}`, `{__name__="x"}`)
	}
	return s
}

// expr writes an expression of a depth, mostly one that parses.
func (a *asker) expr(depth int) string {
	if depth == 0 {
		return a.one(a.selector(), a.selector(), "1", "NaN", "time()", "vector(2)", `"text"`, "-Inf", a.selector()+" offset "+a.duration(), a.selector()+" @ 1300", a.selector()+"["+a.duration()+"]")
	}
	sub := func() string { return a.expr(depth - 1) }
	over := func() string { return a.selector() + "[" + a.duration() + "]" }
	switch a.r.IntN(8) {
	case 0:
		return a.one("rate", "increase", "sum_over_time", "count_over_time", "quantile_over_time", "last_over_time", "absent_over_time", "deriv", "changes", "irate", "stddev_over_time", "mad_over_time") + "(" + over() + ")"
	case 1:
		return "quantile_over_time(" + a.one("0.5", "-1", "NaN", "2", "1e300") + ", " + over() + ")"
	case 2:
		return a.one("sum", "count", "min", "max", "avg", "group", "stdvar", "topk", "count_values", "quantile", "limitk") + a.one("", " by (job)", " without (instance)", " by (le, code)") + "(" + a.one("", "", "2, ", `"x", `) + sub() + ")"
	case 3:
		return "(" + sub() + ") " + a.one("+", "-", "*", "/", "%", "^", "==", "> bool", "and", "or", "unless", "atan2") + a.one(" ", " on (job) ", " ignoring (le) group_left () ") + "(" + sub() + ")"
	case 4:
		return a.one("abs", "ceil", "sort", "absent", "scalar", "timestamp", "exp", "sgn", "histogram_count", "day_of_week", "info") + "(" + sub() + ")"
	case 5:
		return "max_over_time((" + sub() + ")[" + a.one("2m:30s", "1m:", "10m:1m", "1m:0s") + "])"
	case 6:
		return `label_replace(` + sub() + `, "x", "$1", "job", ` + a.one(`"(.*)"`, `"("`, `".*"`) + `)`
	default:
		return a.one("histogram_quantile(0.9, ", "clamp_min(", "round(", "label_join(", "-(") + sub() + a.one(")", ", 1)", "", `, "a", ",", "b")`)
	}
}

// spoil changes a text now and then.
func (a *asker) spoil(s string) string {
	if a.r.IntN(8) > 0 || s == "" {
		return s
	}
	i := a.r.IntN(len(s))
	return s[:i] + a.one("", "\x00", "\xff", "(", "}", "\"", "🦀", " ", s) + s[i:]
}

func (a *asker) time() string {
	return a.one("1300", "1320.5", "1260", "0", "-100", "1970-01-01T00:21:00Z", "1e300", "NaN", "Inf", "", "x", "9223372036854775807", "1600", "-62135596801")
}

// next returns a method, a path and a query string or form.
func (a *asker) next() (method, path, params string) {
	v := url.Values{}
	set := func(name, value string) { v.Set(name, a.spoil(value)) }
	method = a.one("GET", "POST")
	expr := func() string { return a.expr(a.r.IntN(4)) }
	switch a.r.IntN(16) {
	case 0, 1, 2, 3:
		path = "/api/v1/query"
		set("query", expr())
		set("time", a.time())
	case 4, 5, 6:
		path = "/api/v1/query_range"
		set("query", expr())
		from := 1000 + a.r.IntN(600)
		set("start", a.one(fmt.Sprint(from), a.time()))
		set("end", a.one(fmt.Sprint(from+a.r.IntN(900)), a.time()))
		set("step", a.one("60", "30s", "15", "1m", "0", "-1", "1e-9", "x", "7"))
	case 7:
		path = "/api/v1/series"
		set("match[]", a.selector())
		set("start", a.time())
		set("limit", a.one("", "1", "-1", "x", "99999999999999999999"))
	case 8:
		path = a.one("/api/v1/labels", "/api/v1/label/job/values", "/api/v1/label/%FF/values", "/api/v1/label/__name__/values", "/api/v1/query_exemplars", "/federate")
		set("match[]", a.selector())
		set("query", a.selector())
		set("end", a.time())
	case 9:
		path = a.one("/api/v1/format_query", "/api/v1/parse_query", "/api/v1/explain")
		set("query", expr())
		set("step", a.one("60", "", "x"))
		set("start", a.time())
		set("end", a.time())
	case 10:
		method, path = "GET", a.one("/api/v1/experiments", "/api/v1/experiments/a", "/api/v1/experiments/%2e%2e", "/api/v1/tasks", "/api/v1/tasks/x", "/api/v1/rules", "/api/v1/materializations", "/api/v1/status/tsdb", "/api/v1/metadata")
		set("search", a.one("", "a", "%", "\x00"))
		set("limit", a.one("", "0", "1", "200", "201", "-1", "x"))
		set("offset", a.one("", "0", "99999999999", "-1"))
		set("state", a.one("", "hot", "retired", "all", "x"))
		set("sort", a.one("", "sample_count", "x"))
	case 11:
		method, path = "POST", "/api/v1/precompute/watermark"
		set("time_ms", a.one("abc", "1.5", "1e9", "9223372036854775808", "-", "1200000", "1260000"))
		if a.r.IntN(2) == 0 {
			set("experiment", a.one("a", "", "v1", strings.Repeat("e", 5000)))
		}
		set("timeout", a.one("30s", "-1s", "x", "1h"))
	case 12:
		method, path = a.one("POST", "PUT"), a.one("/api/v1/tasks", "/api/v1/rescan", "/api/v1/experiments/nobody/rescan", "/-/reload", "/api/v1/admin/snapshot", "/api/v1/read")
		set("kind", a.one("compact", "x"))
		set("target", a.one("nobody", ""))
	default:
		method, path = a.one("GET", "HEAD", "OPTIONS", "DELETE", "POST", "BREW"), "/"+a.spoil(a.one("", "ui/", "ui/app.js", "api/v1/", "api/v2/query", "-/healthy", "-/ready", "debug/pprof/nothing", "api/v1/query/x", "metrics/"))
	}
	return method, path, v.Encode()
}
