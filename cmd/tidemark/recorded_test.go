package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	promremote "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"tidemark/projections/query/oracle"
	"tidemark/transport/api"
)

// list asks one of the three lists. Label sets come in their text form.
func (v *hosted) list(path string, params ...string) (words, warnings []string) {
	v.t.Helper()
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		q.Add(params[i], params[i+1])
	}
	var answer struct {
		Data     []json.RawMessage
		Warnings []string
	}
	code, body := v.get(path + "?" + q.Encode())
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 200 {
		v.t.Fatalf("%s %v: %d %s, %v", path, params, code, body, err)
	}
	for _, raw := range answer.Data {
		var ls labels.Labels
		var word string
		if json.Unmarshal(raw, &word) != nil {
			if err := json.Unmarshal(raw, &ls); err != nil {
				v.t.Fatal(err)
			}
			word = ls.String()
		}
		words = append(words, word)
	}
	return words, answer.Warnings
}

// readBack asks remote read for what matchers select, as Prometheus does, and prints each series with its values; E stands for its end.
func (v *hosted) readBack(from, to int64, matchers ...*prompb.LabelMatcher) []string {
	v.t.Helper()
	u, err := url.Parse(v.base + "/api/v1/read")
	if err != nil {
		v.t.Fatal(err)
	}
	c, err := promremote.NewReadClient("test", &promremote.ClientConfig{URL: &config.URL{URL: u}, Timeout: model.Duration(patience), ChunkedReadLimit: 1 << 20})
	if err != nil {
		v.t.Fatal(err)
	}
	set, err := c.Read(v.t.Context(), &prompb.Query{StartTimestampMs: from, EndTimestampMs: to, Matchers: matchers}, true)
	if err != nil {
		v.t.Fatal(err)
	}
	var out []string
	for set.Next() {
		line := set.At().Labels().String()
		it := set.At().Iterator(nil)
		for it.Next() != chunkenc.ValNone {
			if t, f := it.At(); value.IsStaleNaN(f) {
				line += " E"
			} else {
				line += fmt.Sprintf(" %g@%d", f, (t-from)/1000)
			}
		}
		out = append(out, line)
	}
	if set.Err() != nil {
		v.t.Fatal(set.Err())
	}
	return out
}

