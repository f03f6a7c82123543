package main

// A real Prometheus that scrapes itself and two node exporters, and sends what it scrapes to a service under test.

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query/oracle"
)

// What the test with peers needs, and the Debian packages that have it.
var (
	peerPrograms = []string{"prometheus", "promtool", "prometheus-node-exporter"}
	peerPackages = "prometheus prometheus-node-exporter"
)

// requirePeers leaves the test out where a program is missing, and says what to install; with REQUIRE_PEERS=1 that is a failure.
func requirePeers(t *testing.T) {
	t.Helper()
	for _, name := range peerPrograms {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("REQUIRE_PEERS") != "" {
				t.Fatalf("REQUIRE_PEERS is set, and %v", err)
			}
			t.Skipf("LEFT OUT: no test against a real Prometheus, because %v; to run it: apt-get install %s", err, peerPackages)
		}
	}
}

// Collectors whose metrics cost little and always change.
var exporterFlags = []string{
	"--collector.disable-defaults", "--collector.cpu", "--collector.loadavg", "--collector.meminfo", "--collector.netdev", "--collector.stat",
	"--collector.vmstat", "--log.level=error",
}

// One shard sends in the order in which samples were committed, so that the newest time that was sent says what arrived.
const prometheusConfig = `
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: prometheus
    static_configs: [{targets: [%q]}]
  - job_name: node
    static_configs: [{targets: [%q, %q]}]
remote_write:
  - url: %q
    queue_config: {min_shards: 1, max_shards: 1, capacity: 20000, max_samples_per_send: 1000, batch_send_deadline: 200ms, min_backoff: 30ms, max_backoff: 250ms}
`

// peers are the processes around a service.
type peers struct {
	t          *testing.T
	url        string
	http       *http.Client
	prometheus *process
	mortal     *process // the exporter that does not live to the end
	instance   string   // its instance label
}

const targets = 3

// startPeers starts everything and returns when each target was scraped twice.
//
// Prometheus 2 counts a sample on the left edge of a window, Prometheus 3 does not. Scrapes keep their place within the second,
// and where that place is the edge itself, other ports give other places.
func startPeers(t *testing.T, writeTo string) (*peers, int64) {
	t.Helper()
	for range 5 {
		p := launchPeers(t, writeTo)
		var first int64
		onEdge := false
		poll(t, readyWithin, "two scrapes of each target", func() (bool, string) {
			r, err := fetch(p.http, http.MethodGet, p.url+"/api/v1/query", form("query", "up[1m]"))
			if err != nil || r.code != http.StatusOK {
				return false, fmt.Sprint(err, r.body)
			}
			out, err := parseAnswer(r.body)
			if err != nil {
				t.Fatal(err)
			}
			m := out.Value.(promql.Matrix)
			for _, s := range m {
				if len(s.Floats) < 2 {
					return false, r.body
				}
				first = max(first, s.Floats[0].T)
				onEdge = onEdge || s.Floats[1].T%1000 == 0
			}
			return len(m) == targets, r.body
		})
		if !onEdge {
			return p, first
		}
		p.prometheus.kill()
		p.mortal.kill()
	}
	t.Fatal("scrapes fall on full seconds whatever the ports")
	return nil, 0
}

func launchPeers(t *testing.T, writeTo string) *peers {
	t.Helper()
	dir := t.TempDir()
	own, lasting, mortal := freeAddress(t), freeAddress(t), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, prometheusConfig, own, lasting, mortal, writeTo), 0o600); err != nil {
		t.Fatal(err)
	}
	exporter := func(address string) *process {
		return start(t, "node exporter", exec.Command("prometheus-node-exporter", append([]string{"--web.listen-address=" + address}, exporterFlags...)...))
	}
	p := &peers{t: t, url: "http://" + own, http: newClient(t), instance: mortal}
	exporter(lasting)
	p.mortal = exporter(mortal)
	p.prometheus = start(t, "prometheus", exec.Command("prometheus", "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+own, "--log.level=warn", "--query.lookback-delta="+lookedBack))
	return p
}

// metric sums up the lines of a metric of Prometheus' own; 0 if there is none.
func (p *peers) metric(name string) float64 {
	p.t.Helper()
	r, err := fetch(p.http, http.MethodGet, p.url+"/metrics", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(r.body) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			fields := strings.Fields(line)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				p.t.Fatalf("%v in %s", err, line)
			}
			sum += v
		}
	}
	return sum
}

