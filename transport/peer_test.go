package transport

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// prometheusPeer starts a real Prometheus on a loopback port and returns its URL. A machine without one says so and leaves the
// test out, unless REQUIRE_PEERS says that it must be there.
func prometheusPeer(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("REQUIRE_PEERS") != "" {
			t.Fatalf("REQUIRE_PEERS is set and there is no peer: %v", err)
		}
		t.Skip("LEFT OUT: no prometheus in PATH; install one (or set REQUIRE_PEERS=1 to make this a failure)")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte("global: {scrape_interval: 1h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.Command(binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr, "--log.level=error")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	awaitReady(t, "http://"+addr+"/-/ready", &said)
	return "http://" + addr
}

// awaitReady polls a process that offers nothing else to wait for.
func awaitReady(t *testing.T, url string, said fmt.Stringer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			t.Fatalf("Prometheus is not ready after a minute: %s", said)
		case <-tick.C:
		}
		resp, err := http.Get(url)
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			http.DefaultClient.CloseIdleConnections()
			return
		}
	}
}

// withoutText cuts an error envelope in front of its text.
func withoutText(body string) string {
	head, _, _ := strings.Cut(body, `"error":"`)
	return head
}

// TestPeer_SameBytesAsPrometheus asks a real Prometheus and this service the same questions, none of which needs data, and
// compares status and body byte for byte, of errors all but the text. What Prometheus 2 and 3 write differently is pinned
// in package api.
func TestPeer_SameBytesAsPrometheus(t *testing.T) {
	peer := prometheusPeer(t)
	w := newWorld(t, Options{})
	ask := func(base, method, path, params string) (int, string) {
		t.Helper()
		target, body := base+path+"?"+params, io.Reader(nil)
		if method == http.MethodPost {
			target, body = base+path, strings.NewReader(params)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, target, body)
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodPost {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("%s%s?%s: Content-Type %q", base, path, params, ct)
		}
		return resp.StatusCode, string(b)
	}
	compared := 0
	same := func(path string, params ...string) {
		t.Helper()
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			encoded := values(params).Encode()
			code, body := ask(w.url, method, path, encoded)
			wantCode, want := ask(peer, method, path, encoded)
			if wantCode != http.StatusOK {
				// The words of errors changed between the versions of Prometheus, their shape and type did not.
				body, want = withoutText(body), withoutText(want)
			}
			if code != wantCode || body != want {
				t.Errorf("%s %s %q:\nhere %d %s\nthere %d %s", method, path, params, code, body, wantCode, want)
			}
			compared++
		}
	}
	for _, q := range []string{
		"1", "-1.5e-7", "1/0", "-1/0", "0/0", "1e300", "5e-324", "time()", `"a string"`, `"<b>&\"\n\u00e9\u2028"`, "vector(1)", "vector(1e21)", "vector(1e-7)",
		"vector(0/0)", "vector(1/0)", "vector(-1/0)", `label_replace(vector(1), "b", "x\"\\\n\té", "", "")`,
		`label_replace(label_replace(vector(time()), "zz", "1", "", ""), "__name__", "named", "", "")`, "absent(vector(1))", "vector(1) > 2",
		"sum(", "", "m[5m", "foo(1)", "1 +", `{}`, `label_replace(vector(1), "a", "b")`,
	} {
		for _, at := range []string{"0", "60", "60.05", "1435781451.781", "-1.5", "2015-07-01T22:10:51.781+02:00"} {
			same("/api/v1/query", "query", q, "time", at)
		}
		same("/api/v1/query_range", "query", q, "start", "0", "end", "3.3", "step", "1.1")
		same("/api/v1/query_range", "query", q, "start", "1435781451.781", "end", "1435781452", "step", "100ms")
	}
	for _, bad := range [][]string{
		{"query", "1", "time", "abc"}, {"query", "1", "time", "1", "timeout", "abc"}, {"time", "1"},
	} {
		same("/api/v1/query", bad...)
	}
	for _, bad := range [][]string{
		{"query", "1", "start", "x", "end", "1", "step", "1"}, {"query", "1", "start", "1", "end", "x", "step", "1"}, {"query", "1"},
		{"query", "1", "start", "2", "end", "1", "step", "1"}, {"query", "1", "start", "1", "end", "2", "step", "0"},
		{"query", "1", "start", "1", "end", "2", "step", "-1"}, {"query", "1", "start", "1", "end", "2", "step", "x"},
		{"query", "1", "start", "1", "end", "2"}, {"query", "1", "start", "0", "end", "11001", "step", "1"},
		{"query", "1", "start", "0", "end", "11000.999", "step", "1"}, {"query", "1", "start", "0", "end", "1e12", "step", "1e8"},
		{"query", "m[5m]", "start", "0", "end", "1", "step", "1"},
	} {
		same("/api/v1/query_range", bad...)
	}
	same("/api/v1/series")
	same("/api/v1/series", "match[]", "{}")
	same("/api/v1/series", "match[]", "m", "start", "x")
	same("/api/v1/series", "match[]", "nope")
	same("/api/v1/labels", "match[]", "nope")
	same("/api/v1/format_query", "query", "sum(rate(m[5m]))by(a)")
	same("/api/v1/format_query", "query", "sum(")
	t.Logf("%d answers compared", compared)
}
