package remotewrite

// data path 1 of 6: decode and check.

import (
	"encoding/binary"
	"math"
)

// Sample is one float sample of a series.
type Sample struct {
	Time  int64 // ms
	Value float64
	Start int64 // start timestamp in ms; 0 means unset
}

// A Scanner walks the series of a decoded request, of either version, without copying or allocating. Byte slices that it returns lie in
// the body or in the scanner, and are valid until the next call of NextSeries.
//
// Everything it reads is bounds-checked again, but a caller that wants all or nothing calls Check or Check2 first: the scanner
// finds a fault only when it gets there.
type Scanner struct {
	body      []byte
	layout    *layout // numbers of the version's fields
	next      int     // where the next field of the request begins
	canonical bool    // labels must be re-encoded before hashing

	series    []byte // the body, cut at the end of the current series
	start     int    // where the current series begins
	labels    []byte
	present   [series2Metadata + 1]int // fields of the current series by number
	sample    int                      // cursors of NextSample, NextHistogram and NextExemplar
	histogram int
	exemplar  int
	metadata  int
	scratch   []byte
	two       expansion // of a request of version 2.0
	err       error
}

// Reset starts a walk over body, of which Check has returned c. The zero Counts will do for a body that was not checked:
// then irregular label encodings are hashed as they came.
func (s *Scanner) Reset(body []byte, c Counts) {
	*s = Scanner{body: body, layout: &layout1, canonical: c.Irregular > 0, scratch: s.scratch[:0], two: expansion{refs: s.two.refs[:0]}}
}

// Err returns the *ScanError that ended the walk early, or nil.
func (s *Scanner) Err() error { return s.err }

func (s *Scanner) fail(at int, bad fault) bool {
	if s.err == nil {
		s.err = &ScanError{Offset: at, Reason: bad.String()}
	}
	return false
}

// NextSeries moves to the next series of the request. It returns false at the end and on a fault.
func (s *Scanner) NextSeries() bool {
	for s.err == nil && s.next < len(s.body) {
		i := s.next
		f, bad := nextField(s.body, i)
		if bad != wellFormed {
			return s.fail(i, bad)
		}
		s.next = f.end
		if f.num != s.layout.series {
			continue
		}
		if f.wire != wireBytes {
			return s.fail(i, faultMismatch)
		}
		if s.two.symbols != nil {
			return s.open2(f)
		}
		return s.open(f)
	}
	return false
}

// open finds the labels of the series f and counts its fields.
func (s *Scanner) open(f field) bool {
	b := s.body[:f.end]
	s.series, s.start = b, f.start
	s.sample, s.histogram, s.exemplar = f.start, f.start, f.start
	s.present = [series2Metadata + 1]int{}
	from, to := f.start, f.start
	together := true
	for i := f.start; i < len(b); {
		g, bad := nextField(b, i)
		if bad != wellFormed {
			return s.fail(i, bad)
		}
		if g.num <= seriesHistogram {
			if g.wire != wireBytes {
				return s.fail(i, faultMismatch)
			}
			s.present[g.num]++
		}
		if g.num == seriesLabel {
			switch {
			case s.present[seriesLabel] == 1:
				from = i
			case i != to:
				together = false
			}
			to = g.end
		}
		i = g.end
	}
	if together && !s.canonical {
		s.labels = b[from:to:to]
		return true
	}
	return s.gather()
}

// gather re-encodes the labels of the current series, in their order, into one run of bytes.
func (s *Scanner) gather() bool {
	b := s.series
	s.scratch = s.scratch[:0]
	for i := s.start; i < len(b); {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return s.fail(i, bad)
		}
		if f.num == seriesLabel {
			if at, bad := checkMessage(b[:f.end], f.start, labelRules[:]); bad != wellFormed {
				return s.fail(at, bad)
			}
			name, value := decodeLabel(b[:f.end], f.start)
			s.scratch = appendLabel(s.scratch, name, value)
		}
		i = f.end
	}
	s.labels = s.scratch
	return true
}

// Labels returns the label fields of the current series, one after another, each with its tag and length, in the order of
// the request. Equal bytes mean equal labels.
func (s *Scanner) Labels() []byte { return s.labels }

