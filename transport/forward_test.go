package transport

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tidemark/transport/upstream"
)

// heard is what an upstream saw of a request.
type heard struct{ Method, URI, Body, Authorization, Tenant string }

// exact starts an upstream and returns a client for it, whose URL holds a password, and what it heard.
func exact(t *testing.T, opts upstream.Options, answer http.HandlerFunc) (*upstream.Client, *[]heard) {
	t.Helper()
	var all []heard
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		all = append(all, heard{r.Method, r.RequestURI, string(b), r.Header.Get("Authorization"), r.Header.Get("X-Scope-OrgID")})
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	c, err := upstream.New(strings.Replace(s.URL, "http://", "http://reader:s3cret@", 1), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, &all
}

func say(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

const exactAnswer = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"from":"upstream"},"value":[1.0,"1"]}]}}`

func TestCase_D14_AllFourAreForwarded(t *testing.T) {
	c, heardAll := exact(t, upstream.Options{}, say(200, "application/json", exactAnswer))
	w := newWorld(t, Options{Upstream: c})
	q := []string{"query", "histogram_quantile(0.9, sum by (le)(rate(h_bucket[5m])))", "timeout", "10s", "time", "5", "x", "1"}
	rq := []string{"query", q[1], "timeout", "10s", "start", "0", "end", "60", "step", "15"}
	for _, tc := range []struct {
		path   string
		params []string
	}{{"/api/v1/query", q}, {"/api/v1/query_range", rq}} {
		for _, r := range []reply{w.get(tc.path, tc.params...), w.post(tc.path, tc.params...)} {
			w.want(r, exactAnswer)
			if r.header.Get("X-Tidemark-Route") != "upstream" || r.header.Get("X-Tidemark-Seq") != "" {
				t.Errorf("headers %v", r.header)
			}
		}
	}
	const basic = "Basic cmVhZGVyOnMzY3JldA=="
	want := []heard{
		{"GET", "/api/v1/query?" + values(q).Encode(), "", basic, ""}, {"POST", "/api/v1/query", values(q).Encode(), basic, ""},
		{"GET", "/api/v1/query_range?" + values(rq).Encode(), "", basic, ""}, {"POST", "/api/v1/query_range", values(rq).Encode(), basic, ""},
	}
	if d := cmp.Diff(want, *heardAll); d != "" {
		t.Error(d)
	}
}

func TestForwardingUnderARoutePrefix(t *testing.T) {
	c, heardAll := exact(t, upstream.Options{}, say(200, "application/json", exactAnswer))
	w := newWorld(t, Options{Upstream: c, RoutePrefix: "/tide/mark/"})
	w.want(w.do(http.MethodGet, "/tide/mark/api/v1/query?query=nope", "", "Authorization", "Bearer t0ken", "X-Scope-OrgID", "seven"), exactAnswer)
	if d := cmp.Diff([]heard{{"GET", "/api/v1/query?query=nope", "", "Bearer t0ken", "seven"}}, *heardAll); d != "" {
		t.Error(d)
	}
	w.wantCode(w.get("/api/v1/query?query=1"), 404)
	r := w.get("/")
	if r.code != 302 || r.header.Get("Location") != "/tide/mark/" {
		t.Errorf("/ gave %d, Location %q", r.code, r.header.Get("Location"))
	}
	// The page names what it needs relative to itself.
	front := w.get("/tide/mark/")
	if front.code != 200 || !strings.Contains(front.body, `src="ui/js/app.js"`) {
		t.Errorf("front page %d %s", front.code, front.body)
	}
	w.wantCode(w.get("/tide/mark/ui/js/app.js"), 200)
	w.wantCode(w.get("/tide/mark/-/healthy"), 200)
}

func TestForwardOnlyWhatMisses(t *testing.T) {
	c, heardAll := exact(t, upstream.Options{}, say(200, "application/json", exactAnswer))
	w := newWorld(t, Options{Upstream: c})
	w.wantCode(w.get("/api/v1/query", "query", "m"), 200)
	w.wantError(w.get("/api/v1/query", "query", "sum("), 400, "bad_data", "parse error")
	w.wantError(w.get("/api/v1/query", "query", "m", "timeout", "x"), 400, "bad_data", "timeout")
	if len(*heardAll) != 0 {
		t.Errorf("the upstream heard %v", *heardAll)
	}
	// Who asks for the exact source gets it, also for what panes could answer.
	for _, directive := range []string{"no-store", "no-cache, No-Store"} {
		w.want(w.do(http.MethodGet, "/api/v1/query?query=m", "", "Cache-Control", directive), exactAnswer)
	}
	w.wantCode(w.do(http.MethodGet, "/api/v1/query?query=m", "", "Cache-Control", "no-cache"), 200)
	if len(*heardAll) != 2 {
		t.Errorf("the upstream heard %v", *heardAll)
	}
	// Without an upstream the wish changes nothing: panes are exact.
	alone := newWorld(t, Options{})
	alone.wantCode(alone.do(http.MethodGet, "/api/v1/query?query=m", "", "Cache-Control", "no-store"), 200)
}

func TestCase_D20_UglyUpstreams(t *testing.T) {
	const html = "<html><body>502 Bad Gateway</body></html>"
	const execution = `{"status":"error","errorType":"execution","error":"<many>"}`
	const late = `{"status":"error","errorType":"timeout","error":"query timed out in query queue"}`
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed to another host") }))
	defer elsewhere.Close()
	for _, tc := range []struct {
		name      string
		answer    http.HandlerFunc
		code      int
		body      string // in full; else:
		errorType string
	}{
		{"502 HTML", say(502, "text/html", html), 502, "", "unavailable"},
		{"200 HTML", say(200, "text/html", html), 502, "", "unavailable"},
		{"truncated JSON", say(200, "application/json", exactAnswer[:60]), 502, "", "unavailable"},
		{"422", say(422, "application/json", execution), 422, execution, ""},
		{"503", say(503, "application/json", late), 503, late, ""},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, 502, "", "unavailable"},
		{"too large", say(200, "application/json", exactAnswer+strings.Repeat(" ", 3000)), 422, "", "execution"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := exact(t, upstream.Options{MaxResponseBytes: 2000}, tc.answer)
			w := newWorld(t, Options{Upstream: c})
			r := w.get("/api/v1/query", "query", "nope")
			if tc.body != "" {
				if r.code != tc.code || r.body != tc.body {
					t.Errorf("got %d %s", r.code, r.body)
				}
				return
			}
			w.wantError(r, tc.code, tc.errorType, "upstream "+c.Name())
			if strings.Contains(r.body, "s3cret") || !strings.Contains(r.body, "no_materialization") {
				t.Errorf("message %s", r.body)
			}
		})
	}
	t.Run("refuses connections", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		c, err := upstream.New((&url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("u", "s3cret")}).String(), upstream.Options{MaxFailures: 1, OpenFor: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, Options{Upstream: c})
		w.wantError(w.get("/api/v1/query", "query", "nope"), 502, "unavailable", "refused")
		r := w.get("/api/v1/query", "query", "nope")
		w.wantError(r, 503, "unavailable", "not asked after 1 failures in a row; the last was: ")
		if r.header.Get("Retry-After") != "3600" {
			t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
		}
	})
	t.Run("hangs", func(t *testing.T) {
		c, _ := exact(t, upstream.Options{}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		w := newWorld(t, Options{Upstream: c})
		began := time.Now()
		w.wantError(w.get("/api/v1/query", "query", "nope", "timeout", "50ms"), 503, "timeout", "upstream")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
	t.Run("gzip", func(t *testing.T) {
		c, _ := exact(t, upstream.Options{}, func(w http.ResponseWriter, r *http.Request) {
			// A gateway that compresses for whoever takes it.
			newCompressor().wrap(say(200, "application/json", exactAnswer)).ServeHTTP(w, r)
		})
		w := newWorld(t, Options{Upstream: c})
		for _, accept := range []string{"gzip", "identity"} {
			r := w.do(http.MethodGet, "/api/v1/query?query=nope", "", "Accept-Encoding", accept)
			w.want(r, exactAnswer)
			if zipped := r.header.Get("Content-Encoding") == "gzip"; zipped != (accept == "gzip") {
				t.Errorf("Accept-Encoding %s was answered with %v", accept, r.header)
			}
			if got := r.header.Values("Vary"); !cmp.Equal(got, []string{"Origin", "Accept-Encoding"}) {
				t.Errorf("Vary %q", got)
			}
		}
	})
}
