package log

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// compactions schedules the compactions of the store: Pebble's own way, but none while the store is being opened. An Open that
// fails lets go of everything under a compaction that it has already begun, and that ends the process with a panic where it should
// end with an error.
type compactions struct {
	*pebble.ConcurrencyLimitScheduler
	db   pebble.DBForCompaction
	open atomic.Bool
}

func newCompactions() *compactions {
	// Without the granter that Pebble runs every 100 ms, which outlives an Open that failed. A compaction that ends grants the next.
	return &compactions{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(goroutines int, db pebble.DBForCompaction) {
	c.db = db
	c.ConcurrencyLimitScheduler.Register(goroutines, db)
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.open.Load() {
		return false, nil
	}
	return c.ConcurrencyLimitScheduler.TrySchedule()
}

// opened lets compactions begin, and begins the one that has waited, if one has.
func (c *compactions) opened() {
	c.open.Store(true)
	if ok, grant := c.TrySchedule(); ok && !c.db.Schedule(grant) {
		grant.Done()
	}
}

// openPebble is pebble.Open with compactions that begin behind it.
func openPebble(dir string, po *pebble.Options) (*pebble.DB, error) {
	c := newCompactions()
	po.Experimental.CompactionScheduler = c
	db, err := pebble.Open(dir, po)
	if err != nil {
		return nil, err
	}
	c.opened()
	return db, nil
}
