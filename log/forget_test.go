package log

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// writeOf is a write with one sample of each of the given series.
func writeOf(refs ...SeriesRef) *Write {
	b := NewWriteBuilder()
	for _, ref := range refs {
		b.Series(ref)
		b.Sample(int64(ref), 1)
	}
	return b.Finish()
}

// Of the series that are retiring, those that are forgotten which nobody called back: by resolving them or by an event.
func TestForget(t *testing.T) {
	noLeak(t)
	ctx := context.Background()
	fs := vfs.NewMem()
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	d := r.Dictionary()
	var refs []SeriesRef
	for i := range 6 {
		refs = append(refs, resolve(t, d, series(i)))
	}
	if _, err := r.Append(ctx, writeOf(refs...)); err != nil {
		t.Fatal(err)
	}
	if err := r.Retire(append(refs, 99)); err != nil { // one was never defined
		t.Fatal(err)
	}
	if _, ok := d.Lookup(d.Hash(appendLabels(nil, series(0)))); ok {
		t.Fatal("an alias leads to a series that is retiring")
	}
	if got := resolve(t, d, series(1)); got != refs[1] {
		t.Fatalf("series %d is resolved as %d while it is retiring", refs[1], got)
	}
	if _, err := r.Append(ctx, writeOf(refs[2])); err != nil { // as resolved before
		t.Fatal(err)
	}
	n, err := r.Forget(refs)
	if err != nil || n != 3 { // the greatest stays, whatever happens
		t.Fatalf("%d series are forgotten: %v", n, err)
	}
	for i, ref := range refs {
		_, ok, err := d.Labels(ref)
		if want := i == 1 || i == 2 || i == 5; ok != want || err != nil {
			t.Errorf("series %d is known: %v %v", ref, ok, err)
		}
	}
	// Too late for whoever resolved them before, and new for whoever resolves them now.
	if _, err := r.AppendAll(ctx, &Watermark{Time: 1}, writeOf(refs[1], refs[3])); !errors.Is(err, ErrForgotten) {
		t.Errorf("a write with a forgotten series: %v", err)
	}
	again := resolve(t, d, series(0))
	if again <= refs[5] {
		t.Errorf("series 0 came back as %d", again)
	}
	if _, err := r.Append(ctx, writeOf(refs[1], again)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Forget(refs); err != nil || n != 0 {
		t.Errorf("%d series are forgotten that were not retired again: %v", n, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(mustOpen(t, testDir, Options{FS: fs}))
	if got := resolve(t, r.Dictionary(), series(3)); got <= again {
		t.Errorf("a reference is given away twice: %d", got)
	}
	if ls, ok, err := r.Dictionary().Labels(again); err != nil || !ok || ls.String() != series(0).String() {
		t.Error(ls, ok, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// Writers and a forgetter run beside each other: every event that is in the log has its series defined, under one label set.
func TestForgetBesideWrites(t *testing.T) {
	noLeak(t)
	ctx := context.Background()
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem(), DictionaryCache: 128}))
	d := r.Dictionary()
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				ls := series((i*7 + w) % 50)
				ref, ok := d.Lookup(d.Hash(appendLabels(nil, ls)))
				if !ok {
					ref = resolve(t, d, ls)
				}
				if _, err := r.Append(ctx, writeOf(ref)); err != nil && !errors.Is(err, ErrForgotten) {
					t.Error(err)
					return
				}
			}
		})
	}
	// What the caller of Retire answers for does not hold here: the log names these series. So it is looked up while they are there.
	forgotten := 0
	for round := 0; forgotten < 200 && round < 20_000; round++ {
		var refs []SeriesRef
		for ref := max(1, int(lastRef(d))-60); ref < int(lastRef(d)); ref++ {
			refs = append(refs, SeriesRef(ref))
		}
		if len(refs) == 0 { // the writers have not begun: on a busy machine all rounds could pass before
			round--
			runtime.Gosched()
			continue
		}
		if err := r.Retire(refs); err != nil {
			t.Fatal(err)
		}
		n, err := r.Forget(refs)
		if err != nil {
			t.Fatal(err)
		}
		forgotten += n
	}
	close(stop)
	writers.Wait()
	t.Logf("%d forgotten", forgotten)
	if forgotten < 200 {
		t.Error("hardly anything was forgotten")
	}
	defined := make(map[SeriesRef]string)
	for _, e := range readAll(t, r.Log, 1) {
		w := e.Body.(*Write)
		for _, def := range w.Defs {
			if old, ok := defined[def.Ref]; ok {
				t.Fatalf("series %d is %s and %s", def.Ref, old, def.Labels)
			}
			defined[def.Ref] = def.Labels.String()
		}
		for _, ref := range w.Refs {
			if _, ok := defined[ref]; !ok {
				t.Fatalf("event %d names series %d, which no event before it has defined", e.Seq, ref)
			}
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func lastRef(d *Dictionary) SeriesRef {
	d.fresh.Lock()
	defer d.fresh.Unlock()
	return d.fresh.greatest
}

// L8: series that were resolved and never used by an event go after a while, and then hinder nobody.
func TestL8_AbandonedSeries(t *testing.T) {
	noLeak(t)
	ctx := context.Background()
	now := time.Hour
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem(), Monotonic: func() time.Duration { return now }}))
	d := r.Dictionary()
	kept, lost := resolve(t, d, series(1)), resolve(t, d, series(2))
	if _, err := r.Append(ctx, writeOf(kept)); err != nil {
		t.Fatal(err)
	}
	now += freshStay
	if n := r.Tidy(); n != 0 {
		t.Fatalf("%d series were dropped too early", n)
	}
	now++
	if n := r.Tidy(); n != 1 || d.freshCount.Load() != 0 || len(d.fresh.byHash) != 0 {
		t.Fatalf("%d series were dropped, %d are left", n, d.freshCount.Load())
	}
	if _, err := r.Append(ctx, writeOf(kept, lost)); !errors.Is(err, ErrForgotten) {
		t.Fatalf("a write with a series that was dropped: %v", err)
	}
	again := resolve(t, d, series(2))
	if _, ok := d.Lookup(d.Hash(appendLabels(nil, series(2)))); again == lost || !ok {
		t.Fatalf("series 2 came back as %d, as before", again)
	}
	if _, err := r.Append(ctx, writeOf(kept, again)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now += forgottenStay + 1
		r.Tidy()
	}
	if d.leaving.Load() || len(d.fresh.forgotten)+len(d.fresh.old) != 0 {
		t.Error("what was forgotten is remembered for good")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// What was looked up while aliases go is kept for an epoch that is over once they are gone: at no time is there a new epoch and an old alias.
func TestL8_TheEpochEndsBehindThePurge(t *testing.T) {
	noLeak(t)
	r := start(mustOpen(t, testDir, Options{FS: vfs.NewMem()}))
	d := r.Dictionary()
	for i := range 500 {
		resolve(t, d, series(i))
	}
	began, looked := d.Epoch(), 0
	d.purge(func(SeriesRef) bool {
		if looked++; d.Epoch() != began {
			t.Fatal("an alias is there in a new epoch")
		}
		return true
	})
	if looked < 500 || d.Epoch() == began {
		t.Errorf("%d aliases were purged, and the epoch is %d as before", looked, d.Epoch())
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}
