package main

// A current Prometheus as the sender, in both versions of the protocol at once.

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// senderOutages is how many rounds of trouble TestPrometheus3 goes through, and senderOutage how long the service stays away in each; more
// by hand: SENDER_ROUNDS=3 SENDER_OUTAGE=30s.
const (
	senderOutages = 1
	senderOutage  = 3 * time.Second
)

const prometheusModule = "github.com/prometheus/prometheus"

// newestPrometheus builds the Prometheus whose module go.mod names, once per run. Its web interface and its service discovery
// are left out.
var newestPrometheus = sync.OnceValues(func() (string, error) {
	if _, err := binary(); err != nil {
		return "", err
	}
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", prometheusModule).Output()
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", prometheusModule, err)
	}
	cmd := exec.Command("go", "install", "-buildvcs=false", "-tags=remove_all_sd", prometheusModule+"/cmd/prometheus@"+strings.TrimSpace(string(version)))
	cmd.Dir = binaryDir // no module is there that would choose other versions
	cmd.Env = append(os.Environ(), "GOBIN="+binaryDir, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", prometheusModule, err, out)
	}
	return filepath.Join(binaryDir, "prometheus"), nil
})

// requireNewestPrometheus leaves the test out where its modules cannot be had; with REQUIRE_PEERS=1 that is a failure.
func requireNewestPrometheus(t *testing.T) string {
	t.Helper()
	path, err := newestPrometheus()
	if err == nil {
		return path
	}
	if os.Getenv("REQUIRE_PEERS") != "" {
		t.Fatalf("REQUIRE_PEERS is set, and %v", err)
	}
	t.Skipf("LEFT OUT: no test against the newest Prometheus, which needs the network once: %v", err)
	return ""
}

const senderConfig = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, scrape_native_histograms: true}
scrape_configs:
  - job_name: prometheus
    static_configs: [{targets: [%q]}]
remote_write:
  - {name: one, url: %q, protobuf_message: prometheus.WriteRequest, send_native_histograms: true, send_exemplars: true, metadata_config: {send_interval: 1s}, queue_config: &queue {min_shards: 1, max_shards: 1, capacity: 20000, max_samples_per_send: 1000, batch_send_deadline: 200ms, min_backoff: 30ms, max_backoff: 250ms}}
  - {name: two, url: %q, protobuf_message: io.prometheus.write.v2.Request, send_native_histograms: true, send_exemplars: true, queue_config: *queue}
