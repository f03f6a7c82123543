package log

// The event envelope. Data path 2 of 6: make durable and acknowledge.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/oklog/ulid/v2"
	"github.com/zeebo/xxh3"
)

const (
	eventVersion = 1

	offKind    = 1
	offID      = 2
	offLogTime = 18
	offWall    = 26
	offPrev    = 34
	headerSize = 50
	crcSize    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EventHash is the hash by which the successor of an encoded event names it.
func EventHash(encoded []byte) Hash { return xxh3.Hash128(encoded).Bytes() }

// AppendEvent appends the encoding of e to dst. It fails with ErrInvalid when the body breaks a rule of its type.
func AppendEvent(dst []byte, e *Event) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst, err := appendBody(dst, e.Body)
	if err != nil {
		return dst[:start], err
	}
	if w, ok := e.Body.(*Write); ok {
		if dst, err = appendDefs(dst, w.Defs); err != nil {
			return dst[:start], err
		}
	}
	putHeader(dst[start:], e)
	return binary.LittleEndian.AppendUint32(dst, checksum(e.Seq, dst[start:])), nil
}

// putHeader fills the first headerSize bytes of b.
func putHeader(b []byte, e *Event) {
	b[0] = eventVersion
	b[offKind] = byte(e.Body.Kind())
	copy(b[offID:], e.ID[:])
	binary.LittleEndian.PutUint64(b[offLogTime:], uint64(e.LogTime))
	binary.LittleEndian.PutUint64(b[offWall:], uint64(e.WallTime))
	copy(b[offPrev:], e.Prev[:])
}

// checksum is the crc of everything of an event before its crc.
func checksum(seq Seq, b []byte) uint32 {
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], uint64(seq))
	return crc32.Update(crc32.Update(0, castagnoli, key[:]), castagnoli, b)
}

// appendBody appends the payload of b; of a write, only the columns.
func appendBody(dst []byte, b Body) ([]byte, error) {
	switch b := b.(type) {
	case *Start:
		if b.Reason != StartProcess && b.Reason != StartResume {
			return dst, fmt.Errorf("%w: start reason %d", ErrInvalid, b.Reason)
		}
		return append(dst, byte(b.Reason)), nil
	case *Watermark:
		dst = binary.AppendVarint(dst, b.Time)
		if !b.Scoped {
			if b.Experiment != "" {
				return dst, fmt.Errorf("%w: watermark names an experiment but is not scoped", ErrInvalid)
			}
			return append(dst, 0), nil
		}
		return appendString(append(dst, 1), b.Experiment), nil
	case *Tick, *Drain:
		return dst, nil
	case *Plan:
		return append(dst, b.Spec...), nil
	case *Expired:
		if !b.valid() {
			return dst, fmt.Errorf("%w: expired through %d on the grid %d + k·%d", ErrInvalid, b.Through, b.Origin, b.Width)
		}
		dst = binary.LittleEndian.AppendUint64(dst, b.Stream)
		dst = binary.AppendVarint(dst, b.Origin)
		dst = binary.AppendVarint(dst, b.Width)
		return binary.AppendVarint(dst, b.Through), nil
	case *Heal:
		if b.Through < 1 || b.From > b.Through {
			return dst, fmt.Errorf("%w: heal of %d to %d", ErrInvalid, b.From, b.Through)
		}
		return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(b.Through)), uint64(b.From)), nil
	case *Write:
		return appendColumns(dst, b)
	default:
		return appendMaster(dst, b)
	}
}

// DecodeEvent reads an encoded event. It checks everything but the predecessor hash, keeps no reference to raw, and
// returns a *CorruptionError or an *UnknownEventError.
func DecodeEvent(seq Seq, raw []byte) (*Event, error) {
	if len(raw) == 0 {
		return nil, corrupt(seq, "event is empty")
	}
	if raw[0] != eventVersion {
		return nil, &UnknownEventError{Seq: seq, Version: raw[0], Err: ErrUnknownVersion}
	}
	if len(raw) < headerSize+crcSize {
		return nil, corrupt(seq, "event of %d bytes is shorter than its header", len(raw))
	}
	end := len(raw) - crcSize
	if want, got := binary.LittleEndian.Uint32(raw[end:]), checksum(seq, raw[:end]); want != got {
		return nil, corrupt(seq, "crc32c is %08x, not %08x", got, want)
	}
	e := &Event{
		Seq:      seq,
		ID:       ulid.ULID(raw[offID:offLogTime]),
		LogTime:  int64(binary.LittleEndian.Uint64(raw[offLogTime:])),
		WallTime: int64(binary.LittleEndian.Uint64(raw[offWall:])),
		Prev:     Hash(raw[offPrev:headerSize]),
	}
	d := decoder{b: raw[headerSize:end]}
	e.Body = d.body(Kind(raw[offKind]))
	if e.Body == nil && d.reason == "" {
		return nil, &UnknownEventError{Seq: seq, Version: raw[0], Kind: Kind(raw[offKind]), Err: ErrUnknownKind}
	}
	if d.reason == "" && len(d.b) != 0 {
		d.fail("bytes left over")
	}
	if d.reason != "" {
		return nil, corrupt(seq, "%s event: %s", Kind(raw[offKind]), d.reason)
	}
	return e, nil
}

func (d *decoder) body(k Kind) Body {
	switch k {
	case KindStart:
		s := &Start{Reason: StartReason(d.byte())}
		if s.Reason != StartProcess && s.Reason != StartResume {
			d.fail("unknown start reason")
		}
		return s
	case KindWatermark:
		w := &Watermark{Time: d.varint()}
		switch d.byte() {
		case 0:
		case 1:
			w.Scoped, w.Experiment = true, string(d.bytes())
		default:
			d.fail("unknown scope")
		}
		return w
	case KindTick:
		return &Tick{}
	case KindDrain:
		return &Drain{}
	case KindPlan:
		p := &Plan{Spec: append([]byte(nil), d.b...)}
		d.b = nil
		return p
	case KindExpired:
		e := &Expired{}
		if id := d.take(8); id != nil {
			e.Stream = binary.LittleEndian.Uint64(id)
		}
		e.Origin, e.Width, e.Through = d.varint(), d.varint(), d.varint()
		if d.reason == "" && !e.valid() {
			d.fail("not on the grid")
		}
		return e
	case KindHeal:
		h := &Heal{Through: Seq(d.uvarint()), From: Seq(d.uvarint())}
		if d.reason == "" && (h.Through < 1 || h.From > h.Through) {
			d.fail("heals nothing")
		}
		return h
	case KindWrite:
		w := &Write{}
		d.columns(w)
		d.defs(w)
		return w
	default:
		return d.master(k)
	}
}

// decoder reads from b. After the first failure every method returns zero and reason says what was wrong.
type decoder struct {
	b      []byte
	reason string
}

func (d *decoder) fail(reason string) {
	if d.reason == "" {
		d.reason = reason
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("ends early")
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail("ends early")
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) uvarint() uint64 {
	if len(d.b) > 0 && d.b[0] < 0x80 {
		v := uint64(d.b[0])
		d.b = d.b[1:]
		return v
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("bad varint")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 { return unzigzag(d.uvarint()) }

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail("length beyond the end")
		return nil
	}
	return d.take(int(n))
}

// count reads the number of things that take at least size bytes each, and refuses one that cannot be right before
// anything is allocated for it.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail("count beyond the end")
		return 0
	}
	return int(n)
}

// some is count for a section that would not be there if it were empty.
func (d *decoder) some(size int) int {
	n := d.count(size)
	if n == 0 {
		d.fail("empty section")
	}
	return n
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }
