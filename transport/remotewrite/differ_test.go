package remotewrite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// A differ compares what the checks and the scanner say of a body with what the generated decoders of Prometheus say, field by field
// and without making text of it, so that a fuzzer can do it very often. It keeps its memory from one body to the next, and counts what it
// compared.
type differ struct {
	scanner    Scanner
	table      Symbols
	limits     labelLimits
	labels     labelReader
	histograms histogramReader
	one        prompb.WriteRequest
	two        writev2.Request
	pairs      []prompb.Label // labels as the oracle has them
	scratch    []byte         // labels of exemplars
	want       []byte         // an encoding by the oracle
	got        []byte         // and another
	n          differCounts
}

type differCounts struct {
	verdicts                                                                                                   [onlyPrompb + 1]uint64
	series, labels, samples, histograms, exemplars, metadata, symbols, refused, kept, anew, soundHists, cutOff uint64
}

func newDiffer() *differ {
	return &differ{limits: limits2, labels: labelReader{labelLimits: limits2}}
}

// counts is what was compared so far, in words.
func (d *differ) counts() map[string]uint64 {
	n := &d.n
	return map[string]uint64{
		"executions": n.verdicts[sameContent] + n.verdicts[bothRefuse] + n.verdicts[onlyPrompb], "read by both": n.verdicts[sameContent],
		"refused by both": n.verdicts[bothRefuse], "refused by us alone": n.verdicts[onlyPrompb] - n.cutOff, "numbers beyond 32 bits": n.cutOff,
		"series": n.series, "labels": n.labels, "samples": n.samples, "histograms": n.histograms, "histograms in order": n.soundHists,
		"exemplars": n.exemplars, "metadata": n.metadata, "symbols": n.symbols, "series refused": n.refused,
		"label sets kept": n.kept, "labels encoded anew": n.anew,
	}
}

// judge compares whether a body is read at all. What prompb refuses must be refused; what is refused beyond that must be so for a documented
// reason, at a place in the body.
func (d *differ) judge(err, oracleErr error, body []byte) (verdict, error) {
	if err == nil && oracleErr != nil {
		return sameContent, fmt.Errorf("read what the generated decoder refuses (%w)", oracleErr)
	}
	if err == nil {
		return sameContent, nil
	}
	var se *ScanError
	if !errors.As(err, &se) || se.Offset < 0 || se.Offset > len(body) {
		return bothRefuse, fmt.Errorf("fault without coordinates: %w", err)
	}
	if oracleErr != nil {
		return bothRefuse, nil
	}
	if !slices.Contains(stricterThanPrompb, se.Reason) {
		return onlyPrompb, fmt.Errorf("refused for an undocumented reason (%w) what the generated decoder reads", err)
	}
	return onlyPrompb, nil
}

