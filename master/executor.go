package master

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemark/log"
	"tidemark/projections"
)

const (
	// stopWait bounds what a stop waits for tasks that run; the rest is interrupted, and queued again by the next start.
	stopWait = 4 * time.Second
	// finishWait bounds the append of a task's end.
	finishWait = 30 * time.Second
	// claimRetry is when a claim that the log refused is tried again.
	claimRetry = time.Second
)

// budgets are the tasks of a kind that run at one time.
var budgets = [...]int{log.TaskCompact: 2, log.TaskPublish: 1, log.TaskRescan: 1}

// executor says who may work on what. A place of the kind and the experiment itself are taken before a task is claimed (M8, M9).
type executor struct {
	mu      sync.Mutex
	paused  bool
	running int // that may run at one time; 0: as their kinds may
	used    [len(budgets)]int
	busy    map[string]struct{} // experiments
	changed projections.Signal
}

// pick takes the places for the first of the tasks that can have them.
func (x *executor) pick(waiting []*Task) *Task {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.paused || x.running > 0 && x.used[log.TaskCompact]+x.used[log.TaskPublish]+x.used[log.TaskRescan] >= x.running {
		return nil
	}
	for _, t := range waiting {
		if _, ok := x.busy[t.Target]; ok || x.used[t.Kind] >= budgets[t.Kind] {
			continue
		}
		x.take(t.Target)
		x.used[t.Kind]++
		return t
	}
	return nil
}

func (x *executor) take(name string) {
	if x.busy == nil {
		x.busy = make(map[string]struct{})
	}
	x.busy[name] = struct{}{}
}

// release gives the places of a task back.
func (x *executor) release(t *Task) {
	x.mu.Lock()
	x.used[t.Kind]--
	delete(x.busy, t.Target)
	x.mu.Unlock()
	x.changed.Fire()
}

// claim takes an experiment for something that is no task; false if a task has it.
func (x *executor) claim(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.busy[name]; ok {
		return false
	}
	x.take(name)
	return true
}

func (x *executor) unclaim(name string) {
	x.mu.Lock()
	delete(x.busy, name)
	x.mu.Unlock()
	x.changed.Fire()
}

func (x *executor) isPaused() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.paused
}

func (x *executor) pause(yes bool) {
	x.mu.Lock()
	x.paused = yes
	x.mu.Unlock()
	x.changed.Fire()
}

// Pause lets tasks that run finish and claims no others, until Resume or the next start.
func (m *Master) Pause() { m.exec.pause(true) }

// Resume claims tasks again.
func (m *Master) Resume() { m.exec.pause(false) }

