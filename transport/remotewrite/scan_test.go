package remotewrite

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
)

// scanned is the content of a request in a form that both decoders can be brought to. Floats are kept as bits, so that
// NaN payloads count.
type scanned struct {
	Series   []scannedSeries
	Metadata []string
}

type scannedSeries struct {
	Labels     []string
	Samples    []string
	Exemplars  []string
	Histograms []string
}

func labelStrings(raw []byte) []string {
	var out []string
	for i := 0; i < len(raw); {
		f, bad := nextField(raw, i)
		if bad != wellFormed || f.num != seriesLabel {
			panic(fmt.Sprintf("label bytes that are not labels: %x", raw))
		}
		name, value := decodeLabel(raw[:f.end], f.start)
		out = append(out, fmt.Sprintf("%q=%q", name, value))
		i = f.end
	}
	return out
}

// scanAll checks and walks a body with the code under test.
func scanAll(body []byte) (scanned, error) {
	c, err := Check(body)
	if err != nil {
		return scanned{}, err
	}
	var s Scanner
	s.Reset(body, c)
	return walk(&s), s.Err()
}

func walk(s *Scanner) scanned {
	var out scanned
	for s.NextSeries() {
		ss := scannedSeries{Labels: labelStrings(s.Labels())}
		for x, ok := s.NextSample(); ok; x, ok = s.NextSample() {
			ss.Samples = append(ss.Samples, fmt.Sprintf("%x@%d", math.Float64bits(x.Value), x.Time))
		}
		var scratch []byte
		for {
			x, grown, ok := s.NextExemplar(scratch[:0])
			if scratch = grown; !ok {
				break
			}
			ss.Exemplars = append(ss.Exemplars, fmt.Sprintf("%v %x@%d", labelStrings(x.Labels), math.Float64bits(x.Value), x.Time))
		}
		for h, ok := s.NextHistogram(); ok; h, ok = s.NextHistogram() {
			var m prompb.Histogram
			if err := m.Unmarshal(h.Proto); err != nil {
				panic(fmt.Sprintf("a histogram passed that prompb refuses: %v", err))
			}
			ss.Histograms = append(ss.Histograms, fmt.Sprintf("%s @%d", histogramString(m), h.Time))
		}
		if len(ss.Samples) != s.Samples() || len(ss.Exemplars) != s.Exemplars() || len(ss.Histograms) != s.Histograms() {
			if s.Err() == nil {
				panic("counts differ from what the cursors yield")
			}
		}
		out.Series = append(out.Series, ss)
	}
	for m, ok := s.NextMetadata(); ok; m, ok = s.NextMetadata() {
		out.Metadata = append(out.Metadata, fmt.Sprintf("%d %q %q %q", m.Type, m.Family, m.Help, m.Unit))
	}
	return out
}

// histogramString re-encodes, which drops unknown fields and normalises the encoding.
func histogramString(m prompb.Histogram) string {
	b, err := m.Marshal()
	if err != nil {
		panic(err)
	}
	return hex.EncodeToString(b)
}

// oracle decodes with the generated code of Prometheus.
func oracle(body []byte) (scanned, error) {
	var req prompb.WriteRequest
	if err := req.Unmarshal(body); err != nil {
		return scanned{}, err
	}
	var out scanned
	for _, ts := range req.Timeseries {
		ss := scannedSeries{Labels: oracleLabels(ts.Labels)}
		for _, x := range ts.Samples {
			ss.Samples = append(ss.Samples, fmt.Sprintf("%x@%d", math.Float64bits(x.Value), x.Timestamp))
		}
		for _, x := range ts.Exemplars {
			ss.Exemplars = append(ss.Exemplars, fmt.Sprintf("%v %x@%d", oracleLabels(x.Labels), math.Float64bits(x.Value), x.Timestamp))
		}
		for _, h := range ts.Histograms {
			ss.Histograms = append(ss.Histograms, fmt.Sprintf("%s @%d", histogramString(h), h.Timestamp))
		}
		out.Series = append(out.Series, ss)
	}
	for _, m := range req.Metadata {
		out.Metadata = append(out.Metadata, fmt.Sprintf("%d %q %q %q", m.Type, m.MetricFamilyName, m.Help, m.Unit))
	}
	return out, nil
}

