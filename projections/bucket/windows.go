package bucket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"
)

// The keys of recorded windows. A record is named by a hash of all that its values depend on besides the samples, so that
// it needs no deleting to be never mistaken for another.
const (
	keyWindowNewest = 'W' // → the newest AsOf of all steps:8
	keyWindowWhole  = 'H' // record:8 → since:8 (see SetWhole)
	keyWindowSeries = 'l' // record:8 number:4 → label set
	keyWindowStep   = 'w' // record:8 step:8 → step
)

const (
	stepVersion = 1

	stepRefused = 1 << 0
	stepNotes   = 1 << 1
	stepDoubts  = 1 << 2

	// maxStepSeries bounds the output series of one record that are ever given a number.
	maxStepSeries = 10_000_000
)

// ErrCorruptStep is wrapped by every error about a recorded step that does not decode.
var ErrCorruptStep = errors.New("bucket: corrupt recorded step")

// ErrTooManySeries says that a record has had more output series than can be numbered.
var ErrTooManySeries = errors.New("bucket: too many output series in one record")

// Step is what an expression was at one step, as of an event: a value for each of its series, or the word that panes could
// not tell.
type Step struct {
	Time    int64  // ms
	AsOf    uint64 // sequence of the event
	Refused bool   // panes could not answer; there are no values
	Notes   bool   // the engine had something to say beside the values, which is not kept
	Doubts  uint64 // bit i: the i-th of the expression's doubtful counters had a value (see query.doubts)
	Values  []StepValue
}

// StepValue is one series of a step.
type StepValue struct {
	Labels labels.Labels
	V      float64
}

// Recorded is a step as it is read: instead of Values it has, for each of them, the number of the series, and the value. What the
// label set of a number is, Sets tells.
type Recorded struct {
	Step
	Series []uint32
	Floats []float64
}

// Windows keeps recorded steps in a store. Its writes are not durable before the store's next flush; batches become durable
// in their order, so that no step outlives the numbers of its series. It is safe for concurrent use.
//
// A step's bytes, version 1: version:1 = 1, as of:uvarint, flags:1 (bit 0: refused, bit 1: notes, bit 2: doubts follow), doubts:uvarint
// with bit 2, series:uvarint, then per series number:uvarint, value:8 (IEEE 754, little-endian).
type Windows struct {
	store *Store

	mu      sync.Mutex
	records map[uint64]*windowSeries
}

// windowSeries numbers the output series of one record.
type windowSeries struct {
	sets     []labels.Labels     // by number
	byHash   map[uint64][]uint32 // of the label set
	unstored []pebbleSet         // numbers given and not written yet
}

type pebbleSet struct{ key, value []byte }

// NewWindows returns what is recorded in the store. Steps as of events beyond head are of a log that has lost them, hence
// all that is recorded is dropped if there are any.
func NewWindows(s *Store, head uint64) (*Windows, error) {
	w := &Windows{store: s, records: make(map[uint64]*windowSeries)}
	v, closer, err := s.db.Get([]byte{keyWindowNewest})
	if errors.Is(err, pebble.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bucket: read recorded windows: %w", err)
	}
	defer closer.Close()
	if len(v) == 8 && binary.BigEndian.Uint64(v) <= head {
		return w, nil
	}
	return w, w.clear()
}

func (w *Windows) clear() error {
	b := w.store.db.NewBatch()
	defer b.Close()
	for _, prefix := range []byte{keyWindowSeries, keyWindowStep, keyWindowWhole} {
		if err := b.DeleteRange([]byte{prefix}, []byte{prefix + 1}, nil); err != nil {
			return fmt.Errorf("bucket: drop recorded windows: %w", err)
		}
	}
	if err := b.Delete([]byte{keyWindowNewest}, nil); err != nil {
		return fmt.Errorf("bucket: drop recorded windows: %w", err)
	}
	if err := w.store.db.Apply(b, pebble.NoSync); err != nil {
		return fmt.Errorf("bucket: drop recorded windows: %w", err)
	}
	return nil
}

func stepKey(record uint64, t int64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{keyWindowStep}, record)
	return binary.BigEndian.AppendUint64(b, uint64(t)^(1<<63))
}

func seriesKey(record uint64, n uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{keyWindowSeries}, record)
	return binary.BigEndian.AppendUint32(b, n)
}

