package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// grid is the step of what is materialized in browserConfig, in ms.
const grid = 15_000

// hostile are names that become markup, code or a template where somebody forgets that they are text.
var hostile = []string{
	`<img src=x onerror=alert(1)>`, `"><svg onload=alert(1)>`, `' autofocus onfocus=alert(1) x='`, `javascript:alert(1)`,
	`</script><script>alert(1)</script>`, `{{7*7}}`,
}

const browserConfig = `
exact: {local: false}
stats: {scan_interval: 1h}
timers: {idle_timeout: 1h}
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

// crowd is how many experiments there are besides those with a name worth reading.
const crowd = 1000

func (w *walk) write(series ...remotewrite.Series) {
	w.s.t.Helper()
	c := remotewrite.Client{URL: w.s.url() + "/api/v1/write", HTTP: w.s.http}
	if err := c.Write(w.s.t.Context(), series); err != nil {
		w.s.t.Fatal(err)
	}
}

// startWalk starts the service below a prefix, writes ten minutes of a few experiments, some with names that are hard to show,
// and opens a browser.
func startWalk(t *testing.T) *walk {
	t.Helper()
	requireChromium(t)
	s := newSite(t, browserConfig, "--web.route-prefix=/tide")
	s.prefix = "/tide"
	process := s.serveReady()
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
	for i := range crowd {
		series = append(series, remotewrite.Series{
			Labels:  labels.FromStrings("__name__", "unplanned", "experiment", fmt.Sprintf("run-%04d", i)),
			Samples: []remotewrite.Sample{{Time: w.edge, Value: 1}},
		})
	}
	w.write(series...)
	w.browser = openBrowser(t, s.url()+"/")
	return w
}

// The web interface works in a real browser, below a prefix: its screens are walked, names stay text, nothing is stopped by
// the policy, and no error is left on the console.
func TestCase_E06_E16_E20_E24_InTheBrowser(t *testing.T) {
	w := startWalk(t)
	for _, step := range []struct {
		name string
		walk func(*testing.T)
	}{
		{"experiments", w.experiments}, {"experiment", w.experiment}, {"query", w.query}, {"completion", w.completion}, {"log", w.log},
		{"tasks", w.tasks},
		{"names", w.names}, {"theme and keys", w.frame}, {"retired", w.retired}, {"no server", w.unreachable},
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

// rows are the names in the table of experiments.
const rows = `[...document.querySelectorAll('table.experiments tbody a.name')].map((a) => a.innerText)`

// experiments: the table says how old it is, and is scanned by hand; it is sorted, searched, and leafed through to its end.
func (w *walk) experiments(t *testing.T) {
	const all = crowd + 2 // and the hostile
	total := fmt.Sprintf("1,%03d", all+len(hostile)-1000)
	w.open("")
	w.says("Experiments", "as of ")
	w.press("main", "Scan now")
	w.says("Scanned "+total+" experiments", total+" active, 0 retired", "1–50 of "+total)
	w.press("table.experiments", "Samples")
	w.until("the greatest come first", `document.querySelector('th[aria-sort=descending]').innerText.startsWith('Samples')`)
	w.shots("experiments")
	if first := valueOf[[]string](w.browser, rows)[:all-crowd+len(hostile)]; slices.ContainsFunc(first, func(n string) bool { return strings.HasPrefix(n, "run-") }) {
		t.Errorf("sorted by samples, the first are %q", first)
	}

	seen := map[string]bool{}
	w.open("#/experiments?limit=200&sort=name")
	for at := 0; ; at += 200 {
		end := min(at+200, all+len(hostile))
		w.until(fmt.Sprintf("page from %d", at), fmt.Sprintf(`%s.length === %d && document.querySelector('.pager').innerText.includes(%q)`,
			rows, end-at, fmt.Sprintf("%s–%s of", grouped(at+1), grouped(end))))
		for _, name := range valueOf[[]string](w.browser, rows) {
			seen[name] = true
		}
		if end == all+len(hostile) {
			break
		}
		w.press(".pager", "Next")
	}
	if len(seen) != all+len(hostile) {
		t.Errorf("%d different experiments on all pages, want %d", len(seen), all+len(hostile))
	}
	w.do(`history.back()`)
	w.until("back is the page before", `location.hash.includes('offset=800')`)

	w.open("#/experiments")
	w.says("1–50 of")
	w.do(`document.activeElement.blur()`)
	w.strike("/", "/", 191)
	w.until("the search has the focus", `document.activeElement.type === 'search'`)
	w.keys("run-0999")
	w.until("one is found", rows+`.join() === 'run-0999' && location.hash.includes('search=run-0999')`)
	for _, name := range hostile {
		w.fill("input[type=search]", name)
		w.until("found: "+name, fmt.Sprintf(`%s.join() === %q`, rows, name))
	}
	w.fill("input[type=search]", "RUN")
	w.says("Nothing has this in its name")
	w.shots("experiments-nothing")
	w.press(".tools", "Retired")
	w.fill("input[type=search]", "")
	w.open("#/experiments?state=retired")
	w.says("None is retired")
}

// grouped writes a number as the page does.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// experiment: a barrier called on its screen publishes its open bucket, and the screen shows one more.
func (w *walk) experiment(t *testing.T) {
	now := time.Now().UnixMilli()
	w.write(remotewrite.Series{ // into a bucket that has ended by the clock and is open, however long all took so far
		Labels:  labels.FromStrings("__name__", "training_loss", "experiment", "baseline", "task", "<b>0</b>"),
		Samples: []remotewrite.Sample{{Time: w.edge + 2000, Value: 1}},
	})
	w.open("#/experiment/baseline")
	w.says("Materializations that read it", "loss", "training_loss", "task=\"<b>0</b>\"")
	w.until("a pane is open", tile("Open panes")+` !== '0'`)
	before := valueOf[string](w.browser, tile("Buckets"))
	w.press("main", "Barrier now…")
	w.press("dialog", "Call the barrier")
	w.says("Done:", "closed, log position")
	w.until("there is a new bucket", fmt.Sprintf("Number(%s) > Number(%q) && %s === '0'", tile("Buckets"), before, tile("Open panes")))
	w.press("main", "Rescan")
	w.says("Read anew as of log position")
	w.shots("experiment")
	for _, name := range hostile {
		w.open("#/experiments?search=" + url.QueryEscape(name))
		w.until("there is the link", rows+`.length === 1`)
		w.do(`document.querySelector('table.experiments a.name').click()`)
		w.until("its screen: "+name, fmt.Sprintf(`document.querySelector('h1').innerText === %q && document.querySelector('.tiles')`, name))
	}
	// One that no scan has seen yet is there, with its numbers, and without an error in the place of its history.
	w.write(remotewrite.Series{
		Labels: labels.FromStrings("__name__", "unplanned", "experiment", "just begun"), Samples: []remotewrite.Sample{{Time: now, Value: 1}},
	})
	w.open("#/experiments?search=just")
	w.says("Nothing has this in its name", "What was written since the last scan is not listed yet")
	w.open("#/experiment/just%20begun")
	w.says("Not scanned yet", "No history yet", "1 accepted")
	w.until("nothing is called an error", `!document.querySelector('.note.bad')`)
	w.shots("experiment-unscanned")
	w.press("main", "Rescan")
	w.says("Read anew as of log position")
	w.until("it is in the table", `!document.body.innerText.includes('Not scanned yet')`)
	w.open("#/experiment/never%20heard%20of")
	w.says("This experiment was never seen")
	w.shots("experiment-unknown")
}

// tile is the figure under a title.
func tile(title string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('.tile')].find((e) => e.innerText.startsWith(%q))?.querySelector('.figure').innerText`, title)
}

