package remotewrite

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"tidemark/log"
)

func TestCase_A22_EmptyRequests2(t *testing.T)            { script(t, "A22v2") }
func TestCase_A33_SymbolTable(t *testing.T)               { script(t, "A33") }
func TestCase_A35_WrittenHeaders(t *testing.T)            { script(t, "A35") }
func TestCase_A41_ExemplarsDoNotSinkTheRest(t *testing.T) { script(t, "A41") }
func TestCase_A42_StartTimestamps(t *testing.T)           { script(t, "A42") }
func TestR8_SeriesMetadata(t *testing.T)                  { script(t, "metadata2") }

// A33: the symbol table is no lever. What references stand for is bounded as a body of version 1.0 is, before any of it is
// written out, and so is the number of symbols.
func TestCase_A33_TableIsNoBomb(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxDecodedBytes = 1 << 20 })
	symbols := []string{"", "__name__", "m", strings.Repeat("v", 4<<10)}
	var refs []uint32
	for i := range 100 {
		symbols = append(symbols, fmt.Sprint("l", i))
		refs = append(refs, uint32(len(symbols)-1), 3)
	}
	series := writev2.TimeSeries{LabelsRefs: append([]uint32{1, 2}, refs...), Samples: []writev2.Sample{{Value: 1, Timestamp: 1000}}}
	bomb := &writev2.Request{Symbols: symbols}
	for range 200 {
		bomb.Timeseries = append(bomb.Timeseries, series)
	}
	body := snappy.Encode(nil, marshal2(t, bomb))
	before, stop := peakHeap()
	got := r.post2(body).String()
	if grown := int64(stop()) - int64(before); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes for a body of %d", grown, len(body))
	}
	if want := "bytes of labels and texts, written out, the limit is 1048576"; !strings.HasPrefix(got, "413 samples 0 histograms 0 exemplars 0: ") || !strings.HasSuffix(got, want) {
		t.Errorf("got %s", got)
	}
	bomb.Timeseries = bomb.Timeseries[:2]
	if a := r.post2(snappy.Encode(nil, marshal2(t, bomb))); a.code != http.StatusNoContent {
		t.Errorf("two of the series: %v", a)
	}
	many := make([]byte, 2*(maxSymbols+1))
	for i := 0; i < len(many); i += 2 {
		many[i] = request2Symbols<<3 | byte(wireBytes)
	}
	big := newRig(t, nil)
	if got, want := big.post2(snappy.Encode(nil, many)).String(), "413 samples 0 histograms 0 exemplars 0: 1048577 symbols, the limit is 1048576"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The counts stand in every answer of version 2.0, whatever it is, and never in one of version 1.0.
