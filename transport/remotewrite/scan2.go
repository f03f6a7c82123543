package remotewrite

// data path 1 of 6: decode and check. The message of version 2.0.

import "math"

// layout is what the messages of the two versions have different numbers for.
type layout struct {
	series              uint32 // in the request
	histogram, exemplar uint32 // in a series
	sampleFields        uint32 // how many a sample has
	histogramRules      []rule
}

var (
	layout1 = layout{series: requestSeries, histogram: seriesHistogram, exemplar: seriesExemplar, sampleFields: 2, histogramRules: histogramRules[:]}
	layout2 = layout{series: request2Series, histogram: series2Histogram, exemplar: series2Exemplar, sampleFields: 3, histogramRules: histogram2Rules}
)

// expansion is what a walk over a request of version 2.0 needs to write its references out.
type expansion struct {
	symbols *Symbols
	limits  labelLimits
	refs    []uint32 // of the current series; at most two more than the limits allow
	bad     refusal  // why the current series is refused as a whole
	about   RawMetadata
	said    bool // the current series has metadata
}

// Reset2 starts a walk over body, which Check2 has accepted with this table. A series beyond the limits is refused before
// its labels are written out, since a short request can refer to a long symbol very often.
func (s *Scanner) Reset2(body []byte, table *Symbols, limits labelLimits) {
	*s = Scanner{body: body, layout: &layout2, scratch: s.scratch[:0], two: expansion{symbols: table, limits: limits, refs: s.two.refs[:0]}}
}

// refused says why the current series cannot be kept, whatever its labels are; reasonNone if it can.
func (s *Scanner) refused() refusal { return s.two.bad }

// SeriesMetadata returns what the current series says about its family. In version 1.0 no series does, see NextMetadata.
func (s *Scanner) SeriesMetadata() (RawMetadata, bool) { return s.two.about, s.two.said }

// open2 reads the references of the series f and writes its labels out as version 1.0 has them, so that both versions find
// a series in the dictionary by the same bytes (R2).
func (s *Scanner) open2(f field) bool {
	b := s.body[:f.end]
	s.series, s.start = b, f.start
	s.sample, s.histogram, s.exemplar = f.start, f.start, f.start
	s.present = [series2Metadata + 1]int{}
	x := &s.two
	x.refs, x.bad, x.about, x.said = x.refs[:0], refusal{}, RawMetadata{}, false
	count := 0
	var kind, help, unit uint64
	for i := f.start; i < len(b); {
		g, bad := nextField(b, i)
		if bad == wellFormed && g.num > series2Refs && g.num <= series2Metadata && g.wire != wireBytes {
			bad = faultMismatch
		}
		if bad != wellFormed {
			return s.fail(i, bad)
		}
		if g.num <= series2Metadata {
			s.present[g.num]++
		}
		switch g.num {
		case series2Refs:
			if bad := checkField(b[:g.end], g, kindVarints); bad != wellFormed {
				return s.fail(i, bad)
			}
			for j := g.start; j < g.end; count++ {
				var ref uint64
				ref, j, _ = uvarint(b, j)
				if count < 2*x.limits.maxCount+2 {
					x.refs = append(x.refs, clampRef(ref))
				}
			}
		case series2Metadata:
			if at, bad := checkMessage(b[:g.end], g.start, metadata2Rules[:]); bad != wellFormed {
				return s.fail(at, bad)
			}
			kind, help, unit = metadataRefs(b[:g.end], g.start, kind, help, unit)
		}
		i = g.end
	}
	s.scratch, x.bad = x.labels(s.scratch[:0], count)
	if kind != 0 || help != 0 || unit != 0 {
		x.describe(s.scratch, int32(kind), clampRef(help), clampRef(unit))
	}
	if x.bad.reason == reasonNone && s.present[seriesSample]+s.present[series2Histogram]+s.present[series2Exemplar]+s.present[series2Metadata] == 0 {
		x.bad = refusal{reason: ReasonNothing}
	}
	s.labels = s.scratch
	return true
}

// clampRef makes of a number that no reference can have one that leads nowhere.
func clampRef(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }

// metadataRefs reads the well-formed Metadata message b[i:]; of a repeated field the last counts, also over several messages.
func metadataRefs(b []byte, i int, kind, help, unit uint64) (uint64, uint64, uint64) {
	for i < len(b) {
		f, _ := nextField(b, i)
		switch f.num {
		case 1:
			kind = varintAt(b, f)
		case 3:
			help = varintAt(b, f)
		case 4:
			unit = varintAt(b, f)
		}
		i = f.end
	}
	return kind, help, unit
}

// labels appends the labels that x.refs name, of which there were count references.
func (x *expansion) labels(b []byte, count int) ([]byte, refusal) {
	switch {
	case count%2 != 0:
		return b[:0], refusal{reason: ReasonOddReferences, got: int64(count)}
	case count/2 > x.limits.maxCount:
		return b[:0], refusal{reason: ReasonTooManyLabels, got: int64(count / 2), limit: int64(x.limits.maxCount)}
	}
	return x.expand(b, x.refs)
}

// expand appends the labels that pairs of references name.
func (x *expansion) expand(b []byte, refs []uint32) ([]byte, refusal) {
	for i := 0; i < len(refs); i += 2 {
		name, ok := x.symbols.get(refs[i])
		if !ok {
			return b[:0], x.symbols.missing(refs[i])
		}
		value, ok := x.symbols.get(refs[i+1])
		if !ok {
			return b[:0], x.symbols.missing(refs[i+1])
		}
		if len(name) > x.limits.maxName || len(value) > x.limits.maxValue {
			return b[:0], x.limits.check(labelPair{name, value})
		}
		b = appendLabel(b, name, value)
	}
	return b, refusal{}
}

// describe notes what the series with these labels says about its family. References that lead nowhere refuse the series.
func (x *expansion) describe(labels []byte, kind int32, help, unit uint32) {
	helpText, ok := x.symbols.get(help)
	if !ok && x.bad.reason == reasonNone {
		x.bad = x.symbols.missing(help)
	}
	unitText, ok := x.symbols.get(unit)
	if !ok && x.bad.reason == reasonNone {
		x.bad = x.symbols.missing(unit)
	}
	if x.bad.reason != reasonNone {
		return
	}
	x.about = RawMetadata{Type: kind, Family: familyOf(metricName(labels), kind), Help: helpText, Unit: unitText}
	x.said = true
}

// exemplar2 reads the well-formed Exemplar message b[i:], and appends its labels to scratch.
func (x *expansion) exemplar2(b []byte, i int, scratch []byte) (RawExemplar, []byte) {
	var e RawExemplar
	refs := x.refs[:0] // those of the series have been written out
	count := 0
	for i < len(b) {
		f, _ := nextField(b, i)
		switch f.num {
		case 1:
			for j := f.start; j < f.end; count++ {
				var ref uint64
				ref, j, _ = uvarint(b, j)
				if count < 2*x.limits.maxCount+2 {
					refs = append(refs, clampRef(ref))
				}
			}
		case 2:
			e.Value = doubleAt(b, f)
		case 3:
			e.Time = int64(varintAt(b, f))
		}
		i = f.end
	}
	x.refs = refs
	from := len(scratch)
	var labels []byte
	if labels, e.bad = x.labels(scratch, count); e.bad.reason != reasonNone {
		return e, scratch
	}
	e.Labels = labels[from:]
	return e, labels
}
