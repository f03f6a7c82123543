package remotewrite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"

	"tidemark/log"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func request(t testing.TB, lines string) []byte {
	t.Helper()
	return snappy.Encode(nil, marshal(t, parseRequest(t, lines)))
}

// The events of a batch that is sent six times have one hash, by which the fold knows them.
func TestCase_A09_OneHash(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m i=a : 1@1000 2@2000 3@3000`)
	for range 6 {
		if a := r.post(body); a.code != http.StatusNoContent {
			t.Fatal(a)
		}
	}
	events := r.writes()
	if len(events) != 6 {
		t.Fatalf("%d events", len(events))
	}
	for _, e := range events {
		if got, want := e.Body.(*log.Write).Hash, events[0].Body.(*log.Write).Hash; got != want {
			t.Errorf("event %d has hash %x, the first %x", e.Seq, got, want)
		}
	}
}

// R8: a failed append leaves nothing behind that would make its repetition a duplicate, of samples or of metadata.
func TestCase_A11_FailedAppendIsRepeatedInFull(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, "__name__=m i=a : 5@1000\nmetadata m counter Help. \"\"")
	r.fail.next = []error{errors.New("no space left on device")}
	if got, want := r.post(body).String(), "503 retry after 5: no space left on device"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if got := r.show(); got != "nothing appended\n" {
		t.Fatal(got)
	}
	if a := r.post(body); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	want := "#1\n  {__name__=\"m\", i=\"a\"} 5@1000\n  metadata m counter \"Help.\" \"\"\n"
	if got := r.show(); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	v := r.values()
	if v["samples_received_total"] != 2 || v["samples_rejected_total{not_logged}"] != 1 || v["samples_logged_total"] != 1 {
		t.Error(v)
	}
}

// After 415 the same connection serves the next request.
func TestCase_A26_ConnectionLives(t *testing.T) {
	r := newRig(t, nil)
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	body := request(t, `__name__=m : 1@1000`)
	for _, tc := range []struct {
		coding string
		want   int
	}{{"zstd", 415}, {"snappy", 204}, {"gzip", 415}, {"snappy", 204}} {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", Path, tc.coding, len(body), body)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s: %d", tc.coding, res.StatusCode)
		}
	}
	if n := in.Buffered(); n != 0 {
		t.Errorf("%d bytes after the last answer", n)
	}
	if n := len(r.writes()); n != 2 {
		t.Errorf("%d events", n)
	}
}

// R6: a hundred bombs at once cost next to nothing, and writes are acknowledged meanwhile.
func TestCase_A28_ParallelBombs(t *testing.T) {
	r := newRig(t, nil)
	good := request(t, `__name__=m : 1@1000`)
	if a := r.post(good); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	r.server.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 200
	bombs := [][]byte{
		unhex(t, "ffffffff0f00"), unhex(t, "ffffffffffffffffff01"),
		unhex(t, "ffffff0f00"), // 32 MiB less one byte, which is allowed but cannot be true
	}
	before, stop := peakHeap()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if a := r.post(bombs[i%len(bombs)]); a.code != 400 && a.code != 413 {
				t.Errorf("bomb: %v", a)
			}
		})
		if i%10 == 0 {
			wg.Go(func() {
				if a := r.post(good); a.code != http.StatusNoContent {
					t.Errorf("write beside bombs: %v", a)
				}
			})
		}
	}
	wg.Wait()
	if grown := int64(stop()) - int64(before); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// peakHeap watches the heap until stop is called, which returns its largest size.
func peakHeap() (before uint64, stop func() uint64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	end, peak := make(chan struct{}), make(chan uint64)
	go func() {
		var top uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapAlloc)
			select {
			case <-end:
				peak <- top
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return m.HeapAlloc, func() uint64 { close(end); return <-peak }
}

// Senders that stall hold what they have sent, and no more; beyond the bound others are told to come again, and small
// requests still pass.
func TestCase_A44_InflightBound(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.MaxBodyBytes, o.MaxDecodedBytes, o.MaxSeries, o.MaxSamples = 64<<10, 64<<10, 100, 100
		o.MaxInflightBytes = o.largestRequest()
	})
	var stalled []*io.PipeWriter
	answers := make(chan reply, 3)
	for range 3 {
		body, sender := io.Pipe()
		stalled = append(stalled, sender)
		go func() { answers <- r.do(http.MethodPost, r.url(), body) }()
		if _, err := sender.Write(make([]byte, 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return r.values()["inflight_bytes"] == 3*64<<10 })
	got := r.post(make([]byte, 40<<10)).String()
	if want := "503 retry after 1: too many bytes of writes are in flight"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if a := r.post(request(t, `__name__=m : 1@1000`)); a.code != http.StatusNoContent {
		t.Errorf("a small request beside them: %v", a)
	}
	for _, s := range stalled {
		s.Close()
	}
	for range stalled {
		if a := <-answers; a.code != http.StatusBadRequest {
			t.Error(a)
		}
	}
	if a := r.post(make([]byte, 40<<10)); a.code != http.StatusBadRequest {
		t.Errorf("after them: %v", a)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
		runtime.Gosched()
	}
}

// endless is a chunked body of random bytes that counts what the sender could get rid of.
func endless(conn net.Conn, limit int64) (sent int64) {
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", Path)
	chunk := make([]byte, 64<<10)
	source := rand.NewChaCha8([32]byte{})
	for sent < limit {
		if _, err := source.Read(chunk); err != nil {
			return sent
		}
		if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", len(chunk), chunk); err != nil {
			return sent
		}
		sent += int64(len(chunk))
	}
	return sent
}

// meter counts what the server reads of bodies.
type meter struct {
	http.Handler
	read atomic.Int64
}

type meteredBody struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

func (m *meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = meteredBody{r.Body, &m.read}
	m.Handler.ServeHTTP(w, r)
}

func TestCase_A30_EndlessBody(t *testing.T) {
	const limit = 1 << 20
	r := newRig(t, func(o *Options) { o.MaxBodyBytes = limit })
	m := &meter{Handler: r.server.Config.Handler}
	r.server.Config.Handler = m
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before, stop := peakHeap()
	sent := make(chan int64)
	go func() { sent <- endless(conn, 1<<30) }()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge || !res.Close {
		t.Errorf("%v %v", res.Status, res.Header)
	}
	if got, want := string(text), "bytes of body over the limit of 1048576\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := <-sent; n >= 64<<20 {
		t.Errorf("%d bytes went through before the connection was closed", n)
	}
	if n := m.read.Load(); n > limit+64<<10 {
		t.Errorf("%d bytes were read", n)
	}
	if grown := int64(stop()) - int64(before); grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if got := r.show(); got != "nothing appended\n" {
		t.Error(got)
	}
}

// raw sends bytes as they are, ends the sending side, and returns the first answer.
func (r *rig) raw(request string) reply {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		r.t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		r.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.Close {
		res.Header.Set("Connection", "close")
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func TestR6_LyingContentLength(t *testing.T) {
	r := newRig(t, nil)
	body := string(request(t, `__name__=m : 1@1000`))
	head := "POST " + Path + " HTTP/1.1\r\nHost: x\r\n"
	for _, tc := range []struct{ name, request, want string }{
		{"more than there is", head + "Content-Length: 1000\r\n\r\n" + body, "400 close: body cannot be read to its end: unexpected EOF"},
		{"over the limit", head + "Content-Length: 16777217\r\n\r\n" + body, "413 close: 16777217 bytes of body, the limit is 16777216"},
		{"absurd", head + "Content-Length: 9223372036854775807\r\n\r\n" + body, "413 close: 9223372036854775807 bytes of body, the limit is 16777216"},
		{"less than there is", head + "Content-Length: 5\r\n\r\n" + body, "400: not a snappy block"},
		{"chunks that are none", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body, "400 close: body cannot be read to its end: invalid byte in chunk length"},
		{"no length at all", head + "\r\n", "400: empty body, not a snappy block"},
		{"chunked, as it should be", head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body), "204"},
	} {
		if got := r.raw(tc.request).String(); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
	if n := len(r.writes()); n != 1 {
		t.Errorf("%d events", n)
	}
}

// A body that does not come ends after its time, and others do not notice.
func TestR6_SlowBody(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BodyTimeout = 50 * time.Millisecond })
	body, sender := io.Pipe()
	defer sender.Close()
	answer := make(chan reply)
	go func() { answer <- r.do(http.MethodPost, r.url(), body) }()
	if _, err := sender.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	if a := r.post(request(t, `__name__=m : 1@1000`)); a.code != http.StatusNoContent {
		t.Error(a)
	}
	if got, want := (<-answer).String(), "503 retry after 5 close: body did not arrive in time"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// R6: the time of a body ends with it, so that a slow log does not cost the connection.
func TestR6_DeadlineEndsWithTheBody(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BodyTimeout = 20 * time.Millisecond })
	late := make(chan struct{})
	r.fail.before = func(context.Context) { <-late }
	answer := make(chan reply)
	go func() { answer <- r.post(request(t, `__name__=m : 1@1000`)) }()
	timer := time.AfterFunc(100*time.Millisecond, func() { close(late) })
	defer timer.Stop()
	if a := <-answer; a.code != http.StatusNoContent {
		t.Error(a)
	}
}

func TestCase_A38_NoWrittenHeaders(t *testing.T) {
	r := newRig(t, nil)
	for _, lines := range []string{`__name__=m : 1@1000`, `__name__=m a=1 a=2 : 1@1000`, ``} {
		for name := range r.post(request(t, lines)).header {
			if strings.HasSuffix(name, "-Written") {
				t.Errorf("%q is answered with %s", lines, name)
			}
		}
	}
}

func TestCase_A50_OversizedLabels(t *testing.T) {
	r := newRig(t, nil)
	many := `__name__=m`
	for i := range 999 {
		many += fmt.Sprintf(" l%d=x", i)
	}
	for _, tc := range []struct{ name, series, want string }{
		{"value", `__name__=m i=` + strings.Repeat("a", 1<<20),
			`value of label "i" has 1048576 bytes, the limit is 4096: "` + strings.Repeat("a", 128) + `"`},
		{"value of many-byte characters", `__name__=m i=` + strings.Repeat("€", 2000),
			`value of label "i" has 6000 bytes, the limit is 4096: "` + strings.Repeat("€", 42) + `"`},
		{"name", `__name__=m ` + strings.Repeat("n", 10_000) + `=x`,
			`label name of 10000 bytes, the limit is 1024: "` + strings.Repeat("n", 128) + `"`},
		{"count", many, "1000 labels, the limit is 128"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := r.post(request(t, "__name__=good : 1@1000\n"+tc.series+" : 1@1000"))
			want := "400: 1 of 2 samples written, 1 rejected; 1 of 2 series refused; first fault: " + tc.want
			if a.String() != want {
				t.Errorf("got  %s\nwant %s", a, want)
			}
			if got := r.show(); !strings.HasSuffix(got, "\n  {__name__=\"good\"} 1@1000\n") {
				t.Error(got)
			}
		})
	}
}

// The bounds are those of the options, and what is at the bound is within it.
func TestCase_A50_BoundsAreOptions(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLabels, o.MaxLabelNameBytes, o.MaxLabelValueBytes = 2, 8, 3 })
	for _, tc := range []struct {
		series string
		want   int
	}{
		{`__name__=abc i=abc`, 204}, {`__name__=abcd i=abc`, 400}, {`__name__=abc i=abc j=a`, 400},
		{`__name__=abc iiiiiiii=a`, 204}, {`__name__=abc iiiiiiiii=a`, 400},
	} {
		if a := r.post(request(t, tc.series+" : 1@1000")); a.code != tc.want {
			t.Errorf("%s: %v", tc.series, a)
		}
	}
}

func TestCase_A52_MethodsAndPaths(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m : 1@1000`)
	for _, tc := range []struct{ method, target, want string }{
		{"GET", Path, "405 allow POST, OPTIONS: only POST is served here"},
		{"PUT", Path, "405 allow POST, OPTIONS: only POST is served here"},
		{"DELETE", Path, "405 allow POST, OPTIONS: only POST is served here"},
		{"PATCH", Path, "405 allow POST, OPTIONS: only POST is served here"},
		{"OPTIONS", Path, "204 allow POST, OPTIONS"},
		{"POST", "/api/v1/writes", "404: 404 page not found"},
		{"POST", Path + "?x=1", "204"},
	} {
		if got := r.do(tc.method, r.server.URL+tc.target, bytes.NewReader(body)).String(); got != tc.want {
			t.Errorf("%s %s: got %s, want %s", tc.method, tc.target, got, tc.want)
		}
	}
	if a := r.do("HEAD", r.url(), nil); a.code != 405 || a.header.Get("Allow") != allowed || a.body != "" {
		t.Errorf("HEAD: %v", a)
	}
	if n := len(r.writes()); n != 1 {
		t.Errorf("%d events", n)
	}
}