func TestCase_A35_WrittenHeadersAlways(t *testing.T) {
	r := newRig(t, nil)
	good := request2(t, `__name__=m : 1@1000`)
	for name, tc := range map[string]struct {
		before  func()
		body    []byte
		headers []string
		want    string
	}{
		"encoding":    {body: good, headers: []string{"Content-Encoding", "zstd"}, want: `415 samples 0 histograms 0 exemplars 0: unsupported Content-Encoding, send snappy: "zstd"`},
		"version":     {body: good, headers: []string{"X-Prometheus-Remote-Write-Version", "0.1.0"}, want: "415 samples 0 histograms 0 exemplars 0: unsupported X-Prometheus-Remote-Write-Version, send 2.0.0 with io.prometheus.write.v2.Request"},
		"no snappy":   {body: []byte("x"), want: "400 samples 0 histograms 0 exemplars 0: not a snappy block"},
		"no protobuf": {body: snappy.Encode(nil, []byte{1}), want: "400 samples 0 histograms 0 exemplars 0: protobuf at byte 0: illegal field number"},
		"sealed":      {before: func() { r.gate.set(ErrSealed) }, body: good, want: "409 samples 0 histograms 0 exemplars 0: input is sealed by a drain"},
		"overload":    {before: func() { r.gate.set(&Unavailable{Reason: "no"}) }, body: good, want: "503 retry after 5 samples 0 histograms 0 exemplars 0: no"},
		"log":         {before: func() { r.fail.next = []error{errBody} }, body: good, want: "400 close samples 0 histograms 0 exemplars 0: body cannot be read to its end"},
		"version 2.x": {body: good, headers: []string{"X-Prometheus-Remote-Write-Version", "2.1.0-rc.0"}, want: "204 samples 1 histograms 0 exemplars 0"},
	} {
		r.gate.set(nil)
		if tc.before != nil {
			tc.before()
		}
		got := r.do(http.MethodPost, r.url(), strings.NewReader(string(tc.body)), append([]string{"Content-Type", contentType2}, tc.headers...)...).String()
		if got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

// exponential and custom are whole histograms of both kinds.
func exponential() writev2.Histogram {
	return writev2.Histogram{
		Count: &writev2.Histogram_CountInt{CountInt: 12}, Sum: 3.5, Schema: 1, ZeroThreshold: 0.001,
		ZeroCount:     &writev2.Histogram_ZeroCountInt{ZeroCountInt: 2},
		PositiveSpans: []writev2.BucketSpan{{Offset: -1, Length: 2}, {Offset: 3, Length: 1}}, PositiveDeltas: []int64{2, 1, -1},
		NegativeSpans: []writev2.BucketSpan{{Length: 1}}, NegativeDeltas: []int64{3}, Timestamp: 1000, StartTimestamp: 500,
	}
}

func custom() writev2.Histogram {
	return writev2.Histogram{
		Count: &writev2.Histogram_CountInt{CountInt: 5}, Sum: 9, Schema: -53, CustomValues: []float64{1, 2, 5},
		PositiveSpans: []writev2.BucketSpan{{Length: 4}}, PositiveDeltas: []int64{1, 1, -1, 0}, Timestamp: 1000,
	}
}

// A40: a histogram that Prometheus would not store is a 400 in both versions, and one that it would is kept as it came.
func TestCase_A40_MalformedHistograms(t *testing.T) {
	r := newRig(t, nil)
	send := func(h writev2.Histogram, bad bool) {
		t.Helper()
		one := writev2.Request{Symbols: []string{"", "__name__", "h"}, Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{1, 2}, Histograms: []writev2.Histogram{h}}}}
		want := map[bool]int{false: http.StatusNoContent, true: http.StatusBadRequest}[bad]
		a := r.post2(snappy.Encode(nil, marshal2(t, &one)))
		if a.code != want || a.header.Get(writtenHeaders[itemHistogram]) != map[bool]string{false: "1", true: "0"}[bad] {
			t.Errorf("version 2.0: %v for %v", a, h)
		}
		raw, err := h.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		series := append(appendLabel(nil, "__name__", "h"), seriesHistogram<<3|byte(wireBytes))
		series = append(binary.AppendUvarint(series, uint64(len(raw))), raw...)
		body := append(binary.AppendUvarint([]byte{tagLabel}, uint64(len(series))), series...)
		if a := r.post(snappy.Encode(nil, body)); a.code != want {
			t.Errorf("version 1.0: %v for %v", a, h)
		}
		events := r.writes()
		if bad {
			if len(events) != 0 {
				t.Errorf("appended: %v", h)
			}
			return
		}
		for _, e := range events {
			var kept writev2.Histogram
			if err := kept.Unmarshal(e.Body.(*log.Write).Histograms[0].Proto); err != nil {
				t.Fatal(err)
			}
			if again, err := kept.Marshal(); err != nil || !bytes.Equal(again, raw) {
				t.Errorf("kept as %v, sent %v (%v)", kept, h, err)
			}
		}
	}
	send(exponential(), false)
	send(custom(), false)
	float := exponential()
	float.Count, float.ZeroCount = &writev2.Histogram_CountFloat{CountFloat: 12.5}, &writev2.Histogram_ZeroCountFloat{ZeroCountFloat: 0.5}
	float.PositiveDeltas, float.NegativeDeltas, float.PositiveCounts, float.NegativeCounts = nil, nil, []float64{2, 3, 4}, []float64{3}
	send(float, false)
	stale := writev2.Histogram{Count: &writev2.Histogram_CountInt{}, Sum: math.Float64frombits(value.StaleNaN), Timestamp: 1000}
	send(stale, false)
	for name, change := range map[string]func(h *writev2.Histogram){
		"negative bucket":        func(h *writev2.Histogram) { h.PositiveDeltas[1] = -7 },
		"span overflow":          func(h *writev2.Histogram) { h.PositiveSpans[1].Offset = math.MaxInt32 },
		"negative gap":           func(h *writev2.Histogram) { h.PositiveSpans[1].Offset = -1 },
		"too many spans":         func(h *writev2.Histogram) { h.PositiveSpans[0].Length = math.MaxUint32 },
		"schema 53":              func(h *writev2.Histogram) { h.Schema = 53 },
		"schema -10":             func(h *writev2.Histogram) { h.Schema = -10 },
		"count too small":        func(h *writev2.Histogram) { h.Count = &writev2.Histogram_CountInt{CountInt: 11} },
		"count too large":        func(h *writev2.Histogram) { h.Count = &writev2.Histogram_CountInt{CountInt: 13} },
		"threshold NaN":          func(h *writev2.Histogram) { h.ZeroThreshold = math.NaN() },
		"threshold negative":     func(h *writev2.Histogram) { h.ZeroThreshold = -1 },
		"float, negative":        func(h *writev2.Histogram) { *h = float; h.PositiveCounts = []float64{2, -3, 4} },
		"bounds out of order":    func(h *writev2.Histogram) { *h = custom(); h.CustomValues = []float64{1, 5, 2} },
		"bound +Inf":             func(h *writev2.Histogram) { *h = custom(); h.CustomValues = []float64{1, 2, math.Inf(1)} },
		"too few bounds":         func(h *writev2.Histogram) { *h = custom(); h.CustomValues = []float64{1, 2} },
		"bounds beside a schema": func(h *writev2.Histogram) { h.CustomValues = []float64{1} },
	} {
		t.Run(name, func(t *testing.T) {
			h := exponential()
			change(&h)
			send(h, true)
		})
	}
	// What is told names the rule and repeats no number.
	wrong := exponential()
	wrong.Count = &writev2.Histogram_CountInt{CountInt: 987654321}
	body := snappy.Encode(nil, marshal2(t, &writev2.Request{Symbols: []string{"", "__name__", "h"},
		Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{1, 2}, Histograms: []writev2.Histogram{wrong}}}}))
	if a := r.post2(body); a.code != http.StatusBadRequest || strings.Contains(a.body, "987654321") || !strings.Contains(a.body, "should equal the number of observations") {
		t.Error(a)
	}
}

