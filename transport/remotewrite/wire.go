package remotewrite

// data path 1 of 6: decode and check.

import (
	"encoding/binary"
	"fmt"
	"math"
)

// wireType is the low three bits of a protobuf tag.
type wireType uint8

const (
	wireVarint  wireType = 0
	wireFixed64 wireType = 1
	wireBytes   wireType = 2
	wireFixed32 wireType = 5
)

// fault says what is wrong with the encoding at one place. It is a number so that the scan returns it in a register.
type fault uint8

const (
	wellFormed fault = iota
	faultTruncated
	faultOverflow
	faultFieldNumber
	faultGroup
	faultWireType
	faultMismatch
	faultPacked
)

// String is the sentence part that a sender reads.
func (f fault) String() string {
	switch f {
	case wellFormed:
		return "well formed"
	case faultTruncated:
		return "message is cut short"
	case faultOverflow:
		return "varint does not fit 64 bits"
	case faultFieldNumber:
		return "illegal field number"
	case faultGroup:
		return "group in a message without groups"
	case faultWireType:
		return "illegal wire type"
	case faultMismatch:
		return "field has the wire type of another kind"
	case faultPacked:
		return "packed elements do not fill their field"
	default:
		return "unknown fault"
	}
}

// A ScanError reports a body that is not a well-formed WriteRequest.
type ScanError struct {
	Offset int // bytes from the start of the decoded body
	Reason string
}

// Error implements error.
func (e *ScanError) Error() string {
	return fmt.Sprintf("protobuf at byte %d: %s", e.Offset, e.Reason)
}

// maxTag is the largest tag: field numbers have 29 bits.
const maxTag = math.MaxUint32

// uvarint decodes the varint at b[i:] and returns it with the index behind it.
func uvarint(b []byte, i int) (uint64, int, fault) {
	if i < len(b) && b[i] < 0x80 {
		return uint64(b[i]), i + 1, wellFormed
	}
	return longUvarint(b, i)
}

func longUvarint(b []byte, i int) (uint64, int, fault) {
	var v uint64
	for shift := 0; ; shift += 7 {
		if i >= len(b) {
			return 0, i, faultTruncated
		}
		c := b[i]
		i++
		if shift == 63 && c > 1 {
			return 0, i, faultOverflow
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, i, wellFormed
		}
	}
}

// uvarintSize is the length of the shortest encoding of v in bytes.
func uvarintSize(v int) int {
	n := 1
	for u := uint64(v); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// field is one field of a message: its payload is b[start:end], and the next field begins at end.
// The payload of a varint is the varint itself; that of a length-delimited field leaves out the length.
type field struct {
	num        uint32
	wire       wireType
	start, end int
}

// nextField reads the field at b[i:]. b ends where the message ends, so that no field can reach beyond its message.
func nextField(b []byte, i int) (field, fault) {
	tag, i, bad := uvarint(b, i)
	if bad != wellFormed {
		return field{}, bad
	}
	if tag > maxTag || tag>>3 == 0 {
		return field{}, faultFieldNumber
	}
	f := field{num: uint32(tag >> 3), wire: wireType(tag & 7), start: i}
	switch f.wire {
	case wireVarint:
		_, f.end, bad = uvarint(b, i)
		return f, bad
	case wireFixed64:
		f.end = i + 8
	case wireFixed32:
		f.end = i + 4
	case wireBytes:
		n, at, bad := uvarint(b, i)
		if bad != wellFormed {
			return field{}, bad
		}
		if n > uint64(len(b)-at) {
			return field{}, faultTruncated
		}
		f.start, f.end = at, at+int(n)
		return f, wellFormed
	case 3, 4:
		return field{}, faultGroup
	default:
		return field{}, faultWireType
	}
	if f.end > len(b) {
		return field{}, faultTruncated
	}
	return f, wellFormed
}

// varintAt decodes a varint payload that nextField has checked.
func varintAt(b []byte, f field) uint64 {
	v, _, _ := uvarint(b, f.start)
	return v
}

// doubleAt decodes a fixed64 payload that nextField has checked.
func doubleAt(b []byte, f field) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(b[f.start:f.end]))
}
