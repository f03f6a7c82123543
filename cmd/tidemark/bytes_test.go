package main

import (
	"cmp"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"tidemark/transport/remotewrite"
)

// bytesPlan makes panes answer what they can of the requests, and the exact copy the rest.
const bytesPlan = `
exact: {local: true}
query: {unpublished: live}
materializations:
  - {name: requests, expr: "rate(requests_total[1m])", every: 10s}
  - {name: temperatures, expr: "sum_over_time(temperature[1m])", every: 10s}
  - {name: specials, expr: "sum_over_time(special[1m])", every: 10s}
`

// TestBytes holds that every answer has the bytes and the status that Prometheus gives it, by whatever route it comes: from panes where
// they can answer, from the exact copy where they cannot, and from the copy alone.
func TestBytes(t *testing.T) {
	f := readBytesFile(t)
	v := startService(t, setup{config: bytesPlan})
	if err := v.write.Send(t.Context(), bytesRequest()); err != nil {
		t.Fatal(err)
	}
	v.barrier(bytesBegin + bytesScrapes*bytesEvery)
	routes := map[string]int{}
	for _, x := range f.exchanges {
		want := cmp.Or(x.answers["ours"], x.answers["3.16"])
		for _, header := range []http.Header{nil, {"Cache-Control": {"no-store"}}} {
			got, told := x.ask(t, v.http, v.base, header)
			if got != want {
				t.Errorf("%s, %v:\ngot  %s\nwant %s", x.name, header, got, want)
			}
			routes[told.Get("X-Tidemark-Route")]++
		}
	}
	for _, x := range f.exchanges {
		if reasons := len(x.answers) - 1; len(x.why) != reasons {
			t.Errorf("%s: %d answers other than 3.16's, and %d reasons", x.name, reasons, len(x.why))
		}
	}
	t.Logf("%d requests, answers by route: %v", len(f.exchanges), routes)
	if len(f.exchanges) < 60 || routes["warm"] < 15 || routes["local"] < 50 || routes["hybrid"] < 1 {
		t.Errorf("%d requests, answers by route: %v", len(f.exchanges), routes)
	}
}

var versionOfPrometheus = regexp.MustCompile(`prometheus, version (\d+\.\d+)\.`)

// TestBytes_Prometheus holds that the goldens are what a real Prometheus answers to the same requests over the same samples. It knows
// the answers of Debian's version and of the one whose engine go.mod names; PROMETHEUS is the command, by default that of the path.
func TestBytes_Prometheus(t *testing.T) {
	command := os.Getenv("PROMETHEUS")
	if command == "" {
		requirePeers(t)
		command = "prometheus"
	}
	said, err := exec.Command(command, "--version").CombinedOutput()
	m := versionOfPrometheus.FindSubmatch(said)
	if err != nil || m == nil {
		t.Fatalf("%s --version: %v: %s", command, err, said)
	}
	version := string(m[1])
	if version != "2.42" && version != "3.16" {
		t.Skipf("LEFT OUT: no answers of Prometheus %s are known, only of 2.42 and 3.16", version)
	}
	f := readBytesFile(t)
	base := startBytesPeer(t, command, version)
	client := newClient(t)
	for _, x := range f.exchanges {
		got, _ := x.ask(t, client, base, nil)
		want := cmp.Or(x.answers[version], x.answers["3.16"])
		switch {
		case want == "*":
		case os.Getenv("RECORD") != "":
			delete(x.answers, version)
			if got != x.answers["3.16"] {
				x.answers[version] = got
			}
		case got != want:
			t.Errorf("%s:\ngot  %s\nwant %s", x.name, got, want)
		}
	}
	if os.Getenv("RECORD") != "" {
		f.write(t)
		t.Fatal("recorded; run again without RECORD")
	}
}

// startBytesPeer starts a Prometheus that scrapes nothing, writes the samples to it, and returns its URL.
func startBytesPeer(t *testing.T, command, version string) string {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte("storage: {exemplars: {max_exemplars: 1000}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	features := "exemplar-storage"
	if version == "2.42" {
		features += ",native-histograms"
	}
	p := start(t, "prometheus", exec.Command(command, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--storage.tsdb.retention.time=100y", "--web.listen-address="+address, "--web.enable-remote-write-receiver",
		"--enable-feature="+features, "--log.level=warn"))
	client, base := newClient(t), "http://"+address
	poll(t, readyWithin, "prometheus ready", func() (bool, string) {
		select {
		case <-p.exited:
			t.Fatal("prometheus has ended")
		default:
		}
		r, err := fetch(client, http.MethodGet, base+"/-/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return r.code == http.StatusOK, r.body
	})
	write := remotewrite.Client{URL: base + remotewrite.Path, HTTP: &http.Client{Transport: client.Transport, Timeout: time.Minute}}
	if err := write.Send(t.Context(), bytesRequest()); err != nil {
		t.Fatal(err)
	}
	return base
}
