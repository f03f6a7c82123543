package main

// Samples and requests that are put to this service and to a real Prometheus, and the file that holds their answers.

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
)

// bytesBegin is the time of the first sample, ms; it is a whole minute.
const (
	bytesBegin   = 1_700_000_100_000
	bytesScrapes = 40
	bytesEvery   = 15_000
	bytesOffset  = 7_000 // of scrapes behind the grid
)

// bytesRequest is one Remote Write request with everything in it that answers may be made of, in time order by series.
func bytesRequest() []byte {
	var all []*prompb.TimeSeries
	series := func(pairs ...string) *prompb.TimeSeries {
		ts := &prompb.TimeSeries{}
		for i := 0; i < len(pairs); i += 2 {
			ts.Labels = append(ts.Labels, prompb.Label{Name: pairs[i], Value: pairs[i+1]})
		}
		slices.SortFunc(ts.Labels, func(a, b prompb.Label) int { return cmp.Compare(a.Name, b.Name) })
		all = append(all, ts)
		return ts
	}
	scrapes := func(ts *prompb.TimeSeries, from, to int, f func(i int) float64) {
		for i := from; i < to; i++ {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: bytesBegin + bytesOffset + int64(i)*bytesEvery, Value: f(i)})
		}
	}
	a := series("__name__", "requests_total", "job", "api", "instance", "a")
	scrapes(a, 0, bytesScrapes, func(i int) float64 { return float64(3 * i) })
	a.Exemplars = []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: "<1>"}}, Value: 0.25, Timestamp: bytesBegin + bytesOffset}}
	scrapes(series("__name__", "requests_total", "job", "api", "instance", "b"), 0, bytesScrapes, func(i int) float64 { return float64(6 * (i % 25)) })
	scrapes(series("__name__", "requests_total", "job", "web", "instance", "c"), 5, bytesScrapes, func(i int) float64 { return 30 * float64(i) })
	scrapes(series("__name__", "temperature", "room", "kitchen"), 0, bytesScrapes, func(i int) float64 { return 20 + float64(i%4)/4 })
	scrapes(series("__name__", "temperature", "room", "cellar"), 0, bytesScrapes, func(i int) float64 { return -0.5 * float64(i%3) })
	for _, s := range []struct {
		kind string
		v    float64
	}{
		{"nan", math.NaN()}, {"inf", math.Inf(1)}, {"-inf", math.Inf(-1)}, {"tiny", 1.5e-7}, {"least", 5e-324}, {"small", 0.000001},
		{"large", 1e20}, {"larger", 1e21}, {"greatest", math.MaxFloat64}, {"third", 1.0 / 3}, {"zero", 0},
	} {
		scrapes(series("__name__", "special", "kind", s.kind), 0, bytesScrapes, func(int) float64 { return s.v })
	}
	scrapes(series("__name__", "odd", "a", `<b>&'"\`, "b", "\n\r\t\x01\x7f", "c", "é日本\u2028𝄞"), 0, bytesScrapes, func(int) float64 { return 1 })
	gone := series("__name__", "gone", "job", "api")
	scrapes(gone, 0, 10, func(i int) float64 { return float64(i) })
	scrapes(gone, 10, 11, func(int) float64 { return math.Float64frombits(value.StaleNaN) })
	for i, le := range []string{"0.1", "0.5", "1", "+Inf"} {
		scrapes(series("__name__", "latency_bucket", "le", le), 0, bytesScrapes, func(k int) float64 { return float64((i + 1) * 2 * k) })
	}
	scrapes(series("__name__", "broken_bucket", "le", "x"), 0, bytesScrapes, func(int) float64 { return 1 })
	ints, floats := series("__name__", "native", "kind", "int"), series("__name__", "native", "kind", "float")
	for i := range bytesScrapes {
		at, n := bytesBegin+bytesOffset+int64(i)*bytesEvery, uint64(i+1)
		h := &histogram.Histogram{
			Schema: 1, ZeroThreshold: 0.001, ZeroCount: n, Count: 9 * n, Sum: 18.5 * float64(n),
			PositiveSpans:   []histogram.Span{{Offset: 0, Length: 2}, {Offset: 1, Length: 1}},
			PositiveBuckets: []int64{int64(n), int64(n), 0},
			NegativeSpans:   []histogram.Span{{Offset: 0, Length: 2}}, NegativeBuckets: []int64{int64(n), int64(n)},
		}
		ints.Histograms = append(ints.Histograms, prompb.FromIntHistogram(at, h))
		fh := h.ToFloat(nil)
		fh.Mul(0.5)
		floats.Histograms = append(floats.Histograms, prompb.FromFloatHistogram(at, fh))
	}
	// Prometheus answers in the order in which it met the series, this service by their labels.
	slices.SortFunc(all, func(x, y *prompb.TimeSeries) int {
		return slices.CompareFunc(x.Labels, y.Labels, func(a, b prompb.Label) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value)) })
	})
	var req prompb.WriteRequest
	for _, ts := range all {
		req.Timeseries = append(req.Timeseries, *ts)
	}
	b, err := req.Marshal()
	if err != nil {
		panic("a request that is made of constants: " + err.Error())
	}
	return snappy.Encode(nil, b)
}

// exchange is a request with the answers that are known to it.
type exchange struct {
	name, method, path string
	params             [][2]string
	why                []string
	answers            map[string]string // "status body", by who gave it
}

// ask puts the request to a service.
func (x *exchange) ask(t *testing.T, client *http.Client, base string, header http.Header) (string, http.Header) {
	t.Helper()
	form := url.Values{}
	for _, p := range x.params {
		form.Add(p[0], p[1])
	}
	target, body := base+x.path, io.Reader(nil)
	if x.method == http.MethodPost {
		body = strings.NewReader(form.Encode())
	} else if len(form) > 0 {
		target += "?" + form.Encode()
	}
	req, err := http.NewRequestWithContext(t.Context(), x.method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", res.StatusCode, bytes.TrimRight(text, "\n")), res.Header
}

// bytesFile is testdata/bytes.golden.
type bytesFile struct {
	head      []string
	exchanges []*exchange
}

const bytesPath = "testdata/bytes.golden"

func readBytesFile(t *testing.T) *bytesFile {
	t.Helper()
	text, err := os.ReadFile(bytesPath)
	if err != nil {
		t.Fatal(err)
	}
	f := &bytesFile{}
	var x *exchange
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		who, answer, answered := strings.Cut(line, "> ")
		name, isName := strings.CutPrefix(line, "== ")
		switch {
		case isName:
			x = &exchange{name: name, answers: map[string]string{}}
			f.exchanges = append(f.exchanges, x)
		case x == nil:
			f.head = append(f.head, line)
		case line == "":
		case x.method == "":
			x.method, x.path, _ = strings.Cut(line, " ")
		case line[0] == ' ':
			k, v, _ := strings.Cut(line[1:], "=")
			x.params = append(x.params, [2]string{k, v})
		case strings.HasPrefix(line, "why "):
			x.why = append(x.why, line)
		case answered:
			x.answers[who] = answer
		default:
			t.Fatalf("%s:%d: %q", bytesPath, i+1, line)
		}
	}
	return f
}

func (f *bytesFile) write(t *testing.T) {
	t.Helper()
	var b strings.Builder
	for _, line := range f.head {
		fmt.Fprintln(&b, line)
	}
	for i, x := range f.exchanges {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintf(&b, "== %s\n%s %s\n", x.name, x.method, x.path)
		for _, p := range x.params {
			fmt.Fprintf(&b, " %s=%s\n", p[0], p[1])
		}
		for _, who := range []string{"3.16", "2.42", "ours"} {
			if a, ok := x.answers[who]; ok {
				fmt.Fprintf(&b, "%s> %s\n", who, a)
			}
		}
		for _, why := range x.why {
			fmt.Fprintln(&b, why)
		}
	}
	if err := os.WriteFile(bytesPath, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
