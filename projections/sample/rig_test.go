package sample

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"go.uber.org/goleak"

	"tidemark/log"
	"tidemark/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a log in memory with a copy of it on disk, both the real thing.
type rig struct {
	t    *testing.T
	dir  string
	opts Options
	log  *log.Log
	copy *Projection

	stopLog, stopFeed, stopCopy context.CancelFunc
	logDone, feedDone, copyDone chan error
}

func newRig(t *testing.T, opts Options) *rig {
	t.Helper()
	if opts.lateInterval == 0 {
		opts.lateInterval = 1 // none
	}
	if opts.CheckpointInterval == 0 {
		opts.CheckpointInterval = -1
	}
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "sample"), opts: opts, logDone: make(chan error, 1)}
	var err error
	if r.log, err = log.Open("/log", log.Options{FS: vfs.NewMem()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stopLog = cancel
	go func() { r.logDone <- r.log.Run(ctx) }()
	t.Cleanup(func() {
		if r.copy != nil {
			r.stop()
		}
		r.stopLog()
		if err := errors.Join(<-r.logDone, r.log.Close()); err != nil {
			t.Error(err)
		}
	})
	r.start()
	return r
}

// start opens the copy in r.dir and follows the log.
func (r *rig) start() {
	r.t.Helper()
	if err := r.tryStart(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryStart() error {
	p := New(r.dir, r.log, r.log.Dictionary(), r.opts)
	runner := projections.NewRunner(r.log, p)
	if err := runner.Restore(); err != nil {
		return err
	}
	feed, stopFeed := context.WithCancel(context.Background())
	ctx, stopCopy := context.WithCancel(context.Background())
	r.copy, r.stopFeed, r.stopCopy, r.feedDone, r.copyDone = p, stopFeed, stopCopy, make(chan error, 1), make(chan error, 1)
	go func() { r.feedDone <- runner.Run(feed) }()
	go func() { r.copyDone <- p.Run(ctx) }()
	return nil
}

// stall ends the feeding of the copy, between two events.
func (r *rig) stall() {
	r.t.Helper()
	r.stopFeed()
	if err := <-r.feedDone; err != nil {
		r.t.Fatal(err)
	}
	r.feedDone <- nil
}

// stop ends the copy in order.
func (r *rig) stop() {
	r.t.Helper()
	r.stall()
	r.stopCopy()
	if err := errors.Join(<-r.copyDone, r.copy.Close()); err != nil {
		r.t.Fatal(err)
	}
	r.copy = nil
}

// crash leaves the files as the operating system has them now, as the death of the process would, and starts anew from them.
func (r *rig) crash() {
	r.t.Helper()
	r.stall()
	r.copy.maintaining.Lock() // an image takes longer than an instant
	image := filepath.Join(r.t.TempDir(), "image")
	if err := os.CopyFS(image, os.DirFS(r.dir)); err != nil {
		r.t.Fatal(err)
	}
	r.copy.maintaining.Unlock()
	r.stop()
	r.dir = image
	r.start()
}

// caughtUp waits until the copy has all of the log.
func (r *rig) caughtUp() log.Seq {
	r.t.Helper()
	seq, err := r.copy.Wait(r.t.Context(), true)
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

// float is one sample on its way.
type float struct {
	series string
	t      int64
	v      float64
}

func named(series string) labels.Labels {
	return labels.FromStrings("__name__", "m", "i", series)
}

// write appends one event and returns its sequence.
func (r *rig) write(fill func(b *log.WriteBuilder, ref func(string) log.SeriesRef)) log.Seq {
	r.t.Helper()
	b := log.NewWriteBuilder()
	fill(b, func(series string) log.SeriesRef {
		ls := named(series)
		ref, err := r.log.Dictionary().Resolve(r.log.Dictionary().Hash([]byte(ls.String())), ls)
		if err != nil {
			r.t.Fatal(err)
		}
		return ref
	})
	seq, err := r.log.Append(r.t.Context(), b.Finish())
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

func (r *rig) floats(all ...float) log.Seq {
	r.t.Helper()
	return r.write(func(b *log.WriteBuilder, ref func(string) log.SeriesRef) {
		for _, f := range all {
			b.Series(ref(f.series))
			b.Sample(f.t, f.v)
		}
	})
}

// content is what a copy holds: series → time → value, printed so that every bit counts.
type content map[string]map[int64]string

func bits(v float64) string { return fmt.Sprintf("%x", math.Float64bits(v)) }

// read reads everything.
func (r *rig) read() content {
	r.t.Helper()
	r.caughtUp()
	q, err := r.copy.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		r.t.Fatal(err)
	}
	defer q.Close()
	out := content{}
	set := q.Select(r.t.Context(), true, &storage.SelectHints{Start: math.MinInt64, End: math.MaxInt64},
		labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	for set.Next() {
		s := set.At()
		samples := map[int64]string{}
		it := s.Iterator(nil)
		last := int64(math.MinInt64)
		for k := it.Next(); k != chunkenc.ValNone; k = it.Next() {
			if it.AtT() <= last {
				r.t.Fatalf("%s: %d after %d", s.Labels(), it.AtT(), last)
			}
			last = it.AtT()
			switch k {
			case chunkenc.ValFloat:
				_, v := it.At()
				samples[last] = bits(v)
			case chunkenc.ValHistogram:
				_, h := it.AtHistogram(nil)
				samples[last] = h.String()
			default:
				_, h := it.AtFloatHistogram(nil)
				samples[last] = h.String()
			}
		}
		if it.Err() != nil {
			r.t.Fatal(it.Err())
		}
		out[s.Labels().Get("i")] = samples
	}
	if set.Err() != nil {
		r.t.Fatal(set.Err())
	}
	return out
}

// want compares what the copy holds with what it should.
func (r *rig) want(want content) {
	r.t.Helper()
	got := r.read()
	var names []string
	for name := range want {
		names = append(names, name)
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for t, v := range want[name] {
			if g, ok := got[name][t]; !ok || g != v {
				r.t.Fatalf("series %s at %d: got %q, want %q", name, t, g, v)
			}
		}
		for t, v := range got[name] {
			if _, ok := want[name][t]; !ok {
				r.t.Fatalf("series %s at %d: got %q, want nothing", name, t, v)
			}
		}
	}
}

// first is the naive model of E1: the first value for a series and a time stays.
func (c content) first(all []float) {
	for _, f := range all {
		if c[f.series] == nil {
			c[f.series] = map[int64]string{}
		}
		if _, ok := c[f.series][f.t]; !ok {
			c[f.series][f.t] = bits(f.v)
		}
	}
}
