package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"

	"tidemark/transport/remotewrite"
)

// startPrometheus starts a Prometheus that scrapes nothing, and returns its URL.
func startPrometheus(t *testing.T, config string) string {
	t.Helper()
	requirePeers(t)
	dir, address := t.TempDir(), freeAddress(t)
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "prometheus", exec.Command("prometheus", "--config.file="+path, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn"))
	client, base := newClient(t), "http://"+address
	poll(t, readyWithin, "prometheus ready", func() (bool, string) {
		r, err := fetch(client, http.MethodGet, base+"/-/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return r.code == http.StatusOK, r.body
	})
	return base
}

// A Prometheus that has no samples itself answers with those that it reads from the service, streamed by the chunk; a reader that takes
// samples alone gets these.
func TestRemoteRead(t *testing.T) {
	v := startService(t, setup{config: "exact: {local: true}"})
	now := time.Now().UnixMilli() / 1000 * 1000
	var samples []sent
	for i := range int64(300) {
		samples = append(samples, sent{`m_total{i="a"}`, now - 300_000 + 1000*i, float64(i)}, sent{`m_total{i="b"}`, now - 300_000 + 1000*i, float64(2 * i)})
	}
	v.send(samples...)

	body, err := (&prompb.ReadRequest{Queries: []*prompb.Query{{
		StartTimestampMs: now - 10_000, EndTimestampMs: now,
		Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_EQ, Name: "__name__", Value: "m_total"}, {Type: prompb.LabelMatcher_EQ, Name: "i", Value: "b"}},
	}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, v.base+"/api/v1/read", bytes.NewReader(snappy.Encode(nil, body)))
	if err != nil {
		t.Fatal(err)
	}
	code, _, raw := v.do(req)
	plain, err := snappy.Decode(nil, raw)
	var got prompb.ReadResponse
	if err == nil {
		err = got.Unmarshal(plain)
	}
	if err != nil || code != http.StatusOK || len(got.Results) != 1 || len(got.Results[0].Timeseries) != 1 || len(got.Results[0].Timeseries[0].Samples) != 10 {
		t.Fatalf("status %d, %v: %v", code, err, &got)
	}
	if s := got.Results[0].Timeseries[0].Samples[9]; s.Value != 598 || s.Timestamp != now-1000 {
		t.Errorf("%v", s)
	}

	base := startPrometheus(t, fmt.Sprintf("remote_read: [{url: %q, read_recent: true}]\n", v.base+"/api/v1/read"))
	client := newClient(t)
	for _, expr := range []string{"sum by (i) (rate(m_total[2m]))", "count_over_time(m_total[290500ms])", `m_total{i="a"} * 2`} {
		x := exchange{method: http.MethodGet, path: "/api/v1/query", params: [][2]string{{"query", expr}, {"time", seconds(now)}}}
		want, _ := x.ask(t, v.http, v.base, http.Header{"Cache-Control": {"no-store"}})
		if got, _ := x.ask(t, client, base, nil); got != want || !strings.Contains(got, `"i":"a"`) {
			t.Errorf("%s:\nPrometheus says %s\nthe service says %s", expr, got, want)
		}
	}
	if n := v.numbers().of(t, "http_requests_total", "handler", "read"); n < 4 {
		t.Errorf("%v requests to read", n)
	}
	if code, body := v.get("/api/v1/read"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %s", code, body)
	}
	v.mustStop()
}

// /federate has the bytes of a real Prometheus that was sent the same.
func TestFederate(t *testing.T) {
	base := startPrometheus(t, "{}\n")
	client := newClient(t)
	v := startService(t, setup{config: "exact: {local: true}"})
	now := time.Now().UnixMilli()
	series := func(v float64, at int64, pairs ...string) remotewrite.Series {
		return remotewrite.Series{Labels: labels.FromStrings(pairs...), Samples: []remotewrite.Sample{{Time: at, Value: v}}}
	}
	body := []remotewrite.Series{
		series(1.5, now-2000, "__name__", "a", "instance", "x", "job", "j"),
		series(math.NaN(), now-2000, "__name__", "a", "job", "k"),
		series(math.Inf(-1), now-2000, "__name__", "b", "odd", "q\"u\\o\nte"),
		series(1e21, now-1000, "__name__", "b", "z", "é"),
		series(7, now-299_000+60_000, "__name__", "c"),
		series(math.Float64frombits(value.StaleNaN), now-1000, "__name__", "gone"),
		series(3, now-1000, "__name__", "other"),
	}
	for _, url := range []string{base, v.base} {
		w := remotewrite.Client{URL: url + remotewrite.Path, HTTP: client}
		if err := w.Write(t.Context(), body); err != nil {
			t.Fatal(err)
		}
	}
	for _, query := range []string{
		`match[]={__name__=~"a|b|c|gone"}`, `match[]=a&match[]={job="k"}`, `match[]=nope`, ``, `match[]=sum(`,
	} {
		ask := func(base string) string {
			res, err := client.Get(base + "/federate?" + strings.ReplaceAll(strings.ReplaceAll(query, "|", "%7C"), `"`, "%22"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%d %s", res.StatusCode, text)
		}
		want, got := ask(base), ask(v.base)
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", query, got, want)
		}
		if strings.Contains(query, "gone") && (!strings.Contains(got, "# TYPE c untyped\n") || strings.Contains(got, "gone")) {
			t.Errorf("%s", got)
		}
	}
	v.mustStop()
}
