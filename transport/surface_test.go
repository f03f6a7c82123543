package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tidemark/transport/api"
)

func TestCase_D22_Compression(t *testing.T) {
	w := newWorld(t, Options{})
	plain := w.get("/api/v1/query", "query", "m")
	for accept, zipped := range map[string]bool{"gzip": true, "gzip;q=0": false, "identity": false, "": false, "*;q=0": false, "deflate, gzip;q=0.1": true} {
		var header []string
		if accept != "" {
			header = []string{"Accept-Encoding", accept}
		}
		r := w.do(http.MethodGet, "/api/v1/query?query=m", "", header...)
		w.want(r, plain.body)
		if got := r.header.Get("Content-Encoding") == "gzip"; got != zipped {
			t.Errorf("%q: Content-Encoding %q", accept, r.header.Get("Content-Encoding"))
		}
		if !strings.Contains(strings.Join(r.header.Values("Vary"), ","), "Accept-Encoding") {
			t.Errorf("%q: Vary %q", accept, r.header.Values("Vary"))
		}
	}
	// Errors and lists are compressed too, and lengths are those of what is sent.
	w.wantError(w.do(http.MethodGet, "/api/v1/query?query=sum(", "", "Accept-Encoding", "gzip"), 400, "bad_data", "parse error")
	w.want(w.do(http.MethodGet, "/api/v1/labels", "", "Accept-Encoding", "gzip"), list(`"__name__"`, `"html"`, `"i"`))

	const many = 1 << 20
	r := w.do(http.MethodGet, "/api/v1/query?query=m", "", "Accept-Encoding", strings.Repeat(",", many))
	w.wantCode(r, http.StatusRequestHeaderFieldsTooLarge)
}

func TestCase_D28_HeadOptionsCORS(t *testing.T) {
	origin, err := ParseOrigin("https?://grafana\\.example(:[0-9]+)?")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{CORSOrigin: origin})
	for from, allowed := range map[string]string{
		"http://grafana.example": "http://grafana.example", "https://grafana.example:3000": "https://grafana.example:3000",
		"http://grafana.example.evil.org": "", "http://x": "", "null": "",
	} {
		for _, method := range []string{http.MethodOptions, http.MethodGet} {
			r := w.do(method, "/api/v1/query?query=1", "", "Origin", from)
			if r.code/100 != 2 || r.header.Get("Access-Control-Allow-Methods") != "GET, POST, OPTIONS" {
				t.Errorf("%s from %s: %d %v", method, from, r.code, r.header)
			}
			if got := r.header.Get("Access-Control-Allow-Origin"); got != allowed {
				t.Errorf("%s from %s: allowed %q, want %q", method, from, got, allowed)
			}
		}
	}
	off := newWorld(t, Options{})
	for _, r := range []reply{
		off.do(http.MethodGet, "/api/v1/query?query=1", "", "Origin", "http://x"), off.do(http.MethodOptions, "/api/v1/query", "", "Origin", "http://x"),
		off.get("/api/v1/nope"), off.get("/api/v1/labels"),
	} {
		for name := range r.header {
			if strings.HasPrefix(name, "Access-Control") {
				t.Errorf("T3: %s: %s", name, r.header.Get(name))
			}
		}
		if r.header.Values("Vary")[0] != "Origin" {
			t.Errorf("Vary %q", r.header.Values("Vary"))
		}
	}
	get, head := w.get("/api/v1/query?query=1"), w.do(http.MethodHead, "/api/v1/query?query=1", "")
	get.header.Del("Date")
	get.header.Del("Content-Length")
	head.header.Del("Date")
	head.header.Del("Content-Length")
	if head.code != 200 || head.body != "" || !cmp.Equal(get.header, head.header) {
		t.Errorf("HEAD %d %q: %s", head.code, head.body, cmp.Diff(get.header, head.header))
	}
	if o, err := ParseOrigin(""); o != nil || err != nil {
		t.Errorf("no pattern gave %v, %v", o, err)
	}
}

