package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

// golden returns the bodies that the JSON codec of Prometheus 3.16 (web/api/v1 of v0.316.0) wrote for goldenValues and for a
// few other responses: a line with the name, a line with the body.
func golden(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("testdata/prometheus-3.16.golden")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(lines)%2 != 0 {
		t.Fatalf("golden file of %d lines: want pairs", len(lines))
	}
	out := map[string]string{}
	for i := 0; i < len(lines); i += 2 {
		out[lines[i]] = lines[i+1]
	}
	return out
}

// chunks takes writes and remembers how large they were.
type chunks struct {
	bytes.Buffer
	largest int
}

func (c *chunks) Write(p []byte) (int, error) {
	c.largest = max(c.largest, len(p))
	return c.Buffer.Write(p)
}

func TestEncoderWritesWhatPrometheusWrites(t *testing.T) {
	want := golden(t)
	for _, g := range goldenValues() {
		t.Run(g.name, func(t *testing.T) {
			a := &answer{value: g.value, warnings: g.warnings, infos: g.infos}
			if err := a.check(); err != nil {
				t.Fatal(err)
			}
			var w chunks
			(&encoder{w: &w}).encode(a)
			if got := w.String(); got != want[g.name] {
				t.Errorf("got\n%s\nwant\n%s", got, want[g.name])
			}
			if !json.Valid(w.Bytes()) && !strings.Contains(g.name, "\xff") {
				t.Errorf("not JSON: %s", w.String())
			}
		})
	}
}

func TestEnvelopesAndListsAreWhatPrometheusWrites(t *testing.T) {
	want := golden(t)
	series := []labels.Labels{labels.FromStrings("__name__", "m", "a", "<&>\n"), labels.EmptyLabels()}
	got := map[string]func(w *httptest.ResponseRecorder){
		"error": func(w *httptest.ResponseRecorder) {
			WriteError(w, &Error{Type: TypeBadData, Err: errors.New("invalid parameter \"query\": 1:5: parse error: <unclosed> & left\n\u2028\xff\x01")})
		},
		"list of names":     func(w *httptest.ResponseRecorder) { writeTexts(w, []string{"a", "<b>&\"\n", "\u2028\xff"}, 9, nil) },
		"list of none":      func(w *httptest.ResponseRecorder) { writeTexts(w, nil, 9, nil) },
		"list cut":          func(w *httptest.ResponseRecorder) { writeTexts(w, []string{"a", "b"}, 1, nil) },
		"list of series":    func(w *httptest.ResponseRecorder) { writeSeries(w, series, 9, nil) },
		"list of no series": func(w *httptest.ResponseRecorder) { writeSeries(w, nil, 9, nil) },
	}
	for name, f := range got {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			f(w)
			if w.Body.String() != want[name] {
				t.Errorf("got\n%s\nwant\n%s", w.Body, want[name])
			}
			if ct := w.Header().Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type %q", ct)
			}
		})
	}
}