// compare1 compares a body of version 1.0: the verdict, the counts of Check, the labels of each series and exemplar as bytes, every
// field of samples, exemplars, histograms and metadata, the label set that is made of the labels with the rules for it, and the
// histogram as the package's own reader has it, with the judgement of Prometheus' model.
func (d *differ) compare1(body []byte) (verdict, error) {
	c, err := Check(body)
	d.one = prompb.WriteRequest{Timeseries: d.one.Timeseries[:0], Metadata: d.one.Metadata[:0]}
	oracleErr := d.one.Unmarshal(body)
	v, bad := d.judge(err, oracleErr, body)
	d.n.verdicts[v]++
	if bad != nil {
		return v, bad
	}
	if err != nil || c.Irregular > 0 {
		// Unchecked, or checked but not told of irregular labels, the scanner must still end without leaving the body.
		d.scanner.Reset(body, Counts{})
		d.drain()
		if err == nil && d.scanner.Err() != nil {
			return v, fmt.Errorf("checked, but the scanner stops: %w", d.scanner.Err())
		}
	}
	if v != sameContent {
		return v, nil
	}
	s := &d.scanner
	s.Reset(body, c)
	var sum Counts
	for i := range d.one.Timeseries {
		ts := &d.one.Timeseries[i]
		if !s.NextSeries() {
			return v, fmt.Errorf("ends before series %d: %w", i, s.Err())
		}
		if err := d.series1(ts, &sum); err != nil {
			return v, fmt.Errorf("series %d: %w", i, err)
		}
	}
	if s.NextSeries() || s.Err() != nil {
		return v, fmt.Errorf("%d series, and another or a fault: %w", len(d.one.Timeseries), s.Err())
	}
	for i, want := range d.one.Metadata {
		m, ok := s.NextMetadata()
		if !ok || m.Type != int32(want.Type) || string(m.Family) != want.MetricFamilyName || string(m.Help) != want.Help || string(m.Unit) != want.Unit {
			return v, fmt.Errorf("metadata %d: %+v, %v, not %+v", i, m, ok, want)
		}
	}
	if _, ok := s.NextMetadata(); ok || s.Err() != nil {
		return v, fmt.Errorf("metadata beyond the last, or a fault: %w", s.Err())
	}
	if c.Irregular > 0 {
		d.n.anew++
	}
	sum.Series, sum.Metadata = len(d.one.Timeseries), len(d.one.Metadata)
	d.n.metadata += uint64(sum.Metadata)
	sum.Unknown, sum.Irregular = c.Unknown, c.Irregular // the oracle does not tell
	return v, d.total(c, sum)
}

// total compares the counts of a request and adds them to what was compared so far.
func (d *differ) total(got, want Counts) error {
	if got != want {
		return fmt.Errorf("counted %+v, not %+v", got, want)
	}
	d.n.series += uint64(want.Series)
	d.n.samples += uint64(want.Samples)
	d.n.histograms += uint64(want.Histograms)
	d.n.exemplars += uint64(want.Exemplars)
	d.n.symbols += uint64(want.Symbols)
	return nil
}

func (d *differ) series1(ts *prompb.TimeSeries, sum *Counts) error {
	s := &d.scanner
	if err := d.labelBytes(s.Labels(), ts.Labels); err != nil {
		return err
	}
	if err := d.labelSet(s.Labels(), ts.Labels); err != nil {
		return err
	}
	if s.Samples() != len(ts.Samples) || s.Histograms() != len(ts.Histograms) || s.Exemplars() != len(ts.Exemplars) {
		return fmt.Errorf("%d samples, %d histograms, %d exemplars, not %d, %d, %d", s.Samples(), s.Histograms(), s.Exemplars(), len(ts.Samples), len(ts.Histograms), len(ts.Exemplars))
	}
	for i, want := range ts.Samples {
		x, ok := s.NextSample()
		if !ok || x.Time != want.Timestamp || math.Float64bits(x.Value) != math.Float64bits(want.Value) {
			return fmt.Errorf("sample %d: %+v, %v, not %+v", i, x, ok, want)
		}
	}
	d.scratch = d.scratch[:0]
	for i, want := range ts.Exemplars {
		var x RawExemplar
		var ok bool
		x, d.scratch, ok = s.NextExemplar(d.scratch)
		if !ok || x.Time != want.Timestamp || math.Float64bits(x.Value) != math.Float64bits(want.Value) {
			return fmt.Errorf("exemplar %d: %+v, %v, not %+v", i, x, ok, want)
		}
		if err := d.labelBytes(x.Labels, want.Labels); err != nil {
			return fmt.Errorf("exemplar %d: %w", i, err)
		}
	}
	for i := range ts.Histograms {
		h, ok := s.NextHistogram()
		if !ok || h.Time != ts.Histograms[i].Timestamp {
			return fmt.Errorf("histogram %d: %+v, %v, not %+v", i, h, ok, ts.Histograms[i])
		}
		var mine prompb.Histogram
		if err := d.sameMessage(h.Proto, &mine, &ts.Histograms[i]); err != nil {
			return fmt.Errorf("histogram %d: %w", i, err)
		}
		if err := d.histogram(h.Proto, &mine); err != nil {
			return fmt.Errorf("histogram %d: %w", i, err)
		}
	}
	sum.Samples, sum.Histograms, sum.Exemplars = sum.Samples+len(ts.Samples), sum.Histograms+len(ts.Histograms), sum.Exemplars+len(ts.Exemplars)
	return d.over()
}