`

// sender is the Prometheus of TestPrometheus3.
type sender struct {
	peers
	sites [2]*site // that take version 1.0 and 2.0
	disks [2]*smallDisk
}

// fullDisk has both services on a disk with a megabyte left until they have refused something for that, and then gives them space again. The
// megabyte is for what they have acknowledged a moment ago and the exact copy has yet to write, which stops until the next start where it
// finds no room; disks without a byte are in the tests of full disks.
// Where no disk can be mounted they are started anew with a reserve that no disk has.
func (p *sender) fullDisk(services *[2]*process) {
	p.t.Helper()
	var whole [2]func()
	for i, s := range p.sites {
		if p.disks[i] == nil {
			services[i].kill()
			services[i] = s.serve("--log.min-free-bytes=1EiB")
			continue
		}
		whole[i] = p.disks[i].fill(1 << 20)
	}
	poll(p.t, readyWithin, "a refusal for want of space", func() (bool, string) {
		done := true
		var state string
		for _, s := range p.sites {
			ready, err := fetch(s.http, http.MethodGet, s.url()+"/-/ready", nil)
			r, merr := fetch(s.http, http.MethodGet, s.url()+"/metrics", nil)
			refused, _ := metricOf(r.body, `tidemark_write_requests_total{code="503"}`)
			done = done && err == nil && merr == nil && refused > 0 && strings.Contains(ready.body, fullDisk)
			state += fmt.Sprintf("%v %v: %.0f refused, %q; ", err, merr, refused, ready.body)
		}
		return done, state
	})
	for i := range p.sites {
		if whole[i] != nil {
			whole[i]()
		}
	}
}

// TestPrometheus3 lets a current Prometheus send version 1.0 to one service and version 2.0 to another, while both are killed,
// stay away, refuse for want of disk space and are restarted. Behind a barrier each has every sample that Prometheus has, native
// histograms included, once and unchanged; and the metadata that version 2.0 carries.
func TestPrometheus3(t *testing.T) {
	if testing.Short() {
		t.Skip("a short run does not build a Prometheus")
	}
	path := requireNewestPrometheus(t)
	p := &sender{}
	var services [2]*process
	for i := range p.sites {
		p.sites[i] = newSite(t, "materializations: [{name: scrapes, expr: \"count_over_time(up[10s])\", every: 5s}]\n", "--log.level=warn", "--log.min-free-bytes=64MiB", "--storage.ballast-bytes=0B")
		var err error
		if p.disks[i], err = tryMount(t, filepath.Join(p.sites[i].dir, "data"), 256<<20); err != nil {
			t.Logf("no disk is really full in this run: %v", err)
		}
		services[i] = p.sites[i].serveReady()
	}
	p.launch(t, path)
	rounds := senderOutages
	if n, err := strconv.Atoi(os.Getenv("SENDER_ROUNDS")); err == nil {
		rounds = n
	}
	outage := senderOutage
	if d, err := time.ParseDuration(os.Getenv("SENDER_OUTAGE")); err == nil {
		outage = d
	}
	from := time.Now().UnixMilli()
	p.awaitScraped(from + 3_000)
	for range rounds {
		for i, s := range services { // an outage
			s.kill()
			services[i] = nil
		}
		p.awaitScraped(time.Now().UnixMilli() + outage.Milliseconds())
		for i, s := range p.sites {
			services[i] = s.serveReady()
		}
		p.fullDisk(&services)
		p.awaitScraped(time.Now().UnixMilli() + 2_000)
		for i, s := range p.sites {
			services[i].signal(syscall.SIGTERM)
			if code := services[i].wait(exitWithin); code != exitOK {
				t.Fatalf("exit code %d", code)
			}
			services[i] = s.serveReady()
		}
		p.awaitScraped(time.Now().UnixMilli() + 2_000)
	}
	to := time.Now().UnixMilli()
	p.awaitSent(to)
	for i, s := range p.sites {
		if through, err := s.barrier(to); err != nil || through < to {
			t.Fatalf("version %d.0: barrier at %d: complete through %d, %v", i+1, to, through, err)
		}
		p.compare(t, i, from, to)
	}
	for _, name := range []string{"samples", "histograms", "exemplars", "metadata"} {
		if lost := p.metric("prometheus_remote_storage_" + name + "_failed_total"); lost != 0 {
			t.Errorf("Prometheus gave up %.0f %s", lost, name)
		}
	}
	for i, s := range p.sites {
		r := s.must(http.MethodGet, "/api/v1/metadata", "metric", "prometheus_http_requests_total")
		if !strings.Contains(r.body, `"type":"counter"`) {
			t.Errorf("version %d.0: metadata %s", i+1, r.body)
		}
		s.stop(services[i])
		verifyLog(t, s)
	}
}

func (p *sender) launch(t *testing.T, path string) {
	t.Helper()
	dir, own := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(senderConfig, own, p.sites[0].url()+"/api/v1/write", p.sites[1].url()+"/api/v1/write")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.peers = peers{t: t, url: "http://" + own, http: newClient(t)}
	p.prometheus = start(t, "prometheus", exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+own, "--log.level=warn", "--enable-feature=metadata-wal-records,exemplar-storage"))
}

// least returns the smallest value of a metric over its series; −Inf if there is none.
func (p *sender) least(name string) float64 {
	r, err := fetch(p.http, http.MethodGet, p.url+"/metrics", nil)
	if err != nil {
		return math.Inf(-1)
	}
	least, found := math.Inf(1), false
	for line := range strings.Lines(r.body) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			fields := strings.Fields(line)
			if v, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
				least, found = min(least, v), true
			}
		}
	}
	if !found {
		return math.Inf(-1)
	}
	return least
}

func (p *sender) await(what, metric string, at int64) {
	p.t.Helper()
	poll(p.t, 2*time.Minute, what, func() (bool, string) {
		v := p.least(metric)
		return v >= float64(at/1000+2), fmt.Sprint(v)
	})
}

// awaitScraped waits until something was scraped after at, in ms.
func (p *sender) awaitScraped(at int64) {
	p.t.Helper()
	p.await("scrapes", "prometheus_remote_storage_highest_timestamp_in_seconds", at-2_000)
}

// awaitSent waits until both services have acknowledged all that was scraped up to at, in ms.
func (p *sender) awaitSent(at int64) {
	p.t.Helper()
	p.await("sent", "prometheus_remote_storage_queue_highest_sent_timestamp_seconds", at)
}

// rawSeries is what an instant query for a range vector answers.
type rawSeries struct {
	Metric     map[string]string `json:"metric"`
	Values     [][2]any          `json:"values"`
	Histograms [][2]any          `json:"histograms"`
}

func rawSamples(t *testing.T, r httpReply) map[string]rawSeries {
	t.Helper()
	var a struct {
		Data struct {
			Result []rawSeries `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(r.body), &a); err != nil || r.code != http.StatusOK {
		t.Fatalf("status %d, %v: %.300s", r.code, err, r.body)
	}
	out := make(map[string]rawSeries)
	for _, s := range a.Data.Result {
		out[fmt.Sprint(s.Metric)] = s
	}
	return out
}

// compare holds every sample of service i in (from, to] against those of Prometheus.
func (p *sender) compare(t *testing.T, i int, from, to int64) {
	t.Helper()
	query := form("query", fmt.Sprintf(`{job="prometheus"}[%dms]`, to-from), "time", promSeconds(to))
	sent, err := fetch(p.http, http.MethodPost, p.url+"/api/v1/query", query)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := fetch(p.sites[i].http, http.MethodPost, p.sites[i].url()+"/api/v1/query", query, "Cache-Control", "no-store")
	if err != nil {
		t.Fatal(err)
	}
	want, got := rawSamples(t, sent), rawSamples(t, kept)
	samples, histograms, wrong := 0, 0, 0
	for name, w := range want {
		g := got[name]
		samples, histograms = samples+len(w.Values), histograms+len(w.Histograms)
		if fmt.Sprint(g.Values) != fmt.Sprint(w.Values) || fmt.Sprint(g.Histograms) != fmt.Sprint(w.Histograms) {
			if wrong++; wrong <= 3 {
				t.Errorf("version %d.0: %s: %d samples and %d histograms were sent, %d and %d are kept", i+1, name, len(w.Values), len(w.Histograms), len(g.Values), len(g.Histograms))
			}
		}
	}
	if len(got) != len(want) || wrong > 0 {
		t.Errorf("version %d.0: %d series were sent, %d are kept; %d differ", i+1, len(want), len(got), wrong)
	}
	if samples < 5_000 || histograms < 10 {
		t.Errorf("%d samples and %d histograms are too few to mean much", samples, histograms)
	}
	t.Logf("version %d.0: %d series, %d samples, %d native histograms", i+1, len(want), samples, histograms)
}
