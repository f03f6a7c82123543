package main

// Helpers that start the command as a process of its own, as its users do.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// readyWithin and exitWithin bound what a process may take, on a machine that is busy with other things.
const (
	readyWithin = 30 * time.Second
	exitWithin  = 10 * time.Second
)

var binaryDir string // made by the first test that needs the command, removed by TestMain

// binary builds the command, once per run.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tidemark-command-*")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "tidemark")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	if clock := os.Getenv(soakClock); clock != "" {
		os.Exit(soakService(clock))
	}
	code := m.Run()
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// tidemarkIn returns a command line of the built command, with its working directory.
func tidemarkIn(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	return cmd
}

// said is what a process writes; it may be read while the process runs.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// process is a child process that a test has started.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	out    said
	exited chan struct{} // closed when it has ended
}

// start starts a child; if it still runs at the end of the test, it is killed. A test that has failed shows what it said.
func start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // the state says how it ended
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if text := p.out.String(); t.Failed() && text != "" {
			t.Logf("%s said:\n%s", name, lastLines(text, 40))
		}
	})
	return p
}

func lastLines(s string, n int) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

// kill ends the process at once, as kill -9 does, and waits until it has gone. It is harmless after the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.exited
}

// wait returns the exit code, or fails the test when there is none in time.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s has not ended within %s", p.name, within)
		return -1
	}
}

// poll calls check until it says that it is done, and fails the test when that takes longer than within.
// Another process offers nothing else to wait for.
func poll(t *testing.T, within time.Duration, what string, check func() (done bool, state string)) {
	t.Helper()
	deadline := time.After(within)
	every := time.NewTicker(25 * time.Millisecond)
	defer every.Stop()
	for {
		done, state := check()
		if done {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %s", what, within, state)
		case <-every.C:
		}
	}
}

// freeAddress returns a loopback address on which nothing listens. The port lies below those that the system gives to
// outgoing connections, so that it is still free when the process that shall have it is started a second time.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000)))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		return addr
	}
	t.Fatal("no free port")
	return ""
}

// newClient returns an HTTP client whose connections end with the test.
func newClient(t *testing.T) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// site is the place of a service under test: its directory, its address, and a client.
type site struct {
	t    *testing.T
	dir  string // working directory, with tidemark.yml and data
	addr string
	http *http.Client
	args []string // of serve

	prefix string // of all paths, with which serve was told to begin them
}

// newSite makes an empty place with a configuration; an empty one means none.
func newSite(t *testing.T, config string, args ...string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), addr: freeAddress(t), http: newClient(t), args: args}
	if config != "" {
		s.configure(config)
	}
	return s
}

func (s *site) url() string { return "http://" + s.addr + s.prefix }

func (s *site) configure(config string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, defaultConfigFile), []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// serve starts the service and does not wait for it.
func (s *site) serve(more ...string) *process {
	s.t.Helper()
	args := append([]string{"serve", "--web.listen-address=" + s.addr}, s.args...)
	return start(s.t, "tidemark", tidemarkIn(s.t, s.dir, append(args, more...)...))
}

// serveReady starts the service and waits until it is ready.
func (s *site) serveReady(more ...string) *process {
	s.t.Helper()
	p := s.serve(more...)
	s.awaitReady(p)
	return p
}

func (s *site) awaitReady(p *process) {
	s.t.Helper()
	poll(s.t, readyWithin, "ready", func() (bool, string) {
		select {
		case <-p.exited:
			s.t.Fatalf("%s ended with %d before it was ready", p.name, p.cmd.ProcessState.ExitCode())
		default:
		}
		r, err := fetch(s.http, http.MethodGet, s.url()+"/-/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return r.code == http.StatusOK, r.body
	})
}

// stop ends the service in order, which must succeed.
func (s *site) stop(p *process) {
	s.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(exitWithin); code != exitOK {
		s.t.Fatalf("exit code %d after SIGTERM", code)
	}
}

// tool runs another command in the site's directory to its end.
func (s *site) tool(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	cmd := tidemarkIn(s.t, s.dir, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// httpReply is an HTTP answer, read to its end.
type httpReply struct {
	code   int
	header http.Header
	body   string
}

// fetch sends a request, its parameters in the URL for GET and in the body for POST; more headers come in pairs.
func fetch(c *http.Client, method, target string, params url.Values, header ...string) (httpReply, error) {
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(params.Encode())
	} else if len(params) > 0 {
		target += "?" + params.Encode()
	}
	req, err := http.NewRequestWithContext(context.Background(), method, target, body)
	if err != nil {
		return httpReply{}, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return httpReply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return httpReply{res.StatusCode, res.Header, string(b)}, err
}

// must sends a request that must be answered, whatever the answer.
func (s *site) must(method, path string, params ...string) httpReply {
	s.t.Helper()
	r, err := fetch(s.http, method, s.url()+path, form(params...))
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

// form makes parameters of names and values that alternate.
func form(params ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		v.Add(params[i], params[i+1])
	}
	return v
}

// barrier says that everything up to at, in ms, was written, and returns what it proves.
func (s *site) barrier(at int64) (completeThrough int64, err error) {
	r, err := fetch(s.http, http.MethodPost, s.url()+"/api/v1/precompute/watermark", form("time_ms", strconv.FormatInt(at, 10)))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			CompleteThrough *int64 `json:"complete_through_ms"`
		}
	}
	if r.code != http.StatusOK {
		return 0, fmt.Errorf("barrier: status %d: %s", r.code, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil || answer.Data.CompleteThrough == nil {
		return 0, fmt.Errorf("barrier: %w in %s", err, r.body)
	}
	return *answer.Data.CompleteThrough, nil
}

// metric returns the value of one line of /metrics, named as it stands there; a line that is not there fails the test.
func (s *site) metric(name string) float64 {
	s.t.Helper()
	v, ok := metricOf(s.must(http.MethodGet, "/metrics").body, name)
	if !ok {
		s.t.Fatalf("no metric %s", name)
	}
	return v
}

func metricOf(text, name string) (float64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return v, err == nil
		}
	}
	return 0, false
}
