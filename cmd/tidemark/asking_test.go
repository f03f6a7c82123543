package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query/oracle"
)

// outcome is the answer to a barrier.
type outcome struct {
	Seq      uint64 `json:"seq"`
	Closed   int64  `json:"closed_buckets"`
	Complete int64  `json:"complete_through_ms"`
	warnings []string
}

// barrier posts a watermark, which must succeed.
func (v *hosted) barrier(t int64) outcome {
	v.t.Helper()
	return v.barrierAt("/api/v1/precompute/watermark", "time_ms", strconv.FormatInt(t, 10))
}

func (v *hosted) drain() outcome {
	v.t.Helper()
	return v.barrierAt("/api/v1/precompute/drain")
}

func (v *hosted) barrierAt(path string, params ...string) outcome {
	v.t.Helper()
	code, _, body := v.form(path, params...)
	var a struct {
		Data     outcome  `json:"data"`
		Warnings []string `json:"warnings"`
	}
	if err := json.Unmarshal(body, &a); err != nil || code != 200 {
		v.t.Fatalf("%s %v: status %d, %s, %v", path, params, code, body, err)
	}
	a.Data.warnings = a.Warnings
	return a.Data
}

// answered is what a query got.
type answered struct {
	oracle.Outcome
	code      int
	route     string
	seq       uint64
	complete  string // of the header; "" if absent
	errorType string
	miss      string // the reason, if panes could not answer
}

// query asks an instant query, or a range query if the step is not 0.
func (v *hosted) query(q oracle.Query) answered {
	v.t.Helper()
	params := []string{"query", q.Expr}
	if q.Lookback > 0 {
		params = append(params, "lookback_delta", seconds(q.Lookback))
	}
	path := "/api/v1/query"
	if q.Step == 0 {
		params = append(params, "time", seconds(q.Start))
	} else {
		path = "/api/v1/query_range"
		params = append(params, "start", seconds(q.Start), "end", seconds(q.End), "step", seconds(q.Step))
	}
	code, header, body := v.form(path, params...)
	return decodeAnswer(v.t, code, header, body)
}

// instant asks an expression at a time in ms.
func (v *hosted) instant(expr string, at int64) answered {
	v.t.Helper()
	return v.query(oracle.Query{Expr: expr, Start: at})
}

func decodeAnswer(t testing.TB, code int, header http.Header, body []byte) answered {
	t.Helper()
	var in struct {
		Status, ErrorType, Error string
		Warnings, Infos          []string
		Data                     json.RawMessage
	}
	if err := json.Unmarshal(body, &in); err != nil {
		t.Fatalf("status %d with %q: %v", code, body, err)
	}
	a := answered{
		code: code, route: header.Get("X-Tidemark-Route"), complete: header.Get("X-Tidemark-Complete-Through"), errorType: in.ErrorType,
		Outcome: oracle.Outcome{Warnings: in.Warnings, Infos: in.Infos},
	}
	if (in.Status == "success") != (code == 200) {
		t.Fatalf("status %d with %s", code, body)
	}
	if code != 200 {
		a.Err = errors.New(in.Error)
		a.miss, _ = missReason(in.Error)
		return a
	}
	a.seq, _ = strconv.ParseUint(header.Get("X-Tidemark-Seq"), 10, 64)
	v, err := decodeValue(in.Data)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	a.Value = v
	return a
}

// want asks an expression at a time in ms and expects a warm answer: label set → value, in any order.
func (v *hosted) want(expr string, at int64, want map[string]float64) {
	v.t.Helper()
	a := v.instant(expr, at)
	if a.Err != nil || a.route != "warm" {
		v.t.Fatalf("%s at %d: route %q, %v", expr, at, a.route, a.Err)
	}
	got := map[string]float64{}
	switch r := a.Value.(type) {
	case promql.Vector:
		for _, s := range r {
			got[s.Metric.String()] = s.F
		}
	case promql.Scalar:
		got["{}"] = r.V
	}
	ok := len(got) == len(want)
	for k, w := range want {
		g, have := got[k]
		ok = ok && have && oracle.Close(g, w, 0)
	}
	if !ok {
		v.t.Fatalf("%s at %d: got %v, want %v", expr, at, got, want)
	}
}

// one is the only value of an answer.
func (a *answered) one(t *testing.T) float64 {
	t.Helper()
	r, ok := a.Value.(promql.Vector)
	if !ok || len(r) != 1 {
		t.Fatalf("%v is not one value (%v)", a.Value, a.Err)
	}
	return r[0].F
}

// one is the result of an aggregation without labels.
func one(v float64) map[string]float64 { return map[string]float64{"{}": v} }

// wantMiss asks an expression and expects that panes cannot answer it, for a reason.
func (v *hosted) wantMiss(expr string, at int64, reason string) {
	v.t.Helper()
	if a := v.instant(expr, at); a.code != 422 || a.miss != reason {
		v.t.Fatalf("%s at %d: status %d, route %q, %v; want a miss for %s", expr, at, a.code, a.route, a.Err, reason)
	}
}

// numbers are the samples of /metrics: name{labels} as Prometheus prints them.
type numbers map[string]float64

func (v *hosted) numbers() numbers {
	v.t.Helper()
	code, text := v.get("/metrics")
	if code != 200 {
		v.t.Fatalf("/metrics: status %d", code)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader([]byte(text)))
	if err != nil {
		v.t.Fatal(err)
	}
	out := numbers{}
	for name, f := range families {
		for _, m := range f.Metric {
			ls := []string{"__name__", name}
			for _, l := range m.Label {
				ls = append(ls, l.GetName(), l.GetValue())
			}
			out[labels.FromStrings(ls...).String()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return out
}

// of returns the sum over the samples of a metric, with a label value if one is given.
func (n numbers) of(t *testing.T, name string, label ...string) float64 {
	t.Helper()
	sum, found := 0.0, false
	for key, v := range n {
		if !strings.HasPrefix(key, `{__name__="tidemark_`+name+`"`) {
			continue
		}
		if len(label) == 2 && !strings.Contains(key, label[0]+`="`+label[1]+`"`) {
			continue
		}
		sum, found = sum+v, true
	}
	if !found {
		t.Fatalf("no metric tidemark_%s %v", name, label)
	}
	return sum
}

// frontier is that of a materialization, ms.
func (v *hosted) frontier(name string) int64 {
	v.t.Helper()
	code, body := v.get("/api/v1/materializations")
	var a struct {
		Data []struct {
			Name     string
			Frontier *int64 `json:"frontier_ms"`
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || code != 200 {
		v.t.Fatalf("status %d, %s, %v", code, body, err)
	}
	for _, m := range a.Data {
		if m.Name == name && m.Frontier != nil {
			return *m.Frontier
		}
	}
	v.t.Fatalf("no frontier of %s in %s", name, body)
	return 0
}