// Samples returns how many samples the current series has.
func (s *Scanner) Samples() int { return s.present[seriesSample] }

// Histograms returns how many native histograms the current series has.
func (s *Scanner) Histograms() int { return s.present[s.layout.histogram] }

// Exemplars returns how many exemplars the current series has.
func (s *Scanner) Exemplars() int { return s.present[s.layout.exemplar] }

// NextSample returns the next sample of the current series, and false behind the last one or on a fault.
func (s *Scanner) NextSample() (Sample, bool) {
	b := s.series
	for s.err == nil && s.sample < len(b) {
		i := s.sample
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return Sample{}, s.fail(i, bad)
		}
		s.sample = f.end
		if f.num != seriesSample {
			continue
		}
		sample, bad := decodeSample(b[:f.end], f.start, s.layout.sampleFields)
		if bad != wellFormed {
			return Sample{}, s.fail(i, bad)
		}
		return sample, true
	}
	return Sample{}, false
}

// decodeSample decodes the Sample message b[i:]. A field that is absent is zero, and of a repeated one the last counts.
// fields is how many fields the version knows; one beyond them is skipped, unless it looks like field 3, the start timestamp,
// which version 2.0 defined.
func decodeSample(b []byte, i int, fields uint32) (Sample, fault) {
	var s Sample
	for i < len(b) {
		var bad fault
		var v uint64
		switch tag := b[i]; {
		case tag == tagSampleValue:
			if i+9 > len(b) {
				return s, faultTruncated
			}
			s.Value = math.Float64frombits(binary.LittleEndian.Uint64(b[i+1:]))
			i += 9
			continue
		case tag == tagSampleTime:
			if v, i, bad = uvarint(b, i+1); bad != wellFormed {
				return s, bad
			}
			s.Time = int64(v)
			continue
		}
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return s, bad
		}
		switch {
		case f.num == 1 && f.wire == wireFixed64:
			s.Value = doubleAt(b, f)
		case f.num == 2 && f.wire == wireVarint:
			s.Time = int64(varintAt(b, f))
		case f.num == 3 && f.wire == wireVarint:
			s.Start = int64(varintAt(b, f))
		case f.num <= fields:
			return s, faultMismatch
		}
		i = f.end
	}
	return s, wellFormed
}

// RawHistogram is one native histogram as it came.
type RawHistogram struct {
	Time  int64  // ms
	Proto []byte // a prometheus.Histogram message
}

// NextHistogram returns the next native histogram of the current series, and false behind the last one or on a fault.
func (s *Scanner) NextHistogram() (RawHistogram, bool) {
	b := s.series
	for s.err == nil && s.histogram < len(b) {
		i := s.histogram
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return RawHistogram{}, s.fail(i, bad)
		}
		s.histogram = f.end
		if f.num != s.layout.histogram {
			continue
		}
		msg := b[:f.end]
		if at, bad := checkMessage(msg, f.start, s.layout.histogramRules); bad != wellFormed {
			return RawHistogram{}, s.fail(at, bad)
		}
		h := RawHistogram{Proto: msg[f.start:len(msg):len(msg)]}
		for j := f.start; j < len(msg); {
			g, _ := nextField(msg, j)
			if g.num == 15 {
				h.Time = int64(varintAt(msg, g))
			}
			j = g.end
		}
		return h, true
	}
	return RawHistogram{}, false
}

// RawExemplar is one exemplar with its labels as they came.
type RawExemplar struct {
	Time   int64 // ms
	Value  float64
	Labels []byte // as Scanner.Labels returns them

	bad refusal // of references; Labels is empty then
}

