package remotewrite

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"go.uber.org/goleak"

	"tidemark/log"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testNow is the clock of the handler in tests: one hour after the epoch.
var testNow = time.UnixMilli(3_600_000)

// rig is a handler with a real log in memory behind a real HTTP server.
type rig struct {
	t       testing.TB
	events  *log.Log
	handler *Handler
	server  *httptest.Server
	reg     *prometheus.Registry
	gate    *gate
	fail    *failing
	stop    func() // ends the log's Run; it can still be read

	seen   log.Seq
	labels map[log.SeriesRef]labels.Labels
}

// gate is a Gate whose word is set by the test.
type gate struct {
	mu  sync.Mutex
	err error
}

func (g *gate) Admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *gate) set(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// failing stands before the log and fails appends on demand.
type failing struct {
	*log.Log
	mu     sync.Mutex
	next   []error
	before func(context.Context) // called before each append, if set
}

func (f *failing) Append(ctx context.Context, body log.Body) (log.Seq, error) {
	f.mu.Lock()
	var err error
	if len(f.next) > 0 {
		err, f.next = f.next[0], f.next[1:]
	}
	f.mu.Unlock()
	if f.before != nil {
		f.before(ctx)
	}
	if err != nil {
		return 0, err
	}
	return f.Log.Append(ctx, body)
}

func newRig(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	return newRigOn(t, vfs.NewMem(), change)
}

// newRigOn puts the log on a file system of the test's.
func newRigOn(t testing.TB, fs vfs.FS, change func(*Options)) *rig {
	t.Helper()
	opts := DefaultOptions()
	opts.Now = func() time.Time { return testNow }
	if change != nil {
		change(&opts)
	}
	events, err := log.Open("log", log.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- events.Run(ctx) }()
	r := &rig{
		t: t, events: events, reg: prometheus.NewRegistry(), gate: &gate{}, fail: &failing{Log: events},
		labels: make(map[log.SeriesRef]labels.Labels), seen: events.Head(),
	}
	if r.handler, err = New(r.fail, events.Dictionary(), r.gate, r.reg, opts); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(Path, r.handler)
	r.server = httptest.NewServer(mux)
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		r.server.Client().CloseIdleConnections()
		r.server.Close()
		r.conserved()
		r.stop()
		if err := events.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) url() string { return r.server.URL + Path }

// reply is what a sender sees.
type reply struct {
	code   int
	header http.Header
	body   string
}

// String shows all that matters of a reply, and that an error is one line of bounded length.
func (a reply) String() string {
	s := strconv.Itoa(a.code)
	if v := a.header.Get("Retry-After"); v != "" {
		s += " retry after " + v
	}
	if v := a.header.Get("Allow"); v != "" {
		s += " allow " + v
	}
	if a.header.Get("Connection") == "close" {
		s += " close"
	}
	for k, name := range writtenHeaders {
		if v, ok := a.header[name]; ok {
			s += fmt.Sprintf(" %v %s", item(k), strings.Join(v, ","))
		}
	}
	if len(a.body) > maxErrorBytes {
		s += " LONGER THAN 1 KiB"
	}
	if a.code/100 == 2 && a.body == "" {
		return s
	}
	line, ended := strings.CutSuffix(a.body, "\n")
	if !ended || strings.ContainsAny(line, "\n\r") {
		return s + fmt.Sprintf(" NOT ONE LINE: %q", a.body)
	}
	return s + ": " + line
}

// do sends a request; headers are pairs, and an empty value removes a default.
func (r *rig) do(method, url string, body io.Reader, headers ...string) reply {
	r.t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.Close {
		res.Header.Set("Connection", "close")
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func (r *rig) post(body []byte) reply {
	r.t.Helper()
	return r.do(http.MethodPost, r.url(), bytes.NewReader(body))
}

// writes returns the write events that came since the last call, and learns their labels.
func (r *rig) writes() []*log.Event {
	r.t.Helper()
	var out []*log.Event
	in := r.events.NewReader(r.seen + 1)
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			r.t.Fatal(err)
		}
		r.seen = e.Seq
		w, ok := e.Body.(*log.Write)
		if !ok {
			continue
		}
		for _, d := range w.Defs {
			r.labels[d.Ref] = d.Labels
		}
		out = append(out, e)
	}
}

// show prints the new events, one series on a line, sorted by labels.
func (r *rig) show() string {
	var b strings.Builder
	for _, e := range r.writes() {
		fmt.Fprintf(&b, "#%d\n", e.Seq)
		for _, line := range r.lines(e.Body.(*log.Write)) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if b.Len() == 0 {
		return "nothing appended\n"
	}
	return b.String()
}

func (r *rig) lines(w *log.Write) []string {
	var out []string
	begin := uint32(0)
	for i, ref := range w.Refs {
		s := r.labels[ref].String()
		for at := begin; at < w.Ends[i]; at++ {
			s += fmt.Sprintf(" %s@%d", floatString(w.Values[at]), w.Times[at])
			if w.Starts != nil && w.Starts[at] != 0 {
				s += fmt.Sprintf("+%d", w.Starts[at])
			}
		}
		begin = w.Ends[i]
		out = append(out, s)
	}
	for _, e := range w.Exemplars {
		out = append(out, fmt.Sprintf("exemplar %s %s %s@%d", r.labels[e.Ref], e.Labels, floatString(e.Value), e.Time))
	}
	for _, h := range w.Histograms {
		out = append(out, fmt.Sprintf("histogram %s %x@%d", r.labels[h.Ref], h.Proto, h.Time))
	}
	slices.Sort(out)
	for _, m := range w.Metadata {
		out = append(out, fmt.Sprintf("metadata %s %s %q %q", m.Family, m.Type, m.Help, m.Unit))
	}
	return out
}

func floatString(v float64) string {
	if math.IsNaN(v) {
		return fmt.Sprintf("0x%x", math.Float64bits(v))
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// values returns the metrics of the handler that are not zero, by name and labels.
func (r *rig) values() map[string]float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "tidemark_write_")
			for _, l := range m.Label {
				name += fmt.Sprintf("{%s}", l.GetValue())
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if m.Histogram != nil {
				v = float64(m.Histogram.GetSampleCount())
			}
			if v != 0 {
				out[name] = v
			}
		}
	}
	return out
}

// conserved checks R5, against what is really in the log, and R6 at rest.
func (r *rig) conserved() {
	r.t.Helper()
	v := r.values()
	inLog := make(map[string]float64)
	in := r.events.NewReader(0)
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.t.Error(err)
			break
		}
		if w, ok := e.Body.(*log.Write); ok {
			inLog["samples"] += float64(len(w.Times))
			inLog["histograms"] += float64(len(w.Histograms))
			inLog["exemplars"] += float64(len(w.Exemplars))
		}
	}
	for k := range items {
		var rejected float64
		for name, n := range v {
			if strings.HasPrefix(name, k.String()+"_rejected_total{") {
				rejected += n
			}
		}
		received, logged := v[k.String()+"_received_total"], v[k.String()+"_logged_total"]
		if received != rejected+logged {
			r.t.Errorf("R5: %v %v received, %v rejected, %v logged", received, k, rejected, logged)
		}
		if logged != inLog[k.String()] {
			r.t.Errorf("R5: %v %v counted as logged, %v in the log", logged, k, inLog[k.String()])
		}
	}
	if v["inflight_bytes"] != 0 {
		r.t.Errorf("R6: %v bytes in flight at rest", v["inflight_bytes"])
	}
}

