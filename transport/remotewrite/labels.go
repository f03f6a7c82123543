package remotewrite

// data path 1 of 6: decode and check.

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Reason says why a part of a request was refused. Its string is the value of the label `reason` of the metrics.
type Reason uint8

// The reasons for which a series, a sample, an exemplar or a metadata entry is refused while the rest is written.
const (
	reasonNone Reason = iota
	ReasonNoLabels
	ReasonNoName
	ReasonEmptyLabelName
	ReasonRepeatedLabel
	ReasonUTF8
	ReasonTooManyLabels
	ReasonLabelNameLength
	ReasonLabelValueLength
	ReasonFuture
	ReasonTimeRange
	ReasonMetadata
	ReasonReference
	ReasonOddReferences
	ReasonNothing
	ReasonHistogram
	// ReasonExperimentSeries and ReasonExperiments refuse a series that is new, see LimitError.
	ReasonExperimentSeries
	ReasonExperiments
	// ReasonUnavailable counts what was fine but could not be logged: the sender is told to come again.
	ReasonUnavailable
	reasons // how many there are
)

// String returns the reason as the metrics name it.
func (r Reason) String() string {
	switch r {
	case ReasonNoLabels:
		return "no_labels"
	case ReasonNoName:
		return "missing_metric_name"
	case ReasonEmptyLabelName:
		return "empty_label_name"
	case ReasonRepeatedLabel:
		return "repeated_label_name"
	case ReasonUTF8:
		return "invalid_utf8"
	case ReasonTooManyLabels:
		return "too_many_labels"
	case ReasonLabelNameLength:
		return "label_name_too_long"
	case ReasonLabelValueLength:
		return "label_value_too_long"
	case ReasonFuture:
		return "too_far_in_future"
	case ReasonTimeRange:
		return "timestamp_out_of_range"
	case ReasonMetadata:
		return "invalid_metadata"
	case ReasonReference:
		return "symbol_out_of_range"
	case ReasonOddReferences:
		return "odd_references"
	case ReasonNothing:
		return "empty_series"
	case ReasonHistogram:
		return "invalid_histogram"
	case ReasonExperimentSeries:
		return "experiment_series_limit"
	case ReasonExperiments:
		return "experiments_limit"
	case ReasonUnavailable:
		return "not_logged"
	default:
		return "unknown"
	}
}

// refusal is one fault of a label set or a timestamp. The byte slices lie in the request.
type refusal struct {
	reason      Reason
	name, value []byte // the label at fault
	got, limit  int64  // what was measured, and the bound; of times only the bound
	err         error  // what is wrong with a native histogram
}

// maxEcho bounds how much of a label's name or value an error message repeats, in bytes.
const maxEcho = 128

// echo cuts b for a message, between characters where it is text.
func echo(b []byte) string {
	if len(b) <= maxEcho {
		return string(b)
	}
	n := maxEcho
	for n > maxEcho-utf8.UTFMax && !utf8.RuneStart(b[n]) {
		n--
	}
	return string(b[:n])
}

// String is what the sender reads: one line, since quoting escapes whatever is not printable.
func (r refusal) String() string {
	switch r.reason {
	case ReasonNoLabels:
		return "series without labels"
	case ReasonNoName:
		return "missing metric name"
	case ReasonEmptyLabelName:
		return fmt.Sprintf("empty label name, value %q", echo(r.value))
	case ReasonRepeatedLabel:
		return fmt.Sprintf("label name %q is repeated", echo(r.name))
	case ReasonUTF8:
		return fmt.Sprintf("label %q with value %q is not valid UTF-8", echo(r.name), echo(r.value))
	case ReasonTooManyLabels:
		return fmt.Sprintf("%d labels, the limit is %d", r.got, r.limit)
	case ReasonLabelNameLength:
		return fmt.Sprintf("label name of %d bytes, the limit is %d: %q", r.got, r.limit, echo(r.name))
	case ReasonLabelValueLength:
		return fmt.Sprintf("value of label %q has %d bytes, the limit is %d: %q", echo(r.name), r.got, r.limit, echo(r.value))
	case ReasonFuture:
		return fmt.Sprintf("timestamp too far in the future, the limit is %d ms ahead", r.limit)
	case ReasonTimeRange:
		return "timestamp beyond 2^53 ms"
	case ReasonReference:
		return fmt.Sprintf("reference %d to a table of %d symbols", r.got, r.limit)
	case ReasonOddReferences:
		return fmt.Sprintf("%d references of labels, which come in pairs", r.got)
	case ReasonNothing:
		return "series without samples, histograms, exemplars and metadata"
	case ReasonExperimentSeries:
		return fmt.Sprintf("experiment %q has as many series as it may, the limit is %d", echo(r.value), r.limit)
	case ReasonExperiments:
		return fmt.Sprintf("experiment %q is new, and there are as many as there may be, the limit is %d", echo(r.value), r.limit)
	case ReasonHistogram:
		return fmt.Sprintf("native histogram: %v", r.err)
	default:
		return r.reason.String()
	}
}

