package pane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// P6: a read has every series that came up to its sequence, also those that came while it was under way.
func TestP6_ReadHasTheSeriesOfItsSequence(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 3, CheckpointInterval: 10 * time.Millisecond})
	st := named("m", 60_000)
	base := must(n.log.Append(ctx, planOf(t, st)))(t)
	const series = 3000
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range series { // each event brings one series
			if _, err := n.write(ctx, sample{labels.FromStrings("__name__", "m", "i", fmt.Sprint(i)), 1, 1}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	reads := 0
	for more := true; more; reads++ {
		select {
		case <-done:
			more = false
		default:
		}
		head := n.log.Head()
		snap, err := n.panes.Read(ctx, []Request{{Stream: planned(st), Matchers: matcher("m"), From: 0, To: 60_000}})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(snap.Answers[0].Series), int(snap.Seq-base); got != want || snap.Seq < head {
			t.Fatalf("read %d: %d series as of %d, want %d (the head was %d)", reads, got, snap.Seq, want, head)
		}
	}
	wg.Wait()
	t.Logf("%d reads", reads)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// A read that must wait for its turn gives up with its context, however long the turn lasts.
func TestReadGivesUpWithItsContext(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 1, CheckpointInterval: -1})
	st := named("m", 60_000)
	must(n.log.Append(ctx, planOf(t, st)))(t)
	must(n.barrier(ctx, 0))(t)

	// The only worker is busy, and its queue is full.
	busy, idle := make(chan struct{}), make(chan struct{})
	done := make(chan struct{}, 1)
	if err := n.panes.sendTo(ctx, n.panes.workers[0].queue, message{visit: func(s *Shard, _ *shelf) {
		if s.id == 0 {
			close(busy)
			<-idle
		}
	}, done: done}); err != nil {
		t.Fatal(err)
	}
	<-busy
	for range queuedBatches {
		must(0, n.panes.sendTo(ctx, n.panes.workers[0].queue, message{events: []*log.Event{}}))(t)
	}
	var wg sync.WaitGroup
	for range 3 { // one in its turn, the others before it
		wg.Go(func() {
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := n.panes.Read(short, []Request{{Stream: planned(st), Matchers: matcher("m"), From: 0, To: 60_000}})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
		})
	}
	wg.Wait()
	close(idle)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// R2: when a worker fails, whoever feeds it, waits on it or reads it gets the error, and stopping does not hang.
func TestR2_WorkerFailsWhileTheFeederBlocks(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 2, CheckpointInterval: -1})
	must(n.log.Append(ctx, planOf(t, named("m", 60_000))))(t)
	must(n.barrier(ctx, 0))(t)
	busy, idle := make(chan struct{}), make(chan struct{})
	done := make(chan struct{}, 1)
	if err := n.panes.sendTo(ctx, n.panes.workers[0].queue, message{visit: func(s *Shard, _ *shelf) {
		if s.id == 0 {
			close(busy)
			<-idle
		}
	}, done: done}); err != nil {
		t.Fatal(err)
	}
	<-busy
	// More batches than fit: the feeder blocks on the first worker; the bad event is in the first batch.
	bad := must(n.log.Append(ctx, &log.Plan{Spec: []byte("none")}))(t)
	for range batchesToFill {
		must(n.write(ctx, sample{labels.FromStrings("__name__", "m"), 1, 1}))(t)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.runner.Wait(ctx, bad); err == nil || !strings.Contains(err.Error(), "plan at") {
			t.Errorf("wait: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := n.panes.Read(ctx, []Request{{Stream: 1, From: 0, To: 60_000}}); err == nil || !strings.Contains(err.Error(), "plan at") {
			t.Errorf("read: %v", err)
		}
	})
	wg.Go(func() {
		if _, _, _, err := n.panes.Streams(ctx); err == nil || !strings.Contains(err.Error(), "plan at") {
			t.Errorf("streams: %v", err)
		}
	})
	wg.Wait()
	close(idle)
	if err := n.stop(); err == nil || !strings.Contains(err.Error(), "plan at") {
		t.Errorf("stop: %v", err)
	}
}

// batchesToFill is more than the queue of a worker and the runner's hands hold.
const batchesToFill = 3 * queuedBatches
