package main

// The whole service in one process for the campaign: the real log, projections, stores, engine and HTTP handlers over a file
// system in memory, with a clock that only the script moves. Nothing runs by itself: what the service does once a second or a
// minute is done when the script says so.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections"
	"tidemark/projections/accum"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
	"tidemark/transport/remotewrite"
)

const worldPath = "/data"

// worldPatience bounds what one step of a script may take. Nothing is as slow, unless it hangs.
const worldPatience = 2 * time.Minute

// simClock is the machine's clock as the service sees it.
type simClock struct {
	wall, mono atomic.Int64 // ms
}

func (c *simClock) now() time.Time           { return time.UnixMilli(c.wall.Load()) }
func (c *simClock) monotonic() time.Duration { return time.Duration(c.mono.Load()) * time.Millisecond }

func (c *simClock) pass(ms int64) {
	c.wall.Add(ms)
	c.mono.Add(ms)
}

func (c *simClock) at(o *simClock) *simClock {
	c.wall.Store(o.wall.Load())
	c.mono.Store(o.mono.Load())
	return c
}

// world is the service on a file system, started or not.
type world struct {
	fs      vfs.FS
	clock   *simClock
	plans   []*loaded // by number; parsed once
	workers int
	free    uint64
	looks   bool // it is looked at and let go: no last checkpoint, no HTTP

	f       *serveFlags
	n       *node
	handler http.Handler
	compact *bucket.Compactor
	fills   *pane.Backfiller
	master  *master.Master

	openedWall, openedMono int64 // of the clock

	stopLog, stopRest context.CancelFunc
	logDone, restDone chan error
	ended             chan struct{} // closed when the fold has ended, which it does by itself only when it fails
}

// campaignPlans are the configurations between which scripts change.
func campaignPlans() ([]*loaded, error) {
	var out []*loaded
	for i := range 2 {
		f := *worldFlags()
		f.configFile = planFile(i)
		cfg, p, report, err := f.loadPlan()
		if err != nil {
			return nil, err
		}
		out = append(out, &loaded{cfg: cfg, plan: p, report: report, ok: true})
	}
	return out, nil
}

// worldFlags are the flags of serve as they are without being given, and what no world shall do by itself.
var worldFlags = sync.OnceValue(func() *serveFlags {
	f := &serveFlags{listening: func(net.Addr) {}}
	app := kingpin.New("tidemark", "")
	f.declare(app)
	if _, err := app.Parse([]string{"serve", "--storage.path", worldPath, "--config.file", planFile(0), "--projection.checkpoint-interval=-1s", "--log.min-free-bytes=1B"}); err != nil {
		panic(err)
	}
	f.ckpt = -1
	return f
})

func planFile(i int) string { return fmt.Sprintf("testdata/campaign/plan%d.yml", i) }

func newWorld(fs vfs.FS, clock *simClock, plans []*loaded, workers int) *world {
	return &world{fs: fs, clock: clock, plans: plans, workers: workers, free: 1 << 40}
}