// tasks: what is asked for by hand runs, is told where it was asked for, and stands in the history; a pause holds it back.
func (w *walk) tasks(t *testing.T) {
	w.open("#/experiment/baseline")
	w.press("main", "Compact")
	w.until("the outcome is told", `document.querySelector('.note.good')`)
	w.says("Tasks", "compact by hand")
	w.open("#/tasks")
	w.says("Nothing to do", "History", "No target is passed over")
	w.press("main", "Pause")
	w.says("Paused: what runs is finished", "Tasks are paused")
	w.open("#/experiment/" + url.PathEscape(hostile[0]))
	w.press("main", "Publish")
	w.open("#/tasks")
	w.until("it waits", `[...document.querySelectorAll('td .badge')].some((e) => e.innerText === 'queued')`)
	w.says(hostile[0])
	w.shots("tasks")
	w.press("main", "Resume")
	w.says("Tasks are claimed again")
	w.until("it is done", `[...document.querySelectorAll('tbody tr')].some((e) => e.innerText.includes('publish by hand') && e.innerText.startsWith('done'))`)
}

// retired: an experiment that nothing is written to retires, leaves the table, is found by a search, and its screen says so.
func (w *walk) retired(t *testing.T) {
	w.s.configure(strings.Replace(browserConfig, "stats: {", "stats: {retire_after: 1s, ", 1))
	w.process.signal(syscall.SIGHUP)
	poll(t, patience, "retired", func() (bool, string) {
		w.s.must(http.MethodPost, "/api/v1/rescan")
		r := w.s.must(http.MethodGet, "/api/v1/experiments/wide")
		return strings.Contains(r.body, `"state":"retired"`), r.body
	})
	w.open("#/experiments?search=wide")
	w.until("it is found", rows+`.join() === 'wide' && document.querySelector('table.experiments').innerText.includes('retired')`)
	w.shot("experiments-retired")
	w.press("table.experiments", "wide")
	w.says("This experiment is retired")
	w.shot("experiment-retired")
	w.open("#/experiments?state=retired")
	w.until("it is listed", `document.querySelector('.pager')`)
	if r := w.s.must(http.MethodGet, "/api/v1/experiments/wide"); !strings.Contains(r.body, `"state":"retired"`) {
		t.Errorf("reading about it has brought it back: %s", r.body)
	}
	// A scan every millisecond is always overdue.
	w.s.configure(strings.Replace(browserConfig, "scan_interval: 1h", "scan_interval: 1ms", 1))
	w.process.signal(syscall.SIGHUP)
	w.says("Scans are overdue")
	w.shot("experiments-stale")
}

