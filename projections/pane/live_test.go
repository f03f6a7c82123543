package pane

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// P11, P6: a read of open buckets has every sample up to its sequence and none behind it, and what it was given stays as it is,
// while samples are put before, between and behind those that it holds.
func TestP11_OpenBucketsAsOfOneSequence(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 3, CheckpointInterval: -1})
	st := named("m", 60_000)
	must(n.log.Append(ctx, planOf(t, st)))(t)
	st.Closed, st.Late, st.RetentionMillis = plan.Right, plan.Correct, 86_400_000
	req := Request{Stream: st.Resolved().ID, Matchers: matcher("m"), From: 0, To: 240_000, Live: true}

	type written struct {
		seq     log.Seq
		samples []sample
	}
	var mu sync.Mutex
	var all []written
	upTo := func(seq log.Seq) map[string]map[int64]float64 {
		out := map[string]map[int64]float64{}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range all {
			if w.seq > seq {
				break
			}
			for _, s := range w.samples {
				name := s.ls.String()
				if out[name] == nil {
					out[name] = map[int64]float64{}
				}
				if _, ok := out[name][s.t]; !ok {
					out[name][s.t] = s.v
				}
			}
		}
		return out
	}
	check := func(snap *Snapshot) error {
		want := upTo(snap.Seq)
		for _, s := range snap.Answers[0].Series {
			got := map[int64]float64{}
			for i, at := range s.T {
				if i > 0 && at <= s.T[i-1] {
					return fmt.Errorf("%s: %d after %d", s.Labels, at, s.T[i-1])
				}
				got[at] = s.V[i]
			}
			if !maps.Equal(got, want[s.Labels.String()]) {
				return fmt.Errorf("%s as of %d: %d samples, want %d", s.Labels, snap.Seq, len(got), len(want[s.Labels.String()]))
			}
			delete(want, s.Labels.String())
		}
		if len(want) > 0 {
			return fmt.Errorf("as of %d: %d series are missing", snap.Seq, len(want))
		}
		return nil
	}

	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var kept []*Snapshot
			for open := true; open; {
				select {
				case <-done:
					open = false
				default:
				}
				snap, err := n.panes.Read(ctx, []Request{req})
				if err != nil {
					t.Error(err)
					return
				}
				kept = append(kept, snap)
			}
			for _, snap := range kept { // long after they were taken
				if err := check(snap); err != nil {
					t.Error(err)
					return
				}
			}
			if len(kept) < 2 {
				t.Error("nothing was read beside the writer")
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 400 {
		var samples []sample
		for k := range 4 {
			at := 1 + rng.Int64N(59_000) // of a bucket that nothing closes
			samples = append(samples, sample{labels.FromStrings("__name__", "m", "i", fmt.Sprint(k%3+i/100)), at, float64(i*10 + k)})
		}
		mu.Lock() // so that who reads the event finds it here
		seq, err := n.write(ctx, samples...)
		if err != nil {
			mu.Unlock()
			t.Fatal(err)
		}
		all = append(all, written{seq, samples})
		mu.Unlock()
	}
	close(done)
	readers.Wait()
	// A read that is content with what is there asks for nothing more.
	behind := req
	behind.Behind = true
	snap, err := n.panes.Read(ctx, []Request{behind})
	if err != nil {
		t.Fatal(err)
	}
	if err := check(snap); err != nil {
		t.Error(err)
	}
	if open := slices.IndexFunc(snap.Answers[0].Series, func(s Series) bool { return len(s.Open) > 0 }); open < 0 {
		t.Error("no bucket is open: the test is about nothing")
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}