// over holds that the cursors of the current series have nothing more.
func (d *differ) over() error {
	s := &d.scanner
	_, a := s.NextSample()
	_, b := s.NextHistogram()
	_, _, c := s.NextExemplar(nil)
	if a || b || c || s.Err() != nil {
		return fmt.Errorf("more samples (%v), histograms (%v), exemplars (%v), or a fault: %w", a, b, c, s.Err())
	}
	return nil
}

// compare2 is compare1 for version 2.0. Beside that it compares the table of symbols, what the references lead to, or why they lead
// nowhere, and start timestamps.
func (d *differ) compare2(body []byte) (verdict, error) {
	c, err := Check2(body, &d.table)
	d.two = writev2.Request{Symbols: d.two.Symbols[:0], Timeseries: d.two.Timeseries[:0]}
	oracleErr := d.two.Unmarshal(body)
	v, bad := d.judge(err, oracleErr, body)
	far := bad == nil && v == sameContent && cut(body)
	if far {
		v = onlyPrompb // the generated decoder keeps the low 32 bits of a reference or an enumeration, we the number
		d.n.cutOff++
	}
	d.n.verdicts[v]++
	if bad != nil {
		return v, bad
	}
	if v != sameContent {
		if _, countErr := Count2(body); countErr == nil {
			d.table.fill(body)
			d.scanner.Reset2(body, &d.table, d.limits)
			d.drain()
			if far && d.scanner.Err() != nil {
				return v, fmt.Errorf("checked, but the scanner stops: %w", d.scanner.Err())
			}
		}
		return v, nil
	}
	if d.table.Len() != len(d.two.Symbols) {
		return v, fmt.Errorf("%d symbols, not %d", d.table.Len(), len(d.two.Symbols))
	}
	for i, want := range d.two.Symbols {
		if got, ok := d.table.get(uint32(i)); !ok || string(got) != want {
			return v, fmt.Errorf("symbol %d: %q, %v, not %q", i, got, ok, want)
		}
	}
	if err := d.table.checkFirst(); (err == nil) != (len(d.two.Symbols) == 0 || d.two.Symbols[0] == "") {
		return v, fmt.Errorf("of the first symbol: %w", err)
	}
	s := &d.scanner
	s.Reset2(body, &d.table, d.limits)
	var sum Counts
	for i := range d.two.Timeseries {
		if !s.NextSeries() {
			return v, fmt.Errorf("ends before series %d: %w", i, s.Err())
		}
		if err := d.series2(body, i, &sum); err != nil {
			return v, fmt.Errorf("series %d: %w", i, err)
		}
	}
	if s.NextSeries() || s.Err() != nil {
		return v, fmt.Errorf("%d series, and another or a fault: %w", len(d.two.Timeseries), s.Err())
	}
	if c.Expanded < sum.Expanded {
		return v, fmt.Errorf("references take %d bytes, but %d were measured", sum.Expanded, c.Expanded)
	}
	sum.Series, sum.Symbols = len(d.two.Timeseries), len(d.two.Symbols)
	sum.Unknown, sum.Expanded = c.Unknown, c.Expanded
	return v, d.total(c, sum)
}

