package pane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// Compaction changes no digest, and leaves one piece where there were several.
func TestCompactionChangesNoDigest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx := testContext(t)
	h := randomHistory(rand.New(rand.NewPCG(seed, 1)), 300, []*log.Plan{planOf(t, named("m", 10_000), named("n", 15_000))})
	fs := vfs.NewMem()
	n := must(startNode(fs, fixedClock(), Options{Workers: 3, CheckpointInterval: -1}))(t)
	for len(h.steps) > 0 {
		k := min(20, len(h.steps))
		if err := n.feed(ctx, h.steps[:k], 7); err != nil {
			t.Fatal(err)
		}
		h.steps = h.steps[k:]
		if err := n.panes.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := must(n.describe(ctx))(t)
	c := bucket.NewCompactor(n.store, bucket.CompactorOptions{MinPieces: 2, SweepKeys: 1 << 20})
	if err := c.Pass(ctx); err != nil {
		t.Fatal(err)
	}
	if st := c.Stats(); st.Pieces < 3*st.Compactions || st.Compactions < 64 {
		t.Fatalf("%+v", st)
	}
	if after := must(n.describe(ctx))(t); after != before {
		t.Fatalf("\n got %s\nwant %s", after, before)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = must(startNode(fs, fixedClock(), Options{Workers: 1, CheckpointInterval: -1}))(t)
	if after := must(n.describe(ctx))(t); after != before {
		t.Fatalf("after a restart:\n got %s\nwant %s", after, before)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

// While writers write, checkpoints and compactions run as fast as they can, and reads are held up between view and pieces, every
// read still finds what was acknowledged before it, and no more than was sent.
func TestCompactionBesideIngestAndReads(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 2, CheckpointInterval: 32 * time.Millisecond})
	st := named("m", 1000)
	must(n.log.Append(ctx, planOf(t, st)))(t)
	bg, stopBackground := context.WithCancel(ctx)
	c := bucket.NewCompactor(n.store, bucket.CompactorOptions{MinPieces: 2, Interval: time.Millisecond})
	compacted := make(chan error, 1)
	go func() { compacted <- c.Run(bg) }()

	const rounds, series = 60, 70
	var acked, sent sync.Mutex // guard the two counts
	ackedN, sentN := 0, 0
	writing := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				acked.Lock()
				least := ackedN
				acked.Unlock()
				samples, _, _, _, err := n.count(ctx, st, 0, (rounds+1)*1000)
				sent.Lock()
				most := sentN
				sent.Unlock()
				if err != nil || samples < least || samples > most {
					t.Errorf("%d samples, %v; %d were acknowledged, %d sent", samples, err, least, most)
					return
				}
				select {
				case <-writing:
					return
				default:
				}
			}
		})
	}
	for round := range rounds {
		var ss []sample
		for i := range series {
			ss = append(ss, sample{labels.FromStrings("__name__", "m", "i", fmt.Sprint(i)), int64(round*1000 + 500), 1})
		}
		sent.Lock()
		sentN += series
		sent.Unlock()
		must(n.write(ctx, ss...))(t)
		must(n.barrier(ctx, int64(round+1)*1000))(t)
		acked.Lock()
		ackedN += series
		acked.Unlock()
	}
	for deadline := time.Now().Add(30 * time.Second); c.Stats().Compactions < 16; {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", c.Stats())
		}
		if _, _, _, _, err := n.count(ctx, st, 0, (rounds+1)*1000); err != nil {
			t.Fatal(err)
		}
	}
	close(writing)
	wg.Wait()
	stopBackground()
	if err := <-compacted; err != nil || c.Stats().Failures != 0 {
		t.Fatal(err, c.Stats())
	}
	if samples, _, _, _, err := n.count(ctx, st, 0, (rounds+1)*1000); samples != rounds*series || err != nil {
		t.Fatalf("%d samples, %v", samples, err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}
