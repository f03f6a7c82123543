package remotewrite

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// madeKind is how a maker writes the payload of a field.
type madeKind uint8

const (
	madeNumber madeKind = iota
	madeEnum
	madeDouble
	madeName // text that is often a label's name
	madeText // any bytes
	madeRef  // a reference to a symbol
	madeOne  // a message
	madeNumbers
	madeDoubles
	madeRefs // packed references, mostly in pairs
)

// madeField is what a maker knows of a field: written down here a second time, since the tables of the scanner are what is tested.
type madeField struct {
	num  uint32
	kind madeKind
	sub  []madeField
}

var (
	madeLabel      = []madeField{{1, madeName, nil}, {2, madeText, nil}}
	madeSample     = []madeField{{1, madeDouble, nil}, {2, madeNumber, nil}}
	madeSpan       = []madeField{{1, madeNumber, nil}, {2, madeNumber, nil}}
	madeHistogram1 = []madeField{
		{1, madeNumber, nil}, {2, madeDouble, nil}, {3, madeDouble, nil}, {4, madeNumber, nil}, {5, madeDouble, nil}, {6, madeNumber, nil},
		{7, madeDouble, nil}, {8, madeOne, madeSpan}, {9, madeNumbers, nil}, {10, madeDoubles, nil}, {11, madeOne, madeSpan},
		{12, madeNumbers, nil}, {13, madeDoubles, nil}, {14, madeNumber, nil}, {15, madeNumber, nil}, {16, madeDoubles, nil},
	}
	madeSeries1 = []madeField{
		{1, madeOne, madeLabel}, {2, madeOne, madeSample}, {3, madeOne, []madeField{{1, madeOne, madeLabel}, {2, madeDouble, nil}, {3, madeNumber, nil}}},
		{4, madeOne, madeHistogram1},
	}
	request1Fields = []madeField{
		{1, madeOne, madeSeries1}, {1, madeOne, madeSeries1}, {3, madeOne, []madeField{{1, madeEnum, nil}, {2, madeText, nil}, {4, madeText, nil}, {5, madeText, nil}}},
	}
	madeSeries2 = []madeField{
		{1, madeRefs, nil}, {2, madeOne, append(slices.Clone(madeSample), madeField{3, madeNumber, nil})},
		{3, madeOne, append(slices.Clone(madeHistogram1), madeField{17, madeNumber, nil})},
		{4, madeOne, []madeField{{1, madeRefs, nil}, {2, madeDouble, nil}, {3, madeNumber, nil}}},
		{5, madeOne, []madeField{{1, madeEnum, nil}, {3, madeRef, nil}, {4, madeRef, nil}}},
	}
	request2Fields = []madeField{{5, madeOne, madeSeries2}, {5, madeOne, madeSeries2}, {4, madeName, nil}}
)

// madeMost bounds the body, in bytes: a message in a message in a message, six fields each, can take a long tape far.
const madeMost = 4 << 10

// madeSpoil is what the end of a tape that decides about damage has, in bytes.
const madeSpoil = 13

// A maker writes a body from a tape of bytes, each of which decides something: how many fields a message has, which ones, with
// what in them; now and then one that is written in an unusual way, more rarely one that is wrong; and whether bytes of the whole are
// changed at the end. Behind the end of the tape everything is decided by zeros, which end all messages.
type maker struct {
	fields  []madeField // of the request
	tape    []byte
	body    []byte
	symbols int
}

func (m *maker) next() byte {
	if len(m.tape) == 0 {
		return 0
	}
	b := m.tape[0]
	m.tape = m.tape[1:]
	return b
}

// write returns the body; it is valid until the next call.
func (m *maker) write(tape []byte) []byte {
	m.tape, m.body, m.symbols = tape, m.body[:0], 0
	head := m.next()
	var spoil []byte // the end of the tape decides about the damage, since the rest of it may be used up
	if n := len(m.tape) - madeSpoil; head&0x0e == 0 && n > 0 {
		m.tape, spoil = m.tape[:n], m.tape[n:]
	}
	if m.fields[0].num == request2Series {
		if head&0x10 != 0 {
			m.symbol("")
			m.symbol("__name__")
		}
		for range m.next() % 10 {
			m.field(m.fields[2])
		}
	}
	m.message(m.fields, 2+int(head>>5))
	if spoil != nil {
		m.tape = spoil
		m.corrupt()
	}
	return m.body
}

func (m *maker) symbol(s string) {
	m.body = append(m.body, request2Symbols<<3|byte(wireBytes), byte(len(s)))
	m.body = append(m.body, s...)
	m.symbols++
}