func (d *differ) series2(body []byte, i int, sum *Counts) error {
	s, ts := &d.scanner, &d.two.Timeseries[i]
	if s.Samples() != len(ts.Samples) || s.Histograms() != len(ts.Histograms) || s.Exemplars() != len(ts.Exemplars) {
		return fmt.Errorf("%d samples, %d histograms, %d exemplars, not %d, %d, %d", s.Samples(), s.Histograms(), s.Exemplars(), len(ts.Samples), len(ts.Histograms), len(ts.Exemplars))
	}
	if err := d.described(body, i, sum); err != nil {
		return err
	}
	for i, want := range ts.Samples {
		x, ok := s.NextSample()
		if !ok || x.Time != want.Timestamp || x.Start != want.StartTimestamp || math.Float64bits(x.Value) != math.Float64bits(want.Value) {
			return fmt.Errorf("sample %d: %+v, %v, not %+v", i, x, ok, want)
		}
	}
	d.scratch = d.scratch[:0]
	for i, want := range ts.Exemplars {
		var x RawExemplar
		var ok bool
		x, d.scratch, ok = s.NextExemplar(d.scratch)
		var why Reason
		d.pairs, why = followRefs(d.pairs[:0], want.LabelsRefs, d.two.Symbols)
		if !ok || x.bad.reason != why || x.Time != want.Timestamp || math.Float64bits(x.Value) != math.Float64bits(want.Value) {
			return fmt.Errorf("exemplar %d: %+v, %v, not %+v, %v", i, x, ok, want, why)
		}
		if err := d.labelBytes(x.Labels, d.pairs); err != nil {
			return fmt.Errorf("exemplar %d: %w", i, err)
		}
		sum.Expanded += refsTake(want.LabelsRefs, d.two.Symbols)
	}
	for i := range ts.Histograms {
		h, ok := s.NextHistogram()
		if !ok || h.Time != ts.Histograms[i].Timestamp {
			return fmt.Errorf("histogram %d: %+v, %v, not %+v", i, h, ok, ts.Histograms[i])
		}
		var mine writev2.Histogram
		if err := d.sameMessage(h.Proto, &mine, &ts.Histograms[i]); err != nil {
			return fmt.Errorf("histogram %d: %w", i, err)
		}
		// The log keeps it as it came, and reads it as one of version 1.0.
		var kept prompb.Histogram
		if err := kept.Unmarshal(h.Proto); err != nil {
			return fmt.Errorf("histogram %d: %w", i, err)
		}
		if err := d.histogram(h.Proto, &kept); err != nil {
			return fmt.Errorf("histogram %d: %w", i, err)
		}
	}
	sum.Samples, sum.Histograms, sum.Exemplars = sum.Samples+len(ts.Samples), sum.Histograms+len(ts.Histograms), sum.Exemplars+len(ts.Exemplars)
	return d.over()
}

// described compares labels and metadata of series i of version 2.0, or why it is refused.
func (d *differ) described(body []byte, i int, sum *Counts) error {
	s, ts, symbols := &d.scanner, &d.two.Timeseries[i], d.two.Symbols
	var why Reason
	d.pairs, why = followRefs(d.pairs[:0], ts.LabelsRefs, symbols)
	sum.Expanded += refsTake(ts.LabelsRefs, symbols)
	if err := d.labelBytes(s.Labels(), d.pairs); err != nil {
		return err
	}
	m := ts.Metadata
	about := m.Type != 0 || m.HelpRef != 0 || m.UnitRef != 0
	if why == reasonNone && about && (int(m.HelpRef) >= len(symbols) || int(m.UnitRef) >= len(symbols)) {
		why = ReasonReference
	}
	if why == reasonNone && len(ts.Samples)+len(ts.Histograms)+len(ts.Exemplars) == 0 && !hasMetadata(body, i) {
		why = ReasonNothing
	}
	if s.refused().reason != why {
		return fmt.Errorf("refused as %v, not %v", s.refused(), why)
	}
	got, said := s.SeriesMetadata()
	if why != reasonNone {
		d.n.refused++
		return nil
	}
	if said != about {
		return fmt.Errorf("metadata %+v, %v, not %+v", got, said, m)
	}
	if about {
		d.n.metadata++
		name := ""
		if k := slices.IndexFunc(d.pairs, func(l prompb.Label) bool { return l.Name == "__name__" }); k >= 0 {
			name = d.pairs[k].Value
		}
		if got.Type != int32(m.Type) || string(got.Family) != string(familyOf([]byte(name), got.Type)) || string(got.Help) != symbols[m.HelpRef] || string(got.Unit) != symbols[m.UnitRef] {
			return fmt.Errorf("metadata %+v, not %+v", got, m)
		}
	}
	return d.labelSet(s.Labels(), d.pairs)
}

