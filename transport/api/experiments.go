package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	kithttp "github.com/go-kit/kit/transport/http"

	"tidemark/log"
	"tidemark/master"
)

// ExperimentLister answers for the table of experiments, without waiting for anything.
type ExperimentLister interface {
	List(ctx context.Context, q master.ListRequest) (*master.Page, error)
	Get(name string) (*master.Row, error)
}

// ExperimentReader reads experiments anew.
type ExperimentReader interface {
	// Returned says whether something was, or may have been, counted of an experiment that is not in the table. It waits for nothing.
	Returned(name string) bool
	// Fresh returns what is counted of everything that was acknowledged before, and writes nothing.
	Fresh(ctx context.Context, name string) (*master.Row, error)
	// Rescan stores it besides.
	Rescan(ctx context.Context, name string) (*master.Row, error)
	// Round makes a scan round.
	Round(ctx context.Context) (master.RoundResult, error)
}

// ExperimentHistory knows the last day.
type ExperimentHistory interface {
	History() []master.Totals
	Rates(name string, n int) (until int64, samples, late []float64, err error)
}

// Experiments is what the routes about experiments need.
type Experiments struct {
	Lister  ExperimentLister
	Reader  ExperimentReader
	History ExperimentHistory
	Head    func() log.Seq // of the log
}

// experimentRow is a row of the table.
type experimentRow struct {
	Name           string    `json:"name"`
	State          string    `json:"state"` // hot or retired
	Version        log.Seq   `json:"version"`
	Series         uint64    `json:"series_count"`
	Samples        uint64    `json:"sample_count"`
	Buckets        uint64    `json:"bucket_count"`
	Corrections    uint64    `json:"correction_count"`
	WorstBucket    uint64    `json:"max_corrections_per_bucket"`
	Pending        int       `json:"pending_panes"`
	OldestPending  *int64    `json:"oldest_pending_ms"`
	LastWrite      *int64    `json:"last_write_ms"`
	LastCompaction *int64    `json:"last_compaction_ms,omitempty"` // absent when there was none
	Compactions    uint64    `json:"total_compactions"`
	ClosedThrough  *int64    `json:"closed_through_ms"`
	RetiredAt      *int64    `json:"retired_at_ms,omitempty"`
	ObservedAt     *int64    `json:"observed_at_ms"`
	AsOf           log.Seq   `json:"as_of_seq"`
	Unscanned      bool      `json:"unscanned,omitempty"` // the table does not have it yet, or has it as retired: the row is of now
	Stale          bool      `json:"stale"`               // the last reading failed: the row is that of the reading before
	Error          string    `json:"error,omitempty"`     // why
	Rates          []float64 `json:"rates,omitempty"`     // samples per second in equal slots of the day up to scanned_at_ms, oldest first
}

// at is a time that may never have been.
func at(ms int64) *int64 {
	if ms == math.MinInt64 {
		return nil
	}
	return &ms
}

func experimentOf(r *master.Row) experimentRow {
	return experimentRow{
		Name: r.Name, State: r.State.String(), Version: r.Version, Series: r.Series, Samples: r.Samples, Buckets: r.Buckets,
		Corrections: r.Corrections, WorstBucket: r.WorstBucket, Pending: r.Pending, OldestPending: at(r.OldestPending),
		LastWrite: at(r.LastWrite), LastCompaction: at(r.LastCompaction), Compactions: r.Compactions, ClosedThrough: at(r.ClosedThrough),
		RetiredAt: at(r.RetiredAt), ObservedAt: at(r.ObservedAt), AsOf: r.AsOf, Stale: r.Err != "", Error: r.Err,
	}
}

