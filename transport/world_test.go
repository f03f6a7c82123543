package transport

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/querytest"
	"tidemark/transport/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the clock of every test: a minute after the last sample of the world.
var now = time.UnixMilli(1435781460000).UTC()

const config = `
materializations:
  - {name: counts, expr: 'count_over_time(m[1m])', every: 1m}
  - {name: newest, expr: 'm', every: 1s}
  - {name: oddities, expr: 'odd', every: 1s}
`

// source is the model of panes with a hook in front of each read.
type source struct {
	*querytest.Model
	before func(ctx context.Context) error
}

func (s *source) Read(ctx context.Context, reqs []query.Request) (*query.Snapshot, error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return nil, err
		}
	}
	return s.Model.Read(ctx, reqs)
}

// world is a service over a few series in memory: the real engine over a model of the panes, behind real HTTP.
type world struct {
	cut     atomic.Bool // the index does not look at all series
	t       *testing.T
	source  *source
	engine  *query.Engine
	barrier *barrier
	ready   *readiness
	reg     *prometheus.Registry
	url     string
	client  *http.Client
	handler *Handler
}

// barrier closes panes of the model. It answers as the fold would: a mark moves what is complete only upwards.
type barrier struct {
	mu          sync.Mutex
	model       *querytest.Model
	marks       []int64  // what was appended, in order
	experiments []string // parallel to marks
	through     int64
	drains      int
	hold        func(ctx context.Context) error
}

func (b *barrier) Watermark(ctx context.Context, w log.Watermark) (api.BarrierResult, error) {
	t := w.Time
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marks, b.experiments = append(b.marks, t), append(b.experiments, w.Experiment)
	if b.hold != nil {
		if err := b.hold(ctx); err != nil {
			return api.BarrierResult{}, err
		}
	}
	b.model.Barrier(t)
	b.through = max(b.through, t)
	return api.BarrierResult{Seq: log.Seq(len(b.marks)), ClosedBuckets: 3, CompleteThrough: b.through}, nil
}

func (b *barrier) Drain(ctx context.Context) (api.BarrierResult, error) {
	b.drains++
	if b.hold != nil {
		if err := b.hold(ctx); err != nil {
			return api.BarrierResult{}, err
		}
	}
	return api.BarrierResult{Seq: 9, ClosedBuckets: 1, CompleteThrough: 5, Warnings: []string{"one <warning>"}}, nil
}

type readiness struct {
	reasons  []string
	progress string
}

func (r *readiness) Reasons() []string         { return r.reasons }
func (r *readiness) Replaying() (string, bool) { return r.progress, r.progress != "" }

// index searches the model's label sets by brute force.
type index struct {
	model *querytest.Model
	cut   *atomic.Bool // there are more series than it looks at
}

func (x index) found(sets [][]*labels.Matcher) []labels.Labels {
	var out []labels.Labels
	for _, s := range x.model.Series() {
		in := func(set []*labels.Matcher) bool {
			return !slices.ContainsFunc(set, func(m *labels.Matcher) bool { return !m.Matches(s.Labels.Get(m.Name)) })
		}
		if len(sets) == 0 || slices.ContainsFunc(sets, in) {
			out = append(out, s.Labels)
		}
	}
	return out
}

func (x index) Series(_ context.Context, sets [][]*labels.Matcher, limit int) ([]labels.Labels, bool, error) {
	out := x.found(sets)
	return out[:min(limit, len(out))], x.cut.Load(), nil
}

func (x index) LabelNames(_ context.Context, sets [][]*labels.Matcher, limit int) ([]string, bool, error) {
	return x.distinct(sets, limit, func(l labels.Label) string { return l.Name })
}

func (x index) LabelValues(_ context.Context, name string, sets [][]*labels.Matcher, limit int) ([]string, bool, error) {
	return x.distinct(sets, limit, func(l labels.Label) string {
		if l.Name != name {
			return ""
		}
		return l.Value
	})
}

func (x index) distinct(sets [][]*labels.Matcher, limit int, of func(labels.Label) string) ([]string, bool, error) {
	var out []string
	for _, ls := range x.found(sets) {
		ls.Range(func(l labels.Label) {
			if v := of(l); v != "" {
				out = append(out, v)
			}
		})
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(limit, len(out))], x.cut.Load(), nil
}

