package main

// Clients that mean no good.

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
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
	"time"

	"github.com/golang/snappy"

	"tidemark/transport/remotewrite"
)

// hostileWorkers is how many hostile connections there are at a time, besides the hostileHeld that are held open.
const (
	hostileWorkers = 32
	hostileHeld    = 300
)

// hostileLoad is the load of TestHostile.
type hostileLoad struct {
	addr string
	good []byte        // a body that is as it should be
	held chan heldConn // open as long as the service lets them: they have sent half of something, or take no answer

	mu       sync.Mutex
	counts   map[string]uint64
	findings []string
}

// heldConn is a connection that waits to be cut off.
type heldConn struct {
	net.Conn
	deaf bool // it is not to be read: what was answered would first have to be taken
}

// an attack sends over a fresh connection and returns the statuses that it was answered with. With hold, the connection stays open.
type attack struct {
	name string
	hold bool
	deaf bool
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
		{name: "takes no answer", hold: true, deaf: true, answers: served, send: func(h *hostileLoad, c net.Conn, _ *rand.Rand) error {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetReadBuffer(4 << 10) // so that little is enough to be too much
			}
			return write(c, bytes.Repeat(fmt.Appendf(nil, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", h.addr), 60))
		}},
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
			const size = 64 << 10
			chunk := fmt.Appendf(nil, "%x\r\n", size)
			chunk = append(append(chunk, bytes.Repeat([]byte{byte(r.IntN(256))}, size)...), "\r\n"...)
			for range 24 { // 1.5 MiB, beyond the bound of this test's service
				if _, err := c.Write(chunk); err != nil {
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
	if !a.hold {
		defer c.Close()
		h.read(a, c)
		return
	}
	for {
		select {
		case h.held <- heldConn{c, a.deaf}:
			return
		default: // the oldest gives its place up once it has been let go
			h.letGo()
		}
	}
}

// letGo waits until the oldest connection that is held was cut off, if there is one.
func (h *hostileLoad) letGo() bool {
	select {
	case c := <-h.held:
		if c.deaf {
			h.awaitCut(c)
		} else {
			h.read(attack{name: "held", answers: slowOne}, c)
		}
		c.Close()
		return true
	default:
		return false
	}
}

// awaitCut waits until a connection that takes no answers was cut off: then what is sent over it fails.
func (h *hostileLoad) awaitCut(c net.Conn) {
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
	for range 1200 {
		if err := write(c, []byte{' '}); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			h.note("takes no answer: cut off")
			return
		}
		<-every.C
	}
	h.find("a connection that takes no answer was not cut off")
}

// read reads answers until the connection ends, and judges them.
func (h *hostileLoad) read(a attack, c net.Conn) {
	// Nothing more will come; it may be closed already. A connection that was held is for the service to end.
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	in := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(in, nil)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			h.find("%s: not cut off", a.name)
			return
		}
		if err != nil {
			h.note(a.name + ": closed")
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		h.note(fmt.Sprintf("%s: %d", a.name, res.StatusCode))
		if !a.answers(res.StatusCode) {
			h.find("%s is answered with %d", a.name, res.StatusCode)
		}
	}
}

func (h *hostileLoad) note(what string) {
	h.mu.Lock()
	h.counts[what]++
	h.mu.Unlock()
}

func (h *hostileLoad) find(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.findings = append(h.findings, fmt.Sprintf(format, args...)); len(h.findings) > maxFindings {
		h.findings = h.findings[:maxFindings]
	}
}
