package pane

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/projections/accum"
)

// Samples that are appended to windows of one room, in any order of the windows, stay what and where they are while others get room and
// other rooms are released; and how many panes there may still be is only a guess.
func TestRoom_Model(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var r room
		windows, lengths := make([]accum.Window, 1+rng.IntN(200)), make([]int, 201)
		per := 1 + rng.IntN(accum.MaxSamples)
		for range 5000 {
			i := rng.IntN(len(windows))
			w := &windows[i]
			if len(w.T)+per > cap(w.T) {
				r.reserve(w, per, 1+rng.IntN(300))
			}
			for range per {
				w.T, w.V = append(w.T, int64(i*1_000_000+lengths[i])), append(w.V, float64(i*1_000_000+lengths[i]))
				lengths[i]++
			}
			if rng.IntN(500) == 0 {
				var other room
				var x accum.Window
				other.reserve(&x, 10, 10)
				x.T, x.V = append(x.T, -1), append(x.V, -1)
				other.release()
			}
		}
		for i := range windows {
			w := &windows[i]
			if len(w.T) != lengths[i] || len(w.V) != lengths[i] {
				t.Fatalf("window %d holds %d and %d samples, not %d", i, len(w.T), len(w.V), lengths[i])
			}
			for k := range w.T {
				if want := i*1_000_000 + k; w.T[k] != int64(want) || w.V[k] != float64(want) {
					t.Fatalf("sample %d of window %d is %d and %g", k, i, w.T[k], w.V[k])
				}
			}
		}
		r.release()
	}
}

// A read after a release finds the room again: it takes hardly anything from the allocator.
func TestRoom_IsUsedAgain(t *testing.T) {
	n, stop := benchNode(t, 500, 20, true)
	defer stop()
	req := Request{Stream: benchStream().ID, Matchers: matcher("m"), From: 0, To: 1_200_000}
	for range 20 {
		snap, err := n.panes.Read(t.Context(), []Request{req, req})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range snap.Answers {
			if len(a.Series) != 500 {
				t.Fatalf("%d series", len(a.Series))
			}
			for _, s := range a.Series {
				if len(s.T) != 80 {
					t.Fatalf("%d samples of %s", len(s.T), s.Labels)
				}
				for k, at := range s.T {
					if at != int64(k+1)*15_000 || s.V[k]-s.V[0] != float64(k*15) {
						t.Fatalf("sample %d of %s is %g at %d", k, s.Labels, s.V[k], at)
					}
				}
			}
		}
		if taken := len(snap.room.taken); taken < 2*500*80/roomSamples {
			t.Errorf("%d pieces of memory hold %d samples", taken, 2*500*80)
		}
		snap.Release()
	}
}

// What several readers collect together is what one collects.
func TestCollect_SeveralReaders(t *testing.T) {
	n, stop := benchNode(t, 4000, 20, true) // more than twice sharedPanes
	defer stop()
	req := Request{Stream: benchStream().ID, Matchers: matcher("m"), From: 0, To: 1_200_000}
	read := func(processors int) *Snapshot {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		snap, err := n.panes.Read(t.Context(), []Request{req})
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	one, two := read(1), read(2)
	want, got := one.Answers[0], two.Answers[0]
	if len(want.Series) != 4000 || len(got.Series) != 4000 || got.Pieces != want.Pieces || want.Pieces == 0 {
		t.Fatalf("%d and %d series, %d and %d pieces", len(want.Series), len(got.Series), want.Pieces, got.Pieces)
	}
	for i := range want.Series {
		x, y := &got.Series[i], &want.Series[i]
		if !labels.Equal(x.Labels, y.Labels) || len(y.T) != 80 || !slices.Equal(x.T, y.T) || !slices.Equal(x.V, y.V) {
			t.Fatalf("%s has %d samples, %s has %d", x.Labels, len(x.T), y.Labels, len(y.T))
		}
	}
	one.Release()
	two.Release()
}
