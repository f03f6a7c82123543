package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"tidemark/projections/query"
)

// SeriesIndex knows which label sets were written. All three take the union over the sets of matchers (no sets: everything), give
// each entry once, in order, and at most limit of them. cut says that not all series were looked at.
type SeriesIndex interface {
	Series(ctx context.Context, sets [][]*labels.Matcher, limit int) (list []labels.Labels, cut bool, err error)
	LabelNames(ctx context.Context, sets [][]*labels.Matcher, limit int) (list []string, cut bool, err error)
	LabelValues(ctx context.Context, name string, sets [][]*labels.Matcher, limit int) (list []string, cut bool, err error)
}

// Recorded lists the series that are read under the names of materializations and of what rules record. *query.Engine is one.
type Recorded interface {
	// RecordedSeries lists what any of the sets of matchers selects (no sets: everything) of what has a value from one time to another,
	// in ms. With namesOnly it may leave out all but one of each name. The warnings say what may be missing.
	RecordedSeries(ctx context.Context, sets [][]*labels.Matcher, from, to int64, namesOnly bool) (list []labels.Labels, warnings []string, err error)
	// ReadsOwn says whether an expression reads, by name, what no other server has.
	ReadsOwn(expr string) bool
}

// lookup is what the three kinds of list have in common. The index has no time dimension: without an exact copy start and end are
// checked, and the answer covers all time, which is a superset of what was asked.
type lookup struct {
	sets  [][]*labels.Matcher
	limit int // at least 1
	span  timeRange
}

func (a *API) lookup(w http.ResponseWriter, r *http.Request, demandMatch bool) (*lookup, *Error) {
	f, err := readForm(w, r)
	if err != nil {
		return nil, err
	}
	if demandMatch && len(f.Values["match[]"]) == 0 {
		return nil, badData("no match[] parameter provided")
	}
	l := &lookup{}
	if l.limit, err = f.limit(); err != nil {
		return nil, err
	}
	if l.limit == 0 || l.limit > MaxListed {
		l.limit = MaxListed
	}
	if l.span, err = f.timeRange(); err != nil {
		return nil, err
	}
	sets, perr := f.matcherSets(a.parser)
	switch {
	case perr != nil && demandMatch:
		return nil, invalidParam("match[]", perr)
	case perr != nil: // Prometheus names the parameter for series only
		return nil, &Error{Type: TypeBadData, Err: perr}
	}
	l.sets = sets
	return l, nil
}

// listError is classify for lists, whose evaluation cannot fail by the request's fault.
func (a *API) listError(w http.ResponseWriter, err error) {
	WriteError(w, classify(err))
}

// Series serves /api/v1/series.
func (a *API) Series(w http.ResponseWriter, r *http.Request) {
	l, perr := a.lookup(w, r, true)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
	defer cancel()
	found, warnings, err := merged(ctx, a, l, labels.Compare, false, func(ls labels.Labels, add func(labels.Labels)) { add(ls) },
		func() ([]labels.Labels, bool, error) { return a.series.Series(ctx, l.sets, l.limit+1) },
		func(q storage.Querier, set []*labels.Matcher, hints *storage.LabelHints) ([]labels.Labels, error) {
			return seriesIn(ctx, q, l.span, set, hints.Limit)
		})
	if err != nil {
		a.listError(w, err)
		return
	}
	writeSeries(w, found, l.limit, warnings)
}

func writeSeries(w http.ResponseWriter, found []labels.Labels, limit int, warnings []string) {
	cut := len(found) > limit
	if cut {
		found = found[:limit]
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	e := encoder{w: w, buf: append(make([]byte, 0, 4<<10), `{"status":"success","data":[`...)}
	for i, ls := range found {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendLabels(e.buf, ls)
		e.flushIfFull()
	}
	e.buf = append(e.buf, ']')
	e.end(cut, warnings)
}

// LabelNames serves /api/v1/labels.
func (a *API) LabelNames(w http.ResponseWriter, r *http.Request) {
	l, perr := a.lookup(w, r, false)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
	defer cancel()
	names, warnings, err := merged(ctx, a, l, strings.Compare, false,
		func(ls labels.Labels, add func(string)) { ls.Range(func(l labels.Label) { add(l.Name) }) },
		func() ([]string, bool, error) { return a.series.LabelNames(ctx, l.sets, l.limit+1) },
		func(q storage.Querier, set []*labels.Matcher, hints *storage.LabelHints) ([]string, error) {
			names, _, err := q.LabelNames(ctx, hints, set...)
			return names, err
		})
	if err != nil {
		a.listError(w, err)
		return
	}
	writeTexts(w, names, l.limit, warnings)
}

// LabelValues serves /api/v1/label/{name}/values.
func (a *API) LabelValues(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		WriteError(w, badData("invalid label name: %q", name))
		return
	}
	l, perr := a.lookup(w, r, false)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
	defer cancel()
	values, warnings, err := merged(ctx, a, l, strings.Compare, name == model.MetricNameLabel,
		func(ls labels.Labels, add func(string)) {
			if v := ls.Get(name); v != "" {
				add(v)
			}
		},
		func() ([]string, bool, error) { return a.series.LabelValues(ctx, name, l.sets, l.limit+1) },
		func(q storage.Querier, set []*labels.Matcher, hints *storage.LabelHints) ([]string, error) {
			values, _, err := q.LabelValues(ctx, name, hints, set...)
			return values, err
		})
	if err != nil {
		a.listError(w, err)
		return
	}
	writeTexts(w, values, l.limit, warnings)
}

func writeTexts(w http.ResponseWriter, texts []string, limit int, warnings []string) {
	cut := len(texts) > limit
	if cut {
		texts = texts[:limit]
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	e := encoder{w: w, buf: appendList([]byte(`{"status":"success","data":`), texts)}
	e.end(cut, warnings)
}

// end closes the envelope of a list.
func (e *encoder) end(cut bool, warnings []string) {
	if cut {
		warnings = append(warnings, warnTruncated)
	}
	if len(warnings) > 0 {
		e.buf = appendStrings(e.buf, `,"warnings":`, warnings)
	}
	e.buf = append(e.buf, '}')
	e.flush()
}

// FormatQuery serves /api/v1/format_query.
func (a *API) FormatQuery(w http.ResponseWriter, r *http.Request) {
	f, perr := readForm(w, r)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	expr, err := a.parser.ParseExpr(f.Get("query"))
	if err == nil {
		err = query.CheckNesting(expr)
	}
	if err != nil {
		WriteError(w, invalidParam("query", err))
		return
	}
	body := appendEscaped([]byte(`{"status":"success","data":`), expr.Pretty(0))
	writeJSON(w, http.StatusOK, append(body, '}'))
}

// NotFound answers unknown paths under /api/v1 (H1).
func NotFound(w http.ResponseWriter, r *http.Request) {
	WriteError(w, &Error{Type: TypeNotFound, Err: fmt.Errorf("no such endpoint: %s", r.URL.Path)})
}

const (
	warnTruncated = "results truncated due to limit"
	warnUnseen    = "some series that have ended were not looked at, there are too many: name more of what is asked for"
)

var errMethod = errors.New("method not allowed")

// MethodNotAllowed answers a method that the path does not have; the caller has set Allow.
func MethodNotAllowed(w http.ResponseWriter) {
	WriteError(w, &Error{Type: TypeBadData, Status: http.StatusMethodNotAllowed, Err: errMethod})
}