// followRefs appends the labels that references lead to, in the plainest way.
func followRefs(out []prompb.Label, refs []uint32, symbols []string) ([]prompb.Label, Reason) {
	if len(refs)%2 != 0 {
		return out[:0], ReasonOddReferences
	}
	if len(refs)/2 > limits2.maxCount {
		return out[:0], ReasonTooManyLabels
	}
	for i := 0; i < len(refs); i += 2 {
		if int(refs[i]) >= len(symbols) || int(refs[i+1]) >= len(symbols) {
			return out[:0], ReasonReference
		}
		switch n, v := symbols[refs[i]], symbols[refs[i+1]]; {
		case len(n) > limits2.maxName:
			return out[:0], ReasonLabelNameLength
		case len(v) > limits2.maxValue && n == "":
			return out[:0], ReasonEmptyLabelName
		case len(v) > limits2.maxValue:
			return out[:0], ReasonLabelValueLength
		default:
			out = append(out, prompb.Label{Name: n, Value: v})
		}
	}
	return out, reasonNone
}

// refsTake is what these references take in bytes when they are written out.
func refsTake(refs []uint32, symbols []string) (n int64) {
	for _, r := range refs {
		if n += 3; int(r) < len(symbols) {
			n += int64(len(symbols[r]))
		}
	}
	return n
}

// labelBytes holds that labels are, byte for byte, what the generated encoder writes of what the generated decoder read.
func (d *differ) labelBytes(got []byte, want []prompb.Label) error {
	d.want = d.want[:0]
	for i := range want {
		l := prompb.Label{Name: want[i].Name, Value: want[i].Value}
		n := l.Size()
		d.want = append(d.want, 1<<3|2)
		d.want = binary.AppendUvarint(d.want, uint64(n))
		at := len(d.want)
		d.want = slices.Grow(d.want, n)[:at+n]
		if _, err := l.MarshalToSizedBuffer(d.want[at:]); err != nil {
			return err
		}
	}
	if !bytes.Equal(got, d.want) {
		return fmt.Errorf("labels are %x, not %x", got, d.want)
	}
	d.n.labels += uint64(len(want))
	return nil
}

// labelSet reads labels by the rules of the package and holds what passes, and what does not, against the rules themselves.
func (d *differ) labelSet(raw []byte, sent []prompb.Label) error {
	good, named := len(sent) <= d.limits.maxCount, false
	values := 0
	for i, l := range sent {
		good = good && len(l.Name) > 0 && len(l.Name) <= d.limits.maxName && len(l.Value) <= d.limits.maxValue && utf8.ValidString(l.Name) && utf8.ValidString(l.Value)
		good = good && !slices.ContainsFunc(sent[:i], func(x prompb.Label) bool { return x.Name == l.Name })
		named = named || l.Name == "__name__" && l.Value != ""
		if l.Value != "" {
			values++
		}
	}
	good = good && named
	ls, bad := d.labels.series(raw)
	if good != (bad.reason == reasonNone) {
		return fmt.Errorf("the labels %v: %v", sent, bad)
	}
	if !good {
		return nil
	}
	d.n.kept++
	last, same := "", ls.Len() == values
	ls.Range(func(l labels.Label) {
		k := slices.IndexFunc(sent, func(x prompb.Label) bool { return x.Name == l.Name })
		same = same && l.Name > last && k >= 0 && sent[k].Value == l.Value && l.Value != ""
		last = l.Name
	})
	if !same {
		return fmt.Errorf("%v became %v", sent, ls)
	}
	return nil
}