// awaitSent waits until everything scraped at or before at, in ms, was acknowledged by the service. A scrape is committed up
// to a second, its timeout, after its time; hence so much later must a sample be that was sent behind it.
func (p *peers) awaitSent(at int64) {
	p.t.Helper()
	need := at/1000 + 3
	poll(p.t, time.Minute+time.Until(time.UnixMilli(at)), fmt.Sprintf("samples up to %d sent", at), func() (bool, string) {
		sent := p.metric("prometheus_remote_storage_queue_highest_sent_timestamp_seconds")
		return sent >= float64(need), fmt.Sprintf("sent up to %.0f, scraped up to %.0f", sent, p.metric("prometheus_remote_storage_highest_timestamp_in_seconds"))
	})
}

// ask asks Prometheus itself.
func (p *peers) ask(method, path string, params ...string) httpReply {
	p.t.Helper()
	r, err := fetch(p.http, method, p.url+path, form(params...))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// samples returns all that was scraped in (from, to], with the stale markers that Prometheus has written: a series that is in
// one scrape of its target and not in the next gets a marker at the time of the next. Range queries do not show them.
func (p *peers) samples(from, to int64) []oracle.Series {
	p.t.Helper()
	const before = 5_000 // ms, so that the scrape before the first is seen too
	r := p.ask(http.MethodGet, "/api/v1/query", "query", fmt.Sprintf(`{job=~".+"}[%dms]`, to-from+before), "time", promSeconds(to))
	out, err := parseAnswer(r.body)
	if err != nil {
		p.t.Fatal(err)
	}
	scrapes := make(map[string][]int64) // by target
	for _, s := range out.Value.(promql.Matrix) {
		if s.Metric.Get(model.MetricNameLabel) == "up" {
			for _, f := range s.Floats {
				scrapes[target(s.Metric)] = append(scrapes[target(s.Metric)], f.T)
			}
		}
	}
	var all []oracle.Series
	for _, s := range out.Value.(promql.Matrix) {
		one, err := withMarkers(s, scrapes[target(s.Metric)])
		if err != nil {
			p.t.Fatal(err)
		}
		in := slices.IndexFunc(one.T, func(at int64) bool { return at > from })
		if in < 0 {
			continue
		}
		one.T, one.V = one.T[in:], one.V[in:]
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b oracle.Series) int { return labels.Compare(a.Labels, b.Labels) })
	return all
}

// withMarkers adds the markers to a series; scrapes are the times at which its target was scraped.
func withMarkers(s promql.Series, scrapes []int64) (oracle.Series, error) {
	out := oracle.Series{Labels: s.Metric}
	next := 0
	for i, at := range scrapes {
		switch {
		case next < len(s.Floats) && s.Floats[next].T == at:
			out.T, out.V = append(out.T, at), append(out.V, s.Floats[next].F)
			next++
		case next > 0 && s.Floats[next-1].T == scrapes[i-1]:
			out.T, out.V = append(out.T, at), append(out.V, math.Float64frombits(value.StaleNaN))
		}
	}
	if next != len(s.Floats) {
		return out, fmt.Errorf("%s: %d samples, of which %d are of a scrape", s.Metric, len(s.Floats), next)
	}
	return out, nil
}

func target(ls labels.Labels) string { return ls.Get("job") + " " + ls.Get("instance") }

// seconds writes a time in ms as the API takes it.
func promSeconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) }