// script runs a file of testdata against a rig. Commands:
//
//	post [name=header-value]…   send the request that the lines describe, see parseRequest
//	post2                       send it in version 2.0, see parseRequest2
//	body2, proto2               are body and proto under the Content-Type of version 2.0
//	body [name=header-value]…   send the line, in hex, as it is
//	proto [name=header-value]…  send the line, in hex, after snappy
//	metrics                     print what was counted, without times and bytes
//
// All but the last print the answer and the events that it left.
func script(t *testing.T, file string) {
	r := newRig(t, nil)
	datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
		var body []byte
		var headers []string
		if strings.HasSuffix(d.Cmd, "2") {
			headers = append(headers, "Content-Type", contentType2)
		}
		switch d.Cmd {
		case "post":
			body = snappy.Encode(nil, marshal(t, parseRequest(t, d.Input)))
		case "post2":
			body = request2(t, d.Input)
		case "body", "proto", "body2", "proto2":
			b, err := hex.DecodeString(strings.Join(strings.Fields(d.Input), ""))
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			if body = b; strings.HasPrefix(d.Cmd, "proto") {
				body = snappy.Encode(nil, b)
			}
		case "metrics":
			return r.counted()
		default:
			d.Fatalf(t, "unknown command")
		}
		for _, arg := range d.CmdArgs {
			headers = append(headers, arg.Key, strings.Join(arg.Vals, ", "))
		}
		a := r.do(http.MethodPost, r.url(), bytes.NewReader(body), headers...)
		return a.String() + "\n" + r.show()
	})
}

