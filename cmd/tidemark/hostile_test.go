package main

// Clients that mean no good.

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// hostileConnections is how many connections TestHostile makes; more by hand: HOSTILE_COUNT=100000.
const hostileConnections = 900

// hostileWorkers is how many of them there are at a time, besides those that are held open.
const hostileWorkers = 32

// hostileLoad is the load of TestHostile.
type hostileLoad struct {
	t    *testing.T
	addr string
	good []byte // a body that is as it should be

	mu     sync.Mutex
	held   []net.Conn // open until the end: they have sent half of something
	counts map[string]int
}

// an attack sends over a fresh connection and returns the statuses that it was answered with. With hold, the connection stays open.
type attack struct {
	name string
	hold bool
	send func(h *hostileLoad, c net.Conn, r *rand.Rand) error
	// answers says what may come back; the connection may also be closed without a word.
	answers func(status int) bool
}

func clientFault(status int) bool { return status/100 == 4 }
func served(status int) bool      { return status/100 == 2 || status/100 == 4 }

// noHTTP is for what never reaches a handler: net/http says 505 to versions of HTTP and 501 to transfer codings that it does not
// know, as the protocol asks.
func noHTTP(status int) bool {
	return clientFault(status) || status == http.StatusHTTPVersionNotSupported || status == http.StatusNotImplemented
}
func elsewhereOne(status int) bool {
	return clientFault(status) || status == http.StatusTemporaryRedirect
}
func slowOne(status int) bool { return status == http.StatusServiceUnavailable || status/100 == 4 }

const contentType2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