func TestMethods(t *testing.T) {
	w := newWorld(t, Options{})
	for _, tc := range []struct{ method, path, allow string }{
		{"PUT", "/api/v1/query", "GET, HEAD, POST, OPTIONS"},
		{"DELETE", "/api/v1/series", "GET, HEAD, POST, OPTIONS"},
		{"POST", "/api/v1/status/buildinfo", "GET, HEAD, OPTIONS"},
		{"POST", "/api/v1/materializations", "GET, HEAD, OPTIONS"},
		{"PATCH", "/api/v1/precompute/drain", "POST, OPTIONS"},
		{"GET", "/-/reload", "POST, PUT, OPTIONS"},
		{"POST", "/-/ready", "GET, HEAD, OPTIONS"},
		{"POST", "/metrics", "GET, HEAD, OPTIONS"},
		{"POST", "/", "GET, HEAD, OPTIONS"},
	} {
		r := w.do(tc.method, tc.path, "")
		if r.code != 405 || r.header.Get("Allow") != tc.allow {
			t.Errorf("%s %s: %d, Allow %q, want %q", tc.method, tc.path, r.code, r.header.Get("Allow"), tc.allow)
		}
		if strings.HasPrefix(tc.path, "/api/") {
			w.wantError(r, 405, "bad_data", "method not allowed")
		}
		if o := w.do(http.MethodOptions, tc.path, ""); o.code != 204 || o.header.Get("Allow") != tc.allow {
			t.Errorf("OPTIONS %s: %d, Allow %q", tc.path, o.code, o.header.Get("Allow"))
		}
	}
	w.wantCode(w.get("/nope"), 404)
	w.wantError(w.do(http.MethodPost, "/api/v1/nope", ""), 404, "not_found", "no such endpoint")
	w.wantError(w.get("/api/v1/"), 404, "not_found", "no such endpoint")
}

func TestOperations(t *testing.T) {
	reloads, fail := 0, error(nil)
	w := newWorld(t, Options{Reload: func(context.Context) error { reloads++; return fail }})
	w.want(w.get("/-/healthy"), "Tidemark is healthy.\n")
	w.want(w.get("/-/ready"), "Tidemark is ready.\n")
	w.ready.reasons, w.ready.progress = []string{"the log is poisoned"}, "replaying: 10 of 20 events"
	r := w.get("/-/ready")
	if want := "Tidemark is not ready:\n- replaying: 10 of 20 events\n- the log is poisoned\n"; r.code != 503 || r.body != want {
		t.Errorf("%d %q", r.code, r.body)
	}
	w.wantCode(w.do(http.MethodPost, "/-/reload", ""), 200)
	w.wantCode(w.do(http.MethodPut, "/-/reload", ""), 200)
	fail = errors.New("line 3: no such key")
	if r := w.do(http.MethodPost, "/-/reload", ""); r.code != 500 || r.body != "failed to reload config: line 3: no such key\n" || reloads != 3 {
		t.Errorf("%d %q after %d reloads", r.code, r.body, reloads)
	}
	w.wantCode(newWorld(t, Options{}).do(http.MethodPost, "/-/reload", ""), 403)

	front := w.get("/")
	if front.code != 200 || !strings.HasPrefix(front.header.Get("Content-Type"), "text/html") || !strings.Contains(front.body, "Tidemark") {
		t.Errorf("front page %d %v", front.code, front.header)
	}
	metrics := w.get("/metrics")
	if metrics.code != 200 || !strings.Contains(metrics.body, `tidemark_http_requests_total{code="503",handler="ready"} 1`) {
		t.Errorf("/metrics: %d %s", metrics.code, metrics.body)
	}
}

type materializations []api.Materialization

func (m materializations) Materializations(context.Context) ([]api.Materialization, error) {
	return m, nil
}

