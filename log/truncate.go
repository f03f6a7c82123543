package log

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
)

// origin is where the log begins.
type origin struct {
	floor  Seq   // first sequence that the log holds, or would hold
	prev   Hash  // of the event before the floor; zero for a log that was never truncated
	newest int64 // largest sample time in the events before the floor, ms; MinInt64: none, MaxInt64: not known
	began  int64 // least sample time of the first write with samples before the floor, ms; MaxInt64: none, beganUnknown: not known
}

// beganUnknown stands where what was truncated was not looked at for its first write, or was damaged.
const beganUnknown = math.MinInt64

func newOrigin(m meta) *origin {
	if m.floor == 1 {
		return &origin{floor: 1, newest: math.MinInt64, began: math.MaxInt64}
	}
	return &origin{floor: m.floor, prev: m.prev, newest: m.newest, began: m.began}
}

// Began returns the least sample time of the first write that the log ever took, in ms: a sender begins with what it has just seen, and sends
// everything from there on. It is math.MaxInt64 if there was no write yet, and math.MinInt64 if a log that was truncated does not know.
func (l *Log) Began() (int64, error) {
	l.began.Lock()
	defer l.began.Unlock()
	if l.began.known {
		return l.began.at, nil
	}
	for {
		o := l.origin.Load()
		if o.began != math.MaxInt64 {
			l.began.at, l.began.known = o.began, true
			return o.began, nil
		}
		l.began.next = max(l.began.next, o.floor)
		head := l.Head()
		for r := l.NewReader(l.began.next); l.began.next <= head; l.began.next++ {
			e, err := r.Next()
			var gone *TruncatedError
			if errors.As(err, &gone) {
				break
			}
			if err != nil {
				return 0, fmt.Errorf("log: first write: %w", err)
			}
			if w, ok := e.Body.(*Write); ok && w.Oldest() < math.MaxInt64 {
				l.began.at, l.began.known = w.Oldest(), true
				return l.began.at, nil
			}
		}
		if l.origin.Load() == o {
			return math.MaxInt64, nil
		}
	}
}

// TruncatedError: an event was asked for that the log no longer holds.
type TruncatedError struct {
	Seq   Seq
	Floor Seq // the first that it holds
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("sequence %d is no longer in the log, which begins at %d", e.Seq, e.Floor)
}

// below returns a *TruncatedError for a sequence that is below the floor now.
func (l *Log) below(seq Seq) error {
	if floor := l.Floor(); seq < floor {
		return &TruncatedError{Seq: seq, Floor: floor}
	}
	return nil
}

// Truncate removes the events up to through for good; the next one is the floor. The caller answers for it that nothing will ask
// for them again: a base is sealed, and every checkpoint is behind it. The newest event always stays, as the log goes on from it:
// a through that is not below the head is ErrInvalid. One that is below the floor already changes nothing. It works with and
// without Run, and beside appends and readers; a reader that has not come past through fails with a *TruncatedError.
//
// What goes is read a last time, for the largest sample time in it: whoever folds what is left from its beginning knows by it
// from when on the samples are complete (Origin); and for where its first write begins (Began).
//
// The new floor, the hash that the chain begins with, and the delete are one synced batch: a crash leaves the old log or the new.
// The series of the dictionary stay until they are forgotten: see Retire. The space comes back by and by; Reclaim hastens it.
func (l *Log) Truncate(through Seq) error {
	if l.readOnly {
		return ErrReadOnly
	}
	l.truncating.Lock()
	done := make(chan error, 1)
	go func() {
		err := l.truncate(through)
		l.truncating.Unlock() // first: whoever has the answer finds the log free
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-l.poisonedCh: // the store may never answer
		return l.Err()
	}
}

func (l *Log) truncate(through Seq) error {
	old := l.origin.Load()
	if through < old.floor {
		return nil
	}
	if head := l.Head(); through >= head {
		return fmt.Errorf("%w: truncating the log through %d would remove its newest event, %d", ErrInvalid, through, head)
	}
	db, err := l.store.acquire()
	if err != nil {
		return err
	}
	defer l.store.release()
	start := &origin{floor: through + 1}
	if start.newest, start.began, err = l.lastLook(old, through); err != nil {
		return err
	}
	found, err := l.store.get(eventKey(through), func(raw []byte) error {
		_, err := DecodeEvent(through, raw)
		start.prev = EventHash(raw)
		return err
	})
	if err != nil {
		return err
	}
	if !found {
		return corrupt(through, "event is missing")
	}
	b := db.NewBatch()
	m := meta{floor: start.floor, seed: l.dict.seed, prev: start.prev, newest: start.newest, began: start.began}
	err = errors.Join(b.Set([]byte{prefixMeta}, m.encode(), nil), b.DeleteRange(eventKey(0), eventKey(start.floor), nil))
	if err != nil {
		return errors.Join(err, b.Close())
	}
	// First the floor, then the delete: whoever misses an event finds that it is below the floor.
	l.origin.Store(start)
	if err := l.applySynced(db, b); err != nil {
		l.setPoison(err)
		return l.Err()
	}
	return b.Close()
}

