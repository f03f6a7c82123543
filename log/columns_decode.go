package log

// Reading the columns of a write. Data path 2 of 6: make durable and acknowledge; what is read goes on to 3, apply.

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/model/labels"
)

func (d *decoder) columns(w *Write) {
	copy(w.Hash[:], d.take(len(w.Hash)))
	sections := d.byte()
	if sections&^byte(sectionsKnown) != 0 {
		d.fail("unknown section")
		return
	}
	if sections&sectionSamples != 0 {
		d.runs(w)
		d.times(w)
		d.values(w)
	}
	if sections&sectionStarts != 0 {
		w.Starts = make([]int64, len(w.Times))
		d.deltas(w.Starts)
		if d.reason == "" && !anyStart(w.Starts) {
			d.fail("start times without any")
		}
	}
	if sections&sectionExemplars != 0 {
		w.Exemplars = make([]Exemplar, d.some(11))
		for i := range w.Exemplars {
			d.exemplar(&w.Exemplars[i])
		}
	}
	if sections&sectionHistograms != 0 {
		w.Histograms = make([]Histogram, d.some(3))
		for i := range w.Histograms {
			h := &w.Histograms[i]
			h.Ref, h.Time = SeriesRef(d.uvarint()), d.varint()
			h.Proto = append([]byte(nil), d.bytes()...)
		}
	}
	if sections&sectionMetadata != 0 {
		w.Metadata = make([]Metadata, d.some(4))
		for i := range w.Metadata {
			m := &w.Metadata[i]
			m.Family, m.Type = string(d.bytes()), string(d.bytes())
			m.Help, m.Unit = string(d.bytes()), string(d.bytes())
		}
	}
}

func (d *decoder) runs(w *Write) {
	runs := d.count(1)
	samples := d.count(1) // every sample has at least a byte of value
	if d.reason != "" || runs == 0 || samples < runs {
		d.fail("run without a sample")
		return
	}
	w.Refs = make([]SeriesRef, runs)
	w.Ends = make([]uint32, runs)
	if !d.refs(w.Refs) {
		return
	}
	if samples == runs {
		for i := range w.Ends {
			w.Ends[i] = uint32(i + 1)
		}
	} else {
		var end uint64
		for i := range w.Ends {
			n := d.uvarint()
			if n == 0 || n > uint64(samples)-end {
				d.fail("run lengths do not add up")
				return
			}
			end += n
			w.Ends[i] = uint32(end)
		}
		if end != uint64(samples) {
			d.fail("run lengths do not add up")
			return
		}
	}
	if samples > len(d.b) {
		d.fail("count beyond the end")
		return
	}
	w.Times = make([]int64, samples)
	w.Values = make([]float64, samples)
}

// refs is a loop of its own, as nearly all gaps are of one byte.
func (d *decoder) refs(refs []SeriesRef) bool {
	b := d.b
	var ref SeriesRef
	for i := range refs {
		var gap uint64
		n := 0
		if len(b) > 0 && b[0] < 0x80 {
			gap, n = uint64(b[0]), 1
		} else {
			gap, n = uvarint(b)
		}
		next := ref + SeriesRef(gap)
		if n == 0 || next <= ref {
			d.fail("series out of order")
			return false
		}
		b = b[n:]
		ref = next
		refs[i] = ref
	}
	d.b = b
	return true
}

func (d *decoder) times(w *Write) {
	if d.reason != "" {
		return
	}
	switch d.byte() {
	case timesEqual:
		t := d.varint()
		for i := range w.Times {
			w.Times[i] = t
		}
	case timesDelta:
		if len(w.Ends) == len(w.Times) {
			d.deltas(w.Times)
			return
		}
		d.runTimes(w)
	default:
		d.fail("unknown mode of times")
	}
}

func (d *decoder) runTimes(w *Write) {
	var first, step int64
	var begin uint32
	for _, end := range w.Ends {
		first += d.varint()
		w.Times[begin] = first
		for i := begin + 1; i < end; i++ {
			step += d.varint()
			w.Times[i] = w.Times[i-1] + step
			if w.Times[i] < w.Times[i-1] {
				d.fail("samples out of time order")
				return
			}
		}
		begin = end
	}
}

// deltas undoes appendDeltas.
func (d *decoder) deltas(column []int64) {
	b := d.b
	var prev int64
	for i := range column {
		var u uint64
		n := 0
		if len(b) > 0 && b[0] < 0x80 {
			u, n = uint64(b[0]), 1
		} else if u, n = uvarint(b); n == 0 {
			d.fail("bad varint")
			return
		}
		b = b[n:]
		prev += unzigzag(u)
		column[i] = prev
	}
	d.b = b
}

// uvarint reads a varint; n is 0 when there is none. Most are of one to four bytes, and eight bytes are nearly always
// there to be read at once.
func uvarint(b []byte) (u uint64, n int) {
	if len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		if stop := ^w & continuation; stop != 0 {
			return unpack(w, stop), bits.TrailingZeros64(stop)/8 + 1
		}
	}
	u, n = binary.Uvarint(b)
	return u, max(n, 0)
}

// continuation has the bits that say that a varint goes on.
const continuation = 0x8080808080808080

// unpack takes the value of the varint at the beginning of w; stop has the bit that ends it lowest.
func unpack(w, stop uint64) uint64 {
	w &= stop ^ (stop - 1) // the bytes to the end, and the ending bit, which is 0
	w = w&0x007f007f007f007f | w&0x7f007f007f007f00>>1
	w = w&0x00003fff00003fff | w&0x3fff00003fff0000>>2
	return w&0x0fffffff | w&0x0fffffff00000000>>4
}

func (d *decoder) exemplar(e *Exemplar) {
	e.Ref, e.Time = SeriesRef(d.uvarint()), d.varint()
	if raw := d.take(8); raw != nil {
		e.Value = math.Float64frombits(binary.LittleEndian.Uint64(raw))
	}
	b := labels.NewScratchBuilder(4)
	e.Labels = d.labels(&b, false)
}

func (d *decoder) defs(w *Write) {
	n := d.count(2)
	if n == 0 {
		return
	}
	w.Defs = make([]SeriesDef, n)
	b := labels.NewScratchBuilder(16)
	var ref SeriesRef
	for i := range w.Defs {
		next := ref + SeriesRef(d.uvarint())
		if next <= ref {
			d.fail("definitions out of order")
			return
		}
		ref = next
		w.Defs[i] = SeriesDef{Ref: ref, Labels: d.labels(&b, true)}
	}
}

// labels reads a label set. A canonical one has sorted names without repeats and no empty value; the labels of an
// exemplar are kept as they came.
func (d *decoder) labels(b *labels.ScratchBuilder, canonical bool) labels.Labels {
	b.Reset()
	var prev string
	for i, n := 0, d.count(2); i < n && d.reason == ""; i++ {
		name, value := string(d.bytes()), string(d.bytes())
		if canonical && (value == "" || i > 0 && name <= prev) {
			d.fail("labels are not canonical")
			return labels.EmptyLabels()
		}
		b.Add(name, value)
		prev = name
	}
	return b.Labels()
}
