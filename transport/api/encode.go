package api

import (
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// data path 6 of 6: an answer becomes bytes.

// flushBytes is how much of an answer is gathered before it is handed to the connection.
const flushBytes = 32 << 10

// encoder appends an answer to a buffer and hands the buffer on whenever it is full. The first failed write is kept and
// everything after it is dropped: it means that the client is gone.
type encoder struct {
	w     io.Writer
	buf   []byte
	err   error
	times *timeTexts // nil: nothing is remembered
}

// timeTexts remembers how times are written: the series of a matrix mostly have the same.
type timeTexts [1 << timeTextBits]timeText

const timeTextBits = 10

type timeText struct {
	t    int64
	n    uint8 // 0: nothing is remembered
	text [maxTimeText]byte
}

// maxTimeText is the length of the longest time: a sign, sixteen digits, and three behind the point.
const maxTimeText = 21

// append appends what appendTimestamp does.
func (c *timeTexts) append(b []byte, t int64) []byte {
	if c == nil {
		return appendTimestamp(b, t)
	}
	e := &c[uint64(t)*0x9e3779b97f4a7c15>>(64-timeTextBits)] // Fibonacci hashing, which spreads steps evenly
	if e.n == 0 || e.t != t {
		e.t, e.n = t, uint8(len(appendTimestamp(e.text[:0], t)))
	}
	return append(b, e.text[:e.n]...)
}

func (e *encoder) flush() {
	if e.err == nil && len(e.buf) > 0 {
		_, e.err = e.w.Write(e.buf)
	}
	e.buf = e.buf[:0]
}

func (e *encoder) flushIfFull() {
	if len(e.buf) >= flushBytes {
		e.flush()
	}
}

// answer is a successful answer to a query.
type answer struct {
	value           parser.Value
	stats           []byte // JSON of data.stats; nil: none
	warnings, infos []string
}

// check refuses, before the first byte, what the encoder cannot write.
func (a *answer) check() error {
	switch a.value.(type) {
	case promql.Vector, promql.Matrix, promql.Scalar, promql.String:
		return nil
	default:
		return fmt.Errorf("result of unexpected type %T", a.value)
	}
}

// encode writes the whole success envelope.
func (e *encoder) encode(a *answer) {
	e.buf = append(e.buf, `{"status":"success","data":{"resultType":"`...)
	e.buf = append(e.buf, a.value.Type()...)
	e.buf = append(e.buf, `","result":`...)
	switch v := a.value.(type) {
	case promql.Vector:
		e.vector(v)
	case promql.Matrix:
		e.matrix(v)
	case promql.Scalar:
		e.buf = appendMarshaled(e.buf, v)
	case promql.String:
		e.buf = appendMarshaled(e.buf, v)
	}
	if a.stats != nil {
		e.buf = append(append(e.buf, `,"stats":`...), a.stats...)
	}
	e.buf = append(e.buf, '}')
	e.buf = appendStrings(e.buf, `,"warnings":`, a.warnings)
	e.buf = appendStrings(e.buf, `,"infos":`, a.infos)
	e.buf = append(e.buf, '}')
	e.flush()
}

// appendMarshaled appends a scalar or a string as Prometheus' own method encodes it: unlike samples, these two have their
// time written as a float and their value never in exponent form.
func appendMarshaled(b []byte, v interface{ MarshalJSON() ([]byte, error) }) []byte {
	m, err := v.MarshalJSON()
	if err != nil {
		panic("H5: a scalar or string is a number and a text, both of which always encode: " + err.Error())
	}
	return append(b, m...)
}

// appendStrings appends an optional member that holds a list of texts.
func appendStrings(b []byte, member string, texts []string) []byte {
	if len(texts) == 0 {
		return b
	}
	return appendList(append(b, member...), texts)
}

// appendList appends a list of texts; [] if there are none.
func appendList(b []byte, texts []string) []byte {
	b = append(b, '[')
	for i, s := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendEscaped(b, s)
	}
	return append(b, ']')
}

