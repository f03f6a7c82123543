package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections"
)

// events reads the whole log of a running service.
func (v *hosted) events() []*log.Event {
	v.t.Helper()
	var out []*log.Event
	r := v.node.events.NewReader(1)
	for {
		e, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			v.t.Fatal(err)
		}
		out = append(out, e)
	}
}

// disk is free space that a test sets.
type disk struct{ free atomic.Uint64 }

func (d *disk) bytes(string) (uint64, error) { return d.free.Load(), nil }

func (v *hosted) setFree(d *disk, n uint64) {
	v.t.Helper()
	d.free.Store(n)
	if err := v.node.gate.lookAtDisk(); err != nil {
		v.t.Fatal(err)
	}
}

// G2: after all writes were refused for a second or more, the first that is taken comes behind a start event; after less, it
// does not.
func TestG2_ResumeAfterRefusal(t *testing.T) {
	c, d := newClock(100_000_000), &disk{}
	d.free.Store(1 << 40)
	v := startService(t, setup{config: panesOfAMinute, around: surroundings{now: c.now, monotonic: c.monotonic, freeBytes: d.bytes}})
	v.send(sent{`m`, 1000, 1})
	for _, refused := range []time.Duration{999 * time.Millisecond, time.Second, 10 * time.Minute} {
		before := v.headSeq()
		v.setFree(d, 0)
		if code := v.sendFor(sent{`m`, 2000, 1}); code != 503 {
			t.Fatalf("status %d on a full disk", code)
		}
		if code, body := v.get("/-/ready"); code != 503 || !strings.Contains(body, "disk") {
			t.Errorf("ready: %d %s", code, body)
		}
		if a := v.instant(`vector(1)`, 0); a.code != 200 {
			t.Errorf("query on a full disk: %d", a.code)
		}
		c.pass(refused)
		if code := v.sendFor(sent{`m`, 2000, 1}); code != 503 { // refused again: what counts is since when
			t.Fatalf("status %d on a full disk", code)
		}
		v.setFree(d, 1<<40)
		v.send(sent{`m`, 3000, 1})
		var kinds []string
		for _, e := range v.events()[before:] {
			kinds = append(kinds, fmt.Sprint(e.Body.Kind()))
			if s, ok := e.Body.(*log.Start); ok && s.Reason != log.StartResume {
				t.Errorf("start event %d has reason %v", e.Seq, s.Reason)
			}
		}
		want := "[start write]"
		if refused < resumeAfter {
			want = "[write]"
		}
		if fmt.Sprint(kinds) != want {
			t.Errorf("refused for %s: the log goes on with %v, want %s", refused, kinds, want)
		}
	}
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 0 {
		t.Errorf("%v buckets were closed by the clock while nothing could be written", n)
	}
}

// G2: while writes are refused no bucket closes by the clock, however long that is; what the senders held back is not late.
func TestG2_NoTickWhileRefused(t *testing.T) {
	c, d := newClock(100_000_000), &disk{}
	d.free.Store(1 << 40)
	v := startService(t, setup{config: panesOfAMinute, around: surroundings{now: c.now, monotonic: c.monotonic, freeBytes: d.bytes}})
	v.send(sent{`m`, 1000, 1})
	v.setFree(d, 0)
	if code := v.sendFor(sent{`m`, 2000, 1}); code != 503 {
		t.Fatalf("status %d on a full disk", code)
	}
	c.pass(10 * time.Minute)
	ticks := tickLog{v.node.gate}
	if due, err := v.node.panes.Due(t.Context(), ticks.LogTime()); !due || err != nil {
		t.Fatalf("the bucket is not due: %v, %v", due, err)
	}
	before := v.headSeq()
	if seq, err := ticks.Append(t.Context(), &log.Tick{}); seq != 0 || err != nil {
		t.Errorf("a tick was written: %d, %v", seq, err)
	}
	v.setFree(d, 1<<40)
	// Whoever comes first, the ticker or a sender, the start stands before it.
	if _, err := ticks.Append(t.Context(), &log.Tick{}); err != nil {
		t.Fatal(err)
	}
	v.send(sent{`m`, 2000, 1})
	if s, ok := v.events()[before].Body.(*log.Start); !ok || s.Reason != log.StartResume {
		t.Errorf("event %d is %v", before+1, v.events()[before].Body.Kind())
	}
	m := v.numbers()
	if n, late := m.of(t, "pane_closed_buckets_total"), m.of(t, "pane_corrected_samples_total"); n != 0 || late != 0 {
		t.Errorf("%v buckets closed, %v samples late", n, late)
	}
}

