package log

import (
	"errors"
	"fmt"
	"io"
)

const (
	readAheadEvents = 512
	readAheadBytes  = 1 << 20
)

// Reader reads the log in order and checks all of it: crc, dense sequences, predecessor hashes. It is used by one goroutine
// and needs no closing: it holds copies, not an iterator of the store.
type Reader struct {
	l       *Log
	next    Seq
	prev    Hash
	chained bool     // prev is known
	raw     [][]byte // of what was read ahead; it lies in slab
	slab    []byte   // used again and again: nothing that is decoded refers to it
	block   [][]byte // the memory of raw
	size    int      // of the last event, encoded
	err     error    // final
}

// NewReader returns a reader whose first event is from; 0 means the floor.
func (l *Log) NewReader(from Seq) *Reader {
	if from == 0 {
		from = l.Floor()
	}
	return &Reader{l: l, next: from}
}

// Next returns the next event. It fails with io.EOF at the durable head, where it may be called again later; with a
// *CorruptionError or an *UnknownEventError that names the sequence, for good (nothing is skipped); with a *TruncatedError where
// the log no longer has the event; or with ErrClosed.
func (r *Reader) Next() (*Event, error) {
	raw, err := r.nextRaw()
	if err != nil {
		return nil, err
	}
	e, err := DecodeEvent(r.next, raw)
	if err == nil && r.chained && e.Prev != r.prev {
		err = corrupt(r.next, "predecessor hash is %x, not %x", e.Prev, r.prev)
	}
	if err != nil {
		r.err = err
		return nil, err
	}
	r.prev, r.chained, r.size = EventHash(raw), true, len(raw)
	r.next++
	return e, nil
}

func (r *Reader) nextRaw() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	if len(r.raw) == 0 {
		head := r.l.Head()
		if r.next > head {
			return nil, io.EOF
		}
		if err := r.fill(head); err != nil {
			r.err = err
			return nil, err
		}
	}
	raw := r.raw[0]
	r.raw = r.raw[1:]
	return raw, nil
}

func (r *Reader) buffered() int { return len(r.raw) }

// fill reads ahead, at least the next event. The log may be truncated meanwhile.
func (r *Reader) fill(head Seq) error {
	for {
		start := r.l.origin.Load()
		if r.next < start.floor {
			return &TruncatedError{Seq: r.next, Floor: start.floor}
		}
		at := r.next
		switch {
		case at == start.floor:
			r.prev, r.chained = start.prev, true
		case !r.chained:
			at-- // for its hash
		}
		err := r.fillFrom(at, head)
		var damage *CorruptionError
		if errors.As(err, &damage) && at < r.l.Floor() {
			continue // it was there when we looked
		}
		return err
	}
}

func (r *Reader) fillFrom(at, head Seq) error {
	r.raw, r.slab = r.block[:0], r.slab[:0]
	err := r.l.store.iterate(eventKey(at), eventKey(head+1), func(key, value []byte) (bool, error) {
		seq, err := seqOf(key)
		if err != nil || seq != at {
			return false, corrupt(at, "event is missing")
		}
		at++
		if seq < r.next {
			r.prev, r.chained = EventHash(value), true
			return true, nil
		}
		from := len(r.slab)
		r.slab = append(r.slab, value...)
		r.raw = append(r.raw, r.slab[from:len(r.slab):len(r.slab)])
		return len(r.raw) < readAheadEvents && len(r.slab) < readAheadBytes, nil
	}, nil)
	r.block = r.raw
	var damage *CorruptionError
	switch {
	case len(r.raw) > 0 && errors.As(err, &damage):
		return nil // first what is whole; then it is found again
	case errors.As(err, &damage), errors.Is(err, ErrClosed):
		return err
	case err != nil && len(r.raw) > 0:
		return nil
	case err != nil:
		return &CorruptionError{Seq: at, Reason: "the store cannot read the event", Err: err}
	case len(r.raw) == 0:
		return corrupt(at, "event is missing")
	}
	return nil
}

// String says where the reader is.
func (r *Reader) String() string { return fmt.Sprintf("reader at %d", r.next) }