// Two requests for one series at once: both are acknowledged, and all four samples are there, whichever came first.
func TestCase_A53_ParallelAndReversed(t *testing.T) {
	r := newRig(t, nil)
	bodies := [2][]byte{
		request(t, `__name__=m : 1@10000 1@20000`), request(t, `__name__=m : 1@30000 1@40000`),
	}
	for round := range 100 {
		var wg sync.WaitGroup
		for i := range bodies {
			wg.Go(func() {
				if a := r.post(bodies[(i+round)%2]); a.code != http.StatusNoContent {
					t.Error(a)
				}
			})
		}
		wg.Wait()
		var times []int64
		for _, e := range r.writes() {
			times = append(times, e.Body.(*log.Write).Times...)
		}
		if s := fmt.Sprint(times); s != "[10000 20000 30000 40000]" && s != "[30000 40000 10000 20000]" {
			t.Fatal(s)
		}
	}
	if len(r.labels) != 1 {
		t.Errorf("%d series", len(r.labels))
	}
}

// Every sender writes its own series and one that all write; nothing is lost and nothing is mixed up.
func TestR4_ManySenders(t *testing.T) {
	r := newRig(t, nil)
	const senders, requests = 16, 20
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range requests {
				a := r.post(request(t, fmt.Sprintf("__name__=m sender=s%d : %d@%d\n__name__=all : %d@%d\n__name__=m sender= sender=x : 1@1", s, s, i, s, i)))
				if a.code != http.StatusBadRequest || !strings.Contains(a.body, "2 of 3 samples written, 1 rejected") {
					t.Error(a)
				}
			}
		})
	}
	wg.Wait()
	own := make(map[string]int)
	for _, e := range r.writes() {
		w := e.Body.(*log.Write)
		if len(w.Refs) != 2 || len(w.Times) != 2 || w.Times[0] != w.Times[1] || w.Values[0] != w.Values[1] {
			t.Fatalf("event %d mixes requests: %+v", e.Seq, w)
		}
		for i, ref := range w.Refs {
			ls := r.labels[ref]
			if s := ls.Get("sender"); s != "" && s != fmt.Sprintf("s%d", int(w.Values[i])) {
				t.Errorf("value %v under %v", w.Values[i], ls)
			}
			own[ls.String()]++
		}
	}
	if len(own) != senders+1 || own[`{__name__="all"}`] != senders*requests {
		t.Errorf("%d series, %d events", len(own), own[`{__name__="all"}`])
	}
}

