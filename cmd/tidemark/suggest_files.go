package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/plan"
)

// maxLogLine bounds a line of a query log: an expression and its statistics.
const maxLogLine = 8 << 20

// loggedQuery is a line of Prometheus' query log.
type loggedQuery struct {
	Params struct {
		Query string  `json:"query"`
		Start string  `json:"start"`
		End   string  `json:"end"`
		Step  float64 `json:"step"` // seconds; 0 for an instant query
	} `json:"params"`
}

// asking is an expression with the time between its evaluations.
type asking struct {
	expr string
	step int64 // ms
}

// queryLogUses counts what a query log repeats. What is asked fewer than least times is left out; said tells how much that is.
func queryLogUses(in io.Reader, step time.Duration, least int) (uses []plan.Use, said []string, err error) {
	counts := make(map[asking]int)
	lines, bad, offGrid := 0, 0, 0
	scan := bufio.NewScanner(in)
	scan.Buffer(make([]byte, 0, 64<<10), maxLogLine)
	for scan.Scan() {
		line := bytes.TrimSpace(scan.Bytes())
		if len(line) == 0 {
			continue
		}
		lines++
		var q loggedQuery
		if json.Unmarshal(line, &q) != nil || q.Params.Query == "" {
			bad++
			continue
		}
		a := asking{q.Params.Query, step.Milliseconds()}
		if q.Params.Step > 0 {
			a.step = int64(q.Params.Step * 1000)
			if at, err := time.Parse(time.RFC3339Nano, q.Params.Start); err == nil && at.UnixMilli()%a.step != 0 {
				offGrid++
			}
		}
		counts[a]++
	}
	if err := scan.Err(); err != nil {
		return nil, nil, err
	}
	if lines == 0 || bad == lines {
		return nil, nil, errors.New("no line is one of Prometheus' query log")
	}
	rare := 0
	for a, n := range counts {
		if n < least {
			rare++
			continue
		}
		uses = append(uses, plan.Use{Expr: a.expr, StepMillis: a.step, Times: n})
	}
	slices.SortFunc(uses, func(a, b plan.Use) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Expr, b.Expr), cmp.Compare(a.StepMillis, b.StepMillis))
	})
	said = append(said, fmt.Sprintf("%d queries, %d different ones; %d of these were asked fewer than %d times and are left out", lines-bad, len(counts), rare, least))
	if bad > 0 {
		said = append(said, fmt.Sprintf("%d lines are not of a query log", bad))
	}
	if offGrid > 0 {
		said = append(said, fmt.Sprintf("%d range queries began at no multiple of their step: whoever asks them so is answered from the exact copy", offGrid))
	}
	return uses, said, nil
}

