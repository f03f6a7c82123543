package log

import (
	"context"
	"sync"
)

// durable is the durable end of the log, as everyone but the committer sees it (L5).
type durable struct {
	sync.RWMutex
	head Seq
	hash Hash
	tail tail
	wake chan struct{} // closed and replaced when head moves
}

// advance makes events visible.
func (d *durable) advance(events []*Event, sizes []int, hash Hash) {
	d.Lock()
	d.head, d.hash = events[len(events)-1].Seq, hash
	for i, e := range events {
		d.tail.push(e, eventMemory(e, sizes[i]))
	}
	wake := d.wake
	d.wake = make(chan struct{})
	d.Unlock()
	close(wake)
}

func (d *durable) position() (Seq, Hash, <-chan struct{}) {
	d.RLock()
	defer d.RUnlock()
	return d.head, d.hash, d.wake
}

// tail holds the newest events, bounded by number and memory (L8). A subscriber that falls behind it reads the store.
type tail struct {
	events []*Event
	sizes  []int64
	bytes  int64
	limit  int64
}

func (t *tail) push(e *Event, size int64) {
	t.events = append(t.events, e)
	t.sizes = append(t.sizes, size)
	t.bytes += size
	drop := 0
	for drop < len(t.events) && (t.bytes > t.limit || len(t.events)-drop > maxTailEvents) {
		t.bytes -= t.sizes[drop]
		t.events[drop] = nil // the array lives on until append moves what is left
		drop++
	}
	t.events, t.sizes = t.events[drop:], t.sizes[drop:]
}

// from returns a copy of up to n pointers, or nothing when seq is not in the tail.
func (t *tail) from(seq Seq, n int) []*Event {
	if len(t.events) == 0 || seq < t.events[0].Seq {
		return nil
	}
	at := int(seq - t.events[0].Seq)
	if at >= len(t.events) {
		return nil
	}
	return append([]*Event(nil), t.events[at:min(len(t.events), at+n)]...)
}

// eventMemory is about what an event takes in memory.
func eventMemory(e *Event, encoded int) int64 {
	w, ok := e.Body.(*Write)
	if !ok {
		return int64(encoded) + 128
	}
	n := int64(256) + 12*int64(len(w.Refs)) + 16*int64(len(w.Times)) + 8*int64(len(w.Starts))
	if len(w.Defs)+len(w.Exemplars)+len(w.Histograms)+len(w.Metadata) > 0 {
		n += int64(encoded) + 48*int64(len(w.Defs)+len(w.Exemplars)+len(w.Histograms)) + 64*int64(len(w.Metadata))
	}
	return n
}

// Subscription follows the log. It is used by one goroutine and needs no closing.
type Subscription struct {
	l      *Log
	next   Seq
	reader *Reader
}

// Subscribe returns a subscription whose first event is from; 0 means the floor. It fails like Reader.Next.
func (l *Log) Subscribe(from Seq) *Subscription {
	if from == 0 {
		from = l.Floor()
	}
	return &Subscription{l: l, next: from}
}

// Next blocks until at least one event is durable and returns up to max of them (at least one), in order. It takes them from the shared
// memory of recent events if it can, and else reads them from the store, in which case it may also fail like Reader.Next.
// At the end of the log it fails with ctx.Err(), or, when nothing more can come, with ErrPoisoned or ErrClosed.
func (s *Subscription) Next(ctx context.Context, max int) ([]*Event, error) {
	l := s.l
	if max < 1 {
		max = 1
	}
	for last := error(nil); ; {
		l.durable.RLock()
		head, wake := l.durable.head, l.durable.wake
		events := l.durable.tail.from(s.next, max)
		l.durable.RUnlock()
		if len(events) > 0 {
			s.next += Seq(len(events))
			s.reader = nil
			return events, nil
		}
		if s.next <= head {
			return s.read(max)
		}
		if last != nil {
			return nil, last
		}
		// Whatever ends the wait, what became durable before is still handed out.
		select {
		case <-wake:
		case <-ctx.Done():
			last = ctx.Err()
		case <-l.poisonedCh:
			last = l.Err()
		case <-l.runDone:
			last = l.endError()
		case <-l.closing:
			last = l.endError()
		}
	}
}

func (s *Subscription) read(max int) ([]*Event, error) {
	if s.reader == nil {
		s.reader = s.l.NewReader(s.next)
	}
	var events []*Event
	for len(events) < max {
		e, err := s.reader.Next()
		if err != nil {
			if len(events) > 0 {
				break // the reader gives the same error again
			}
			return nil, err
		}
		events = append(events, e)
		s.next = e.Seq + 1
		if s.reader.buffered() == 0 {
			break // what comes next costs another read
		}
	}
	return events, nil
}