// lastLook returns what an origin behind through says of the samples and the writes in the events up to it. Damage among them is no reason
// to keep them.
func (l *Log) lastLook(old *origin, through Seq) (newest, began int64, err error) {
	newest, began = old.newest, old.began
	for r := l.NewReader(old.floor); newest < math.MaxInt64; {
		e, err := r.Next()
		var damage *CorruptionError
		switch {
		case errors.As(err, &damage), errors.Is(err, ErrUnknownVersion), errors.Is(err, ErrUnknownKind):
			if newest = math.MaxInt64; began == math.MaxInt64 {
				began = beganUnknown
			}
			return newest, began, nil
		case err != nil:
			return 0, 0, err
		}
		if w, ok := e.Body.(*Write); ok {
			newest = max(newest, w.Newest())
			if began == math.MaxInt64 {
				began = w.Oldest()
			}
		}
		if e.Seq == through {
			break
		}
	}
	return newest, began, nil
}

// applySynced is apply, and waits for the fsync.
func (l *Log) applySynced(db *pebble.DB, b *pebble.Batch) error {
	l.guard.applying.Lock()
	err := l.Err()
	if err == nil {
		err = db.ApplyNoSyncWait(b, pebble.Sync)
	}
	if err == nil {
		err = l.Err()
	}
	l.guard.applying.Unlock()
	if err != nil {
		return err
	}
	return errors.Join(b.SyncWait(), l.Err())
}

// Reclaim gives the space of what was truncated back to the file system, as far as whole tables and the rewriting of those at the
// edge can. It may take as long as the store needs to read what is left in them.
func (l *Log) Reclaim(ctx context.Context) error {
	db, err := l.store.acquire()
	if err != nil {
		return err
	}
	defer l.store.release()
	if err := db.Compact(ctx, eventKey(0), eventKey(l.Floor()), false); err != nil {
		return fmt.Errorf("log: reclaim space: %w", err)
	}
	return nil
}

// FirstAt returns the first event whose log time is at or after t, in ms; the one after the head if there is none.
func (l *Log) FirstAt(t int64) (Seq, error) {
	lo, hi := l.Floor(), l.Head()+1 // the answer is in [lo, hi]
	for lo < hi {
		mid := lo + (hi-lo)/2
		var at int64
		found, err := l.store.get(eventKey(mid), func(raw []byte) error {
			e, err := DecodeEvent(mid, raw)
			if err == nil {
				at = e.LogTime
			}
			return err
		})
		switch {
		case err != nil:
			return 0, err
		case !found && l.below(mid) != nil:
			lo = max(lo, l.Floor())
			hi = max(lo, hi)
		case !found:
			return 0, corrupt(mid, "event is missing")
		case at < t:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return lo, nil
}

// Settle brings the events that are only in the store's WAL into tables, so that SizeFrom sees them. If ctx ends first the store
// goes on with it, and the next call waits for the same.
func (l *Log) Settle(ctx context.Context) error {
	db, err := l.store.acquire()
	if err != nil {
		return err
	}
	defer l.store.release()
	l.settling.Lock()
	defer l.settling.Unlock()
	if l.settled == nil {
		if l.settled, err = db.AsyncFlush(); err != nil {
			return fmt.Errorf("log: flush: %w", err)
		}
	}
	select {
	case <-l.settled:
		l.settled = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("log: flush: %w", ctx.Err())
	case <-l.poisonedCh:
		return l.Err()
	}
}

// SizeFrom returns about how many bytes of disk the events from one on take in tables; see Settle.
func (l *Log) SizeFrom(seq Seq) (uint64, error) {
	db, err := l.store.acquire()
	if err != nil {
		return 0, err
	}
	defer l.store.release()
	n, err := db.EstimateDiskUsage(eventKey(seq), []byte{prefixEvent + 1})
	if err != nil {
		return 0, fmt.Errorf("log: size: %w", err)
	}
	return n, nil
}