func (m *maker) message(fields []madeField, n int) {
	for range n {
		if len(m.body) > madeMost || len(m.tape) == 0 {
			return
		}
		c := m.next()
		f := fields[int(c)%len(fields)]
		switch {
		case c == 255:
			m.wrong(f)
		case c >= 244:
			m.unusual(f)
		default:
			m.field(f)
		}
	}
}

func (f madeField) wire() wireType {
	switch f.kind {
	case madeNumber, madeEnum, madeRef:
		return wireVarint
	case madeDouble:
		return wireFixed64
	}
	return wireBytes
}

func (m *maker) varint(v uint64) { m.body = binary.AppendUvarint(m.body, v) }

// padded writes a number with a byte more than it needs.
func (m *maker) padded(v uint64) {
	m.varint(v)
	m.body[len(m.body)-1] |= 0x80
	m.body = append(m.body, 0)
}

func (m *maker) tag(num uint32, wire wireType) { m.varint(uint64(num)<<3 | uint64(wire)) }

// field writes a field as every encoder does.
func (m *maker) field(f madeField) {
	m.tag(f.num, f.wire())
	if f.wire() != wireBytes {
		m.scalar(f.kind)
		return
	}
	at := len(m.body)
	m.payload(f)
	m.length(at, len(m.body)-at)
}

// length puts a length before the bytes from at on.
func (m *maker) length(at, n int) {
	m.body = slices.Insert(m.body, at, binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(n))...)
}

func (m *maker) scalar(k madeKind) {
	switch k {
	case madeDouble:
		m.body = binary.LittleEndian.AppendUint64(m.body, m.double())
	case madeRef:
		m.varint(m.ref())
	case madeEnum:
		m.varint(m.enum())
	default:
		m.varint(m.number())
	}
}

func (m *maker) payload(f madeField) {
	switch f.kind {
	case madeName:
		if f.num == request2Symbols {
			m.symbols++
		}
		m.text(true)
	case madeText:
		m.text(false)
	case madeOne:
		n := 1 + int(m.next()%8)
		if f.num == 1 && len(f.sub) == len(madeLabel) && f.sub[0].kind == madeName && n > 1 {
			m.field(f.sub[0]) // a label has mostly one name and one value
			m.field(f.sub[1])
			n = max(0, n-6)
		}
		if len(f.sub) == len(madeSeries2) && n > 1 {
			m.field(f.sub[0])
		}
		m.message(f.sub, n)
	case madeNumbers:
		for range m.next() % 5 {
			m.varint(m.number())
		}
	case madeDoubles:
		for range m.next() % 5 {
			m.body = binary.LittleEndian.AppendUint64(m.body, m.double())
		}
	case madeRefs:
		c := m.next()
		n := 2 * int(c%4)
		if c >= 248 {
			n = int(c) - 238 // more than the limits allow, or odd
		}
		for i := range n {
			if i == 0 && c&4 == 0 && m.symbols > 1 {
				m.varint(1) // mostly __name__
				continue
			}
			m.varint(m.ref())
		}
	}
}

var madeTexts = [...]string{"__name__", "a", "", "job", "b_count", "c_bucket", "é", "experiment", "d_sum", "le", "\xff"}

func (m *maker) text(name bool) {
	switch c := m.next(); {
	case name && c < 96:
		m.body = append(m.body, madeTexts[0]...)
	case c >= 252:
		m.body = append(m.body, strings.Repeat("x", []int{127, 128, 151, 201}[c-252])...)
	case c >= 224:
		for range c % 8 {
			m.body = append(m.body, m.next())
		}
	default:
		m.body = append(m.body, madeTexts[int(c)%len(madeTexts)]...)
	}
}

var madeNumbersOften = [...]uint64{
	0, 1, 2, 127, 128, 1000, 16383, 16384, 1<<21 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 53, math.MaxInt64, 1 << 63, math.MaxUint64,
}

func (m *maker) number() uint64 {
	c := m.next()
	if c >= 128 {
		return madeNumbersOften[c%16]
	}
	return uint64(c)
}

func (m *maker) double() uint64 {
	c := m.next()
	switch {
	case c < 64:
		return math.Float64bits(float64(c))
	case c < 96:
		return uint64(c)<<56 | uint64(m.next())<<48 | uint64(m.next())
	}
	return [...]uint64{0, 1 << 63, 0x3ff8000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000002, 0x7ff8000000000001, 1}[c%8]
}

// enum is mostly a kind of metric.
func (m *maker) enum() uint64 {
	if c := m.next(); c < 250 {
		return uint64(c % 9)
	}
	return m.number()
}

