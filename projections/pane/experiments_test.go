package pane

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"tidemark/log"
	"tidemark/projections/plan"
)

// P10: the set of published ends counts what a map of all places would, whatever comes in whichever order and is dropped, and its
// bytes decode to the same set.
func TestP10_EndSetIsASetOfPlaces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 9))
	for range 200 {
		var e endSet
		naive := make(map[int64]bool)
		span := int64(1) << (1 + rng.IntN(12))
		for range 400 {
			k := rng.Int64N(span) - span/2
			switch rng.IntN(12) {
			case 0:
				n := 0
				for p := range naive {
					if p <= k {
						delete(naive, p)
						n++
					}
				}
				if got := e.dropThrough(k); got != n {
					t.Fatalf("dropped %d through %d, not %d", got, k, n)
				}
			case 1: // a regular stretch
				for step := 1 + rng.Int64N(3); k < span && rng.IntN(200) > 0; k += step {
					if e.add(k) == naive[k] {
						t.Fatalf("place %d", k)
					}
					naive[k] = true
				}
			default:
				if e.add(k) == naive[k] {
					t.Fatalf("place %d was new: %v", k, naive[k])
				}
				naive[k] = true
			}
			if e.n != len(naive) {
				t.Fatalf("%d places, not %d", e.n, len(naive))
			}
		}
		for i := 1; i < len(e.runs); i++ {
			a, b := e.runs[i-1], e.runs[i]
			if a.last() >= b.first || a.last()+1 == b.first && a.mask == b.mask {
				t.Fatalf("runs %+v and %+v", a, b)
			}
		}
		x := newExperiment("x")
		x.published = []publishedEnds{{stream: 7, grid: indexGrid, ends: e}}
		back, err := decodeExperiment("x", x.encode())
		if err != nil || !slices.Equal(back.published[0].ends.runs, e.runs) || back.published[0].ends.n != e.n {
			t.Fatalf("%+v, %v", back, err)
		}
	}
}

// Regular data takes one run for any number of ends, also where every other one is missing.
func TestP10_EndSetOfRegularDataIsSmall(t *testing.T) {
	for _, step := range []int64{1, 2, 4} {
		var e endSet
		for k := int64(0); k < 100_000; k += step {
			e.add(k)
		}
		if len(e.runs) > 2 {
			t.Errorf("step %d takes %d runs", step, len(e.runs))
		}
	}
}

func FuzzDecodeExperiment(f *testing.F) {
	x := newExperiment("x")
	f.Add(x.encode())
	x.version, x.series, x.samples, x.pending = 9, 3, 1<<40, 2
	var e endSet
	for _, k := range []int64{-70, 1, 2, 3, 64, 65, 1 << 40} {
		e.add(k)
	}
	x.published = []publishedEnds{{stream: 7, grid: indexGrid, ends: e}, {stream: 8, grid: indexGrid, ends: e}}
	x.corrections = []correctedBucket{{stream: 7, end: -5, at: []correctedAt{{3, 1}, {9, 4}}}, {stream: 8, end: 0, at: []correctedAt{{4, 1}}}}
	f.Add(x.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeExperiment("x", b)
		if err != nil {
			return
		}
		// What decodes is written the same way again, but for varints that were longer than they need be.
		again, err := decodeExperiment("x", x.encode())
		if err != nil || !bytes.Equal(again.encode(), x.encode()) {
			t.Fatalf("%v: %+v", err, x)
		}
	})
}

// The corrections of one bucket take bounded memory; a compaction that reaches between places that were made one leaves both.
func TestP10_CorrectionsOfOneBucketAreBounded(t *testing.T) {
	s := NewShard(0, nil)
	sr := &seriesState{experiment: "x"}
	st := &stream{spec: plan.Stream{ID: 1}}
	for seq := range log.Seq(100) {
		s.seq = seq + 1
		s.correctedOne(sr, st, 10)
	}
	x := s.stats["x"]
	if all, worst := x.outstanding(); all != 100 || worst != 100 || len(x.corrections[0].at) != maxCorrectedAt {
		t.Fatalf("%d, %d, %+v", all, worst, x.corrections)
	}
	s.seq = 200
	s.compacted(&log.Compacted{Experiment: "x", Through: 50})
	if all, _ := x.outstanding(); all != 100 {
		t.Fatalf("%d are left", all)
	}
	s.compacted(&log.Compacted{Experiment: "x", Through: 90})
	if all, _ := x.outstanding(); all != 10 || x.version != 200 {
		t.Fatalf("%d are left", all)
	}
	s.compacted(&log.Compacted{Experiment: "x", Through: 100})
	if len(s.corrections) != 0 || x.corrections != nil {
		t.Fatalf("%+v", x.corrections)
	}
}
