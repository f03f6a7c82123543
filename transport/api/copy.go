package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/index"

	"tidemark/log"
	"tidemark/projections/query"
)

// Copy is an exact copy of the samples, from which lists are answered besides queries.
type Copy interface {
	// Wait returns the sequence that the copy reflects; with all it first waits for all that stands in the log.
	Wait(ctx context.Context, all bool) (log.Seq, error)
	Querier(mint, maxt int64) (storage.Querier, error)
	// Oldest returns a time, in ms, up to which samples may be missing.
	Oldest() int64
}

// timeRange is the start and the end of a request, in ms.
type timeRange struct {
	given      bool // there is a start or an end
	start, end int64
}

// empty says that no time lies in it: such a range is not an error where lists are asked for.
func (r *timeRange) empty() bool { return r.end < r.start }

// timeRange reads an optional start and end.
func (f *form) timeRange() (r timeRange, err *Error) {
	start, err := f.time("start", minTime())
	if err != nil {
		return r, err
	}
	end, err := f.time("end", maxTime())
	if err != nil {
		return r, err
	}
	return timeRange{given: f.Get("start") != "" || f.Get("end") != "", start: millisOf(start), end: millisOf(end)}, nil
}

// millisOf is a time in ms, also where it has no nanoseconds.
func millisOf(t time.Time) int64 {
	return t.Unix()*1000 + int64(t.Nanosecond())/int64(time.Millisecond)
}

// querier opens the copy at a range, once it has everything that was acknowledged.
func (a *API) querier(ctx context.Context, r timeRange) (storage.Querier, error) {
	if _, err := a.opts.Copy.Wait(ctx, true); err != nil {
		return nil, err
	}
	return a.opts.Copy.Querier(r.start, r.end)
}

// merged lists what the index and the exact copy know of what was written, and beside it words of what is recorded. The copy alone
// respects a range of times: with one that it has whole, it alone is asked; otherwise it adds what the index has forgotten.
func merged[T any](ctx context.Context, a *API, l *lookup, compare func(x, y T) int, namesOnly bool, words func(labels.Labels, func(T)),
	fromIndex func() ([]T, bool, error), fromCopy func(q storage.Querier, set []*labels.Matcher, hints *storage.LabelHints) ([]T, error),
) (all []T, warnings []string, err error) {
	if l.span.empty() {
		return nil, nil, nil
	}
	if a.opts.Copy == nil || !l.span.given || l.span.start <= a.opts.Copy.Oldest() {
		var cut bool
		if all, cut, err = fromIndex(); err != nil {
			return nil, nil, err
		}
		if cut {
			warnings = append(warnings, warnUnseen)
		}
	}
	if a.opts.Copy != nil {
		found, err := copied(ctx, a, l, fromCopy)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, found...)
	}
	if a.opts.Recorded != nil {
		sets, more, err := a.opts.Recorded.RecordedSeries(ctx, l.sets, l.span.start, l.span.end, namesOnly)
		if err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, more...)
		for _, ls := range sets {
			words(ls, func(word T) { all = append(all, word) })
		}
	}
	slices.SortFunc(all, compare)
	all = slices.CompactFunc(all, func(x, y T) bool { return compare(x, y) == 0 })
	return all[:min(len(all), l.limit+1)], warnings, nil
}

