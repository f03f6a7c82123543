package log

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"
)

// WriteBuilder gathers the accepted part of one request. It is used by one goroutine at a time and again after Reset.
type WriteBuilder struct {
	runs       []builderRun
	times      []int64
	values     []float64
	starts     []int64 // empty until the first start time
	exemplars  []Exemplar
	histograms []Histogram
	metadata   []Metadata

	order []uint32 // scratch of Finish, like byRef
	byRef []builderRun
}

type builderRun struct {
	ref        SeriesRef
	begin, end uint32
}

// NewWriteBuilder returns an empty builder.
func NewWriteBuilder() *WriteBuilder { return &WriteBuilder{} }

// Reset empties the builder and keeps its memory. Writes that it has finished are not touched.
func (b *WriteBuilder) Reset() {
	b.runs, b.times, b.values, b.starts = b.runs[:0], b.times[:0], b.values[:0], b.starts[:0]
	clear(b.exemplars)
	clear(b.histograms)
	clear(b.metadata)
	b.exemplars, b.histograms, b.metadata = b.exemplars[:0], b.histograms[:0], b.metadata[:0]
}

// Samples returns the number of samples so far.
func (b *WriteBuilder) Samples() int { return len(b.times) }

// Empty reports whether Finish would return a write that says nothing.
func (b *WriteBuilder) Empty() bool {
	return len(b.times)+len(b.exemplars)+len(b.histograms)+len(b.metadata) == 0
}

// Series says that the following samples belong to ref. A ref may come again.
func (b *WriteBuilder) Series(ref SeriesRef) {
	n := uint32(len(b.times))
	if last := len(b.runs) - 1; last >= 0 {
		if b.runs[last].end = n; b.runs[last].begin == n {
			b.runs[last].ref = ref // a series without samples
			return
		}
	}
	b.runs = append(b.runs, builderRun{ref: ref, begin: n, end: n})
}

// Sample adds a sample of the series named last. t is in ms; every bit of v is preserved. It panics before the first
// call of Series.
func (b *WriteBuilder) Sample(t int64, v float64) {
	_ = b.runs[0]
	b.times = append(b.times, t)
	b.values = append(b.values, v)
	if len(b.starts) > 0 {
		b.starts = append(b.starts, 0)
	}
}

// SampleStart is Sample with a start timestamp in ms; 0 is none.
func (b *WriteBuilder) SampleStart(t int64, v float64, start int64) {
	b.Sample(t, v)
	if start == 0 {
		return
	}
	for len(b.starts) < len(b.times) {
		b.starts = append(b.starts, 0)
	}
	b.starts[len(b.times)-1] = start
}

// Exemplar adds an exemplar. Exemplars, histograms and metadata are kept in the order in which they came.
func (b *WriteBuilder) Exemplar(e Exemplar) { b.exemplars = append(b.exemplars, e) }

// Histogram adds a native-histogram sample. Proto is copied by Finish.
func (b *WriteBuilder) Histogram(h Histogram) { b.histograms = append(b.histograms, h) }

// Metadata adds the description of a metric family.
func (b *WriteBuilder) Metadata(m Metadata) { b.metadata = append(b.metadata, m) }

// Finish returns what was gathered as a Write in normal form, with its hash. The Write owns its memory. Label strings are
// shared, and so must not lie in memory that is used again.
func (b *WriteBuilder) Finish() *Write {
	if last := len(b.runs) - 1; last >= 0 {
		b.runs[last].end = uint32(len(b.times))
		if b.runs[last].begin == b.runs[last].end {
			b.runs = b.runs[:last]
		}
	}
	w := &Write{
		Exemplars: slices.Clone(nonEmpty(b.exemplars)),
		Metadata:  slices.Clone(nonEmpty(b.metadata)),
	}
	for _, h := range b.histograms {
		h.Proto = append([]byte(nil), h.Proto...)
		w.Histograms = append(w.Histograms, h)
	}
	if len(b.times) > 0 {
		if b.sorted() {
			b.copyTo(w)
		} else {
			b.sortTo(w)
		}
	}
	w.Hash = contentHash(w)
	return w
}

func nonEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func (b *WriteBuilder) sorted() bool {
	var ref SeriesRef
	for _, r := range b.runs {
		if r.ref <= ref || r.end-r.begin > 1 && !slices.IsSorted(b.times[r.begin:r.end]) {
			return false
		}
		ref = r.ref
	}
	return true
}