// workLoop claims and works off tasks until ctx ends. Then nothing more is claimed, as after Pause, and what runs has a while to finish.
func (m *Master) workLoop(ctx context.Context) error {
	run, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	defer interrupt()
	var working sync.WaitGroup
	defer func() {
		stop := time.AfterFunc(stopWait, interrupt)
		defer stop.Stop()
		working.Wait()
	}()
	for {
		changed, folded := m.exec.changed.Wait(), m.fold.Changed()
		for ctx.Err() == nil {
			t := m.exec.pick(m.fold.waitingTasks())
			if t == nil {
				break
			}
			if err := m.start(ctx, t); err != nil {
				m.exec.release(t)
				if ctx.Err() != nil {
					return nil
				}
				m.logger.Error("a task cannot be claimed", "task", t.ID, "err", err)
				folded = nil
				break
			}
			working.Go(func() {
				defer m.exec.release(t)
				m.work(run, t)
			})
		}
		var retry <-chan time.Time
		if folded == nil {
			retry = time.After(claimRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-folded:
		case <-retry:
		}
	}
}

// start claims a task: from the event on it runs.
func (m *Master) start(ctx context.Context, t *Task) error {
	seq, err := m.events.Append(ctx, &log.TaskStarted{ID: t.ID})
	if err != nil {
		return err
	}
	return m.fold.wait(ctx, seq)
}

// work does a task and says how it ended. If it was interrupted by the stop of the process, nothing is said, and the next start queues
// it again.
func (m *Master) work(ctx context.Context, t *Task) {
	bound, cancel := context.WithTimeout(ctx, m.opts.TaskTimeout)
	done, err := m.do(bound, t)
	cancel()
	if ctx.Err() != nil {
		return
	}
	end := &log.TaskFinished{ID: t.ID, Message: done.message, Unchanged: done.unchanged, Version: done.version}
	if err != nil {
		end = &log.TaskFinished{ID: t.ID, Failed: true, Class: classOf(err), Message: err.Error()}
	}
	m.counters.task(t.Kind, err)
	ctx, cancel = context.WithTimeout(ctx, finishWait)
	defer cancel()
	seq, err := m.events.Append(ctx, end)
	if err == nil {
		err = m.fold.wait(ctx, seq)
	}
	if err != nil {
		m.logger.Error("the end of a task cannot be written; the next start does it again", "task", t.ID, "err", err)
	}
}

// do does what a task is for.
func (m *Master) do(ctx context.Context, t *Task) (outcome, error) {
	switch t.Kind {
	case log.TaskCompact:
		done, seq, err := m.compact(ctx, t.Target)
		if err == nil && seq > 0 {
			err = m.panes.Wait(ctx, seq)
		}
		return done, err
	case log.TaskPublish:
		return m.publish(ctx, t.Target)
	case log.TaskRescan:
		row, err := m.Rescan(ctx, t.Target)
		if err != nil {
			return outcome{}, err
		}
		return outcome{message: fmt.Sprintf("%s at version %d", row.State, row.Version)}, nil
	}
	return outcome{}, fmt.Errorf("kind %d of task is not known", t.Kind)
}

// StuckError says that open panes do not close although their time has come.
type StuckError struct {
	Pending int
	Since   int64 // log time, ms, since which they should have closed
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%d panes are open, some since log time %d for twice as long as they may: the projection is stuck", e.Pending, e.Since)
}

// publish lets log time pass once, so that whatever is due by the clock closes, and reports if it does not. It never says anything for a
// producer.
func (m *Master) publish(ctx context.Context, name string) (outcome, error) {
	before, row, err := m.observation(ctx, name)
	switch {
	case err != nil:
		return outcome{}, err
	case row == nil:
		return outcome{}, fmt.Errorf("%w that is hot", ErrUnknown)
	case before.Pending == 0:
		return outcome{message: "nothing is open", unchanged: true}, nil
	}
	seq, err := m.events.Append(ctx, &log.Tick{})
	if err != nil {
		return outcome{}, fmt.Errorf("append a tick: %w", err)
	}
	if seq == 0 {
		return outcome{}, errRefused
	}
	if err := m.panes.Wait(ctx, seq); err != nil {
		return outcome{}, fmt.Errorf("apply the tick: %w", err)
	}
	loads, err := m.loads.Loads(ctx)
	if err != nil {
		return outcome{}, err
	}
	left := 0
	for _, l := range loads {
		if l.Name != name {
			continue
		}
		if left = l.Pending; l.StuckAt <= m.events.LogTime() {
			return outcome{}, &StuckError{Pending: l.Pending, Since: l.StuckAt}
		}
	}
	return outcome{message: fmt.Sprintf("%d panes were open, %d are", before.Pending, left), unchanged: left >= before.Pending}, nil
}

// errRefused says that no tick may be written, because writes are refused: what senders hold back must come first.
var errRefused = errors.New("log time may not pass now: writes are refused")

// The classes of errors that tasks report.
const (
	classUnknown  = "unknown_target"
	classTimeout  = "timeout"
	classPartial  = "partial"
	classDurable  = "not_durable"
	classStuck    = "stuck"
	classRefused  = "refused"
	classLog      = "log"
	classCorrupt  = "corrupt"
	classInternal = "internal"
)

// classOf sorts errors by their type.
func classOf(err error) string {
	var partial *PartialError
	var stuck *StuckError
	switch {
	case errors.Is(err, ErrUnknown):
		return classUnknown
	case errors.Is(err, context.DeadlineExceeded):
		return classTimeout
	case errors.As(err, &partial):
		return classPartial
	case errors.Is(err, ErrNotDurable):
		return classDurable
	case errors.As(err, &stuck):
		return classStuck
	case errors.Is(err, errRefused):
		return classRefused
	case errors.Is(err, log.ErrPoisoned), errors.Is(err, log.ErrClosed):
		return classLog
	case errors.Is(err, ErrCorrupt):
		return classCorrupt
	}
	return classInternal
}