// post returns a request with a body and headers.
func (h *hostileLoad) post(path string, body []byte, headers ...string) []byte {
	b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\n", path, h.addr)
	for i := 0; i < len(headers); i += 2 {
		b = fmt.Appendf(b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	if !slices.Contains(headers, "Content-Length") && !slices.Contains(headers, "Transfer-Encoding") {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(body))
	}
	return append(append(b, "\r\n"...), body...)
}

func write(c net.Conn, b []byte) error { _, err := c.Write(b); return err }

// attacks lists what is done.
func attacks() []attack {
	const path = remotewrite.Path
	one := func(name string, answers func(int) bool, make func(h *hostileLoad, r *rand.Rand) []byte) attack {
		return attack{name: name, answers: answers, send: func(h *hostileLoad, c net.Conn, r *rand.Rand) error { return write(c, make(h, r)) }}
	}
	held := func(a attack) attack { a.hold = true; return a }
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			panic(err)
		}
		return b
	}
	pick := func(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }
	return []attack{
		held(one("slow header", slowOne, func(h *hostileLoad, r *rand.Rand) []byte {
			all := h.post(path, h.good)
			return all[:1+r.IntN(20)]
		})),
		held(one("slow body", slowOne, func(h *hostileLoad, _ *rand.Rand) []byte {
			return h.post(path, h.good[:len(h.good)/2], "Content-Length", strconv.Itoa(len(h.good)))
		})),
		held(one("idle", slowOne, func(*hostileLoad, *rand.Rand) []byte { return nil })),
		{name: "cut", answers: slowOne, send: func(h *hostileLoad, c net.Conn, r *rand.Rand) error {
			all := h.post(path, h.good)
			err := write(c, all[:r.IntN(len(all))])
			return errorsJoin(err, c.Close())
		}},
		one("declared too large", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post(path, nil, "Content-Length", pick(r, "1073741824", "9223372036854775807", "16777217"))
		}),
		{name: "endless", answers: clientFault, send: func(h *hostileLoad, c net.Conn, r *rand.Rand) error {
			if err := write(c, h.post(path, nil, "Transfer-Encoding", "chunked")); err != nil {
				return err
			}
			junk := bytes.Repeat([]byte{byte(r.IntN(256))}, 64<<10)
			for range 64 { // 4 MiB, beyond the bound of this test's service
				if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(junk), junk); err != nil {
					return nil // it was cut off, as it should be
				}
			}
			return nil
		}},
		one("pipelined", served, func(h *hostileLoad, r *rand.Rand) []byte {
			var b []byte
			for range 10 {
				b = append(b, h.post(path, h.good, "Content-Encoding", pick(r, "snappy", "zstd"))...)
			}
			return b
		}),
		one("wrong headers", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post(path, h.good, pick(r, "Content-Type", "Content-Encoding", "X-Prometheus-Remote-Write-Version"), pick(r, "text/html", "\xff", "a/b;c=d;;", "x"))
		}),
		one("no HTTP", noHTTP, func(_ *hostileLoad, r *rand.Rand) []byte {
			return []byte(pick(r, "GET\r\n\r\n", "\x16\x03\x01\x02\x00\x01", "GET / HTTP/9.9\r\n\r\n", "POST "+path+" HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET / HTTP/1.1\r\nBad Header\r\n\r\n", "\r\n\r\nX X X\r\n\r\n"))
		}),
		one("long header", clientFault, func(h *hostileLoad, _ *rand.Rand) []byte {
			return h.post(path, nil, "X-Long", strings.Repeat("x", 400<<10))
		}),
		one("bomb", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post(path, unhex(pick(r, "ffffffff0f00", "ffffffffffffffffff01", "ffffff0f00", "80808008", "00ff")), "Content-Type", pick(r, "application/x-protobuf", contentType2))
		}),
		one("symbol bomb", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post(path, symbolBomb(r), "Content-Type", contentType2)
		}),
		one("random protobuf", served, func(h *hostileLoad, r *rand.Rand) []byte {
			b := make([]byte, r.IntN(200))
			for i := range b {
				b[i] = byte(r.IntN(256))
			}
			return h.post(path, snappy.Encode(nil, b), "Content-Type", pick(r, "application/x-protobuf", contentType2))
		}),
		one("lying length", noHTTP, func(h *hostileLoad, r *rand.Rand) []byte {
			switch r.IntN(3) {
			case 0: // what is left over is no request
				return h.post(path, h.good, "Content-Length", strconv.Itoa(len(h.good)-3))
			case 1:
				return h.post(path, h.good, "Content-Length", pick(r, "-1", "+5", "0x10", "99999999999999999999", "5, 6"))
			default:
				return h.post(path, h.good, "Content-Length", "5", "Transfer-Encoding", "gzip, chunked")
			}
		}),
		one("hostile query", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			q := pick(r, strings.Repeat("(", 20_000), "m["+strings.Repeat("9", 500)+"d]", "{__name__=~\"(a+)+$\"", "sum(", "\x00", strings.Repeat("a+", 5_000))
			return h.post("/api/v1/query", []byte("query="+urlEscape(q)), "Content-Type", "application/x-www-form-urlencoded")
		}),
		one("hostile range", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post("/api/v1/query_range", []byte("query=1&start=0&end="+pick(r, "1e18&step=1", "100&step=0", "-5&step=1", "NaN&step=1", "1&step=-1", "1e300&step=1e-300")), "Content-Type", "application/x-www-form-urlencoded")
		}),
		one("hostile watermark", clientFault, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post("/api/v1/precompute/watermark", []byte("time_ms="+pick(r, "", "abc", "1e12", "9223372036854775808", "1&time_ms=2")), "Content-Type", "application/x-www-form-urlencoded")
		}),
		one("unknown path", elsewhereOne, func(h *hostileLoad, r *rand.Rand) []byte {
			return h.post(pick(r, "/../../etc/passwd", "/api/v1/"+strings.Repeat("a/", 1000), "/%00", "/ui/..%2f..%2fetc/passwd"), nil)
		}),
	}
}

// symbolBomb is a short body whose references stand for gigabytes.
func symbolBomb(r *rand.Rand) []byte {
	long := strings.Repeat("v", 4000)
	body := []byte{0x22, 0, 0x22, 8}
	body = append(body, "__name__"...)
	body = append(append(body, 0x22, byte(0x80|len(long)&0x7f), byte(len(long)>>7)), long...)
	refs := []byte{1, 2}
	for range 40 + r.IntN(20) {
		refs = append(refs, 2, 2)
	}
	series := append([]byte{0x0a, byte(len(refs))}, refs...)
	if len(refs) > 127 {
		series = append([]byte{0x0a, byte(0x80 | len(refs)&0x7f), byte(len(refs) >> 7)}, refs...)
	}
	for range 1000 {
		body = append(append(body, 0x2a, byte(0x80|len(series)&0x7f), byte(len(series)>>7)), series...)
	}
	return snappy.Encode(nil, body)
}

func urlEscape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func errorsJoin(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// run makes one connection.
func (h *hostileLoad) run(a attack, r *rand.Rand) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+r.IntN(8)))}, Timeout: time.Minute}
	c, err := d.Dial("tcp", h.addr)
	if err != nil {
		h.note(a.name + ": not connected")
		return
	}
	if err := a.send(h, c, r); err != nil {
		h.note(a.name + ": closed while sending")
		c.Close()
		return
	}
	if a.hold {
		h.mu.Lock()
		h.held = append(h.held, c)
		h.mu.Unlock()
		return
	}
	defer c.Close()
	h.read(a, c)
}

