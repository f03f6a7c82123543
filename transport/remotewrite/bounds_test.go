package remotewrite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/log"
)

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
	const each = 64 << 10                                         // what a body of 40 KiB is granted
	senders := int(r.handler.opts.MaxInflightBytes / int64(each)) // the rest is too little for one more of them
	var stalled []*io.PipeWriter
	answers := make(chan reply, senders)
	for range senders {
		body, sender := io.Pipe()
		stalled = append(stalled, sender)
		go func() { answers <- r.do(http.MethodPost, r.url(), body) }()
		if _, err := sender.Write(make([]byte, 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return r.values()["inflight_bytes"] == float64(senders*each) })
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

// stall is a disk that answers no sync while it is held.
type stall struct {
	mu   sync.Mutex
	open chan struct{}
}

func (s *stall) hold() { s.mu.Lock(); s.open = make(chan struct{}); s.mu.Unlock() }

func (s *stall) release() { s.mu.Lock(); close(s.open); s.open = nil; s.mu.Unlock() }

// MaybeError is asked before each file operation.
func (s *stall) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		s.mu.Lock()
		open := s.open
		s.mu.Unlock()
		if open != nil {
			<-open
		}
	}
	return nil
}

func (s *stall) String() string { return "stall" }

// B34: while no sync comes back nothing is acknowledged, as many requests wait as are allowed to and the others are told at
// once to come again; afterwards all is as before.
func TestCase_B34_StalledDisk(t *testing.T) {
	const waiting = 20
	disk := &stall{}
	r := newRigOn(t, errorfs.Wrap(vfs.NewMem(), disk), func(o *Options) { o.MaxInflightRequests, o.MaxClientShare = waiting, 1 })
	if a := r.post(request(t, `__name__=m : 1@1000`)); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	disk.hold()
	answers := make(chan reply, waiting)
	for range waiting {
		go func() { answers <- r.post(request(t, `__name__=m : 2@2000`)) }()
	}
	waitFor(t, func() bool { return r.values()["inflight_requests"] == waiting })
	for range 5 {
		if got, want := r.post(request(t, `__name__=m : 3@3000`)).String(), "503 retry after 1: too many writes are in flight"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	select {
	case a := <-answers:
		t.Errorf("answered before its sync: %v", a)
	default:
	}
	disk.release()
	for range waiting {
		if a := <-answers; a.code != http.StatusNoContent {
			t.Error(a)
		}
	}
	if a := r.post(request(t, `__name__=m : 3@3000`)); a.code != http.StatusNoContent {
		t.Errorf("after the stall: %v", a)
	}
	if n := r.values()["inflight_requests"]; n != 0 {
		t.Errorf("%g requests are under way", n)
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

// A sender that never ends its body is cut off, and not only told: the connection goes without its help.
func TestR6_SlowBodyIsCutOff(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BodyTimeout = 50 * time.Millisecond })
	for name, length := range map[string]string{"declared": "Content-Length: 100", "chunked": "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n5\r\n12", Path, length); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(c)
		if !strings.HasPrefix(string(said), "HTTP/1.1 503 ") || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %q, then %v", name, said, err)
		}
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
	if n := allocations(run); n != 0 {
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

// allocations returns how many f makes. The runtime counts those of all goroutines, what other tests have left running among them: f's own
// are there each time.
func allocations(f func()) float64 {
	least := testing.AllocsPerRun(5, f)
	for range 9 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(5, f))
	}
	return least
}
