package log

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

const staleBits = 0x7ff0000000000002

// goldenBodies are one of each kind, and writes that use every section and every mode of the columns.
func goldenBodies() []Body {
	one := NewWriteBuilder()
	for i := range 4 {
		one.Series(SeriesRef(i + 1))
		one.Sample(1000, float64(10*i))
	}
	first := one.Finish()
	for i := range 4 {
		first.Defs = append(first.Defs, SeriesDef{Ref: SeriesRef(i + 1), Labels: series(i)})
	}

	all := NewWriteBuilder()
	all.Series(2)
	all.SampleStart(-5, math.Float64frombits(staleBits), 7)
	all.Series(1)
	all.Sample(2000, 0.1)
	all.Sample(1500, math.Copysign(0, -1))
	all.Sample(2000, math.Inf(-1))
	all.Exemplar(Exemplar{Ref: 1, Time: 3, Value: math.NaN(), Labels: labels.FromStrings("trace_id", "a")})
	all.Histogram(Histogram{Ref: 3, Time: 4, Proto: []byte{1, 2, 3}})
	all.Metadata(Metadata{Family: "m", Type: "counter", Help: "h", Unit: "u"})

	counters := NewWriteBuilder()
	for ref := range SeriesRef(3) {
		counters.Series(ref + 1)
		for i := range 8 {
			counters.Sample(int64(15000*i), float64(1e9+uint64(ref)*1e6+uint64(i)*17))
		}
	}
	mixed := NewWriteBuilder()
	for i := range 12 {
		mixed.Series(SeriesRef(i + 1))
		mixed.Sample(int64(i%2), []float64{3, 0.001, 17e6}[i%3])
	}
	tenths := NewWriteBuilder()
	for i := range 5 {
		tenths.Series(SeriesRef(i + 1))
		tenths.Sample(0, []float64{0.1, 2.5, 3, math.NaN(), 99.9}[i])
	}
	raw := NewWriteBuilder()
	for i, v := range []float64{math.Pi, 1e300, math.NaN()} {
		raw.Series(SeriesRef(i + 1))
		raw.Sample(math.MinInt64, v)
	}
	only := NewWriteBuilder()
	only.Metadata(Metadata{Family: "up"})
	return []Body{
		&Start{Reason: StartProcess}, first, all.Finish(), counters.Finish(), mixed.Finish(), tenths.Finish(), raw.Finish(), only.Finish(),
		&Watermark{Time: math.MaxInt64}, &Watermark{Time: -1, Scoped: true}, &Watermark{Time: 0, Scoped: true, Experiment: "e"},
		&Tick{}, &Drain{}, &Plan{Spec: []byte(`{"a":1}`)}, &Start{Reason: StartResume},
		&Expired{Stream: 0xfedcba9876543210, Origin: -500, Width: 15_000, Through: 1_699_999_994_500},
		&Heal{Through: 300, From: 7},
		&Compacted{Experiment: "run-7", Through: 300, Pieces: 12, Read: 70_000, Written: 9_000}, &Compacted{},
		&ExperimentRetired{Experiment: "run-7", AtVersion: 299, LastWrite: 1_700_000_000_000, ClosedThrough: math.MinInt64, Parts: []RetiredPart{
			{Shard: 0, Series: 1, Samples: 300, Buckets: 20}, {Shard: 63, Series: 2, Samples: 1 << 40},
		}},
		&TaskQueued{ID: ulid.ULID{0: 1, 15: 2}, Task: TaskCompact, Target: "run-7", Options: "min_pieces=2", Manual: true},
		&TaskQueued{Task: TaskRescan, Target: "\xff<b>"}, &TaskStarted{ID: ulid.ULID{0: 1, 15: 2}},
		&TaskFinished{ID: ulid.ULID{0: 1, 15: 2}, Failed: true, Class: "timeout", Message: "the disk is slow", Version: 5},
		&TaskFinished{Unchanged: true, Message: "nothing to merge"},
	}
}

