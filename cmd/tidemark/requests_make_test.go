package main

// Requests of the random campaign: write requests of both versions, put together byte by byte, so that any part of them can be at fault.

import (
	encbinary "encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/value"
)

const contentType1 = "application/x-protobuf"

// madeRequest is one request. The memory of its body is used again by the next.
type madeRequest struct {
	version               int
	body                  []byte
	contentType, encoding string
	versionHeader, method string
	length                int64 // as declared; −1: not at all
	cut                   bool  // the body ends before its declared length
	proper                bool  // nothing is wrong with it: it must be acknowledged
	plain                 []byte
	faults                []string
}

// maker makes the requests of one worker, the same for the same seed.
type maker struct {
	r      *rand.Rand
	unique float64 // so that hardly a sample is the same as another
	pool   [][][2]string

	req          madeRequest
	out, message []byte // a request and one series of it, before snappy
	part, inner  []byte
	packed       []byte
	symbols      map[string]uint32
	table        []string
}

// pooledSeries is how many label sets most series are drawn from.
const pooledSeries = 3000

func newMaker(seed, worker uint64, pool [][][2]string) *maker {
	return &maker{r: rand.New(rand.NewPCG(seed, worker)), pool: pool, unique: float64(worker) * (1 << 32), symbols: map[string]uint32{}}
}

// newPool draws the label sets that all workers of a round share.
func newPool(seed uint64) (pool [][][2]string) {
	m := &maker{r: rand.New(rand.NewPCG(seed, 1<<40))}
	for range pooledSeries {
		pool = append(pool, m.labelSet())
	}
	return pool
}

func (m *maker) one(of ...string) string { return of[m.r.IntN(len(of))] }
func (m *maker) chance(percent int) bool { return m.r.IntN(100) < percent }

// labelSet returns good labels, in any order, some of them empty.
func (m *maker) labelSet() [][2]string {
	ls := [][2]string{{"__name__", m.one("m", "m", "n", "up", "http_requests_total", "räume.belegt", "job:m:sum")}}
	names := []string{"job", "instance", "experiment", "task", "le", "code", "grüße", "a.b", "_x", "quantile", "env"}
	m.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:m.r.IntN(5)] {
		v := m.one("", "a", "b", "10.0.0.1:9100", "ü", "0.5", "+Inf", strings.Repeat("x", 1+m.r.IntN(60)), "{\"a\\b\n}", " ")
		if m.chance(30) {
			v = fmt.Sprint("v", m.r.IntN(40))
		}
		ls = append(ls, [2]string{name, v})
	}
	m.r.Shuffle(len(ls), func(i, j int) { ls[i], ls[j] = ls[j], ls[i] })
	return ls
}

// next makes a request.
func (m *maker) next() *madeRequest {
	q := &m.req
	*q = madeRequest{version: 1 + m.r.IntN(2), method: "POST", proper: true, body: q.body[:0], faults: q.faults[:0]}
	m.out = m.out[:0]
	if q.version == 1 {
		m.version1()
	} else {
		m.version2()
	}
	if m.chance(15) {
		m.damage(&m.out)
	}
	q.plain = m.out
	q.body = snappy.Encode(q.body[:cap(q.body)], m.out)
	m.headers()
	if m.chance(5) {
		m.wrapping()
	}
	q.length = int64(len(q.body))
	switch m.r.IntN(60) {
	case 0:
		q.length = -1
	case 1:
		q.length += 1 + m.r.Int64N(1000)
		q.cut = true
		m.fault("cut")
	case 2:
		q.length = 1 << (25 + m.r.IntN(38))
		q.cut = true
		m.fault("declared too large")
	}
	return q
}

func (m *maker) fault(what string) {
	m.req.proper = false
	m.req.faults = append(m.req.faults, what)
}

