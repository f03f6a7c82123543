package plan

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"
)

const (
	// MinPaneMillis is the narrowest pane, in milliseconds.
	MinPaneMillis int64 = 1000
	// MaxPanes is the largest number of panes to one window.
	MaxPanes int64 = 3000
	// MaxTimeMillis bounds the absolute value of a sample's time and of an origin, in milliseconds.
	MaxTimeMillis int64 = 1 << 53
)

// streamIDLen is the length of a stream ID in text: 64 bits in hexadecimal.
const streamIDLen = 16

// String returns the ID as 16 hexadecimal digits.
func (id StreamID) String() string {
	return fmt.Sprintf("%0*x", streamIDLen, uint64(id))
}

// MarshalText returns the ID as 16 hexadecimal digits: JSON numbers of 64 bits do not survive every reader.
func (id StreamID) MarshalText() ([]byte, error) {
	return []byte(id.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (id *StreamID) UnmarshalText(b []byte) error {
	if len(b) != streamIDLen {
		return fmt.Errorf("stream id of %d characters, want %d", len(b), streamIDLen)
	}
	var raw [streamIDLen / 2]byte
	if _, err := hex.Decode(raw[:], b); err != nil {
		return fmt.Errorf("stream id: %w", err)
	}
	var v uint64
	for _, c := range raw {
		v = v<<8 | uint64(c)
	}
	*id = StreamID(v)
	return nil
}

// Identity returns the string that makes two streams the same: selector, pane, origin, membership, lateness and late
// policy, and nothing else. Every part of variable length is preceded by its length, so that no two different streams
// share an Identity. Matchers must be sorted and without repeats, as Resolved leaves them.
func (s *Stream) Identity() string {
	b := make([]byte, 0, 64+32*len(s.Matchers))
	number := func(v int64) {
		b = strconv.AppendInt(b, v, 10)
		b = append(b, ';')
	}
	text := func(v string) {
		b = strconv.AppendInt(b, int64(len(v)), 10)
		b = append(b, ':')
		b = append(b, v...)
	}
	number(int64(len(s.Matchers)))
	for _, m := range s.Matchers {
		text(m.Type)
		text(m.Name)
		text(m.Value)
	}
	number(s.PaneMillis)
	number(s.OriginMillis)
	text(string(s.Closed))
	number(s.LatenessMillis)
	text(string(s.Late))
	return string(b)
}

// Resolved returns the stream with its matchers sorted and without repeats, and with the ID that belongs to it.
func (s Stream) Resolved() Stream {
	s.Matchers = slices.Clone(s.Matchers)
	slices.SortFunc(s.Matchers, compareMatchers)
	s.Matchers = slices.Compact(s.Matchers)
	s.ID = StreamID(xxh3.HashString(s.Identity()))
	return s
}

// compareMatchers orders matchers by name, type and value.
func compareMatchers(a, b Matcher) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Value, b.Value))
}

// compile returns the matcher in the form that matches. The error names the matcher.
func (m Matcher) compile() (*labels.Matcher, error) {
	var t labels.MatchType
	switch m.Type {
	case labels.MatchEqual.String():
		t = labels.MatchEqual
	case labels.MatchNotEqual.String():
		t = labels.MatchNotEqual
	case labels.MatchRegexp.String():
		t = labels.MatchRegexp
	case labels.MatchNotRegexp.String():
		t = labels.MatchNotRegexp
	default:
		return nil, fmt.Errorf("matcher on %q: unknown type %q", m.Name, m.Type)
	}
	c, err := labels.NewMatcher(t, m.Name, m.Value)
	if err != nil {
		return nil, fmt.Errorf("matcher on %q: %w", m.Name, err)
	}
	return c, nil
}

// matchersOf returns the encodable form of compiled matchers, in their order.
func matchersOf(ms []*labels.Matcher) []Matcher {
	out := make([]Matcher, len(ms))
	for i, m := range ms {
		out[i] = Matcher{Type: m.Type.String(), Name: m.Name, Value: m.Value}
	}
	return out
}

// FilingTime returns the time under which a sample at t is filed, both in milliseconds: t-1 when buckets own their right
// edge, t when they own their left. It picks the bucket and drives event time; accumulators see t itself.
func (s *Stream) FilingTime(t int64) int64 {
	if s.Closed == Left || t == math.MinInt64 {
		return t
	}
	return t - 1
}

// BucketEnd returns the end E of the bucket that owns a sample at t, in milliseconds. It saturates at MaxInt64.
func (s *Stream) BucketEnd(t int64) int64 {
	f := s.FilingTime(t)
	return saturatingAdd(f, s.PaneMillis-s.phase(f))
}

// BucketStart returns the start S of the bucket that owns a sample at t, in milliseconds. It saturates at MinInt64.
func (s *Stream) BucketStart(t int64) int64 {
	f := s.FilingTime(t)
	return saturatingAdd(f, -s.phase(f))
}

// OnGrid says whether t, in milliseconds, is an edge of the stream's buckets.
func (s *Stream) OnGrid(t int64) bool {
	return s.phase(t) == 0
}

// GridFloor returns the latest edge of the stream's buckets that is at or before t, in milliseconds. It saturates at
// MinInt64.
func (s *Stream) GridFloor(t int64) int64 {
	return saturatingAdd(t, -s.phase(t))
}

// BarrierBound returns B of a barrier at T, in milliseconds: the barrier closes the buckets with E <= B, which are those
// whose largest possible timestamp is at or before T. It saturates at MaxInt64.
func (s *Stream) BarrierBound(t int64) int64 {
	if s.Closed == Left {
		return saturatingAdd(t, 1)
	}
	return t
}

// phase returns how far t lies behind the grid's last edge, in [0, PaneMillis). It cannot overflow: t and the origin are
// reduced before they are subtracted.
func (s *Stream) phase(t int64) int64 {
	p := floorMod(t, s.PaneMillis)
	if s.OriginMillis != 0 {
		p = floorMod(p-floorMod(s.OriginMillis, s.PaneMillis), s.PaneMillis)
	}
	return p
}

// floorMod returns a - floor(a/n)*n for n > 0: in [0, n), also when a is negative, where Go's % is not.
func floorMod(a, n int64) int64 {
	m := a % n
	if m < 0 {
		m += n
	}
	return m
}

// gcd returns the greatest common divisor of two numbers that are not negative; gcd(0, n) is n.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// saturatingAdd returns a+b, held within int64.
func saturatingAdd(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	default:
		return a + b
	}
}