func oracleLabels(ls []prompb.Label) []string {
	var out []string
	for _, l := range ls {
		out = append(out, fmt.Sprintf("%q=%q", l.Name, l.Value))
	}
	return out
}

// randomRequest builds a request with everything that version 1.0 knows, zero values included.
func randomRequest(r *rand.Rand) *prompb.WriteRequest {
	req := &prompb.WriteRequest{}
	word := func() string {
		return strings.Repeat(string(rune('a'+r.IntN(26))), []int{0, 1, 7, 127, 128, 300}[r.IntN(6)])
	}
	number := func() int64 { return []int64{0, 1, -1, 1000, math.MaxInt64, math.MinInt64}[r.IntN(6)] }
	float := func() float64 {
		return []float64{0, math.Copysign(0, -1), 1.5, math.Inf(1), math.Float64frombits(0x7ff0000000000002)}[r.IntN(5)]
	}
	ls := func() []prompb.Label {
		var out []prompb.Label
		for range r.IntN(4) {
			out = append(out, prompb.Label{Name: word(), Value: word()})
		}
		return out
	}
	for range r.IntN(4) {
		ts := prompb.TimeSeries{Labels: ls()}
		for range r.IntN(4) {
			ts.Samples = append(ts.Samples, prompb.Sample{Value: float(), Timestamp: number()})
		}
		for range r.IntN(3) {
			ts.Exemplars = append(ts.Exemplars, prompb.Exemplar{Labels: ls(), Value: float(), Timestamp: number()})
		}
		for range r.IntN(3) {
			h := prompb.Histogram{
				Sum: float(), Schema: int32(r.IntN(9) - 4), ZeroThreshold: float(), Timestamp: number(),
				ResetHint:      prompb.Histogram_ResetHint(r.IntN(4)),
				PositiveSpans:  []prompb.BucketSpan{{Offset: -3, Length: 2}, {}},
				PositiveDeltas: []int64{1, -1, number()}, NegativeCounts: []float64{float(), 2}, CustomValues: []float64{float()},
			}
			if r.IntN(2) == 0 {
				h.Count, h.ZeroCount = &prompb.Histogram_CountInt{CountInt: 7}, &prompb.Histogram_ZeroCountInt{}
			} else {
				h.Count, h.ZeroCount = &prompb.Histogram_CountFloat{CountFloat: 7}, &prompb.Histogram_ZeroCountFloat{}
			}
			ts.Histograms = append(ts.Histograms, h)
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	for range r.IntN(3) {
		req.Metadata = append(req.Metadata, prompb.MetricMetadata{
			Type: prompb.MetricMetadata_MetricType(r.IntN(8)), MetricFamilyName: word(), Help: word(), Unit: word(),
		})
	}
	return req
}

func marshal(t testing.TB, req *prompb.WriteRequest) []byte {
	t.Helper()
	b, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever the generated encoder writes is read with the same content.
func TestR1_ScanEqualsPrompb(t *testing.T) {
	for seed := range uint64(2000) {
		body := marshal(t, randomRequest(rand.New(rand.NewPCG(seed, 1))))
		got, err := scanAll(body)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want, err := oracle(body)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("seed %d: (-prompb +ours)\n%s", seed, d)
		}
		checkLabelSets(t, body)
	}
}

// Damaged bodies are never read where prompb refuses them, and where both read them the content is the same. Where only
// prompb reads them, the reason is one of the documented ones.
func TestR1_DamagedBodies(t *testing.T) {
	var both, neither, stricter int
	for seed := range uint64(15000) {
		r := rand.New(rand.NewPCG(seed, 2))
		body := marshal(t, randomRequest(r))
		if len(body) == 0 {
			continue
		}
		for range 1 + r.IntN(3) {
			switch at := r.IntN(len(body)); r.IntN(4) {
			case 0:
				body[at] ^= 1 << r.IntN(8)
			case 1:
				body = body[:at+1]
			case 2:
				body[at] = byte(r.IntN(256))
			case 3:
				body = append(body[:at:at], append([]byte{byte(r.IntN(256))}, body[at:]...)...)
			}
		}
		switch compare(t, body) {
		case sameContent:
			both++
		case bothRefuse:
			neither++
		case onlyPrompb:
			stricter++
		}
	}
	if both < 1000 || neither < 1000 || stricter < 5 {
		t.Fatalf("the damage is too narrow to mean much: %d read, %d refused, %d refused by us alone", both, neither, stricter)
	}
}

type verdict int

const (
	sameContent verdict = iota
	bothRefuse
	onlyPrompb
)

// stricterThanPrompb lists the reasons for which the scanner refuses what the generated code of Prometheus reads. That
// code skips groups, drops the bits of a varint beyond 64 and of a field number beyond 32, and reads packed elements
// beyond the end of their field.
var stricterThanPrompb = []string{
	faultGroup.String(), faultOverflow.String(), faultFieldNumber.String(), faultPacked.String(),
}

func compare(t *testing.T, body []byte) verdict {
	t.Helper()
	got, err := scanAll(body)
	want, oracleErr := oracle(body)
	switch {
	case err != nil && oracleErr != nil:
		return bothRefuse
	case err == nil && oracleErr != nil:
		t.Fatalf("read what prompb refuses (%v): %x", oracleErr, body)
	case err != nil:
		var se *ScanError
		if !errors.As(err, &se) || se.Offset < 0 || se.Offset > len(body) {
			t.Fatalf("fault without coordinates: %v", err)
		}
		for _, reason := range stricterThanPrompb {
			if se.Reason == reason {
				return onlyPrompb
			}
		}
		t.Fatalf("refused for an undocumented reason (%v) what prompb reads: %x", err, body)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-prompb +ours)\n%s\n%x", d, body)
	}
	return sameContent
}

// checkLabelSets reads the labels of a body by the rules of the package and holds what passes against the rules themselves.
func checkLabelSets(t *testing.T, body []byte) {
	t.Helper()
	c, err := Check(body)
	if err != nil {
		return
	}
	p := labelReader{labelLimits: labelLimits{maxCount: 8, maxName: 150, maxValue: 200}}
	var s Scanner
	s.Reset(body, c)
	for s.NextSeries() {
		ls, bad := p.series(s.Labels())
		want := make(map[string]string)
		good, sent := true, 0
		for i := 0; i < len(s.Labels()); sent++ {
			f, _ := nextField(s.Labels(), i)
			name, value := decodeLabel(s.Labels()[:f.end], f.start)
			i = f.end
			_, repeated := want[string(name)]
			good = good && !repeated && len(name) > 0 && len(name) <= 150 && len(value) <= 200 && utf8.Valid(name) && utf8.Valid(value)
			want[string(name)] = string(value)
		}
		good = good && sent <= 8 && want["__name__"] != ""
		if good != (bad.reason == reasonNone) {
			t.Fatalf("%q: %v", want, bad)
		}
		if !good {
			continue
		}
		last := ""
		ls.Range(func(l labels.Label) {
			if l.Name <= last || want[l.Name] != l.Value || l.Value == "" {
				t.Fatalf("%q became %v", want, ls)
			}
			last = l.Name
			delete(want, l.Name)
		})
		for name, value := range want {
			if value != "" {
				t.Fatalf("label %q is lost", name)
			}
		}
	}
}

// wireCases are bodies by hand: what a real decoder accepts or refuses.
var wireCases = []struct {
	name, body string
	want       string // the reason of the refusal, or empty
}{
	{"empty", "", ""},
	{"A21 empty sample", "0a110a0d0a085f5f6e616d655f5f12016d1200", ""},
	{"empty series", "0a00", ""},
	{"unknown field of every wire type", "2001 29 0102030405060708 3201ff 3d01020304", ""},
	{"unknown fields in a sample", "0a 0b 12 09 2001 3d01020304 1005", ""},
	{"sample repeats its fields", "0a 18 12 16 09 000000000000f03f 1001 09 0000000000000040 1002", ""},
	{"padded varint", "0a 05 12 03 10 8100", ""},
	{"padded tag", "8a00 00", ""},
	{"start timestamp", "0a 04 12 02 18 07", ""},
	{"field 3 of a sample as bytes", "0a 05 12 03 1a 01 07", ""},
	{"ten-byte varint of -1", "0a 0d 12 0b 10 ffffffffffffffffff01", ""},
	{"varint of 65 bits", "0a 0d 12 0b 10 ffffffffffffffffff02", faultOverflow.String()},
	{"varint of eleven bytes", "0a 0e 12 0c 10 8080808080808080808001", faultOverflow.String()},
	{"field number 0", "0200", faultFieldNumber.String()},
	{"field number of 30 bits", "8080808010 00", faultFieldNumber.String()},
	{"group", "1b1c", faultGroup.String()},
	{"end of a group alone", "1c", faultGroup.String()},
	{"wire type 6", "0e00", faultWireType.String()},
	{"wire type 7", "0f00", faultWireType.String()},
	{"series as a varint", "0801", faultMismatch.String()},
	{"metadata as fixed64", "19 0102030405060708", faultMismatch.String()},
	{"label as a varint", "0a 02 08 01", faultMismatch.String()},
	{"label name as a varint", "0a 04 0a 02 08 01", faultMismatch.String()},
	{"value as a varint", "0a 04 12 02 08 01", faultMismatch.String()},
	{"timestamp as fixed64", "0a 0b 12 09 11 0102030405060708", faultMismatch.String()},
	{"truncated tag", "80", faultTruncated.String()},
	{"truncated length", "0a", faultTruncated.String()},
	{"length beyond the body", "0a 05 0a 00", faultTruncated.String()},
	{"length beyond its message", "0a 02 0a 05 0000000000", faultTruncated.String()},
	{"length of 2^63", "0a 80808080808080808001", faultTruncated.String()},
	{"truncated value", "0a 06 12 04 09 000000", faultTruncated.String()},
	{"truncated fixed32", "25 0000", faultTruncated.String()},
	{"packed deltas", "0a 06 22 04 4a 02 0102", ""},
	{"deltas not packed", "0a 06 22 04 48 01 48 02", ""},
	{"packed delta cut off", "0a 06 22 04 4a 01 80 00", faultPacked.String()},
	{"packed counts of 9 bytes", "0a 0d 22 0b 52 09 000000000000000000", faultPacked.String()},
	{"deltas as fixed64", "0a 0b 22 09 49 0000000000000000", faultMismatch.String()},
}

func TestR1_WireCases(t *testing.T) {
	for _, c := range wireCases {
		t.Run(c.name, func(t *testing.T) {
			body, err := hex.DecodeString(strings.ReplaceAll(c.body, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Check(body)
			var se *ScanError
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case c.want != "" && (!errors.As(err, &se) || se.Reason != c.want):
				t.Fatalf("got %v, want %q", err, c.want)
			}
			compare(t, body)
		})
	}
}

func TestCase_A21_DefaultElision(t *testing.T) {
	body, err := hex.DecodeString("0a110a0d0a085f5f6e616d655f5f12016d1200")
	if err != nil {
		t.Fatal(err)
	}
	got, err := scanAll(body)
	if err != nil {
		t.Fatal(err)
	}
	want := scanned{Series: []scannedSeries{{Labels: []string{`"__name__"="m"`}, Samples: []string{"0@0"}}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestR1_StartTimestamp(t *testing.T) {
	for name, tc := range map[string]struct {
		sample string
		want   Sample
	}{
		"set":            {"10 05 18 03", Sample{Time: 5, Start: 3}},
		"absent":         {"10 05", Sample{Time: 5}},
		"repeated":       {"18 03 18 04", Sample{Start: 4}},
		"another type":   {"10 05 1a 01 ff", Sample{Time: 5}},
		"padded tag":     {"90 00 05 98 00 03", Sample{Time: 5, Start: 3}},
		"value repeated": {"09 0000000000000040 89 00 000000000000f03f", Sample{Value: 1}},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(tc.sample, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got, bad := decodeSample(b, 0, 2); bad != wellFormed || got != tc.want {
			t.Errorf("%s: got %+v (%v), want %+v", name, got, bad, tc.want)
		}
	}
}

// The bytes by which a series is found do not depend on how its labels lie in the message.
func TestR2_LabelBytes(t *testing.T) {
	plain := appendLabel(appendLabel(nil, "__name__", "m"), "a", "1")
	name, a := appendLabel(nil, "__name__", "m"), appendLabel(nil, "a", "1")
	sample := []byte{tagSample, 2, tagSampleTime, 1}
	long := strings.Repeat("x", 200)
	for _, tc := range []struct {
		name      string
		message   []byte
		want      []byte
		irregular int
	}{
		{"ordinary", cat(plain, sample), plain, 0},
		{"samples first", cat(sample, plain, sample), plain, 0},
		{"samples between", cat(name, sample, a), plain, 0},
		{"value before name", cat(name, []byte{tagLabel, 6, tagLabelValue, 1, '1', tagLabelName, 1, 'a'}), plain, 1},
		{"name twice", cat(name, []byte{tagLabel, 9, tagLabelName, 1, 'z', tagLabelName, 1, 'a', tagLabelValue, 1, '1'}), plain, 1},
		{"unknown field", cat(name, []byte{tagLabel, 8, tagLabelName, 1, 'a', tagLabelValue, 1, '1', 0x18, 1}), plain, 1},
		{"padded length", cat(name, []byte{tagLabel, 0x86, 0, tagLabelName, 1, 'a', tagLabelValue, 1, '1'}), plain, 1},
		{"empty value present", cat(name, []byte{tagLabel, 5, tagLabelName, 1, 'a', tagLabelValue, 0}), cat(name, appendLabel(nil, "a", "")), 1},
		{"empty value absent", cat(name, []byte{tagLabel, 3, tagLabelName, 1, 'a'}), cat(name, appendLabel(nil, "a", "")), 0},
		{"long value", cat(name, appendLabel(nil, "a", long)), cat(name, appendLabel(nil, "a", long)), 0},
		{"no labels", sample, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := binary.AppendUvarint([]byte{tagLabel}, uint64(len(tc.message)))
			body = append(body, tc.message...)
			c, err := Check(body)
			if err != nil {
				t.Fatal(err)
			}
			if c.Irregular != tc.irregular {
				t.Errorf("%d irregular labels, want %d", c.Irregular, tc.irregular)
			}
			var s Scanner
			s.Reset(body, c)
			if !s.NextSeries() || !bytes.Equal(s.Labels(), tc.want) {
				t.Errorf("got %x, want %x (%v)", s.Labels(), tc.want, s.Err())
			}
		})
	}
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// R3: no allocation per sample or per series.
func TestR3_ScanAllocatesNothing(t *testing.T) {
	req := &prompb.WriteRequest{}
	for i := range 100 {
		req.Timeseries = append(req.Timeseries, prompb.TimeSeries{
			Labels:  []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprint(i)}},
			Samples: []prompb.Sample{{Value: 1, Timestamp: 1}, {Value: 2, Timestamp: 2}},
		})
	}
	body := marshal(t, req)
	var s Scanner
	samples := 0
	if n := testing.AllocsPerRun(10, func() {
		c, err := Check(body)
		if err != nil {
			t.Fatal(err)
		}
		s.Reset(body, c)
		for s.NextSeries() {
			for _, ok := s.NextSample(); ok; _, ok = s.NextSample() {
				samples++
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations in a scan of 100 series", n)
	}
	if samples != 11*200 {
		t.Errorf("%d samples", samples)
	}
}