// open opens the stores and runs the fold. Nothing is appended: what is read now is what the disk held.
func (w *world) open(at int) error {
	f := *worldFlags()
	w.f = &f
	f.workers, f.configFile = w.workers, planFile(at)
	f.around = surroundings{now: w.clock.now, monotonic: w.clock.monotonic, disk: w.fs, freeBytes: func(string) (uint64, error) { return w.free, nil }}
	l := w.plans[at]
	n, err := openNode(w.f, l.cfg, l.plan, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	w.n, w.openedWall, w.openedMono = n, w.clock.wall.Load(), w.clock.mono.Load()
	if err := w.beside(); err != nil {
		return errors.Join(err, n.close())
	}
	run := n.panes.RunReadOnly
	if !w.looks {
		run = n.panes.Run
		if w.handler, err = w.f.handler(n, l.cfg, nil); err != nil {
			return errors.Join(err, n.close())
		}
	}
	w.compact = bucket.NewCompactor(n.views, bucket.CompactorOptions{MinPieces: 2, SweepKeys: 1 << 20})
	logCtx, stopLog := context.WithCancel(context.Background())
	ctx, stopRest := context.WithCancel(context.Background())
	w.stopLog, w.stopRest = stopLog, stopRest
	w.logDone, w.restDone, w.ended = make(chan error, 1), make(chan error, 1), make(chan struct{})
	ended := w.ended
	go func() { w.logDone <- n.events.Run(logCtx) }()
	go func() {
		var wg sync.WaitGroup
		errs := make([]error, 3)
		wg.Go(func() { errs[0] = run(ctx) })
		wg.Go(func() {
			if errs[1] = n.runner.Run(ctx); errs[1] != nil {
				close(ended)
			}
		})
		wg.Go(func() { errs[2] = n.folding.Run(ctx) })
		wg.Wait()
		w.restDone <- errors.Join(errs...)
	}()
	return w.wait()
}

// beside makes what works beside the fold when the script says so: one thing at a time, so that the log is the same each time.
func (w *world) beside() (err error) {
	var passed atomic.Int64
	w.fills = pane.NewBackfiller(w.n.panes, w.n.events, pane.BackfillOptions{
		Batch: 8, Now: func() time.Time { return time.Unix(passed.Add(60), 0) }, // so that it writes at every step
	})
	w.master, err = w.n.newMaster(master.Options{
		Running: 1, RetireMax: 1, ObserveConcurrency: 1, TaskTimeout: 10 * time.Second, DurableWait: time.Millisecond,
	})
	return err
}

// backfill folds so many steps of what a plan has added; all there is to fold if steps is 0. Who only looks keeps it in memory.
func (w *world) backfill(ctx context.Context, steps int) error {
	if err := w.wait(); err != nil {
		return err
	}
	if w.looks {
		return w.n.panes.Fold(ctx, w.n.events, true)
	}
	for n := 0; steps == 0 || n < steps; n++ {
		if more, err := w.fills.Advance(ctx); err != nil || !more {
			return err
		}
	}
	return nil
}

// unfinished are the streams and the generations that are still being folded.
func (w *world) unfinished() (streams map[plan.StreamID]bool, generations map[int]bool) {
	streams, generations = map[plan.StreamID]bool{}, map[int]bool{}
	for _, b := range w.n.panes.Backfills() {
		generations[int(b.Generation)] = true
		for _, id := range b.Streams {
			streams[id] = true
		}
	}
	return streams, generations
}

// work has the control plane do its tasks until none waits.
func (w *world) work(ctx context.Context) error {
	run, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- w.master.Run(run) }()
	look := time.NewTicker(10 * time.Millisecond) // at the disk, which may fail
	defer look.Stop()
	var failed error
	for failed == nil {
		changed := w.n.fold.Changed()
		page, err := w.master.Tasks(master.TaskRequest{Limit: 1})
		if err != nil || page.Queued+page.Running == 0 {
			failed = err
			break
		}
		select {
		case <-changed:
		case <-look.C:
			failed = w.n.events.Err()
		case <-w.ended:
			failed = errors.New("the fold has ended")
		case <-ctx.Done():
			failed = ctx.Err()
		}
	}
	stop()
	return cmpErr(failed, <-done)
}

