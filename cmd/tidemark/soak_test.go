package main

// The soak: a real process under load, that is killed, stalled and has its clock stepped, over and over.

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// soakClock is the environment variable by which this binary becomes the service. It names a file with the milliseconds by which the
// service's wall clock is off: a clock that others than root can step.
const soakClock = "TIDEMARK_SOAK_CLOCK"

// soakService is `tidemark serve` with that clock. It returns the exit code.
func soakService(clock string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &serveFlags{listening: func(net.Addr) {}}
	f.around.now = func() time.Time {
		b, err := os.ReadFile(clock)
		off, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || perr != nil {
			off = 0 // it is being written
		}
		return time.Now().Add(time.Duration(off) * time.Millisecond)
	}
	app := kingpin.New("tidemark", "")
	c := f.declare(app)
	if _, err := app.Parse(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	f.log.Writer = os.Stderr
	f.flags = flagValues(c.Model())
	if err := f.serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailure
	}
	return exitOK
}

// What is kept is bounded by a few minutes, so that a short soak sees whether it stays bounded.
const soakConfig = `
timers: {idle_timeout: 1s, idle_grace: 500ms, open_grace: 500ms}
exact: {local: false}
log: {retention: 2m, max_size: 256MiB}
materializations:
  - {name: load_count, expr: "count_over_time(load[1m])", every: 5s, retention: 20m}
  - {name: load_by_sender, expr: "sum by (sender) (sum_over_time(load[20s]))", every: 10s, retention: 20m}
`

// soaked is a soak under way.
type soaked struct {
	t     *testing.T
	s     *site
	p     *process
	clock string
	rng   *rand.Rand

	kills, stalls, steps, stops uint64
	rss, disk                   []float64 // MB, over time
}

func (k *soaked) serve() {
	args := append([]string{"serve", "--web.listen-address=" + k.s.addr}, k.s.args...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir, cmd.Env = k.s.dir, append(os.Environ(), soakClock+"="+k.clock)
	k.p = start(k.t, "tidemark", cmd)
	k.s.awaitReady(k.p)
}

func (k *soaked) setClock(offset int64) {
	k.t.Helper()
	if err := os.WriteFile(k.clock, []byte(strconv.FormatInt(offset, 10)), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// round does one thing to the process.
func (k *soaked) round() {
	switch n := k.rng.IntN(20); {
	case n < 11:
		k.p.kill()
		k.kills++
		k.serve()
	case n < 15:
		k.p.signal(syscall.SIGSTOP)
		wait(time.Duration(200+k.rng.IntN(3000)) * time.Millisecond)
		k.p.signal(syscall.SIGCONT)
		k.stalls++
	case n < 19:
		k.setClock(k.rng.Int64N(180_000) - 90_000)
		k.steps++
	default:
		k.s.stop(k.p)
		k.stops++
		k.serve()
	}
}

func wait(d time.Duration) { <-time.After(d) }

// measure notes the memory of the process and the size of its directory.
func (k *soaked) measure() {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.p.cmd.Process.Pid))
	if err != nil {
		k.t.Skipf("no /proc: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			k.rss = append(k.rss, kb/1024)
		}
	}
	var bytes int64
	_ = filepath.WalkDir(filepath.Join(k.s.dir, "data"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, ierr := d.Info(); ierr == nil { // else it has just gone
				bytes += info.Size()
			}
		}
		return nil
	})
	k.disk = append(k.disk, float64(bytes)/(1<<20))
}

// flat compares the medians of the second and the last quarter of a measurement.
func flat(values []float64, slack float64) (early, late float64, ok bool) {
	if len(values) < 8 {
		return 0, 0, true
	}
	q := len(values) / 4
	early, late = median(values[q:2*q]), median(values[3*q:])
	return early, late, late <= 1.5*early+slack
}

