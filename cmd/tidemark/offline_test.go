package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

const offlinePath = "/data"

// foldRig is a log with its panes on any file system, without the rest of the service.
type foldRig struct {
	events *log.Log
	views  *bucket.Store
	panes  *pane.Projection
	runner *projections.Runner

	stopLog, stopRest context.CancelFunc
	logDone, restDone chan error
}

func startFoldRig(fs vfs.FS) (*foldRig, error) {
	now, still := func() time.Time { return time.UnixMilli(1_500_000) }, func() time.Duration { return 0 }
	g := &foldRig{logDone: make(chan error, 1), restDone: make(chan error, 1)}
	var err error
	if g.events, err = log.Open(offlinePath+"/log", log.Options{FS: fs, Now: now, Monotonic: still}); err != nil {
		return nil, err
	}
	if err := g.openViews(fs); err != nil {
		return nil, errors.Join(err, g.events.Close())
	}
	logCtx, stopLog := context.WithCancel(context.Background())
	ctx, stopRest := context.WithCancel(context.Background())
	g.stopLog, g.stopRest = stopLog, stopRest
	go func() { g.logDone <- g.events.Run(logCtx) }()
	go func() {
		var wg sync.WaitGroup
		var runErr, feedErr error
		wg.Go(func() { runErr = g.panes.Run(ctx) })
		wg.Go(func() { feedErr = g.runner.Run(ctx) })
		wg.Wait()
		g.restDone <- errors.Join(runErr, feedErr)
	}()
	return g, nil
}

// openViews does what a start does.
func (g *foldRig) openViews(fs vfs.FS) error {
	index := series.New()
	if err := index.Load(g.events.Dictionary()); err != nil {
		return err
	}
	dir, o := offlinePath+"/views", bucket.Options{FS: fs}
	if err := bucket.Settle(dir, o); err != nil {
		return err
	}
	var err error
	if g.views, err = bucket.Open(dir, g.events.Identity(), o); err != nil {
		return err
	}
	g.panes = pane.New(g.events, index, g.views, pane.Options{
		Workers: 3, CheckpointInterval: -1,
		Heal: (&healer{events: g.events, index: index, bases: offlinePath + "/base", options: o}).find,
	})
	g.runner = projections.NewRunner(g.events, g.panes)
	if err := g.runner.Restore(); err != nil {
		return errors.Join(err, g.views.Close())
	}
	return nil
}

func (g *foldRig) stop() error {
	g.stopRest()
	err := <-g.restDone
	g.stopLog()
	return errors.Join(err, <-g.logDone, g.views.Close(), g.events.Close())
}

// print is the digest as the command prints it.
func (g *foldRig) print(ctx context.Context) (string, error) {
	if err := g.runner.Wait(ctx, g.events.Head()); err != nil {
		return "", err
	}
	f, err := describe(ctx, g.panes)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = f.print(&b, "text")
	return b.String(), err
}

// offlinePlan plans materializations over streams, both by name: each stream is a metric and a pane in seconds.
func offlinePlan(materializations map[string][]string) *log.Plan {
	p := &plan.Plan{
		Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, IdleGraceMillis: 5_000,
		OpenGraceMillis: 5_000, HorizonMillis: 60_000, ClockSkewMillis: 60_000,
	}
	have := map[plan.StreamID]bool{}
	for name, streams := range materializations {
		m := plan.Materialization{Name: name, Expr: "count_over_time(" + name + "[1m])", EveryMillis: 60_000, Layout: plan.LayoutPanes, RetentionMillis: 86_400_000}
		for _, s := range streams {
			var metric string
			var seconds int64
			if _, err := fmt.Sscanf(s, "%1s/%d", &metric, &seconds); err != nil {
				panic(err)
			}
			st := plan.Stream{
				Matchers:   []plan.Matcher{{Type: "=", Name: "__name__", Value: metric}},
				PaneMillis: seconds * 1000, Closed: plan.Right, Late: plan.Correct, RetentionMillis: 86_400_000,
			}.Resolved()
			m.Streams = append(m.Streams, st.ID)
			if !have[st.ID] {
				have[st.ID] = true
				p.Streams = append(p.Streams, st)
			}
		}
		p.Materializations = append(p.Materializations, m)
	}
	decoded, err := plan.Decode(p.Encode()) // in canonical order
	if err != nil {
		panic(err)
	}
	return &log.Plan{Spec: decoded.Encode()}
}