// R3: of known series, a request of version 2.0 with metadata and histograms allocates nothing before its event, except what the
// event will own.
func TestR3_KnownSeriesAllocateNothing2(t *testing.T) {
	r := newRig(t, nil)
	var lines strings.Builder
	for i := range 500 {
		fmt.Fprintf(&lines, "__name__=m i=v%d j=x : 1@1000 2@2000\nstart 500\nabout counter Help. \"\"\n", i)
	}
	lines.WriteString("__name__=h\nhistogram 7@1000\n")
	body := request2(t, lines.String())
	if a := r.post2(body); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	decoded, err := snappy.Decode(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	a := r.handler.arenas.get()
	a.decoded = decoded
	l := &lease{of: &inflight{max: 1 << 40, maxClient: 1 << 40}, holds: &holding{}}
	run := func() {
		a.builder.Reset()
		if _, err := r.handler.check2(a, l); err != nil {
			t.Fatal(err)
		}
		var tally tally
		if err := r.handler.collect(a, &tally); err != nil || tally.counts[itemSample].logged() != 1000 || tally.counts[itemHistogram].logged() != 1 {
			t.Fatal(err, tally)
		}
	}
	if n := allocations(run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecode2(b *testing.B) {
	body := benchBody2(b)
	b.Run("op=scan/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		var s Scanner
		var table Symbols
		for b.Loop() {
			if _, err := Check2(body, &table); err != nil {
				b.Fatal(err)
			}
			s.Reset2(body, &table, labelLimits{128, 1024, 4096})
			for s.NextSeries() {
				for _, ok := s.NextSample(); ok; _, ok = s.NextSample() {
				}
			}
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
	b.Run("op=writev2/series=2000", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			var req writev2.Request
			if err := req.Unmarshal(body); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	})
}

// benchBody2 is benchBody in version 2.0.
func benchBody2(b *testing.B) []byte {
	var series []Series
	for i := range 2000 {
		ls := []string{"__name__", "request_duration_seconds_bucket", "le", fmt.Sprint(i % 12), "instance", fmt.Sprintf("10.0.0.%d:9090", i/12)}
		for j := range 7 {
			ls = append(ls, fmt.Sprintf("label_%d", j), fmt.Sprintf("value-%d-of-label", j))
		}
		series = append(series, Series{Labels: labels.FromStrings(ls...), Samples: []Sample{{Time: 1000 + int64(i%7), Value: float64(i) * 1.5}}})
	}
	return encode2(b, series)
}

// A44: one client that stalls keeps what it has sent and its share at most; another one is served meanwhile.
func TestCase_A44_OneClientLeavesRoom(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.MaxBodyBytes, o.MaxDecodedBytes, o.MaxSeries, o.MaxSamples = 64<<10, 64<<10, 100, 100
		o.MaxInflightBytes, o.MaxInflightRequests, o.MaxClientShare = 4*o.largestRequest(), 100, 0.5
		o.Client = func(r *http.Request) string { name, _, _ := r.BasicAuth(); return name }
	})
	client := func(name string) []string {
		return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":x"))}
	}
	share := int(r.handler.inflight.maxClient / (64 << 10))
	var stalled []*io.PipeWriter
	answers := make(chan reply, share)
	for range share {
		body, sender := io.Pipe()
		stalled = append(stalled, sender)
		go func() { answers <- r.do(http.MethodPost, r.url(), body, client("greedy")...) }()
		if _, err := sender.Write(make([]byte, 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return r.values()["inflight_bytes"] == float64(share*64<<10) })
	big := make([]byte, 40<<10)
	if got, want := r.do(http.MethodPost, r.url(), bytes.NewReader(big), client("greedy")...).String(), "503 retry after 1: too much of this client is in flight"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if a := r.do(http.MethodPost, r.url(), bytes.NewReader(big), client("other")...); a.code != http.StatusBadRequest {
		t.Errorf("another client beside it: %v", a) // the body is none, but it was read
	}
	if a := r.post(request(t, `__name__=m : 1@1000`)); a.code != http.StatusNoContent {
		t.Errorf("a client without a name beside it: %v", a)
	}
	for _, s := range stalled {
		s.Close()
	}
	for range stalled {
		<-answers
	}
	waitFor(t, func() bool {
		r.handler.inflight.mu.Lock()
		defer r.handler.inflight.mu.Unlock()
		return len(r.handler.inflight.clients) == 0
	})
}

