package main

// What goes wrong around a process, and what it says and does then.

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// TestSignalsWhileStarting holds that signals mean the same as ever before the log is open.
func TestSignalsWhileStarting(t *testing.T) {
	s := newSite(t, oneStream)
	starting := func(p *process) {
		poll(t, readyWithin, "the first words", func() (bool, string) {
			said := p.out.String()
			return strings.Contains(said, "Starting Tidemark"), said
		})
	}
	p := s.serve()
	starting(p)
	p.signal(syscall.SIGHUP)
	s.awaitReady(p)
	poll(t, readyWithin, "the reload", func() (bool, string) {
		said := p.out.String()
		return strings.Contains(said, "Configuration reloaded"), said
	})
	s.stop(p)

	p = s.serve()
	starting(p)
	s.stop(p)
	s.stop(s.serveReady())
	verifyLog(t, s)
}

// TestStopsDespiteSlowClient holds that a client that has half sent its request does not keep the service from ending in time,
// and that a second signal does not wait even for that.
func TestStopsDespiteSlowClient(t *testing.T) {
	s := newSite(t, oneStream)
	slow := func() net.Conn {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "POST /api/v1/write HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n", s.addr)
		// The server asks for the body when its handler reads: from then on the request is under way.
		buf := make([]byte, 100)
		if n, err := c.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 100 ") {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		return c
	}
	p := s.serveReady()
	if code := s.write("m", 1_000_000, 1); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	slow()
	s.stop(p)

	p = s.serveReady()
	if code := s.write("m", 1_001_000, 2); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	slow()
	p.signal(syscall.SIGTERM)
	poll(t, readyWithin, "stopping", func() (bool, string) {
		said := p.out.String()
		return strings.Contains(said, "msg=Stopping"), said
	})
	p.signal(syscall.SIGTERM)
	p.wait(2 * time.Second)
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("after the second signal: %s", p.cmd.ProcessState)
	}
	p = s.serveReady()
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "3")
	s.stop(p)
}

// TestDiskReserve holds that a disk below its reserve turns writes away with 503 and says so, while questions are answered.
func TestDiskReserve(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	if code := s.write("m", 1_000_000, 1); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	s.stop(p)
	p = s.serve("--log.min-free-bytes=1EiB")
	poll(t, readyWithin, "answers", func() (bool, string) {
		r, err := fetch(s.http, http.MethodGet, s.url()+"/api/v1/query", form("query", "vector(1)"))
		if err != nil {
			return false, err.Error()
		}
		return r.code == http.StatusOK, r.body
	})
	c := remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}
	err := c.Write(t.Context(), []remotewrite.Series{{Labels: labels.FromStrings("__name__", "m"), Samples: []remotewrite.Sample{{Time: 1_001_000, Value: 2}}}})
	var status *remotewrite.StatusError
	if !errors.As(err, &status) || status.Code != http.StatusServiceUnavailable || status.RetryAfter == 0 {
		t.Errorf("write: %v", err)
	}
	if r := s.must(http.MethodGet, "/-/ready"); r.code != http.StatusServiceUnavailable || !strings.Contains(r.body, "disk is below its reserve") {
		t.Errorf("ready: %d %s", r.code, r.body)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "1")
	s.stop(p)
}

// TestCase_B08_LogOlderThanViews holds that a log that was put back from a copy is refused while views know more.
func TestCase_B08_LogOlderThanViews(t *testing.T) {
	s := newSite(t, oneStream)
	p := s.serveReady()
	if code := s.write("m", 1_000_000, 1); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	s.stop(p)
	live, kept := filepath.Join(s.dir, "data", logDir), filepath.Join(s.dir, "kept")
	if err := os.CopyFS(kept, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	p = s.serveReady()
	if code := s.write("m", 1_001_000, 2); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	s.stop(p)
	if err := os.RemoveAll(live); err != nil {
		t.Fatal(err)
	}
	// No log at all: no new one either.
	if why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr); !strings.Contains(why, "holds views and no log") {
		t.Errorf("without a log: %s", why)
	}
	if err := os.CopyFS(live, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
	if why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr); !strings.Contains(why, "the checkpoint of projection pane") {
		t.Errorf("an older log: %s", why)
	}
	// Without the views that contradict it, the older log is a good one.
	if err := os.RemoveAll(filepath.Join(s.dir, "data", viewsDir)); err != nil {
		t.Fatal(err)
	}
	p = s.serveReady()
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, "1")
	s.stop(p)
}

// TestL4_FullFileEndsTheProcess lets writes of the log fail for real, by a limit on the size of files. The process says so, ends
// with its own code, and has acknowledged nothing that the next one does not find.
func TestL4_FullFileEndsTheProcess(t *testing.T) {
	s := newSite(t, oneStream)
	s.stop(s.serveReady()) // a store that was made without the limit
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	const kibibytes = 64
	cmd := exec.Command("bash", "-c", `ulimit -f "$0" && exec "$@"`, strconv.Itoa(kibibytes), path, "serve", "--web.listen-address="+s.addr, "--log.level=warn")
	cmd.Dir = s.dir
	p := start(t, "tidemark", cmd)
	s.awaitReady(p)

	c := remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}
	acked := 0
	for ; acked < 10_000; acked++ {
		// Labels of their own, so that there is something to write.
		series := remotewrite.Series{Labels: labels.FromStrings("__name__", "m", "pad", strings.Repeat(strconv.Itoa(acked), 200)[:200]+strconv.Itoa(acked))}
		series.Samples = []remotewrite.Sample{{Time: int64(1_000_000 + acked), Value: 1}}
		if err := c.Write(t.Context(), []remotewrite.Series{series}); err != nil {
			t.Logf("after %d writes: %v", acked, err)
			break
		}
	}
	if code := p.wait(exitWithin); code != exitPoisoned {
		t.Fatalf("exit code %d, want %d:\n%s", code, exitPoisoned, lastLines(p.out.String(), 10))
	}
	if said := p.out.String(); !strings.Contains(said, "A write of the log failed; nothing more is acknowledged") || !strings.Contains(said, "file too large") {
		t.Errorf("it said:\n%s", lastLines(said, 10))
	}

	p = s.serveReady()
	if _, err := s.barrier(2_000_000); err != nil {
		t.Fatal(err)
	}
	r, route := s.instant("sum(sum_over_time(m[1000s]))", 1_990_000)
	out, err := parseAnswer(r.body)
	if err != nil || route != "warm" {
		t.Fatalf("%v, route %q", err, route)
	}
	// The write that failed may be there: it was never acknowledged, and never denied.
	if n := soleValue(t, out); n != float64(acked) && n != float64(acked+1) || acked == 0 {
		t.Errorf("%d writes were acknowledged, %g are there", acked, n)
	}
	s.stop(p)
	verifyLog(t, s)
}
