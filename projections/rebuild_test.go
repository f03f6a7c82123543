package projections

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/log"
)

// writer is a Writer that says it holds much, and waits in Checkpoint until it is let go.
type writer struct {
	held        int64
	looks       atomic.Int64
	checkpoints atomic.Int64
	entered     chan struct{} // receives at each Checkpoint; nil: does not
	leave       chan error    // what Checkpoint returns; nil: nothing, at once
}

func (w *writer) Held(context.Context) (int64, error) {
	w.looks.Add(1)
	return w.held, nil
}

func (w *writer) Checkpoint(ctx context.Context) error {
	w.checkpoints.Add(1)
	if w.leave == nil {
		return nil
	}
	w.entered <- struct{}{}
	select {
	case err := <-w.leave:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// R1: an offline fold gives the events after from up to through, each once, in order, and no more; and counts them.
func TestR1_ReplayEndsWhereItIsTold(t *testing.T) {
	l := runLog(t)
	appendTicks(t, l, 500)
	p := newRecorder()
	p.restored = Restored{From: 40, Newest: 40}
	if _, err := p.Restore(); err != nil {
		t.Fatal(err)
	}
	var last log.Seq
	err := Replay(t.Context(), l, p, 40, 301, ReplayOptions{Observe: func(seq log.Seq, samples uint64) {
		if seq <= last || samples != 0 {
			t.Errorf("observed %d with %d samples after %d", seq, samples, last)
		}
		last = seq
	}})
	if err != nil || last != 301 || len(p.seqs) != 262 {
		t.Fatalf("%v, last %d, %d events", err, last, len(p.seqs))
	}
	for i, seq := range p.seqs {
		if seq != log.Seq(40+i) {
			t.Fatalf("place %d has event %d", i, seq)
		}
	}
	if err := Replay(t.Context(), l, p, 301, 301, ReplayOptions{}); err != nil || len(p.seqs) != 262 {
		t.Fatalf("nothing to do: %v, %d events", err, len(p.seqs))
	}
}

// What is held back is written only when it is much, and reading waits for a writer that is behind.
func TestReplayBoundsWhatIsHeld(t *testing.T) {
	l := runLog(t)
	appendTicks(t, l, 2000)
	idle := &writer{held: 99}
	if err := Replay(t.Context(), l, newRecorder(), 0, 2000, ReplayOptions{Writer: idle, HeldBytes: 100, Pace: 64}); err != nil {
		t.Fatal(err)
	}
	if idle.looks.Load() < 10 || idle.checkpoints.Load() != 0 {
		t.Fatalf("%d looks, %d checkpoints", idle.looks.Load(), idle.checkpoints.Load())
	}

	slow := &writer{held: 100, entered: make(chan struct{}), leave: make(chan error)}
	p := newRecorder()
	done := make(chan error, 1)
	go func() {
		done <- Replay(t.Context(), l, p, 0, 2000, ReplayOptions{Writer: slow, HeldBytes: 100, Pace: 64})
	}()
	for k := log.Seq(1); ; k++ {
		select {
		case <-slow.entered:
		case err := <-done:
			if err != nil || k < 25 {
				t.Fatalf("%v after %d checkpoints", err, k-1)
			}
			return
		}
		// The k-th look is under way, as many wait as may, and the feeder stands before the one after.
		bound := min(2000, (k+1+maxPaces)*64)
		for applied := log.Seq(0); applied != bound; {
			changed := p.Changed()
			if applied, _ = p.Applied(); applied > bound {
				t.Fatalf("%d events are applied while checkpoint %d is under way", applied, k)
			}
			if applied < bound {
				<-changed
			}
		}
		slow.leave <- nil
	}
}

// Whatever fails ends the fold with its error: the projection, the writer, the log that ends too early, the caller.
func TestReplayFails(t *testing.T) {
	l := runLog(t)
	appendTicks(t, l, 300)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failing := &writer{held: 1, entered: make(chan struct{}, 100), leave: make(chan error, 1)}
	failing.leave <- errors.New("no space")
	broken := newRecorder()
	broken.failAt = 100
	for _, c := range []struct {
		name    string
		ctx     context.Context
		p       *recorder
		through log.Seq
		writer  Writer
		want    string
	}{
		{"projection", t.Context(), broken, 300, nil, "cannot fold this"},
		{"writer", t.Context(), newRecorder(), 300, failing, "checkpoint: no space"},
		{"short log", t.Context(), newRecorder(), 301, nil, "read log: unexpected EOF"},
		{"cancelled", cancelled, newRecorder(), 300, nil, "context canceled"},
	} {
		err := Replay(c.ctx, l, c.p, 0, c.through, ReplayOptions{Writer: c.writer, HeldBytes: 1, Pace: 64})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Progress over a clock that the test holds: percent, rates over the last seconds, and how long it will take.
func TestMeter(t *testing.T) {
	now := time.UnixMilli(0)
	m := NewMeter(100, 1100, func() time.Time { return now })
	if p := m.Progress(); p.Percent != 0 || p.Left >= 0 || p.String() != "  0.0%  event 100 of 1100  0 events/s  0 samples/s  ETA unknown" {
		t.Errorf("before the first event: %+v, %s", p, p)
	}
	seq := log.Seq(100)
	step := func(events, samples int, d time.Duration) {
		now = now.Add(d)
		seq += log.Seq(events)
		m.Observe(seq, uint64(samples))
	}
	for range 20 {
		step(10, 5000, time.Second)
	}
	p := m.Progress()
	if p.Percent != 20 || p.EventsPerSecond != 10 || p.SamplesPerSecond != 5000 || p.Left != 80*time.Second {
		t.Errorf("steady: %+v", p)
	}
	if got := p.String(); got != " 20.0%  event 300 of 1100  10 events/s  5k samples/s  ETA 1m20s" {
		t.Error(got)
	}
	for range 200 { // ten times as fast, in small steps: the old rate is forgotten within the window
		step(2, 2000, 20*time.Millisecond)
	}
	if p = m.Progress(); p.EventsPerSecond <= 40 || p.EventsPerSecond >= 60 {
		t.Errorf("mixed: %+v", p)
	}
	for range 25 {
		step(10, 100, 500*time.Millisecond)
	}
	if p = m.Progress(); p.EventsPerSecond != 20 || p.Left != 7*time.Second+500*time.Millisecond {
		t.Errorf("after the window: %+v", p)
	}
	step(150, 0, time.Second)
	if p = m.Progress(); p.Percent != 100 || p.Left != 0 {
		t.Errorf("at the end: %+v", p)
	}
	if p = m.Total(); p.Events != 1000 || p.Elapsed != 37500*time.Millisecond || p.EventsPerSecond != 1000/37.5 || p.Samples != 20*5000+200*2000+25*100 {
		t.Errorf("in all: %+v", p)
	}
	if p := NewMeter(7, 7, time.Now).Progress(); p.Percent != 100 || p.Left != 0 {
		t.Errorf("nothing to do: %+v", p)
	}
	for v, want := range map[float64]string{0: "0", 12.34: "12.3", 999: "999", 1000: "1k", 5_120_000: "5.12M", 7e9: "7G"} {
		if got := short(v); got != want {
			t.Errorf("%v is shown as %s", v, got)
		}
	}
}