// grafanaBoard is what is read of a Grafana dashboard.
type grafanaBoard struct {
	Dashboard  *grafanaBoard `json:"dashboard"` // of an export by Grafana's API
	Panels     []panel       `json:"panels"`
	Rows       []panel       `json:"rows"` // of old dashboards
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type panel struct {
	Title    string       `json:"title"`
	Interval string       `json:"interval"` // least step
	Panels   []panel      `json:"panels"`   // of a row
	Targets  []panelQuery `json:"targets"`
}

type panelQuery struct {
	Expr     string `json:"expr"`
	Interval string `json:"interval"`
	Step     int64  `json:"step"` // seconds; of old dashboards
}

type variable struct {
	Name    string `json:"name"`
	Current struct {
		Value json.RawMessage `json:"value"`
	} `json:"current"`
}

// dashboardUses returns the expressions of a dashboard's panels, each asked once.
func dashboardUses(in io.Reader, step time.Duration) (uses []plan.Use, said []string, err error) {
	var d grafanaBoard
	if err := json.NewDecoder(in).Decode(&d); err != nil {
		return nil, nil, fmt.Errorf("not a dashboard: %w", err)
	}
	if d.Dashboard != nil {
		d = *d.Dashboard
	}
	values := make(map[string]string)
	for _, v := range d.Templating.List {
		var text string
		if json.Unmarshal(v.Current.Value, &text) == nil {
			values[v.Name] = text
		}
	}
	panels := 0
	var walk func([]panel)
	walk = func(all []panel) {
		for _, p := range all {
			walk(p.Panels)
			if len(p.Targets) > 0 {
				panels++
			}
			for _, t := range p.Targets {
				if t.Expr == "" {
					continue
				}
				every := stepOf(&t, &p, values, step)
				expr, err := withoutVariables(t.Expr, every, values)
				if err != nil {
					said = append(said, fmt.Sprintf("panel %q: %s: %v", p.Title, t.Expr, err))
					continue
				}
				uses = append(uses, plan.Use{Expr: expr, StepMillis: every.Milliseconds(), Times: 1})
			}
		}
	}
	walk(d.Panels)
	walk(d.Rows)
	if panels == 0 {
		return nil, nil, errors.New("not a dashboard: it has no panel with a query")
	}
	return uses, append(said, fmt.Sprintf("%d panels with %d expressions", panels, len(uses))), nil
}

// stepOf is the least time between the evaluations of a target.
func stepOf(t *panelQuery, p *panel, values map[string]string, def time.Duration) time.Duration {
	if t.Step > 0 {
		return time.Duration(t.Step) * time.Second
	}
	for _, text := range []string{t.Interval, p.Interval} {
		text = strings.TrimPrefix(strings.TrimSpace(text), ">")
		if v, ok := values[strings.Trim(text, "${}")]; ok {
			text = v
		}
		if d, err := model.ParseDuration(text); err == nil && d >= model.Duration(time.Second) {
			return time.Duration(d)
		}
	}
	return def
}

// How Grafana writes variables: $name, ${name}, ${name:format}, [[name]], [[name:format]].
var variablePattern = regexp.MustCompile(`\$\{(\w+)(?::[^}]*)?\}|\[\[(\w+)(?::[^\]]*)?\]\]|\$(\w+)`)

// placeholder stands for the value of a variable that may be any. No label has it.
const placeholder = "TIDEMARK_ANY_VALUE"

// withoutVariables puts lengths of time in the place of variables that are one, and drops the matchers that depend on others: whatever
// is chosen, the series that are left are among those that are read.
func withoutVariables(expr string, step time.Duration, values map[string]string) (string, error) {
	lengths := map[string]string{
		"__interval": model.Duration(step).String(), "__interval_ms": fmt.Sprint(step.Milliseconds()),
		"__rate_interval": model.Duration(4 * step).String(), "__range": "1h", "__range_s": "3600", "__range_ms": "3600000",
	}
	text := variablePattern.ReplaceAllStringFunc(expr, func(v string) string {
		m := variablePattern.FindStringSubmatch(v)
		name := cmp.Or(m[1], m[2], m[3])
		if l, ok := lengths[name]; ok {
			return l
		}
		if d, err := model.ParseDuration(values[name]); err == nil && d > 0 {
			return d.String()
		}
		return placeholder
	})
	if !strings.Contains(text, placeholder) {
		return text, nil
	}
	e, err := plan.NewParser().ParseExpr(text)
	if err != nil {
		return "", fmt.Errorf("without its variables it is no expression: %w", err)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		vs, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		vs.LabelMatchers = slices.DeleteFunc(slices.Clone(vs.LabelMatchers), func(m *labels.Matcher) bool { return strings.Contains(m.Value, placeholder) })
		if strings.Contains(vs.Name, placeholder) {
			vs.Name = ""
		}
		if !slices.ContainsFunc(vs.LabelMatchers, func(m *labels.Matcher) bool { return !m.Matches("") }) {
			err = errors.Join(err, errors.New("without its variables a selector selects everything"))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return e.String(), nil
}
