package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// hostile are names that become markup, code or a template where somebody forgets that they are text.
var hostile = []string{
	`<img src=x onerror=alert(1)>`, `"><svg onload=alert(1)>`, `' autofocus onfocus=alert(1) x='`, `javascript:alert(1)`,
	`</script><script>alert(1)</script>`, `{{7*7}}`,
}

const browserConfig = `
exact: {local: false}
materializations:
  - {name: loss, expr: 'avg by (experiment) (avg_over_time(training_loss[1m]))', every: 15s}
  - {name: steps, expr: 'sum by (experiment) (rate(training_steps_total[1m]))', every: 15s}
`

// walk is a browser in front of a service with data in it.
type walk struct {
	*browser
	s       *site
	process *process
	// edge is the newest edge of the grid, in ms; data reach a little beyond it.
	edge int64
}

// startWalk starts the service below a prefix, writes ten minutes of a few experiments, some with names that are hard to show,
// and opens a browser.
func startWalk(t *testing.T) *walk {
	t.Helper()
	requireChromium(t)
	s := newSite(t, browserConfig, "--web.route-prefix=/tide")
	s.prefix = "/tide"
	process := s.serveReady()
	const grid = 15_000
	w := &walk{s: s, process: process, edge: time.Now().UnixMilli()/grid*grid - grid}
	names := append([]string{"baseline", "wide"}, hostile...)
	var series []remotewrite.Series
	for i, name := range names {
		loss := remotewrite.Series{Labels: labels.FromStrings("__name__", "training_loss", "experiment", name, "task", "<b>0</b>")}
		steps := remotewrite.Series{Labels: labels.FromStrings("__name__", "training_steps_total", "experiment", name, "task", "0")}
		for at, n := w.edge-600_000, 0; at <= w.edge+1000; at, n = at+5_000, n+1 {
			loss.Samples = append(loss.Samples, remotewrite.Sample{Time: at, Value: float64(i+1) + 100/float64(n+20)})
			steps.Samples = append(steps.Samples, remotewrite.Sample{Time: at, Value: float64(n * (i + 1))})
		}
		series = append(series, loss, steps)
	}
	c := remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}
	if err := c.Write(t.Context(), series); err != nil {
		t.Fatal(err)
	}
	w.browser = openBrowser(t, s.url()+"/")
	return w
}

// The web interface works in a real browser, below a prefix: its screens are walked, names stay text, nothing is stopped by
// the policy, and no error is left on the console.
func TestCase_E16_E24_InTheBrowser(t *testing.T) {
	w := startWalk(t)
	for _, step := range []struct {
		name string
		walk func(*testing.T)
	}{
		{"query", w.query}, {"completion", w.completion}, {"log", w.log}, {"names", w.names}, {"theme and keys", w.frame}, {"no server", w.unreachable},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			w.t, w.s.t = t, t
			step.walk(t)
			w.quiet()
		}) {
			return
		}
	}
}

// query starts from the list of what could be asked, gets an answer with its route, changes it, and comes back by the
// browser's own button; an address alone gives the same screen.
func (w *walk) query(t *testing.T) {
	w.open("#/query")
	w.says("Ask one of the materializations", "loss", "every 15s")
	w.shots("query-start")
	w.press("main", "loss")
	w.says("WARM", "from published panes", "is still open; the answer ends there")
	w.until("a graph is drawn", `document.querySelector('.chart canvas')`)
	w.shots("query-graph")
	w.press(".query-controls", "Table")
	w.until("a table is shown", `document.querySelectorAll('table.result tbody tr').length === `+fmt.Sprint(2+len(hostile)))
	w.shots("query-table")
	w.do(`history.back()`)
	w.until("the graph is there again", `document.querySelector('.chart canvas') && !location.hash.includes('mode=')`)
	w.press(".query-controls", "Explain")
	w.says("How it is answered", "avg_over_time(training_loss[1m])", "4 a window")
	w.shots("query-explain")

	w.open("#/query?expr=" + "sum%28&mode=table")
	w.says("The expression cannot be read")
	w.open("#/query?expr=never_heard_of&mode=table")
	w.says("No answer from panes: no_materialization", "expr: never_heard_of")
	w.shots("query-error")
	w.open("#/query?expr=vector(1)%20%3E%202&mode=table")
	w.says("No series")
}