// copied lists what the exact copy knows, in no order.
func copied[T any](ctx context.Context, a *API, l *lookup, list func(q storage.Querier, set []*labels.Matcher, hints *storage.LabelHints) ([]T, error)) (all []T, err error) {
	q, err := a.querier(ctx, l.span)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	sets := l.sets
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	for _, set := range sets {
		found, err := list(q, set, &storage.LabelHints{Limit: l.limit + 1})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// seriesIn lists the label sets of series that have samples in a querier's range.
func seriesIn(ctx context.Context, q storage.Querier, span timeRange, set []*labels.Matcher, limit int) ([]labels.Labels, error) {
	hints := &storage.SelectHints{Start: span.start, End: span.end, Func: query.FuncSeries, Limit: limit}
	found := q.Select(ctx, false, hints, set...)
	var out []labels.Labels
	for found.Next() {
		out = append(out, found.At().Labels())
	}
	return out, found.Err()
}

// Exemplars serves /api/v1/query_exemplars: from the exact copy, or empty without one.
func (a *API) Exemplars(w http.ResponseWriter, r *http.Request) {
	f, perr := readForm(w, r)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	span, perr := f.timeRange()
	if perr != nil {
		WriteError(w, perr)
		return
	}
	if span.empty() {
		WriteError(w, badData("end timestamp must not be before start timestamp"))
		return
	}
	expr, err := a.parser.ParseExpr(f.Get("query"))
	if err != nil {
		WriteError(w, &Error{Type: TypeBadData, Err: err})
		return
	}
	selectors := parser.ExtractSelectors(expr)
	if len(selectors) == 0 { // there is nothing that could have exemplars
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var found []exemplar.QueryResult
	if a.opts.Exemplars != nil {
		ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
		defer cancel()
		if found, err = a.exemplars(ctx, span, selectors); err != nil {
			WriteError(w, classify(err))
			return
		}
	}
	writeJSON(w, http.StatusOK, encodeExemplars(found))
}

func (a *API) exemplars(ctx context.Context, span timeRange, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, error) {
	if a.opts.Copy != nil {
		if _, err := a.opts.Copy.Wait(ctx, true); err != nil {
			return nil, err
		}
	}
	q, err := a.opts.Exemplars.ExemplarQuerier(ctx)
	if err != nil {
		return nil, err
	}
	return q.Select(span.start, span.end, selectors...)
}

func encodeExemplars(found []exemplar.QueryResult) []byte {
	b := []byte(`{"status":"success","data":[`)
	for i, s := range found {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendLabels(append(b, `{"seriesLabels":`...), s.SeriesLabels), `,"exemplars":[`...)
		for j, e := range s.Exemplars {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendLabels(append(b, `{"labels":`...), e.Labels)
			b = appendValue(append(b, `,"value":`...), e.Value)
			b = append(appendTimestamp(append(b, `,"timestamp":`...), e.Ts), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}`...)
}

// Cardinality is what the head of the exact copy holds.
type Cardinality struct {
	Series, LabelPairs                           int
	MinTime, MaxTime                             int64 // ms
	ByMetric, ValuesByLabel, BytesByLabel, Pairs []index.Stat
}

// The bounds of the parameter limit of /api/v1/status/tsdb, which are Prometheus'.
const (
	defaultCardinality = 10
	maxCardinality     = 10_000
)

// NewTSDBStatus returns the handler of /api/v1/status/tsdb. Without an exact copy, count is nil, and everything is 0.
func NewTSDBStatus(count func(limit int) Cardinality) http.Handler {
	type stat struct {
		Name  string `json:"name"`
		Value uint64 `json:"value"`
	}
	list := func(in []index.Stat) []stat {
		out := make([]stat, len(in))
		for i, s := range in {
			out[i] = stat{s.Name, s.Count}
		}
		return out
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, perr := readForm(w, r)
		if perr != nil {
			WriteError(w, perr)
			return
		}
		limit := defaultCardinality
		if v := f.Get("limit"); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxCardinality {
				WriteError(w, invalidParam("limit", errors.New("a number from 1 to 10000 is expected")))
				return
			}
			limit = n
		}
		c := Cardinality{MinTime: math.MaxInt64, MaxTime: math.MinInt64}
		if count != nil {
			c = count(limit)
		}
		data := map[string]any{
			"headStats": map[string]any{
				"numSeries": c.Series, "numLabelPairs": c.LabelPairs, "chunkCount": 0, "minTime": c.MinTime, "maxTime": c.MaxTime,
			},
			"seriesCountByMetricName":     list(c.ByMetric),
			"labelValueCountByLabelName":  list(c.ValuesByLabel),
			"memoryInBytesByLabelName":    list(c.BytesByLabel),
			"seriesCountByLabelValuePair": list(c.Pairs),
		}
		if err := encodeData(r.Context(), w, data); err != nil {
			WriteError(w, &Error{Type: TypeInternal, Err: err})
		}
	})
}
