package remotewrite

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

const contentType2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

func marshal2(t testing.TB, req *writev2.Request) []byte {
	t.Helper()
	b, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func request2(t testing.TB, lines string) []byte {
	t.Helper()
	return snappy.Encode(nil, marshal2(t, parseRequest2(t, lines)))
}

// post2 sends a body under the headers of version 2.0.
func (r *rig) post2(body []byte) reply {
	r.t.Helper()
	return r.do(http.MethodPost, r.url(), bytes.NewReader(body),
		"Content-Type", contentType2, "Content-Encoding", "snappy", "X-Prometheus-Remote-Write-Version", "2.0.0")
}

// parseRequest2 reads the lines of parseRequest, less metadata, and these:
//
//	start 500                        the start timestamp of all samples of the series above
//	about counter "help" "unit"      metadata of the series above
func parseRequest2(t testing.TB, input string) *writev2.Request {
	t.Helper()
	table := writev2.NewSymbolTable()
	req := &writev2.Request{}
	refs := func(words []string) ([]uint32, []writev2.Sample) {
		ls, samples := parseSeries(t, words)
		var refs []uint32
		for _, l := range ls {
			refs = append(refs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		var out []writev2.Sample
		for _, s := range samples {
			out = append(out, writev2.Sample{Value: s.Value, Timestamp: s.Timestamp})
		}
		return refs, out
	}
	for line := range strings.Lines(input) {
		words := splitWords(t, line)
		if len(words) == 0 {
			continue
		}
		var last *writev2.TimeSeries
		if n := len(req.Timeseries); n > 0 {
			last = &req.Timeseries[n-1]
		}
		switch words[0] {
		case "start":
			ms, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			for i := range last.Samples {
				last.Samples[i].StartTimestamp = ms
			}
		case "about":
			kind, ok := writev2.Metadata_MetricType_value["METRIC_TYPE_"+strings.ToUpper(words[1])]
			if !ok {
				t.Fatalf("no metric type %q", words[1])
			}
			last.Metadata = writev2.Metadata{
				Type: writev2.Metadata_MetricType(kind), HelpRef: table.Symbolize(words[2]), UnitRef: table.Symbolize(words[3]),
			}
		case "exemplar":
			ls, samples := refs(words[1:])
			for _, s := range samples {
				last.Exemplars = append(last.Exemplars, writev2.Exemplar{LabelsRefs: ls, Value: s.Value, Timestamp: s.Timestamp})
			}
		case "histogram":
			_, samples := refs(append([]string{":"}, words[1:]...))
			for _, s := range samples {
				last.Histograms = append(last.Histograms, writev2.Histogram{
					Count:     &writev2.Histogram_CountInt{CountInt: uint64(s.Value)},
					ZeroCount: &writev2.Histogram_ZeroCountInt{ZeroCountInt: uint64(s.Value)}, Timestamp: s.Timestamp,
				})
			}
		default:
			ls, samples := refs(words)
			req.Timeseries = append(req.Timeseries, writev2.TimeSeries{LabelsRefs: ls, Samples: samples})
		}
	}
	req.Symbols = table.Symbols()
	return req
}

// encode2 is encode for version 2.0, by the generated encoder.
func encode2(t testing.TB, series []Series) []byte {
	t.Helper()
	table := writev2.NewSymbolTable()
	req := &writev2.Request{}
	for _, s := range series {
		ts := writev2.TimeSeries{}
		s.Labels.Range(func(l labels.Label) {
			ts.LabelsRefs = append(ts.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		})
		for _, x := range s.Samples {
			ts.Samples = append(ts.Samples, writev2.Sample{Value: x.Value, Timestamp: x.Time, StartTimestamp: x.Start})
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	req.Symbols = table.Symbols()
	return marshal2(t, req)
}
