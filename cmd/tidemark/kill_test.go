package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"

	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

// Two streams over the same series: panes of 5 s and of 10 s. The timers close what a task leaves behind while the test runs.
const loadConfig = `
timers: {idle_timeout: 1s, idle_grace: 500ms, open_grace: 500ms}
exact: {local: true}
query: {unpublished: forward}
materializations:
  - {name: load_count, expr: "count_over_time(load[1m])", every: 5s}
  - {name: load_by_sender, expr: "sum by (sender) (sum_over_time(load[20s]))", every: 10s}
`

const (
	kills    = 20    // of one run
	finePane = 5_000 // ms
	widePane = 10_000
)

// TestL1_KilledTwentyTimes kills the service at random moments while senders write, retry and call barriers. What was
// acknowledged is counted exactly once, what was not at most once; the log is whole; and what the survivor has published is
// what a fresh fold of the same log publishes (P1, P3, P7).
func TestL1_KilledTwentyTimes(t *testing.T) { killed(t, seedOf(t)) }

// killed is one run. It returns the kills, and what was written meanwhile.
func killed(t *testing.T, seed uint64) map[string]uint64 {
	began := time.Now()
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t, loadConfig, "--projection.checkpoint-interval=1s", "--log.level=warn")
	// An hour ago, so that no clock is near; and so that a task's life spans several panes.
	begin := (began.Add(-time.Hour).UnixMilli()/widePane)*widePane + 2_345
	p := s.serveReady()
	l := startLoad(t, s, 3, begin, seed)
	b := startBarriers(l, s)

	var slowest time.Duration
	for n := range kills {
		after := time.Duration(50+rng.IntN(700)) * time.Millisecond
		alive := time.NewTimer(after)
		select {
		case <-alive.C:
		case <-p.exited:
			t.Fatalf("before kill %d the service ended by itself with %d", n, p.cmd.ProcessState.ExitCode())
		}
		p.kill()
		if t.Failed() {
			t.FailNow()
		}
		p = s.serve(fmt.Sprintf("--projection.workers=%d", 1+rng.IntN(4)))
		if rng.IntN(4) == 0 {
			continue // the next one may hit the recovery itself
		}
		at := time.Now()
		s.awaitReady(p)
		slowest = max(slowest, time.Since(at))
	}
	s.awaitReady(p)
	b.halt()
	l.halt()
	t.Logf("after %s: %d kills, slowest start %s; %d barriers, %d checks; load %+v, %d series",
		time.Since(began).Round(time.Millisecond), kills, slowest.Round(time.Millisecond), b.barriers, b.checks, l.counts, len(l.tasks))
	if b.barriers == 0 || b.checks == 0 || l.counts.retries == 0 {
		t.Error("the load was not what this test is about")
	}

	end := finalTime(l)
	total := checkAll(t, l, s, begin, end)
	s.stop(p)
	verifyLog(t, s)
	recovered := digestOf(t, filepath.Join(s.dir, "data"), 3)

	fresh := newSite(t, loadConfig, "--log.level=warn")
	if err := os.CopyFS(filepath.Join(fresh.dir, "data", logDir), os.DirFS(filepath.Join(s.dir, "data", logDir))); err != nil {
		t.Fatal(err)
	}
	if folded := digestOf(t, filepath.Join(fresh.dir, "data"), 1); folded.All != recovered.All || folded.Seq != recovered.Seq || folded.All.Buckets == 0 {
		t.Errorf("P1: the survivor has published %s as of %d, a fresh fold %s as of %d", recovered.All, recovered.Seq, folded.All, folded.Seq)
	}
	// The views may be deleted at any time; a start makes them again.
	if err := os.RemoveAll(filepath.Join(s.dir, "data", viewsDir)); err != nil {
		t.Fatal(err)
	}
	p = s.serveReady()
	if again := checkAll(t, l, s, begin, end); again != total {
		t.Errorf("%d samples before the views were deleted, %d after", total, again)
	}
	s.stop(p)
	t.Logf("%d samples, digest %s, all in %s", total, recovered.All, time.Since(began).Round(time.Millisecond))
	return map[string]uint64{
		"kills": kills, "barriers": uint64(b.barriers), "checks": uint64(b.checks), "samples held": uint64(total),
		"batches": uint64(l.counts.batches), "retries": uint64(l.counts.retries), "resent": uint64(l.counts.resent),
	}
}

