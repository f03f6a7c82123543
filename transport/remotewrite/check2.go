package remotewrite

// data path 1 of 6: decode and check. The message of version 2.0.

import "slices"

// Numbers of the fields of io.prometheus.write.v2.Request and of its TimeSeries. Samples have the number of version 1.0.
const (
	request2Symbols = 4
	request2Series  = 5

	series2Refs      = 1
	series2Histogram = 3
	series2Exemplar  = 4
	series2Metadata  = 5
)

var (
	exemplar2Rules = [...]rule{1: {kind: kindVarints}, 2: {kind: kindFixed64}, 3: {kind: kindVarint}}

	metadata2Rules = [...]rule{1: {kind: kindVarint}, 3: {kind: kindVarint}, 4: {kind: kindVarint}}

	// A histogram is that of version 1.0 with a start timestamp.
	histogram2Rules = append(slices.Clone(histogramRules[:]), rule{kind: kindVarint})
)

// refOverhead is what a label or a text takes in version 1.0 beside its bytes: half of the tags and lengths of a label.
const refOverhead = 3

// Count2 counts the fields of a decoded io.prometheus.write.v2.Request, before any memory is spent on them: its series,
// its symbols, and what is unknown. It reports the first fault among them as a *ScanError.
func Count2(body []byte) (Counts, error) {
	var c Counts
	for i := 0; i < len(body); {
		f, bad := nextField(body, i)
		if bad == wellFormed && (f.num == request2Symbols || f.num == request2Series) && f.wire != wireBytes {
			bad = faultMismatch
		}
		if bad != wellFormed {
			return c, &ScanError{Offset: i, Reason: bad.String()}
		}
		switch f.num {
		case request2Symbols:
			c.Symbols++
		case request2Series:
			c.Series++
		default:
			c.Unknown++
		}
		i = f.end
	}
	return c, nil
}

// Check2 is Check for version 2.0: it reads what Count2 has accepted to its end, and indexes its symbols in table.
// References that lead nowhere are no fault of the encoding: the scanner refuses the series that has one.
func Check2(body []byte, table *Symbols) (Counts, error) {
	c, err := Count2(body)
	if err != nil {
		return c, err
	}
	table.fill(body)
	for i := 0; i < len(body); {
		f, bad := nextField(body, i)
		if bad == wellFormed && f.num == request2Series {
			var at int
			if at, bad = checkSeries2(body[:f.end], f.start, table, &c); bad != wellFormed {
				return c, &ScanError{Offset: at, Reason: bad.String()}
			}
		}
		i = f.end
	}
	return c, nil
}

// checkSeries2 checks the TimeSeries message b[i:] and returns the place of its first fault.
func checkSeries2(b []byte, i int, table *Symbols, c *Counts) (int, fault) {
	for i < len(b) {
		f, bad := nextField(b, i)
		if bad != wellFormed {
			return i, bad
		}
		if f.num > series2Refs && f.num <= series2Metadata && f.wire != wireBytes {
			return i, faultMismatch
		}
		msg := b[:f.end]
		at := i
		switch f.num {
		case series2Refs:
			if bad = checkField(msg, f, kindVarints); bad == wellFormed {
				c.Expanded += table.expanded(msg, f)
			}
		case seriesSample:
			c.Samples++
			_, bad = decodeSample(msg, f.start, layout2.sampleFields)
		case series2Histogram:
			c.Histograms++
			at, bad = checkMessage(msg, f.start, histogram2Rules)
		case series2Exemplar:
			c.Exemplars++
			if at, bad = checkMessage(msg, f.start, exemplar2Rules[:]); bad == wellFormed {
				c.Expanded += table.expandedIn(msg, f.start, 1)
			}
		case series2Metadata:
			if at, bad = checkMessage(msg, f.start, metadata2Rules[:]); bad == wellFormed {
				c.Expanded += table.expandedIn(msg, f.start, 3) + table.expandedIn(msg, f.start, 4)
			}
		}
		if bad != wellFormed {
			return at, bad
		}
		i = f.end
	}
	return i, wellFormed
}

// expandedIn adds up expanded over the fields of one number of the message b[i:], which is well formed.
func (t *Symbols) expandedIn(b []byte, i int, num uint32) (sum int64) {
	for i < len(b) {
		f, _ := nextField(b, i)
		if f.num == num {
			sum += t.expanded(b[:f.end], f)
		}
		i = f.end
	}
	return sum
}

// expanded is what the references of a field take when they are written out, in bytes.
func (t *Symbols) expanded(b []byte, f field) (sum int64) {
	for i := f.start; i < f.end; {
		var ref uint64
		ref, i, _ = uvarint(b, i)
		sum += refOverhead
		if ref < uint64(len(t.at)) {
			sum += int64(t.at[ref].end - t.at[ref].start)
		}
	}
	return sum
}
