package projections

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"tidemark/log"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a projection that keeps the sequences which it was given.
type recorder struct {
	restored Restored
	failAt   log.Seq

	mu      sync.Mutex
	seqs    []log.Seq
	err     error
	changed chan struct{}
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) Name() string { return "recorder" }

func (r *recorder) Restore() (Restored, error) {
	if r.restored.From > 0 {
		r.seqs = append(r.seqs, r.restored.From)
	}
	return r.restored, nil
}

func (r *recorder) Apply(_ context.Context, events []*log.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { close(r.changed); r.changed = make(chan struct{}) }()
	for _, ev := range events {
		if ev.Seq == r.failAt {
			r.err = errors.New("cannot fold this")
			return r.err
		}
		r.seqs = append(r.seqs, ev.Seq)
	}
	return nil
}

func (r *recorder) Applied() (log.Seq, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seqs) == 0 {
		return 0, r.err
	}
	return r.seqs[len(r.seqs)-1], r.err
}

func (r *recorder) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// runLog opens a log and runs it until the test ends.
func runLog(t *testing.T) *log.Log {
	t.Helper()
	l, err := log.Open("/log", log.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, l.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func appendTicks(t *testing.T, l *log.Log, n int) {
	t.Helper()
	for range n {
		if _, err := l.Append(t.Context(), &log.Tick{}); err != nil {
			t.Fatal(err)
		}
	}
}

// R1, R3: every event after the checkpoint, once, in order; ready when what was there at the start is applied.
func TestR1_EveryEventOnceInOrder(t *testing.T) {
	l := runLog(t)
	appendTicks(t, l, 300)
	p := newRecorder()
	p.restored = Restored{From: 40, Newest: 50}
	r := NewRunner(l, p)
	if err := r.Restore(); err != nil {
		t.Fatal(err)
	}
	if r.Ready() {
		t.Fatal("ready before anything was replayed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	runCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(runCtx) }()
	if err := r.Wait(ctx, 300); err != nil {
		t.Fatal(err)
	}
	if !r.Ready() {
		t.Fatal("not ready after replay")
	}
	appendTicks(t, l, 50)
	if err := r.Wait(ctx, 350); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, seq := range p.seqs {
		if seq != log.Seq(40+i) {
			t.Fatalf("place %d has event %d", i, seq)
		}
	}
	if applied, target := r.Progress(); applied != 350 || target != 300 {
		t.Fatal(applied, target)
	}
}

// R2: a projection that fails is given nothing more, and waiters get its error instead of waiting.
func TestR2_FailureReachesWaiters(t *testing.T) {
	l := runLog(t)
	p := newRecorder()
	p.failAt = 20
	r := NewRunner(l, p)
	if err := r.Restore(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waited, ran := make(chan error, 1), make(chan error, 1)
	go func() { waited <- r.Wait(ctx, 25) }()
	go func() { ran <- r.Run(ctx) }()
	appendTicks(t, l, 30)
	for _, c := range []chan error{waited, ran} {
		if err := <-c; err == nil || fmt.Sprint(err) != "projection recorder: cannot fold this" {
			t.Errorf("got %v", err)
		}
	}
	if err := r.Wait(ctx, 19); err != nil {
		t.Errorf("what was applied stays applied: %v", err)
	}
}

// A checkpoint beyond the end of the log is refused with both numbers: the log lost what the projection has seen.
func TestCase_B08_CheckpointBeyondTheLog(t *testing.T) {
	l := runLog(t)
	appendTicks(t, l, 90)
	p := newRecorder()
	p.restored = Restored{From: 80, Newest: 100}
	err := NewRunner(l, p).Restore()
	var short *log.ShortLogError
	if !errors.As(err, &short) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

// Waiting ends with the context.
func TestWaitEndsWithContext(t *testing.T) {
	l := runLog(t)
	r := NewRunner(l, newRecorder())
	if err := r.Restore(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
