package ui

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// serve asks for a file below the page, or for the page itself with "".
func serve(t *testing.T, name string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	u, err := New()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", u.Page)
	mux.HandleFunc("GET /ui/{file...}", u.File)
	r := httptest.NewRequest(http.MethodGet, "/"+name, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w
}

// assets returns the embedded files with their content.
func assets(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := embedded.ReadFile(name)
		out[strings.TrimPrefix(name, "assets/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestU1_EveryFileCarriesThePolicy(t *testing.T) {
	files := 0
	for name := range assets(t) {
		target := "ui/" + name
		switch {
		case name == page:
			target = ""
		case types[path.Ext(name)] == "":
			if r := serve(t, target); r.Code != http.StatusNotFound {
				t.Errorf("%s: status %d, and its kind is not one that is served", name, r.Code)
			}
			continue
		}
		files++
		h := serve(t, target).Header()
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy lacks %q: %s", name, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || strings.Contains(csp, "http") {
			t.Errorf("%s: the policy lets in too much: %s", name, csp)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Content-Type": types[path.Ext(name)]} {
			if h.Get(header) != want {
				t.Errorf("%s: %s is %q, want %q", name, header, h.Get(header), want)
			}
		}
	}
	if files < 20 {
		t.Errorf("only %d files were looked at", files)
	}
}

// What the policy would stop in a browser is not in the files, and nothing in them turns text into markup or code.
func TestU1_NothingInlineNothingForeign(t *testing.T) {
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function|javascript:`)
	away := regexp.MustCompile(`(?:src|href|from|import|url)\s*[=(]?\s*["'(]?\s*(?:https?:)?//`)
	inline := regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=["']|\sstyle=["']`)
	for name, text := range assets(t) {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		for what, re := range map[string]*regexp.Regexp{"markup or code from text": forbidden, "another server": away, "inline code or style": inline} {
			if found := re.FindString(text); found != "" {
				t.Errorf("%s: %s: %q", name, what, found)
			}
		}
	}
}

// Every file that the page or a module names is there, at an address relative to the one who names it.
func TestEveryNamedFileIsThere(t *testing.T) {
	all := assets(t)
	named := regexp.MustCompile(`(?m)(?:^|[}\s])(?:import|from)\s*['"]([^'"]+)['"]`)
	seen := 0
	for name, text := range all {
		if path.Ext(name) != ".js" {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "./") && !strings.HasPrefix(m[1], "../") {
				t.Errorf("%s names %s, which is not relative", name, m[1])
			}
			if to := path.Join(path.Dir(name), m[1]); all[to] == "" {
				t.Errorf("%s names %s, which is not there", name, to)
			}
			seen++
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="(ui/[^"]+)"`).FindAllStringSubmatch(all[page], -1) {
		if r := serve(t, m[1]); r.Code != http.StatusOK {
			t.Errorf("the page names %s: status %d", m[1], r.Code)
		}
		seen++
	}
	if seen < 40 {
		t.Errorf("only %d names were found", seen)
	}
}

func TestU3_UnchangedFilesAreNotSentAgain(t *testing.T) {
	first := serve(t, "ui/js/app.js")
	etag := first.Header().Get("ETag")
	if first.Code != http.StatusOK || etag == "" || first.Header().Get("Cache-Control") != "no-cache" || first.Body.Len() == 0 {
		t.Fatalf("%d %v", first.Code, first.Header())
	}
	if r := serve(t, "ui/js/app.js", "If-None-Match", `"other", `+etag); r.Code != http.StatusNotModified || r.Body.Len() != 0 {
		t.Errorf("unchanged: status %d with %d bytes", r.Code, r.Body.Len())
	}
	if r := serve(t, "ui/js/app.js", "If-None-Match", `W/"0"`); r.Code != http.StatusOK {
		t.Errorf("changed: status %d", r.Code)
	}
}

func TestWhatIsNotAFile(t *testing.T) {
	for _, name := range []string{"ui/nope.js", "ui/index.html", "ui/js", "ui/js/", "ui/vendor/LICENSE.preact"} {
		if r := serve(t, name); r.Code != http.StatusNotFound {
			t.Errorf("%s: status %d", name, r.Code)
		}
	}
	if r := serve(t, "ui/"); r.Code != http.StatusFound || r.Header().Get("Location") != "../" {
		t.Errorf("ui/: status %d, Location %q", r.Code, r.Header().Get("Location"))
	}
}
