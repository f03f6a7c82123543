package pane

import (
	"math"
	"slices"

	"tidemark/log"
)

// staleBits is the bit pattern of the stale marker, which is used for nothing else.
const staleBits = 0x7ff0000000000002

func isStale(v float64) bool { return math.Float64bits(v) == staleBits }

// run is the raw samples of a series, strictly increasing in time. Stale markers are samples here.
//
// Reads of open buckets take its slices as they are (P11). So what stands in them is never changed: samples are appended behind them,
// dropped by reslicing, and put in between in a copy.
type run struct {
	old    sealed // those before the following
	t      []int64
	v      []float64
	shared bool // somebody may read the slices
}

// find returns the position of the first sample at or after t, and whether it is at t.
func (r *run) find(t int64) (int, bool) {
	if r.old.n > 0 && t <= r.old.tail.t {
		r.open()
	}
	n := len(r.t)
	if n == 0 || r.t[n-1] < t {
		return n, false
	}
	if r.t[n-1] == t {
		return n - 1, true
	}
	return slices.BinarySearch(r.t, t)
}

// insert puts a sample at position i, as find returned it.
func (r *run) insert(i int, t int64, v float64) {
	if i == len(r.t) { // as nearly always
		r.t, r.v = append(r.t, t), append(r.v, v)
		return
	}
	if r.shared {
		r.t, r.v, r.shared = slices.Clone(r.t), slices.Clone(r.v), false
	}
	r.t = slices.Insert(r.t, i, t)
	r.v = slices.Insert(r.v, i, v)
}

// dropThrough forgets the samples at or before t.
func (r *run) dropThrough(t int64) {
	if r.old.dropThrough(t); r.old.n > 0 {
		return
	}
	if len(r.t) == 0 || r.t[0] > t {
		return
	}
	i, ok := slices.BinarySearch(r.t, t)
	if ok {
		i++
	}
	if i == len(r.t) {
		r.t, r.v = nil, nil
		return
	}
	r.t, r.v = r.t[i:], r.v[i:]
}

// between returns the samples in (s, e]; they alias the run.
func (r *run) between(s, e int64) ([]int64, []float64) {
	if r.old.n > 0 && s < r.old.tail.t {
		r.open()
	}
	i, ok := slices.BinarySearch(r.t, s)
	if ok {
		i++
	}
	j := len(r.t)
	if j > 0 && r.t[j-1] > e {
		if j, ok = slices.BinarySearch(r.t, e); ok {
			j++
		}
	}
	return r.t[i:j], r.v[i:j]
}

// openBucket is a bucket that still takes samples.
type openBucket struct {
	end         int64 // ms, inclusive
	first, last int64 // log time of the first and the last applied sample, ms
}

// member is a series within one stream.
type member struct {
	stream *stream
	maxF   int64        // largest filing time applied
	c      int64        // closure watermark: everything with E ≤ c is closed
	open   []openBucket // by increasing end
	// Buckets with E ≤ tailFloor take no correction any more: their raw samples were given up when the tail ended.
	tailFloor int64
	first     int64 // the first end of a bucket that was opened, corrected or marked since the series came into memory; noEnd if none was
	armed     bool  // the shard's timer heap has an entry
}

// openAt returns the position of the open bucket that ends at e, or where it would stand.
func (m *member) openAt(e int64) (int, bool) {
	n := len(m.open)
	if n == 0 || m.open[n-1].end < e {
		return n, false
	}
	if m.open[n-1].end == e {
		return n - 1, true
	}
	return slices.BinarySearchFunc(m.open, e, func(b openBucket, e int64) int {
		switch {
		case b.end < e:
			return -1
		case b.end > e:
			return 1
		}
		return 0
	})
}

// seriesState is what the fold keeps of one series.
type seriesState struct {
	ref         log.SeriesRef
	experiment  string      // value of the experiment label, or Unlabelled
	counted     *experiment // what is counted of it; looked up when it is first needed
	raw         run
	histograms  *histogramTimes // nil if there are none, as nearly always
	lastApplied int64           // log time of the last applied sample, ms
	lastNamed   int64           // log time of the last event that named the series, ms
	members     []member
	gen         uint16 // of the place that the series stands in: timers of the one before it do not mean it
}

// histogramTimes are the times of a series' native-histogram samples within its run's reach, increasing.
type histogramTimes struct{ t []int64 }

// times may be called on nil.
func (h *histogramTimes) times() []int64 {
	if h == nil {
		return nil
	}
	return h.t
}

func newHistogramTimes(ts []int64) *histogramTimes {
	if len(ts) == 0 {
		return nil
	}
	return &histogramTimes{ts}
}

// prune gives up the raw samples that no member can read any more, as of log time now. A tail ends here, and what it covered
// takes no correction from then on, however the series goes on.
func (s *seriesState) prune(now, horizon int64) {
	keep := int64(math.MaxInt64)
	for i := range s.members {
		m := &s.members[i]
		if len(m.open) > 0 {
			keep = min(keep, m.stream.before(m.open[0].end))
		}
		if m.c == math.MinInt64 {
			continue
		}
		if s.lastApplied != math.MinInt64 && satSub(now, s.lastApplied) > m.stream.width+horizon {
			m.tailFloor = max(m.tailFloor, m.c)
		}
		// The first bucket that may still be corrected begins at the bucket end at or before this.
		keep = min(keep, satSub(m.stream.floorEnd(max(satSub(m.c, horizon), m.tailFloor)), m.stream.edge))
	}
	if s.over(now, horizon) {
		keep = math.MaxInt64 // of an evicted series nothing is left
	}
	s.raw.dropThrough(keep)
	if ts := s.histograms.times(); len(ts) > 0 && ts[0] <= keep {
		i, ok := slices.BinarySearch(ts, keep)
		if ok {
			i++
		}
		s.histograms = newHistogramTimes(slices.Delete(ts, 0, i))
	}
}

// histogramIn says whether a native-histogram sample fell into the bucket ending at e.
func (s *seriesState) histogramIn(st *stream, e int64) bool {
	ts := s.histograms.times()
	i, _ := slices.BinarySearch(ts, st.before(e)+1)
	return i < len(ts) && ts[i] <= e-st.edge
}

// settle puts the raw samples that are in no open bucket into little memory.
func (s *seriesState) settle() {
	t := int64(math.MaxInt64)
	for i := range s.members {
		if m := &s.members[i]; len(m.open) > 0 {
			t = min(t, m.stream.before(m.open[0].end))
		}
	}
	s.raw.seal(t)
}

// satSub and satAdd are subtraction and addition that stop at the ends of int64.
func satSub(a, b int64) int64 {
	d := a - b
	switch {
	case b > 0 && d > a:
		return math.MinInt64
	case b < 0 && d < a:
		return math.MaxInt64
	}
	return d
}

func satAdd(a, b int64) int64 {
	d := a + b
	switch {
	case b > 0 && d < a:
		return math.MaxInt64
	case b < 0 && d > a:
		return math.MinInt64
	}
	return d
}