// seedOf draws the seed of a test's choices and prints it; TEST_SEED repeats a run as far as the machine's timing allows.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TEST_SEED=%d", seed)
	return seed
}

// finalTime is an edge of both grids at or behind every sample.
func finalTime(l *killLoad) int64 {
	var newest int64
	for _, k := range l.snapshot() {
		newest = max(newest, k.at(samplesOfTask-1))
	}
	return (newest/widePane + 1) * widePane
}

// checkAll calls a barrier behind everything and compares all series with the ledger, once from each stream.
func checkAll(t *testing.T, l *killLoad, s *site, begin, end int64) int {
	t.Helper()
	if through, err := s.barrier(end + finePane); err != nil || through < end {
		t.Fatalf("barrier: complete through %d, %v", through, err)
	}
	// On the wide grid the wide panes answer; half a pane later only the fine ones can.
	wide, err := l.check(s, end, end+widePane-begin/widePane*widePane)
	if err != nil {
		t.Fatalf("wide panes: %v", err)
	}
	fine, err := l.check(s, end+finePane, end+2*finePane-begin/widePane*widePane+finePane)
	if err != nil {
		t.Fatalf("fine panes: %v", err)
	}
	// Off every grid the exact copy answers.
	exact, err := l.check(s, end+1, end+widePane-begin/widePane*widePane)
	if err != nil {
		t.Fatalf("exact copy: %v", err)
	}
	if wide != fine || wide != exact || wide == 0 {
		t.Fatalf("%d samples in wide panes, %d in fine ones, %d in the exact copy", wide, fine, exact)
	}
	for _, result := range []string{"conflict", "late_dropped", "late_uncorrectable"} {
		if n := s.metric(fmt.Sprintf(`tidemark_pane_samples_total{result=%q}`, result)); n != 0 {
			t.Errorf("%g samples ended as %s", n, result)
		}
	}
	return wide
}

func verifyLog(t *testing.T, s *site) {
	t.Helper()
	if code, out, errs := s.tool("log", "verify"); code != exitOK {
		t.Errorf("log verify: exit code %d\n%s%s", code, out, lastLines(errs, 5))
	}
}

// digestOf folds the log to its end in this process, from the views that are there, and returns the digest of what is published.
func digestOf(t *testing.T, storage string, workers int) pane.Digest {
	t.Helper()
	n, err := openNode(&serveFlags{storagePath: storage, workers: workers, ckpt: -1}, plan.Default(), nil, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{n.panes.Run, n.runner.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	err = n.runner.Wait(ctx, n.events.Head())
	var d pane.Digest
	if err == nil {
		d, err = n.panes.Digest(ctx)
	}
	cancel()
	parts.Wait()
	if cerr := n.close(); err == nil {
		err = cerr
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// barriers calls barriers while a load runs, and looks at what they prove.
type barriers struct {
	stop             chan struct{}
	done             sync.WaitGroup
	barriers, checks int // to be read after halt
}

func startBarriers(l *killLoad, s *site) *barriers {
	b := &barriers{stop: make(chan struct{})}
	b.done.Go(func() {
		every := time.NewTicker(250 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-b.stop:
				return
			case <-every.C:
			}
			if err := b.call(l, s); err != nil {
				l.t.Error(err)
				return
			}
		}
	})
	l.t.Cleanup(b.halt)
	return b
}

func (b *barriers) halt() {
	select {
	case <-b.stop:
	default:
		close(b.stop)
	}
	b.done.Wait()
}

// call is one barrier and a query right behind it. Either may meet a service that is being killed or starts.
func (b *barriers) call(l *killLoad, s *site) error {
	at := l.settledThrough()
	through, err := s.barrier(at)
	if err != nil {
		return nil // killed; the next one will do
	}
	b.barriers++
	if through < at {
		return fmt.Errorf("a barrier at %d proves what is before %d", at, through)
	}
	const window = 30_000
	to := at / finePane * finePane
	if to-window < l.begin {
		return nil
	}
	_, err = l.check(s, to, window)
	switch {
	case errors.Is(err, errDown):
		return nil
	case err != nil:
		return fmt.Errorf("right after a barrier at %d: %w", at, err)
	}
	b.checks++
	return nil
}