// TestSoak runs for SOAK_DURATION. What was acknowledged is counted once at every barrier, memory and disk stay flat, and at the end the
// log is whole and a fold of it gives the views that stand.
func TestSoak(t *testing.T) {
	text := os.Getenv("SOAK_DURATION")
	if text == "" {
		t.Skip("SOAK_DURATION is not set; `make soak` sets it")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	seed := seedOf(t)
	s := newSite(t, soakConfig, "--projection.checkpoint-interval=2s", "--log.level=error")
	k := &soaked{t: t, s: s, clock: filepath.Join(s.dir, "clock"), rng: rand.New(rand.NewPCG(seed, 0))}
	k.setClock(0)
	// Event time passes some 17 times as fast as the clock, and must not overtake it.
	begin := began.Add(-time.Hour-20*duration).UnixMilli()/widePane*widePane + 2_345
	k.serve()
	l := startLoad(t, s, 3, begin, seed)
	b := startBarriers(l, s)
	for time.Since(began) < duration && !t.Failed() {
		wait(time.Duration(500+k.rng.IntN(3000)) * time.Millisecond)
		k.measure()
		k.round()
	}
	b.halt()
	l.halt()
	k.setClock(0)
	rssEarly, rssLate, rssFlat := flat(k.rss, 64)
	diskEarly, diskLate, diskFlat := flat(k.disk, 64)
	t.Logf("%d kills, %d stalls, %d clock steps, %d stops; %d barriers, %d checks; load %+v; memory %.0f then %.0f MB, disk %.0f then %.0f MB",
		k.kills, k.stalls, k.steps, k.stops, b.barriers, b.checks, l.counts, rssEarly, rssLate, diskEarly, diskLate)
	if !rssFlat {
		t.Errorf("memory is not flat: %.0f MB, then %.0f", rssEarly, rssLate)
	}
	if !diskFlat {
		t.Errorf("the disk is not flat: %.0f MB, then %.0f", diskEarly, diskLate)
	}
	if b.checks == 0 || k.kills == 0 {
		t.Error("the soak was not what this test is about")
	}
	if through, err := s.barrier(finalTime(l)); err != nil || through < finalTime(l) {
		t.Errorf("the last barrier: %d, %v", through, err)
	}
	if samples, err := l.check(s, finalTime(l), 60_000); err != nil || samples == 0 {
		t.Errorf("the last minute: %d samples, %v", samples, err)
	}
	s.stop(k.p)
	verifyLog(t, s)
	if code, out, errs := s.tool("rebuild", "--verify"); code != exitOK {
		t.Errorf("rebuild --verify: exit code %d\n%s%s", code, out, lastLines(errs, 5))
	}
	k.record(b, l, began)
}

// record appends what a long soak has shown to the ledger.
func (k *soaked) record(b *barriers, l *killLoad, began time.Time) {
	commit := os.Getenv("CAMPAIGN_COMMIT")
	if commit == "" {
		return
	}
	file := ledger{path: filepath.Join(root(k.t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		file.path = path
	}
	x := ledgerLine{
		Date: began.UTC().Format(time.RFC3339), Mode: "soak", Commit: commit, Seconds: int64(time.Since(began).Seconds()),
		Counts: map[string]uint64{
			"kills": k.kills, "stalls": k.stalls, "clock steps": k.steps, "stops": k.stops, "barriers": uint64(b.barriers), "checks": uint64(b.checks),
			"batches": uint64(l.counts.batches), "retries": uint64(l.counts.retries), "resent": uint64(l.counts.resent),
		},
	}
	for name, v := range map[string][]float64{"memory MB": k.rss, "disk MB": k.disk} {
		early, late, _ := flat(v, 0)
		x.Counts[name+", early"], x.Counts[name+", late"] = uint64(early), uint64(late)
	}
	if k.t.Failed() {
		x.Findings = []string{"failed; see the output of the run"}
	}
	if err := file.add(x); err != nil {
		k.t.Error(err)
	}
}
