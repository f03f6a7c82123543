package log

import (
	"sync/atomic"
	"time"
)

type counters struct {
	batches, events, bytes, samples, commitNanos atomic.Uint64
	noteFailures                                 atomic.Uint64
}

func (c *counters) batch(b *unsynced, took time.Duration) {
	c.batches.Add(1)
	c.events.Add(uint64(len(b.events)))
	c.commitNanos.Add(uint64(max(0, took)))
	for i, e := range b.events {
		c.bytes.Add(uint64(b.sizes[i]))
		if w, ok := e.Body.(*Write); ok {
			c.samples.Add(uint64(len(w.Times)))
		}
	}
}

// Metrics are the log's numbers of this process, for a collector.
type Metrics struct {
	Head, Floor  Seq
	Batches      uint64 // made durable
	Events       uint64
	Samples      uint64
	EventBytes   uint64        // encoded, before compression
	CommitTime   time.Duration // sum over batches, from gathering to durable
	Queue        int           // appends that wait
	TailEvents   int
	TailBytes    int64
	FreshSeries  int64 // wait for their first event
	NoteFailures uint64
	DiskBytes    uint64 // of the store, with what has been written of its WALs; 0 when closed
	KeptBytes    uint64 // of them, what holds events and series: tables that are not about to be deleted, and what is in use of the WALs
	Poisoned     bool
}

// Metrics returns the current numbers.
func (l *Log) Metrics() Metrics {
	m := Metrics{
		Floor:   l.Floor(),
		Batches: l.counts.batches.Load(), Events: l.counts.events.Load(), Samples: l.counts.samples.Load(),
		EventBytes: l.counts.bytes.Load(), CommitTime: time.Duration(l.counts.commitNanos.Load()),
		NoteFailures: l.counts.noteFailures.Load(),
		Queue:        len(l.queue), FreshSeries: l.dict.freshCount.Load(), Poisoned: l.Err() != nil,
	}
	l.durable.RLock()
	m.Head, m.TailEvents, m.TailBytes = l.durable.head, len(l.durable.tail.events), l.durable.tail.bytes
	l.durable.RUnlock()
	if db, err := l.store.acquire(); err == nil {
		pm := db.Metrics()
		// Pebble counts the WAL that is being written as large as it was when it was opened, and that is nothing for a new file.
		m.DiskBytes = pm.DiskSpaceUsage() - pm.WAL.PhysicalSize + max(pm.WAL.PhysicalSize, pm.WAL.Size)
		m.KeptBytes = pm.Table.Local.LiveSize + pm.WAL.Size
		l.store.release()
	}
	return m
}