// NextExemplar returns the next exemplar of the current series, and false behind the last one or on a fault. Its labels
// are appended to scratch, which is returned for reuse.
func (s *Scanner) NextExemplar(scratch []byte) (RawExemplar, []byte, bool) {
	b := s.series
	for s.err == nil && s.exemplar < len(b) {
		i := s.exemplar
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return RawExemplar{}, scratch, s.fail(i, bad)
		}
		s.exemplar = f.end
		if f.num != s.layout.exemplar {
			continue
		}
		msg := b[:f.end]
		if s.two.symbols != nil {
			if at, bad := checkMessage(msg, f.start, exemplar2Rules[:]); bad != wellFormed {
				return RawExemplar{}, scratch, s.fail(at, bad)
			}
			e, scratch := s.two.exemplar2(msg, f.start, scratch)
			return e, scratch, true
		}
		if at, bad := checkMessage(msg, f.start, exemplarRules[:]); bad != wellFormed {
			return RawExemplar{}, scratch, s.fail(at, bad)
		}
		e := RawExemplar{}
		from := len(scratch)
		for j := f.start; j < len(msg); {
			g, _ := nextField(msg, j)
			switch g.num {
			case 1:
				name, value := decodeLabel(msg[:g.end], g.start)
				scratch = appendLabel(scratch, name, value)
			case 2:
				e.Value = doubleAt(msg, g)
			case 3:
				e.Time = int64(varintAt(msg, g))
			}
			j = g.end
		}
		e.Labels = scratch[from:]
		return e, scratch, true
	}
	return RawExemplar{}, scratch, false
}

// RawMetadata is one metadata entry of a request.
type RawMetadata struct {
	Type               int32 // prometheus.MetricMetadata.MetricType
	Family, Help, Unit []byte
}

// NextMetadata returns the next metadata entry of the request, and false behind the last one or on a fault. It walks the
// request on its own: series and metadata may be read in any order. A request of version 2.0 has none, see SeriesMetadata.
func (s *Scanner) NextMetadata() (RawMetadata, bool) {
	if s.two.symbols != nil {
		return RawMetadata{}, false
	}
	for s.err == nil && s.metadata < len(s.body) {
		i := s.metadata
		f, bad := nextField(s.body, i)
		if bad != wellFormed {
			return RawMetadata{}, s.fail(i, bad)
		}
		s.metadata = f.end
		if f.num != requestMetadata {
			continue
		}
		if f.wire != wireBytes {
			return RawMetadata{}, s.fail(i, faultMismatch)
		}
		msg := s.body[:f.end]
		if at, bad := checkMessage(msg, f.start, metadataRules[:]); bad != wellFormed {
			return RawMetadata{}, s.fail(at, bad)
		}
		var m RawMetadata
		for j := f.start; j < len(msg); {
			g, _ := nextField(msg, j)
			switch g.num {
			case 1:
				m.Type = int32(varintAt(msg, g))
			case 2:
				m.Family = msg[g.start:g.end]
			case 4:
				m.Help = msg[g.start:g.end]
			case 5:
				m.Unit = msg[g.start:g.end]
			}
			j = g.end
		}
		return m, true
	}
	return RawMetadata{}, false
}

// decodeLabel decodes the well-formed Label message b[i:]; of a repeated field the last counts.
func decodeLabel(b []byte, i int) (name, value []byte) {
	for i < len(b) {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return name, value
		}
		switch f.num {
		case 1:
			name = b[f.start:f.end]
		case 2:
			value = b[f.start:f.end]
		}
		i = f.end
	}
	return name, value
}

// labelSize is the length in bytes of the Label message that appendLabel writes.
func labelSize[T ~string | ~[]byte](name, value T) int {
	n := 0
	if len(name) > 0 {
		n += 1 + uvarintSize(len(name)) + len(name)
	}
	if len(value) > 0 {
		n += 1 + uvarintSize(len(value)) + len(value)
	}
	return n
}

// appendLabel appends a TimeSeries.labels field as every ordinary encoder writes it: shortest lengths, name before value,
// empty parts left out.
func appendLabel[T ~string | ~[]byte](b []byte, name, value T) []byte {
	b = append(b, tagLabel)
	b = binary.AppendUvarint(b, uint64(labelSize(name, value)))
	if len(name) > 0 {
		b = append(b, tagLabelName)
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	if len(value) > 0 {
		b = append(b, tagLabelValue)
		b = binary.AppendUvarint(b, uint64(len(value)))
		b = append(b, value...)
	}
	return b
}
