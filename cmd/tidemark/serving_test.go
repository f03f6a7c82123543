package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/transport/remotewrite"
)

// patience bounds what a test waits for where only a real process can tell. Nothing is as slow, unless it hangs.
const patience = 2 * time.Minute

// setup is what a test may choose of a service.
type setup struct {
	dir    string   // storage and configuration; "": a new one
	config string   // text of tidemark.yml
	flags  []string // of serve
	around surroundings
	logger *slog.Logger // nil: none
	opened func(*node)  // called before anything runs
}

// hosted is the whole service on a loopback port, with everything that `tidemark serve` runs.
type hosted struct {
	t     testing.TB
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
func openService(t testing.TB, s setup) (*hosted, error) {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	config := filepath.Join(s.dir, "tidemark.yml")
	if !strings.Contains(s.config, "exact:") {
		s.config += "\nexact: {local: false}\n" // tests that do not name an exact source are about panes
	}
	if !strings.Contains(s.config, "query:") {
		s.config += "\nquery: {unpublished: forward}\n" // and about what is published
	}
	if err := os.WriteFile(config, []byte(s.config), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &serveFlags{around: s.around, listening: func(net.Addr) {}}
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
	v := &hosted{
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
func startService(t testing.TB, s setup) *hosted {
	t.Helper()
	v, err := openService(t, s)
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("ready", func() bool { code, _ := v.get("/-/ready"); return code == 200 })
	return v
}

// stop stops the service as SIGTERM does and returns what its run returned.
func (v *hosted) stop() error {
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
func (v *hosted) mustStop() {
	v.t.Helper()
	if err := v.stop(); err != nil {
		v.t.Fatalf("stop: %v", err)
	}
}

// restart stops the service and starts it again on the same directory.
func (v *hosted) restart() *hosted {
	v.t.Helper()
	v.mustStop()
	return startService(v.t, v.setup)
}

// eventually waits for what only time brings.
func (v *hosted) eventually(what string, done func() bool) {
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

func (v *hosted) do(req *http.Request) (int, http.Header, []byte) {
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

func (v *hosted) get(path string) (int, string) {
	v.t.Helper()
	req, err := http.NewRequest(http.MethodGet, v.base+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	code, _, body := v.do(req)
	return code, string(body)
}

// form posts a form to a path of the API, given parameters as name, value, ….
func (v *hosted) form(path string, params ...string) (int, http.Header, []byte) {
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
func batch(t testing.TB, samples ...sent) []remotewrite.Series {
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
func (v *hosted) send(samples ...sent) {
	v.t.Helper()
	if code := v.sendFor(samples...); code != 204 {
		v.t.Fatalf("write: status %d", code)
	}
}

// sendFor writes samples in one request and returns the status.
func (v *hosted) sendFor(samples ...sent) int {
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

// panesOfAMinute plans panes of a minute over m and c, and of five minutes where the names say so.
const panesOfAMinute = `
materializations:
  - {name: m_sum, expr: "sum_over_time(m[1m])", every: 1m}
  - {name: c_rate, expr: "rate(c[1m])", every: 1m}
`

// The service starts, takes a write, closes a bucket at a barrier, answers from it, and ends in order.
func TestService(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
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
func (v *hosted) sendRaw(ls labelPairs, t int64, value float64) {
	v.t.Helper()
	if code := v.sendRawFor(ls, t, value); code != 204 {
		v.t.Fatalf("write %q: status %d", ls, code)
	}
}

func (v *hosted) sendRawFor(ls labelPairs, t int64, value float64) int {
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
