package remotewrite

// data path 1 of 6: decode and check.

// Numbers of the fields of prometheus.WriteRequest and prometheus.TimeSeries.
const (
	requestSeries   = 1
	requestMetadata = 3

	seriesLabel     = 1
	seriesSample    = 2
	seriesExemplar  = 3
	seriesHistogram = 4
)

// tagLabel is the one-byte tag of TimeSeries.labels; Label.name happens to have the same.
const (
	tagLabel      = seriesLabel<<3 | byte(wireBytes)
	tagSample     = seriesSample<<3 | byte(wireBytes)
	tagLabelName  = 1<<3 | byte(wireBytes)
	tagLabelValue = 2<<3 | byte(wireBytes)

	tagSampleValue = 1<<3 | byte(wireFixed64)
	tagSampleTime  = 2<<3 | byte(wireVarint)
	tagSampleStart = 3<<3 | byte(wireVarint)
)

// Counts is what a well-formed request holds.
type Counts struct {
	Series, Samples, Histograms, Exemplars, Metadata int
	Unknown                                          int // fields of the request itself that its version does not have
	// Irregular counts labels that are encoded otherwise than every ordinary encoder does: fields repeated, reordered,
	// unknown or empty but present, lengths padded. While there are none, label bytes can be hashed as they came.
	Irregular int
	// Of version 2.0: the symbols, and the bytes that all references take when they are written out.
	Symbols  int
	Expanded int64
}

// Check reads a whole decoded WriteRequest and reports the first fault of its encoding as a *ScanError. It allocates
// nothing on success, so that a body can be judged and measured before any memory is spent on it.
func Check(body []byte) (Counts, error) {
	var c Counts
	for i := 0; i < len(body); {
		f, bad := nextField(body, i)
		if bad != wellFormed {
			return c, &ScanError{Offset: i, Reason: bad.String()}
		}
		at := f.start
		switch f.num {
		case requestSeries:
			c.Series++
			if f.wire != wireBytes {
				at, bad = i, faultMismatch
				break
			}
			at, bad = checkSeries(body[:f.end], f.start, &c)
		case requestMetadata:
			c.Metadata++
			if f.wire != wireBytes {
				at, bad = i, faultMismatch
				break
			}
			at, bad = checkMessage(body[:f.end], f.start, metadataRules[:])
		default:
			c.Unknown++
		}
		if bad != wellFormed {
			return c, &ScanError{Offset: at, Reason: bad.String()}
		}
		i = f.end
	}
	return c, nil
}

// checkSeries checks the TimeSeries message b[i:] and returns the place of its first fault.
func checkSeries(b []byte, i int, c *Counts) (int, fault) {
	for i < len(b) {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return i, bad
		}
		if f.num <= seriesHistogram && f.wire != wireBytes {
			return i, faultMismatch
		}
		msg := b[:f.end]
		at := i
		switch f.num {
		case seriesLabel:
			if plainLabel(msg, f.start) && f.start-i == 2 {
				break
			}
			at, bad = checkMessage(msg, f.start, labelRules[:])
			if bad == wellFormed && !regularLabel(msg, i, f.start) {
				c.Irregular++
			}
		case seriesSample:
			c.Samples++
			_, bad = decodeSample(msg, f.start, layout1.sampleFields)
		case seriesExemplar:
			c.Exemplars++
			at, bad = checkMessage(msg, f.start, exemplarRules[:])
		case seriesHistogram:
			c.Histograms++
			at, bad = checkMessage(msg, f.start, histogramRules[:])
		}
		if bad != wellFormed {
			return at, bad
		}
		i = f.end
	}
	return i, wellFormed
}

// plainLabel recognises the label that almost every label is: a name and a value, each of 1 to 127 bytes. b ends with it.
func plainLabel(b []byte, i int) bool {
	if i+2 > len(b) || b[i] != tagLabelName || b[i+1]-1 >= 0x7f {
		return false
	}
	i += 2 + int(b[i+1])
	return i+2 <= len(b) && b[i] == tagLabelValue && b[i+1]-1 < 0x7f && i+2+int(b[i+1]) == len(b)
}