// completion offers names while they are typed, and takes one with the keyboard alone.
func (w *walk) completion(t *testing.T) {
	w.open("#/query?mode=table")
	w.until("the box is there", `document.querySelector('textarea')`)
	w.do(`document.querySelector('textarea').focus()`)
	w.keys("avg_over_time(training_l")
	w.until("a name is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('training_loss'))`)
	w.shot("query-completion")
	w.keys(kb.ArrowDown)
	w.until("it is chosen", `document.querySelector('[role=option][aria-selected=true]')`)
	w.enter()
	w.until("it is taken", `document.querySelector('textarea').value === 'avg_over_time(training_loss'`)
	w.keys("{exp")
	w.until("a label is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('experiment'))`)
	w.keys(kb.Tab + `="bas`)
	w.until("a value is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('baseline'))`)
	w.keys(kb.Tab + `"}[1m])`)
	w.until("all is typed", `document.querySelector('textarea').value === 'avg_over_time(training_loss{experiment="baseline"}[1m])'`)
	w.enter()
	w.until("the query is in the address", `location.hash.includes('baseline')`)
	w.until("one series is answered", `document.querySelectorAll('table.result tbody tr').length === 1`)
}

// log shows how far the log is, and a barrier called there closes what was open.
func (w *walk) log(t *testing.T) {
	w.open("#/log")
	w.says("Log and projections", "following", "checkpoint of pane", "None since the start")
	before := w.frontier()
	w.press("main", "Barrier now…")
	w.until("it asks", `document.querySelector('dialog[open]')`)
	w.shot("log-dialog")
	w.press("dialog", "Call the barrier")
	w.says("Done:", "watermark")
	if after := w.frontier(); after <= before {
		t.Errorf("published through %d before the barrier and %d after it", before, after)
	}
	w.shots("log")
}

// frontier asks the service how far all is published.
func (w *walk) frontier() int64 {
	return slices.Min(valueOf[[]int64](w.browser, `fetch('api/v1/materializations').then((r) => r.json()).then((a) => a.data.map((m) => m.frontier_ms))`))
}

// names are shown as they are, wherever they come from: labels, expressions, errors, the address.
func (w *walk) names(t *testing.T) {
	w.open("#/query?mode=table&expr=avg_over_time(training_loss[1m])")
	for _, name := range hostile {
		w.says(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name))
	}
	w.says("<b>0</b>")
	w.shot("names-query")
	w.open("#/query?expr=" + strings.ReplaceAll(hostile[0], " ", "%20"))
	w.says("The expression cannot be read")
	w.open("#/<img%20src=x%20onerror=alert(1)>?expr=<script>alert(1)</script>")
	w.says("The expression cannot be read")
	strange := valueOf[int](w.browser, `document.querySelectorAll('img:not([src="ui/icon.svg"]), [onerror], [onload], [onfocus], script:not([src]), a[href^="javascript"]').length`)
	if strange != 0 {
		t.Errorf("%d elements were made of names", strange)
	}
	// No link of any screen leads to what acts.
	for _, screen := range []string{"#/query", "#/log"} {
		w.open(screen)
		w.until("it is drawn", `document.querySelector('main h1')`)
		for _, l := range valueOf[[]string](w.browser, `[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))`) {
			if !strings.HasPrefix(l, "#") {
				t.Errorf("%s has a link to %s", screen, l)
			}
		}
	}
}

// frame holds the switch of the theme over a reload, and the way to the content for the keyboard.
func (w *walk) frame(t *testing.T) {
	w.open("#/log")
	w.says("Log and projections")
	theme := `document.documentElement.dataset.theme`
	w.press("header", "Theme: system. Change")
	w.press("header", "Theme: light. Change")
	w.until("the theme is dark", theme+` === 'dark'`)
	w.open("#/log")
	w.until("the theme is dark after a reload", theme+` === 'dark'`)
	w.press("header", "Theme: dark. Change")
	w.until("the system's theme is back", theme+` === undefined`)
	w.do(`document.activeElement.blur()`)
	w.keys(kb.Tab)
	w.until("the way to the content comes first", `document.activeElement.className === 'skip'`)
	w.enter()
	w.until("the content has the focus", `document.activeElement.id === 'main' && location.hash === '#/log'`)
	unnamed := valueOf[[]string](w.browser, `[...document.querySelectorAll('button, input, select, textarea, a, [role=img], [role=region]')].filter((e) =>
	  !e.innerText.trim() && !e.getAttribute('aria-label') && !(e.labels && e.labels.length)).map((e) => e.outerHTML)`)
	if len(unnamed) > 0 {
		t.Errorf("controls without a name: %q", unnamed)
	}
}

// unreachable: what was read stays, and the page says that the server is gone.
func (w *walk) unreachable(t *testing.T) {
	w.open("#/log")
	w.says("Log and projections", "ready")
	w.process.kill()
	w.says("The server cannot be reached", "Recent barriers and drains")
	w.shots("unreachable")
}

// TestFrontPageIsASignOfLife: some clients ask for / and want 200.
func TestFrontPageIsASignOfLife(t *testing.T) {
	v := startService(t, setup{})
	code, body := v.get("/")
	if code != http.StatusOK || !strings.Contains(body, "<title>Tidemark</title>") {
		t.Errorf("%d %s", code, body)
	}
}
