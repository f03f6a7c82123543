package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/golang/snappy"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.uber.org/goleak"

	"tidemark/projections/query/querytest"
	"tidemark/transport/remotewrite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for where only a real process can tell. Nothing is as slow, unless it hangs.
const patience = time.Minute

// setup is what a test may choose of a service.
type setup struct {
	dir    string   // storage and configuration; "": a new one
	config string   // text of tidemark.yml
	flags  []string // of serve
	around surroundings
	logger *slog.Logger // nil: none
	opened func(*node)  // called before anything runs
}

// service is the whole service on a loopback port, with everything that `tidemark serve` runs.
type service struct {
	t     *testing.T
	setup setup
	node  *node
	base  string
	http  *http.Client
	write remotewrite.Client

	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of the run; read after ended is closed
}

// openService starts a service, or returns why it does not start. Nothing is ready when it returns.
func openService(t *testing.T, s setup) (*service, error) {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	config := filepath.Join(s.dir, "tidemark.yml")
	if err := os.WriteFile(config, []byte(s.config), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &serveFlags{around: s.around}
	if f.around.freeBytes == nil {
		f.around.freeBytes = func(string) (uint64, error) { return 1 << 40, nil } // the machine's disk is no part of the test
	}
	app := kingpin.New("tidemark", "")
	c := f.declare(app)
	args := append([]string{"serve", "--storage.path", filepath.Join(s.dir, "data"), "--config.file", config}, s.flags...)
	if _, err := app.Parse(args); err != nil {
		t.Fatal(err)
	}
	f.flags = flagValues(c.Model())
	logger := s.logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	listen := func() (net.Listener, error) { return listener, nil }
	v := &service{
		t: t, setup: s, base: "http://" + listener.Addr().String(), cancel: cancel, ended: make(chan struct{}),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	v.write = remotewrite.Client{URL: v.base + remotewrite.Path, HTTP: v.http}
	opened := make(chan *node, 1)
	go func() {
		defer close(v.ended)
		v.err = f.serveOn(ctx, listen, logger, func(n *node) {
			if s.opened != nil {
				s.opened(n)
			}
			opened <- n
		})
	}()
	select {
	case v.node = <-opened:
	case <-v.ended:
		cancel()
		listener.Close()
		return nil, v.err
	}
	t.Cleanup(func() { _ = v.stop() })
	return v, nil
}

// startService starts a service and waits until it is ready.
func startService(t *testing.T, s setup) *service {
	t.Helper()
	v, err := openService(t, s)
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("ready", func() bool { code, _ := v.get("/-/ready"); return code == 200 })
	return v
}

// stop stops the service as SIGTERM does and returns what its run returned.
func (v *service) stop() error {
	v.cancel()
	select {
	case <-v.ended:
	case <-time.After(patience):
		v.t.Fatal("the service does not stop")
	}
	v.http.CloseIdleConnections()
	return v.err
}

// mustStop stops the service, which must end in order.
func (v *service) mustStop() {
	v.t.Helper()
	if err := v.stop(); err != nil {
		v.t.Fatalf("stop: %v", err)
	}
}

// restart stops the service and starts it again on the same directory.
func (v *service) restart() *service {
	v.t.Helper()
	v.mustStop()
	return startService(v.t, v.setup)
}

// eventually waits for what only time brings.
func (v *service) eventually(what string, done func() bool) {
	v.t.Helper()
	deadline := time.After(patience)
	for !done() {
		select {
		case <-v.ended:
			v.t.Fatalf("waiting until %s: the service has ended: %v", what, v.err)
		case <-deadline:
			v.t.Fatalf("waiting until %s: not in %s", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (v *service) do(req *http.Request) (int, http.Header, []byte) {
	v.t.Helper()
	res, err := v.http.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return res.StatusCode, res.Header, body
}

func (v *service) get(path string) (int, string) {
	v.t.Helper()
	req, err := http.NewRequest(http.MethodGet, v.base+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	code, _, body := v.do(req)
	return code, string(body)
}

// form posts a form to a path of the API, given parameters as name, value, ….
func (v *service) form(path string, params ...string) (int, http.Header, []byte) {
	v.t.Helper()
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Add(params[i], params[i+1])
	}
	req, err := http.NewRequest(http.MethodPost, v.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return v.do(req)
}

// sent is one sample as tests write it.
type sent struct {
	metric string // as m{i="a"}
	t      int64  // ms
	v      float64
}

// batch groups samples by series, each series where it comes first, and keeps their order.
func batch(t *testing.T, samples ...sent) []remotewrite.Series {
	t.Helper()
	var out []remotewrite.Series
	at := map[string]int{}
	for _, s := range samples {
		i, ok := at[s.metric]
		if !ok {
			ls, err := parser.NewParser(parser.Options{}).ParseMetric(s.metric)
			if err != nil {
				t.Fatal(err)
			}
			i = len(out)
			at[s.metric] = i
			out = append(out, remotewrite.Series{Labels: ls})
		}
		out[i].Samples = append(out[i].Samples, remotewrite.Sample{Time: s.t, Value: s.v})
	}
	return out
}

// send writes samples in one request, which must be acknowledged.
func (v *service) send(samples ...sent) {
	v.t.Helper()
	if code := v.sendFor(samples...); code != 204 {
		v.t.Fatalf("write: status %d", code)
	}
}

// sendFor writes samples in one request and returns the status.
func (v *service) sendFor(samples ...sent) int {
	v.t.Helper()
	err := v.write.Write(v.t.Context(), batch(v.t, samples...))
	var status *remotewrite.StatusError
	switch {
	case err == nil:
		return 204
	case errors.As(err, &status):
		return status.Code
	}
	v.t.Fatal(err)
	return 0
}

// outcome is the answer to a barrier.
type outcome struct {
	Seq      uint64 `json:"seq"`
	Closed   int64  `json:"closed_buckets"`
	Complete int64  `json:"complete_through_ms"`
	warnings []string
}

// barrier posts a watermark, which must succeed.
func (v *service) barrier(t int64) outcome {
	v.t.Helper()
	return v.barrierAt("/api/v1/precompute/watermark", "time_ms", strconv.FormatInt(t, 10))
}

func (v *service) drain() outcome {
	v.t.Helper()
	return v.barrierAt("/api/v1/precompute/drain")
}

func (v *service) barrierAt(path string, params ...string) outcome {
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

// answer is what a query got.
type answer struct {
	querytest.Outcome
	code      int
	route     string
	seq       uint64
	complete  string // of the header; "" if absent
	errorType string
	miss      string // the reason, if panes could not answer
}

var missText = regexp.MustCompile(`not answerable from panes \((\w+)\)`)

// query asks an instant query, or a range query if the step is not 0.
func (v *service) query(q querytest.Query) answer {
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
func (v *service) instant(expr string, at int64) answer {
	v.t.Helper()
	return v.query(querytest.Query{Expr: expr, Start: at})
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

func decodeAnswer(t *testing.T, code int, header http.Header, body []byte) answer {
	t.Helper()
	var in struct {
		Status, ErrorType, Error string
		Warnings, Infos          []string
		Data                     struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		t.Fatalf("status %d with %q: %v", code, body, err)
	}
	a := answer{
		code: code, route: header.Get("X-Tidemark-Route"), complete: header.Get("X-Tidemark-Complete-Through"), errorType: in.ErrorType,
		Outcome: querytest.Outcome{Warnings: in.Warnings, Infos: in.Infos},
	}
	if (in.Status == "success") != (code == 200) {
		t.Fatalf("status %d with %s", code, body)
	}
	if code != 200 {
		a.Err = errors.New(in.Error)
		if m := missText.FindStringSubmatch(in.Error); m != nil {
			a.miss = m[1]
		}
		return a
	}
	a.seq, _ = strconv.ParseUint(header.Get("X-Tidemark-Seq"), 10, 64)
	v, err := decodeValue(in.Data.ResultType, in.Data.Result)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	a.Value = v
	return a
}

// point is [time, "value"].
type point struct {
	t int64
	v float64
	s string
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(b []byte) error {
	var parts [2]json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	at, err := strconv.ParseFloat(string(parts[0]), 64)
	if err != nil {
		return err
	}
	p.t = int64(math.Round(at * 1000))
	if err := json.Unmarshal(parts[1], &p.s); err != nil {
		return err
	}
	p.v, _ = strconv.ParseFloat(p.s, 64) // a string result is no number
	return nil
}

func decodeValue(kind string, b []byte) (parser.Value, error) {
	var list []struct {
		Metric map[string]string
		Value  point
		Values []point
	}
	var one point
	var err error
	if kind == "vector" || kind == "matrix" {
		err = json.Unmarshal(b, &list)
	} else {
		err = json.Unmarshal(b, &one)
	}
	if err != nil {
		return nil, err
	}
	switch kind {
	case "vector":
		out := promql.Vector{}
		for _, s := range list {
			out = append(out, promql.Sample{Metric: labels.FromMap(s.Metric), T: s.Value.t, F: s.Value.v})
		}
		return out, nil
	case "matrix":
		out := promql.Matrix{}
		for _, s := range list {
			series := promql.Series{Metric: labels.FromMap(s.Metric)}
			for _, p := range s.Values {
				series.Floats = append(series.Floats, promql.FPoint{T: p.t, F: p.v})
			}
			out = append(out, series)
		}
		return out, nil
	case "scalar":
		return promql.Scalar{T: one.t, V: one.v}, nil
	case "string":
		return promql.String{T: one.t, V: one.s}, nil
	}
	return nil, fmt.Errorf("result type %q", kind)
}

// want asks an expression at a time in ms and expects a warm answer: label set → value, in any order.
func (v *service) want(expr string, at int64, want map[string]float64) {
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
		ok = ok && have && querytest.Close(g, w, 0)
	}
	if !ok {
		v.t.Fatalf("%s at %d: got %v, want %v", expr, at, got, want)
	}
}

// one is the only value of an answer.
func (a *answer) one(t *testing.T) float64 {
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
func (v *service) wantMiss(expr string, at int64, reason string) {
	v.t.Helper()
	if a := v.instant(expr, at); a.code != 422 || a.miss != reason {
		v.t.Fatalf("%s at %d: status %d, route %q, %v; want a miss for %s", expr, at, a.code, a.route, a.Err, reason)
	}
}

// numbers are the samples of /metrics: name{labels} as Prometheus prints them.
type numbers map[string]float64

func (v *service) numbers() numbers {
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

// minutePanes plans panes of a minute over m and c, and of five minutes where the names say so.
const minutePanes = `
materializations:
  - {name: m_sum, expr: "sum_over_time(m[1m])", every: 1m}
  - {name: c_rate, expr: "rate(c[1m])", every: 1m}
`

// The service starts, takes a write, closes a bucket at a barrier, answers from it, and ends in order.
func TestService(t *testing.T) {
	v := startService(t, setup{config: minutePanes})
	v.send(sent{`m{i="a"}`, 1000, 1}, sent{`m{i="a"}`, 2000, 2}, sent{`m{i="b"}`, 60_000, 5})
	v.wantMiss(`sum_over_time(m[1m])`, 60_000, "unpublished")
	o := v.barrier(60_000)
	if o.Closed != 2 || o.Complete != 60_000 || len(o.warnings) != 0 {
		t.Fatalf("barrier: %+v", o)
	}
	v.want(`sum_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 3, `{i="b"}`: 5})
	if a := v.instant(`sum(sum_over_time(m[1m]))`, 60_000); a.seq < o.Seq || a.complete != "60000" {
		t.Errorf("answer of sequence %d complete through %q after the barrier %+v", a.seq, a.complete, o)
	}
	v = v.restart()
	v.want(`sum(sum_over_time(m[1m]))`, 60_000, one(8))
	v.mustStop()
	if _, err := http.Get(v.base); err == nil {
		t.Error("the port is still open")
	}
	http.DefaultClient.CloseIdleConnections()
}

// labelPairs is a label set as it stands on the wire: in any order, repeated, empty.
type labelPairs [][2]string

// sendRaw writes one sample of a series whose labels stand as given; it must be acknowledged.
func (v *service) sendRaw(ls labelPairs, t int64, value float64) {
	v.t.Helper()
	if code := v.sendRawFor(ls, t, value); code != 204 {
		v.t.Fatalf("write %q: status %d", ls, code)
	}
}

func (v *service) sendRawFor(ls labelPairs, t int64, value float64) int {
	v.t.Helper()
	var req prompb.WriteRequest
	ts := prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: t, Value: value}}}
	for _, l := range ls {
		ts.Labels = append(ts.Labels, prompb.Label{Name: l[0], Value: l[1]})
	}
	req.Timeseries = append(req.Timeseries, ts)
	b, err := req.Marshal()
	if err != nil {
		v.t.Fatal(err)
	}
	err = v.write.Send(v.t.Context(), snappy.Encode(nil, b))
	var status *remotewrite.StatusError
	switch {
	case err == nil:
		return 204
	case errors.As(err, &status):
		return status.Code
	}
	v.t.Fatal(err)
	return 0
}

// frontier is that of a materialization, ms.
func (v *service) frontier(name string) int64 {
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
