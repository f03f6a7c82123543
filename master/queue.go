package master

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/oklog/ulid/v2"

	"tidemark/log"
)

// ErrUnknownTask says that there is no such task, or not any more.
var ErrUnknownTask = errors.New("no such task")

// Enqueue queues a task for an experiment, which must have been seen (ErrUnknown). If one of the kind is queued or running for it, or the
// last one found nothing to do and nothing has changed since, that one is returned, and created is false (M8). A person's request
// bypasses cooldowns.
func (m *Master) Enqueue(ctx context.Context, kind log.TaskKind, name string) (task *Task, created bool, err error) {
	if err := m.Seen(ctx, name); err != nil {
		return nil, false, err
	}
	return m.enqueue(ctx, target{kind, name}, "", true)
}

// Seen returns nil if an experiment was ever seen, and ErrUnknown if it was not.
func (m *Master) Seen(ctx context.Context, name string) error {
	if m.snap.Load().row(name) != nil || m.fold.knownOf(name).version > 0 {
		return nil
	}
	row, err := m.observe(ctx, name)
	if err == nil && row == nil {
		err = ErrUnknown
	}
	return err
}

func (m *Master) enqueue(ctx context.Context, at target, options string, manual bool) (*Task, bool, error) {
	// One at a time, so that a thousand requests for one target append one event. The fold would drop the others.
	select {
	case m.queueing <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-m.queueing }()
	if t := m.fold.liveTask(at); t != nil {
		return t, false, nil
	}
	if t := m.idle(ctx, at, options); t != nil {
		return t, false, nil
	}
	id, err := ulid.New(ulid.Timestamp(m.opts.Now()), rand.Reader)
	if err != nil {
		return nil, false, fmt.Errorf("make an id: %w", err)
	}
	seq, err := m.events.Append(ctx, &log.TaskQueued{ID: id, Task: at.kind, Target: at.name, Options: options, Manual: manual})
	if err != nil {
		return nil, false, fmt.Errorf("append the task: %w", err)
	}
	if err := m.fold.wait(ctx, seq); err != nil {
		return nil, false, err
	}
	t, err := m.Task(id)
	return t, true, err
}

// idle returns the task that found nothing to do for a target, as long as the same work would find nothing again; nil if there is none.
func (m *Master) idle(ctx context.Context, at target, options string) *Task {
	t, unchanged := m.fold.lastNoop(at)
	if t == nil || unchanged.options != options {
		return nil
	}
	row, err := m.observe(ctx, at.name)
	if err != nil || row == nil || row.Version != unchanged.version {
		return nil
	}
	return t
}

// lastNoop returns the task that last changed nothing for a target, if it is remembered and still in the history.
func (f *Fold) lastNoop(at target) (*Task, noop) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	unchanged := f.tasks.noops[at]
	if unchanged.version == 0 {
		return nil, unchanged
	}
	for _, t := range slices.Backward(f.tasks.ended) {
		if t.target() == at {
			if t.State == TaskDone && t.Unchanged {
				return t, unchanged
			}
			break
		}
	}
	return nil, unchanged
}

// liveTask returns the task for a target that is queued or running; nil if there is none.
func (f *Fold) liveTask(at target) *Task {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.tasks.live[at]
}

// waitingTasks returns what is queued, the first first.
func (f *Fold) waitingTasks() []*Task {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Clone(f.tasks.waiting)
}

// Task returns a task.
func (m *Master) Task(id ulid.ULID) (*Task, error) {
	m.fold.mu.RLock()
	defer m.fold.mu.RUnlock()
	t := m.fold.tasks.byID[id]
	if t == nil {
		return nil, ErrUnknownTask
	}
	return t, nil
}

// TaskRequest asks for one page of tasks.
type TaskRequest struct {
	State  TaskState // 0: all
	Target string    // "": all
	Limit  int       // from 1 to MaxLimit; 0: DefaultLimit
	Offset int
}

// TaskPage is one page of tasks, the newest first.
type TaskPage struct {
	Tasks           []*Task
	Total           int
	Limit, Offset   int
	Queued, Running int // of all
	Paused          bool
}

// Tasks returns one page of tasks.
func (m *Master) Tasks(q TaskRequest) (*TaskPage, error) {
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	if q.Limit < 1 || q.Limit > MaxLimit {
		return nil, &BadRequest{"limit", "not between 1 and 200"}
	}
	if q.Offset < 0 {
		return nil, &BadRequest{"offset", "negative"}
	}
	m.fold.mu.RLock()
	all := make([]*Task, 0, len(m.fold.tasks.byID))
	p := &TaskPage{Limit: q.Limit, Offset: q.Offset, Queued: len(m.fold.tasks.waiting)}
	p.Running = len(m.fold.tasks.live) - p.Queued
	for _, t := range m.fold.tasks.byID {
		if (q.State == 0 || t.State == q.State) && (q.Target == "" || t.Target == q.Target) {
			all = append(all, t)
		}
	}
	m.fold.mu.RUnlock()
	slices.SortFunc(all, func(a, b *Task) int { return bySeq(b, a) })
	p.Total, p.Paused = len(all), m.exec.isPaused()
	p.Tasks = window(all, ListRequest{Limit: q.Limit, Offset: q.Offset})
	return p, nil
}

// Cooldown is a target that sweeps pass over for a while, because its tasks have failed.
type Cooldown struct {
	Kind     log.TaskKind
	Target   string
	Failures uint64
	Class    string // of the last error
	Until    int64  // log time, ms
	Left     int64  // ms
}

// Cooldowns returns the targets that are passed over now, by target and kind.
func (m *Master) Cooldowns() []Cooldown {
	now := m.events.LogTime()
	m.fold.mu.RLock()
	defer m.fold.mu.RUnlock()
	var out []Cooldown
	for at, f := range m.fold.tasks.failures {
		if until := f.until(); until > now {
			out = append(out, Cooldown{Kind: at.kind, Target: at.name, Failures: f.count, Class: f.class, Until: until, Left: until - now})
		}
	}
	slices.SortFunc(out, func(a, b Cooldown) int {
		if a.Target != b.Target {
			if a.Target < b.Target {
				return -1
			}
			return 1
		}
		return int(a.Kind) - int(b.Kind)
	})
	return out
}

// memory returns what is remembered of a target.
func (f *Fold) memory(at target) (failure, noop) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.tasks.failures[at], f.tasks.noops[at]
}
