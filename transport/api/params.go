package api

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const formType = "application/x-www-form-urlencoded"

const (
	// MaxFormBytes bounds the body of a form: queries of several hundred KiB are real.
	MaxFormBytes = 4 << 20
	// MaxPoints bounds the steps of a range query, not counting the first.
	MaxPoints = 11_000
)

// minTime and maxTime are the times that Prometheus' clients send for "all there is".
func minTime() time.Time { return time.Unix(math.MinInt64/1000+62135596801, 0).UTC() }
func maxTime() time.Time { return time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC() }

// form is what a request asks, from its URL and its body. Body is kept as it came, for an upstream.
type form struct {
	url.Values
	body []byte
}

// readForm reads URL and form body as net/http does (the body's values come first), but bounded and with its errors told.
func readForm(w http.ResponseWriter, r *http.Request) (*form, *Error) {
	f := &form{Values: url.Values{}}
	if r.Method == http.MethodPost && r.Body != nil {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxFormBytes))
		if err != nil {
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				e := badData("request body larger than %d bytes", MaxFormBytes)
				e.Status = http.StatusRequestEntityTooLarge
				return nil, e
			}
			return nil, badData("error reading the request body: %w", err)
		}
		f.body = body
		mt, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if mt == formType {
			if f.Values, err = url.ParseQuery(string(body)); err != nil {
				return nil, badData("error parsing form values: %w", err)
			}
		}
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badData("error parsing form values: %w", err)
	}
	for k, v := range q {
		f.Values[k] = append(f.Values[k], v...)
	}
	return f, nil
}

// readExactly is readForm for a request whose parameters narrow what it does for good: one that is not among names may be a misspelt one,
// and a body that is not a form may hold some, so both are refused.
func readExactly(w http.ResponseWriter, r *http.Request, names ...string) (*form, *Error) {
	f, perr := readForm(w, r)
	if perr != nil {
		return nil, perr
	}
	if mt, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); len(f.body) > 0 && mt != formType {
		return nil, badData("the body is of type %q, want %s", shorten(r.Header.Get("Content-Type")), formType)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Values)) {
		if !slices.Contains(names, name) {
			return nil, badData("unknown parameter %q: there are %s", shorten(name), strings.Join(names, ", "))
		}
	}
	return f, nil
}

// time returns the named time, or def if it is absent or empty.
func (f *form) time(name string, def time.Time) (time.Time, *Error) {
	v := f.Get(name)
	if v == "" {
		return def, nil
	}
	t, err := parseTime(v)
	if err != nil {
		return time.Time{}, invalidParam(name, fmt.Errorf("invalid time value for '%s': %w", name, err))
	}
	return t, nil
}

var (
	errEndBeforeStart = errors.New("end timestamp must not be before start time")
	errStepNotAbove0  = errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer")
	errStepTooFine    = errors.New("query resolution step widths below 1ms are not accepted")
	errTooManyPoints  = errors.New("exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)")
	errNegativeLimit  = errors.New("limit must be non-negative")
	errEmptyMatcher   = errors.New("match[] must contain at least one non-empty matcher")
)

// limit returns the parameter limit; 0 means none.
func (f *form) limit() (int, *Error) {
	v := f.Get("limit")
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, invalidParam("limit", err)
	}
	if n < 0 {
		return 0, invalidParam("limit", errNegativeLimit)
	}
	return n, nil
}

// timeout returns the parameter timeout, bounded by limit, or def if it is absent.
func (f *form) timeout(def, limit time.Duration) (time.Duration, *Error) {
	v := f.Get("timeout")
	if v == "" {
		return min(def, limit), nil
	}
	d, err := parseDuration(v)
	if err != nil {
		return 0, invalidParam("timeout", err)
	}
	if d <= 0 {
		return 0, invalidParam("timeout", fmt.Errorf("timeout must be positive, got %s", d))
	}
	return min(d, limit), nil
}

