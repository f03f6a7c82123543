package transport

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// acting are the routes that change something.
var acting = []string{"/api/v1/precompute/watermark?time_ms=0", "/api/v1/precompute/drain", "/-/reload", "/api/v1/write"}

func TestCase_E24_OnlyPostsOfThisOriginAct(t *testing.T) {
	cors, err := ParseOrigin(".*")
	if err != nil {
		t.Fatal(err)
	}
	reloads := 0
	w := newWorld(t, Options{Reload: func(context.Context) error { reloads++; return nil }, CORSOrigin: cors})
	here := w.url
	for _, path := range acting {
		for _, tc := range []struct {
			method string
			header []string
			code   int
		}{
			{http.MethodPost, nil, 200}, // a program
			{http.MethodPost, []string{"Origin", here}, 200},
			{http.MethodPost, []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://proxied.example"}, 200},
			{http.MethodPost, []string{"Origin", "http://evil.example"}, 403}, // also where it is invited to read
			{http.MethodPost, []string{"Origin", "null"}, 403},
			{http.MethodPost, []string{"Sec-Fetch-Site", "cross-site", "Origin", here}, 403},
			{http.MethodPost, []string{"Sec-Fetch-Site", "same-site"}, 403},
		} {
			r := w.do(tc.method, path, "", tc.header...)
			if got := r.code; got != tc.code && !(tc.code == 200 && got == 204) {
				t.Errorf("%s %s with %q: %d %s", tc.method, path, tc.header, got, r.body)
			}
			if tc.code == 403 && !strings.HasPrefix(r.body, `{"status":"error","errorType":"bad_data","error":"a page of another origin`) {
				t.Errorf("%s %s with %q: %s", tc.method, path, tc.header, r.body)
			}
		}
	}
	if len(w.barrier.marks) != 3 || w.barrier.drains != 3 || reloads != 3 {
		t.Errorf("%d marks, %d drains, %d reloads; each should have been made three times", len(w.barrier.marks), w.barrier.drains, reloads)
	}
}

func TestCase_E24_ReadingChangesNothing(t *testing.T) {
	reloads := 0
	w := newWorld(t, Options{Reload: func(context.Context) error { reloads++; return nil }})
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		for _, path := range acting[:3] {
			w.wantCode(w.do(method, path, ""), http.StatusMethodNotAllowed)
		}
		for _, path := range []string{"/", "/ui/js/app.js", "/api/v1/query?query=1", "/api/v1/materializations"} {
			w.wantCode(w.do(method, path, "", "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"), 200)
		}
	}
	// Reading may come by POST, from anywhere: it is the browser that keeps the answer from a page that is not invited.
	w.wantCode(w.do(http.MethodPost, "/api/v1/query?query=1", "", "Origin", "http://evil.example"), 200)
	if len(w.barrier.marks)+w.barrier.drains+reloads != 0 {
		t.Error("something was done")
	}
}

// A proxy may give the service another name; --web.external-url says which.
func TestExternalURLIsOfThisOrigin(t *testing.T) {
	outside, err := url.Parse("https://metrics.example/tide/")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{ExternalURL: outside, RoutePrefix: outside.Path})
	var got []int
	for _, origin := range []string{"https://metrics.example", "http://metrics.example", "https://other.example"} {
		got = append(got, w.do(http.MethodPost, "/tide/api/v1/precompute/drain", "", "Origin", origin).code)
	}
	if d := cmp.Diff([]int{200, 403, 403}, got); d != "" {
		t.Error(d)
	}
}