// goldenLog chains the bodies as the committer would.
func goldenLog(t testing.TB) (events []*Event, encoded [][]byte) {
	t.Helper()
	var prev Hash
	for i, body := range goldenBodies() {
		e := &Event{
			Seq: Seq(i + 1), ID: ulid.ULID{15: byte(i)}, LogTime: 1_700_000_000_000 + int64(i), WallTime: 1_600_000_000_000 - int64(i),
			Prev: prev, Body: body,
		}
		raw, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		prev = EventHash(raw)
		events, encoded = append(events, e), append(encoded, raw)
	}
	return events, encoded
}

// TestGolden_Format1 pins the bytes of format 1. A change of this file is a new format.
func TestGolden_Format1(t *testing.T) {
	events, encoded := goldenLog(t)
	var got strings.Builder
	for _, raw := range encoded {
		got.WriteString(hex.EncodeToString(raw) + "\n")
	}
	const path = "testdata/format1.hex"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Fatal("the encoding of format 1 has changed")
	}
	for i, line := range strings.Fields(string(want)) {
		raw, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		e, err := DecodeEvent(Seq(i+1), raw)
		if err != nil {
			t.Fatal(err)
		}
		sameEvent(t, e, events[i])
	}
}

// sameEvent compares in bits, which cmp cannot do for NaN.
func sameEvent(t testing.TB, got, want *Event) {
	t.Helper()
	a, errA := AppendEvent(nil, got)
	b, errB := AppendEvent(nil, want)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if !bytes.Equal(a, b) {
		t.Fatal(cmp.Diff(want, got, compareLabels))
	}
	if w, ok := got.Body.(*Write); ok && w.Hash != contentHash(w) {
		t.Fatal("content hash does not match the content")
	}
}

// TestGolden_ModesCovered: the golden log uses every mode of values and times, so that all of the format is pinned.
func TestGolden_ModesCovered(t *testing.T) {
	var times, values []byte
	for _, body := range goldenBodies() {
		w, ok := body.(*Write)
		if !ok || len(w.Times) == 0 {
			continue
		}
		times = append(times, appendTimes(nil, w.Ends, w.Times)[0])
		values = append(values, appendValues(nil, w.Ends, w.Values)[0])
	}
	for _, mode := range []byte{timesEqual, timesDelta} {
		if !slices.Contains(times, mode) {
			t.Errorf("mode %d of times is not in the golden", mode)
		}
	}
	for _, mode := range []byte{0, 1, valuesRaw, valuesNibble, valuesRuns} {
		if !slices.Contains(values, mode) {
			t.Errorf("mode %d of values is not in the golden: %d", mode, values)
		}
	}
}

// TestL7_FlippedBits: every single bit of an encoded event is protected, and so is its place.
func TestL7_FlippedBits(t *testing.T) {
	_, encoded := goldenLog(t)
	for i, raw := range encoded {
		seq := Seq(i + 1)
		for bit := range 8 * len(raw) {
			raw[bit/8] ^= 1 << (bit % 8)
			_, err := DecodeEvent(seq, raw)
			var damage *CorruptionError
			if !errors.As(err, &damage) && !errors.Is(err, ErrUnknownVersion) {
				t.Fatalf("sequence %d, bit %d: %v", seq, bit, err)
			}
			if damage != nil && damage.Seq != seq {
				t.Fatalf("sequence %d, bit %d: the error names %d", seq, bit, damage.Seq)
			}
			raw[bit/8] ^= 1 << (bit % 8)
		}
		if _, err := DecodeEvent(seq+1, raw); err == nil {
			t.Fatalf("sequence %d passes as %d", seq, seq+1)
		}
		for n := range raw {
			if _, err := DecodeEvent(seq, raw[:n]); err == nil {
				t.Fatalf("sequence %d passes when cut to %d bytes", seq, n)
			}
		}
	}
}

// TestL7_UnknownKindAndVersion: what is not known is refused by name, with its sequence.
func TestL7_UnknownKindAndVersion(t *testing.T) {
	raw, err := AppendEvent(nil, &Event{Seq: 9, Body: &Tick{}})
	if err != nil {
		t.Fatal(err)
	}
	var unknown *UnknownEventError
	raw[0] = 2
	if _, err := DecodeEvent(9, raw); !errors.Is(err, ErrUnknownVersion) || !errors.As(err, &unknown) || unknown.Seq != 9 || unknown.Version != 2 {
		t.Fatal(err)
	}
	raw = reseal(9, raw, func(raw []byte) { raw[0], raw[offKind] = 1, 77 })
	if _, err := DecodeEvent(9, raw); !errors.Is(err, ErrUnknownKind) || !errors.As(err, &unknown) || unknown.Seq != 9 || unknown.Kind != 77 {
		t.Fatal(err)
	}
}