// query starts from the list of what could be asked, gets an answer with its route, changes it, and comes back by the
// browser's own button; an address alone gives the same screen.
func (w *walk) query(t *testing.T) {
	w.open("#/query")
	w.says("Ask one of the materializations", "loss", "every 15s")
	w.shots("query-start")
	w.press("main", "loss")
	w.says("LIVE", "some steps from panes that are still open", "steps warm")
	w.press(".query-controls", "Published only")
	w.says("WARM", "from published panes", "is not published yet; the answer ends there")
	w.until("a graph is drawn", `document.querySelector('.chart canvas')`)
	w.shots("query-graph")
	w.press(".query-controls", "Table")
	w.until("a table is shown", `document.querySelectorAll('table.result tbody tr').length === `+fmt.Sprint(2+len(hostile)))
	w.shots("query-table")
	w.do(`history.back()`)
	w.until("the graph is there again", `document.querySelector('.chart canvas') && !location.hash.includes('mode=')`)
	w.press(".query-controls", "Explain")
	w.says("How it is answered", "avg_over_time(training_loss[1m])", "4 a window")
	w.explainTree(t)

	w.open("#/query?expr=" + "sum%28&mode=table")
	w.says("The expression cannot be read")
	w.open("#/query?expr=never_heard_of&mode=table")
	w.says("No answer from panes: no_materialization", "expr: never_heard_of")
	w.shots("query-error")
	w.open("#/query?expr=vector(1)%20%3E%202&mode=table")
	w.says("No series")
}

