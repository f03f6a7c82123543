package log

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func randomHash(rng *rand.Rand) (h Hash) {
	for i := range h {
		h[i] = byte(rng.Uint32())
	}
	return h
}

// What was added is always there, and of what was not little seems to be, up to the capacity.
func TestKnown(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	k := newKnown(0)
	added := make([]Hash, k.capacity)
	for i := range added {
		if k.full() {
			t.Fatalf("full after %d of %d", i, k.capacity)
		}
		added[i] = randomHash(rng)
		k.add(added[i])
	}
	for _, h := range added {
		if !k.has(h) {
			t.Fatalf("%x is missing", h)
		}
	}
	seeming := 0
	for range 100_000 {
		if k.has(randomHash(rng)) {
			seeming++
		}
	}
	if !k.full() || seeming > 3000 {
		t.Errorf("full: %t; %d of 100000 seem to be there", k.full(), seeming)
	}
}

// countingStore counts how often the store is asked.
type countingStore struct {
	storeReader
	gets atomic.Int64
}

func (s *countingStore) get(key []byte, use func([]byte) error) (bool, error) {
	s.gets.Add(1)
	return s.storeReader.get(key, use)
}

// L6 while what the store has is being read, again and again, beside writers of old and new series: each keeps its one reference. And once
// it has been read, the store is not asked for new series, but for old ones.
func TestL6_KnownBesideWriters(t *testing.T) {
	noLeak(t)
	opts := Options{FS: vfs.NewMem(), DictionaryCache: 1} // little is remembered
	var mu sync.Mutex
	want := map[int]SeriesRef{}
	total := 0
	for range 4 {
		l := mustOpen(t, testDir, opts)
		counted := &countingStore{storeReader: l.dict.store}
		l.dict.store = counted
		r := start(l)
		old := total
		total += 2000
		var next atomic.Int64
		next.Store(int64(old))
		done := make(chan struct{})
		var learner, writers sync.WaitGroup
		learner.Go(func() {
			for {
				select {
				case <-done:
					return
				case r.Dictionary().learn <- struct{}{}: // as if it were full
				}
			}
		})
		for w := range 4 {
			writers.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), uint64(old)))
				b := NewWriteBuilder()
				for {
					b.Reset()
					for range 20 {
						i := int(next.Add(1)) - 1
						if i >= total {
							return
						}
						for _, i := range []int{i, rng.IntN(i + 1)} {
							ref := resolve(t, r.Dictionary(), series(i))
							mu.Lock()
							if was, ok := want[i]; ok && was != ref {
								t.Errorf("series %d was %d and is %d", i, was, ref)
							}
							want[i] = ref
							mu.Unlock()
							b.Series(ref)
							b.Sample(1, 1)
						}
					}
					if _, err := r.Append(context.Background(), b.Finish()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		writers.Wait()
		close(done)
		learner.Wait()
		// All are given again, so that those of a writer's last, unfinished request have an event, too.
		b := NewWriteBuilder()
		for i := range total {
			ref := resolve(t, r.Dictionary(), series(i))
			if was, ok := want[i]; ok && was != ref {
				t.Fatalf("series %d was %d and is %d", i, was, ref)
			}
			want[i] = ref
			b.Series(ref)
			b.Sample(2, 1)
		}
		if _, err := r.Append(context.Background(), b.Finish()); err != nil {
			t.Fatal(err)
		}
		for read := false; !read; runtime.Gosched() {
			r.dict.fresh.Lock()
			read = r.dict.fresh.known != nil
			r.dict.fresh.Unlock()
		}
		before := counted.gets.Load()
		for i := range 500 {
			resolve(t, r.Dictionary(), series(10_000_000+old+i))
		}
		if n := counted.gets.Load() - before; n > 25 {
			t.Errorf("the store was asked %d times for 500 new series", n)
		}
		before = counted.gets.Load()
		ls := series(0)
		if ref, err := r.Dictionary().Resolve(r.Dictionary().Hash(appendLabels(nil, ls)), ls); err != nil || ref != want[0] || counted.gets.Load() == before {
			t.Errorf("an old series, %d, was found as %d with %d looks into the store (%v)", want[0], ref, counted.gets.Load()-before, err)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	refs := map[SeriesRef]bool{}
	for i, ref := range want {
		if refs[ref] {
			t.Fatalf("series %d has the reference of another", i)
		}
		refs[ref] = true
	}
}
