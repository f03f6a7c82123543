package bucket

import (
	"errors"
	"fmt"
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

// openPebble is pebble.Open with compactions that begin behind it. Pebble would try for ever what it has to flush before a store is
// open, so that a start on a disk that is full would neither end nor say why. Here the first failure ends it; the goroutine that
// met it stays where it is until the process ends.
func openPebble(dir string, po *pebble.Options, h *health) (*pebble.DB, error) {
	c := newCompactions()
	po.Experimental.CompactionScheduler = c
	type opened struct {
		db  *pebble.DB
		err error
	}
	done := make(chan opened, 1)
	go func() {
		db, err := pebble.Open(dir, po)
		close(h.opened)
		done <- opened{db, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		if err := h.writable(); err != nil {
			return nil, errors.Join(err, o.db.Close())
		}
		c.opened()
		return o.db, nil
	case err := <-h.notOpened:
		go func() { // it may have been open after all, just then
			if o := <-done; o.db != nil {
				_ = o.db.Close()
			}
		}()
		return nil, fmt.Errorf("%w: %w", ErrStuck, err)
	}
}
