package main

// Real processes on real small disks.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"tidemark/transport/remotewrite"
)

// bulk sends requests that take space: series of their own whose labels cannot be compressed.
type bulk struct {
	s     *site
	r     *rand.Rand
	n     int64 // series so far
	acked int64
}

const bulkSeries = 20 // of a request, about 3 KiB each

// series draws the labels of some new series.
func (b *bulk) series() (out []labels.Labels) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	for range bulkSeries {
		pad := make([]byte, 3000)
		for i := range pad {
			pad[i] = letters[b.r.IntN(len(letters))]
		}
		b.n++
		out = append(out, labels.FromStrings("__name__", "m", "n", strconv.FormatInt(b.n, 10), "pad", string(pad)))
	}
	return out
}

// send sends one request in a version of the protocol and returns the answer. What is acknowledged is counted.
func (b *bulk) send(version int) httpReply {
	b.s.t.Helper()
	const at = 1_005_000
	header := []string{"Content-Encoding", "snappy", "Content-Type", contentType1}
	var body []byte
	var err error
	if version == 1 {
		var q prompb.WriteRequest
		for _, ls := range b.series() {
			q.Timeseries = append(q.Timeseries, prompb.TimeSeries{Labels: prompb.FromLabels(ls, nil), Samples: []prompb.Sample{{Value: 1, Timestamp: at}}})
		}
		body, err = q.Marshal()
	} else {
		header[3] = contentType2
		table := writev2.NewSymbolTable()
		var q writev2.Request
		for _, ls := range b.series() {
			q.Timeseries = append(q.Timeseries, writev2.TimeSeries{LabelsRefs: table.SymbolizeLabels(ls, nil), Samples: []writev2.Sample{{Value: 1, Timestamp: at}}})
		}
		q.Symbols = table.Symbols()
		body, err = q.Marshal()
	}
	if err != nil {
		b.s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.s.t.Context(), http.MethodPost, b.s.url()+"/api/v1/write", bytes.NewReader(snappy.Encode(nil, body)))
	if err != nil {
		b.s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := b.s.http.Do(req)
	if err != nil {
		return httpReply{body: err.Error()} // a process that has ended
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return httpReply{body: err.Error()}
	}
	if res.StatusCode == http.StatusNoContent {
		b.acked += bulkSeries
	}
	return httpReply{res.StatusCode, res.Header, string(text)}
}

// wantRefusal holds what a sender is told while nothing can be taken: to come again, on one short line, in both versions.
func (b *bulk) wantRefusal(version int, r httpReply, why string) {
	b.s.t.Helper()
	if seconds, err := strconv.Atoi(r.header.Get("Retry-After")); r.code != http.StatusServiceUnavailable || err != nil || seconds < 1 || !strings.Contains(r.body, why) ||
		len(r.body) > 1024 || strings.Count(r.body, "\n") != 1 {
		b.s.t.Errorf("version %d is refused with %d, Retry-After %q, %q", version, r.code, r.header.Get("Retry-After"), r.body)
	}
	if n := r.header.Get("X-Prometheus-Remote-Write-Samples-Written"); (n == "0") != (version == 2) || n != "" && version == 1 {
		b.s.t.Errorf("version %d: %q samples are said to be written", version, n)
	}
}

// counted asks how many series there are.
func (b *bulk) counted() float64 {
	b.s.t.Helper()
	r, route := b.s.instant("count(sum_over_time(m[1m]))", 1_010_000)
	out, err := parseAnswer(r.body)
	if err != nil || route != "warm" && route != "live" {
		b.s.t.Fatalf("%v, route %q: %d %.300s", err, route, r.code, r.body)
	}
	return soleValue(b.s.t, out)
}

const fullDisk = "disk is below its reserve"

// TestFullDisk lets a service fill a real small disk up to its reserve, and something else take even that. Writes are refused with a wish
// to come again, in both versions, and so are barriers; queries go on; and when there is space the same process takes writes again, and has
// all that it ever acknowledged.
func TestFullDisk(t *testing.T) {
	s := newSite(t, oneStream, "--log.level=warn", "--log.min-free-bytes=64MiB", "--storage.ballast-bytes=8MiB", "--projection.checkpoint-interval=2s")
	disk := mountSmall(t, filepath.Join(s.dir, "data"), 256<<20)
	p := s.serveReady()
	b := &bulk{s: s, r: rand.New(rand.NewPCG(1, 1))}
	if r := b.send(1); r.code != http.StatusNoContent {
		t.Fatalf("write: %d %s", r.code, r.body)
	}
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	first := b.acked
	remove := disk.fill(100 << 20)
	for n := 0; ; n++ {
		version := 1 + n%2
		r := b.send(version)
		if r.code != http.StatusNoContent {
			b.wantRefusal(version, r, fullDisk)
			break
		}
	}
	// A new WAL reserves its space at once, which may be more than half of what is kept here.
	if free := disk.free(); free < 20<<20 || free > 72<<20 {
		t.Errorf("writes are refused when %d bytes are free", free)
	}
	acked := b.acked
	if acked == first {
		t.Fatal("the disk was full before the service had a share in it")
	}
	t.Logf("%d series acknowledged, %.1f MiB free", acked, float64(disk.free())/(1<<20))
	whole := disk.fill(0)
	poll(t, time.Minute, "the full disk is seen", func() (bool, string) {
		r := s.must(http.MethodPost, "/api/v1/precompute/watermark", "time_ms", "1010000")
		return r.code == http.StatusServiceUnavailable, r.body
	})
	for n := range 12 {
		b.wantRefusal(1+n%2, b.send(1+n%2), fullDisk)
		if got := b.counted(); got != float64(acked) {
			t.Errorf("%v series are there, %d were acknowledged", got, acked)
		}
		if r := s.must(http.MethodGet, "/-/ready"); r.code != http.StatusServiceUnavailable || !strings.Contains(r.body, fullDisk) {
			t.Errorf("ready: %d %s", r.code, r.body)
		}
		if r := s.must(http.MethodPost, "/api/v1/precompute/watermark", "time_ms", "1010000"); r.code != http.StatusServiceUnavailable {
			t.Errorf("a barrier on a full disk: %d %s", r.code, r.body)
		}
		if r := s.must(http.MethodGet, "/-/healthy"); r.code != http.StatusOK {
			t.Errorf("healthy: %d", r.code)
		}
		<-time.After(100 * time.Millisecond) // checkpoints and notes are tried meanwhile
	}
	if b.acked != acked {
		t.Errorf("%d series were acknowledged by a full disk", b.acked-acked)
	}
	whole()
	remove()
	poll(t, time.Minute, "writes are taken again", func() (bool, string) {
		r := b.send(2)
		return r.code == http.StatusNoContent, fmt.Sprint(r.code, r.body)
	})
	poll(t, time.Minute, "ready again", func() (bool, string) {
		r := s.must(http.MethodGet, "/-/ready")
		return r.code == http.StatusOK, r.body
	})
	check := func() {
		t.Helper()
		if _, err := s.barrier(1_010_000); err != nil {
			t.Fatal(err)
		}
		if got := b.counted(); got != float64(b.acked) {
			t.Errorf("%v series are there, %d were acknowledged", got, b.acked)
		}
	}
	check()
	// Nothing is left that only a restart would mend.
	poll(t, time.Minute, "a checkpoint of everything", func() (bool, string) {
		durable, head := s.metric(`tidemark_projection_durable_seq{projection="pane"}`), s.metric("tidemark_log_head_seq")
		return durable >= head, fmt.Sprintf("%v of %v", durable, head)
	})
	s.stop(p)
	p = s.serveReady()
	check()
	s.stop(p)
	verifyLog(t, s)
}

// TestStalledDisk lets every write and sync of a real disk hang. Meanwhile nothing is acknowledged, as many requests wait as may and the
// others are told to come again, and queries are answered; when the disk goes on, so does the same process, what waited is acknowledged,
// and whoever lost patience and sent again is counted once.
func TestStalledDisk(t *testing.T) {
	const waiting, senders = 40, 60
	s := newSite(t, oneStream, "--log.level=warn", "--log.min-free-bytes=8MiB", "--storage.ballast-bytes=0B",
		"--write.max-client-share=1", fmt.Sprint("--write.max-inflight-requests=", waiting))
	disk := mountLoop(t, filepath.Join(s.dir, "data"), 160<<20)
	p := s.serveReady()
	if code := s.write("m", 1_000_000, 1000); code != http.StatusNoContent {
		t.Fatalf("write: %d", code)
	}
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	send := func(n int) (int, string) {
		c := remotewrite.Client{URL: s.url() + remotewrite.Path, HTTP: s.http}
		err := c.Write(t.Context(), []remotewrite.Series{{Labels: labels.FromStrings("__name__", "m", "n", strconv.Itoa(n)), Samples: []remotewrite.Sample{{Time: 1_015_000, Value: 1}}}})
		var status *remotewrite.StatusError
		switch {
		case err == nil:
			return http.StatusNoContent, ""
		case errors.As(err, &status):
			return status.Code, fmt.Sprint(status.Message, ", again after ", status.RetryAfter)
		default:
			return 0, err.Error()
		}
	}
	type answer struct {
		n, code int
		text    string
	}
	answers := make(chan answer, senders)
	disk.freeze()
	for n := range senders {
		go func() {
			code, text := send(n)
			answers <- answer{n, code, text}
		}()
	}
	// The committer takes what comes first, so that all but as many as may wait are answered while the disk stands still.
	for range senders - waiting {
		select {
		case a := <-answers:
			if a.code != http.StatusServiceUnavailable || !strings.Contains(a.text, "too many writes are in flight, again after 1s") {
				t.Errorf("while the disk stalls: %d %s", a.code, a.text)
			}
		case <-time.After(time.Minute):
			t.Fatal("who cannot wait is not told so")
		}
	}
	for range 20 {
		s.wantWarm("sum_over_time(m[1m])", 1_010_000, "1000")
		if r := s.must(http.MethodGet, "/-/healthy"); r.code != http.StatusOK {
			t.Errorf("healthy: %d", r.code)
		}
		select {
		case a := <-answers:
			t.Errorf("answered while the disk stalls: %d %s", a.code, a.text)
		case <-time.After(100 * time.Millisecond):
		}
	}
	disk.thaw()
	for range waiting {
		if a := <-answers; a.code != http.StatusNoContent {
			t.Errorf("after the stall: %d %s", a.code, a.text)
		}
	}
	for n := range senders {
		if code, text := send(n); code != http.StatusNoContent {
			t.Errorf("sent again: %d %s", code, text)
		}
	}
	if _, err := s.barrier(1_020_000); err != nil {
		t.Fatal(err)
	}
	s.wantWarm("sum(sum_over_time(m[10s]))", 1_020_000, strconv.Itoa(senders))
	s.stop(p)
	verifyLog(t, s)
}

// TestFullDisk_WithoutReserve lets a real disk run full under a write, because no reserve was kept. Nothing that the disk did not take is
// acknowledged; the process ends with its own code; a start while the disk is full says why it does not, or declares that it only
// reads; and with space everything acknowledged is there.
func TestFullDisk_WithoutReserve(t *testing.T) {
	s := newSite(t, oneStream, "--log.level=warn", "--log.min-free-bytes=0B", "--storage.ballast-bytes=0B")
	disk := mountSmall(t, filepath.Join(s.dir, "data"), 128<<20)
	p := s.serveReady()
	b := &bulk{s: s, r: rand.New(rand.NewPCG(2, 2))}
	remove := disk.fill(24 << 20)
	for {
		if r := b.send(1); r.code != http.StatusNoContent {
			if r.code != 0 && r.code != http.StatusServiceUnavailable {
				t.Errorf("the write that did not fit: %d %s", r.code, r.body)
			}
			break
		}
	}
	if code := p.wait(exitWithin); code != exitPoisoned {
		t.Fatalf("exit code %d, want %d:\n%s", code, exitPoisoned, lastLines(p.out.String(), 10))
	}
	if said := p.out.String(); !strings.Contains(said, "no space left on device") {
		t.Errorf("it said:\n%s", lastLines(said, 10))
	}
	whole := disk.fill(0)
	if why := s.wantFailure(exitFailure, "serve", "--web.listen-address="+s.addr); !strings.Contains(why, "the disk is full: 0 bytes are free") || !strings.Contains(why, "data") {
		t.Errorf("a start on a full disk: %s", why)
	}
	whole()
	remove()
	p = s.serveReady()
	if _, err := s.barrier(1_010_000); err != nil {
		t.Fatal(err)
	}
	// The request that failed may be there: it was never acknowledged, and never denied.
	if got := b.counted(); got != float64(b.acked) && got != float64(b.acked+bulkSeries) || b.acked == 0 {
		t.Errorf("%v series are there, %d were acknowledged", got, b.acked)
	}
	s.stop(p)
	verifyLog(t, s)
}
