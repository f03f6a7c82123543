package master

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// historySpan is how far back the history reaches.
	historySpan = 24 * time.Hour
	// maxPoints bounds its points: rounds that come faster than every 15 s lose the oldest.
	maxPoints = 5760
	// maxRates bounds the slots into which rates are divided for one answer.
	maxRates = 288
)

// point is what one round adds to the history: the totals of its snapshot, and the samples that rows gained since the last one.
type point struct {
	Totals
	gains []gain // by row
}

// Totals are the sums over the hot experiments of one snapshot.
type Totals struct {
	Time                     int64 // wall time, ms
	Hot, Retired             int
	Series, Samples, Buckets uint64
	Corrections              uint64
	Pending                  int
	Gained                   uint64 // samples since the point before
}

type gain struct {
	id      uint32
	samples uint64
	late    uint64 // corrections; at least, because a compaction between two rounds forgets those before it
}

const pointVersion = 1

// encode returns the point, version 1: version:u, time:v, eight totals:u, rows: count:u, then each by number: gap:u, samples:u, late:u.
func (p *point) encode() []byte {
	e := encoder{}
	e.u(pointVersion)
	e.v(p.Time)
	e.u(uint64(p.Hot), uint64(p.Retired), p.Series, p.Samples, p.Buckets, p.Corrections, uint64(p.Pending), p.Gained, uint64(len(p.gains)))
	prev := uint32(0)
	for _, g := range p.gains {
		e.u(uint64(g.id-prev), g.samples, g.late)
		prev = g.id
	}
	return e.b
}

func decodePoint(b []byte) (*point, error) {
	d := decoder{b: b}
	d.version(pointVersion)
	p := &point{Totals: Totals{Time: d.v(), Hot: int(d.u()), Retired: int(d.u())}}
	p.Series, p.Samples, p.Buckets, p.Corrections, p.Pending, p.Gained = d.u(), d.u(), d.u(), d.u(), int(d.u()), d.u()
	id := uint64(0)
	for range d.count(3) {
		gap := d.u()
		if id += gap; gap == 0 || id > 1<<32-1 {
			d.fail("numbers out of order")
			break
		}
		p.gains = append(p.gains, gain{uint32(id), d.u(), d.u()})
	}
	return p, d.end()
}

// totals sums a snapshot up.
func (w *work) totals(s *Snapshot) *point {
	p := &point{Totals: Totals{Time: w.now, Hot: len(s.rows), Retired: len(s.retired)}, gains: w.gains}
	for _, r := range s.rows {
		p.Series, p.Samples, p.Buckets, p.Corrections, p.Pending = p.Series+r.Series, p.Samples+r.Samples, p.Buckets+r.Buckets, p.Corrections+r.Corrections, p.Pending+r.Pending
	}
	slices.SortFunc(p.gains, func(a, b gain) int { return cmp.Compare(a.id, b.id) })
	for _, g := range p.gains {
		p.Gained += g.samples
	}
	return p
}

// history holds the points of the last day. Rows that gained nothing take nothing.
type history struct {
	mu     sync.RWMutex
	points []*point // by time
	byRow  map[uint32][]gained
}

// gained is what one row gained at one point.
type gained struct {
	time          int64
	samples, late uint64
}

// add appends a point and forgets those that are too old. A point whose time is not behind the last one's is put there all the same:
// the clock may have been set back.
func (h *history) add(p *point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byRow == nil {
		h.byRow = make(map[uint32][]gained)
	}
	h.points = append(h.points, p)
	for _, g := range p.gains {
		h.byRow[g.id] = append(h.byRow[g.id], gained{p.Time, g.samples, g.late})
	}
	for len(h.points) > 0 && (len(h.points) > maxPoints || h.points[0].Time < p.Time-historySpan.Milliseconds()) {
		h.drop(h.points[0])
		h.points = append([]*point(nil), h.points[1:]...)
	}
}

func (h *history) drop(p *point) {
	for _, g := range p.gains {
		if at := h.byRow[g.id]; len(at) > 1 {
			h.byRow[g.id] = at[1:]
		} else {
			delete(h.byRow, g.id)
		}
	}
}

// totals returns the points' totals, oldest first.
func (h *history) totals() []Totals {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]Totals, len(h.points))
	for i, p := range h.points {
		out[i] = p.Totals
	}
	return out
}

// rates returns the samples per second of one row in n equal slots of the day up to a time, and the late ones among them. What was
// gained at a point is spread over the time since the point before it.
func (h *history) rates(id uint32, until int64, n int) (samples, late []float64) {
	samples, late = make([]float64, n), make([]float64, n)
	slot := float64(historySpan.Milliseconds()) / float64(n)
	from := float64(until - historySpan.Milliseconds())
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, g := range h.byRow[id] {
		begin, end := float64(h.before(g.time))-from, float64(g.time)-from
		if end <= begin {
			begin = end - 1
		}
		perSecond := 1000 / (end - begin)
		for i := max(0, int(begin/slot)); i < n && float64(i)*slot < end; i++ {
			covered := min(end, float64(i+1)*slot) - max(begin, float64(i)*slot)
			if covered > 0 {
				samples[i] += float64(g.samples) * perSecond * covered / slot
				late[i] += float64(g.late) * perSecond * covered / slot
			}
		}
	}
	return samples, late
}

// before returns the time of the point before the one at a time.
func (h *history) before(time int64) int64 {
	i, _ := slices.BinarySearchFunc(h.points, time, func(p *point, t int64) int { return cmp.Compare(p.Time, t) })
	if i == 0 {
		return time - 1
	}
	return h.points[i-1].Time
}

// loadHistory reads the points that are stored.
func (m *Master) loadHistory() error {
	return m.rows.Each([]byte{keyPoint}, nil, func(_, v []byte) (bool, error) {
		p, err := decodePoint(v)
		if err == nil {
			m.history.add(p)
		}
		return true, err
	})
}
