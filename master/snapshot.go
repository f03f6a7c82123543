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
	sorted map[Column]*order // those that somebody has asked for, made once, here or from those of the snapshot before
}

// order is the rows in the order of a column.
type order struct {
	rows  []*Row
	asked bool // of this snapshot
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
// makes it, for all; the next snapshot comes with those that were asked for (inherit).
func (s *Snapshot) by(c Column) ([]*Row, error) {
	if c == "" || c == "name" {
		return s.rows, nil
	}
	compare := c.total()
	if compare == nil {
		return nil, &BadRequest{Field: "sort", Reason: fmt.Sprintf("%q is no column", shorten(strings.TrimPrefix(string(c), "-")))}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.sorted[c]; ok {
		o.asked = true
		return o.rows, nil
	}
	rows := slices.Clone(s.rows)
	slices.SortFunc(rows, compare)
	s.keep(c, &order{rows: rows, asked: true})
	return rows, nil
}

func (s *Snapshot) keep(c Column, o *order) {
	if s.sorted == nil {
		s.sorted = make(map[Column]*order)
	}
	if len(s.sorted) < orders {
		s.sorted[c] = o
	}
}

// total orders rows by a column, greatest first with "-" before it, and ties by name; nil if there is no such column.
func (c Column) total() func(a, b *Row) int {
	name, descending := strings.CutPrefix(string(c), "-")
	compare := Column(name).compare()
	if compare == nil {
		return nil
	}
	return func(a, b *Row) int {
		d := compare(a, b)
		if descending {
			d = -d
		}
		return cmp.Or(d, cmp.Compare(a.Name, b.Name))
	}
}

// inherit makes the orders that were asked for of the snapshot before, by putting the rows that have changed in their places, so that
// nobody who lists sorts all rows after each scan. gone and come are the difference of the two. s is nobody else's yet.
func (s *Snapshot) inherit(prev *Snapshot, gone map[*Row]struct{}, come []*Row) {
	prev.mu.Lock()
	asked := make(map[Column][]*Row)
	for c, o := range prev.sorted {
		if o.asked {
			asked[c] = o.rows
		}
	}
	prev.mu.Unlock()
	for c, old := range asked {
		compare := c.total()
		fresh := slices.SortedFunc(slices.Values(come), compare)
		rows := make([]*Row, 0, len(s.rows))
		for _, r := range old {
			if _, ok := gone[r]; ok {
				continue
			}
			for len(fresh) > 0 && compare(fresh[0], r) < 0 {
				rows, fresh = append(rows, fresh[0]), fresh[1:]
			}
			rows = append(rows, r)
		}
		s.keep(c, &order{rows: append(rows, fresh...)})
	}
}

// difference returns which rows of one list are not in another and the other way round. Both are by name, and rows are never changed.
func difference(from, to []*Row) (gone map[*Row]struct{}, come []*Row) {
	gone = make(map[*Row]struct{})
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && from[0].Name < to[0].Name:
			gone[from[0]] = struct{}{}
			from = from[1:]
		case len(from) == 0 || from[0].Name > to[0].Name:
			come = append(come, to[0])
			to = to[1:]
		default:
			if from[0] != to[0] {
				gone[from[0]] = struct{}{}
				come = append(come, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return gone, come
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
	m.table = make(map[string]*Row, len(s.rows))
	for _, r := range s.rows {
		m.table[r.Name] = r
	}
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
	prev := m.snap.Load()
	if sameNames(prev, next) {
		next.names = prev.names
	} else {
		next.names = new(nameIndex)
	}
	left, come := difference(prev.rows, next.rows)
	next.inherit(prev, left, come)
	if p != nil {
		m.history.add(p)
	}
	for r := range left {
		delete(m.table, r.Name)
	}
	for _, r := range come {
		m.table[r.Name] = r
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
