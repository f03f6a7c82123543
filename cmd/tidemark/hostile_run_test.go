package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

const (
	// hostileSlice is how many connections TestHostile makes.
	hostileSlice = 600
	// hostileWarm is how many come before the base line is measured: memory that is used again and again is none that is lost.
	hostileWarm = 150
	// hostileMemory is by how much the memory of the process may be above its base line afterwards, once the runtime has given back what the
	// garbage collector has freed. What stays is bounded and does not grow with the connections: the newest events, which the log keeps for
	// whoever follows it, the marks of recent writes, pooled arenas, memtables; and the collector lets the heap be twice what is live.
	hostileMemory = 64 << 20
	// hostileSettles bounds how long that takes: the collector runs by itself every two minutes, and what is free goes back bit by bit.
	hostileSettles = 10 * time.Minute
	// hostilePatience is the p99 of a good writer beside them in a long run. A slice measures no times: the machine does other things.
	hostilePatience = time.Second
)

// TestHostile is the slice that runs with all tests.
func TestHostile(t *testing.T) {
	h := hostileRun(t, seedOf(t), hostileSlice, time.Now().Add(time.Hour))
	for _, f := range h.findings {
		t.Error(f)
	}
}

// TestHostile_Long makes HOSTILE_COUNT connections, or as many as HOSTILE_DURATION lets it, and appends what it saw to the ledger of
// the campaign: `make hostile`.
func TestHostile_Long(t *testing.T) {
	text := os.Getenv("HOSTILE_COUNT")
	if text == "" {
		t.Skip("HOSTILE_COUNT is not set; `make hostile` sets it")
	}
	count, err := strconv.Atoi(text)
	seed, serr := strconv.ParseUint(os.Getenv("HOSTILE_SEED"), 10, 64)
	duration, derr := time.ParseDuration(os.Getenv("HOSTILE_DURATION"))
	if err := errors.Join(err, serr, derr); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h := hostileRun(t, seed, count, began.Add(duration))
	if p99 := time.Duration(h.counts["good writes, p99 ms"]) * time.Millisecond; p99 >= hostilePatience {
		h.find("a good writer's p99 is %v", p99)
	}
	for _, f := range h.findings {
		t.Errorf("FINDING: %s", f)
	}
	l := ledger{path: filepath.Join(root(t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		l.path = path
	}
	if err := l.add(ledgerLine{
		Date: began.UTC().Format(time.RFC3339), Mode: "hostile", From: seed, To: seed, Commit: os.Getenv("CAMPAIGN_COMMIT"),
		Seconds: int64(time.Since(began).Seconds()), Counts: h.counts, Findings: h.findings,
	}); err != nil {
		t.Fatal(err)
	}
}

// hostileRun lets many clients loose that are slow, cut off, oversized, lying, deaf or no clients at all. Every fault of theirs is
// answered with 4xx or with the end of the connection, a body that does not arrive in time with 503, since a slow network is nobody's
// fault; a good writer beside them is always acknowledged and loses nothing; and afterwards the process has no more goroutines
// and descriptors than before, and hardly more memory.
func hostileRun(t *testing.T, seed uint64, count int, end time.Time) *hostileLoad {
	s := newSite(t, oneStream, "--log.level=error", "--web.read-header-timeout=1s", "--web.read-timeout=2s", "--web.idle-timeout=2s", "--web.write-timeout=2s",
		"--write.max-body-bytes=1MiB", "--write.max-decoded-bytes=1MiB", "--web.max-connections=2000")
	p := s.serveReady()
	if code := s.write("m", 1_000, 1); code != http.StatusNoContent {
		t.Fatal(code)
	}
	h := &hostileLoad{addr: s.addr, held: make(chan heldConn, hostileHeld), counts: make(map[string]uint64), good: remotewrite.Encode([]remotewrite.Series{{
		Labels: labels.FromStrings("__name__", "hostile"), Samples: []remotewrite.Sample{{Time: 1_000, Value: 1}},
	}})}
	h.attack(seed, hostileWarm, end)
	s.http.CloseIdleConnections()
	before := s.resources()

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
				h.find("good write %d: %v", i, err)
				return
			}
			took = append(took, time.Since(began))
		}
	})
	h.counts["connections"] = uint64(h.attack(seed+1, count, end))
	close(stop)
	writer.Wait()
	if len(took) == 0 {
		t.Fatal("not one good write")
	}
	last := 2_000 + int64(len(took))
	slices.Sort(took)
	h.counts["good writes"] = uint64(len(took))
	h.counts["good writes, p50 ms"], h.counts["good writes, p99 ms"] = uint64(took[len(took)/2].Milliseconds()), uint64(took[len(took)*99/100].Milliseconds())

	s.http.CloseIdleConnections()
	peak := s.resources()
	var after resources
	poll(t, hostileSettles, "goroutines, descriptors and memory as before", func() (bool, string) {
		after = s.resources()
		return after.goroutines <= before.goroutines+10 && after.descriptors <= before.descriptors+10 && after.memory <= before.memory+hostileMemory,
			fmt.Sprintf("%+v, before %+v", after, before)
	})
	for name, r := range map[string]resources{"before": before, "at the end": peak, "after": after} {
		h.counts["goroutines "+name], h.counts["descriptors "+name] = uint64(r.goroutines), uint64(r.descriptors)
		h.counts["memory MB "+name], h.counts["heap MB "+name] = uint64(r.memory)>>20, uint64(r.heap)>>20
	}
	var lines []string
	for what, n := range h.counts {
		lines = append(lines, fmt.Sprintf("%6d %s", n, what))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[6:], b[6:]) })
	t.Logf("%s", strings.Join(lines, "\n"))

	through := (last/60_000 + 1) * 60_000
	if _, err := s.barrier(through); err != nil {
		t.Fatal(err)
	}
	s.wantWarm(fmt.Sprintf("sum_over_time(m[%dm])", through/60_000), through, strconv.Itoa(len(took)+1))
	if strings.Contains(p.out.String(), "panic") {
		h.find("it panicked: %s", p.out.String())
	}
	s.stop(p)
	verifyLog(t, s)
	return h
}

// attack makes so many connections, or fewer if the end comes first, and returns how many. Afterwards none is open.
func (h *hostileLoad) attack(seed uint64, count int, end time.Time) int {
	all := attacks()
	var next, made atomic.Int64
	var workers sync.WaitGroup
	for w := range hostileWorkers {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for n := next.Add(1); n <= int64(count) && time.Now().Before(end); n = next.Add(1) {
				h.run(all[int(n)%len(all)], r)
				made.Add(1)
			}
		})
	}
	workers.Wait()
	for h.letGo() {
	}
	return int(made.Load())
}

// resources is what a process holds: memory is all that is resident, heap what of Go's is in use.
type resources struct{ goroutines, descriptors, memory, heap float64 }

func (s *site) resources() resources {
	s.t.Helper()
	return resources{
		s.metric("go_goroutines"), s.metric("process_open_fds"), s.metric("process_resident_memory_bytes"), s.metric("go_memstats_heap_inuse_bytes"),
	}
}