// wait waits until all that is in the log is folded.
func (w *world) wait() error {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	go func() {
		select {
		case <-w.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return w.n.runner.Wait(ctx, w.n.events.Head())
}

// begin marks the start in the log, as startUp does, and opens the gate.
func (w *world) begin() error {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.n.startUp(ctx) }()
	for !w.n.caughtUp.Load() {
		select {
		case err := <-done:
			return cmpErr(err, errors.New("the start ended before it was done"))
		case <-time.After(50 * time.Microsecond):
		}
	}
	cancel()
	return <-done
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stop ends everything in order, with the last checkpoint.
func (w *world) stop() error {
	var err error
	if !w.looks {
		ended, end := context.WithCancel(context.Background())
		end()
		err = w.fills.Run(ended) // it writes what it has
	}
	w.stopRest()
	w.stopRest = nil // it is stopped
	err = errors.Join(err, <-w.restDone)
	w.stopLog()
	return errors.Join(err, <-w.logDone, w.n.close())
}

// call puts a request to the HTTP interface.
func (w *world) call(path string, body []byte, form bool) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	if form {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else {
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("Content-Encoding", "snappy")
		req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, req)
	return rec
}

// write sends samples in one request, in their order, and returns the status.
func (w *world) write(ps []point1) (int, string) {
	var series []remotewrite.Series
	at := map[string]int{}
	for _, p := range ps {
		i, ok := at[p.series]
		if !ok {
			i = len(series)
			at[p.series] = i
			series = append(series, remotewrite.Series{Labels: p.ls})
		}
		series[i].Samples = append(series[i].Samples, remotewrite.Sample{Time: p.t, Value: p.v})
	}
	rec := w.call(remotewrite.Path, remotewrite.Encode(series), false)
	return rec.Code, rec.Body.String()
}

// barrier calls a barrier of the HTTP interface.
func (w *world) barrier(path string, params ...string) (int, barrierAnswer, string) {
	rec := w.call(path, []byte(form(params...).Encode()), true)
	var e envelope
	var a barrierAnswer
	if err := json.Unmarshal(rec.Body.Bytes(), &e); err == nil && rec.Code == http.StatusOK {
		_ = json.Unmarshal(e.Data, &a) // a wrong answer is compared as zero
	}
	return rec.Code, a, rec.Body.String()
}

// query puts an instant query.
func (w *world) query(expr string, at int64) (reply, int, string) {
	rec := w.call("/api/v1/query", []byte(url.Values{"query": {expr}, "time": {seconds(at)}}.Encode()), true)
	var e envelope
	r := reply{route: rec.Header().Get("X-Tidemark-Route")}
	if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil {
		return r, rec.Code, err.Error()
	}
	if rec.Code != http.StatusOK {
		if reason, ok := missReason(e.Error); ok {
			r.route = reason
		}
		return r, rec.Code, e.Error
	}
	var err error
	r.outcome.Value, err = decodeValue(e.Data)
	r.outcome.Warnings, r.outcome.Infos = e.Warnings, e.Infos
	if err != nil {
		return r, rec.Code, err.Error()
	}
	return r, rec.Code, ""
}

// sayAll is what say says, and what the control plane knows besides.
func (w *world) sayAll() (string, error) {
	said, err := w.say()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	if err := w.n.folding.Wait(ctx, w.n.events.Head()); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(said)
	for _, name := range modelExperiments {
		row, err := w.master.Fresh(ctx, name)
		if errors.Is(err, master.ErrUnknown) {
			continue
		}
		if err != nil {
			return "", err
		}
		r := *row
		r.ObservedAt, r.AsOf, r.ID, r.Basis = 0, 0, 0, 0
		fmt.Fprintf(&b, "\nexperiment %+v", r)
	}
	page, err := w.master.Tasks(master.TaskRequest{Limit: master.MaxLimit})
	if err != nil {
		return "", err
	}
	for _, t := range page.Tasks {
		fmt.Fprintf(&b, "\ntask %v %s %v %s", t.Kind, t.Target, t.State, t.Class) // its words say how much was merged
	}
	return b.String(), nil
}

// modelExperiments are those of the series of scripts, and one that never is.
var modelExperiments = []string{"_unlabelled", "nobody", "x", "y"}

// say is all of the fold that must be equal whatever the workers, the batches and the restarts: digest, counters, frontiers.
func (w *world) say() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	f, err := describe(ctx, w.n.panes)
	if err != nil {
		return "", err
	}
	return sayFolded(f)
}

func sayFolded(f *folded) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "seq=%d digest=%s unplanned=%d", f.digest.Seq, f.digest.All, f.unplanned)
	for _, id := range sortedStreamKeys(f.streams) {
		s := f.streams[id]
		c := s.Counts
		if c.Routed != c.Applied+c.Duplicate+c.Conflict+c.LateDropped+c.LateUncorrectable {
			return "", fmt.Errorf("conservation: stream %s: %+v", id, c)
		}
		fmt.Fprintf(&b, "\n%s frontier=%d proven=%d coverage=%d open=%d series=%d %+v", id, s.Frontier, s.Proven, s.CoverageStart, s.Open, s.Series, c)
	}
	return b.String(), nil
}

func sortedStreamKeys[V any](m map[plan.StreamID]V) []plan.StreamID {
	var ids []plan.StreamID
	for id := range m {
		ids = append(ids, id)
	}
	for i := range ids {
		for j := i; j > 0 && ids[j] < ids[j-1]; j-- {
			ids[j], ids[j-1] = ids[j-1], ids[j]
		}
	}
	return ids
}

