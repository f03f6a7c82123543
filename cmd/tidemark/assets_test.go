package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/master"
	"tidemark/transport/remotewrite"
)

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := execute(t.Context(), args, &out, &errs); code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	return out.String()
}

// describing is a registry that passes descriptions on and keeps nothing.
type describing struct{ ch chan<- *prometheus.Desc }

func (d describing) Register(c prometheus.Collector) error {
	c.Describe(d.ch)
	return nil
}

func (d describing) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		c.Describe(d.ch)
	}
}

func (describing) Unregister(prometheus.Collector) bool { return false }

// exported returns the names of the metrics that the service itself collects, with their help.
func exported(t *testing.T) map[string]string {
	t.Helper()
	ch := make(chan *prometheus.Desc, 1024)
	newCollector(nil).Describe(ch)
	newWindowCollector(nil).Describe(ch)
	if _, err := remotewrite.New(nil, nil, nil, describing{ch}, remotewrite.DefaultOptions()); err != nil {
		t.Fatal(err)
	}
	master.NewMetrics(nil).Describe(ch)
	close(ch)
	names := map[string]string{"tidemark_http_queries_total": "", "up": ""} // up is of the Prometheus that scrapes
	desc := regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)"`)
	for d := range ch {
		m := desc.FindStringSubmatch(d.String())
		names[m[1]] = m[2]
	}
	return names
}

// The alert rules and the dashboard are valid, ask only for metrics that the service has, and the help texts name alerts that exist. What a
// help text says to alert on, there is an alert on; and on a service that is down, and on writes that are refused.
func TestAssetsFitTheMetrics(t *testing.T) {
	if got := strings.Fields(printed(t, "assets")); !slices.Equal(got, []string{"Containerfile", "alerts.yml", "dashboard.json", "tidemark.service"}) {
		t.Fatalf("%q", got)
	}
	names := exported(t)
	p := parser.NewParser(parser.Options{})
	asked := make(map[string]bool)
	check := func(what, expr string) {
		t.Helper()
		e, err := p.ParseExpr(strings.ReplaceAll(expr, "$__rate_interval", "5m"))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if vs, ok := n.(*parser.VectorSelector); ok {
				asked[vs.Name] = true
				if _, ok := names[vs.Name]; !ok {
					t.Errorf("%s: there is no metric %s", what, vs.Name)
				}
			}
			return nil
		})
	}
	groups, errs := rulefmt.Parse([]byte(printed(t, "assets", "alerts.yml")), false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	alerts := make(map[string]bool)
	for _, r := range groups.Groups[0].Rules {
		alerts[r.Alert] = true
		check(r.Alert, r.Expr)
	}
	for name, help := range names {
		if strings.Contains(help, "Alert ") && !asked[name] {
			t.Errorf("there is no alert on %s: %s", name, help)
		}
	}
	for _, name := range []string{"up", "tidemark_write_requests_total", "tidemark_write_samples_rejected_total", "tidemark_write_histograms_rejected_total", "tidemark_window_lag_seconds"} {
		if !asked[name] {
			t.Errorf("there is no alert on %s", name)
		}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(printed(t, "assets", "dashboard.json")), &board); err != nil || len(board.Panels) < 10 {
		t.Fatal(err, len(board.Panels))
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			check(panel.Title, target.Expr)
		}
	}
	named := regexp.MustCompile(`Tidemark[A-Z]\w+`)
	found := 0
	for name, help := range names {
		for _, alert := range named.FindAllString(help, -1) {
			if found++; !alerts[alert] {
				t.Errorf("the help of %s names %s, which is no alert", name, alert)
			}
		}
	}
	if found < 7 {
		t.Errorf("%d help texts name an alert", found)
	}
	if code := execute(t.Context(), []string{"assets", "nothing"}, io.Discard, io.Discard); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
}
