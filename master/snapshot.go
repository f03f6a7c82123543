package master

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// Snapshot is the table of experiments as of one round. It is never changed (M4).
type Snapshot struct {
	Header
	rows    []*Row   // hot, by name
	retired []string // by name
	names   *nameIndex

	mu     sync.Mutex
	sorted map[Column][]*Row // orders that somebody has asked for, made once
}

// Header describes a snapshot.
type Header struct {
	Version   uint64  // number of the commit; 0 before the first
	Round     uint64  // number of the scan round
	AsOf      log.Seq // least sequence that every row reflects
	ScannedAt int64   // wall time, ms; math.MinInt64 before the first
	Epoch     uint64  // of the experiment label
	NextID    uint32  // of a row, in the history
}

const headerVersion = 1

// encode returns the header, version 1: version:u, round:u, as of:u, scanned at:v, epoch:u, next number:u.
func (h *Header) encode() []byte {
	e := encoder{}
	e.u(headerVersion, h.Round, uint64(h.AsOf))
	e.v(h.ScannedAt)
	e.u(h.Epoch, uint64(h.NextID))
	return e.b
}

func decodeHeader(version uint64, b []byte) (Header, error) {
	d := decoder{b: b}
	d.version(headerVersion)
	h := Header{Version: version, Round: d.u(), AsOf: log.Seq(d.u()), ScannedAt: d.v(), Epoch: d.u(), NextID: uint32(d.u())}
	return h, d.end()
}

// row returns the row of a hot experiment; nil if it is none.
func (s *Snapshot) row(name string) *Row {
	i, ok := slices.BinarySearchFunc(s.rows, name, func(r *Row, n string) int { return cmp.Compare(r.Name, n) })
	if !ok {
		return nil
	}
	return s.rows[i]
}

// isRetired says whether an experiment is in the retired set.
func (s *Snapshot) isRetired(name string) bool {
	_, ok := slices.BinarySearch(s.retired, name)
	return ok
}

// Counts returns the number of hot and of retired experiments.
func (s *Snapshot) Counts() (hot, retired int) { return len(s.rows), len(s.retired) }

// Column is what a list can be sorted by.
type Column string

// compare orders rows by a column; nil if there is no such column.
func (c Column) compare() func(a, b *Row) int {
	by := func(f func(*Row) int64) func(a, b *Row) int {
		return func(a, b *Row) int { return cmp.Compare(f(a), f(b)) }
	}
	switch c {
	case "name":
		return func(a, b *Row) int { return cmp.Compare(a.Name, b.Name) }
	case "version":
		return by(func(r *Row) int64 { return int64(r.Version) })
	case "series_count":
		return by(func(r *Row) int64 { return int64(r.Series) })
	case "sample_count":
		return by(func(r *Row) int64 { return int64(r.Samples) })
	case "bucket_count":
		return by(func(r *Row) int64 { return int64(r.Buckets) })
	case "correction_count":
		return by(func(r *Row) int64 { return int64(r.Corrections) })
	case "max_corrections_per_bucket":
		return by(func(r *Row) int64 { return int64(r.WorstBucket) })
	case "pending_panes":
		return by(func(r *Row) int64 { return int64(r.Pending) })
	case "oldest_pending_ms":
		return by(func(r *Row) int64 { return r.OldestPending })
	case "last_write_ms":
		return by(func(r *Row) int64 { return r.LastWrite })
	case "last_compaction_ms":
		return by(func(r *Row) int64 { return r.LastCompaction })
	case "total_compactions":
		return by(func(r *Row) int64 { return int64(r.Compactions) })
	case "closed_through_ms":
		return by(func(r *Row) int64 { return r.ClosedThrough })
	}
	return nil
}

// orders bounds the orders that a snapshot keeps: one for each column and direction.
const orders = 32

// by returns the rows in the order of a column ("-" before it: greatest first), ties by name. Whoever asks first for an order
// makes it, for all.
func (s *Snapshot) by(c Column) ([]*Row, error) {
	if c == "" || c == "name" {
		return s.rows, nil
	}
	name, descending := strings.CutPrefix(string(c), "-")
	compare := Column(name).compare()
	if compare == nil {
		return nil, &BadRequest{Field: "sort", Reason: fmt.Sprintf("%q is no column", shorten(name))}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rows, ok := s.sorted[c]; ok {
		return rows, nil
	}
	rows := slices.Clone(s.rows)
	// Stable over rows that are in name order already, so that ties stay so.
	slices.SortStableFunc(rows, func(a, b *Row) int {
		if descending {
			a, b = b, a
		}
		return compare(a, b)
	})
	if s.sorted == nil {
		s.sorted = make(map[Column][]*Row)
	}
	if len(s.sorted) < orders {
		s.sorted[c] = rows
	}
	return rows, nil
}

// load reads the newest snapshot out of its rows, and what the fold says of the retired ones.
func (m *Master) load() error {
	s := &Snapshot{Header: Header{ScannedAt: never}}
	oldest := uint64(0)
	if err := m.rows.Each([]byte{keyHeader}, nil, func(k, v []byte) (bool, error) {
		version := uint64(0)
		for _, c := range k[1:] {
			version = version<<8 | uint64(c)
		}
		h, err := decodeHeader(version, v)
		if s.Header = h; oldest == 0 {
			oldest = version
		}
		return true, err
	}); err != nil {
		return err
	}
	var last *Row
	add := func() {
		if last != nil && last.State == Hot {
			s.rows = append(s.rows, last)
		}
	}
	if err := m.rows.Each([]byte{keyRow}, nil, func(k, v []byte) (bool, error) {
		name, _, err := parseRowKey(k)
		if err != nil {
			return false, err
		}
		if last != nil && last.Name != name {
			add()
		}
		last = &Row{Name: name}
		if len(v) > 0 {
			last, err = decodeRow(name, v)
		}
		return true, err
	}); err != nil {
		return err
	}
	add()
	epoch, names := m.fold.retiredNames()
	if epoch != s.Epoch {
		s.rows = nil // names of another label; the next round takes them out of the store
	}
	for _, name := range names {
		if s.row(name) == nil {
			s.retired = append(s.retired, name)
		}
	}
	slices.Sort(s.retired)
	s.names = new(nameIndex)
	if err := m.loadHistory(); err != nil {
		return err
	}
	m.upkeep.found(oldest, s.Version)
	m.snap.Store(s)
	return nil
}

// commit writes what a round changes, in one batch (M1), and swaps the snapshot after it (M4). changed are rows, gone are names.
func (m *Master) commit(next *Snapshot, changed []*Row, gone []string, p *point) error {
	b := &bucket.RowBatch{}
	b.Put(numberKey(keyHeader, next.Version), next.Header.encode())
	for _, r := range changed {
		b.Put(rowKey(r.Name, next.Version), r.encode())
	}
	for _, name := range gone {
		b.Put(rowKey(name, next.Version), []byte{})
	}
	if p != nil {
		b.Put(numberKey(keyPoint, next.Version), p.encode())
	}
	if err := m.rows.Commit(b); err != nil {
		return err
	}
	m.upkeep.committed(next.Version)
	if prev := m.snap.Load(); sameNames(prev, next) {
		next.names = prev.names
	} else {
		next.names = new(nameIndex)
	}
	if p != nil {
		m.history.add(p)
	}
	m.snap.Store(next)
	return nil
}

// BadRequest says what a caller got wrong.
type BadRequest struct {
	Field, Reason string
}

func (e *BadRequest) Error() string {
	return fmt.Sprintf("invalid parameter %q: %s", e.Field, e.Reason)
}

// shorten bounds what an error repeats of its cause.
func shorten(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
