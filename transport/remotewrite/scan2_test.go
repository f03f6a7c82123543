package remotewrite

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

var limits2 = labelLimits{maxCount: 8, maxName: 150, maxValue: 200}

// scanAll2 checks and walks a body with the code under test. What is refused of a series stands in place of its labels.
func scanAll2(body []byte) (scanned, error) {
	var table Symbols
	if _, err := Check2(body, &table); err != nil {
		return scanned{}, err
	}
	var s Scanner
	s.Reset2(body, &table, limits2)
	return walk2(&s), s.Err()
}

func walk2(s *Scanner) scanned {
	var out scanned
	for s.NextSeries() {
		ss := scannedSeries{Labels: labelStrings(s.Labels())}
		if bad := s.refused(); bad.reason != reasonNone {
			ss.Labels = []string{bad.reason.String()}
		}
		for x, ok := s.NextSample(); ok; x, ok = s.NextSample() {
			ss.Samples = append(ss.Samples, fmt.Sprintf("%x@%d+%d", math.Float64bits(x.Value), x.Time, x.Start))
		}
		for x, _, ok := s.NextExemplar(nil); ok; x, _, ok = s.NextExemplar(nil) {
			ls := labelStrings(x.Labels)
			if x.bad.reason != reasonNone {
				ls = []string{x.bad.reason.String()}
			}
			ss.Exemplars = append(ss.Exemplars, fmt.Sprintf("%v %x@%d", ls, math.Float64bits(x.Value), x.Time))
		}
		for h, ok := s.NextHistogram(); ok; h, ok = s.NextHistogram() {
			var m writev2.Histogram
			if err := m.Unmarshal(h.Proto); err != nil {
				panic(fmt.Sprintf("a histogram passed that the generated decoder refuses: %v", err))
			}
			b, err := m.Marshal()
			if err != nil {
				panic(err)
			}
			ss.Histograms = append(ss.Histograms, fmt.Sprintf("%x @%d", b, h.Time))
		}
		if m, ok := s.SeriesMetadata(); ok {
			out.Metadata = append(out.Metadata, fmt.Sprintf("%d %q %q %q", m.Type, m.Family, m.Help, m.Unit))
		}
		out.Series = append(out.Series, ss)
	}
	return out
}

// oracle2 decodes with the generated code of Prometheus and follows the references in the plainest way.
func oracle2(body []byte) (scanned, error) {
	var req writev2.Request
	if err := req.Unmarshal(body); err != nil {
		return scanned{}, err
	}
	var out scanned
	for _, ts := range req.Timeseries {
		ls, name, why := oracleRefs(ts.LabelsRefs, req.Symbols)
		m := ts.Metadata
		about := m.Type != 0 || m.HelpRef != 0 || m.UnitRef != 0
		if why == reasonNone && about && (int(m.HelpRef) >= len(req.Symbols) || int(m.UnitRef) >= len(req.Symbols)) {
			why = ReasonReference
		}
		if why == reasonNone && len(ts.Samples)+len(ts.Histograms)+len(ts.Exemplars) == 0 && !hasMetadata(body, len(out.Series)) {
			why = ReasonNothing
		}
		ss := scannedSeries{Labels: ls}
		if why != reasonNone {
			ss.Labels = []string{why.String()}
		} else if about {
			out.Metadata = append(out.Metadata, fmt.Sprintf("%d %q %q %q", m.Type, familyOf([]byte(name), int32(m.Type)), req.Symbols[m.HelpRef], req.Symbols[m.UnitRef]))
		}
		for _, x := range ts.Samples {
			ss.Samples = append(ss.Samples, fmt.Sprintf("%x@%d+%d", math.Float64bits(x.Value), x.Timestamp, x.StartTimestamp))
		}
		for _, x := range ts.Exemplars {
			els, _, why := oracleRefs(x.LabelsRefs, req.Symbols)
			if why != reasonNone {
				els = []string{why.String()}
			}
			ss.Exemplars = append(ss.Exemplars, fmt.Sprintf("%v %x@%d", els, math.Float64bits(x.Value), x.Timestamp))
		}
		for _, h := range ts.Histograms {
			b, err := h.Marshal()
			if err != nil {
				return scanned{}, err
			}
			ss.Histograms = append(ss.Histograms, fmt.Sprintf("%x @%d", b, h.Timestamp))
		}
		out.Series = append(out.Series, ss)
	}
	return out, nil
}