// explainTree walks the tree of an expression by keyboard and by mouse: each node says what answers it, and one that nothing answers why,
// and what would.
func (w *walk) explainTree(t *testing.T) {
	const items = `[...document.querySelectorAll('[role=tree] [role=treeitem]')]`
	focused := func(what string, is string) {
		t.Helper()
		w.until(what, fmt.Sprintf(`(() => { const e = document.activeElement; return e.getAttribute('role') === 'treeitem' && (%s); })()`, is))
	}
	w.until("there are two nodes", items+`.length === 2 && `+items+`[0].innerText.includes('aggregation, by the engine')`)
	w.until("both say what they are read from", items+`.every((e) => [...e.querySelector('.tree-row').querySelectorAll('.badge')].some((b) => b.innerText === 'panes'))`)
	w.do(items + `[0].focus()`)
	w.keys(kb.ArrowRight)
	focused("right goes in", `e.getAttribute('aria-level') === '2' && e.innerText.includes('4 a window')`)
	w.keys(kb.ArrowLeft)
	focused("left closes", `e.getAttribute('aria-expanded') === 'false' && !document.body.innerText.includes('4 a window')`)
	w.keys(kb.ArrowLeft)
	focused("left goes out", `e.getAttribute('aria-level') === '1'`)
	w.keys(kb.End)
	w.strike("Enter", "\r", 13)
	focused("enter opens", `e.getAttribute('aria-expanded') === 'true' && e.innerText.includes('4 a window')`)
	w.do(items + `[0].querySelector('.tree-row').click()`)
	w.until("a click closes", items+`.length === 1`)
	w.do(items + `[0].querySelector('.tree-row').click()`)
	w.until("a click opens", items+`.length === 2`)
	w.shots("query-explain")

	w.open("#/query?mode=explain&expr=" + url.QueryEscape(`sum(avg_over_time(training_loss[1m])) / 2 + scalar(max(max_over_time(unplanned{experiment!~"run-00.*"}[5m])))`))
	w.says("1 of 2 parts cannot be answered from panes", "no_materialization", "no answer", "no stream of the plan covers this selector",
		"To have it answered from panes, add to tidemark.yml", "max_over_time(unplanned{experiment!~\"run-00.*\"}[5m])")
	w.until("a constant is read from nothing", items+`.some((e) => e.querySelector('.tree-kind').innerText === 'constant' && !e.querySelector('.badge'))`)
	w.shots("query-explain-missing")
}

// completion offers names while they are typed, and takes one with the keyboard alone.
func (w *walk) completion(t *testing.T) {
	w.open(fmt.Sprintf("#/query?mode=table&end=%d", w.edge))
	w.until("the box is there", `document.querySelector('textarea')`)
	w.do(`document.querySelector('textarea').focus()`)
	w.keys("avg_over_time(training_l")
	w.until("a name is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('training_loss'))`)
	w.shot("query-completion")
	w.keys(kb.ArrowDown)
	w.until("it is chosen", `document.querySelector('[role=option][aria-selected=true]')`)
	w.strike("Enter", "\r", 13)
	w.until("it is taken", `document.querySelector('textarea').value === 'avg_over_time(training_loss'`)
	w.keys("{exp")
	w.until("a label is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('experiment'))`)
	w.keys(kb.Tab + `="bas`)
	w.until("a value is offered", `[...document.querySelectorAll('[role=option]')].some((e) => e.innerText.includes('baseline'))`)
	w.keys(kb.Tab + `"}[1m])`)
	w.until("all is typed", `document.querySelector('textarea').value === 'avg_over_time(training_loss{experiment="baseline"}[1m])'`)
	w.strike("Enter", "\r", 13)
	w.until("the query is in the address", `location.hash.includes('baseline')`)
	w.until("one series is answered", `document.querySelectorAll('table.result tbody tr').length === 1`)
}

// log shows how far the log is, and a barrier called there closes what was open.
func (w *walk) log(t *testing.T) {
	w.open("#/log")
	w.says("Log and projections", "following", "checkpoint of pane", "Recent barriers and drains", "Limits", "Series of an experiment", "1,000,000", "Of them, one client", "50 %")
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
	w.open(fmt.Sprintf("#/query?mode=table&end=%d&expr=avg_over_time(training_loss[1m])", w.edge))
	for _, name := range hostile {
		w.says(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name))
	}
	w.says("<b>0</b>")
	w.shot("names-query")
	w.open("#/query?expr=" + strings.ReplaceAll(hostile[0], " ", "%20"))
	w.says("The expression cannot be read")
	w.open("#/<img%20src=x%20onerror=alert(1)>?search=<script>alert(1)</script>")
	w.until("a screen that is not there is the first one", `document.querySelector('h1').innerText === 'Experiments'`)
	w.until("the search has found what is in the address", fmt.Sprintf(`%s.join() === %q`, rows, hostile[4]))
	strange := valueOf[int](w.browser, `document.querySelectorAll('img:not([src="ui/icon.svg"]), [onerror], [onload], [onfocus], script:not([src]), a[href^="javascript"]').length`)
	if strange != 0 {
		t.Errorf("%d elements were made of names", strange)
	}
	// No link of any screen leads to what acts.
	for _, screen := range []string{"#/experiments", "#/experiment/baseline", "#/query", "#/log", "#/tasks"} {
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
	w.strike("Enter", "\r", 13)
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
	w.says("Recent barriers and drains", "ready")
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