func (e *encoder) vector(v promql.Vector) {
	e.buf = append(e.buf, '[')
	for i := range v {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		s := &v[i]
		e.buf = appendLabels(append(e.buf, `{"metric":`...), s.Metric)
		if s.H == nil {
			e.buf = appendTimestamp(append(e.buf, `,"value":[`...), s.T)
			e.buf = append(appendValue(append(e.buf, ','), s.F), ']')
		} else {
			e.buf = appendHistogramPoint(append(e.buf, `,"histogram":`...), s.T, s.H)
		}
		e.buf = append(e.buf, '}')
		e.flushIfFull()
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) matrix(m promql.Matrix) {
	e.buf = append(e.buf, '[')
	if len(m) > 1 {
		e.times = new(timeTexts)
	}
	for i := range m {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		s := &m[i]
		e.buf = appendLabels(append(e.buf, `{"metric":`...), s.Metric)
		for j, p := range s.Floats {
			e.member(j, `,"values":[`)
			e.buf = e.times.append(append(e.buf, '['), p.T)
			e.buf = append(appendValue(append(e.buf, ','), p.F), ']')
		}
		e.close(len(s.Floats))
		for j, p := range s.Histograms {
			e.member(j, `,"histograms":[`)
			e.buf = appendHistogramPoint(e.buf, p.T, p.H)
		}
		e.close(len(s.Histograms))
		e.buf = append(e.buf, '}')
	}
	e.buf = append(e.buf, ']')
}

// member opens a list before its first point and separates the others.
func (e *encoder) member(i int, open string) {
	e.flushIfFull()
	if i == 0 {
		e.buf = append(e.buf, open...)
	} else {
		e.buf = append(e.buf, ',')
	}
}

func (e *encoder) close(n int) {
	if n > 0 {
		e.buf = append(e.buf, ']')
	}
}

func appendLabels(b []byte, ls labels.Labels) []byte {
	b = append(b, '{')
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendPlain(b, l.Name), ':')
		b = appendPlain(b, l.Value)
	})
	return append(b, '}')
}

// appendTimestamp appends milliseconds as seconds: no fraction, or one of exactly three digits.
func appendTimestamp(b []byte, t int64) []byte {
	u := uint64(t)
	if t < 0 {
		b = append(b, '-')
		u = -u // also right for the least int64
	}
	b = strconv.AppendUint(b, u/1000, 10)
	if f := u % 1000; f != 0 {
		b = append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return b
}

// appendValue appends a sample's value: a string, so that NaN and the infinities have a form too.
func appendValue(b []byte, v float64) []byte {
	if m, ok := thousandths(v); ok {
		b = append(b, '"')
		if math.Signbit(v) {
			b = append(b, '-')
		}
		return append(appendThousandths(b, m), '"')
	}
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	b = strconv.AppendFloat(append(b, '"'), v, format, -1, 64)
	return append(b, '"')
}

// thousandths returns v's size in thousandths, if it is the number that is closest to a whole number of them. With at most fifteen digits
// no other decimal of as many has the same closest number, so that these are the shortest digits of v.
func thousandths(v float64) (n uint64, ok bool) {
	m := math.Abs(v)
	if !(m < 1e12) {
		return 0, false
	}
	n = uint64(m*1000 + 0.5)
	return n, float64(n)/1000 == m
}

func appendThousandths(b []byte, n uint64) []byte {
	b = strconv.AppendUint(b, n/1000, 10)
	f := n % 1000
	switch {
	case f == 0:
		return b
	case f%100 == 0:
		return append(b, '.', byte('0'+f/100))
	case f%10 == 0:
		return append(b, '.', byte('0'+f/100), byte('0'+f/10%10))
	}
	return append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
}

// appendHistogramPoint appends a native histogram. A bucket is [bounds, lower, upper, count], with bounds 0 for (lower,
// upper], 1 for [lower, upper), 2 for both open and 3 for both closed; empty buckets are left out.
func appendHistogramPoint(b []byte, t int64, h *histogram.FloatHistogram) []byte {
	b = appendTimestamp(append(b, '['), t)
	b = appendValue(append(b, `,{"count":`...), h.Count)
	b = appendValue(append(b, `,"sum":`...), h.Sum)
	found := false
	for it := h.AllBucketIterator(); it.Next(); {
		k := it.At()
		if k.Count == 0 {
			continue
		}
		if found {
			b = append(b, ',')
		} else {
			b = append(b, `,"buckets":[`...)
			found = true
		}
		bounds := byte('2')
		switch {
		case k.LowerInclusive && k.UpperInclusive:
			bounds = '3'
		case k.LowerInclusive:
			bounds = '1'
		case k.UpperInclusive:
			bounds = '0'
		}
		b = appendValue(append(b, '[', bounds, ','), k.Lower)
		b = appendValue(append(b, ','), k.Upper)
		b = appendValue(append(b, ','), k.Count)
		b = append(b, ']')
	}
	if found {
		b = append(b, ']')
	}
	return append(b, "}]"...)
}
