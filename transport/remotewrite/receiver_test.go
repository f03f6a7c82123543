package remotewrite

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
)

// What a receiver of version 2.0 must and should do, by the specification and by the public tests of receivers: each rule with a
// request and what has to come of it. Counts are samples, histograms, exemplars.
func TestReceiverRules(t *testing.T) {
	type rule struct {
		name, lines string
		status      int
		written     [items]int
	}
	var rules []rule
	add := func(name, lines string, status, samples, histograms, exemplars int) {
		rules = append(rules, rule{name, lines, status, [items]int{samples, histograms, exemplars}})
	}
	for _, v := range []string{"1", "0x7ff0000000000002", "NaN", "Inf", "-Inf"} {
		add("one series "+v, `__name__=up : `+v+`@1000`, 204, 1, 0, 0)
		add("labels "+v, `__name__=up job=testjob instance=localhost:9090 : `+v+`@1000`, 204, 1, 0, 0)
		add("new lines "+v, `__name__=up job="test\njob\n" : `+v+`@1000`, 204, 1, 0, 0)
		add("dots "+v, `__name__=resource.cpu.usage job.name=testjob : `+v+`@1000`, 204, 1, 0, 0)
		add("spaces "+v, `__name__="resource cpu usage" "job name"=testjob : `+v+`@1000`, 204, 1, 0, 0)
		add("no name "+v, `job=testjob : `+v+`@1000`, 400, 0, 0, 0)
		add("no labels "+v, ` : `+v+`@1000`, 400, 0, 0, 0)
		add("several "+v, strings.Repeat("__name__=up i=%d : "+v+"@1000\n", 4), 204, 4, 0, 0)
		add("one of several bad "+v, "job=x : "+v+"@1000\n"+strings.Repeat("__name__=up i=%d : "+v+"@1000\n", 3), 400, 3, 0, 0)
	}
	add("start timestamp", "__name__=http_requests_total : 100@3000000\nstart 1000", 204, 1, 0, 0)
	add("histogram", "__name__=h\nhistogram 7@1000", 204, 0, 1, 0)
	add("two histograms", "__name__=h\nhistogram 7@1000\n__name__=g\nhistogram 8@1000", 204, 0, 2, 0)
	add("empty histogram", "__name__=h\nhistogram 0@1000", 204, 0, 1, 0)
	add("exemplar of a sample", "__name__=m : 1@1000\nexemplar trace_id=abc span_id=def : 1@1000", 204, 1, 0, 1)
	add("exemplar of a histogram", "__name__=m\nhistogram 3@1000\nexemplar trace_id=abc : 1@1000", 204, 0, 1, 1)
	add("exemplar without labels", "__name__=m : 1@1000\nexemplar : 1@1000", 204, 1, 0, 1)
	add("exemplar with any text", "__name__=m : 1@1000\nexemplar trace_id=\"äöü-123\" \"span.id\"=\"a b\" : 1@1000", 204, 1, 0, 1)
	add("exemplar alone", "__name__=m\nexemplar trace_id=abc : 1@1000", 204, 0, 0, 1)
	for _, kind := range []string{"counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unspecified"} {
		add("metadata "+kind, "__name__=m : 1@1000\nabout "+kind+" \"Some \\\"help\\\"\\nhere.\" bytes/sec", 204, 1, 0, 0)
		add("metadata without text "+kind, "__name__=m : 1@1000\nabout "+kind+` "" ""`, 204, 1, 0, 0)
	}
	add("metadata alone", "__name__=orphan\nabout counter Help. count", 204, 0, 0, 0)
	add("metadata of nothing", "job=test : 1@1000\nabout counter Help. count", 400, 0, 0, 0)
	add("metadata of an empty name", "__name__= : 1@1000\nabout gauge Help. count", 400, 0, 0, 0)
	add("all together", "__name__=m : 1@1000\nstart 500\nabout counter Help. \"\"\nexemplar trace_id=abc : 1@1000\n__name__=h\nhistogram 7@1000\nabout histogram Help. \"\"", 204, 1, 1, 1)
	add("old and new", "__name__=old : 1@-3600000\n__name__=new : 1@3600000", 204, 2, 0, 0)
	add("repeated label", "__name__=m a=1 a=2 : 1@1000", 400, 0, 0, 0)
	add("too many samples ahead of the clock", "__name__=m : 1@1000 2@90000000", 400, 1, 0, 0)

	r := newRig(t, nil)
	for _, rule := range rules {
		lines := rule.lines
		for i := range strings.Count(lines, "%d") {
			lines = strings.Replace(lines, "%d", fmt.Sprint(i), 1)
		}
		a := r.post2(request2(t, lines))
		if a.code != rule.status || a.code == 204 && a.body != "" {
			t.Errorf("%s: %v", rule.name, a)
		}
		for k, name := range writtenHeaders {
			if got, want := a.header.Get(name), fmt.Sprint(rule.written[k]); got != want {
				t.Errorf("%s: %s is %q, want %s", rule.name, name, got, want)
			}
		}
	}
}

// Requests that are wrong as a whole, in both versions.
func TestReceiverRules_WholeRequests(t *testing.T) {
	r := newRig(t, nil)
	good2 := request2(t, `__name__=m : 1@1000`)
	good1 := request(t, `__name__=m : 1@1000`)
	broken := func(b []byte, first byte) []byte { return append([]byte{first}, b[1:]...) }
	for _, tc := range []struct {
		name, contentType, encoding string
		body                        []byte
		want                        int
	}{
		{"media type", "application/json", "snappy", broken(good2, '0'), 415},
		{"media type", "image/png", "snappy", broken(good2, '0'), 415},
		{"message", "application/x-protobuf;proto=io.prometheus.write.v3.Request", "snappy", good2, 415},
		{"encoding", contentType2, "gzip", broken(good2, '0'), 415},
		{"encoding", contentType2, "deflate", broken(good2, '0'), 415},
		{"body of 2.0", contentType2, "snappy", broken(good2, '0'), 400},
		{"body of 1.0", mediaType, "snappy", broken(good1, 0xff), 400},
		{"1.0", mediaType, "snappy", good1, 204},
		{"1.0 by name", mediaType + ";proto=" + messageV1, "snappy", good1, 204},
		{"2.0", contentType2, "snappy", good2, 204},
		{"1.0 as 2.0", contentType2, "snappy", good1, 400},
		{"2.0 as 1.0", mediaType, "snappy", good2, 400},
	} {
		a := r.do(http.MethodPost, r.url(), strings.NewReader(string(tc.body)), "Content-Type", tc.contentType, "Content-Encoding", tc.encoding)
		if a.code != tc.want {
			t.Errorf("%s: %v, want %d", tc.name, a, tc.want)
		}
	}
	if n := len(r.writes()); n != 3 {
		t.Errorf("%d events", n)
	}
}

// A series that both versions write is one, and what it holds is the same.
func TestReceiverRules_OneSeriesInBothVersions(t *testing.T) {
	r := newRig(t, nil)
	one := &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels: []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: "a"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: 1000}},
	}}}
	if a := r.post(snappy.Encode(nil, marshal(t, one))); a.code != 204 {
		t.Fatal(a)
	}
	if a := r.post2(request2(t, `i=a __name__=m : 2@2000`)); a.code != 204 {
		t.Fatal(a)
	}
	want := "#1\n  {__name__=\"m\", i=\"a\"} 1@1000\n#2\n  {__name__=\"m\", i=\"a\"} 2@2000\n"
	if got := r.show(); got != want || len(r.labels) != 1 {
		t.Errorf("got %s (%d series), want %s", got, len(r.labels), want)
	}
}
