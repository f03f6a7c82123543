package pane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
	"tidemark/projections/series"
)

// node is a whole log with its panes, without HTTP: the real thing, on any file system.
type node struct {
	dir    string
	log    *log.Log
	index  *series.Index
	store  *bucket.Store
	panes  *Projection
	runner *projections.Runner

	stopLog, stopRest context.CancelFunc
	logDone, restDone chan error
}

// startNode opens everything under /data and runs it. It appends no event.
func startNode(fs vfs.FS, lo log.Options, po Options) (*node, error) {
	return startNodeIn("/data", fs, lo, po)
}

func startNodeIn(dir string, fs vfs.FS, lo log.Options, po Options) (*node, error) {
	lo.FS = fs
	n := &node{dir: dir, index: series.New(), logDone: make(chan error, 1), restDone: make(chan error, 1)}
	var err error
	if n.log, err = log.Open(dir+"/log", lo); err != nil {
		return nil, err
	}
	if err := n.open(fs, po); err != nil {
		return nil, errors.Join(err, n.log.Close())
	}
	logCtx, stopLog := context.WithCancel(context.Background())
	ctx, stopRest := context.WithCancel(context.Background())
	n.stopLog, n.stopRest = stopLog, stopRest
	go func() { n.logDone <- n.log.Run(logCtx) }()
	go func() {
		var wg sync.WaitGroup
		var runErr, feedErr error
		wg.Go(func() { runErr = n.panes.Run(ctx) })
		wg.Go(func() { feedErr = n.runner.Run(ctx) })
		wg.Wait()
		n.restDone <- errors.Join(runErr, feedErr)
	}()
	return n, nil
}

func (n *node) open(fs vfs.FS, po Options) error {
	var err error
	if err = n.index.Load(n.log.Dictionary()); err != nil {
		return err
	}
	bo := bucket.Options{FS: fs}
	n.store, err = bucket.Open(n.dir+"/views", n.log.Identity(), bo)
	if errors.Is(err, bucket.ErrDamaged) {
		if err = bucket.Discard(n.dir+"/views", bo); err == nil {
			n.store, err = bucket.Open(n.dir+"/views", n.log.Identity(), bo)
		}
	}
	if err != nil {
		return err
	}
	if po.Heal == nil {
		po.Heal = func(ctx context.Context, h log.Heal) (*Healing, error) {
			return FindLate(ctx, n.log, n.index, nil, h, FindOptions{Workers: po.Workers})
		}
	}
	n.panes = New(n.log, n.index, n.store, po)
	n.runner = projections.NewRunner(n.log, n.panes)
	if err := n.runner.Restore(); err != nil {
		return errors.Join(err, n.store.Close())
	}
	return nil
}

// stop ends everything in order, with the last checkpoint.
func (n *node) stop() error {
	n.stopRest()
	err := <-n.restDone
	n.stopLog()
	return errors.Join(err, <-n.logDone, n.store.Close(), n.log.Close())
}

func mustNode(t *testing.T, fs vfs.FS, po Options) *node {
	t.Helper()
	n, err := startNode(fs, log.Options{}, po)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// maintain merges all pieces that may be merged, and deletes all that retention has removed.
func (n *node) maintain(ctx context.Context) error {
	if err := bucket.NewCompactor(n.store, bucket.CompactorOptions{MinPieces: 2, SweepKeys: 1 << 20}).Pass(ctx); err != nil {
		return err
	}
	v, err := n.panes.survey(ctx)
	if err != nil {
		return err
	}
	return NewExpirer(n.panes, n.log, slog.New(slog.DiscardHandler)).clear(v)
}

// sample is one sample of one series, by label set.
type sample struct {
	ls labels.Labels
	t  int64
	v  float64
}

// request builds a write event's body.
func (n *node) request(samples []sample) (*log.Write, error) {
	b := log.NewWriteBuilder()
	for _, s := range samples {
		ref, err := n.log.Dictionary().Resolve(n.log.Dictionary().Hash(s.ls.Bytes(nil)), s.ls)
		if err != nil {
			return nil, err
		}
		b.Series(ref)
		b.Sample(s.t, s.v)
	}
	return b.Finish(), nil
}

func (n *node) write(ctx context.Context, samples ...sample) (log.Seq, error) {
	w, err := n.request(samples)
	if err != nil {
		return 0, err
	}
	return n.log.Append(ctx, w)
}

// barrier appends a watermark and waits until it is applied.
func (n *node) barrier(ctx context.Context, t int64) (Outcome, error) {
	seq, err := n.log.Append(ctx, &log.Watermark{Time: t})
	if err != nil {
		return Outcome{}, err
	}
	if err := n.runner.Wait(ctx, seq); err != nil {
		return Outcome{}, err
	}
	o, ok := n.panes.Outcome(seq)
	if !ok {
		return Outcome{}, fmt.Errorf("no outcome of the barrier at %d", seq)
	}
	return o, nil
}

// benchStream is the stream of the benchmarks, and benchPlan plans it alone.
func benchStream() plan.Stream {
	s := named("m", 60_000)
	s.Closed, s.Late, s.RetentionMillis = plan.Right, plan.Correct, 86_400_000
	return s.Resolved()
}

func benchPlan() *log.Plan { return newPlan(named("m", 60_000)) }

// planOf plans one stream for each selector and pane.
func planOf(t *testing.T, specs ...plan.Stream) *log.Plan {
	t.Helper()
	return newPlan(specs...)
}

func newPlan(specs ...plan.Stream) *log.Plan {
	p := &plan.Plan{
		Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, IdleGraceMillis: 5_000,
		OpenGraceMillis: 5_000, HorizonMillis: 600_000, ClockSkewMillis: 60_000,
	}
	for _, s := range specs {
		s.Closed, s.Late, s.RetentionMillis = plan.Right, plan.Correct, 86_400_000
		p.Streams = append(p.Streams, s.Resolved())
	}
	for i := range p.Streams {
		for j := i; j > 0 && p.Streams[j].ID < p.Streams[j-1].ID; j-- {
			p.Streams[j], p.Streams[j-1] = p.Streams[j-1], p.Streams[j]
		}
	}
	return &log.Plan{Spec: p.Encode()}
}

func named(name string, pane int64) plan.Stream {
	return plan.Stream{Matchers: []plan.Matcher{{Type: "=", Name: "__name__", Value: name}}, PaneMillis: pane}
}

// planned is the ID that planOf gives a stream.
func planned(s plan.Stream) plan.StreamID {
	s.Closed, s.Late, s.RetentionMillis = plan.Right, plan.Correct, 86_400_000
	return s.Resolved().ID
}

// testContext bounds a test that would otherwise hang.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func fixedNow() time.Time { return time.UnixMilli(1_500_000) }

func zeroMonotonic() time.Duration { return 0 }
