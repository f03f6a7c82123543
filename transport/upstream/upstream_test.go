package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const success = `{"status":"success","data":{"resultType":"vector","result":[]}}`

// serve starts an upstream and returns a client for it, whose URL holds a user and a password.
func serve(t *testing.T, h http.HandlerFunc, opts Options) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return client(t, strings.Replace(s.URL, "http://", "http://reader:s3cret@", 1), opts)
}

func client(t *testing.T, rawURL string, opts Options) *Client {
	t.Helper()
	c, err := New(rawURL, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func get(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }

// failure forwards a request that must fail, and checks that the message names the upstream and none of its secrets (U2).
func failure(t *testing.T, c *Client, r *http.Request, want Kind) *Error {
	t.Helper()
	ans, err := c.Forward(r.Context(), r, nil)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got answer %v and error %v, want an *Error", ans, err)
	}
	if e.Kind != want {
		t.Errorf("kind %v, want %v: %v", e.Kind, want, e)
	}
	for _, secret := range []string{"s3cret", "reader", "Bearer", "t0ken", "tenant-7"} {
		if strings.Contains(e.Error(), secret) {
			t.Errorf("U2: %q stands in %q", secret, e)
		}
	}
	if !strings.Contains(e.Error(), c.Name()) {
		t.Errorf("the upstream is not named in %q", e)
	}
	return e
}

func secretive(r *http.Request) *http.Request {
	r.Header.Set("Authorization", "Bearer t0ken")
	r.Header.Set("X-Scope-OrgID", "tenant-7")
	return r
}

func TestForwardKeepsTheRequest(t *testing.T) {
	type seen struct{ Method, URI, Body, Auth, Tenant, Type, Cache, Encoding, Cookie string }
	var got seen
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = seen{
			r.Method, r.RequestURI, string(b), r.Header.Get("Authorization"), r.Header.Get("X-Scope-OrgID"),
			r.Header.Get("Content-Type"), r.Header.Get("Cache-Control"), r.Header.Get("Accept-Encoding"), r.Header.Get("Cookie"),
		}
		_, _ = io.WriteString(w, success)
	}, Options{})

	r := secretive(get("/api/v1/query?query=up%7Bi%3D~%22a%2Bb%22%7D&time=1.5&x=%20+"))
	r.Header.Set("Cache-Control", "no-store")
	r.Header.Set("Cookie", "session=1")
	r.Header.Set("Accept-Encoding", "br, gzip;q=0.5")
	if _, err := c.Forward(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	want := seen{
		Method: "GET", URI: "/api/v1/query?query=up%7Bi%3D~%22a%2Bb%22%7D&time=1.5&x=%20+", Auth: "Bearer t0ken", Tenant: "tenant-7",
		Cache: "no-store", Encoding: "gzip",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	body := "query=" + url.QueryEscape(strings.Repeat("a", 70_000)) + "&step=15"
	r = httptest.NewRequest(http.MethodPost, "/api/v1/query_range?start=1&end=2", nil)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if _, err := c.Forward(t.Context(), r, []byte(body)); err != nil {
		t.Fatal(err)
	}
	want = seen{
		Method: "POST", URI: "/api/v1/query_range?start=1&end=2", Body: body, Type: "application/x-www-form-urlencoded",
		Auth: "Basic cmVhZGVyOnMzY3JldA==", Encoding: "identity",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestForwardUnderAPathPrefix(t *testing.T) {
	var uri string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.RequestURI
		_, _ = io.WriteString(w, success)
	}))
	defer s.Close()
	for base, want := range map[string]string{
		"/prometheus/": "/prometheus/api/v1/label/a%2Fb/values?limit=1",
		"/a%2Fb":       "/a%2Fb/api/v1/label/a%2Fb/values?limit=1",
		"":             "/api/v1/label/a%2Fb/values?limit=1",
	} {
		c := client(t, s.URL+base, Options{})
		if _, err := c.Forward(t.Context(), get("/api/v1/label/a%2Fb/values?limit=1"), nil); err != nil {
			t.Fatal(err)
		}
		if uri != want {
			t.Errorf("base %q: upstream saw %q, want %q", base, uri, want)
		}
	}
}

func zipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.Bytes()
}