// After minutes of downtime the backlog comes, and nothing of it is late.
func TestDowntimeThenBacklog(t *testing.T) {
	const start = int64(1_700_000_000_000)
	c := newClock(start)
	v := startService(t, setup{config: panesOfAMinute, around: surroundings{now: c.now, monotonic: c.monotonic}})
	for k := range int64(20) {
		v.send(sent{`m{i="a"}`, start + k*1000, 1}, sent{`m{i="b"}`, start + k*1000, 1})
		c.pass(time.Second)
	}
	v.mustStop()
	c.pass(17 * time.Minute)
	v = startService(t, v.setup)
	if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
		t.Errorf("a bucket closes before the backlog has come: %v, %v", due, err)
	}
	// The ticker has its say before the backlog does.
	if _, err := (tickLog{v.node.gate}).Append(t.Context(), &log.Tick{}); err != nil {
		t.Fatal(err)
	}
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 0 {
		t.Errorf("%v buckets closed by the downtime", n)
	}
	now := c.wall.Load()
	for at := start + 20_000; at <= now; at += 1000 {
		if at%10_000 == 0 {
			v.send(sent{`m{i="a"}`, at, 1}, sent{`m{i="b"}`, at, 1})
		}
	}
	m := v.numbers()
	for _, lost := range []string{"late_dropped", "late_uncorrectable", "duplicate", "conflict"} {
		if n := m.of(t, "pane_samples_total", "result", lost); n != 0 {
			t.Errorf("%s: %v", lost, n)
		}
	}
	if n := m.of(t, "pane_corrected_samples_total"); n != 0 {
		t.Errorf("%v samples were late", n)
	}
}

// A barrier far ahead costs what is open, and what is written later is aggregated as usual, also after a restart.
func TestFarFutureBarriers(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	now := time.Now().UnixMilli()
	end := int64(60_000)
	for round, at := range []int64{math.MaxInt64, math.MaxInt64 - 1, now * 1000, now * 1_000_000, 1 << 60} {
		for i := range 100 {
			v.send(sent{fmt.Sprintf(`m{i="%d"}`, i), end - 30_000, 1})
		}
		began := time.Now()
		o := v.barrier(at)
		if took := time.Since(began); o.Closed != 100 || took > patience || len(o.warnings) == 0 {
			t.Errorf("barrier %d: %+v after %s", at, o, took)
		}
		if most := time.Now().Add(11 * time.Minute).UnixMilli(); o.Complete > most {
			t.Errorf("barrier %d: complete through %d", at, o.Complete)
		}
		v.want(`sum(sum_over_time(m[1m]))`, end, one(100))
		end += 60_000
		if round%2 == 0 {
			v = v.restart()
		}
	}
	if o := v.barrier(math.MinInt64); o.Closed != 0 {
		t.Errorf("%+v", o)
	}
	// What is refused leaves nothing in the log.
	before := v.headSeq()
	for _, bad := range []string{"", "abc", "12.5", "1e12", " 60000", "9223372036854775808"} {
		if code, _, body := v.form("/api/v1/precompute/watermark", "time_ms", bad); code != 400 {
			t.Errorf("time_ms=%q: %d %s", bad, code, body)
		}
	}
	if got := v.headSeq(); got != before {
		t.Errorf("%d events were appended", got-before)
	}
	m := v.numbers()
	if applied, corrected := m.of(t, "pane_samples_total", "result", "applied"), m.of(t, "pane_corrected_samples_total"); applied != 500 || corrected != 0 {
		t.Errorf("applied %v, of which late %v", applied, corrected)
	}
}