// lookback returns the parameter lookback_delta; 0 means the engine's own.
func (f *form) lookback() (time.Duration, *Error) {
	v := f.Get("lookback_delta")
	if v == "" {
		return 0, nil
	}
	d, err := parseDuration(v)
	if err != nil {
		return 0, badData("error parsing lookback delta duration: %w", err)
	}
	return max(d, 0), nil
}

// matcherSets parses every match[].
func (f *form) matcherSets(p parser.Parser) ([][]*labels.Matcher, error) {
	sets, err := p.ParseMetricSelectors(f.Values["match[]"])
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		if !selective(set) {
			return nil, errEmptyMatcher
		}
	}
	return sets, nil
}

// selective reports whether a matcher of the set refuses the absent label; without one a selector would mean everything.
func selective(set []*labels.Matcher) bool {
	for _, m := range set {
		if m != nil && !m.Matches("") {
			return true
		}
	}
	return false
}

// rangeOf reads start, end and step, and bounds the number of points before anything is evaluated.
func (f *form) rangeOf() (start, end time.Time, step time.Duration, _ *Error) {
	fail := func(name string, err error) (time.Time, time.Time, time.Duration, *Error) {
		return time.Time{}, time.Time{}, 0, invalidParam(name, err)
	}
	start, err := parseTime(f.Get("start"))
	if err != nil {
		return fail("start", err)
	}
	if end, err = parseTime(f.Get("end")); err != nil {
		return fail("end", err)
	}
	if end.Before(start) {
		return fail("end", errEndBeforeStart)
	}
	if step, err = parseDuration(f.Get("step")); err != nil {
		return fail("step", err)
	}
	switch {
	case step <= 0:
		return fail("step", errStepNotAbove0)
	case end.Sub(start)/step > MaxPoints:
		return time.Time{}, time.Time{}, 0, &Error{Type: TypeBadData, Err: errTooManyPoints}
	case step < time.Millisecond:
		// Evaluation times are whole milliseconds: a finer step would repeat one for ever.
		return fail("step", errStepTooFine)
	}
	return start, end, step, nil
}

// maxSeconds bounds times given as a number: above it milliseconds would not fit into 64 bits.
const maxSeconds = math.MaxInt64 / 1000

// parseTime reads seconds since the epoch, with a fraction that is rounded to milliseconds, or RFC 3339.
func parseTime(s string) (time.Time, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if math.IsNaN(f) || math.Abs(f) >= maxSeconds {
			return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp", s)
		}
		whole, frac := math.Modf(f)
		return time.Unix(int64(whole), int64(math.Round(frac*1000))*int64(time.Millisecond)).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	// The standard library cannot parse the years of these two.
	for _, t := range []time.Time{minTime(), maxTime()} {
		if s == t.Format(time.RFC3339Nano) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp", s)
}

// parseDuration reads seconds, with a fraction, or a duration as PromQL writes it.
func parseDuration(s string) (time.Duration, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		ns := f * float64(time.Second)
		if math.IsNaN(ns) || ns >= math.MaxInt64 || ns < math.MinInt64 {
			return 0, fmt.Errorf("cannot parse %q to a valid duration. It overflows int64", s)
		}
		return time.Duration(ns), nil
	}
	d, err := model.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %q to a valid duration", s)
	}
	return time.Duration(d), nil
}

// The values of the parameter consistency.
const (
	consistencyPublished = "published" // published buckets only, without waiting for the log's head
	consistencyLive      = "live"      // open panes too
)

// consistency reads the parameter of that name: whether the answer is to come from what is published alone, without waiting for the
// head of the log, or from open panes too. Absent, it is as configured.
func (f *form) consistency() (published, live bool, _ *Error) {
	switch v := f.Get("consistency"); v {
	case "", consistencyLive, consistencyPublished:
		return v == consistencyPublished, v == consistencyLive, nil
	default:
		return false, false, invalidParam("consistency", fmt.Errorf("%q is neither published nor live", shorten(v)))
	}
}