// TestU1_AnswersPassUnchanged holds that any envelope passes byte for byte, with its status.
func TestU1_AnswersPassUnchanged(t *testing.T) {
	odd := ` {"data": [1,2 ],` + "\n" + `"status" : "success"} `
	for _, tc := range []struct {
		name, body, encoding, accept string
		status                       int
		want                         Answer
	}{
		{name: "success", status: 200, body: success, want: Answer{Status: 200, Body: []byte(success)}},
		{name: "blanks and order", status: 200, body: odd, want: Answer{Status: 200, Body: []byte(odd)}},
		{
			name: "422", status: 422, body: `{"status":"error","errorType":"execution","error":"<x>"}`,
			want: Answer{Status: 422, Body: []byte(`{"status":"error","errorType":"execution","error":"<x>"}`)},
		},
		{
			name: "503", status: 503, body: `{"status":"error","errorType":"timeout","error":"late"}`,
			want: Answer{Status: 503, Body: []byte(`{"status":"error","errorType":"timeout","error":"late"}`)},
		},
		{
			name: "gzip asked for", status: 200, body: string(zipped(success)), encoding: "gzip", accept: "gzip",
			want: Answer{Status: 200, Encoding: "gzip", Body: zipped(success)},
		},
		{
			name: "gzip not asked for", status: 200, body: string(zipped(success)), encoding: "gzip",
			want: Answer{Status: 200, Body: []byte(success)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json; charset=utf-8")
				if tc.encoding != "" {
					w.Header().Set("Content-Encoding", tc.encoding)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			}, Options{})
			r := get("/api/v1/query?query=up")
			if tc.accept != "" {
				r.Header.Set("Accept-Encoding", tc.accept)
			}
			got, err := c.Forward(t.Context(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != tc.want.Status || got.Encoding != tc.want.Encoding || !bytes.Equal(got.Body, tc.want.Body) {
				t.Errorf("got %d %q %q", got.Status, got.Encoding, got.Body)
			}
		})
	}
}

// TestU1_UglyAnswers holds that nothing but a complete envelope passes.
func TestU1_UglyAnswers(t *testing.T) {
	page := "<html><body><h1>502 Bad Gateway</h1></body></html>"
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		kind   Kind
		says   string
	}{
		{"502 HTML", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(502)
			_, _ = io.WriteString(w, page)
		}, KindBadAnswer, "answered 502 Bad Gateway without a Prometheus result (text/html)"},
		{"200 HTML", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, page)
		}, KindBadAnswer, "answered 200 OK without"},
		{"truncated JSON", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, success[:len(success)-3])
		}, KindBadAnswer, "not complete JSON"},
		{"nothing", func(http.ResponseWriter, *http.Request) {}, KindBadAnswer, "not complete JSON"},
		{"other JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `[1]`) }, KindBadAnswer, "not an object"},
		{"no status", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) }, KindBadAnswer, "status is neither"},
		{"two objects", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, success+success) }, KindBadAnswer, "not complete JSON"},
		{"Content-Length beyond the body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, success)
		}, KindUnreachable, "broke off"},
		{"broken gzip", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped(success)[:20])
		}, KindBadAnswer, "broken gzip"},
		{"an encoding that nobody asked for", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "x")
		}, KindBadAnswer, "not asked for"},
		{"aborted", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, KindUnreachable, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := failure(t, serve(t, tc.answer, Options{}), secretive(get("/api/v1/query?query=up")), tc.kind)
			if !strings.Contains(e.Error(), tc.says) {
				t.Errorf("%q does not say %q", e, tc.says)
			}
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	failure(t, client(t, "http://reader:s3cret@"+addr, Options{}), secretive(get("/api/v1/query")), KindUnreachable)
}

// TestU4_RedirectsAreNotFollowed holds that no other host ever sees the request, and above all not its credentials.
func TestU4_RedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("U4: the other host was asked with %v", r.Header)
	}))
	defer other.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.RequestURI, code) }, Options{})
		e := failure(t, c, secretive(get("/api/v1/query?query=up")), KindBadAnswer)
		if !strings.Contains(e.Error(), "redirect") {
			t.Errorf("%d: %v", code, e)
		}
	}
}

// TestU3_ResponsesAreBounded holds the bound for what comes and for what it unpacks to.
func TestU3_ResponsesAreBounded(t *testing.T) {
	const bound = 1000
	pad := func(n int) string {
		return success[:len(success)-1] + `,"x":"` + strings.Repeat("a", n-len(success)-7) + `"}`
	}
	for _, tc := range []struct {
		name, body string
		zip, fits  bool
	}{
		{"at the bound", pad(bound), false, true},
		{"above", pad(bound + 1), false, false},
		{"unpacked at the bound", pad(bound), true, true},
		{"unpacked above", pad(bound + 1), true, false},
		{"a bomb", pad(10_000_000), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if tc.zip {
					w.Header().Set("Content-Encoding", "gzip")
					_, _ = w.Write(zipped(tc.body))
					return
				}
				_, _ = io.WriteString(w, tc.body)
			}, Options{MaxResponseBytes: bound})
			r := get("/api/v1/query")
			if !tc.fits {
				// The bomb's 10 kB of gzip are over the bound as they come, so its bound is on arrival.
				failure(t, c, r, KindTooLarge)
				return
			}
			ans, err := c.Forward(t.Context(), r, nil)
			if err != nil || string(ans.Body) != tc.body {
				t.Errorf("got %v, %v", ans, err)
			}
		})
	}
}

