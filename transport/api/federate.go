package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// federated is the newest sample of a series.
type federated struct {
	labels labels.Labels
	t      int64
	v      float64
}

const textFormat = "text/plain; version=0.0.4; charset=utf-8"

// Federate serves /federate as Prometheus does, from the exact copy: of each series that a match[] selects its newest sample that the
// lookback covers, in the text format. What it cannot hold is left out: series that have ended, native histograms, and series without a name.
func (a *API) Federate(w http.ResponseWriter, r *http.Request) {
	f, perr := readForm(w, r)
	if perr != nil {
		http.Error(w, perr.Error(), perr.StatusCode())
		return
	}
	sets, err := a.parser.ParseMetricSelectors(f.Values["match[]"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
	defer cancel()
	all, err := a.newest(ctx, sets)
	if err != nil {
		e := classify(err)
		http.Error(w, e.Error(), e.StatusCode())
		return
	}
	w.Header().Set("Content-Type", textFormat)
	w.WriteHeader(http.StatusOK)
	writeFederated(w, all)
}

// newest returns the newest samples of the series that any of the sets selects, by metric and labels.
func (a *API) newest(ctx context.Context, sets [][]*labels.Matcher) (all []federated, err error) {
	now := a.opts.Now().UnixMilli()
	span := timeRange{start: now - a.opts.Lookback.Milliseconds() + 1, end: now} // the lookback is open to the left
	q, err := a.querier(ctx, span)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	var it chunkenc.Iterator
	for _, set := range sets {
		found := q.Select(ctx, false, &storage.SelectHints{Start: span.start, End: span.end}, set...)
		for found.Next() {
			s := found.At()
			it = s.Iterator(it)
			if x, ok := last(it, span); ok && s.Labels().Has(model.MetricNameLabel) {
				x.labels = s.Labels()
				all = append(all, x)
			}
			if it.Err() != nil {
				return nil, it.Err()
			}
		}
		if found.Err() != nil {
			return nil, found.Err()
		}
	}
	slices.SortFunc(all, func(x, y federated) int {
		return cmp.Or(cmp.Compare(x.labels.Get(model.MetricNameLabel), y.labels.Get(model.MetricNameLabel)), labels.Compare(x.labels, y.labels))
	})
	return slices.CompactFunc(all, func(x, y federated) bool { return labels.Equal(x.labels, y.labels) }), nil
}

// last returns the newest sample in a range, if it is a number.
func last(it chunkenc.Iterator, span timeRange) (x federated, ok bool) {
	for kind := it.Seek(span.start); kind != chunkenc.ValNone && it.AtT() <= span.end; kind = it.Next() {
		if ok = kind == chunkenc.ValFloat; ok {
			x.t, x.v = it.At()
		}
	}
	return x, ok && !value.IsStaleNaN(x.v)
}

// writeFederated writes samples that stand by metric. Like Prometheus it gives those without an instance an empty one, so that whoever
// scrapes them does not put its own in its place.
func writeFederated(w io.Writer, all []federated) {
	e := encoder{w: w}
	before := ""
	for i := range all {
		x := &all[i]
		name := escapedName(x.labels.Get(model.MetricNameLabel))
		if name != before {
			e.buf = append(e.buf, "# TYPE "+name+" untyped\n"...)
			before = name
		}
		e.buf = append(e.buf, name...)
		open := byte('{')
		pair := func(k, v string) {
			e.buf = append(append(e.buf, open), k+`="`+textEscapes.Replace(v)+`"`...)
			open = ','
		}
		x.labels.Range(func(l labels.Label) {
			if l.Name != model.MetricNameLabel {
				pair(escapedName(l.Name), l.Value)
			}
		})
		if !x.labels.Has(model.InstanceLabel) {
			pair(model.InstanceLabel, "")
		}
		e.buf = append(e.buf, "} "...)
		e.buf = appendText(e.buf, x.v)
		e.buf = append(strconv.AppendInt(append(e.buf, ' '), x.t, 10), '\n')
		e.flushIfFull()
	}
	e.flush()
}

var textEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// escapedName is a name that the text format can hold.
func escapedName(s string) string { return model.EscapeName(s, model.UnderscoreEscaping) }

// appendText appends a value as the text format has it.
func appendText(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	case math.IsNaN(v):
		return append(b, "NaN"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// defaultLookback is that of Options that say nothing else.
const defaultLookback = 5 * time.Minute
