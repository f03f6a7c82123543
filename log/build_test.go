package log

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
)

// modelSample is a sample as it was given to the builder.
type modelSample struct {
	ref      SeriesRef
	t, start int64
	bits     uint64
}

type writeModel struct{ samples []modelSample }

// buildFrom reads calls of the builder from bytes, and keeps what was said in the order in which it was said.
func buildFrom(b *WriteBuilder, in []byte) writeModel {
	var m writeModel
	next := func() byte {
		if len(in) == 0 {
			return 0
		}
		c := in[0]
		in = in[1:]
		return c
	}
	ref := SeriesRef(1)
	b.Series(ref)
	for len(in) > 0 {
		switch op := next(); op % 8 {
		case 0, 1:
			ref = SeriesRef(next()%9) + 1
			b.Series(ref)
		case 2, 3, 4:
			s := modelSample{ref: ref, t: int64(int8(next())), bits: math.Float64bits(float64(int8(next())) / powers[op/8%7])}
			b.Sample(s.t, math.Float64frombits(s.bits))
			m.samples = append(m.samples, s)
		case 5:
			s := modelSample{ref: ref, t: int64(next()) << 40, bits: uint64(next())<<56 | uint64(next())<<48 | 2, start: int64(int8(next()))}
			b.SampleStart(s.t, math.Float64frombits(s.bits), s.start)
			m.samples = append(m.samples, s)
		case 6:
			b.Exemplar(Exemplar{Ref: ref, Time: int64(next()), Value: float64(next()), Labels: labels.FromStrings("a", string(rune(next())+1))})
		case 7:
			b.Histogram(Histogram{Ref: ref, Time: int64(next()), Proto: []byte{next()}})
			b.Metadata(Metadata{Family: string(rune('a' + next()%26))})
		}
	}
	return m
}

// check compares a write with the model: sorted by series, then by time, equal times in the order of the request.
func (m writeModel) check(t testing.TB, w *Write) {
	t.Helper()
	want := slices.Clone(m.samples)
	slices.SortStableFunc(want, func(a, b modelSample) int {
		if a.ref != b.ref {
			return int(int64(a.ref) - int64(b.ref))
		}
		switch {
		case a.t < b.t:
			return -1
		case a.t > b.t:
			return 1
		}
		return 0
	})
	var got []modelSample
	var begin uint32
	for i, end := range w.Ends {
		for ; begin < end; begin++ {
			s := modelSample{ref: w.Refs[i], t: w.Times[begin], bits: math.Float64bits(w.Values[begin])}
			if w.Starts != nil {
				s.start = w.Starts[begin]
			}
			got = append(got, s)
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(modelSample{})); diff != "" {
		t.Fatal(diff)
	}
	if err := checkColumns(w); err != nil {
		t.Fatal(err)
	}
}

// TestWriteBuilder_Model compares random requests with the model; one builder serves them all, so that what Finish returned
// must not share its memory.
func TestWriteBuilder_Model(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	b := NewWriteBuilder()
	var models []writeModel
	var writes []*Write
	for range 400 {
		in := make([]byte, rng.IntN(200))
		for i := range in {
			in[i] = byte(rng.Uint32())
		}
		b.Reset()
		models = append(models, buildFrom(b, in))
		w := b.Finish()
		if again := b.Finish(); again.Hash != w.Hash {
			t.Fatal("Finish changes what was gathered")
		}
		writes = append(writes, w)
	}
	for i, w := range writes {
		models[i].check(t, w)
		sameEvent(t, roundTrip(t, w), &Event{Seq: 5, Body: w})
	}
}

// TestWriteBuilder_Hash: equal content has an equal hash whatever its order in the request, and any difference shows.
func TestWriteBuilder_Hash(t *testing.T) {
	build := func(f func(*WriteBuilder)) Hash {
		b := NewWriteBuilder()
		f(b)
		return b.Finish().Hash
	}
	sample := func(ref SeriesRef, t int64, v float64) func(*WriteBuilder) {
		return func(b *WriteBuilder) { b.Series(ref); b.Sample(t, v) }
	}
	both := func(fs ...func(*WriteBuilder)) func(*WriteBuilder) {
		return func(b *WriteBuilder) {
			for _, f := range fs {
				f(b)
			}
		}
	}
	if build(both(sample(1, 5, 1), sample(2, 5, 2))) != build(both(sample(2, 5, 2), sample(1, 5, 1))) {
		t.Error("the order of series changes the hash")
	}
	exemplar := func(b *WriteBuilder) { b.Exemplar(Exemplar{Ref: 1, Time: 5, Value: 1}) }
	histogram := func(b *WriteBuilder) { b.Histogram(Histogram{Ref: 1, Time: 5}) }
	different := []func(*WriteBuilder){
		both(), sample(1, 5, 1), sample(2, 5, 1), sample(1, 6, 1), sample(1, 5, 2), sample(1, 5, math.Copysign(0, -1)), sample(1, 5, 0),
		both(sample(1, 5, 1), sample(1, 5, 1)), both(sample(1, 5, 1), sample(2, 5, 1)), exemplar, histogram,
		both(sample(1, 5, 1), exemplar), both(sample(1, 5, 1), histogram),
		func(b *WriteBuilder) { b.Series(1); b.SampleStart(5, 1, 4) },
		func(b *WriteBuilder) { b.Metadata(Metadata{Family: "ab"}) },
		func(b *WriteBuilder) { b.Metadata(Metadata{Family: "a", Type: "b"}) },
	}
	seen := map[Hash]int{}
	for i, f := range different {
		h := build(f)
		if j, ok := seen[h]; ok {
			t.Errorf("contents %d and %d have the same hash", i, j)
		}
		seen[h] = i
	}
}

// TestL7_InvalidWrites: a write that breaks the rules of its type is refused before it reaches the log.
func TestL7_InvalidWrites(t *testing.T) {
	good := func() *Write {
		return &Write{Refs: []SeriesRef{1, 2}, Ends: []uint32{2, 3}, Times: []int64{1, 2, 3}, Values: []float64{1, 2, 3}}
	}
	if err := checkColumns(good()); err != nil {
		t.Fatal(err)
	}
	for i, spoil := range []func(*Write){
		func(w *Write) { w.Refs[0] = 0 },
		func(w *Write) { w.Refs[1] = 1 },
		func(w *Write) { w.Ends[0] = 0 },
		func(w *Write) { w.Ends[1] = 2 },
		func(w *Write) { w.Ends[1] = 4 },
		func(w *Write) { w.Ends = w.Ends[:1] },
		func(w *Write) { w.Times[0] = 3 },
		func(w *Write) { w.Values = w.Values[:2] },
		func(w *Write) { w.Starts = []int64{1} },
		func(w *Write) { w.Refs, w.Ends = nil, nil },
	} {
		w := good()
		spoil(w)
		if err := checkColumns(w); err == nil {
			t.Errorf("fault %d passes", i)
		}
	}
}
