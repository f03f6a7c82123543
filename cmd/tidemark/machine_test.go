package main

import (
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/value"

	"tidemark/projections/query/oracle"
	"tidemark/projections/query/querytest"
	"tidemark/transport/remotewrite"
)

var stale = math.Float64frombits(value.StaleNaN)

// clock is the wall clock and the monotonic clock of a service, both moved by the test.
type clock struct{ wall, passed atomic.Int64 } // ms

func newClock(wall int64) *clock {
	c := &clock{}
	c.wall.Store(wall)
	return c
}

func (c *clock) now() time.Time           { return time.UnixMilli(c.wall.Load()) }
func (c *clock) monotonic() time.Duration { return time.Duration(c.passed.Load()) * time.Millisecond }
func (c *clock) step(d time.Duration)     { c.wall.Add(d.Milliseconds()) } // of the wall clock alone
func (c *clock) pass(d time.Duration)     { c.step(d); c.passed.Add(d.Milliseconds()) }

// wipeable makes a setup whose stores lie in memory that can lose what was not synced.
func wipeable(t *testing.T, s setup) setup {
	t.Helper()
	s.dir = t.TempDir()
	return s.onto(t, vfs.NewCrashableMem())
}

func (s setup) onto(t testing.TB, fs vfs.FS) setup {
	t.Helper()
	if err := fs.MkdirAll(filepath.Join(s.dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.around.logFS, s.around.viewsFS = fs, fs
	return s
}

// crash ends the service as a power cut does, and starts it on what the disk holds then.
func (v *hosted) crash() *hosted {
	v.t.Helper()
	left := v.setup.around.logFS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	_ = v.stop() // of no effect on what is left
	return startService(v.t, v.setup.onto(v.t, left))
}

// like asks expressions at times, in ms, and expects Prometheus' answers over the same samples, warm.
func (v *hosted) like(samples []sent, at []int64, exprs ...string) {
	v.t.Helper()
	var all []querytest.Series
	for _, s := range batch(v.t, samples...) {
		slices.SortFunc(s.Samples, func(a, b remotewrite.Sample) int { return int(a.Time - b.Time) })
		q := querytest.Series{Labels: s.Labels}
		for _, x := range s.Samples {
			q.T, q.V = append(q.T, x.Time), append(q.V, x.Value)
		}
		all = append(all, q)
	}
	engine, data := oracle.NewEngine(1_000_000), oracle.Storage(all)
	for _, e := range exprs {
		for _, t := range at {
			q := oracle.Query{Expr: e, Start: t}
			got := v.query(q)
			slices.Sort(got.Infos)
			if err := oracle.Compare(got.Outcome, oracle.Ask(v.t.Context(), engine, data, q), oracle.Terms{}); err != nil {
				v.t.Errorf("%s: %v", q, err)
			} else if got.route != "warm" {
				v.t.Errorf("%s: route %q, %v", q, got.route, got.Err)
			}
		}
	}
}

// headSeq is the newest event of the log.
func (v *hosted) headSeq() uint64 { return uint64(v.node.events.Head()) }

func (v *hosted) digest() string {
	v.t.Helper()
	d, err := v.node.panes.Digest(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return d.All.String()
}
