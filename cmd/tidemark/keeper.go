package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/pane"
)

const (
	// keepInterval is the time between two looks at the log's age and size.
	keepInterval = time.Minute
	// keepSlack is the part of a limit by which the log outgrows it before it is cut, and by which a cut for size goes below
	// it: sealing a base costs about as much for a little as for a lot.
	keepSlack = 16
	// capPart is the part of the size limit by which the log may exceed it before writes are refused.
	capPart = 4
	// settleTimeout bounds how long a pass waits for the log's own flush before it measures the log.
	settleTimeout = 30 * time.Second
)

// limits are what the log may retain. Zero means no limit.
type limits struct {
	age  time.Duration // by log time
	size uint64        // bytes on disk
}

// cap is the size from which writes are refused.
func (l limits) cap() uint64 { return l.size + l.size/capPart }

// keeper bounds the log by age and size. It never removes an event that a restart could ask for: it seals a base of the views
// first, and keeps below its sequence. So a projection that writes no checkpoint pins the log, which counts as a failure and
// shows in the readiness of the service; streams that are being folded from the log in the background pin it too, which is
// no failure; when the log then reaches its cap, writes are refused instead of filling the disk.
type keeper struct {
	events  *log.Log
	durable func() log.Seq // what no restart asks for again
	views   *bucket.Store
	bases   string
	limits  func() limits
	logger  *slog.Logger
	// since is where the log ended at the start. A heal up to there is found from the base before it, which no other may replace
	// until what it changes is on disk.
	since log.Seq

	planning *sync.Mutex    // held while it truncates: plan events name the floor
	wanted   func() log.Seq // the first event that streams still need which are being folded from the log
	settled  func() bool    // the fold knows every plan of the log, and so the events that it still needs

	forgetter *pane.Forgetter

	truncations, failures, base atomic.Uint64
	lastError                   atomic.Pointer[string] // of the last pass; nil: it had none
}

// run makes a pass every minute until ctx ends, and returns nil then.
func (k *keeper) run(ctx context.Context) error {
	every := time.NewTicker(keepInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		k.pass(ctx)
	}
}

// pass cuts the log if it is due, and counts how that went.
func (k *keeper) pass(ctx context.Context) {
	err := k.keep(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		n, text := k.failures.Add(1), err.Error()
		k.lastError.Store(&text)
		k.logger.Error("The log is due for truncation and cannot be truncated", "consecutive", n, "err", err)
	default:
		k.failures.Store(0)
		k.lastError.Store(nil)
	}
	k.tidy(ctx)
}

// tidy has the log forget the series that nothing names any more. What cannot go now goes later.
func (k *keeper) tidy(ctx context.Context) {
	k.events.Tidy()
	before := k.forgetter.Forgotten()
	err := k.forgetter.Pass(ctx, log.Seq(k.base.Load()))
	if err != nil && ctx.Err() == nil {
		k.logger.Error("Series that have gone cannot be forgotten", "err", err)
	}
	if n := k.forgetter.Forgotten() - before; n > 0 {
		k.logger.Info("Series forgotten", "series", n)
	}
}

func (k *keeper) keep(ctx context.Context) error {
	if cut, err := k.cut(ctx); err != nil || !cut {
		return err
	}
	return k.events.Reclaim(ctx)
}

// cut truncates the log if that is due and may be.
func (k *keeper) cut(ctx context.Context) (done bool, err error) {
	k.planning.Lock()
	defer k.planning.Unlock()
	if !k.settled() {
		return false, nil // a new plan may want the oldest events; soon it is known
	}
	l := k.limits()
	through, err := k.due(ctx, l)
	floor := k.events.Floor()
	if err != nil || through < floor {
		return false, err
	}
	durable := k.durable()
	if durable < k.since {
		return false, nil // checkpoints that fail are reported by themselves
	}
	through = min(through, durable)
	if through < floor {
		return false, fmt.Errorf("a restart would replay from sequence %d, and the log begins at %d", through, floor)
	}
	if wanted := k.wanted(); wanted <= through {
		// Streams that are being folded from the log still need these events. That passes.
		if through = wanted - 1; through < floor {
			return false, nil
		}
	}
	base, err := k.views.Seal(k.bases, uint64(floor))
	if err != nil {
		return false, err
	}
	k.base.Store(base.Seq)
	through = min(through, log.Seq(base.Seq))
	if err := k.events.Truncate(through); err != nil {
		return false, err
	}
	k.truncations.Add(1)
	k.logger.Info("Log truncated", "through", through, "base", base.Path)
	return true, nil
}

// due returns the last event that may go by age or size; one below the floor if none may.
func (k *keeper) due(ctx context.Context, l limits) (log.Seq, error) {
	floor, head := k.events.Floor(), k.events.Head()
	through := floor - 1
	if l.age > 0 {
		now, age := k.events.LogTime(), l.age.Milliseconds()
		late, err := k.events.FirstAt(now - age - age/keepSlack)
		if err != nil {
			return 0, err
		}
		if late > floor {
			first, err := k.events.FirstAt(now - age)
			if err != nil {
				return 0, err
			}
			through = first - 1
		}
	}
	if size := k.events.Metrics().KeptBytes; l.size > 0 && size > l.size {
		bound, cancel := context.WithTimeout(ctx, settleTimeout)
		err := k.events.Settle(bound)
		cancel()
		if err != nil {
			return 0, err
		}
		first, err := k.firstWithin(floor, head, l.size-l.size/keepSlack)
		if err != nil {
			return 0, err
		}
		if first == floor && through < floor && size > l.cap() {
			return 0, fmt.Errorf("the log takes %d bytes, beyond its cap of %d, but its events are not what takes them", size, l.cap())
		}
		through = max(through, first-1)
	}
	return min(through, max(head, 1)-1), nil
}

// firstWithin returns the first event from which on the log takes at most so many bytes.
func (k *keeper) firstWithin(floor, head log.Seq, bytes uint64) (log.Seq, error) {
	var errs []error
	n := sort.Search(int(head-floor), func(i int) bool {
		size, err := k.events.SizeFrom(floor + log.Seq(i))
		errs = append(errs, err)
		return size <= bytes
	})
	return floor + log.Seq(n), errors.Join(errs...)
}

// full says whether the log has reached its cap.
func (k *keeper) full() bool {
	l := k.limits()
	return l.size > 0 && k.events.Metrics().KeptBytes > l.cap()
}

// reasons says in words that the log cannot be truncated, once that has lasted.
func (k *keeper) reasons() []string {
	if n := k.failures.Load(); n >= failuresToReport {
		return []string{fmt.Sprintf("the log could not be truncated %d times in a row", n)}
	}
	return nil
}