// labelPair is one label of a request. Its bytes lie in the request.
type labelPair struct {
	name, value []byte
}

// labelReader turns label bytes into label sets. It is slow and careful: it runs only for series that the dictionary does
// not know by their bytes.
type labelReader struct {
	labelLimits
	pairs   []labelPair
	text    []byte // scratch of build
	builder labels.ScratchBuilder
}

// labelLimits bound the labels of one series: their number, and the length of a name and of a value in bytes.
type labelLimits struct {
	maxCount, maxName, maxValue int
}

// series reads the labels of a series. The label set that it returns is sorted, has no empty values and owns its memory.
func (p *labelReader) series(raw []byte) (labels.Labels, refusal) {
	if len(raw) == 0 {
		return labels.EmptyLabels(), refusal{reason: ReasonNoLabels}
	}
	if bad := p.read(raw); bad.reason != reasonNone {
		return labels.EmptyLabels(), bad
	}
	ls := p.build()
	if ls.Get(model.MetricNameLabel) == "" {
		return labels.EmptyLabels(), refusal{reason: ReasonNoName}
	}
	return ls, refusal{}
}

// exemplar reads the labels of an exemplar, which need neither a metric name nor to be there at all.
func (p *labelReader) exemplar(raw []byte) (labels.Labels, refusal) {
	if bad := p.read(raw); bad.reason != reasonNone {
		return labels.EmptyLabels(), bad
	}
	return p.build(), refusal{}
}

// read fills p.pairs, sorted by name.
func (p *labelReader) read(raw []byte) refusal {
	p.pairs = p.pairs[:0]
	count := 0
	for i := 0; i < len(raw); count++ {
		f, bad := nextField(raw, i)
		if bad != wellFormed {
			panic("remotewrite: label bytes are read before they are checked: " + bad.String())
		}
		if count < p.maxCount {
			name, value := decodeLabel(raw[:f.end], f.start)
			p.pairs = append(p.pairs, labelPair{name, value})
		}
		i = f.end
	}
	if count > p.maxCount {
		return refusal{reason: ReasonTooManyLabels, got: int64(count), limit: int64(p.maxCount)}
	}
	for _, l := range p.pairs {
		if bad := p.check(l); bad.reason != reasonNone {
			return bad
		}
	}
	slices.SortStableFunc(p.pairs, func(a, b labelPair) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < len(p.pairs); i++ {
		if bytes.Equal(p.pairs[i].name, p.pairs[i-1].name) {
			return refusal{reason: ReasonRepeatedLabel, name: p.pairs[i].name}
		}
	}
	return refusal{}
}

func (p labelLimits) check(l labelPair) refusal {
	r := refusal{name: l.name, value: l.value}
	switch {
	case len(l.name) == 0:
		r.reason = ReasonEmptyLabelName
	case len(l.name) > p.maxName:
		r.reason, r.got, r.limit = ReasonLabelNameLength, int64(len(l.name)), int64(p.maxName)
	case len(l.value) > p.maxValue:
		r.reason, r.got, r.limit = ReasonLabelValueLength, int64(len(l.value)), int64(p.maxValue)
	case !utf8.Valid(l.name) || !utf8.Valid(l.value):
		r.reason = ReasonUTF8
	default:
		return refusal{}
	}
	return r
}

// build makes a label set of p.pairs. A label with an empty value equals no label. All strings are cut from one copy.
func (p *labelReader) build() labels.Labels {
	p.text = p.text[:0]
	for _, l := range p.pairs {
		if len(l.value) > 0 {
			p.text = append(append(p.text, l.name...), l.value...)
		}
	}
	text := string(p.text)
	p.builder.Reset()
	for _, l := range p.pairs {
		if n, v := len(l.name), len(l.value); v > 0 {
			p.builder.Add(text[:n], text[n:n+v])
			text = text[n+v:]
		}
	}
	return p.builder.Labels()
}

// metricName finds the metric name among well-formed label bytes; nil if there is none.
func metricName(raw []byte) []byte {
	for i := 0; i < len(raw); {
		f, bad := nextField(raw, i)
		if bad != wellFormed {
			return nil
		}
		if name, value := decodeLabel(raw[:f.end], f.start); string(name) == model.MetricNameLabel {
			return value
		}
		i = f.end
	}
	return nil
}
