package master

import (
	"context"
	"strings"
)

// MaxLimit bounds the rows of one page, and DefaultLimit is what a page has where nothing is said.
const (
	MaxLimit     = 200
	DefaultLimit = 50
	// maxSearch bounds the text that is searched for, in bytes.
	maxSearch = 4096
)

// Which says which experiments a list has.
type Which uint8

// What a list may have.
const (
	WhichHot     Which = 1
	WhichRetired Which = 2
	WhichAll     Which = WhichHot | WhichRetired
)

// ListRequest asks for one page.
type ListRequest struct {
	Search string // part of the name, as it is written; "" for all
	State  Which  // 0: hot, or all where something is searched
	Sort   Column // "" and "name": by name; others with "-" before them greatest first, and only for hot ones
	Limit  int    // rows, from 1 to MaxLimit; 0: DefaultLimit
	Offset int
	Rates  int // slots of the last day for which each hot row's sample rate is given, up to 288; 0: none
}

// Page is one page of experiments, all as of one snapshot.
type Page struct {
	Header
	Rows   []*Row
	Rates  [][]float64 // parallel to Rows, samples per second; nil where none were asked for
	Total  int         // matches on all pages
	Hot    int         // in the table
	Gone   int         // retired
	Limit  int
	Offset int
	Stale  bool
}

// List returns one page. It reads the snapshot, and for each retired row on the page its record: it waits for no scan, no lock that
// is held over storage, and writes nothing (M6, M7).
func (m *Master) List(ctx context.Context, q ListRequest) (*Page, error) {
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	switch {
	case q.Limit < 1 || q.Limit > MaxLimit:
		return nil, &BadRequest{"limit", "not between 1 and 200"}
	case q.Offset < 0:
		return nil, &BadRequest{"offset", "negative"}
	case len(q.Search) > maxSearch:
		return nil, &BadRequest{"search", "longer than 4096 bytes"}
	case q.Rates < 0 || q.Rates > maxRates:
		return nil, &BadRequest{"rates", "not between 0 and 288"}
	}
	if q.State == 0 {
		q.State = WhichHot
		if q.Search != "" {
			q.State = WhichAll
		}
	}
	s := m.snap.Load()
	p := &Page{Header: s.Header, Limit: q.Limit, Offset: q.Offset, Stale: m.stale(s)}
	p.Hot, p.Gone = s.Counts()
	if q.State == WhichHot {
		rows, err := s.by(q.Sort)
		if err != nil {
			return nil, err
		}
		p.Rows, p.Total = s.pageOf(rows, q)
		m.addRates(p, q)
		return p, nil
	}
	if q.Sort != "" && q.Sort != "name" {
		return nil, &BadRequest{"sort", "retired experiments are listed by name; ask for state=hot"}
	}
	names := s.matches(q)
	p.Total = len(names)
	for _, name := range window(names, q) {
		row := s.row(name)
		if row == nil {
			rec, ok, err := m.fold.record(name)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue // the experiment label has changed since the snapshot
			}
			row = rec.retired(name)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p.Rows = append(p.Rows, row)
	}
	m.addRates(p, q)
	return p, nil
}

// addRates gives each hot row its sample rates.
func (m *Master) addRates(p *Page, q ListRequest) {
	if q.Rates == 0 {
		return
	}
	p.Rates = make([][]float64, len(p.Rows))
	for i, r := range p.Rows {
		p.Rates[i], _ = m.history.rates(r.ID, p.ScannedAt, q.Rates)
	}
}

// pageOf returns the rows of the page out of the hot ones in the wanted order, and how many match.
func (s *Snapshot) pageOf(rows []*Row, q ListRequest) ([]*Row, int) {
	if q.Search == "" {
		return window(rows, q), len(rows)
	}
	if q.Sort == "" || q.Sort == "name" {
		var found []*Row
		s.index().search(q.Search, func(name string) {
			if r := s.row(name); r != nil {
				found = append(found, r)
			}
		})
		return window(found, q), len(found)
	}
	var out []*Row
	total := 0
	for _, r := range rows {
		if !strings.Contains(r.Name, q.Search) {
			continue
		}
		if total >= q.Offset && len(out) < q.Limit {
			out = append(out, r)
		}
		total++
	}
	return out, total
}

// window cuts a page out of a list.
func window[T any](all []T, q ListRequest) []T {
	if q.Offset >= len(all) {
		return nil
	}
	return all[q.Offset:min(len(all), q.Offset+q.Limit)]
}

// matches returns the names that match, hot and retired in one order.
func (s *Snapshot) matches(q ListRequest) []string {
	if q.State == WhichRetired && q.Search == "" {
		return s.retired
	}
	var out []string
	s.index().search(q.Search, func(name string) {
		if q.State == WhichAll || q.State == WhichRetired && s.row(name) == nil {
			out = append(out, name)
		}
	})
	return out
}

// stale says that a snapshot is older than two intervals, or that what it was made from is behind the log.
func (m *Master) stale(s *Snapshot) bool {
	if s.Round == 0 || m.opts.Lagging() {
		return true
	}
	d := m.settings().ScanInterval
	return d > 0 && m.opts.Now().UnixMilli()-s.ScannedAt > 2*d.Milliseconds()
}

// Get returns the row of an experiment, or what is recorded of one that is retired; ErrUnknown if it was never seen.
func (m *Master) Get(name string) (*Row, error) {
	if row := m.snap.Load().row(name); row != nil {
		return row, nil
	}
	return m.retiredRow(name)
}

// Fresh returns the same from what is counted now. It writes nothing.
func (m *Master) Fresh(ctx context.Context, name string) (*Row, error) {
	row, err := m.observe(ctx, name)
	if err != nil || row != nil {
		return row, err
	}
	return m.retiredRow(name)
}

func (m *Master) retiredRow(name string) (*Row, error) {
	rec, ok, err := m.fold.record(name)
	switch {
	case err != nil:
		return nil, err
	case !ok || rec.retiredSeq == 0:
		return nil, ErrUnknown
	}
	return rec.retired(name), nil
}

// History returns the totals of the last day's rounds, oldest first.
func (m *Master) History() []Totals { return m.history.totals() }

// Rates returns the sample rates of one hot experiment in n equal slots of the day up to its snapshot, in samples per second, and
// those of its late samples, which are lower bounds; ErrUnknown if it is not in the table.
func (m *Master) Rates(name string, n int) (until int64, samples, late []float64, err error) {
	if n < 1 || n > maxRates {
		return 0, nil, nil, &BadRequest{"rates", "not between 1 and 288"}
	}
	s := m.snap.Load()
	row := s.row(name)
	if row == nil {
		return 0, nil, nil, ErrUnknown
	}
	samples, late = m.history.rates(row.ID, s.ScannedAt, n)
	return s.ScannedAt, samples, late, nil
}