// fresh folds the log in memory, from its first event or from the base that it was truncated behind, with so many workers, and says what that gives.
func (w *world) fresh(workers int, through log.Seq) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	o, err := openOffline(w.fs, worldPath, workers, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	f, err := o.afresh(ctx, through)
	if err = errors.Join(err, o.close()); err != nil {
		return "", err
	}
	return sayFolded(f)
}

// rebuild folds the log into fresh views, as `tidemark rebuild` does, or compares with those that stand.
func (w *world) rebuild(workers int, verify bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	r := rebuild{fs: w.fs, path: worldPath, workers: workers, verify: verify, now: w.clock.now, write: projections.ReplayOptions{}}
	var out, errs bytes.Buffer
	if err := r.run(ctx, &out, &errs); err != nil {
		return fmt.Errorf("rebuild: %w\n%s%s", err, out.String(), errs.String())
	}
	return nil
}

// heal puts in place what came too late.
func (w *world) heal(workers int) error {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	r := rebuild{fs: w.fs, path: worldPath, workers: workers, healing: true, now: w.clock.now, monotonic: w.clock.monotonic, write: projections.ReplayOptions{}}
	var out, errs bytes.Buffer
	if err := r.run(ctx, &out, &errs); err != nil {
		return fmt.Errorf("heal: %w\n%s%s", err, out.String(), errs.String())
	}
	return nil
}

// bodies reads the events from a sequence on, each as the bytes of all that it says.
func (w *world) bodies(from log.Seq) ([][]byte, []*log.Event, error) {
	from = max(from, w.n.events.Floor())
	r := w.n.events.NewReader(from)
	var out [][]byte
	var evs []*log.Event
	for seq := from; seq <= w.n.events.Head(); seq++ {
		ev, err := r.Next()
		if err != nil {
			return nil, nil, fmt.Errorf("event %d: %w", seq, err)
		}
		b, err := log.AppendEvent(nil, &log.Event{Body: asScripted(ev.Body), LogTime: ev.LogTime, WallTime: ev.WallTime})
		if err != nil {
			return nil, nil, err
		}
		out, evs = append(out, b), append(evs, ev)
	}
	return out, evs, nil
}

// asScripted returns the body of an event of the control plane without what no script decides: the name of a task, which is drawn by
// lot, and how much there was to merge, which hangs on how many checkpoints the corrections came in.
func asScripted(body log.Body) log.Body {
	switch b := body.(type) {
	case *log.Compacted:
		return &log.Compacted{Experiment: b.Experiment, Through: b.Through}
	case *log.TaskQueued:
		c := *b
		c.ID = ulid.ULID{}
		return &c
	case *log.TaskStarted:
		return &log.TaskStarted{}
	case *log.TaskFinished:
		c := *b
		c.ID = ulid.ULID{}
		if !c.Failed {
			c.Message = "" // it says how much was merged
		}
		return &c
	}
	return body
}

