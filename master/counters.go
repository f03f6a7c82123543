package master

import (
	"sync"
	"sync/atomic"
	"time"
)

// counters are the numbers of a Master since it was made.
type counters struct {
	returned       atomic.Uint64 // retired experiments that came back
	retired        atomic.Uint64
	retireFailures atomic.Uint64
	drift          atomic.Uint64

	mu         sync.Mutex
	last       RoundResult
	lastTook   time.Duration
	rounds     uint64
	failed     uint64 // rounds
	failedRow  uint64 // rounds in a row
	observeErr uint64
}

func (c *counters) round(r RoundResult, took time.Duration, err error) {
	c.drift.Add(uint64(r.Drifted))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds++
	c.observeErr += uint64(r.Failed)
	if err != nil {
		c.failed++
		c.failedRow++
		return
	}
	c.failedRow = 0
	c.last, c.lastTook = r, took
}