// generated is a message of the generated code.
type generated interface {
	Unmarshal([]byte) error
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// sameMessage reads raw into mine, and holds that it is want with every field and every bit.
func (d *differ) sameMessage(raw []byte, mine, want generated) error {
	if err := mine.Unmarshal(raw); err != nil {
		return fmt.Errorf("passed, but: %w", err)
	}
	d.got = slices.Grow(d.got[:0], mine.Size())[:mine.Size()]
	d.want = slices.Grow(d.want[:0], want.Size())[:want.Size()]
	_, err := mine.MarshalToSizedBuffer(d.got)
	_, werr := want.MarshalToSizedBuffer(d.want)
	if err := errors.Join(err, werr); err != nil {
		return err
	}
	if !bytes.Equal(d.got, d.want) {
		return fmt.Errorf("%x, not %x", d.got, d.want)
	}
	return nil
}

// histogram holds that the package's own reader sees of raw what is in h, and judges it as Prometheus' model does.
func (d *differ) histogram(raw []byte, h *prompb.Histogram) error {
	r := &d.histograms
	got := r.check(raw)
	bits := math.Float64bits
	same := r.float == h.IsFloatHistogram() && bits(r.sum) == bits(h.Sum) && bits(r.threshold) == bits(h.ZeroThreshold) && r.schema == h.Schema
	same = same && (r.float || r.intCount == h.GetCountInt()) && (!r.float || bits(r.count) == bits(h.GetCountFloat()))
	same = same && r.intZero == h.GetZeroCountInt() && bits(r.zero) == bits(h.GetZeroCountFloat())
	same = same && slices.Equal(r.negDeltas, h.NegativeDeltas) && slices.Equal(r.posDeltas, h.PositiveDeltas)
	same = same && sameBits(r.negCounts, h.NegativeCounts) && sameBits(r.posCounts, h.PositiveCounts) && sameBits(r.custom, h.CustomValues)
	same = same && len(r.negSpans) == len(h.NegativeSpans) && len(r.posSpans) == len(h.PositiveSpans)
	if !same {
		return fmt.Errorf("%x is read as %+v, not %+v", raw, *r, *h)
	}
	for i, s := range h.NegativeSpans {
		same = same && r.negSpans[i].Offset == s.Offset && r.negSpans[i].Length == s.Length
	}
	for i, s := range h.PositiveSpans {
		same = same && r.posSpans[i].Offset == s.Offset && r.posSpans[i].Length == s.Length
	}
	if !same {
		return fmt.Errorf("%x has the spans %v and %v, not %v and %v", raw, r.negSpans, r.posSpans, h.NegativeSpans, h.PositiveSpans)
	}
	if len(h.CustomValues) == 0 {
		h.CustomValues = nil
	}
	var want error
	if h.IsFloatHistogram() {
		want = h.ToFloatHistogram().Validate()
	} else {
		want = h.ToIntHistogram().Validate()
	}
	if want == nil && !(h.ZeroThreshold >= 0 && h.ZeroThreshold <= math.MaxFloat64) {
		want = errZeroThreshold
	}
	if (got == nil) != (want == nil) {
		return fmt.Errorf("%x: %w, the model says %w", raw, got, want)
	}
	if got == nil {
		d.n.soundHists++
	}
	return nil
}

func sameBits(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}

// drain walks what is left, whatever it is.
func (d *differ) drain() {
	s := &d.scanner
	for s.NextSeries() {
		s.SeriesMetadata()
		for _, ok := s.NextSample(); ok; _, ok = s.NextSample() {
		}
		for _, ok := s.NextHistogram(); ok; _, ok = s.NextHistogram() {
		}
		for ok := true; ok; {
			_, d.scratch, ok = s.NextExemplar(d.scratch[:0])
		}
	}
	for _, ok := s.NextMetadata(); ok; _, ok = s.NextMetadata() {
	}
}