// Put writes steps of a record, each in the place of an older one of its time.
func (w *Windows) Put(record uint64, steps []Step) error {
	if err := w.store.writable(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ws, err := w.series(record)
	if err != nil {
		return err
	}
	b := w.store.db.NewBatch()
	defer b.Close()
	newest := uint64(0)
	for i := range steps {
		v, err := ws.encode(record, &steps[i])
		if err != nil {
			return err
		}
		if err := b.Set(stepKey(record, steps[i].Time), v, nil); err != nil {
			return fmt.Errorf("bucket: record: %w", err)
		}
		newest = max(newest, steps[i].AsOf)
	}
	for _, set := range ws.unstored {
		if err := b.Set(set.key, set.value, nil); err != nil {
			return fmt.Errorf("bucket: record: %w", err)
		}
	}
	if err := w.raiseNewest(b, newest); err != nil {
		return err
	}
	if err := w.store.db.Apply(b, pebble.NoSync); err != nil {
		return fmt.Errorf("bucket: record: %w", err)
	}
	ws.unstored = nil
	return w.store.health.readable()
}

func (w *Windows) raiseNewest(b *pebble.Batch, newest uint64) error {
	v, closer, err := w.store.db.Get([]byte{keyWindowNewest})
	switch {
	case err == nil:
		if len(v) == 8 {
			newest = max(newest, binary.BigEndian.Uint64(v))
		}
		if err := closer.Close(); err != nil {
			return fmt.Errorf("bucket: record: %w", err)
		}
	case !errors.Is(err, pebble.ErrNotFound):
		return fmt.Errorf("bucket: record: %w", err)
	}
	if err := b.Set([]byte{keyWindowNewest}, binary.BigEndian.AppendUint64(nil, newest), nil); err != nil {
		return fmt.Errorf("bucket: record: %w", err)
	}
	return nil
}

// series returns the numbers of a record, loaded at the first use. w.mu is held.
func (w *Windows) series(record uint64) (*windowSeries, error) {
	if ws, ok := w.records[record]; ok {
		return ws, nil
	}
	ws := &windowSeries{byHash: make(map[uint64][]uint32)}
	it, err := w.store.db.NewIter(&pebble.IterOptions{LowerBound: seriesKey(record, 0), UpperBound: append(seriesKey(record, math.MaxUint32), 0)})
	if err != nil {
		return nil, fmt.Errorf("bucket: read output series: %w", err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("bucket: read output series: %w", err)
		}
		n := len(ws.sets)
		if len(it.Key()) != 13 || binary.BigEndian.Uint32(it.Key()[9:]) != uint32(n) {
			return nil, fmt.Errorf("%w: output series out of order at %d", ErrCorruptStep, n)
		}
		ls, err := decodeLabels(v)
		if err != nil {
			return nil, err
		}
		ws.add(ls)
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: read output series: %w", err)
	}
	w.records[record] = ws
	return ws, nil
}

func (ws *windowSeries) add(ls labels.Labels) uint32 {
	n := uint32(len(ws.sets))
	ws.sets = append(ws.sets, ls)
	h := xxh3.Hash(appendLabels(nil, ls))
	ws.byHash[h] = append(ws.byHash[h], n)
	return n
}

// number returns the number of a label set, given to it now if it has none.
func (ws *windowSeries) number(record uint64, ls labels.Labels) (uint32, error) {
	b := appendLabels(nil, ls)
	for _, n := range ws.byHash[xxh3.Hash(b)] {
		if labels.Equal(ws.sets[n], ls) {
			return n, nil
		}
	}
	if len(ws.sets) >= maxStepSeries {
		return 0, ErrTooManySeries
	}
	n := ws.add(ls)
	ws.unstored = append(ws.unstored, pebbleSet{seriesKey(record, n), b})
	return n, nil
}

func (ws *windowSeries) encode(record uint64, s *Step) ([]byte, error) {
	flags := byte(0)
	if s.Refused {
		flags |= stepRefused
	}
	if s.Notes {
		flags |= stepNotes
	}
	if s.Doubts != 0 {
		flags |= stepDoubts
	}
	b := binary.AppendUvarint([]byte{stepVersion}, s.AsOf)
	b = append(b, flags)
	if s.Doubts != 0 {
		b = binary.AppendUvarint(b, s.Doubts)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Values)))
	for _, v := range s.Values {
		n, err := ws.number(record, v.Labels)
		if err != nil {
			return nil, err
		}
		b = binary.AppendUvarint(b, uint64(n))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v.V))
	}
	return b, nil
}