// A barrier while writers run: all that was acknowledged before the call is in the first answer after it, and what comes
// meanwhile, of series that come meanwhile, disturbs nothing.
func TestBarrierWhileWritersRun(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	const writers, rounds = 2, 40
	var (
		window  sync.RWMutex // held for reading while a sample of the window is sent
		from    int64
		sentNow atomic.Int64 // of the window
		wg      sync.WaitGroup
		stop    = make(chan struct{})
	)
	for w := range writers {
		wg.Go(func() {
			for n := int64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				window.RLock()
				v.send(sent{fmt.Sprintf(`m{w="%d",n="%d"}`, w, n), from + n%60_000 + 1, 1})
				sentNow.Add(1)
				window.RUnlock()
			}
		})
	}
	last := outcome{}
	for round := range rounds {
		v.eventually("something is written", func() bool { return sentNow.Load() > 3 })
		window.Lock()
		acknowledged := sentNow.Swap(0)
		from += 60_000
		end := from
		window.Unlock()

		o := v.barrier(end)
		a := v.instant(`count(sum_over_time(m[1m]))`, end)
		if a.Err != nil || a.route != "warm" || a.one(t) != float64(acknowledged) {
			t.Fatalf("round %d: %v, route %q, %v; %d series were acknowledged", round, a.Value, a.route, a.Err, acknowledged)
		}
		if a.seq < o.Seq || o.Seq <= last.Seq || a.complete != strconv.FormatInt(end, 10) {
			t.Errorf("round %d: %+v after %+v, answer as of %d, complete through %s", round, o, last, a.seq, a.complete)
		}
		last = o
	}
	close(stop)
	wg.Wait()
}

// P5 and the door's counters, as /metrics shows them.
func TestConservation(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute + "correction_horizon: 2m\n"})
	check := func(v *hosted, door bool) {
		t.Helper()
		m := v.numbers()
		get := func(name string, label ...string) float64 { t.Helper(); return m.of(t, name, label...) }
		planned := get("pane_samples_total")
		unplanned, markers := get("pane_unplanned_samples_total"), get("pane_stale_markers_total")
		if door {
			received, rejected, logged := get("write_samples_received_total"), get("write_samples_rejected_total"), get("write_samples_logged_total")
			if received != rejected+logged || received == 0 || rejected == 0 {
				t.Errorf("received %v = rejected %v + logged %v", received, rejected, logged)
			}
			if logged != get("log_samples_total") {
				t.Errorf("logged %v at the door and %v in the log", logged, get("log_samples_total"))
			}
			// Each planned sample reaches exactly one stream here; markers of unplanned series are not sent.
			if logged != planned+unplanned+markers {
				t.Errorf("logged %v = planned %v + unplanned %v + stale %v", logged, planned, unplanned, markers)
			}
		}
		want := map[string]float64{"applied": 8, "duplicate": 5, "conflict": 1, "late_uncorrectable": 1, "late_dropped": 0}
		for result, n := range want {
			if got := get("pane_samples_total", "result", result); got != n {
				t.Errorf("%s: %v, want %v", result, got, n)
			}
		}
		if c := get("pane_corrected_samples_total"); c != 1 || unplanned != 2 || markers != 1 {
			t.Errorf("corrected %v, unplanned %v, stale %v", c, unplanned, markers)
		}
	}
	first := []sent{{`m{i="a"}`, 1000, 1}, {`m{i="a"}`, 2000, 2}, {`m{i="b"}`, 1000, 1}, {`m{i="b"}`, 3000, stale}, {`c`, 1000, 5}, {`other`, 1000, 1}}
	v.send(first...)
	v.send(first[0], first[1], first[2], first[4])
	v.send(first[0], first[5])
	v.send(sent{`m{i="a"}`, 1000, 7})
	v.send(sent{`m{i="a"}`, 61_000, 1}, sent{`m{i="c"}`, 61_000, 1}) // closes the first bucket of a
	v.send(sent{`m{i="a"}`, 4000, 1})                                // late, corrected
	v.send(sent{`m{i="a"}`, 500_000, 1})
	v.send(sent{`m{i="a"}`, 5000, 1}) // beyond the horizon
	if code := v.sendFor(sent{`m{i="a"}`, time.Now().Add(time.Hour).UnixMilli(), 1}); code != 400 {
		t.Errorf("far future: %d", code)
	}
	check(v, true)
	check(v.restart(), false)
}