// regularLabel tells whether a well-formed label field b[tag:], whose message starts at i, is encoded as appendLabel does.
func regularLabel(b []byte, tag, i int) bool {
	name, value := decodeLabel(b, i)
	n := labelSize(name, value)
	if len(b)-i != n || i-tag != 1+uvarintSize(n) {
		return false
	}
	// The sizes fit, so that nothing is padded, repeated or unknown; only the order can still differ.
	return len(name) == 0 || b[i] == tagLabelName
}

// kind is how the payload of a known field is laid out.
type kind uint8

const (
	kindUnknown kind = iota // skipped, whatever its wire type
	kindVarint
	kindFixed64
	kindBytes
	kindMessage
	kindVarints  // repeated, packed or not
	kindFixed64s // repeated, packed or not
)

// rule is the layout of the field whose number is its index in a table.
type rule struct {
	kind kind
	sub  []rule
}

var (
	labelRules = [...]rule{1: {kind: kindBytes}, 2: {kind: kindBytes}}

	exemplarRules = [...]rule{
		1: {kind: kindMessage, sub: labelRules[:]}, 2: {kind: kindFixed64}, 3: {kind: kindVarint},
	}

	spanRules = [...]rule{1: {kind: kindVarint}, 2: {kind: kindVarint}}

	histogramRules = [...]rule{
		1: {kind: kindVarint}, 2: {kind: kindFixed64}, 3: {kind: kindFixed64}, 4: {kind: kindVarint},
		5: {kind: kindFixed64}, 6: {kind: kindVarint}, 7: {kind: kindFixed64},
		8: {kind: kindMessage, sub: spanRules[:]}, 9: {kind: kindVarints}, 10: {kind: kindFixed64s},
		11: {kind: kindMessage, sub: spanRules[:]}, 12: {kind: kindVarints}, 13: {kind: kindFixed64s},
		14: {kind: kindVarint}, 15: {kind: kindVarint}, 16: {kind: kindFixed64s},
	}

	metadataRules = [...]rule{
		1: {kind: kindVarint}, 2: {kind: kindBytes}, 4: {kind: kindBytes}, 5: {kind: kindBytes},
	}
)

// checkMessage checks the message b[i:] against a table and returns the place of its first fault. It recurses once at
// most, since the tables do.
func checkMessage(b []byte, i int, rules []rule) (int, fault) {
	for i < len(b) {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return i, bad
		}
		var r rule
		if f.num < uint32(len(rules)) {
			r = rules[f.num]
		}
		if bad := checkField(b[:f.end], f, r.kind); bad != wellFormed {
			return i, bad
		}
		if r.kind == kindMessage {
			if at, bad := checkMessage(b[:f.end], f.start, r.sub); bad != wellFormed {
				return at, bad
			}
		}
		i = f.end
	}
	return i, wellFormed
}

// checkField checks that the wire type of f fits its kind, and the elements of packed fields.
func checkField(b []byte, f field, k kind) fault {
	want := wireBytes
	switch k {
	case kindUnknown:
		return wellFormed
	case kindVarint:
		want = wireVarint
	case kindFixed64:
		want = wireFixed64
	case kindVarints:
		if f.wire == wireVarint {
			return wellFormed
		}
	case kindFixed64s:
		if f.wire == wireFixed64 {
			return wellFormed
		}
	}
	if f.wire != want {
		return faultMismatch
	}
	if k == kindFixed64s && (f.end-f.start)%8 != 0 {
		return faultPacked
	}
	if k == kindVarints {
		for i := f.start; i < f.end; {
			var bad fault
			if _, i, bad = uvarint(b, i); bad == faultTruncated {
				return faultPacked
			} else if bad != wellFormed {
				return bad
			}
		}
	}
	return wellFormed
}