// decodeStep reads what encode writes; sets is how many series have a number. With headOnly the values are left out.
func decodeStep(b []byte, sets int, headOnly bool) (Recorded, error) {
	fail := func(what string) (Recorded, error) { return Recorded{}, fmt.Errorf("%w: %s", ErrCorruptStep, what) }
	if len(b) == 0 || b[0] != stepVersion {
		return fail("version")
	}
	b = b[1:]
	var s Recorded
	asOf, n := binary.Uvarint(b)
	if n <= 0 || len(b) == n {
		return fail("cut short")
	}
	flags := b[n]
	if flags&^(stepRefused|stepNotes|stepDoubts) != 0 {
		return fail("unknown flags")
	}
	s.AsOf, s.Refused, s.Notes = asOf, flags&stepRefused != 0, flags&stepNotes != 0
	b = b[n+1:]
	if flags&stepDoubts != 0 {
		if s.Doubts, n = binary.Uvarint(b); n <= 0 || s.Doubts == 0 {
			return fail("doubts")
		}
		b = b[n:]
	}
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b))/9 {
		return fail("count beyond the bytes that are left")
	}
	if b = b[n:]; headOnly {
		return s, nil
	}
	s.Series, s.Floats = make([]uint32, count), make([]float64, count)
	for i := range s.Series {
		k, n := binary.Uvarint(b)
		if n <= 0 || len(b) < n+8 {
			return fail("cut short")
		}
		if k >= uint64(sets) {
			return fail("a series without a label set")
		}
		s.Series[i], s.Floats[i] = uint32(k), math.Float64frombits(binary.LittleEndian.Uint64(b[n:]))
		b = b[n+8:]
	}
	if len(b) > 0 {
		return fail("bytes behind the last value")
	}
	return s, nil
}

// Steps returns the recorded steps of a record at from, from + every, … up to to, in their order, and the label sets of their series by
// number, which must not be changed. What lies between them is skipped. The error is ErrTooManyValues once they hold more than maxValues
// values.
func (w *Windows) Steps(ctx context.Context, record uint64, from, to, every int64, maxValues int) (out []Recorded, sets []labels.Labels, err error) {
	values := 0
	err = w.scan(ctx, record, from, to, every, func(t int64, v []byte) error {
		if sets == nil {
			// Looked up once the steps are pinned: a number is given before it is written.
			var err error
			if sets, err = w.Sets(record); err != nil {
				return err
			}
		}
		s, err := decodeStep(v, len(sets), false)
		if err != nil {
			return err
		}
		s.Time = t
		if values += len(s.Series); values > maxValues {
			return ErrTooManyValues
		}
		out = append(out, s)
		return nil
	})
	return out, sets, err
}

// Sets returns the label sets of a record by number: all that it ever had, also those of which no step is left. The result must not be
// changed.
func (w *Windows) Sets(record uint64) ([]labels.Labels, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ws, err := w.series(record)
	if err != nil {
		return nil, err
	}
	return ws.sets, nil // grows only behind this
}

// ErrTooManyValues says that recorded steps hold more values than the caller wants.
var ErrTooManyValues = errors.New("bucket: too many recorded values")

// AsOf returns the sequences of the recorded steps of a record with times in [from, to], by time.
func (w *Windows) AsOf(ctx context.Context, record uint64, from, to int64) (map[int64]uint64, error) {
	out := make(map[int64]uint64)
	err := w.scan(ctx, record, from, to, 1, func(t int64, v []byte) error {
		s, err := decodeStep(v, 0, true)
		out[t] = s.AsOf
		return err
	})
	return out, err
}

func (w *Windows) scan(ctx context.Context, record uint64, from, to, every int64, yield func(t int64, v []byte) error) error {
	if to < from {
		return nil
	}
	if err := w.store.health.readable(); err != nil {
		return err
	}
	it, err := w.store.db.NewIter(&pebble.IterOptions{LowerBound: stepKey(record, from), UpperBound: append(stepKey(record, to), 0)})
	if err != nil {
		return fmt.Errorf("bucket: read recorded steps: %w", err)
	}
	defer it.Close()
	for valid := it.First(); valid; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(it.Key()) != 17 {
			return fmt.Errorf("%w: key %x", ErrCorruptStep, it.Key())
		}
		t := int64(binary.BigEndian.Uint64(it.Key()[9:]) ^ (1 << 63))
		if off := uint64(t-from) % uint64(every); off != 0 { // t ≥ from, and their difference may not fit into an int64
			next := t + every - int64(off)
			valid = next > t && it.SeekGE(stepKey(record, next))
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("bucket: read recorded steps: %w", err)
		}
		if err := yield(t, v); err != nil {
			return err
		}
		valid = it.Next()
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("bucket: read recorded steps: %w", err)
	}
	return nil
}