// headers sets those of the request's version, or wrong ones.
func (m *maker) headers() {
	q := &m.req
	q.contentType, q.encoding, q.versionHeader = contentType1, "snappy", "0.1.0"
	if q.version == 2 {
		q.contentType, q.versionHeader = contentType2, "2.0.0"
	} else if m.chance(20) {
		q.contentType = m.one("", "application/x-protobuf;proto=prometheus.WriteRequest", "application/x-protobuf; proto=\"prometheus.WriteRequest\"")
		q.encoding, q.versionHeader = m.one("", "snappy"), m.one("", "0.1.0", "1.0.0", "0.2")
	}
	if !m.chance(4) {
		return
	}
	m.fault("headers")
	switch m.r.IntN(4) {
	case 0:
		q.contentType = m.one("text/plain", "application/json", "application/x-protobuf;proto=x.Y", "application/x-protobuf;proto", "a/b;;", "\xff", contentType1, contentType2)
	case 1:
		q.encoding = m.one("gzip", "zstd", "identity", "snappy, snappy", "x-snappy-framed", "\x00")
	case 2:
		q.versionHeader = m.one("3.0.0", "2", "x", "0.1.0", "2.0.0", "-1.0")
	default:
		q.method = m.one("GET", "PUT", "DELETE", "HEAD", "PATCH", "TRACE", "POST\x00")
	}
}

// wrapping spoils what is around the message.
func (m *maker) wrapping() {
	q := &m.req
	m.fault("snappy")
	switch m.r.IntN(6) {
	case 0:
		q.body = q.body[:0]
	case 1:
		q.body = append(q.body[:0], m.out...) // not compressed at all
	case 2:
		q.body = append(append(q.body[:0], "\xff\x06\x00\x00sNaPpY"...), m.out...)
	case 3:
		q.body = encbinary.AppendUvarint(q.body[:0], m.r.Uint64()>>m.r.IntN(64)) // a length and nothing of it
	case 4:
		q.body = append(q.body, q.body...)
	default:
		m.damage(&q.body)
	}
}

// damage changes bytes without regard to what they mean.
func (m *maker) damage(b *[]byte) {
	m.fault("bytes")
	for range 1 + m.r.IntN(3) {
		n := len(*b)
		if n == 0 {
			*b = append(*b, byte(m.r.IntN(256)))
			continue
		}
		i := m.r.IntN(n)
		switch m.r.IntN(5) {
		case 0:
			(*b)[i] ^= 1 << m.r.IntN(8)
		case 1:
			*b = (*b)[:i]
		case 2:
			(*b)[i] = m.one("\x00", "\xff", "\x80", "\x0a", "\x7f")[0]
		case 3:
			end := min(n, i+1+m.r.IntN(20))
			*b = append(*b, (*b)[i:end]...)
		default:
			*b = append((*b)[:i], (*b)[min(n, i+1+m.r.IntN(4)):]...)
		}
	}
}

func appendField(b []byte, number int, content []byte) []byte {
	b = encbinary.AppendUvarint(b, uint64(number)<<3|2)
	return append(encbinary.AppendUvarint(b, uint64(len(content))), content...)
}