// Q9 over HTTP: every reader finds recorded series by any matchers on their names, and none finds what was written under these names.
func TestRecordedSeriesAreFoundByEveryReader(t *testing.T) {
	const plan = `
rule_files: [r.yml]
materializations:
  - {name: p, expr: 'max by (job) (max_over_time(m[1m]))', every: 30s, layout: full_window}
  - {name: alias, expr: 'min by (job) (min_over_time(m[1m]))', every: 30s}
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(`
groups:
  - name: g
    interval: 30s
    rules: [{record: 'job:m:sum', expr: 'sum by (job) (m)', labels: {team: x}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	v := startService(t, setup{dir: dir, config: plan + "exact: {local: true}\n"})
	now := time.Now().UnixMilli() / 30_000 * 30_000
	var samples []sent
	for at := now - 300_000; at <= now; at += 15_000 {
		for i, job := range []string{"a", "a", "b"} {
			if job == "b" && at > now-200_000 {
				continue // it has stopped; the lookback covers what it was until the end
			}
			samples = append(samples, sent{fmt.Sprintf(`m{i="%d",job=%q}`, i, job), at, float64(i + 1)})
		}
		samples = append(samples, sent{`job:m:sum{job="c",bad="x"}`, at, 1e6}, sent{`p{job="c",bad="y"}`, at, 1e6}, sent{`other{z="only"}`, at, 7})
	}
	v.send(samples...)
	v.barrier(now)
	v.awaitServing()

	sums := []string{`{__name__="job:m:sum", job="a", team="x"}`, `{__name__="job:m:sum", job="b", team="x"}`}
	tops := []string{`{__name__="p", job="a"}`, `{__name__="p", job="b"}`}
	lists := func(v *hosted) {
		t.Helper()
		range5 := []string{"start", seconds(now - 300_000), "end", seconds(now)}
		before := []string{"start", seconds(now - 7_200_000), "end", seconds(now - 6_000_000)}
		for _, c := range []struct {
			path   string
			params []string
			want   []string
		}{
			{"/api/v1/label/__name__/values", nil, []string{"job:m:sum", "m", "other", "p"}},
			{"/api/v1/label/__name__/values", range5, []string{"job:m:sum", "m", "other", "p"}},
			{"/api/v1/label/__name__/values", []string{"match[]", `{team="x"}`}, nil}, // says nothing of names
			{"/api/v1/label/__name__/values", []string{"match[]", `{__name__!="",team="x"}`}, []string{"job:m:sum"}},
			{"/api/v1/labels", nil, []string{"__name__", "i", "job", "team", "z"}},
			{"/api/v1/labels", []string{"match[]", "job:m:sum"}, []string{"__name__", "job", "team"}},
			{"/api/v1/label/bad/values", nil, nil},
			{"/api/v1/label/job/values", nil, []string{"a", "b"}},
			{"/api/v1/series", []string{"match[]", `{__name__=~"job:.*|p"}`}, append(slices.Clone(sums), tops...)},
			{"/api/v1/series", append([]string{"match[]", `{__name__=~"job:.*|p",job="b"}`}, range5...), []string{sums[1], tops[1]}},
			{"/api/v1/series", []string{"match[]", "p", "match[]", `job:m:sum{job="a"}`}, append([]string{sums[0]}, tops...)},
			{"/api/v1/series", append([]string{"match[]", `{__name__=~"alia.*"}`, "match[]", "alias"}, range5...), []string{`{__name__="alias", job="a"}`, `{__name__="alias", job="b"}`}},
			{"/api/v1/series", []string{"match[]", `{job="c"}`}, nil}, // nobody's
			{"/api/v1/series", []string{"match[]", `{bad!=""}`}, nil},
			{"/api/v1/series", append([]string{"match[]", "p", "match[]", "job:m:sum", "limit", "9"}, before...), nil},
		} {
			got, warnings := v.list(c.path, c.params...)
			// Nothing is left out within minutes.
			unseen := strings.Contains(c.path+strings.Join(c.params, " "), "start") && len(warnings) > 0
			if !slices.Equal(got, c.want) || unseen {
				t.Errorf("%s %v: got %q, %q", c.path, c.params, got, warnings)
			}
		}
	}
	samplesOf := func(v *hosted) {
		t.Helper()
		names := &prompb.LabelMatcher{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: "job:.*|other"}
		want := []string{
			`{__name__="job:m:sum", job="a", team="x"} 3@0 3@30 3@60 3@90`, `{__name__="job:m:sum", job="b", team="x"} 3@0 3@30 3@60 3@90`,
			`{__name__="other", z="only"} 7@0 7@15 7@30 7@45 7@60 7@75 7@90`,
		}
		if got := v.readBack(now-300_000, now-210_000, names); !slices.Equal(got, want) {
			t.Errorf("remote read: %q", got)
		}
		if got := v.readBack(now-30_000, now, &prompb.LabelMatcher{Name: "__name__", Value: "p"}); !slices.Equal(got, []string{`{__name__="p", job="a"} 2@0 2@30`}) {
			t.Errorf("remote read of p: %q", got)
		}
		code, text := v.get("/federate?" + url.Values{"match[]": {`{__name__=~"job:.*|p|other"}`, `{bad="x"}`}}.Encode())
		federated := fmt.Sprintf("# TYPE job:m:sum untyped\njob:m:sum{job=\"a\",team=\"x\",instance=\"\"} 3 %[1]d\njob:m:sum{job=\"b\",team=\"x\",instance=\"\"} 3 %[1]d\n"+
			"# TYPE other untyped\nother{z=\"only\",instance=\"\"} 7 %[1]d\n# TYPE p untyped\np{job=\"a\",instance=\"\"} 2 %[1]d\n", now)
		// The wall clock may have reached a step that is not published, whose values are those of open panes.
		if code != 200 || strings.ReplaceAll(text, fmt.Sprint(now+30_000), fmt.Sprint(now)) != federated {
			t.Errorf("federate: %d %s\nwant %s", code, text, federated)
		}
		for _, c := range []struct{ expr, want string }{
			{`{__name__=~"job:.*|other"}`, `{__name__="job:m:sum", job="a", team="x"} => 3, {__name__="job:m:sum", job="b", team="x"} => 3, {__name__="other", z="only"} => 7`},
			{`count by (__name__) ({__name__=~".+"})`, `{__name__="job:m:sum"} => 2, {__name__="m"} => 3, {__name__="other"} => 1, {__name__="p"} => 1`},
			{`{__name__=~"alias|other"}`, `{__name__="alias", job="a"} => 1, {__name__="other", z="only"} => 7`},
			{`count({job="c"}) or vector(0)`, `{} => 0`},
			{`double_exponential_smoothing(job:m:sum{job="a"}[2m], 0.5, 0.5)`, `{job="a", team="x"} => 3`},
		} {
			if got := v.vector(c.expr, now); got != c.want {
				t.Errorf("%s: %s", c.expr, got)
			}
		}
		if a := v.instant(`{__name__=~"job:.*"}`, now); a.route != "hybrid" {
			t.Errorf("route %s, %v", a.route, a.Err)
		}
	}
	lists(v)
	samplesOf(v)
	for name, m := range v.materializations() {
		if m.Hits == 0 {
			t.Errorf("%s answered nothing, and missed %v", name, m.Misses)
		}
	}
	v.instant("max_over_time(m[45s])", now)
	if n := v.materializations()["p"].Misses["off_grid"]; n != 1 {
		t.Errorf("p missed %d times", n)
	}
	// What is recorded as it stands is not the exact source.
	x := exchange{method: http.MethodGet, path: "/api/v1/query", params: [][2]string{{"query", "sum by (job) (m)"}, {"time", seconds(now)}}}
	for route, header := range map[string]http.Header{"warm": nil, "local": {"Cache-Control": {"no-store"}}} {
		if _, told := x.ask(t, v.http, v.base, header); told.Get("X-Tidemark-Route") != route {
			t.Errorf("route %s, want %s", told.Get("X-Tidemark-Route"), route)
		}
	}
	rules := v.rules()
	if r := rules["p"]; time.Since(r.LastEvaluation) > patience || r.EvaluationTime <= 0 {
		t.Errorf("p was evaluated %+v", r)
	}
	v = v.restart()
	for name, r := range v.rules() { // as long as nothing is evaluated, what is published tells
		if at := r.LastEvaluation.UnixMilli(); at < now || r.LastEvaluation.Before(rules[name].LastEvaluation.Add(-time.Minute)) {
			t.Errorf("%s was evaluated at %d, and once at %d", name, at, rules[name].LastEvaluation.UnixMilli())
		}
	}
	v.eventually("the copy is open", func() bool { a := v.instant(`other * 1`, now); return a.code == 200 })
	lists(v)
	samplesOf(v)

	// Without the copy, lists are the same.
	v.setup.config = plan
	v = v.restart()
	if got, _ := v.list("/api/v1/label/__name__/values"); !slices.Equal(got, []string{"job:m:sum", "m", "other", "p"}) {
		t.Errorf("%q", got)
	}
	if got, _ := v.list("/api/v1/series", "match[]", `{__name__=~"job:.*|p"}`); !slices.Equal(got, append(slices.Clone(sums), tops...)) {
		t.Errorf("%q", got)
	}
	v.wantMiss(`{__name__=~"job:.*"}`, now, "no_materialization")
	v.mustStop()
}

// A sample that came too late for the panes makes no hole in what is recorded: at the steps that it touches the copy, which has the sample,
// answers for the name as for the expression, and for those who read what hangs on the name; at all others the record does.
func TestRecordedNamesOverSamplesThatCameTooLate(t *testing.T) {
	const plan = `
rule_files: [r.yml]
correction_horizon: 1m
materializations: [{name: own, expr: 'sum by (job) (sum_over_time(m[1m]))', every: 30s, layout: full_window}]
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(`
groups:
  - name: g
    interval: 30s
    rules: [{record: 'job:m:count', expr: 'sum by (job) (count_over_time(m[1m]))', labels: {team: x}}, {record: 'all:m:count', expr: 'sum(job:m:count)'}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	v := startService(t, setup{dir: dir, config: plan + "exact: {local: true}\n"})
	now := time.Now().UnixMilli() / 30_000 * 30_000
	var samples []sent
	for at := now - 600_000; at <= now; at += 15_000 {
		samples = append(samples, sent{`m{job="a"}`, at, 1}, sent{`m{job="b"}`, at, 10})
	}
	v.send(samples...)
	v.barrier(now)
	late := now - 300_000 - 7_000 // in the windows that end at -300 s and at -270 s
	v.send(sent{`m{job="a"}`, late, 100})
	touched, clean := now-300_000, now-240_000
	for _, c := range []struct {
		expr        string
		at          int64
		want, route string
	}{
		{`own`, touched, `{__name__="own", job="a"} => 104, {__name__="own", job="b"} => 40`, "hybrid"},
		{`own`, touched + 30_000, `{__name__="own", job="a"} => 104, {__name__="own", job="b"} => 40`, "hybrid"},
		{`own`, clean, `{__name__="own", job="a"} => 4, {__name__="own", job="b"} => 40`, "warm"},
		{`job:m:count{job="a"}`, touched, `{__name__="job:m:count", job="a", team="x"} => 5`, "hybrid"},
		{`all:m:count`, touched, `{__name__="all:m:count"} => 9`, "hybrid"},
		{`all:m:count`, clean, `{__name__="all:m:count"} => 8`, "warm"},
		{`sum by (job) (sum_over_time(m[1m]))`, touched, `{job="a"} => 104, {job="b"} => 40`, "local"},
		{`max_over_time(all:m:count[5m])`, now, `{} => 9`, "hybrid"},
	} {
		if got := v.vector(c.expr, c.at); got != c.want {
			t.Errorf("%s at %d: %s, want %s", c.expr, (c.at-now)/1000, got, c.want)
		}
		if a := v.instant(c.expr, c.at); a.route != c.route {
			t.Errorf("%s at %d: route %s, want %s", c.expr, (c.at-now)/1000, a.route, c.route)
		}
	}
	if got := v.readBack(touched-30_000, clean, &prompb.LabelMatcher{Name: "__name__", Value: "all:m:count"}); !slices.Equal(got, []string{`{__name__="all:m:count"} 8@0 9@30 9@60 8@90`}) {
		t.Errorf("remote read: %q", got)
	}
	words, warnings := v.list("/api/v1/series", "match[]", `own{job="a"}`, "start", seconds(touched), "end", seconds(touched))
	if !slices.Equal(words, []string{`{__name__="own", job="a"}`}) || len(warnings) != 0 {
		t.Errorf("listed: %q, %q", words, warnings)
	}
	if n := v.materializations()["own"].Misses["late_uncorrectable"]; n == 0 {
		t.Error("nothing says that own could not answer")
	}
	v.setup.config = plan
	v = v.restart()
	v.wantMiss("own", touched, "late_uncorrectable")
	v.want("own", clean, map[string]float64{`{__name__="own", job="a"}`: 4, `{__name__="own", job="b"}`: 40})
	v.mustStop()
}

// What was told to drop late samples is not answered by name from the copy, which has them: it would be one thing at a step and another
// once panes can tell. The same expression is PromQL, and has them.
func TestNamesThatDropWhatIsLateAreNotReadFromTheCopy(t *testing.T) {
	v := startService(t, setup{config: `
correction_horizon: 1m
materializations:
  - {name: spread, expr: 'stddev_over_time(m[1m])', every: 1m, late: drop}
  - {name: kept, expr: 'stddev_over_time(m[1m])', every: 1m}
exact: {local: true}
`})
	now := time.Now().UnixMilli() / 60_000 * 60_000
	var samples []sent
	for at := now - 600_000; at <= now; at += 2000 { // more of them than a pane holds as they are
		samples = append(samples, sent{`m`, at, 1})
	}
	v.send(samples...)
	v.barrier(now)
	touched := now - 300_000
	v.send(sent{`m`, touched - 7000, 32}) // 30 ones and this
	v.wantMiss("spread", touched, "needs_samples")
	for _, expr := range []string{"kept", "stddev_over_time(m[1m])"} {
		if a := v.instant(expr, touched); a.Err != nil || !oracle.Close(a.one(t), math.Sqrt(30), 0) {
			t.Errorf("%s: %v, %v by route %s", expr, a.Value, a.Err, a.route)
		}
	}
	v.mustStop()
}

// rules lists the rules by what they record.
func (v *hosted) rules() map[string]api.RecordedRule {
	v.t.Helper()
	var answer struct {
		Data struct{ Groups []api.RuleGroup }
	}
	_, body := v.get("/api/v1/rules")
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		v.t.Fatalf("%v in %s", err, body)
	}
	out := make(map[string]api.RecordedRule)
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			out[r.Name] = r
			if g.LastEvaluation.Before(r.LastEvaluation) || g.EvaluationTime < r.EvaluationTime {
				v.t.Errorf("group %+v, rule %+v", g, r)
			}
		}
	}
	return out
}

// vector asks an expression at a time in ms and prints the answer, in label order.
func (v *hosted) vector(expr string, at int64) string {
	v.t.Helper()
	a := v.instant(expr, at)
	if a.Err != nil {
		v.t.Fatalf("%s: %v", expr, a.Err)
	}
	lines := strings.Split(strings.TrimSpace(a.Value.String()), "\n")
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], " @[")
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}
