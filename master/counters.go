package master

import (
	"sync"
	"sync/atomic"
	"time"

	"tidemark/log"
)

// counters are the numbers of a Master since it was made.
type counters struct {
	returned       atomic.Uint64 // retired experiments that came back
	retired        atomic.Uint64
	retireFailures atomic.Uint64
	drift          atomic.Uint64
	sweepFailures  atomic.Uint64

	mu          sync.Mutex
	last        RoundResult
	lastTook    time.Duration
	rounds      uint64
	failed      uint64 // rounds
	failedInRow uint64
	observeErr  uint64
	tasks       [len(budgets)][2]uint64 // by kind: done, failed
}

func (c *counters) round(r RoundResult, took time.Duration, err error) {
	c.drift.Add(uint64(r.Drifted))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds++
	c.observeErr += uint64(r.Failed)
	if err != nil {
		c.failed++
		c.failedInRow++
		return
	}
	c.failedInRow = 0
	c.last, c.lastTook = r, took
}

func (c *counters) task(kind log.TaskKind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.tasks[kind][1]++
	} else {
		c.tasks[kind][0]++
	}
}