// The counts of a whole request: too many is 413, and nothing is written.
func TestR4_RequestBounds(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSeries, o.MaxSamples, o.MaxDecodedBytes = 2, 4, 1000 })
	series := func(n int) string { return strings.Repeat("__name__=m : 1@1000\n", n) }
	for _, tc := range []struct{ name, lines, want string }{
		{"series at the bound", series(2), "204"},
		{"series", series(3), "413: 3 series, the limit is 2"},
		{"series and metadata", series(2) + `metadata m counter a ""`, "413: 3 series, the limit is 2"},
		{"samples at the bound", "__name__=m : 1@1 1@2 1@3 1@4", "204"},
		{"samples", "__name__=m : 1@1 1@2 1@3 1@4 1@5", "413: 5 samples, the limit is 4"},
		{"all kinds together", "__name__=m : 1@1 1@2 1@3\nexemplar : 1@1\nhistogram 1@1", "413: 5 samples, the limit is 4"},
		{"decoded bytes", "__name__=m i=" + strings.Repeat("a", 1000) + " : 1@1", "413: 1040 bytes after decompression, the limit is 1000"},
	} {
		events := 0
		if tc.want == "204" {
			events = 1
		}
		if got := r.post(request(t, tc.lines)).String(); got != tc.want || len(r.writes()) != events {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

// R7: what a sender is told while the service cannot take writes, for each reason; and it takes them afterwards.
func TestCase_A44_Gate(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m : 1@1000`)
	for _, tc := range []struct {
		gate error
		want string
	}{
		{ErrSealed, "409: input is sealed by a drain"},
		{fmt.Errorf("seal: %w", ErrSealed), "409: seal: input is sealed by a drain"},
		{&Unavailable{Reason: "disk is below its reserve"}, "503 retry after 5: disk is below its reserve"},
		{&Unavailable{Reason: "replay lags", RetryAfter: 1500 * time.Millisecond}, "503 retry after 2: replay lags"},
		{log.ErrPoisoned, "503 retry after 5: log is poisoned by a failed write"},
		{errors.New("two\nlines"), "503 retry after 5: two lines"},
		{nil, "204"},
	} {
		r.gate.set(tc.gate)
		if got := r.post(body).String(); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
	if n := len(r.writes()); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestCase_A44_RateLimit(t *testing.T) {
	r := newRig(t, func(o *Options) { o.RateLimit, o.RateBurst = 1e-9, 2 })
	var got []string
	for range 3 {
		got = append(got, r.post(request(t, `__name__=m : 1@1000`)).String())
	}
	if s, want := strings.Join(got, " | "), "204 | 204 | 503 retry after 1: rate limit exceeded"; s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

// R7: errors of the log. A request that the log will never take is dropped; all else comes again.
func TestR7_AppendErrors(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m : 1@1000`)
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("append: %w", log.ErrTooLarge), "413: append: event is too large"},
		{log.ErrPoisoned, "503 retry after 5: log is poisoned by a failed write"},
		{log.ErrClosed, "503 retry after 5: log is closed"},
		{log.ErrDictionaryFull, "503 retry after 5: too many series wait for their first event"},
		{ErrSealed, "409: input is sealed by a drain"},
		{log.ErrInvalid, "500: invalid event"},
		{errors.New(strings.Repeat("é", 1000)), "503 retry after 5: " + strings.Repeat("é", 511)},
	} {
		r.fail.next = []error{tc.err}
		if got := r.post(body).String(); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}