// compare holds everything that the service can say of its panes against the model, but for streams that are still being folded.
func (w *world) compare(m *naive) error {
	if err := w.wait(); err != nil {
		return err
	}
	unfinished, _ := w.unfinished()
	planned := m.planned()
	for id := range unfinished {
		delete(planned, id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	_, states, unplanned, err := w.n.panes.Streams(ctx)
	if err != nil {
		return err
	}
	if unplanned != m.unplanned {
		return fmt.Errorf("%d unplanned samples, the model has %d", unplanned, m.unplanned)
	}
	if len(states) != len(planned) {
		return fmt.Errorf("%d streams, the model has %d", len(states), len(planned))
	}
	for _, s := range states {
		st, m := planned[s.ID], m.owner(s.ID)
		if st == nil {
			return fmt.Errorf("stream %s is not in the model", s.ID)
		}
		got := modelStream{
			spec: st.spec, coverage: s.CoverageStart, frontier: s.Frontier, routed: s.Counts.Routed, applied: s.Counts.Applied, duplicate: s.Counts.Duplicate,
			conflict: s.Counts.Conflict, dropped: s.Counts.LateDropped, uncorrectable: s.Counts.LateUncorrectable, stale: s.Counts.Stale, closed: s.Counts.Closed,
		}
		want := *st
		want.frontier = m.frontierOf(st)
		if a, b := got.text(), want.text(); a != b {
			return fmt.Errorf("stream %v/%d:\n got %s\nwant %s", st.spec.Matchers, st.spec.PaneMillis, a, b)
		}
		if s.Proven != m.proven || s.Open != m.openCount(s.ID) {
			return fmt.Errorf("stream %v/%d: proven %d, open %d; the model has %d, %d", st.spec.Matchers, st.spec.PaneMillis, s.Proven, s.Open, m.proven, m.openCount(s.ID))
		}
		if s.Counts.Routed != s.Counts.Applied+s.Counts.Duplicate+s.Counts.Conflict+s.Counts.LateDropped+s.Counts.LateUncorrectable {
			return fmt.Errorf("conservation: %+v", s.Counts)
		}
		if err := w.compareBuckets(ctx, m, st); err != nil {
			return fmt.Errorf("stream %v/%d: %w", st.spec.Matchers, st.spec.PaneMillis, err)
		}
	}
	return w.compareExperiments(ctx, m)
}

// compareExperiments compares what is counted of experiments.
func (w *world) compareExperiments(ctx context.Context, m *naive) error {
	if err := w.n.folding.Wait(ctx, w.n.events.Head()); err != nil {
		return err
	}
	_, behind := w.unfinished()
	for _, name := range modelExperiments {
		row, err := w.master.Fresh(ctx, name)
		x := m.experiments[name]
		if errors.Is(err, master.ErrUnknown) && x == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("experiment %s: %w", name, err)
		}
		if x == nil {
			return fmt.Errorf("experiment %s is not in the model: %+v", name, *row)
		}
		if x.tied {
			row.LastWrite = x.lastWrite
		}
		got := fmt.Sprintf("retired=%v series=%d samples=%d pending=%d lastWrite=%d", row.State == master.Retired, row.Series, row.Samples, row.Pending, row.LastWrite)
		want := fmt.Sprintf("retired=%v series=%d samples=%d pending=%d lastWrite=%d", m.isRetired(name, behind), len(x.series), x.samples, m.allPending(name, behind), x.lastWrite)
		if got != want {
			return fmt.Errorf("experiment %s:\n got %s\nwant %s", name, got, want)
		}
	}
	return nil
}

func (s *modelStream) text() string {
	return fmt.Sprintf("coverage=%d frontier=%d routed=%d applied=%d duplicate=%d conflict=%d dropped=%d uncorrectable=%d stale=%d closed=%d",
		s.coverage, s.frontier, s.routed, s.applied, s.duplicate, s.conflict, s.dropped, s.uncorrectable, s.stale, s.closed)
}

// compareBuckets compares what each closed bucket of a stream holds, and which are open, from where the stream covers.
func (w *world) compareBuckets(ctx context.Context, m *naive, st *modelStream) error {
	ms, err := st.spec.LabelMatchers()
	if err != nil {
		return err
	}
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	seen := func(end int64) { lo, hi = min(lo, end), max(hi, end) }
	for _, bySeries := range m.published[st.spec.ID] {
		for end := range bySeries {
			seen(end)
		}
	}
	for _, s := range m.series {
		if mb := s.members[st.spec.ID]; mb != nil {
			for end := range mb.open {
				seen(end)
			}
		}
	}
	if lo > hi {
		return nil
	}
	width := st.spec.PaneMillis
	snap, err := w.n.panes.Read(ctx, []pane.Request{{Stream: st.spec.ID, Matchers: ms, From: lo - 40*width, To: hi + 40*width}})
	if err != nil {
		return err
	}
	got := map[string]*pane.Series{}
	for i := range snap.Answers[0].Series {
		s := &snap.Answers[0].Series[i]
		got[s.Labels.String()] = s
	}
	for name, s := range m.series {
		if wants(st, s.ls) {
			if err := compareSeries(m, st, name, got[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			delete(got, name)
		}
	}
	for name := range got {
		return fmt.Errorf("%s is not in the model", name)
	}
	return nil
}

func compareSeries(m *naive, st *modelStream, name string, got *pane.Series) error {
	if got == nil {
		got = &pane.Series{}
	}
	covered := func(end int64) bool { return end-st.spec.PaneMillis >= st.coverage }
	have := map[int64]map[int64]float64{}
	for i, t := range got.T {
		end := bucketEnd(&st.spec, t)
		if have[end] == nil {
			have[end] = map[int64]float64{}
		}
		have[end][t] = got.V[i]
	}
	cols := map[int64]*accum.Columns{}
	for _, c := range got.Cols {
		cols[c.End] = c.Columns
	}
	incomplete := map[int64]bool{}
	for _, end := range got.Incomplete {
		incomplete[end] = true
	}
	for end, b := range m.published[st.spec.ID][name] {
		if !covered(end) {
			continue
		}
		if b.incomplete != incomplete[end] {
			return fmt.Errorf("bucket %d: incomplete %v, the model says %v", end, incomplete[end], b.incomplete)
		}
		if err := compareBucket(b, have[end], cols[end]); err != nil {
			return fmt.Errorf("bucket %d: %w", end, err)
		}
		delete(have, end)
		delete(cols, end)
		delete(incomplete, end)
	}
	for end := range have {
		if covered(end) {
			return fmt.Errorf("bucket %d holds %v, the model has no such bucket", end, have[end])
		}
	}
	for end := range cols {
		if covered(end) {
			return fmt.Errorf("bucket %d has columns, the model has no such bucket", end)
		}
	}
	for end := range incomplete {
		if covered(end) {
			return fmt.Errorf("bucket %d is incomplete, the model has no such bucket", end)
		}
	}
	return compareOpen(m, st, name, got)
}

func compareOpen(m *naive, st *modelStream, name string, got *pane.Series) error {
	var open []int64
	if mb := m.series[name].members[st.spec.ID]; mb != nil {
		open = sortedKeys(mb.open)
	}
	if fmt.Sprint(open) != fmt.Sprint(got.Open) {
		return fmt.Errorf("open buckets %v, the model has %v", got.Open, open)
	}
	return nil
}

// compareBucket compares the samples of a bucket, or what remains of them in columns.
func compareBucket(b *modelBucket, have map[int64]float64, c *accum.Columns) error {
	if c == nil {
		if len(have) != len(b.samples) {
			return fmt.Errorf("holds %v, the model has %v", have, b.samples)
		}
		for t, v := range b.samples {
			if g, ok := have[t]; !ok || math.Float64bits(g) != math.Float64bits(v) {
				return fmt.Errorf("holds %v, the model has %v", have, b.samples)
			}
		}
		return nil
	}
	var n, resets, changes int64
	var sum, correction float64
	var first, last float64
	for _, t := range sortedKeys(b.samples) {
		v := b.samples[t]
		if math.Float64bits(v) == 0x7ff0000000000002 {
			continue
		}
		if n == 0 {
			first = v
		} else {
			if v < last {
				resets++
				correction += last
			}
			if !sameValue(v, last) {
				changes++
			}
		}
		n, sum, last = n+1, sum+v, v
	}
	if c.Count != n || c.Resets != resets || c.Changes != changes || !sameValue(c.First.V, first) || !sameValue(c.Last.V, last) ||
		!near(c.Sum+c.Comp, sum) || !near(c.Correction, correction) {
		return fmt.Errorf("columns %+v, the model has %v", *c, b.samples)
	}
	return nil
}

func sameValue(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func near(got, want float64) bool {
	return sameValue(got, want) || math.Abs(got-want) <= 1e-9*max(1, math.Abs(want))
}

// seriesOf makes the label set of a script's series.
func seriesOf(metric string, i int) labels.Labels {
	ls := labels.FromStrings("__name__", metric, "i", strconv.Itoa(i))
	if metric == "f" {
		ls = labels.FromStrings("__name__", metric, "i", strconv.Itoa(i), "experiment", [...]string{"x", "y"}[i%2])
	}
	return ls
}

// reload puts another plan in force, as a hangup does once it has read the file.
func (w *world) reload(ctx context.Context, to int) error {
	w.f.configFile = planFile(to)
	return w.n.reload(ctx)
}
