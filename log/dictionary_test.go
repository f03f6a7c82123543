package log

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
)

// TestL6_DefinedAtFirstUse: many writers share new series. Whichever is committed first carries the definition, once.
func TestL6_DefinedAtFirstUse(t *testing.T) {
	noLeak(t)
	opts := Options{FS: vfs.NewMem()}
	r := start(mustOpen(t, testDir, opts))
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			b := NewWriteBuilder()
			for round := range 20 {
				b.Reset()
				for i := range 10 {
					b.Series(resolve(t, r.Dictionary(), series(round*7+i)))
					b.Sample(int64(w), 1)
				}
				b.Exemplar(Exemplar{Ref: resolve(t, r.Dictionary(), series(1000+round))})
				b.Histogram(Histogram{Ref: resolve(t, r.Dictionary(), series(2000+round))})
				if _, err := r.Append(context.Background(), b.Finish()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	defined := map[SeriesRef]labels.Labels{}
	seen := map[string]SeriesRef{}
	for _, e := range readAll(t, r.Log, 1) {
		w := e.Body.(*Write)
		for _, d := range w.Defs {
			if other, ok := seen[d.Labels.String()]; ok {
				t.Fatalf("%s is both %d and %d", d.Labels, other, d.Ref)
			}
			seen[d.Labels.String()] = d.Ref
			defined[d.Ref] = d.Labels
		}
		refs := append([]SeriesRef{w.Exemplars[0].Ref, w.Histograms[0].Ref}, w.Refs...)
		for _, ref := range refs {
			if _, ok := defined[ref]; !ok {
				t.Fatalf("sequence %d uses series %d before it is defined", e.Seq, ref)
			}
		}
	}
	if n := r.Dictionary().freshCount.Load(); n != 0 || len(r.Dictionary().fresh.applied) != 0 {
		t.Fatalf("%d fresh, %d applied series are left", n, len(r.Dictionary().fresh.applied))
	}
	listed := map[SeriesRef]bool{}
	last := SeriesRef(0)
	err := r.Dictionary().All(func(ref SeriesRef, ls labels.Labels) bool {
		if ref <= last || !labels.Equal(ls, defined[ref]) {
			t.Fatalf("series %d after %d: %s, not %s", ref, last, ls, defined[ref])
		}
		last, listed[ref] = ref, true
		return true
	})
	if err != nil || len(listed) != len(defined) {
		t.Fatalf("%d of %d series are listed: %v", len(listed), len(defined), err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(testDir, opts, nil); err != nil {
		t.Fatal(err)
	}
}

// memoryStore is an empty store.
type memoryStore struct{ gets int }

func (m *memoryStore) get([]byte, func([]byte) error) (bool, error) { m.gets++; return false, nil }
func (m *memoryStore) iterate(_, _ []byte, _ func(_, _ []byte) (bool, error), _ func()) error {
	return nil
}

func numbered(i int) Hash {
	var h Hash
	binary.LittleEndian.PutUint64(h[:], uint64(i)*0x9e3779b97f4a7c15)
	h[15] = 1
	return h
}

func cached(d *Dictionary) (n int) {
	for i := range d.shards {
		n += len(d.shards[i].young) + len(d.shards[i].old)
	}
	return n
}

// TestL8_AliasesAreBounded: one series in thousands of spellings keeps a few of them, the newest, and thousands of series
// keep no more than the cache may hold; what was forgotten resolves to the same reference.
func TestL8_AliasesAreBounded(t *testing.T) {
	d := newDictionary(&memoryStore{}, 1, 1<<20, 1)
	for i := range 5000 {
		if ref, err := d.Resolve(numbered(i), series(0)); err != nil || ref != 1 {
			t.Fatal(ref, err)
		}
		if _, ok := d.Lookup(numbered(i)); !ok {
			t.Fatalf("spelling %d is not remembered", i)
		}
	}
	if n := cached(d); n > maxAliases {
		t.Fatalf("%d spellings of one series are held", n)
	}
	const limit = 2 * dictionaryShards * 4
	d = newDictionary(&memoryStore{}, 1, limit, 1)
	for i := range 5000 {
		if _, err := d.Resolve(numbered(i), series(i)); err != nil {
			t.Fatal(err)
		}
		if n := cached(d); n > limit {
			t.Fatalf("%d entries with a limit of %d", n, limit)
		}
	}
	if ref, err := d.Resolve(numbered(7), series(7)); err != nil || ref != 8 {
		t.Fatal(ref, err)
	}
}

// TestL8_RoomForWhatIsInUse: series that come again and again are soon found without a look at the store, however many they are; new ones make
// no room, and when they are all that comes, the room is given back. Seen to read the store for each with a limit that stays.
func TestL8_RoomForWhatIsInUse(t *testing.T) {
	const cache = 2 * dictionaryShards * 8
	d := newDictionary(&memoryStore{}, 1, cache, 1)
	missed := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			if _, ok := d.Lookup(numbered(i)); ok {
				continue
			}
			n++
			if _, err := d.Resolve(numbered(i), series(i)); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	const inUse = 10 * cache
	rounds := 0
	for missed(0, inUse) > 0 {
		if rounds++; rounds == 12 {
			t.Fatalf("in round %d still %d of %d are looked for in the store", rounds, missed(0, inUse), inUse)
		}
	}
	if n := cached(d); n > 4*inUse {
		t.Errorf("%d entries for %d series in use", n, inUse)
	}
	missed(inUse, 20*inUse)
	if n := cached(d); n > cache {
		t.Errorf("%d entries after many new series, %d are configured", n, cache)
	}
}

// TestL8_HotAliasesStay: what is looked up moves to the young generation and outlives the turnover.
func TestL8_HotAliasesStay(t *testing.T) {
	const limit = 2 * dictionaryShards * 8
	d := newDictionary(&memoryStore{}, 1, limit, 1)
	if _, err := d.Resolve(numbered(0), series(0)); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 10*limit; i++ {
		if _, err := d.Resolve(numbered(i), series(i)); err != nil {
			t.Fatal(err)
		}
		if ref, ok := d.Lookup(numbered(0)); !ok || ref != 1 {
			t.Fatalf("the hot alias is gone after %d others", i)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { d.Lookup(numbered(0)) }); allocs != 0 {
		t.Fatalf("%v allocations per lookup", allocs)
	}
}

// What is looked up anew whenever the epoch is another stays, and the epoch is not another for every few new series.
func TestL8_WhatIsKeptElsewhereStays(t *testing.T) {
	const limit = 2 * dictionaryShards * 8
	d := newDictionary(&memoryStore{}, 1, limit, 1)
	for i := range 20 {
		if _, err := d.Resolve(numbered(i), series(i)); err != nil {
			t.Fatal(err)
		}
	}
	epoch, changes := d.Epoch(), 0
	const others = 20 * limit
	for i := range others {
		if _, err := d.Resolve(numbered(100+i), series(100+i)); err != nil {
			t.Fatal(err)
		}
		if d.Epoch() == epoch {
			continue
		}
		epoch = d.Epoch()
		changes++
		for k := range 20 {
			if ref, ok := d.Lookup(numbered(k)); !ok || ref != SeriesRef(k+1) {
				t.Fatalf("series %d is gone after %d others", k, i)
			}
		}
	}
	if changes == 0 || changes > 4*others/(limit/2) {
		t.Errorf("%d epochs for %d new series, %d of which are a generation", changes, others, limit/2)
	}
}

// TestDictionary_Refuses: labels that are not canonical, and references that nobody resolved.
func TestDictionary_Refuses(t *testing.T) {
	noLeak(t)
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem()}))
	for i, ls := range []labels.Labels{labels.EmptyLabels(), labels.New(labels.Label{Name: "a", Value: ""}), labels.New(labels.Label{Name: "", Value: "x"})} {
		if _, err := r.Dictionary().Resolve(numbered(i), ls); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", ls, err)
		}
	}
	b := NewWriteBuilder()
	b.Series(1)
	b.Sample(1, 1)
	if _, err := r.Append(context.Background(), b.Finish()); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, ok, err := r.Dictionary().Labels(1); ok || err != nil {
		t.Error(ok, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Dictionary().Labels(1); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := r.Append(context.Background(), &Tick{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestDictionary_SmallCacheReadsTheStore: with next to no cache every series is found on disk, after a restart too.
func TestDictionary_SmallCacheReadsTheStore(t *testing.T) {
	noLeak(t)
	opts := Options{FS: vfs.NewMem(), DictionaryCache: 1}
	want := map[int]SeriesRef{}
	for range 3 {
		r := start(mustOpen(t, testDir, opts))
		b := NewWriteBuilder()
		for i := range 500 {
			ref := resolve(t, r.Dictionary(), series(i))
			if want[i] == 0 {
				want[i] = ref
			}
			if want[i] != ref {
				t.Fatalf("series %d was %d and is %d", i, want[i], ref)
			}
			b.Series(ref)
			b.Sample(1, 1)
		}
		if _, err := r.Append(context.Background(), b.Finish()); err != nil {
			t.Fatal(err)
		}
		for i, ref := range want {
			ls, ok, err := r.Dictionary().Labels(ref)
			if err != nil || !ok || !labels.Equal(ls, series(i)) {
				t.Fatal(ls, ok, err)
			}
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) != 500 {
		t.Fatal(len(want))
	}
}