// logStatus is one that answers with itself.
type logStatus struct{ s api.LogStatus }

func (l logStatus) LogStatus(context.Context) (api.LogStatus, error) { return l.s, nil }

func TestLogStatus(t *testing.T) {
	w := newWorld(t, Options{LogStatus: logStatus{}})
	w.want(w.get("/api/v1/status/log"), `{"status":"success","data":{"as_of_ms":0,"ready":false,"reasons":[],`+
		`"log":{"head_seq":0,"floor_seq":0,"log_time_ms":0,"events_total":0,"samples_total":0,"series":0,"queue_length":0,"disk_bytes":0,"free_bytes":0,"min_free_bytes":0,"poisoned":false},`+
		`"rates":{"step_ms":0,"end_ms":0,"samples_per_second":[],"events_per_second":[]},"projections":[],`+
		`"views":{"disk_bytes":0,"pending_compactions":0,"compaction_consecutive_failures":0,"expiry_consecutive_failures":0,"pending_recorded_steps":0,"recording_consecutive_failures":0},`+
		`"truncation":{"retention_ms":0,"max_size_bytes":0,"kept_bytes":0,"base_seq":0,"truncations_total":0,"consecutive_failures":0,"holds":[]},`+
		`"barriers":{"experiment_label":"","recent":[]}}}`)
	mark, all := int64(5), "<b>"
	w = newWorld(t, Options{LogStatus: logStatus{api.LogStatus{Barriers: api.Barriers{Recent: []api.RecentBarrier{
		{Kind: "watermark", At: 9, TookMillis: 1.5, Mark: &mark, Experiment: &all, Seq: 3, Closed: 2, CompleteThrough: &mark}, {Kind: "drain", Error: "sealed"},
	}}}}})
	if r := w.get("/api/v1/status/log"); !strings.Contains(r.body, `"recent":[{"kind":"watermark","at_ms":9,"took_ms":1.5,"time_ms":5,"experiment":"\u003cb\u003e","seq":3,"closed_buckets":2,"complete_through_ms":5},`+
		`{"kind":"drain","at_ms":0,"took_ms":0,"closed_buckets":0,"error":"sealed"}]`) {
		t.Error(r.body)
	}
	w.wantError(newWorld(t, Options{}).get("/api/v1/status/log"), 404, "not_found", "no such endpoint")
}

func TestStatus(t *testing.T) {
	started := time.Date(2015, 7, 1, 20, 0, 0, 0, time.UTC)
	frontier := int64(60_000)
	w := newWorld(t, Options{
		Build: api.Build{Version: "1.2.3", Revision: "abc", Branch: "main", BuildUser: "u", BuildDate: "d", GoVersion: "go1.26"},
		Flags: map[string]string{"web.listen-address": ":9697"}, Config: func() string { return "a: <secret>\n" },
		Runtime: func() api.RuntimeState {
			return api.RuntimeState{Start: started, LastConfig: started, ReloadOK: true, Retention: "7d"}
		},
		Materializations: materializations{
			{
				Name: "p95", Expr: "m > 1", Layout: "panes", Every: "15s", State: "serving", Frontier: &frontier, OpenBuckets: 2, Pieces: 3,
				Bytes: 4, LagEvents: 5, Hits: 6, Misses: map[string]int64{"unpublished": 7},
			}, {Name: "new", State: "materializing"},
		},
	})
	w.want(w.get("/api/v1/status/buildinfo"), `{"status":"success","data":{"version":"1.2.3","revision":"abc","branch":"main","buildUser":"u","buildDate":"d","goVersion":"go1.26"}}`)
	w.want(w.get("/api/v1/status/flags"), `{"status":"success","data":{"web.listen-address":":9697"}}`)
	w.want(w.get("/api/v1/status/config"), `{"status":"success","data":{"yaml":"a: \u003csecret\u003e\n"}}`)
	w.want(w.get("/api/v1/materializations"), list(
		`{"name":"p95","expr":"m \u003e 1","layout":"panes","every":"15s","state":"serving","frontier_ms":60000,"open_buckets":2,"pieces":3,"bytes":4,"quantile_error":null,"lag_events":5,"hits":6,"misses":{"unpublished":7}}`,
		`{"name":"new","expr":"","layout":"","every":"","state":"materializing","frontier_ms":null,"open_buckets":0,"pieces":0,"bytes":0,"quantile_error":null,"lag_events":0,"hits":0,"misses":{}}`))
	var info struct {
		Data map[string]any
	}
	if err := json.Unmarshal([]byte(w.get("/api/v1/status/runtimeinfo").body), &info); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"startTime": "2015-07-01T20:00:00Z", "serverTime": "2015-07-01T20:11:00Z", "reloadConfigSuccess": true, "storageRetention": "7d"} {
		if info.Data[name] != want {
			t.Errorf("runtimeinfo.%s = %v, want %v", name, info.Data[name], want)
		}
	}
	if len(info.Data) != 13 {
		t.Errorf("runtimeinfo has %d members: %v", len(info.Data), info.Data)
	}
	// Without ldflags the version is whatever the Go command knows, and never empty.
	var build struct{ Data api.Build }
	if err := json.Unmarshal([]byte(newWorld(t, Options{}).get("/api/v1/status/buildinfo").body), &build); err != nil || build.Data.Version == "" || build.Data.GoVersion == "" {
		t.Errorf("buildinfo without ldflags: %+v, %v", build, err)
	}
}

