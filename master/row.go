package master

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/log"
)

// State says whether an experiment is in the table.
type State uint8

// The states of an experiment.
const (
	Hot     State = 1
	Retired State = 2
)

// String returns the name of the state in the API.
func (s State) String() string {
	if s == Retired {
		return "retired"
	}
	return "hot"
}

// Row is what is known of one experiment. Rows are shared and never changed.
type Row struct {
	Name    string
	State   State
	Version log.Seq // last event that changed any other column; for comparison only

	Series, Samples, Buckets uint64
	Corrections, WorstBucket uint64
	Pending                  int
	OldestPending            int64 // event time, ms; math.MinInt64 if nothing is open
	LastWrite                int64 // wall time, ms; math.MinInt64 if there was no accepted sample
	ClosedThrough            int64 // event time, ms; math.MinInt64 if nothing is closed
	LastCompaction           int64 // wall time, ms; math.MinInt64 if there was none
	Compactions              uint64
	RetiredAt                int64 // wall time, ms; math.MinInt64 for one that is hot

	// What follows is no column: it does not move the version.

	Basis            uint64 // over what was counted, see Version
	ObservedAt       int64  // wall time, ms, at which the counts were read
	AsOf             log.Seq
	LastWriteLogTime int64
	ID               uint32 // in the history; 0 for one that is not in the table
	Err              string // why the last reading failed, if it did; not stored
}

// same says whether all columns are equal.
func (r *Row) same(o *Row) bool {
	a, b := *r, *o
	a.Basis, a.ObservedAt, a.AsOf, a.LastWriteLogTime, a.ID, a.Err = b.Basis, b.ObservedAt, b.AsOf, b.LastWriteLogTime, b.ID, b.Err
	return a == b
}

// ErrCorrupt is wrapped by every error about bytes of the master that do not decode.
var ErrCorrupt = errors.New("master: corrupt row")

const rowVersion = 2

// encode returns the row, version 2: version:u, state:u, last event:u, seven counts:u, five times:v, then observed at:v, as of:u,
// last write in log time:v, number in the history:u, basis:u. Version 1 has no basis.
func (r *Row) encode() []byte {
	e := encoder{}
	e.u(rowVersion, uint64(r.State), uint64(r.Version))
	e.u(r.Series, r.Samples, r.Buckets, r.Corrections, r.WorstBucket, uint64(r.Pending), r.Compactions)
	e.v(r.OldestPending, r.LastWrite, r.ClosedThrough, r.LastCompaction, r.RetiredAt, r.ObservedAt)
	e.u(uint64(r.AsOf))
	e.v(r.LastWriteLogTime)
	e.u(uint64(r.ID), r.Basis)
	return e.b
}

func decodeRow(name string, b []byte) (*Row, error) {
	d := decoder{b: b}
	version := d.u()
	if d.err == nil && version != 1 && version != rowVersion {
		d.fail(fmt.Sprintf("version %d", version))
	}
	r := &Row{Name: name, State: State(d.u()), Version: log.Seq(d.u())}
	r.Series, r.Samples, r.Buckets, r.Corrections, r.WorstBucket = d.u(), d.u(), d.u(), d.u(), d.u()
	r.Pending = int(d.u())
	r.Compactions = d.u()
	r.OldestPending, r.LastWrite, r.ClosedThrough, r.LastCompaction, r.RetiredAt = d.v(), d.v(), d.v(), d.v(), d.v()
	r.ObservedAt = d.v()
	r.AsOf = log.Seq(d.u())
	r.LastWriteLogTime = d.v()
	r.ID = uint32(d.u())
	if version > 1 {
		r.Basis = d.u()
	}
	if d.err == nil && r.State != Hot && r.State != Retired {
		d.fail("unknown state")
	}
	return r, d.end()
}

// row joins what was observed with the record of an experiment, which may be empty.
func (rec *record) row(name string, o *Observation, observedAt int64) *Row {
	return &Row{
		Name: name, State: Hot, Version: max(o.Version, rec.version),
		Series: rec.series + o.Series, Samples: rec.samples + o.Samples, Buckets: rec.buckets + o.Buckets,
		Corrections: o.Corrections, WorstBucket: o.WorstBucket, Pending: o.Pending, OldestPending: o.OldestPending,
		LastWrite: later(rec.lastWrite, o.LastWrite), ClosedThrough: o.closed(rec),
		LastCompaction: rec.lastCompaction, Compactions: rec.compactions, RetiredAt: never,
		Basis: o.Basis, ObservedAt: observedAt, AsOf: o.Seq, LastWriteLogTime: o.LastWriteLogTime,
	}
}

// later is the wall time of the last accepted sample, of two of which the second came later in the log, if it came at all. The greater
// of both it need not be: clocks are set back.
func later(before, after int64) int64 {
	if after == never {
		return before
	}
	return after
}

// closed is the column of that name: while something is open, what its series have closed; else the greatest ever.
func (o *Observation) closed(rec *record) int64 {
	if o.Pending > 0 {
		return o.ClosedThrough
	}
	return max(o.ClosedThrough, rec.closedThrough)
}

// retired is the row of an experiment that is not in the table.
func (rec *record) retired(name string) *Row {
	return &Row{
		Name: name, State: Retired, Version: rec.version, Series: rec.series, Samples: rec.samples, Buckets: rec.buckets,
		OldestPending: never, LastWrite: rec.lastWrite, ClosedThrough: rec.closedThrough, LastCompaction: rec.lastCompaction,
		Compactions: rec.compactions, RetiredAt: rec.retiredAt, ObservedAt: rec.retiredAt, AsOf: rec.retiredSeq, LastWriteLogTime: never,
	}
}

// encoder appends the parts of a value.
type encoder struct{ b []byte }

func (e *encoder) u(vs ...uint64) {
	for _, v := range vs {
		e.b = binary.AppendUvarint(e.b, v)
	}
}

func (e *encoder) v(vs ...int64) {
	for _, v := range vs {
		e.b = binary.AppendVarint(e.b, v)
	}
}

func (e *encoder) str(s string) {
	e.u(uint64(len(s)))
	e.b = append(e.b, s...)
}

// decoder takes the parts of a value. The first fault sticks, and everything after it reads as zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrCorrupt, what)
	}
	d.b = nil
}

func (d *decoder) version(want uint64) {
	if v := d.u(); d.err == nil && v != want {
		d.fail(fmt.Sprintf("version %d", v))
	}
}

func (d *decoder) u() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("cut short")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) v() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("cut short")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a count of things that take at least size bytes each.
func (d *decoder) count(size int) int {
	n := d.u()
	if n > uint64(len(d.b)/size) {
		d.fail("count beyond the bytes that are left")
		return 0
	}
	return int(n)
}

func (d *decoder) str() string {
	n := d.count(1)
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("bytes behind the end")
	}
	return d.err
}
