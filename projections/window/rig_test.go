package window_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
	"tidemark/projections/series"
	"tidemark/projections/window"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the real thing without HTTP: log, panes, query engine and recorder over one file system. Beside it stand all samples
// that it took, for Prometheus' engine as the oracle.
type rig struct {
	t   testing.TB
	ctx context.Context
	fs  *vfs.MemFS

	log      *log.Log
	index    *series.Index
	store    *bucket.Store
	panes    *pane.Projection
	runner   *projections.Runner
	windows  *bucket.Windows
	engine   *query.Engine
	bare     *query.Engine // the same without records
	recorder *window.Recorder

	stopLog, stopRest context.CancelFunc
	logDone, restDone chan error

	now    time.Time // of the recorder
	plan   *plan.Plan
	ledger map[string]*querytest.Series
}

func newRig(t testing.TB) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, fs: vfs.NewCrashableMem(), now: time.UnixMilli(0), ledger: map[string]*querytest.Series{}}
	r.start()
	return r
}

// start opens everything and replays.
func (r *rig) start() {
	r.t.Helper()
	var err error
	check := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	r.log, err = log.Open("/data/log", log.Options{FS: r.fs})
	check(err)
	r.index = series.New()
	check(r.index.Load(r.log.Dictionary()))
	open := func() error {
		if r.store, err = bucket.Open("/data/views", r.log.Identity(), bucket.Options{FS: r.fs}); err != nil {
			return err
		}
		r.panes = pane.New(r.log, r.index, r.store, pane.Options{Workers: 2, CheckpointInterval: -1})
		r.runner = projections.NewRunner(r.log, r.panes)
		return r.runner.Restore()
	}
	if err := open(); bucket.Damaged(err) {
		check(bucket.Discard("/data/views", bucket.Options{FS: r.fs}))
		check(open())
	} else {
		check(err)
	}
	r.windows, err = bucket.NewWindows(r.store, uint64(r.log.Head()))
	check(err)
	r.engine = query.New(r.panes, query.Options{Records: r.windows})
	r.bare = query.New(r.panes, query.Options{})
	r.recorder = window.New(r.panes, r.engine, r.windows, window.Options{Now: func() time.Time { return r.now }})

	logCtx, stopLog := context.WithCancel(context.Background())
	restCtx, stopRest := context.WithCancel(context.Background())
	r.stopLog, r.stopRest = stopLog, stopRest
	r.logDone, r.restDone = make(chan error, 1), make(chan error, 1)
	events, panes, runner, logDone, restDone := r.log, r.panes, r.runner, r.logDone, r.restDone
	go func() { logDone <- events.Run(logCtx) }()
	go func() {
		var wg sync.WaitGroup
		var runErr, feedErr error
		wg.Go(func() { runErr = panes.Run(restCtx) })
		wg.Go(func() { feedErr = runner.Run(restCtx) })
		wg.Wait()
		restDone <- errors.Join(runErr, feedErr)
	}()
	r.append(&log.Start{Reason: log.StartProcess})
}

func (r *rig) stop() {
	r.t.Helper()
	r.stopRest()
	err := <-r.restDone
	r.stopLog()
	if err := errors.Join(err, <-r.logDone, r.store.Close(), r.log.Close()); err != nil {
		r.t.Fatal(err)
	}
}

// crash takes the disk as a power failure would leave it, with percent of what was not synced, and starts from that.
func (r *rig) crash(percent int, rng *rand.Rand) {
	r.t.Helper()
	disk := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	r.stop()
	r.fs = disk
	r.start()
}

