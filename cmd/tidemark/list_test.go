package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/master"
	"tidemark/projections/bucket"
	"tidemark/transport/api"
	"tidemark/transport/remotewrite"
)

// listedRows is the space of the snapshots of a crowded: the service's own control plane has another.
const listedRows = 77

// crowded is a service with many experiments, with a control plane of its own whose work can be hung, and the list of it over HTTP.
type crowded struct {
	*hosted
	m     *master.Master
	brake *brake
	list  *httptest.Server
	base  int64 // ms, of the first samples
	late  int64 // samples of an experiment that came late so far
}

// brake hangs whatever passes it, once it is pulled, until it is let go.
type brake struct {
	mu   sync.Mutex
	held chan struct{}
	met  chan struct{} // receives for each that hangs, as far as somebody looks
}

func (b *brake) pull() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := make(chan struct{})
	b.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (b *brake) pass(ctx context.Context) error {
	b.mu.Lock()
	held := b.held
	b.mu.Unlock()
	if held == nil {
		return ctx.Err()
	}
	select {
	case b.met <- struct{}{}:
	default:
	}
	select {
	case <-held:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What follows are the collaborators of the control plane behind a brake.

type brakedSource struct {
	master.Source
	b *brake
}

func (s brakedSource) Versions(ctx context.Context) (master.Versions, error) {
	if err := s.b.pass(ctx); err != nil {
		return master.Versions{}, err
	}
	return s.Source.Versions(ctx)
}

func (s brakedSource) Observe(ctx context.Context, name string) (master.Observation, bool, error) {
	if err := s.b.pass(ctx); err != nil {
		return master.Observation{}, false, err
	}
	return s.Source.Observe(ctx, name)
}

type brakedRows struct {
	master.Rows
	b *brake
}

func (r brakedRows) Commit(batch *bucket.RowBatch) error {
	if err := r.b.pass(context.Background()); err != nil {
		return err
	}
	return r.Rows.Commit(batch)
}

func (r brakedRows) Each(prefix, from []byte, yield func(key, value []byte) (bool, error)) error {
	if err := r.b.pass(context.Background()); err != nil {
		return err
	}
	return r.Rows.Each(prefix, from, yield)
}

// startCrowded writes one sample for each of n experiments, and scans them.
func startCrowded(t testing.TB, n int) *crowded {
	t.Helper()
	v := startService(t, setup{config: fmt.Sprintf(experimentsConfig, "0s"), flags: []string{"--projection.checkpoint-interval=200ms"}})
	c := &crowded{hosted: v, brake: &brake{met: make(chan struct{}, 16)}, base: time.Now().UnixMilli() / 10_000 * 10_000}
	for from := 0; from < n; from += 5000 {
		c.writeTo(from, min(from+5000, n), c.base)
	}
	v.barrier(c.base)
	var err error
	c.m, err = master.New(master.Deps{
		Source: brakedSource{counts{v.node.panes}, c.brake}, Loads: loads{v.node.panes}, Pieces: pieces{v.node.panes, v.node.views}, Panes: v.node.runner,
		Fold: v.node.fold, Events: controlLog{v.node}, Rows: brakedRows{v.node.views.Rows(listedRows), c.brake},
	}, master.Options{
		Settings: func() master.Settings { return master.Settings{ScanInterval: time.Minute} }, ObserveTimeout: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.m.Round(t.Context()); err != nil || r.Scanned != n {
		t.Fatalf("%+v, %v", r, err)
	}
	x := api.Experiments{Lister: c.m, Reader: unhurried{c.m, v.node}, History: c.m, Head: v.node.events.Head}
	mux := http.NewServeMux()
	mux.Handle("GET /api/v1/experiments", api.NewExperimentList(x))
	mux.Handle("GET /api/v1/experiments/{name}", api.NewExperiment(x))
	c.list = httptest.NewServer(mux)
	t.Cleanup(c.list.Close)
	return c
}

// unhurried reads experiments of the crowd.
type unhurried struct {
	*master.Master
	n *node
}

func (u unhurried) Returned(name string) bool { return askedReader{u.n}.Returned(name) }

func (c *crowded) name(i int) string { return fmt.Sprintf("run-%06d", i) }

// writeTo writes one sample to each of a range of experiments.
func (c *crowded) writeTo(from, to int, at int64) {
	c.t.Helper()
	var series []remotewrite.Series
	for i := from; i < to; i++ {
		series = append(series, remotewrite.Series{
			Labels: labels.FromStrings("__name__", "m", "experiment", c.name(i)), Samples: []remotewrite.Sample{{Time: at, Value: 1}},
		})
	}
	if err := c.write.Write(c.t.Context(), series); err != nil {
		c.t.Fatal(err)
	}
	if err := c.node.runner.Wait(c.t.Context(), c.node.events.Head()); err != nil {
		c.t.Fatal(err)
	}
}

// correct writes one late sample to each of a range of experiments.
func (c *crowded) correct(from, to int) {
	c.t.Helper()
	c.late++
	c.writeTo(from, to, c.base-c.late)
}

// ask asks for one page, and returns how long that took.
func (c *crowded) ask(query string) (p experimentList, took time.Duration) {
	c.t.Helper()
	begin := time.Now()
	res, err := http.Get(c.list.URL + "/api/v1/experiments" + query)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	took = time.Since(begin)
	if err != nil || res.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %d %s, %v", query, res.StatusCode, b, err)
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(e.Data, &p); err != nil {
		c.t.Fatal(err)
	}
	return p, took
}

// compacted is how many experiments maintain has compacted, again and again.
const compacted = 100

// maintainPause is the time between the end of one scan or upkeep and the begin of the next: thousands of times what it is in use.
const maintainPause = 100 * time.Millisecond

// maintain scans, compacts and keeps the storage small, over and over, until it is stopped. It compacts experiments from one on.
func (c *crowded) maintain(ctx context.Context, from int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	over := func(f func(i int) error) {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := f(i); err != nil && ctx.Err() == nil {
					c.t.Error(err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(maintainPause):
				}
			}
		})
	}
	over(func(int) error { _, err := c.m.Round(ctx); return err })
	running.Go(func() {
		if err := c.m.Run(ctx); err != nil { // it works off the tasks
			c.t.Error(err)
		}
	})
	for i := range compacted {
		if _, _, err := c.m.Enqueue(ctx, log.TaskCompact, c.name(from+i)); err != nil {
			c.t.Fatal(err)
		}
	}
	over(func(int) error { return c.m.Upkeep(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// M7: with thousands of experiments, the list and the detail answer over HTTP with what the last finished scan said while a scan, a compaction
// and upkeep hang, each for good. How fast they answer is BenchmarkExperimentList's. Seen to fail with List waiting for the round's turn.
func TestM7_ListOverHTTPWhileAllHangs(t *testing.T) {
	const n = 3000
	c := startCrowded(t, n)
	before, _ := c.ask("?search=run-")
	c.correct(0, n/100) // there is something to scan, and to compact
	release := c.brake.pull()
	ctx, cancel := context.WithCancel(t.Context())
	stop := c.maintain(ctx, 0)
	for range 3 { // scan, compaction and upkeep are all inside
		<-c.brake.met
	}
	for i, query := range []string{"?search=run-", "", "?limit=200&offset=2800", "?sort=-last_write_ms&rates=48", "?search=999&state=all"} {
		p, _ := c.ask(query)
		if len(p.Experiments) == 0 || p.Total > n || i == 0 && (p.Total != before.Total || p.Experiments[0].Version != before.Experiments[0].Version || p.Experiments[0].Samples != 1) {
			t.Errorf("%q: %+v", query, p)
		}
	}
	for name, code := range map[string]int{c.name(7): http.StatusOK, "nobody": http.StatusNotFound} {
		res, err := http.Get(c.list.URL + "/api/v1/experiments/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != code {
			t.Errorf("detail of %s: %d", name, res.StatusCode)
		}
	}
	cancel()
	release()
	stop()
	if _, err := c.m.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, _ := c.ask("?sort=-sample_count"); p.Experiments[0].Samples != 2 || p.Experiments[0].Buckets != 1 {
		t.Errorf("after all that: %+v", p.Experiments[0])
	}
}

// BenchmarkExperimentList asks GET /api/v1/experiments at 30,000 experiments, over HTTP, while a scan, a compaction and upkeep run, of which
// each scan finds 1 % changed, and while each hangs. The process, its client and what maintains the table share the machine's processors.
func BenchmarkExperimentList(b *testing.B) {
	const n = 30_000
	c := startCrowded(b, n)
	for _, state := range []string{"idle", "running", "hung"} {
		b.Run("maintenance="+state+"/experiments=30000", func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			release, stop := func() {}, func() {}
			switch state {
			case "hung":
				const rested = 2 * n / 3 // those before were compacted just now
				c.correct(rested, rested+n/100)
				release, stop = c.brake.pull(), c.maintain(ctx, rested)
				for range 3 {
					<-c.brake.met
				}
			case "running":
				c.correct(0, n/100)
				stop = c.maintain(ctx, 0)
				var writing sync.WaitGroup
				writing.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						select {
						case <-ctx.Done():
						case <-time.After(200 * time.Millisecond):
							c.correct(i%30*300, i%30*300+300)
							for k := range compacted {
								if _, _, err := c.m.Enqueue(ctx, log.TaskCompact, c.name(i%30*300+k)); err != nil && ctx.Err() == nil {
									c.t.Error(err)
								}
							}
						}
					}
				})
				defer writing.Wait()
			}
			b.ReportAllocs()
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				_, d := c.ask([]string{"?offset=15000", "?sort=-last_write_ms&rates=48", "?search=999&state=all"}[i%3])
				took = append(took, d)
			}
			cancel()
			release()
			stop()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
		})
	}
}