// A closed log refuses, and the handler says so.
func TestR7_ClosedLog(t *testing.T) {
	r := newRig(t, nil)
	r.stop()
	got := r.post(request(t, `__name__=m : 1@1000`))
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("%v", got)
	}
}

// No answer of the table is 429, and exactly those of 503 ask for a repetition.
func TestR7_Table(t *testing.T) {
	for _, err := range []error{
		nil, errMethod, errMediaType, errMessage, errVersion2, errVersion, errEncoding, &encodingError{"x"}, errEmptyBody, errFramed,
		errSnappy, errOnlyUnknown, errBody, errInflight, errBodySlow, &sizeError{}, &partialError{}, &ScanError{}, ErrSealed,
		&Unavailable{}, log.ErrPoisoned, log.ErrClosed, log.ErrTooLarge, log.ErrDictionaryFull, errors.New("other"),
	} {
		a := answerTo(err)
		if a.status == http.StatusTooManyRequests || (a.status == http.StatusServiceUnavailable) != (a.retry >= time.Second) {
			t.Errorf("%v: %+v", err, a)
		}
	}
}

// R8: what replay has seeded is not logged again, in whatever order events and requests come.
func TestR8_Seed(t *testing.T) {
	r := newRig(t, nil)
	r.handler.SeedMetadata(8, []log.Metadata{{Family: "m", Type: "counter", Help: "New."}})
	r.handler.SeedMetadata(7, []log.Metadata{{Family: "m", Type: "counter", Help: "Old."}, {Family: "n", Type: "gauge"}})
	r.post(request(t, "metadata m counter New. \"\"\nmetadata n gauge \"\" \"\""))
	if got := r.show(); got != "nothing appended\n" {
		t.Error(got)
	}
	r.post(request(t, `metadata m counter Old. ""`))
	if got, want := r.show(), "#1\n  metadata m counter \"Old.\" \"\"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// R8: the record of families is bounded, and what it forgot is logged once more.
func TestR8_RecordIsBounded(t *testing.T) {
	f := newFamilyRecord()
	for i := range maxFamilies + 10 {
		f.logged(1, [][]log.Metadata{{{Family: strconv.Itoa(i)}}})
	}
	if len(f.last) != maxFamilies {
		t.Errorf("%d families", len(f.last))
	}
}

// Series of which nothing is kept must not wait in the dictionary for an event that never comes.
func TestR6_RefusedSeriesAreNotDefined(t *testing.T) {
	r := newRig(t, nil)
	r.post(request(t, "__name__=m : 1@90000000\n__name__=n"))
	if a := r.post(request(t, `__name__=first : 1@1000`)); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	for _, e := range r.writes() {
		for _, d := range e.Body.(*log.Write).Defs {
			if d.Ref != 1 {
				t.Errorf("%v has reference %d: references were given to series that were refused", d.Labels, d.Ref)
			}
		}
	}
}

// R5: a sender that goes away while its event is under way changes nothing about the counts.
func TestR5_SenderGoesAway(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m : 1@1000`)
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	arrived, gone := make(chan struct{}), make(chan struct{})
	r.fail.before = func(ctx context.Context) {
		close(arrived)
		<-gone
		if ctx.Done() != nil {
			t.Error("the append can be abandoned")
		}
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", Path, len(body), body)
	<-arrived
	conn.Close()
	close(gone)
	waitFor(t, func() bool { return r.values()["requests_total{204}"] == 1 })
	if n := len(r.writes()); n != 1 {
		t.Errorf("%d events", n)
	}
}

// R3: of known series, a request allocates nothing before its event.
func TestR3_KnownSeriesAllocateNothing(t *testing.T) {
	r := newRig(t, nil)
	var lines strings.Builder
	for i := range 500 {
		fmt.Fprintf(&lines, "__name__=m i=v%d j=x : 1@1000 2@2000\n", i)
	}
	body := request(t, lines.String())
	if a := r.post(body); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	decoded, err := snappy.Decode(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	a := r.handler.arenas.get()
	run := func() {
		a.builder.Reset()
		c, err := Check(decoded)
		if err != nil {
			t.Fatal(err)
		}
		a.scan.Reset(decoded, c)
		var tally tally
		if err := r.handler.collect(a, &tally); err != nil || tally.counts[itemSample].logged() != 1000 {
			t.Fatal(err, tally)
		}
	}
	if n := testing.AllocsPerRun(5, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNew_Refuses(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no body":                    func(o *Options) { o.MaxBodyBytes = 0 },
		"in-flight below a request":  func(o *Options) { o.MaxInflightBytes = 1 << 20 },
		"burst":                      func(o *Options) { o.RateLimit = 1 },
		"negative future":            func(o *Options) { o.MaxFuture = -1 },
		"values beyond a label":      func(o *Options) { o.MaxLabelValueBytes = 1 << 24 },
		"no time for a body":         func(o *Options) { o.BodyTimeout = 0 },
		"a series without any label": func(o *Options) { o.MaxLabels = 0 },
	} {
		opts := DefaultOptions()
		change(&opts)
		if _, err := New(nil, nil, nil, prometheus.NewRegistry(), opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	reg := prometheus.NewRegistry()
	for i := range 2 {
		if _, err := New(nil, nil, nil, reg, DefaultOptions()); (err != nil) != (i == 1) {
			t.Errorf("handler %d on one registry: %v", i, err)
		}
	}
}

// With 0, no distance into the future is refused; the bound of JSON stays.
func TestR7_MaxFutureOff(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxFuture = 0 })
	for at, want := range map[int64]int{9007199254740992: 204, 9007199254740993: 400} {
		body := snappy.Encode(nil, marshal(t, &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
			Labels: []prompb.Label{{Name: "__name__", Value: "m"}}, Samples: []prompb.Sample{{Timestamp: at}},
		}}}))
		if a := r.post(body); a.code != want {
			t.Errorf("%d: %v", at, a)
		}
	}
}