func (b *WriteBuilder) copyTo(w *Write) {
	w.Refs = make([]SeriesRef, len(b.runs))
	w.Ends = make([]uint32, len(b.runs))
	for i, r := range b.runs {
		w.Refs[i], w.Ends[i] = r.ref, r.end
	}
	w.Times = slices.Clone(b.times)
	w.Values = slices.Clone(b.values)
	if len(b.starts) > 0 {
		w.Starts = slices.Clone(b.starts)
	}
}

// sortTo merges the runs of a series and brings series and times into order.
func (b *WriteBuilder) sortTo(w *Write) {
	b.byRef = append(b.byRef[:0], b.runs...)
	runs := b.byRef
	slices.SortStableFunc(runs, func(x, y builderRun) int { return cmp.Compare(x.ref, y.ref) })
	b.order = b.order[:0]
	series := 0
	for i, r := range runs {
		if i == 0 || r.ref != runs[i-1].ref {
			series++
		}
		for at := r.begin; at < r.end; at++ {
			b.order = append(b.order, at)
		}
	}
	w.Refs = make([]SeriesRef, 0, series)
	w.Ends = make([]uint32, 0, series)
	var end uint32
	for i, r := range runs {
		end += r.end - r.begin
		if i == 0 || r.ref != runs[i-1].ref {
			w.Refs = append(w.Refs, r.ref)
			w.Ends = append(w.Ends, end)
		} else {
			w.Ends[len(w.Ends)-1] = end
		}
	}
	b.sortTimes(w.Ends)
	n := len(b.times)
	w.Times, w.Values = make([]int64, n), make([]float64, n)
	if len(b.starts) > 0 {
		w.Starts = make([]int64, n)
	}
	for i, at := range b.order {
		w.Times[i], w.Values[i] = b.times[at], b.values[at]
		if w.Starts != nil {
			w.Starts[i] = b.starts[at]
		}
	}
}

func (b *WriteBuilder) sortTimes(ends []uint32) {
	var begin uint32
	for _, end := range ends {
		run := b.order[begin:end]
		begin = end
		if len(run) == 1 {
			continue
		}
		before := func(i, j int) bool { return b.times[run[i]] < b.times[run[j]] }
		if !sort.SliceIsSorted(run, before) {
			sort.SliceStable(run, before)
		}
	}
}

// contentHash is the hash of everything of w but Hash and Defs. It is taken over the columns in memory, so that it does
// not depend on the encoding; its own layout belongs to event format 1 all the same.
func contentHash(w *Write) Hash {
	h := hasher{h: xxh3.New128()}
	h.put(uint64(len(w.Refs)))
	for i := range w.Refs {
		h.put(uint64(w.Refs[i]))
		h.put(uint64(w.Ends[i]))
	}
	for _, t := range w.Times {
		h.put(uint64(t))
	}
	for _, v := range w.Values {
		h.put(math.Float64bits(v))
	}
	if !anyStart(w.Starts) {
		h.put(0)
	} else {
		h.put(1)
		for _, t := range w.Starts {
			h.put(uint64(t))
		}
	}
	// What follows is rare; its encoding is the simplest thing that tells different contents apart.
	h.put(uint64(len(w.Exemplars)))
	h.put(uint64(len(w.Histograms)))
	h.put(uint64(len(w.Metadata)))
	h.flush()
	var b []byte
	for i := range w.Exemplars {
		b = appendExemplar(b, &w.Exemplars[i])
	}
	for i := range w.Histograms {
		b = appendHistogram(b, &w.Histograms[i])
	}
	for i := range w.Metadata {
		b = appendMetadata(b, &w.Metadata[i])
	}
	h.h.Write(b)
	return h.h.Sum128().Bytes()
}

// hasher feeds integers to a hash in pieces that are worth its while.
type hasher struct {
	h   *xxh3.Hasher128
	buf [1024]byte
	n   int
}

func (h *hasher) put(v uint64) {
	if h.n == len(h.buf) {
		h.flush()
	}
	binary.LittleEndian.PutUint64(h.buf[h.n:], v)
	h.n += 8
}

func (h *hasher) flush() {
	h.h.Write(h.buf[:h.n])
	h.n = 0
}
