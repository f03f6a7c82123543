package pane

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// never is the time of what has not been.
const never = math.MinInt64

// The row of an experiment in one shard, version 1, is a sequence of varints (v: zigzag, u: unsigned):
//
//	version:u = 1, last event:u, series:u, samples:u, last wall time:v, last log time:v, closed through:v, open buckets:u, forgiven:u
//	published streams: count:u, then each by stream: stream:u, origin:v, width:v, runs: count:u, then each:
//	  blocks since the end of the one before:u (the first: block:v), blocks:u, mask:u
//	corrected buckets: count:u, then each by stream and end: stream:u, end:v, places: count:u, then each: seq:u, corrections:u
const experimentVersion = 1

func (x *experiment) encode() []byte {
	e := encoder{}
	e.u(experimentVersion)
	e.u(uint64(x.version))
	e.u(x.series)
	e.u(x.samples)
	e.v(x.lastWall)
	e.v(x.lastLog)
	e.v(x.closed)
	e.u(uint64(x.pending))
	e.u(x.forgiven)
	e.u(uint64(len(x.published)))
	for i := range x.published {
		p := &x.published[i]
		e.u(uint64(p.stream))
		e.v(p.grid.Origin)
		e.v(p.grid.Width)
		e.u(uint64(len(p.ends.runs)))
		for j, r := range p.ends.runs {
			if j == 0 {
				e.v(r.first)
			} else {
				e.u(uint64(r.first - p.ends.runs[j-1].last() - 1))
			}
			e.u(uint64(r.count))
			e.u(r.mask)
		}
	}
	e.u(uint64(len(x.corrections)))
	for i := range x.corrections {
		c := &x.corrections[i]
		e.u(uint64(c.stream))
		e.v(c.end)
		e.u(uint64(len(c.at)))
		for _, at := range c.at {
			e.u(uint64(at.seq))
			e.u(at.n)
		}
	}
	return e.b
}

// decodeExperiment restores an experiment from encode's bytes, without the series that have an open bucket.
func decodeExperiment(name string, b []byte) (*experiment, error) {
	d := decoder{b: b}
	if v := d.u(); d.err == nil && v != experimentVersion {
		return nil, fmt.Errorf("%w: experiment row of version %d", ErrCorruptState, v)
	}
	x := newExperiment(name)
	x.version, x.series, x.samples = log.Seq(d.u()), d.u(), d.u()
	x.lastWall, x.lastLog, x.closed = d.v(), d.v(), d.v()
	pending := d.u()
	x.pending = int(pending & math.MaxInt32)
	x.forgiven = d.u()
	if pending > math.MaxInt32 {
		d.fail("count of open buckets")
	}
	for range d.count(4) {
		p := publishedEnds{stream: plan.StreamID(d.u()), grid: bucket.Grid{Origin: d.v(), Width: d.v()}}
		if p.grid.Width <= 0 || len(x.published) > 0 && x.published[len(x.published)-1].stream >= p.stream {
			d.fail("published streams")
			break
		}
		p.ends = d.endSet()
		x.published = append(x.published, p)
	}
	for range d.count(3) {
		c := correctedBucket{stream: plan.StreamID(d.u()), end: d.v()}
		for range d.count(2) {
			c.at = append(c.at, correctedAt{log.Seq(d.u()), d.u()})
		}
		if n := len(x.corrections); len(c.at) == 0 || n > 0 && compareCorrected(x.corrections[n-1], c) >= 0 {
			d.fail("corrected buckets")
			break
		}
		x.corrections = append(x.corrections, c)
	}
	if d.err == nil && len(d.b) != 0 {
		d.fail("bytes behind the last correction")
	}
	return x, d.err
}

func (d *decoder) endSet() (e endSet) {
	const maxBlock = math.MaxInt64 >> 6
	for j := range d.count(3) {
		r := maskRun{}
		if j == 0 {
			r.first = d.v()
		} else {
			gap := d.u()
			if gap > maxBlock {
				d.fail("runs")
				return e
			}
			r.first = satAdd(satAdd(e.runs[j-1].last(), 1), int64(gap))
		}
		count := d.u()
		r.mask = d.u()
		if d.err != nil || count == 0 || count > maxBlock || r.mask == 0 || r.first < -maxBlock || r.first > maxBlock-int64(count) {
			d.fail("runs")
			return e
		}
		r.count = int64(count)
		if j > 0 && e.runs[j-1].mask == r.mask && e.runs[j-1].last()+1 == r.first {
			d.fail("runs that are one")
			return e
		}
		e.runs = append(e.runs, r)
		e.n = int(satAdd(int64(e.n), satMul(r.count, int64(bits.OnesCount64(r.mask)))))
	}
	return e
}

// satMul multiplies numbers that are not negative, and stops at the end of int64.
func satMul(a, b int64) int64 {
	if hi, lo := bits.Mul64(uint64(a), uint64(b)); hi == 0 && lo <= math.MaxInt64 {
		return int64(lo)
	}
	return math.MaxInt64
}

// experimentRows returns the rows that have changed since they were last saved.
func (s *Shard) experimentRows() []bucket.ExperimentRow {
	var rows []bucket.ExperimentRow
	for _, x := range s.stats {
		if x.version > s.rowsAt {
			rows = append(rows, bucket.ExperimentRow{Name: x.name, Counts: x.encode()})
		}
	}
	for name := range s.gone {
		rows = append(rows, bucket.ExperimentRow{Name: name})
	}
	slices.SortFunc(rows, func(a, b bucket.ExperimentRow) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// experimentsSaved takes note of a checkpoint that has been committed with the shard's rows.
func (s *Shard) experimentsSaved(at log.Seq) {
	s.rowsAt = at
	maps.DeleteFunc(s.gone, func(_ string, seq log.Seq) bool { return seq <= at })
	if len(s.gone) == 0 {
		s.gone = nil
	}
}

// restoreExperiments takes the rows of a checkpoint over. The shard's series must be there already.
func (s *Shard) restoreExperiments(rows []bucket.ExperimentRow) error {
	s.rowsAt = s.seq
	for _, r := range rows {
		x, err := decodeExperiment(r.Name, r.Counts)
		if err != nil {
			return fmt.Errorf("experiment %q: %w", r.Name, err)
		}
		if x.version > s.seq {
			return fmt.Errorf("experiment %q: %w: it changed at %d, beyond the shard", r.Name, ErrCorruptState, x.version)
		}
		s.stats[r.Name] = x
		s.inUse.add(r.Name)
		if len(x.corrections) > 0 {
			s.corrections[r.Name] = x
		}
	}
	want := make(map[string]int, len(s.stats))
	for name, x := range s.stats {
		want[name] = x.pending
	}
	s.countPending()
	for name, x := range s.stats {
		if x.pending != want[name] {
			return fmt.Errorf("experiment %q: %w: %d open buckets are counted, its series have %d", name, ErrCorruptState, want[name], x.pending)
		}
	}
	return nil
}