// offlineHistory feeds a random history: writes in and out of order, barriers, ticks, and a plan that drops a materialization
// and adds one.
func offlineHistory(ctx context.Context, g *foldRig, rng *rand.Rand, steps int) error {
	return playHistory(ctx, g, rng, 1_000_000, 0, steps, steps/2)
}

// moreHistory goes on with a history, without plans.
func moreHistory(ctx context.Context, g *foldRig, steps int) error {
	return playHistory(ctx, g, newRand(uint64(g.events.Head())), 1_600_000, 2, steps, -1)
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 17)) }

// playHistory feeds the steps from one on, with sample times from clock on; at the step replan the second plan comes.
func playHistory(ctx context.Context, g *foldRig, rng *rand.Rand, clock int64, from, steps, replan int) error {
	for i := from; i < steps; i++ {
		var body log.Body
		switch clock += rng.Int64N(4_000); {
		case i == 0:
			body = &log.Start{Reason: log.StartProcess}
		case i == 1:
			body = offlinePlan(map[string][]string{"first": {"m/10", "n/15"}, "gone": {"o/10"}})
		case i == replan:
			body = offlinePlan(map[string][]string{"first": {"m/10", "n/15"}, "second": {"m/10", "m/60"}})
		case i%40 == 7:
			body = &log.Watermark{Time: clock - 10_000}
		case i%40 == 9:
			body = &log.Tick{}
		default:
			b := log.NewWriteBuilder()
			for range 20 {
				ls := labels.FromStrings("__name__", [...]string{"m", "n", "o"}[rng.IntN(3)], "i", fmt.Sprint(rng.IntN(30)))
				ref, err := g.events.Dictionary().Resolve(g.events.Dictionary().Hash(ls.Bytes(nil)), ls)
				if err != nil {
					return err
				}
				b.Series(ref)
				at := clock - rng.Int64N(20_000)
				if rng.IntN(20) == 0 {
					at -= rng.Int64N(400_000) // beyond correction, mostly
				}
				b.Sample(at, float64(rng.IntN(100)))
			}
			body = b.Finish()
		}
		if _, err := g.events.Append(ctx, body); err != nil {
			return err
		}
		if i%100 == 60 {
			if err := g.runner.Wait(ctx, g.events.Head()); err != nil {
				return err
			}
			if err := g.panes.Checkpoint(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// offlineDisk is a storage directory after a live run, and the digest of that run.
func offlineDisk(t testing.TB, steps int) (*vfs.MemFS, string) {
	t.Helper()
	ctx := offlineContext(t)
	fs := vfs.NewCrashableMem()
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := offlineHistory(ctx, g, rand.New(rand.NewPCG(5, 6)), steps); err != nil {
		t.Fatal(err)
	}
	digest, err := g.print(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(digest, "\n"); n != 4 || !strings.Contains(digest, "unplanned stream") {
		t.Fatalf("the history gives too little:\n%s", digest)
	}
	return fs, digest
}

func offlineContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func crashed(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }

// filesIn returns the hash of every file below dir, by path. What lock files hold means nothing.
func filesIn(t testing.TB, fs vfs.FS, dir string) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			for p, h := range filesIn(t, fs, path) {
				out[p] = h
			}
			continue
		}
		f, err := fs.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		out[path] = sha256.Sum256(b)
	}
	return out
}

func wantSameFiles(t testing.TB, before, after map[string][32]byte) {
	t.Helper()
	for path, h := range before {
		if after[path] != h {
			t.Errorf("%s has changed or is gone", path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s is new", path)
		}
	}
}

func offlineDigest(t testing.TB, fs vfs.FS, format string) string {
	t.Helper()
	var b bytes.Buffer
	if err := digest(offlineContext(t), fs, offlinePath, format, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// offlinePlanStream returns the identity of a stream by its name in offlinePlan.
func offlinePlanStream(t testing.TB, name string) uint64 {
	t.Helper()
	p, err := plan.Decode(offlinePlan(map[string][]string{"x": {name}}).Spec)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(p.Streams[0].ID)
}