func TestNewHandlerRefuses(t *testing.T) {
	if _, err := NewHandler(Deps{}, Options{}); err == nil || !strings.Contains(err.Error(), "Engine") {
		t.Errorf("without collaborators: %v", err)
	}
	if _, err := NewHandler(Deps{}, Options{RoutePrefix: "/{x}"}); err == nil || !strings.Contains(err.Error(), "prefix") {
		t.Errorf("prefix with a wildcard: %v", err)
	}
}

// TestT1_ReadDeadline holds that a body has its time to arrive, and that the time of the work is not counted in it.
func TestT1_ReadDeadline(t *testing.T) {
	read := make(chan error, 1)
	release := make(chan struct{})
	h := boundWrites(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
		if err != nil {
			return
		}
		select {
		case <-release:
			_, _ = io.WriteString(w, "done")
		case <-r.Context().Done():
			_, _ = io.WriteString(w, "canceled")
		}
	}), time.Minute)
	s := httptest.NewUnstartedServer(nil)
	s.Config = Server(h, DefaultTimeouts())
	s.Config.ReadTimeout = 50 * time.Millisecond
	s.Start()
	defer s.Close()
	dial := func(request string) net.Conn {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(c, request)
		return c
	}
	const head = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"
	slow := dial(head + "12")
	defer slow.Close()
	if err := <-read; err == nil || !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
		t.Errorf("half a body ended with %v", err)
	}
	whole := dial(head + "12345")
	defer whole.Close()
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	// Twice the body's time passes while the handler works.
	timer := time.NewTimer(100 * time.Millisecond)
	<-timer.C
	close(release)
	resp, err := http.ReadResponse(bufio.NewReader(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); string(b) != "done" {
		t.Errorf("a handler that outlasted the body's time was answered %q", b)
	}
}

// TestT1_WriteDeadline holds that a client that takes nothing is let go.
func TestT1_WriteDeadline(t *testing.T) {
	ended := make(chan error, 1)
	h := boundWrites(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 1<<20)
		for range 1000 {
			if _, err := w.Write(piece); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}), 50*time.Millisecond)
	s := httptest.NewUnstartedServer(nil)
	s.Config = Server(h, DefaultTimeouts())
	s.Start()
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := <-ended; err == nil {
		t.Error("a gigabyte went to a client that reads nothing")
	}
}