// Expire deletes the steps of a record before a time.
func (w *Windows) Expire(record uint64, before int64) error {
	if err := w.store.db.DeleteRange(stepKey(record, math.MinInt64), stepKey(record, before), pebble.NoSync); err != nil {
		return fmt.Errorf("bucket: expire recorded steps: %w", err)
	}
	return nil
}

func wholeKey(record uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyWindowWhole}, record)
}

// SetWhole notes that every step of a record that could be recorded has been, from the first on, and that what changed behind the
// event at since is known to whoever keeps the record. The note is durable no sooner than the steps that were put before it.
func (w *Windows) SetWhole(record, since uint64) error {
	if err := w.store.writable(); err != nil {
		return err
	}
	if err := w.store.db.Set(wholeKey(record), binary.BigEndian.AppendUint64(nil, since), pebble.NoSync); err != nil {
		return fmt.Errorf("bucket: note a whole record: %w", err)
	}
	return nil
}

// Whole says whether SetWhole was called for a record with the same since.
func (w *Windows) Whole(record, since uint64) (bool, error) {
	v, closer, err := w.store.db.Get(wholeKey(record))
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bucket: read the note of a record: %w", err)
	}
	defer closer.Close()
	return len(v) == 8 && binary.BigEndian.Uint64(v) == since, nil
}

// Keep deletes every record but those given.
func (w *Windows) Keep(records map[uint64]struct{}) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.keepWhole(records); err != nil {
		return err
	}
	for next := uint64(0); ; {
		id, ok, err := w.firstRecord(next)
		if err != nil || !ok {
			return err
		}
		if _, keep := records[id]; !keep {
			if err := w.drop(id); err != nil {
				return err
			}
			delete(w.records, id)
		}
		if id == math.MaxUint64 {
			return nil
		}
		next = id + 1
	}
}

// keepWhole deletes the notes of every record but those given: one may be whole that has no steps.
func (w *Windows) keepWhole(records map[uint64]struct{}) error {
	it, err := w.store.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyWindowWhole}, UpperBound: []byte{keyWindowWhole + 1}})
	if err != nil {
		return fmt.Errorf("bucket: list records: %w", err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if len(it.Key()) != 9 {
			return fmt.Errorf("%w: key %x", ErrCorruptStep, it.Key())
		}
		if _, keep := records[binary.BigEndian.Uint64(it.Key()[1:])]; keep {
			continue
		}
		if err := w.store.db.Delete(it.Key(), pebble.NoSync); err != nil {
			return fmt.Errorf("bucket: drop a record: %w", err)
		}
	}
	return it.Error()
}

func (w *Windows) firstRecord(from uint64) (uint64, bool, error) {
	it, err := w.store.db.NewIter(&pebble.IterOptions{LowerBound: stepKey(from, math.MinInt64), UpperBound: []byte{keyWindowStep + 1}})
	if err != nil {
		return 0, false, fmt.Errorf("bucket: list records: %w", err)
	}
	defer it.Close()
	if !it.First() {
		return 0, false, it.Error()
	}
	if len(it.Key()) != 17 {
		return 0, false, fmt.Errorf("%w: key %x", ErrCorruptStep, it.Key())
	}
	return binary.BigEndian.Uint64(it.Key()[1:]), true, nil
}

func (w *Windows) drop(id uint64) error {
	b := w.store.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.DeleteRange(stepKey(id, math.MinInt64), append(stepKey(id, math.MaxInt64), 0), nil),
		b.DeleteRange(seriesKey(id, 0), append(seriesKey(id, math.MaxUint32), 0), nil),
	)
	if err == nil {
		err = w.store.db.Apply(b, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("bucket: drop a record: %w", err)
	}
	return nil
}

func appendLabels(b []byte, ls labels.Labels) []byte {
	ls.Range(func(l labels.Label) {
		b = binary.AppendUvarint(b, uint64(len(l.Name)))
		b = append(b, l.Name...)
		b = binary.AppendUvarint(b, uint64(len(l.Value)))
		b = append(b, l.Value...)
	})
	return b
}

func decodeLabels(b []byte) (labels.Labels, error) {
	lb := labels.NewScratchBuilder(8)
	take := func() (string, bool) {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return "", false
		}
		s := string(b[k : k+int(n)])
		b = b[k+int(n):]
		return s, true
	}
	last := ""
	for len(b) > 0 {
		name, ok := take()
		value, ok2 := take()
		if !ok || !ok2 || name <= last || value == "" {
			return labels.EmptyLabels(), fmt.Errorf("%w: label set", ErrCorruptStep)
		}
		last = name
		lb.Add(name, value)
	}
	return lb.Labels(), nil
}