func (m *maker) ref() uint64 {
	c := m.next()
	if c >= 253 {
		return [...]uint64{uint64(m.symbols), math.MaxUint32, 1 << 31, 1<<32 + uint64(m.next()&1)}[m.next()%4]
	}
	return uint64(int(c) % max(1, m.symbols))
}

// unusual writes what few encoders write, and every decoder reads.
func (m *maker) unusual(f madeField) {
	switch c := m.next(); c % 8 {
	case 0:
		m.padded(uint64(f.num)<<3 | uint64(f.wire()))
		at := len(m.body)
		m.payloadOrScalar(f)
		if f.wire() == wireBytes {
			m.length(at, len(m.body)-at)
		}
	case 1: // a length, or a number, that is padded
		m.tag(f.num, f.wire())
		if f.wire() != wireBytes {
			m.padScalar(f)
			return
		}
		at := len(m.body)
		m.payload(f)
		tail := append([]byte(nil), m.body[at:]...)
		m.body = m.body[:at]
		m.padded(uint64(len(tail)))
		m.body = append(m.body, tail...)
	case 2: // a number that the message does not have
		num := []uint32{18, 19, 99, 2047, 2048, 1<<29 - 1}[c/8%6]
		m.tag(num, wireBytes)
		m.body = append(m.body, 2, c, m.next())
	case 3:
		m.tag(18, wireFixed32)
		m.body = append(m.body, c, 1, 2, 3)
	case 4:
		m.tag(19, wireVarint)
		m.varint(m.number())
	case 5: // elements that are not packed
		for range 1 + c/8%3 {
			switch f.kind {
			case madeNumbers, madeNumber, madeEnum:
				m.tag(f.num, wireVarint)
				m.varint(m.number())
			case madeRefs, madeRef:
				m.tag(f.num, wireVarint)
				m.varint(m.ref())
			case madeDoubles, madeDouble:
				m.tag(f.num, wireFixed64)
				m.body = binary.LittleEndian.AppendUint64(m.body, m.double())
			default:
				m.field(f)
			}
		}
	case 6: // present, but empty
		if m.tag(f.num, f.wire()); f.wire() == wireFixed64 {
			m.body = append(m.body, make([]byte, 8)...)
		} else {
			m.body = append(m.body, 0)
		}
	case 7:
		m.field(f)
		m.field(f)
	}
}

func (m *maker) payloadOrScalar(f madeField) {
	if f.wire() == wireBytes {
		m.payload(f)
	} else {
		m.scalar(f.kind)
	}
}

func (m *maker) padScalar(f madeField) {
	switch f.kind {
	case madeDouble:
		m.scalar(f.kind)
	case madeRef:
		m.padded(m.ref())
	case madeEnum:
		m.padded(uint64(m.next() % 9))
	default:
		if v := m.number(); v < 1<<56 {
			m.padded(v)
		} else {
			m.varint(v)
		}
	}
}

// wrong writes what some decoder does not read.
func (m *maker) wrong(f madeField) {
	switch c := m.next(); c % 8 {
	case 0: // of another wire type
		other := [...]wireType{wireVarint, wireFixed64, wireFixed32}[c/8%3]
		m.tag(f.num, other)
		m.body = append(m.body, make([]byte, [...]int{1, 8, 4}[c/8%3])...)
	case 1:
		m.tag(f.num, 3)
		m.tag(f.num, 4)
	case 2:
		m.varint([...]uint64{0, 2, 1 << 32, 1<<32 | 0x0a, 1 << 63}[c/8%5])
		m.body = append(m.body, 0)
	case 3: // a length that is too great
		m.tag(f.num, wireBytes)
		m.varint([...]uint64{1, 1 << 31, 1 << 63, math.MaxUint64, madeMost}[c/8%5])
	case 4: // beyond 64 bits
		m.tag(f.num, wireVarint)
		m.body = append(m.body, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2+c/8)
	case 5:
		m.tag(f.num, wireType(6+c/8%2))
		m.body = append(m.body, 0)
	case 6: // elements that do not fill their field
		m.tag(f.num, wireBytes)
		m.body = append(m.body, 2, 1, 0x80)
	case 7:
		m.tag(f.num, f.wire())
	}
}

// corrupt changes up to three bytes of the whole.
func (m *maker) corrupt() {
	for range 1 + m.next()%3 {
		if len(m.body) == 0 {
			return
		}
		at := (int(m.next())<<8 | int(m.next())) % len(m.body)
		switch c := m.next(); c % 4 {
		case 0:
			m.body[at] ^= 1 << (c / 4 % 8)
		case 1:
			m.body = m.body[:at]
		case 2:
			m.body[at] = m.next()
		case 3:
			m.body = slices.Insert(m.body, at, m.next())
		}
	}
}
