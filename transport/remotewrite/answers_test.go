package remotewrite

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"tidemark/log"
)

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
		nil, errMethod, errMediaType, errMessage, errVersion2, errVersion, errFirstSymbol, errEncoding, &encodingError{"x"}, errEmptyBody, errFramed,
		errSnappy, errOnlyUnknown, errBody, errInflight, errBodySlow, &sizeError{}, &partialError{}, &ScanError{}, ErrSealed,
		&Unavailable{}, log.ErrPoisoned, log.ErrClosed, log.ErrTooLarge, log.ErrDictionaryFull, errors.New("other"),
	} {
		a := answerTo(err)
		if a.status == http.StatusTooManyRequests || (a.status == http.StatusServiceUnavailable) != (a.retry >= time.Second) {
			t.Errorf("%v: %+v", err, a)
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