// TestHangEndsInTime: whichever bound is shorter ends a request; only the client's own is a failure of the upstream.
func TestHangEndsInTime(t *testing.T) {
	release := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}, Options{Timeout: 40 * time.Millisecond, MaxFailures: 1, OpenFor: time.Hour})
	defer close(release)

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	failure(t, c, get("/api/v1/query").WithContext(ctx), KindTimeout)

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	failure(t, c, get("/api/v1/query").WithContext(ctx), KindCanceled)

	failure(t, c, get("/api/v1/query"), KindTimeout) // still asked: U5 did not count the two above
	failure(t, c, get("/api/v1/query"), KindOpen)
}

// TestU5_Breaker walks the breaker round: closed, open with the reason, one trial, closed.
func TestU5_Breaker(t *testing.T) {
	healthy, asked := false, 0
	reg := prometheus.NewRegistry()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		if !healthy {
			w.WriteHeader(502)
			_, _ = io.WriteString(w, "no")
			return
		}
		w.WriteHeader(422) // an answer, whatever it says
		_, _ = io.WriteString(w, `{"status":"error","errorType":"execution","error":"e"}`)
	}, Options{MaxFailures: 3, OpenFor: 50 * time.Millisecond, Registerer: reg})
	r := get("/api/v1/query")
	for range 3 {
		failure(t, c, r, KindBadAnswer)
	}
	e := failure(t, c, r, KindOpen)
	if asked != 3 {
		t.Errorf("U5: asked %d times, want 3", asked)
	}
	if !strings.Contains(e.Error(), "502 Bad Gateway") || e.RetryAfter != 50*time.Millisecond {
		t.Errorf("the reason is missing in %q, or Retry-After in %v", e, e.RetryAfter)
	}
	if v := testutil.ToFloat64(c.metrics.circuit); v != 1 {
		t.Errorf("circuit gauge %v while open", v)
	}
	healthy = true
	// The breaker's clock is the real one: poll until it lets a trial through.
	for deadline := time.Now().Add(5 * time.Second); ; {
		ans, err := c.Forward(t.Context(), r, nil)
		if err == nil {
			if ans.Status != 422 {
				t.Errorf("status %d", ans.Status)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	want := `
# HELP tidemark_upstream_requests_total Query requests for the upstream, by outcome.
# TYPE tidemark_upstream_requests_total counter
`
	n := testutil.ToFloat64(c.metrics.requests.WithLabelValues("circuit_open"))
	want += fmt.Sprintf("tidemark_upstream_requests_total{outcome=\"answered\"} 1\ntidemark_upstream_requests_total{outcome=\"bad_answer\"} 3\ntidemark_upstream_requests_total{outcome=\"circuit_open\"} %v\n", n)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "tidemark_upstream_requests_total"); err != nil {
		t.Error(err)
	}
	if v := testutil.ToFloat64(c.metrics.circuit); v != 0 || n < 1 {
		t.Errorf("circuit gauge %v after recovery, %v requests refused meanwhile", v, n)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, raw := range []string{"", "prometheus:9090", "ftp://h", "http://", "/path", "http://h/?q=1", "http://h/#f", "http://u:s3cret@h:port/"} {
		_, err := New(raw, Options{})
		if err == nil {
			t.Errorf("%q was accepted", raw)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("U2: %v", err)
		}
	}
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.001": true, "identity": false,
		"br, deflate, gzip;q=0.5": true, "*": true, "*;q=0": false, "*;q=1, gzip;q=0": false, "gzip, *;q=0": true, "x-gzip": true,
		"gzipped": false, "gzip;level=9;q=0": false, ",,,": false,
	} {
		h := http.Header{}
		if header != "" {
			h.Set("Accept-Encoding", header)
		}
		if got := AcceptsGzip(h); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
	h := http.Header{"Accept-Encoding": {strings.Repeat(",", 1<<20)}}
	if n := testing.AllocsPerRun(1, func() { AcceptsGzip(h) }); n != 0 {
		t.Errorf("a header full of commas costs %v allocations", n)
	}
}

// FuzzAnswer: whatever bytes an upstream sends, in gzip or plain, what passes is a complete envelope (U1, U3).
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{success, success[:9], "<html>", "", `{"status":"error"}`, `{"status":1}`, string(zipped(success)), string(zipped(success)[:15])} {
		f.Add([]byte(s), "")
		f.Add([]byte(s), "gzip")
	}
	f.Add([]byte(success), "br")
	c, err := New("http://127.0.0.1:1", Options{MaxResponseBytes: 1 << 16})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		resp := &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Encoding": {encoding}}, Body: io.NopCloser(bytes.NewReader(body)),
			Request: get("/api/v1/query"),
		}
		for _, welcome := range []bool{true, false} {
			resp.Body = io.NopCloser(bytes.NewReader(body))
			ans, err := c.read(t.Context(), resp, welcome)
			if err != nil {
				continue
			}
			plain := ans.Body
			if ans.Encoding == "gzip" {
				if plain, err = gunzip(ans.Body, 1<<16); err != nil {
					t.Fatalf("U1: passed broken gzip: %v", err)
				}
			}
			if err := checkEnvelope(plain); err != nil {
				t.Fatalf("U1: passed %q: %v", plain, err)
			}
		}
	})
}
