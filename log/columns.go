package log

// The columns of a write. Data path 2 of 6: make durable and acknowledge.

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
)

const (
	sectionSamples = 1 << iota
	sectionStarts
	sectionExemplars
	sectionHistograms
	sectionMetadata
	sectionsKnown = 1<<iota - 1
)

const (
	timesEqual = 0
	timesDelta = 1
)

// checkColumns says whether w keeps the rules of its type.
func checkColumns(w *Write) error {
	n := len(w.Times)
	switch {
	case len(w.Ends) != len(w.Refs):
		return fmt.Errorf("%w: %d series have %d runs", ErrInvalid, len(w.Refs), len(w.Ends))
	case len(w.Values) != n, w.Starts != nil && len(w.Starts) != n:
		return fmt.Errorf("%w: columns of different lengths", ErrInvalid)
	case uint64(n) > math.MaxUint32:
		return fmt.Errorf("%w: %d samples", ErrInvalid, n)
	}
	var ref SeriesRef
	var begin uint32
	for i, end := range w.Ends {
		if w.Refs[i] <= ref {
			return fmt.Errorf("%w: series %d after %d", ErrInvalid, w.Refs[i], ref)
		}
		if end <= begin || int(end) > n {
			return fmt.Errorf("%w: run %d ends at %d", ErrInvalid, i, end)
		}
		if end-begin > 1 && !slices.IsSorted(w.Times[begin:end]) {
			return fmt.Errorf("%w: samples of series %d are not in time order", ErrInvalid, w.Refs[i])
		}
		ref, begin = w.Refs[i], end
	}
	if int(begin) != n {
		return fmt.Errorf("%w: %d samples belong to no series", ErrInvalid, n-int(begin))
	}
	return nil
}

// appendColumns appends everything of w but Defs.
func appendColumns(dst []byte, w *Write) ([]byte, error) {
	if err := checkColumns(w); err != nil {
		return dst, err
	}
	var sections byte
	for i, has := range [...]bool{len(w.Times) > 0, anyStart(w.Starts), len(w.Exemplars) > 0, len(w.Histograms) > 0, len(w.Metadata) > 0} {
		if has {
			sections |= 1 << i
		}
	}
	dst = append(dst, w.Hash[:]...)
	dst = append(dst, sections)
	if sections&sectionSamples != 0 {
		dst = appendRuns(dst, w.Refs, w.Ends)
		dst = appendTimes(dst, w.Ends, w.Times)
		dst = appendValues(dst, w.Ends, w.Values)
	}
	if sections&sectionStarts != 0 {
		dst = appendDeltas(dst, w.Starts)
	}
	if sections&sectionExemplars != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(w.Exemplars)))
		for i := range w.Exemplars {
			dst = appendExemplar(dst, &w.Exemplars[i])
		}
	}
	if sections&sectionHistograms != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(w.Histograms)))
		for i := range w.Histograms {
			dst = appendHistogram(dst, &w.Histograms[i])
		}
	}
	if sections&sectionMetadata != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(w.Metadata)))
		for i := range w.Metadata {
			dst = appendMetadata(dst, &w.Metadata[i])
		}
	}
	return dst, nil
}

func anyStart(starts []int64) bool {
	return slices.ContainsFunc(starts, func(t int64) bool { return t != 0 })
}

func appendRuns(dst []byte, refs []SeriesRef, ends []uint32) []byte {
	samples := ends[len(ends)-1]
	dst = binary.AppendUvarint(dst, uint64(len(refs)))
	dst = binary.AppendUvarint(dst, uint64(samples))
	var prev SeriesRef
	for _, ref := range refs {
		dst = binary.AppendUvarint(dst, uint64(ref-prev))
		prev = ref
	}
	if int(samples) == len(refs) {
		return dst
	}
	var begin uint32
	for _, end := range ends {
		dst = binary.AppendUvarint(dst, uint64(end-begin))
		begin = end
	}
	return dst
}

func appendTimes(dst []byte, ends []uint32, times []int64) []byte {
	if allEqual(times) {
		return binary.AppendVarint(append(dst, timesEqual), times[0])
	}
	dst = append(dst, timesDelta)
	if len(ends) == len(times) {
		return appendDeltas(dst, times)
	}
	var first, step int64
	var begin uint32
	for _, end := range ends {
		dst = binary.AppendVarint(dst, times[begin]-first)
		for i := begin + 1; i < end; i++ {
			dst = binary.AppendVarint(dst, times[i]-times[i-1]-step)
			step = times[i] - times[i-1]
		}
		first, begin = times[begin], end
	}
	return dst
}

func allEqual(times []int64) bool {
	for _, t := range times[1:] {
		if t != times[0] {
			return false
		}
	}
	return true
}

// appendDeltas appends each number less the one before it. Differences may wrap around; so do the sums that undo them.
func appendDeltas(dst []byte, column []int64) []byte {
	var prev int64
	for _, t := range column {
		dst = binary.AppendVarint(dst, t-prev)
		prev = t
	}
	return dst
}

func appendExemplar(dst []byte, e *Exemplar) []byte {
	dst = binary.AppendUvarint(dst, uint64(e.Ref))
	dst = binary.AppendVarint(dst, e.Time)
	dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(e.Value))
	return appendLabels(dst, e.Labels)
}

func appendHistogram(dst []byte, h *Histogram) []byte {
	dst = binary.AppendUvarint(dst, uint64(h.Ref))
	dst = binary.AppendVarint(dst, h.Time)
	dst = binary.AppendUvarint(dst, uint64(len(h.Proto)))
	return append(dst, h.Proto...)
}

func appendMetadata(dst []byte, m *Metadata) []byte {
	dst = appendString(dst, m.Family)
	dst = appendString(dst, m.Type)
	dst = appendString(dst, m.Help)
	return appendString(dst, m.Unit)
}

// appendLabels is also the canonical form of a label set, of which the dictionary takes the hash.
func appendLabels(dst []byte, ls labels.Labels) []byte {
	dst = binary.AppendUvarint(dst, uint64(ls.Len()))
	ls.Range(func(l labels.Label) {
		dst = appendString(dst, l.Name)
		dst = appendString(dst, l.Value)
	})
	return dst
}

// appendDefined is appendDefs of series, by increasing reference, whose labels are encoded already.
func appendDefined(dst []byte, defined []*freshSeries) []byte {
	room := 2 * binary.MaxVarintLen64
	for _, f := range defined {
		room += binary.MaxVarintLen32 + len(f.encoded)
	}
	dst = binary.AppendUvarint(slices.Grow(dst, room), uint64(len(defined)))
	prev := SeriesRef(0)
	for _, f := range defined {
		dst = append(binary.AppendUvarint(dst, uint64(f.ref-prev)), f.encoded...)
		prev = f.ref
	}
	return dst
}

func appendDefs(dst []byte, defs []SeriesDef) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(len(defs)))
	var prev SeriesRef
	for i := range defs {
		if defs[i].Ref <= prev {
			return dst, fmt.Errorf("%w: definition of series %d after %d", ErrInvalid, defs[i].Ref, prev)
		}
		dst = binary.AppendUvarint(dst, uint64(defs[i].Ref-prev))
		dst = appendLabels(dst, defs[i].Labels)
		prev = defs[i].Ref
	}
	return dst, nil
}
