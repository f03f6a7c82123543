package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"
)

// noLeak fails the test if goroutines that it started are left at its end. Only the tests that make Open fail in the middle
// do without: see errStuck.
func noLeak(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// running is an open log whose Run is on its way.
type running struct {
	*Log
	cancel context.CancelFunc
	done   chan error
}

func start(l *Log) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Log: l, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- l.Run(ctx) }()
	return r
}

// stop ends Run and closes the log; it returns Run's error.
func (r *running) stop() error {
	r.cancel()
	err := <-r.done
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	return err
}

func mustOpen(t testing.TB, dir string, opts Options) *Log {
	t.Helper()
	l, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// resolve is what a request's decoder does for one series.
func resolve(t testing.TB, d *Dictionary, ls labels.Labels) SeriesRef {
	t.Helper()
	h := d.Hash(appendLabels(nil, ls))
	if ref, ok := d.Lookup(h); ok {
		return ref
	}
	ref, err := d.Resolve(h, ls)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func series(i int) labels.Labels {
	return labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))
}

func readAll(t testing.TB, l *Log, from Seq) []*Event {
	t.Helper()
	var out []*Event
	for r := l.NewReader(from); ; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
}

var compareLabels = cmp.Comparer(func(a, b labels.Labels) bool { return labels.Equal(a, b) })

// TestL1_AppendReadReopen: what is appended is read, before and after a restart, with dense sequences and one definition.
func TestL1_AppendReadReopen(t *testing.T) {
	noLeak(t)
	opts := Options{FS: vfs.NewMem()}
	l := start(mustOpen(t, "/data/log", opts))
	ctx := context.Background()
	if seq, err := l.Append(ctx, &Start{Reason: StartProcess}); err != nil || seq != 1 {
		t.Fatal(seq, err)
	}
	b := NewWriteBuilder()
	for round := range 3 {
		b.Reset()
		for i := range 5 {
			b.Series(resolve(t, l.Dictionary(), series(i)))
			b.Sample(int64(1000*round), float64(i))
		}
		if seq, err := l.Append(ctx, b.Finish()); err != nil || seq != Seq(round+2) {
			t.Fatal(seq, err)
		}
	}
	if seq, err := l.AppendAll(ctx, &Watermark{Time: 7, Scoped: true}, &Tick{}, &Drain{}, &Plan{Spec: []byte("{}")}); err != nil || seq != 8 {
		t.Fatal(seq, err)
	}
	live, err := l.Subscribe(1).Next(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	read := readAll(t, l.Log, 1)
	if diff := cmp.Diff(live, read, compareLabels); diff != "" {
		t.Fatal(diff)
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(mustOpen(t, "/data/log", opts))
	if diff := cmp.Diff(live, readAll(t, again.Log, 1), compareLabels); diff != "" {
		t.Fatal(diff)
	}
	if ref := resolve(t, again.Dictionary(), series(3)); ref != 4 {
		t.Fatal(ref)
	}
	if ref := resolve(t, again.Dictionary(), series(5)); ref != 6 {
		t.Fatal(ref)
	}
	if err := again.stop(); err != nil {
		t.Fatal(err)
	}
}