// hasMetadata says whether series i of a body has a metadata message at all, which the generated type does not tell.
func hasMetadata(body []byte, i int) bool {
	for at := 0; at < len(body); {
		f, _ := nextField(body, at)
		if at = f.end; f.num != request2Series {
			continue
		}
		if i--; i >= 0 {
			continue
		}
		for j := f.start; j < f.end; {
			g, _ := nextField(body[:f.end], j)
			if g.num == series2Metadata {
				return true
			}
			j = g.end
		}
		return false
	}
	return false
}

func oracleRefs(refs []uint32, symbols []string) (ls []string, name string, why Reason) {
	pairs, why := followRefs(nil, refs, symbols)
	for _, l := range slices.Backward(pairs) {
		if l.Name == "__name__" {
			name = l.Value
		}
	}
	return oracleLabels(pairs), name, why
}

// randomRequest2 builds a request with everything that version 2.0 knows, references that lead nowhere included.
func randomRequest2(r *rand.Rand) *writev2.Request {
	v1 := randomRequest(r)
	table := []string{""}
	for range r.IntN(12) {
		table = append(table, []string{"__name__", "a", "b_count", "c_bucket", strings.Repeat("x", 151), strings.Repeat("y", 201), "é"}[r.IntN(7)])
	}
	ref := func() uint32 {
		if r.IntN(25) == 0 {
			return []uint32{uint32(len(table)), math.MaxUint32, 1 << 31}[r.IntN(3)]
		}
		return uint32(r.IntN(len(table)))
	}
	refs := func() (out []uint32) {
		for range 2*r.IntN(5) + r.IntN(20)/19 + 16*(r.IntN(20)/19) {
			out = append(out, ref())
		}
		return out
	}
	req := &writev2.Request{Symbols: table}
	for _, ts := range v1.Timeseries {
		out := writev2.TimeSeries{LabelsRefs: refs()}
		for _, s := range ts.Samples {
			out.Samples = append(out.Samples, writev2.Sample{Value: s.Value, Timestamp: s.Timestamp, StartTimestamp: int64(r.IntN(3))})
		}
		for _, h := range ts.Histograms {
			b, err := h.Marshal()
			if err != nil {
				panic(err)
			}
			var m writev2.Histogram
			if err := m.Unmarshal(b); err != nil {
				panic(err)
			}
			m.StartTimestamp = int64(r.IntN(2))
			out.Histograms = append(out.Histograms, m)
		}
		for _, e := range ts.Exemplars {
			out.Exemplars = append(out.Exemplars, writev2.Exemplar{LabelsRefs: refs(), Value: e.Value, Timestamp: e.Timestamp})
		}
		if r.IntN(2) == 0 {
			out.Metadata = writev2.Metadata{Type: writev2.Metadata_MetricType(r.IntN(8)), HelpRef: ref(), UnitRef: ref()}
		}
		req.Timeseries = append(req.Timeseries, out)
	}
	return req
}

// Whatever the generated encoder writes is read with the same content.
func TestR1_Scan2EqualsPrompb(t *testing.T) {
	refusals := map[string]int{}
	for seed := range uint64(3000) {
		body := marshal2(t, randomRequest2(rand.New(rand.NewPCG(seed, 1))))
		if compare2(t, body) != sameContent {
			t.Fatalf("seed %d is refused", seed)
		}
		got, _ := scanAll2(body)
		for _, s := range got.Series {
			if len(s.Labels) == 1 {
				refusals[s.Labels[0]]++
			}
		}
	}
	for _, why := range []Reason{ReasonReference, ReasonOddReferences, ReasonTooManyLabels, ReasonLabelNameLength, ReasonLabelValueLength} {
		if refusals[why.String()] < 10 {
			t.Errorf("%v comes %d times, too rarely to mean much", why, refusals[why.String()])
		}
	}
}