// newWorld starts a service. m{i="a"} and m{i="b"} have a sample every minute of the two hours before now and one at 0;
// odd has a label that HTML would choke on.
func newWorld(t *testing.T, opts Options) *world {
	t.Helper()
	cfg, err := plan.Parse([]byte(config), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := plan.Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	end := now.UnixMilli() - 60_000
	var series []querytest.Series
	for _, i := range []string{"a", "b"} {
		s := querytest.Series{Labels: labels.FromStrings("__name__", "m", "i", i), T: []int64{0}, V: []float64{9}}
		for at := end - 7_200_000; at <= end; at += 60_000 {
			s.T, s.V = append(s.T, at), append(s.V, float64(len(s.T)))
		}
		series = append(series, s)
	}
	series = append(series, querytest.Series{Labels: labels.FromStrings("__name__", "odd", "html", `<b>&"\`), T: []int64{0}, V: []float64{1}})
	w := &world{
		t: t, source: &source{Model: querytest.NewModel(p, series)}, ready: &readiness{},
		reg: prometheus.NewRegistry(), client: &http.Client{
			Transport:     &http.Transport{DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	w.source.Barrier(now.UnixMilli())
	w.engine = query.New(w.source, query.Options{})
	w.barrier = &barrier{model: w.source.Model, through: math.MinInt64}
	if opts.Now == nil {
		opts.Now = func() time.Time { return now }
	}
	h, err := NewHandler(Deps{
		Engine: w.engine, Series: index{w.source.Model, &w.cut}, Barrier: w.barrier, Readiness: w.ready, Replay: w.ready,
		Write:    http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		Gatherer: w.reg, Registerer: w.reg,
	}, opts)
	if err != nil {
		t.Fatal(err)
	}
	w.handler = h
	s := httptest.NewUnstartedServer(h)
	s.Config = Server(h, DefaultTimeouts())
	s.Start()
	w.url = s.URL
	t.Cleanup(s.Close)
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

// reply is an answer, read to its end and unpacked.
type reply struct {
	code   int
	header http.Header
	body   string
}

func (w *world) do(method, path, body string, header ...string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	from := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if from, err = gzip.NewReader(from); err != nil {
			w.t.Fatal(err)
		}
	}
	b, err := io.ReadAll(from)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b)}
}

func (w *world) get(path string, params ...string) reply {
	w.t.Helper()
	if q := values(params).Encode(); q != "" {
		path += "?" + q
	}
	return w.do(http.MethodGet, path, "")
}

func (w *world) post(path string, params ...string) reply {
	w.t.Helper()
	return w.do(http.MethodPost, path, values(params).Encode(), "Content-Type", "application/x-www-form-urlencoded")
}

func values(params []string) url.Values {
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Add(params[i], params[i+1])
	}
	return v
}

// wantError checks an error envelope: status, type, and a piece of its text.
func (w *world) wantError(r reply, code int, errorType, text string) {
	w.t.Helper()
	prefix := `{"status":"error","errorType":"` + errorType + `","error":"`
	if r.code != code || !strings.HasPrefix(r.body, prefix) || !strings.Contains(r.body, text) || !strings.HasSuffix(r.body, `"}`) {
		w.t.Errorf("got %d %s\nwant %d %s…%s…", r.code, r.body, code, prefix, text)
	}
	if ct := r.header.Get("Content-Type"); ct != "application/json" {
		w.t.Errorf("H1: Content-Type %q", ct)
	}
}

// want checks a success in full.
func (w *world) want(r reply, body string) {
	w.t.Helper()
	if r.code != http.StatusOK || r.body != body {
		w.t.Errorf("got %d %s\nwant 200 %s", r.code, r.body, body)
	}
}

// wantCode checks the status alone.
func (w *world) wantCode(r reply, code int) {
	w.t.Helper()
	if r.code != code {
		w.t.Errorf("got %d %s\nwant %d", r.code, r.body, code)
	}
}

var errDisk = errors.New("a block cannot be read")