// TestL7_ExpiredKeepsToItsGrid: an expiry whose time is no bucket end of its grid, or beyond all bounds, is neither written nor
// read.
func TestL7_ExpiredKeepsToItsGrid(t *testing.T) {
	good := Expired{Stream: 1, Origin: 3, Width: 10, Through: -17}
	if _, err := AppendEvent(nil, &Event{Seq: 1, Body: &good}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []Expired{
		{Origin: 3, Width: 10, Through: -16}, {Width: 0}, {Width: -10, Through: 10}, {Width: 1, Through: MaxGridMillis + 1},
		{Width: 1, Through: math.MinInt64}, {Width: 1, Origin: math.MaxInt64, Through: 5}, {Width: math.MaxInt64},
	} {
		if _, err := AppendEvent(nil, &Event{Seq: 1, Body: &bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v is written: %v", bad, err)
		}
		raw, err := AppendEvent(nil, &Event{Seq: 1, Body: &good})
		if err != nil {
			t.Fatal(err)
		}
		payload := binary.LittleEndian.AppendUint64(nil, bad.Stream)
		for _, v := range []int64{bad.Origin, bad.Width, bad.Through} {
			payload = binary.AppendVarint(payload, v)
		}
		raw = append(append(raw[:headerSize:headerSize], payload...), 0, 0, 0, 0)
		var damage *CorruptionError
		if _, err := DecodeEvent(1, reseal(1, raw, func([]byte) {})); !errors.As(err, &damage) {
			t.Errorf("%+v is read: %v", bad, err)
		}
	}
}

// TestL7_HealsSomething: a heal through nothing, or from beyond its end, is neither written nor read.
func TestL7_HealsSomething(t *testing.T) {
	for _, bad := range []Heal{{}, {From: 1}, {Through: 5, From: 6}} {
		if _, err := AppendEvent(nil, &Event{Seq: 9, Body: &bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v is written: %v", bad, err)
		}
		raw, err := AppendEvent(nil, &Event{Seq: 9, Body: &Heal{Through: 5, From: 5}})
		if err != nil {
			t.Fatal(err)
		}
		raw = append(raw[:headerSize:headerSize], byte(bad.Through), byte(bad.From), 0, 0, 0, 0)
		var damage *CorruptionError
		if _, err := DecodeEvent(9, reseal(9, raw, func([]byte) {})); !errors.As(err, &damage) {
			t.Errorf("%+v is read: %v", bad, err)
		}
	}
}

// reseal changes an event and gives it a right crc.
func reseal(seq Seq, raw []byte, change func([]byte)) []byte {
	body := append([]byte(nil), raw[:len(raw)-crcSize]...)
	change(body)
	sum := checksum(seq, body)
	return append(body, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

// TestValues_EveryPattern: values of every kind, in every mixture, keep their bits.
func TestValues_EveryPattern(t *testing.T) {
	special := []float64{
		0, math.Copysign(0, -1), 1, -1, 0.1, -0.1, 0.000001, 123456.789012, 1e-6, 1e-7, 1 << 53, -(1 << 53), 1<<53 + 2, 1<<62 + 1,
		math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN(),
		math.Float64frombits(staleBits), math.Float64frombits(0xfff8000000000001), 9007199254.740993, 9e9, 9.1e9, 1e15 + 0.5, 4503599627370495.5,
	}
	rng := rand.New(rand.NewPCG(3, 4))
	generators := []func() float64{
		func() float64 { return special[rng.IntN(len(special))] },
		func() float64 { return float64(rng.IntN(1000)) },
		func() float64 { return math.Round(rng.ExpFloat64()*1e5) / 1000 },
		func() float64 { return rng.NormFloat64() },
		func() float64 { return math.Float64frombits(rng.Uint64()) },
		func() float64 { return float64(rng.IntN(1e9)) / powers[rng.IntN(7)] },
	}
	modes := map[byte]int{}
	for round := range 3000 {
		n := 1 + rng.IntN(40)
		var ends []uint32
		values := make([]float64, n)
		g := generators[round%len(generators)]
		for i := range values {
			if rng.IntN(20) == 0 {
				g = generators[rng.IntN(len(generators))]
			}
			values[i] = g()
			if i+1 == n || rng.IntN(3) == 0 {
				ends = append(ends, uint32(i+1))
			}
		}
		raw := appendValues(nil, ends, values)
		modes[raw[0]]++
		w := &Write{Ends: ends, Values: make([]float64, n)}
		d := decoder{b: raw}
		d.values(w)
		if d.reason != "" || len(d.b) != 0 {
			t.Fatalf("%v: %s, %d bytes left", values, d.reason, len(d.b))
		}
		for i := range values {
			if math.Float64bits(values[i]) != math.Float64bits(w.Values[i]) {
				t.Fatalf("value %d: %x became %x", i, math.Float64bits(values[i]), math.Float64bits(w.Values[i]))
			}
		}
		if len(raw) > 1+8*n {
			t.Fatalf("%d values take %d bytes", n, len(raw))
		}
	}
	if len(modes) < 8 {
		t.Fatalf("modes used: %v", modes)
	}
}

// TestUvarint_AgreesWithBinary over all lengths and positions near the end of the buffer.
func TestUvarint_AgreesWithBinary(t *testing.T) {
	for shift := range 64 {
		for _, v := range []uint64{1<<shift - 1, 1 << shift, 1<<shift | 0x5555} {
			for pad := range 10 {
				raw := appendUvarint(v)
				raw = append(raw, bytes.Repeat([]byte{0xff}, pad)...)
				if got, n := uvarint(raw); got != v || n != len(raw)-pad {
					t.Fatalf("%d with %d bytes behind: %d, %d", v, pad, got, n)
				}
			}
		}
	}
	for _, bad := range [][]byte{nil, {0x80}, bytes.Repeat([]byte{0x80}, 7), bytes.Repeat([]byte{0xff}, 12)} {
		if _, n := uvarint(bad); n != 0 {
			t.Fatalf("%x passes", bad)
		}
	}
}

func appendUvarint(v uint64) []byte {
	var out []byte
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

// FuzzDecodeEvent: arbitrary bytes never panic or allocate without bound; what is accepted means the same when encoded again.
func FuzzDecodeEvent(f *testing.F) {
	events, encoded := goldenLog(f)
	for i, raw := range encoded {
		f.Add(uint64(events[i].Seq), raw)
	}
	later, err := AppendEvent(nil, &Event{Seq: 9, Body: &ExperimentRetired{Experiment: "x", Later: []RetiredLater{{4, 1, 2}, {4, 2, 3}, {7, 0, 1}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint64(9), later)
	f.Fuzz(func(t *testing.T, n uint64, raw []byte) {
		seq := Seq(n)
		if len(raw) >= headerSize+crcSize { // let it past the crc
			raw = reseal(seq, raw, func(raw []byte) { raw[0] = eventVersion })
		}
		e, err := DecodeEvent(seq, raw)
		if err != nil {
			return
		}
		again, err := AppendEvent(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		f, err := DecodeEvent(seq, again)
		if err != nil {
			t.Fatal(err)
		}
		third, err := AppendEvent(nil, f)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%v: %x became %x", err, again, third)
		}
	})
}

// FuzzWriteRoundTrip drives the builder by bytes and compares a write with itself after the way through its encoding, and
// with a naive model of what the builder promises.
func FuzzWriteRoundTrip(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add(bytes.Repeat([]byte{0, 1, 0xfe, 2, 128, 7}, 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		b := NewWriteBuilder()
		model := buildFrom(b, in)
		w := b.Finish()
		model.check(t, w)
		sameEvent(t, roundTrip(t, w), &Event{Seq: 5, Body: w})
	})
}

func roundTrip(t testing.TB, w *Write) *Event {
	t.Helper()
	raw, err := AppendEvent(nil, &Event{Seq: 5, Body: w})
	if err != nil {
		t.Fatal(err)
	}
	e, err := DecodeEvent(5, raw)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