func appendText(b []byte, number int, text string) []byte {
	b = encbinary.AppendUvarint(b, uint64(number)<<3|2)
	return append(encbinary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendVarint(b []byte, number int, v uint64) []byte {
	return encbinary.AppendUvarint(encbinary.AppendUvarint(b, uint64(number)<<3), v)
}

func appendDouble(b []byte, number int, v float64) []byte {
	return encbinary.LittleEndian.AppendUint64(encbinary.AppendUvarint(b, uint64(number)<<3|1), math.Float64bits(v))
}

// value draws one; most are like no other.
func (m *maker) value() float64 {
	if m.chance(90) {
		m.unique++
		return m.unique
	}
	return [...]float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.Float64frombits(value.StaleNaN),
		math.Float64frombits(0x7ff0000000000001), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1}[m.r.IntN(10)]
}

// time draws one in ms that is taken, or hardly ever one that is not.
func (m *maker) time() int64 {
	switch n := m.r.IntN(2000); {
	case n < 20:
		return [...]int64{0, -1, -m.r.Int64N(1 << 53), 1 << 40}[m.r.IntN(4)]
	case n < 25:
		m.fault("time")
		return [...]int64{math.MaxInt64, math.MinInt64, 1<<53 + 1, -(1<<53 + 1)}[m.r.IntN(4)]
	}
	return 1_000_000 + m.r.Int64N(600_000)
}

// labels draws the label set of one series, rarely one that is refused.
func (m *maker) labels() [][2]string {
	ls := m.pool[m.r.IntN(len(m.pool))]
	if m.chance(4) {
		ls = m.labelSet()
	}
	if !m.chance(3) {
		return ls
	}
	m.fault("labels")
	bad := append([][2]string(nil), ls...)
	switch m.r.IntN(7) {
	case 0:
		bad = append(bad, bad[0])
	case 1:
		bad = append(bad, [2]string{"", "x"})
	case 2:
		bad = append(bad, [2]string{"u", "\xff\xfe"})
	case 3:
		bad = nil
	case 4:
		for i := range bad {
			if bad[i][0] == "__name__" {
				bad[i][1] = ""
			}
		}
	case 5:
		bad = append(bad, [2]string{"long", strings.Repeat("y", 5000)})
	default:
		for i := range 130 {
			bad = append(bad, [2]string{fmt.Sprint("l", i), "z"})
		}
	}
	return bad
}

// unknown adds a field that no version has.
func (m *maker) unknown(b []byte) []byte {
	if !m.chance(3) {
		return b
	}
	switch m.r.IntN(3) {
	case 0:
		return appendVarint(b, 100+m.r.IntN(1000), m.r.Uint64())
	case 1:
		return appendText(b, 100+m.r.IntN(1000), "unknown")
	default:
		return appendDouble(b, 100+m.r.IntN(1000), 1)
	}
}

// sample is the same message in both versions, but for the number of its start timestamp.
func (m *maker) sample(startField int) []byte {
	b := m.inner[:0]
	if v := m.value(); v != 0 || math.Signbit(v) || m.chance(50) {
		b = appendDouble(b, 1, v)
	}
	if t := m.time(); t != 0 || m.chance(50) {
		b = appendVarint(b, 2, uint64(t))
	}
	if startField > 0 && m.chance(5) {
		b = appendVarint(b, startField, uint64(m.r.Int64N(1000)))
	}
	m.inner = m.unknown(b)
	return m.inner
}

// histogram is the same message in both versions: integer counts in one span, or a broken one.
func (m *maker) histogram() []byte {
	n := uint64(1 + m.r.IntN(9))
	b := appendVarint(m.inner[:0], 1, n)
	b = appendDouble(b, 3, m.value())
	b = appendVarint(b, 4, uint64(uint32(m.r.IntN(3)<<1))) // zigzag: schema 0 to 2
	b = appendDouble(b, 5, 0.001)
	b = appendVarint(b, 6, 0)
	b = appendField(b, 11, appendVarint(appendVarint(m.part[:0], 1, 0), 2, 1))
	b = appendField(b, 12, encbinary.AppendUvarint(m.part[:0], n<<1))
	b = appendVarint(b, 15, uint64(m.time()))
	if m.chance(10) {
		m.fault("histogram")
		switch m.r.IntN(3) {
		case 0:
			b = appendVarint(b, 1, n+1)
		case 1:
			b = appendVarint(b, 4, 106)
		default:
			b = appendField(b, 11, appendVarint(appendVarint(m.part[:0], 1, 1<<30), 2, 1<<31))
		}
	}
	m.inner = b
	return b
}

func (m *maker) items() (samples, histograms, exemplars int) {
	samples = m.r.IntN(3)
	if m.chance(5) {
		samples = m.r.IntN(40)
	}
	if m.chance(4) {
		histograms = 1 + m.r.IntN(2)
	}
	if m.chance(5) {
		exemplars = 1
	}
	return
}

func (m *maker) seriesCount() int {
	if m.chance(2) {
		return m.r.IntN(60)
	}
	return m.r.IntN(4)
}

func (m *maker) version1() {
	for range m.seriesCount() {
		b := m.message[:0]
		for _, l := range m.labels() {
			m.part = appendText(appendText(m.part[:0], 1, l[0]), 2, l[1])
			b = appendField(b, 1, m.part)
		}
		samples, histograms, exemplars := m.items()
		for range samples {
			b = appendField(b, 2, m.sample(0))
		}
		for range exemplars {
			m.part = appendText(appendText(m.part[:0], 1, "trace_id"), 2, m.one("abc", "", strings.Repeat("t", 200)))
			m.inner = appendVarint(appendDouble(appendField(m.inner[:0], 1, m.part), 2, m.value()), 3, uint64(m.time()))
			b = appendField(b, 3, m.inner)
		}
		for range histograms {
			b = appendField(b, 4, m.histogram())
		}
		m.message = m.unknown(b)
		m.out = appendField(m.out, 1, m.message)
	}
	if m.chance(5) {
		m.part = appendVarint(m.part[:0], 1, uint64(m.r.IntN(9)))
		m.part = appendText(appendText(m.part, 2, m.one("m", "n", "up")), 4, fmt.Sprint("help ", m.r.IntN(50)))
		m.out = appendField(m.out, 3, m.part)
	}
	if before := len(m.out); before > 0 { // a message of unknown fields alone is refused
		m.out = m.unknown(m.out)
	}
}

// symbol returns the reference of a text, which it puts into the table if it is new.
func (m *maker) symbol(text string) uint64 {
	at, ok := m.symbols[text]
	if !ok {
		at = uint32(len(m.table))
		m.symbols[text] = at
		m.table = append(m.table, text)
	}
	return uint64(at)
}

func (m *maker) refs(ls [][2]string) []byte {
	b := m.packed[:0]
	for _, l := range ls {
		b = encbinary.AppendUvarint(encbinary.AppendUvarint(b, m.symbol(l[0])), m.symbol(l[1]))
	}
	if m.chance(1) {
		m.fault("references")
		switch m.r.IntN(3) {
		case 0:
			b = append(b, 1)
		case 1:
			b = encbinary.AppendUvarint(append(b, 1), uint64(len(m.table))+m.r.Uint64()>>32)
		default:
			b = append(b, 0, 0)
		}
	}
	m.packed = b
	return b
}

func (m *maker) version2() {
	clear(m.symbols)
	m.table = m.table[:0]
	m.symbol("")
	for range m.seriesCount() {
		b := appendField(m.message[:0], 1, m.refs(m.labels()))
		samples, histograms, exemplars := m.items()
		for range samples {
			b = appendField(b, 2, m.sample(3))
		}
		for range histograms {
			b = appendField(b, 3, m.histogram())
		}
		for range exemplars {
			m.inner = appendField(m.inner[:0], 1, m.refs([][2]string{{"trace_id", m.one("abc", "def")}}))
			m.inner = appendVarint(appendDouble(m.inner, 2, m.value()), 3, uint64(m.time()))
			b = appendField(b, 4, m.inner)
		}
		if described := m.chance(10); !described && samples+histograms+exemplars == 0 {
			m.fault("an empty series")
		} else if described {
			m.part = appendVarint(m.part[:0], 1, uint64(m.r.IntN(8)))
			m.part = appendVarint(m.part, 3, m.symbol(fmt.Sprint("help ", m.r.IntN(50))))
			b = appendField(b, 5, m.part)
		}
		m.message = m.unknown(b)
		m.out = appendField(m.out, 5, m.message)
	}
	if m.chance(1) {
		m.fault("symbols")
		m.table[0] = m.one("x", "")
		m.table = m.table[:m.r.IntN(len(m.table)+1)]
	}
	for _, s := range m.table {
		m.out = appendText(m.out, 4, s)
	}
	m.out = m.unknown(m.out)
}