func (r *rig) counted() string {
	var out []string
	for name, v := range r.values() {
		if !strings.Contains(name, "bytes") && !strings.Contains(name, "duration") {
			out = append(out, fmt.Sprintf("%s %v\n", name, v))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// parseRequest reads lines like these:
//
//	__name__=m a="x y" : 1@1000 0x7ff0000000000002@2000
//	exemplar trace_id=abc : 1@900          of the series above
//	histogram 7@1000                       of the series above: its count, all of it in the zero bucket, and its time
//	metadata m counter "help" "unit"
//
// Labels stand in the order in which they are sent.
func parseRequest(t testing.TB, input string) *prompb.WriteRequest {
	t.Helper()
	req := &prompb.WriteRequest{}
	for line := range strings.Lines(input) {
		words := splitWords(t, line)
		if len(words) == 0 {
			continue
		}
		var last *prompb.TimeSeries
		if n := len(req.Timeseries); n > 0 {
			last = &req.Timeseries[n-1]
		}
		switch words[0] {
		case "metadata":
			kind, ok := prompb.MetricMetadata_MetricType_value[strings.ToUpper(words[2])]
			if !ok {
				t.Fatalf("no metric type %q", words[2])
			}
			req.Metadata = append(req.Metadata, prompb.MetricMetadata{
				MetricFamilyName: words[1], Type: prompb.MetricMetadata_MetricType(kind), Help: words[3], Unit: words[4],
			})
		case "exemplar":
			ls, samples := parseSeries(t, words[1:])
			for _, s := range samples {
				last.Exemplars = append(last.Exemplars, prompb.Exemplar{Labels: ls, Value: s.Value, Timestamp: s.Timestamp})
			}
		case "histogram":
			_, samples := parseSeries(t, append([]string{":"}, words[1:]...))
			for _, s := range samples {
				last.Histograms = append(last.Histograms, prompb.Histogram{
					Count: &prompb.Histogram_CountInt{CountInt: uint64(s.Value)}, ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: uint64(s.Value)},
					Timestamp: s.Timestamp,
				})
			}
		default:
			ls, samples := parseSeries(t, words)
			req.Timeseries = append(req.Timeseries, prompb.TimeSeries{Labels: ls, Samples: samples})
		}
	}
	return req
}

func parseSeries(t testing.TB, words []string) (ls []prompb.Label, samples []prompb.Sample) {
	t.Helper()
	colon := slices.Index(words, ":")
	if colon < 0 {
		colon = len(words)
	}
	for _, w := range words[:colon] {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			t.Fatalf("not a label: %q", w)
		}
		ls = append(ls, prompb.Label{Name: name, Value: value})
	}
	for _, w := range words[min(colon+1, len(words)):] {
		value, at, ok := strings.Cut(w, "@")
		ms, err := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil {
			t.Fatalf("not a sample: %q", w)
		}
		var v float64
		if bits, isBits := strings.CutPrefix(value, "0x"); isBits {
			u, err := strconv.ParseUint(bits, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			v = math.Float64frombits(u)
		} else if v, err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatal(err)
		}
		samples = append(samples, prompb.Sample{Value: v, Timestamp: ms})
	}
	return ls, samples
}

// splitWords splits at spaces. Parts of a word may stand in quotes, with the escapes of Go.
func splitWords(t testing.TB, line string) []string {
	t.Helper()
	var words []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimLeft(line, " ") {
		word := ""
		for line != "" && line[0] != ' ' {
			if line[0] != '"' {
				end := strings.IndexAny(line+" ", " \"")
				word, line = word+line[:end], line[end:]
				continue
			}
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			word, line = word+text, line[len(quoted):]
		}
		words = append(words, word)
	}
	return words
}
