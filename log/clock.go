package log

import (
	"sync/atomic"
	"time"
)

// clock is log time: what it was at this start, plus monotonic time since. A step of the wall clock never moves it.
type clock struct {
	base      int64 // ms
	monotonic func() time.Duration
	start     time.Duration
	wall      func() time.Time
	last      atomic.Int64 // the largest ever returned
}

// newClock begins at the log time of the last event, or at the wall time if that is later.
func newClock(opts Options, last int64) *clock {
	c := &clock{base: max(last, opts.Now().UnixMilli()), monotonic: opts.Monotonic, start: opts.Monotonic(), wall: opts.Now}
	c.last.Store(c.base)
	return c
}

func (c *clock) now() int64 {
	t := c.base + (c.monotonic() - c.start).Milliseconds()
	for {
		last := c.last.Load()
		if t <= last {
			return last
		}
		if c.last.CompareAndSwap(last, t) {
			return t
		}
	}
}