// Damaged bodies of version 2.0, as TestR1_DamagedBodies has it.
func TestR1_DamagedBodies2(t *testing.T) {
	var both, neither, stricter int
	for seed := range uint64(15000) {
		r := rand.New(rand.NewPCG(seed, 2))
		body := damage(r, marshal2(t, randomRequest2(r)))
		switch compare2(t, body) {
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

// damage changes a body in one to three places.
func damage(r *rand.Rand, body []byte) []byte {
	for range 1 + r.IntN(3) {
		if len(body) == 0 {
			return body
		}
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
	return body
}

func compare2(t *testing.T, body []byte) verdict {
	t.Helper()
	got, err := scanAll2(body)
	want, oracleErr := oracle2(body)
	switch {
	case err != nil && oracleErr != nil:
		return bothRefuse
	case err == nil && oracleErr != nil:
		t.Fatalf("read what the generated decoder refuses (%v): %x", oracleErr, body)
	case err != nil:
		var se *ScanError
		if !errors.As(err, &se) || se.Offset < 0 || se.Offset > len(body) {
			t.Fatalf("fault without coordinates: %v", err)
		}
		if slices.Contains(stricterThanPrompb, se.Reason) {
			return onlyPrompb
		}
		t.Fatalf("refused for an undocumented reason (%v) what the generated decoder reads: %x", err, body)
	}
	if cut(body) {
		return onlyPrompb // the generated decoder keeps the low 32 bits of a reference or an enumeration, we the number
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-generated +ours)\n%s\n%x", d, body)
	}
	return sameContent
}

// cut says whether a body that is well formed has a number in it that the generated decoder cuts off at 32 bits.
func cut(body []byte) bool {
	long := func(b []byte, f field) bool {
		for i := f.start; i < f.end; {
			var v uint64
			if v, i, _ = uvarint(b, i); v > math.MaxUint32 {
				return true
			}
		}
		return false
	}
	fields := func(b []byte, i int, visit func(f field)) {
		for i < len(b) {
			f, _ := nextField(b, i)
			visit(f)
			i = f.end
		}
	}
	found := false
	fields(body, 0, func(f field) {
		if f.num != request2Series {
			return
		}
		fields(body[:f.end], f.start, func(g field) {
			switch msg := body[:g.end]; g.num {
			case series2Refs:
				found = found || long(msg, g)
			case series2Exemplar, series2Metadata:
				fields(msg, g.start, func(h field) {
					if h.wire != wireFixed64 && (h.num == 1 || g.num == series2Metadata && (h.num == 3 || h.num == 4)) {
						found = found || long(msg, h)
					}
				})
			}
		})
	})
	return found
}

// R2: a series has the same bytes in both versions, so that each finds what the other has defined.
func TestR2_VersionsShareSeries(t *testing.T) {
	r := newRig(t, nil)
	lines := "__name__=m i=é long=" + strings.Repeat("z", 300) + " empty= : 1@1000"
	if a := r.post(request(t, lines)); a.code != 204 {
		t.Fatal(a)
	}
	before := r.writes()[0].Body
	if a := r.post2(request2(t, lines)); a.code != 204 {
		t.Fatal(a)
	}
	after := r.writes()[0]
	if d := cmp.Diff(before.Kind(), after.Body.Kind()); d != "" || len(r.labels) != 1 {
		t.Errorf("%d series", len(r.labels))
	}
	body1, body2 := marshal(t, parseRequest(t, lines)), marshal2(t, parseRequest2(t, lines))
	c, err := Check(body1)
	if err != nil {
		t.Fatal(err)
	}
	var table Symbols
	if _, err := Check2(body2, &table); err != nil {
		t.Fatal(err)
	}
	var one, two Scanner
	one.Reset(body1, c)
	two.Reset2(body2, &table, labelLimits{128, 1024, 4096})
	if !one.NextSeries() || !two.NextSeries() || string(one.Labels()) != string(two.Labels()) {
		t.Errorf("%x in version 1.0, %x in 2.0", one.Labels(), two.Labels())
	}
}

// The judge of histograms says what the model of Prometheus says.
func TestR1_HistogramsJudgedAsByPrometheus(t *testing.T) {
	var r histogramReader
	var good, bad int
	for seed := range uint64(20000) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		h := randomHistogram(rnd)
		b, err := h.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if rnd.IntN(3) == 0 {
			b = damage(rnd, b)
			if _, bad := checkMessage(b, 0, histogramRules[:]); bad != wellFormed {
				continue
			}
			if h = (prompb.Histogram{}); h.Unmarshal(b) != nil {
				t.Fatalf("seed %d: passed the check", seed)
			}
		}
		if len(h.CustomValues) == 0 {
			h.CustomValues = nil
		}
		want := func() error {
			if h.IsFloatHistogram() {
				return h.ToFloatHistogram().Validate()
			}
			return h.ToIntHistogram().Validate()
		}()
		if want == nil && !(h.ZeroThreshold >= 0 && h.ZeroThreshold <= math.MaxFloat64) {
			want = errZeroThreshold
		}
		if got := r.check(b); (got == nil) != (want == nil) {
			t.Fatalf("seed %d: %v, the model says %v: %x", seed, got, want, b)
		}
		if want == nil {
			good++
		} else {
			bad++
		}
	}
	if good < 2000 || bad < 2000 {
		t.Errorf("%d good histograms, %d bad ones: too few of one kind to mean much", good, bad)
	}
}

// randomHistogram makes a histogram that is whole as often as not.
func randomHistogram(r *rand.Rand) prompb.Histogram {
	h := prompb.Histogram{Sum: 3, Schema: int32(r.IntN(13)) - 4, ZeroThreshold: 0.001, Timestamp: 1000}
	buckets := r.IntN(4)
	if buckets > 0 {
		h.PositiveSpans = []prompb.BucketSpan{{Offset: int32(r.IntN(5)) - 2, Length: uint32(buckets)}}
	}
	if r.IntN(3) == 0 {
		h.Schema, h.ZeroThreshold, h.CustomValues = -53, 0, []float64{1, 2, 5, 7}
		h.PositiveSpans = []prompb.BucketSpan{{Length: uint32(buckets)}}
	}
	if r.IntN(2) == 0 {
		total := 0.0
		for i := range buckets {
			h.PositiveCounts, total = append(h.PositiveCounts, float64(i)), total+float64(i)
		}
		h.Count, h.ZeroCount = &prompb.Histogram_CountFloat{CountFloat: total}, &prompb.Histogram_ZeroCountFloat{}
	} else {
		total := uint64(0)
		for i := range buckets {
			h.PositiveDeltas, total = append(h.PositiveDeltas, 1), total+uint64(i)+1
		}
		h.Count, h.ZeroCount = &prompb.Histogram_CountInt{CountInt: total}, &prompb.Histogram_ZeroCountInt{}
	}
	switch r.IntN(16) {
	case 0:
		h.Schema = []int32{53, -10, 9, math.MinInt32}[r.IntN(4)]
	case 1:
		h.ZeroThreshold = []float64{math.NaN(), -1, math.Inf(1)}[r.IntN(3)]
	case 2:
		h.Count = &prompb.Histogram_CountInt{CountInt: 99}
	case 3:
		h.PositiveSpans = append(h.PositiveSpans, prompb.BucketSpan{Offset: math.MaxInt32, Length: 1})
	case 4:
		h.PositiveDeltas = append(h.PositiveDeltas, -50)
	case 5:
		h.Sum = math.NaN()
	case 6:
		h.CustomValues = append(h.CustomValues, 1)
	case 7:
		h.NegativeSpans, h.NegativeDeltas = []prompb.BucketSpan{{Length: 1}}, []int64{-1}
	}
	return h
}