// limitedDictionary refuses series whose label i is bad.
type limitedDictionary struct{ *log.Dictionary }

func (d limitedDictionary) Resolve(h log.Hash, ls labels.Labels) (log.SeriesRef, error) {
	if ls.Get("i") == "bad" {
		return 0, fmt.Errorf("resolve: %w", &LimitError{Reason: ReasonExperimentSeries, Experiment: "e", Limit: 10})
	}
	return d.Dictionary.Resolve(h, ls)
}

// A44: a permanent limit is a 400, and what is within it in the same request is written.
func TestCase_A44_PermanentLimit(t *testing.T) {
	r := newRig(t, nil)
	r.handler.dictionary = limitedDictionary{r.events.Dictionary()}
	a := r.post2(request2(t, "__name__=m i=good : 1@1000\n__name__=m i=bad : 1@90000000 2@2000 3@3000\nhistogram 7@1000\nexemplar : 1@1000\n__name__=m i=fine : 1@1000"))
	want := `400 samples 2 histograms 0 exemplars 0: 2 of 5 samples written, 3 rejected, 1 of 1 histograms rejected; 1 of 3 series refused; first fault: timestamp too far in the future, the limit is 600000 ms ahead`
	if a.String() != want {
		t.Errorf("got %v, want %s", a, want)
	}
	a = r.post(request(t, `__name__=m i=bad : 1@1000`))
	if want := `400: 0 of 1 samples written, 1 rejected; 1 of 1 series refused; first fault: experiment "e" has as many series as it may, the limit is 10`; a.String() != want {
		t.Errorf("got %v, want %s", a, want)
	}
	v := r.values()
	if v["samples_rejected_total{experiment_series_limit}"] != 3 || v["histograms_rejected_total{experiment_series_limit}"] != 1 || v["exemplars_rejected_total{experiment_series_limit}"] != 1 {
		t.Error(v)
	}
}
