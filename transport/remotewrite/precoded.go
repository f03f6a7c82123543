package remotewrite

import (
	"encoding/binary"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
)

// Precoded is a label set as it stands in a request, for senders that write one series many times.
type Precoded []byte

// Precode encodes a label set.
func Precode(ls labels.Labels) Precoded {
	var b []byte
	ls.Range(func(l labels.Label) { b = appendLabel(b, l.Name, l.Value) })
	return b
}

// AppendSeries appends to the body of a request one entry: a label set with one sample. An entry may repeat the label set of
// another one.
func AppendSeries(body []byte, ls Precoded, x Sample) []byte {
	var room [longestSample]byte
	sample := appendSample(room[:0], x)
	body = append(body, requestSeries<<3|byte(wireBytes))
	body = binary.AppendUvarint(body, uint64(len(ls)+2+len(sample)))
	body = append(body, ls...)
	body = append(body, tagSample, byte(len(sample)))
	return append(body, sample...)
}

// Compress makes of the entries that AppendSeries has appended what Send takes. It uses the memory of into if that is enough.
func Compress(into, body []byte) []byte { return snappy.Encode(into[:cap(into)], body) }