// G1: drain closes everything and seals: writes get 409, queries go on, and the next start lifts the seal.
func TestG1_DrainSealsUntilTheNextStart(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	v.send(sent{`m{i="a"}`, 1000, 1}, sent{`m{i="b"}`, 30_000, 2})
	v.wantMiss(`sum(sum_over_time(m[1m]))`, 60_000, "unpublished")
	o := v.drain()
	if o.Closed != 2 {
		t.Errorf("%+v", o)
	}
	v.want(`sum(sum_over_time(m[1m]))`, 60_000, one(3))
	v.want(`sum(sum_over_time(m[1m]))`, time.Now().Add(time.Hour).Truncate(time.Minute).UnixMilli(), map[string]float64{}) // everything is published
	before := v.headSeq()
	for range 3 {
		if code := v.sendFor(sent{`m{i="a"}`, 2000, 1}); code != 409 {
			t.Errorf("status %d after the drain", code)
		}
	}
	if got := v.headSeq(); got != before {
		t.Errorf("%d events behind the drain", got-before)
	}
	if o := v.drain(); o.Closed != 0 {
		t.Errorf("second drain: %+v", o)
	}
	if code, body := v.get("/-/ready"); code != 503 || !strings.Contains(body, "sealed by a drain") {
		t.Errorf("ready: %d %s", code, body)
	}
	drained := time.Now().UnixMilli()
	v = v.restart()
	v.send(sent{`m{i="a"}`, 61_000, 5})
	v.want(`sum(sum_over_time(m[1m]))`, 60_000, one(3))
	v.wantMiss(`sum(sum_over_time(m[1m]))`, 120_000, "unpublished")
	// The drain counts as a barrier at its own time.
	a := v.instant(`sum(sum_over_time(m[1m]))`, 60_000)
	if at, err := strconv.ParseInt(a.complete, 10, 64); err != nil || at > drained || drained-at > patience.Milliseconds() {
		t.Errorf("complete through %q, drained at %d", a.complete, drained)
	}
	v.barrier(120_000)
	v.want(`sum(sum_over_time(m[1m]))`, 120_000, one(5))
}

// held is a projection whose batches of events wait until the test lets them through.
type held struct {
	projections.Projection
	pass chan struct{}
}

// Apply implements projections.Projection.
func (h *held) Apply(ctx context.Context, events []*log.Event) error {
	select {
	case <-h.pass:
		return h.Projection.Apply(ctx, events)
	case <-ctx.Done():
		return ctx.Err()
	}
}

var progressText = regexp.MustCompile(`replaying: (\d+) of (\d+) events`)

// progress reads how far a replay is from what /-/ready says.
func (v *hosted) progress() (applied, total int) {
	v.t.Helper()
	code, body := v.get("/-/ready")
	m := progressText.FindStringSubmatch(body)
	if code != 503 || m == nil {
		v.t.Fatalf("ready: %d %s", code, body)
	}
	applied, _ = strconv.Atoi(m[1])
	total, _ = strconv.Atoi(m[2])
	return applied, total
}

// hold puts a held projection between the log and the panes.
func (h *held) hold(t *testing.T) func(*node) {
	return func(n *node) {
		h.Projection = n.panes
		n.runner = projections.NewRunner(n.events, h)
		if err := n.runner.Restore(); err != nil {
			t.Error(err)
		}
	}
}