// read reads answers until the connection ends, and judges them.
func (h *hostileLoad) read(a attack, c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // nothing more will come; it may be closed already
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	in := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			h.note(a.name + ": closed")
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		h.note(fmt.Sprintf("%s: %d", a.name, res.StatusCode))
		if !a.answers(res.StatusCode) {
			h.t.Errorf("%s is answered with %d", a.name, res.StatusCode)
		}
	}
}

func (h *hostileLoad) note(what string) {
	h.mu.Lock()
	h.counts[what]++
	h.mu.Unlock()
}

// TestHostile lets many clients loose that are slow, cut off, oversized, lying or no clients at all. Every fault of theirs is answered
// with 4xx or with the end of the connection, a body that does not arrive in time with 503, since a slow network is nobody's fault; a good writer beside them is always acknowledged and loses nothing; and afterwards the
// process has no more goroutines and descriptors than before, and hardly more memory.
func TestHostile(t *testing.T) {
	seed := seedOf(t)
	count := hostileConnections
	if n, err := strconv.Atoi(os.Getenv("HOSTILE_COUNT")); err == nil {
		count = n
	}
	s := newSite(t, oneStream, "--log.level=warn", "--web.read-header-timeout=1s", "--web.read-timeout=2s", "--web.idle-timeout=2s",
		"--write.max-body-bytes=1MiB", "--write.max-decoded-bytes=1MiB", "--web.max-connections=2000")
	p := s.serveReady()
	if code := s.write("m", 1_000, 1); code != http.StatusNoContent {
		t.Fatal(code)
	}
	s.http.CloseIdleConnections()
	goroutines, descriptors, memory := s.metric("go_goroutines"), s.metric("process_open_fds"), s.metric("process_resident_memory_bytes")

	h := &hostileLoad{t: t, addr: s.addr, counts: make(map[string]int), good: remotewrite.Encode([]remotewrite.Series{{
		Labels: labels.FromStrings("__name__", "hostile"), Samples: []remotewrite.Sample{{Time: 1_000, Value: 1}},
	}})}
	stop := make(chan struct{})
	var took []time.Duration
	var writer sync.WaitGroup
	writer.Go(func() {
		c := remotewrite.Client{URL: s.url() + remotewrite.Path, HTTP: s.http}
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if err := c.Write(t.Context(), []remotewrite.Series{{Labels: labels.FromStrings("__name__", "m"), Samples: []remotewrite.Sample{{Time: 2_000 + i, Value: 1}}}}); err != nil {
				t.Errorf("a good write: %v", err)
				return
			}
			took = append(took, time.Since(began))
		}
	})
	all := attacks()
	var next atomic.Int64
	var workers sync.WaitGroup
	for w := range hostileWorkers {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for n := next.Add(1); n <= int64(count); n = next.Add(1) {
				h.run(all[int(n)%len(all)], r)
			}
		})
	}
	workers.Wait()
	for _, c := range h.held { // they were let go, or are now
		h.read(attack{name: "held", answers: slowOne}, c)
		c.Close()
	}
	close(stop)
	writer.Wait()

	var lines []string
	for what, n := range h.counts {
		lines = append(lines, fmt.Sprintf("%6d %s", n, what))
	}
	slices.Sort(lines)
	slices.Sort(took)
	t.Logf("%d connections; %d good writes, p50 %v, p99 %v\n%s", count, len(took), took[len(took)/2], took[len(took)*99/100], strings.Join(lines, "\n"))
	s.http.CloseIdleConnections()
	poll(t, time.Minute, "goroutines and descriptors as before", func() (bool, string) {
		g, d := s.metric("go_goroutines"), s.metric("process_open_fds")
		return g <= goroutines+10 && d <= descriptors+10, fmt.Sprintf("%g goroutines, %g before; %g descriptors, %g before", g, goroutines, d, descriptors)
	})
	if m := s.metric("process_resident_memory_bytes"); m > memory+512<<20 {
		t.Errorf("%.0f MiB of memory, %.0f before", m/(1<<20), memory/(1<<20))
	}
	if _, err := s.barrier(60_000); err != nil {
		t.Fatal(err)
	}
	s.wantWarm("sum_over_time(m[1m])", 60_000, strconv.Itoa(len(took)+1))
	if strings.Contains(p.out.String(), "panic") {
		t.Errorf("it panicked:\n%s", p.out.String())
	}
	s.stop(p)
	verifyLog(t, s)
}