type experimentPage struct {
	Experiments []experimentRow `json:"experiments"`
	Total       int             `json:"total"` // matches on all pages
	Limit       int             `json:"limit"`
	Offset      int             `json:"offset"`
	Hot         int             `json:"hot"`
	Retired     int             `json:"retired"`
	Version     uint64          `json:"version"` // of the snapshot
	AsOf        log.Seq         `json:"as_of_seq"`
	Head        log.Seq         `json:"log_head_seq"`
	ScannedAt   *int64          `json:"scanned_at_ms"` // null before the first scan
	Stale       bool            `json:"stale"`
}

// NewExperimentList returns the handler of GET /api/v1/experiments.
func NewExperimentList(x Experiments) http.Handler {
	return kithttp.NewServer(x.list, decodeList, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// NewExperiment returns the handler of GET /api/v1/experiments/{name}.
func NewExperiment(x Experiments) http.Handler {
	return kithttp.NewServer(x.detail, decodeDetail, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// NewExperimentRescan returns the handler of POST /api/v1/experiments/{name}/rescan.
func NewExperimentRescan(x Experiments) http.Handler {
	rescan := func(ctx context.Context, request any) (any, error) {
		row, err := x.Reader.Rescan(ctx, request.(detailRequest).name)
		if err != nil {
			return nil, masterError(err)
		}
		return experimentOf(row), nil
	}
	return kithttp.NewServer(rescan, decodeDetail, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// NewExperimentRates returns the handler of GET /api/v1/experiments/{name}/rates.
func NewExperimentRates(x Experiments) http.Handler {
	rates := func(_ context.Context, request any) (any, error) {
		q := request.(detailRequest)
		until, samples, late, err := x.History.Rates(q.name, q.slots)
		if err != nil {
			return nil, masterError(err)
		}
		const day = 24 * 3600 * 1000
		return map[string]any{"from_ms": until - day, "until_ms": until, "slot_ms": day / int64(q.slots), "rates": samples, "late_rates": late}, nil
	}
	return kithttp.NewServer(rates, decodeDetail, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// total is one point of the history of the whole table.
type total struct {
	Time        int64  `json:"time_ms"`
	Hot         int    `json:"hot"`
	Retired     int    `json:"retired"`
	Series      uint64 `json:"series_count"`
	Samples     uint64 `json:"sample_count"`
	Buckets     uint64 `json:"bucket_count"`
	Corrections uint64 `json:"correction_count"`
	Pending     int    `json:"pending_panes"`
	Gained      uint64 `json:"gained_samples"` // since the point before
}

// NewStatsHistory returns the handler of GET /api/v1/stats/history.
func NewStatsHistory(x Experiments) http.Handler {
	return newStatus(func(context.Context, any) (any, error) {
		points := []total{}
		for _, t := range x.History.History() {
			points = append(points, total(t))
		}
		return map[string]any{"points": points}, nil
	})
}

type roundAnswer struct {
	Scanned  int    `json:"scanned"`
	Skipped  int    `json:"skipped"`
	Observed int    `json:"observed"`
	Failed   int    `json:"failed"`
	Retired  int    `json:"retired"`
	Version  uint64 `json:"version"`
}

// NewRescan returns the handler of POST /api/v1/rescan.
func NewRescan(x Experiments) http.Handler {
	return newStatus(func(ctx context.Context, _ any) (any, error) {
		r, err := x.Reader.Round(ctx)
		if err != nil {
			return nil, masterError(err)
		}
		return roundAnswer{r.Scanned, r.Skipped, r.Observed, r.Failed, r.Retired, r.Version}, nil
	})
}

func (x Experiments) list(ctx context.Context, request any) (any, error) {
	p, err := x.Lister.List(ctx, request.(master.ListRequest))
	if err != nil {
		return nil, masterError(err)
	}
	out := experimentPage{
		Experiments: make([]experimentRow, len(p.Rows)), Total: p.Total, Limit: p.Limit, Offset: p.Offset, Hot: p.Hot, Retired: p.Gone,
		Version: p.Version, AsOf: p.AsOf, Head: x.Head(), ScannedAt: at(p.ScannedAt), Stale: p.Stale,
	}
	for i, r := range p.Rows {
		out.Experiments[i] = experimentOf(r)
		if p.Rates != nil {
			out.Experiments[i].Rates = p.Rates[i]
		}
	}
	return out, nil
}

// returnedWait bounds how long the detail of a retired experiment that has, or may have, returned waits for its numbers.
const returnedWait = 2 * time.Second

// detail answers from the table, without waiting. One that is not in the table, because it was written to, or has returned, after the last
// scan, exists from its first acknowledged sample on: it is read, as with fresh=true.
func (x Experiments) detail(ctx context.Context, request any) (any, error) {
	q := request.(detailRequest)
	listed, err := x.Lister.Get(q.name)
	if err != nil && !errors.Is(err, master.ErrUnknown) {
		return nil, masterError(err)
	}
	inTable := listed != nil && listed.State == master.Hot
	if inTable && !q.fresh {
		return experimentOf(listed), nil
	}
	if !q.fresh && !x.Reader.Returned(q.name) {
		if listed == nil {
			return nil, masterError(master.ErrUnknown)
		}
		return experimentOf(listed), nil
	}
	bound := ctx
	if listed != nil && !q.fresh {
		var cancel context.CancelFunc
		bound, cancel = context.WithTimeout(ctx, returnedWait)
		defer cancel()
	}
	row, err := x.Reader.Fresh(bound, q.name)
	if err != nil && listed != nil && !q.fresh && ctx.Err() == nil {
		row, err = listed, nil // what is recorded is all that can be said
	}
	if err != nil {
		return nil, masterError(err)
	}
	out := experimentOf(row)
	out.Unscanned = row.State == master.Hot && !inTable
	return out, nil
}

func decodeList(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	q := master.ListRequest{Search: f.Get("search"), Sort: master.Column(f.Get("sort"))}
	switch v := f.Get("state"); v {
	case "":
	case "hot":
		q.State = master.WhichHot
	case "retired":
		q.State = master.WhichRetired
	case "all":
		q.State = master.WhichAll
	default:
		return nil, invalidParam("state", errors.New("neither hot, retired nor all"))
	}
	if err := f.whole("limit", 1, master.MaxLimit, &q.Limit); err != nil {
		return nil, err
	}
	if err := f.page("offset", &q.Offset); err != nil {
		return nil, err
	}
	if err := f.whole("rates", 1, 288, &q.Rates); err != nil {
		return nil, err
	}
	return q, nil
}

// whole reads a whole number within bounds; an absent or empty one leaves what is there.
func (f *form) whole(name string, least, most int, to *int) *Error {
	v := f.Get(name)
	if v == "" {
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return invalidParam(name, errors.New("not a whole number"))
	}
	if n < int64(least) || n > int64(most) {
		return invalidParam(name, fmt.Errorf("not between %d and %d", least, most))
	}
	*to = int(n)
	return nil
}

// page reads a number of rows that are passed over.
func (f *form) page(name string, to *int) *Error { return f.whole(name, 0, math.MaxInt, to) }

type detailRequest struct {
	name  string
	fresh bool
	slots int
}

func decodeDetail(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	q := detailRequest{name: r.PathValue("name"), slots: 48}
	switch v := f.Get("fresh"); v {
	case "", "false", "0":
	case "true", "1":
		q.fresh = true
	default:
		return nil, invalidParam("fresh", errors.New("neither true nor false"))
	}
	if err := f.whole("slots", 1, 288, &q.slots); err != nil {
		return nil, err
	}
	return q, nil
}

// masterError says what a client is told of an error of the master.
func masterError(err error) error {
	var bad *master.BadRequest
	switch {
	case errors.Is(err, master.ErrUnknown), errors.Is(err, master.ErrUnknownTask):
		return &Error{Type: TypeNotFound, Err: err}
	case errors.As(err, &bad):
		return &Error{Type: TypeBadData, Err: err}
	}
	return err
}
