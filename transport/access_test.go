package transport

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/storage"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections/query"
	"tidemark/transport/api"
)

// by lets the user of basic authentication do what was listed for them. In this package nobody checks the password.
type by map[string][]Permission

func (b by) Allows(r *http.Request, p Permission) bool {
	name, _, _ := r.BasicAuth()
	return slices.Contains(b[name], p)
}

// nothing explains nothing.
type nothing struct{}

func (nothing) ExplainInstant(context.Context, query.InstantParams) ([]query.Part, error) {
	return nil, nil
}
func (nothing) ExplainRange(context.Context, query.RangeParams) ([]query.Part, error) {
	return nil, nil
}

// idle decides nothing.
type idle struct{}

func (idle) Cooldowns() []master.Cooldown { return nil }
func (idle) Pause()                       {}
func (idle) Resume()                      {}

// noSamples is an exact copy that holds nothing.
type noSamples struct{}

func (noSamples) Wait(context.Context, bool) (log.Seq, error)   { return 0, nil }
func (noSamples) Oldest() int64                                 { return math.MinInt64 }
func (noSamples) Querier(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }
func (noSamples) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return storage.NoopChunkedQuerier(), nil
}

// routesFile lists every route with what each of its methods asks for. A new route is a new line, which somebody has thought about.
const routesFile = "testdata/routes.txt"

func everything(t *testing.T, access Access) (*world, []string) {
	t.Helper()
	opts := Options{Access: access, Experiments: &api.Experiments{}, Tasks: &api.Tasks{Scheduler: idle{}}, LogStatus: logStatus{}, Explain: nothing{}}
	opts.Copy, opts.Read = noSamples{}, noSamples{}
	w := newWorld(t, opts)
	var lines []string
	for _, r := range w.handler.Routes() {
		for method, p := range r.Methods {
			lines = append(lines, fmt.Sprintf("%s %s %v", r.Pattern, method, p))
		}
	}
	slices.Sort(lines)
	return w, lines
}

func TestT6_EveryRouteAsksForSomething(t *testing.T) {
	_, got := everything(t, nil)
	want, err := os.ReadFile(routesFile)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(got, "\n") + "\n"; text != string(want) {
		t.Errorf("%s is not what is mounted:\n%s", routesFile, text)
	}
	defer func() {
		if recover() == nil {
			t.Error("a route that asks for nothing was mounted")
		}
	}()
	(&mount{}).add("/x", "x", gets(0), plain, http.NotFoundHandler())
}

// T6: without its permission nothing of a route answers, whatever the method; with it the route does.
func TestT6_Guard(t *testing.T) {
	w, lines := everything(t, by{"reader": {Read}, "writer": {Write}, "admin": {Administer}})
	w.source.before = nil
	for _, line := range lines {
		var pattern, method, asks string
		if _, err := fmt.Sscan(line, &pattern, &method, &asks); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(pattern, "experiments") || strings.Contains(pattern, "tasks") || strings.Contains(pattern, "scheduler") ||
			strings.Contains(pattern, "stats/") || strings.Contains(pattern, "rescan") || strings.Contains(pattern, "profile") || strings.Contains(pattern, "trace") {
			asks = "skip " + asks // what is behind them is not there, or takes seconds
		}
		for user, may := range map[string]string{"reader": "read", "writer": "write", "admin": "admin", "stranger": "", "": ""} {
			if strings.HasPrefix(asks, "skip ") && strings.TrimPrefix(asks, "skip ") == may {
				continue
			}
			req, err := http.NewRequestWithContext(t.Context(), method, w.url+path(pattern), nil)
			if err != nil {
				t.Fatal(err)
			}
			if user != "" {
				req.SetBasicAuth(user, "any")
			}
			res, err := w.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			allowed := asks == "anyone" || asks == may && may != ""
			if pattern == "/-/reload" && allowed {
				continue // 403 is also what it says when it is not enabled
			}
			if (res.StatusCode == http.StatusForbidden) == allowed {
				t.Errorf("%s %s asks for %s: %q gets %d", method, pattern, asks, user, res.StatusCode)
			}
		}
	}
	if w.barrier.drains != 1 || len(w.barrier.marks) != 0 {
		t.Errorf("%d drains and %d marks came through", w.barrier.drains, len(w.barrier.marks))
	}
}

// path makes a path of a pattern.
func path(pattern string) string {
	return strings.NewReplacer("{$}", "", "{file...}", "app.js", "{name}", "x", "{id}", "x").Replace(pattern)
}