// Ready means that the plan of this start is in force, also when there was nothing to replay: else the first queries would
// miss for want of a materialization.
func TestReadyWithThePlanInForce(t *testing.T) {
	h := &held{pass: make(chan struct{})}
	v, err := openService(t, setup{config: panesOfAMinute, opened: h.hold(t)})
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("writes are taken", func() bool { return v.sendFor(sent{`m`, 1000, 1}) == 204 })
	if code, body := v.get("/-/ready"); code != 503 || !strings.Contains(body, "replaying") {
		t.Errorf("ready: %d %s", code, body)
	}
	if a := v.instant(`sum_over_time(m[1m])`, 60_000); a.code != 503 {
		t.Errorf("query: %d %v", a.code, a.Err)
	}
	close(h.pass)
	v.eventually("ready", func() bool { code, _ := v.get("/-/ready"); return code == 200 })
	v.wantMiss(`sum_over_time(m[1m])`, 60_000, "unpublished")
}

func TestCase_B17_LongReplay(t *testing.T) {
	v := startService(t, wipeable(t, setup{config: panesOfAMinute, flags: []string{"--projection.checkpoint-interval=-1s"}}))
	const requests, each = 2000, 100
	for r := range int64(requests) {
		ss := make([]sent, each)
		for i := range ss {
			ss[i] = sent{fmt.Sprintf(`m{i="%d"}`, i), 30*r + 1, 1}
		}
		v.send(ss...)
	}
	head := int(v.headSeq())

	h := &held{pass: make(chan struct{})}
	left := v.setup.around.logFS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	_ = v.stop() // of no effect on what is left
	s := v.setup.onto(t, left)
	s.opened = h.hold(t)
	began := time.Now()
	v, err := openService(t, s)
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("writes are taken", func() bool { return v.node.gate.open.Load() })
	before := -1
	for range 5 {
		applied, total := v.progress()
		if applied < before || total != head {
			t.Errorf("%d of %d events, after %d of %d", applied, total, before, head)
		}
		before = applied
		if code, _ := v.get("/-/healthy"); code != 200 {
			t.Errorf("healthy: %d", code)
		}
		if a := v.instant(`sum(count_over_time(m[1m]))`, 60_000); a.code != 503 || a.errorType != "unavailable" || !strings.Contains(a.Err.Error(), "replaying") {
			t.Errorf("query: %d %s %v", a.code, a.errorType, a.Err)
		}
		v.send(sent{`m{i="0"}`, 59_999, 1})
		code, header, body := v.form("/api/v1/precompute/watermark", "time_ms", "1", "timeout", "1ms")
		if a := decodeAnswer(t, code, header, body); code != 503 || a.errorType != "timeout" {
			t.Errorf("barrier: %d %s", code, body)
		}
		h.pass <- struct{}{}
		v.eventually("a batch is applied", func() bool { applied, _ := v.progress(); return applied > before })
	}
	close(h.pass)
	v.eventually("ready", func() bool { code, _ := v.get("/-/ready"); return code == 200 })
	t.Logf("replayed %d samples in %s", requests*each, time.Since(began))
	v.barrier(60_000)
	v.want(`sum(count_over_time(m[1m]))`, 60_000, one(requests*each+1))
}

// Without a flag there are not many more queries at one time than processors, so that a write does not wait behind all of them.
func TestMaxQueriesFollowTheProcessors(t *testing.T) {
	for processors, want := range map[int]int{1: 8, 2: 8, 3: 8, 8: 16, 64: 20} {
		if got := queriesOn(processors); got != want {
			t.Errorf("%d processors: %d queries, want %d", processors, got, want)
		}
	}
	if got := (&serveFlags{concurrency: 7}).maxQueries(); got != 7 {
		t.Errorf("%d queries, 7 were asked for", got)
	}
}