// append writes an event and waits until it is applied.
func (r *rig) append(body log.Body) log.Seq {
	r.t.Helper()
	seq, err := r.log.Append(r.ctx, body)
	if err == nil {
		err = r.runner.Wait(r.ctx, seq)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

func (r *rig) configure(text string) plan.Report {
	r.t.Helper()
	c, err := plan.Parse([]byte(text), r.t.TempDir())
	if err != nil {
		r.t.Fatal(err)
	}
	p, report, err := plan.Build(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.setPlan(p)
	return report
}

func (r *rig) setPlan(p *plan.Plan) {
	r.t.Helper()
	r.plan = p
	r.append(&log.Plan{Spec: p.Encode()})
}

// write appends one write event with the samples of each series.
func (r *rig) write(batch ...querytest.Series) {
	r.t.Helper()
	b := log.NewWriteBuilder()
	for _, s := range batch {
		ref, err := r.log.Dictionary().Resolve(r.log.Dictionary().Hash(s.Labels.Bytes(nil)), s.Labels)
		if err != nil {
			r.t.Fatal(err)
		}
		b.Series(ref)
		have := r.ledger[s.Labels.String()]
		if have == nil {
			have = &querytest.Series{Labels: s.Labels}
			r.ledger[s.Labels.String()] = have
		}
		for i := range s.T {
			b.Sample(s.T[i], s.V[i])
			if at, ok := slices.BinarySearch(have.T, s.T[i]); !ok {
				have.T, have.V = slices.Insert(have.T, at, s.T[i]), slices.Insert(have.V, at, s.V[i])
			}
		}
	}
	r.append(b.Finish())
}

func (r *rig) barrier(t int64) { r.append(&log.Watermark{Time: t}) }

// round lets time pass and has the recorder do one round.
func (r *rig) round(advance time.Duration) int {
	r.t.Helper()
	r.now = r.now.Add(advance)
	left, err := r.recorder.Round(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return left
}

// settle has the recorder do rounds until it leaves nothing.
func (r *rig) settle() {
	r.t.Helper()
	for range 100 {
		if r.round(time.Hour) == 0 {
			return
		}
	}
	r.t.Fatal("the recorder does not come to an end")
}

func ask(ctx context.Context, e *query.Engine, q oracle.Query) (*query.Result, error) {
	c := query.Common{Expr: q.Expr}
	if q.Step == 0 {
		return e.Instant(ctx, query.InstantParams{Common: c, Time: time.UnixMilli(q.Start)})
	}
	return e.Range(ctx, query.RangeParams{
		Common: c, Start: time.UnixMilli(q.Start), End: time.UnixMilli(q.End), Step: time.Duration(q.Step) * time.Millisecond,
	})
}

// oracle returns all samples with what Prometheus' rules would have recorded of them.
func (r *rig) oracle(from, to int64) []querytest.Series {
	r.t.Helper()
	var all []querytest.Series
	for _, s := range r.ledger {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b querytest.Series) int { return labels.Compare(a.Labels, b.Labels) })
	out, err := querytest.Record(r.ctx, r.plan, all, from, to)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// check asks the engine and compares with the oracle over all, and with the engine without records. A miss must be one for
// both. It returns the answer, nil for a miss.
func (r *rig) check(q oracle.Query, all []querytest.Series) (*query.Result, error) {
	r.t.Helper()
	res, err := ask(r.ctx, r.engine, q)
	bare, bareErr := ask(r.ctx, r.bare, q)
	if bareErr == nil {
		defer bare.Close()
	}
	var miss, bareMiss *query.MissError
	if errors.As(err, &miss) {
		if !errors.As(bareErr, &bareMiss) || bareMiss.Reason != miss.Reason {
			r.t.Errorf("%s: missed %v, and without records: %v", q, err, bareErr)
		}
		return nil, err
	}
	if err != nil {
		r.t.Fatalf("%s: %v", q, err)
	}
	want := oracle.Ask(r.ctx, oracle.NewEngine(50_000_000), oracle.Storage(all), q)
	got := oracle.Outcome{Value: res.Value, Warnings: res.Warnings, Infos: res.Infos}
	if err := oracle.Compare(got, want, q.Terms); err != nil {
		r.t.Errorf("%s (%d recorded, %d evaluated): %v", q, res.Stats.Recorded, res.Stats.Evaluated, err)
	}
	if bareErr != nil {
		r.t.Errorf("%s: answered with records, and without: %v", q, bareErr)
	}
	return res, nil
}

// digest is that of everything published.
func (r *rig) digest() string {
	r.t.Helper()
	d, err := r.panes.Digest(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return d.All.String()
}

// changes says what the fold remembers, over all streams.
func (r *rig) changes() (n int) {
	r.t.Helper()
	_, streams, err := r.panes.TrackedStreams(r.ctx, 0, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range streams {
		n += len(streams[i].Changed)
	}
	return n
}

func one(name, kv string, points ...float64) querytest.Series {
	lb := labels.NewScratchBuilder(2)
	lb.Add("__name__", name)
	lb.Add("i", kv)
	s := querytest.Series{Labels: lb.Labels()}
	for i := 0; i+1 < len(points); i += 2 {
		s.T, s.V = append(s.T, int64(points[i])), append(s.V, points[i+1])
	}
	return s
}

func at(expr string, t int64) oracle.Query {
	return oracle.Query{Expr: expr, Start: t, Terms: oracle.Terms{Sum: 1}}
}

func over(expr string, from, to, step int64) oracle.Query {
	return oracle.Query{Expr: expr, Start: from, End: to, Step: step, Terms: oracle.Terms{Sum: 1}}
}
