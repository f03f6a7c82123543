package remotewrite

// data path 1 of 6: decode and check.

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/prometheus/prompb"
	"github.com/zeebo/xxh3"

	"tidemark/log"
)

// Bounds of what is kept about metric families.
const (
	// maxFamilies bounds the record of last metadata. When it is full, some family is forgotten for a new one; its
	// metadata is then logged once more when it comes again, which does no harm.
	maxFamilies = 100_000
	// maxMetadataBytes bounds family, help and unit of an entry, each.
	maxMetadataBytes = 16 << 10
)

// familyRecord remembers the last logged metadata of each family, so that an event is written only when it changes.
//
// What one request says about one family is a unit: targets of different versions describe a family differently, and
// senders pass on all of it in random order. So the entries of a family are sorted, freed of repetitions, and compared
// and logged together.
type familyRecord struct {
	mu      sync.Mutex
	last    map[string]familyState
	scratch []byte // of known
}

type familyState struct {
	hash xxh3.Uint128
	seq  log.Seq // the event that said so: requests may finish out of order
}

func newFamilyRecord() *familyRecord {
	return &familyRecord{last: make(map[string]familyState)}
}

// families sorts the entries of a request and cuts them into families.
func families(entries []log.Metadata) [][]log.Metadata {
	slices.SortFunc(entries, func(a, b log.Metadata) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Help, b.Help), cmp.Compare(a.Unit, b.Unit))
	})
	entries = slices.Compact(entries)
	var out [][]log.Metadata
	for i := 0; i < len(entries); {
		j := i + 1
		for j < len(entries) && entries[j].Family == entries[i].Family {
			j++
		}
		out = append(out, entries[i:j])
		i = j
	}
	return out
}

func familyHash(entries []log.Metadata) xxh3.Uint128 {
	var b []byte
	for _, m := range entries {
		b = appendText(appendText(appendText(b, m.Type), m.Help), m.Unit)
	}
	return xxh3.Hash128(b)
}

func appendText[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// known says whether m is all that the last event with its family says about it. It allocates nothing: a sender of version
// 2.0 repeats the metadata of a series with every sample.
func (r *familyRecord) known(m RawMetadata) bool {
	if len(m.Help) > maxMetadataBytes || len(m.Unit) > maxMetadataBytes {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have, ok := r.last[string(m.Family)]
	if !ok {
		return false
	}
	r.scratch = appendText(appendText(appendText(r.scratch[:0], metricType(m.Type)), m.Help), m.Unit)
	return have.hash == xxh3.Hash128(r.scratch)
}

// changed returns the families of a request that differ from the record.
func (r *familyRecord) changed(entries []log.Metadata) [][]log.Metadata {
	if len(entries) == 0 {
		return nil
	}
	all := families(entries)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(all, func(f []log.Metadata) bool {
		have, ok := r.last[f[0].Family]
		return ok && have.hash == familyHash(f)
	})
}

// logged notes what the event seq says. Only durable events are noted, so that a failed append is repeated in full.
func (r *familyRecord) logged(seq log.Seq, changed [][]log.Metadata) {
	if len(changed) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range changed {
		name := f[0].Family
		have, ok := r.last[name]
		if ok && have.seq > seq {
			continue
		}
		if !ok && len(r.last) >= maxFamilies {
			for victim := range r.last {
				delete(r.last, victim)
				break
			}
		}
		r.last[name] = familyState{hash: familyHash(f), seq: seq}
	}
}

// metadataEntry turns an entry of a request into one of the log; ok is false when it cannot be kept.
func metadataEntry(m RawMetadata) (log.Metadata, bool) {
	for _, b := range [...][]byte{m.Family, m.Help, m.Unit} {
		if len(b) > maxMetadataBytes || !utf8.Valid(b) {
			return log.Metadata{}, false
		}
	}
	if len(m.Family) == 0 {
		return log.Metadata{}, false
	}
	return log.Metadata{
		Family: string(m.Family), Type: metricType(m.Type), Help: string(m.Help), Unit: string(m.Unit),
	}, true
}

// metricType names a type as the Prometheus query API does.
func metricType(t int32) string {
	switch prompb.MetricMetadata_MetricType(t) {
	case prompb.MetricMetadata_COUNTER:
		return "counter"
	case prompb.MetricMetadata_GAUGE:
		return "gauge"
	case prompb.MetricMetadata_HISTOGRAM:
		return "histogram"
	case prompb.MetricMetadata_GAUGEHISTOGRAM:
		return "gaugehistogram"
	case prompb.MetricMetadata_SUMMARY:
		return "summary"
	case prompb.MetricMetadata_INFO:
		return "info"
	case prompb.MetricMetadata_STATESET:
		return "stateset"
	default:
		return "unknown"
	}
}

// Endings of the series of a classic histogram or summary, which are no part of their family's name.
var (
	histogramEndings = []string{"_bucket", "_count", "_sum", "_gcount", "_gsum"}
	summaryEndings   = []string{"_count", "_sum"}
)

// familyOf is the family of a metric of this type.
func familyOf(name []byte, kind int32) []byte {
	var endings []string
	switch prompb.MetricMetadata_MetricType(kind) {
	case prompb.MetricMetadata_HISTOGRAM, prompb.MetricMetadata_GAUGEHISTOGRAM:
		endings = histogramEndings
	case prompb.MetricMetadata_SUMMARY:
		endings = summaryEndings
	}
	for _, e := range endings {
		if n := len(name) - len(e); n > 0 && string(name[n:]) == e {
			return name[:n]
		}
	}
	return name
}
