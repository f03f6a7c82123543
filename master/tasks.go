package master

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"tidemark/log"
)

const (
	// maxHistory bounds the finished tasks that are kept, and historyAge how long, by log time.
	maxHistory = 1000
	historyAge = 24 * time.Hour
	// A target that has failed firstCooldown times in a row is passed over by sweeps for minCooldown from its last failure, and for
	// twice as long after each further one, to at most maxCooldown.
	firstCooldown = 3
	minCooldown   = 10 * time.Minute
	maxCooldown   = 6 * time.Hour
)

// TaskState is where a task stands.
type TaskState uint8

// The states of a task. The numbers are on disk.
const (
	TaskQueued  TaskState = 1
	TaskRunning TaskState = 2
	TaskDone    TaskState = 3
	TaskFailed  TaskState = 4
)

// String returns the name of the state in the API.
func (s TaskState) String() string {
	switch s {
	case TaskQueued:
		return "queued"
	case TaskRunning:
		return "running"
	case TaskDone:
		return "done"
	default:
		return "failed"
	}
}

func (s TaskState) finished() bool { return s == TaskDone || s == TaskFailed }

// Task is one piece of maintenance for one experiment. Tasks are shared and never changed.
type Task struct {
	ID       ulid.ULID
	Kind     log.TaskKind
	Target   string
	Options  string
	Manual   bool // a person asked for it, not a sweep
	State    TaskState
	Attempts int // times that it was started

	QueuedAt, StartedAt, FinishedAt int64 // wall time, ms; math.MinInt64 if it has not come to that

	Class     string // of the error, by its type; empty unless it failed
	Message   string // of the error, or what was done
	Unchanged bool   // there was nothing to do

	queuedSeq, finishedSeq log.Seq
	finishedLog            int64 // log time, ms
}

// target is what a task is about.
type target struct {
	kind log.TaskKind
	name string
}

func (t *Task) target() target { return target{t.Kind, t.Target} }

// failure counts the tasks for a target that have failed in a row.
type failure struct {
	count uint64
	last  int64 // log time of the last one, ms
	class string
}

// until is the log time up to which sweeps pass the target over; never if they do not.
func (f failure) until() int64 {
	if f.count < firstCooldown {
		return never
	}
	wait := maxCooldown
	if n := f.count - firstCooldown; n < 16 {
		wait = min(maxCooldown, minCooldown<<n)
	}
	return f.last + wait.Milliseconds()
}

// noop remembers that a task changed nothing: the same work on the same version would not either.
type noop struct {
	version log.Seq
	options string
}

// taskTable is the tasks' part of the fold. Changes go to put as rows.
type taskTable struct {
	byID     map[ulid.ULID]*Task
	live     map[target]*Task // queued or running
	waiting  []*Task          // queued, by the sequence at which they were queued first
	ended    []*Task          // finished, by the sequence at which they were
	failures map[target]failure
	noops    map[target]noop
}

func newTaskTable() taskTable {
	return taskTable{
		byID: make(map[ulid.ULID]*Task), live: make(map[target]*Task), failures: make(map[target]failure), noops: make(map[target]noop),
	}
}

type putRow func(key, value []byte)

func taskKey(id ulid.ULID) []byte { return append([]byte{keyTask}, id[:]...) }

// set puts a new state of a task into the table.
func (t *taskTable) set(next *Task, put putRow) {
	old := t.byID[next.ID]
	t.byID[next.ID] = next
	if old != nil && old.State == TaskQueued {
		t.waiting = slices.DeleteFunc(t.waiting, func(w *Task) bool { return w.ID == next.ID })
	}
	switch next.State {
	case TaskQueued:
		i, _ := slices.BinarySearchFunc(t.waiting, next, bySeq)
		t.waiting = slices.Insert(t.waiting, i, next)
		t.live[next.target()] = next
	case TaskRunning:
		t.live[next.target()] = next
	default:
		delete(t.live, next.target())
		t.ended = append(t.ended, next)
	}
	put(taskKey(next.ID), next.encode())
}

func bySeq(a, b *Task) int { return cmp.Compare(a.queuedSeq, b.queuedSeq) }

// queued takes a new task, unless there is one for its target that has not ended (M8).
func (t *taskTable) queued(ev *log.Event, b *log.TaskQueued, put putRow) {
	if _, ok := t.live[target{b.Task, b.Target}]; ok || t.byID[b.ID] != nil {
		return
	}
	t.set(&Task{
		ID: b.ID, Kind: b.Task, Target: b.Target, Options: b.Options, Manual: b.Manual, State: TaskQueued,
		QueuedAt: ev.WallTime, StartedAt: never, FinishedAt: never, queuedSeq: ev.Seq,
	}, put)
}

func (t *taskTable) started(ev *log.Event, b *log.TaskStarted, put putRow) {
	old := t.byID[b.ID]
	if old == nil || old.State != TaskQueued {
		return
	}
	next := *old
	next.State, next.StartedAt = TaskRunning, ev.WallTime
	next.Attempts++
	t.set(&next, put)
}

func (t *taskTable) finished(ev *log.Event, b *log.TaskFinished, put putRow) {
	old := t.byID[b.ID]
	if old == nil || old.State != TaskRunning {
		return
	}
	next := *old
	next.State, next.FinishedAt = TaskDone, ev.WallTime
	next.Class, next.Message, next.Unchanged = b.Class, b.Message, b.Unchanged
	next.finishedSeq, next.finishedLog = ev.Seq, ev.LogTime
	at := next.target()
	if b.Failed {
		next.State = TaskFailed
		f := failure{count: t.failures[at].count + 1, last: ev.LogTime, class: b.Class}
		t.failures[at] = f
		e := encoder{}
		e.u(f.count)
		e.v(f.last)
		e.str(f.class)
		put(kindKey(keyFailure, at), e.b)
	} else if _, ok := t.failures[at]; ok {
		delete(t.failures, at)
		put(kindKey(keyFailure, at), nil)
	}
	switch {
	case b.Failed:
	case b.Unchanged && b.Version > 0:
		t.noops[at] = noop{b.Version, next.Options}
		e := encoder{}
		e.u(uint64(b.Version))
		e.str(next.Options)
		put(kindKey(keyNoop, at), e.b)
	default:
		if _, ok := t.noops[at]; ok {
			delete(t.noops, at)
			put(kindKey(keyNoop, at), nil)
		}
	}
	t.set(&next, put)
	for len(t.ended) > maxHistory {
		t.dropOldest(put)
	}
}

// interrupted queues again what ran when the process ended.
func (t *taskTable) interrupted(put putRow) {
	var running []*Task
	for _, task := range t.live {
		if task.State == TaskRunning {
			running = append(running, task)
		}
	}
	slices.SortFunc(running, bySeq)
	for _, task := range running {
		next := *task
		next.State = TaskQueued
		t.set(&next, put)
	}
}

// age drops finished tasks that are too old.
func (t *taskTable) age(logTime int64, put putRow) {
	for len(t.ended) > 0 && t.ended[0].finishedLog < logTime-historyAge.Milliseconds() {
		t.dropOldest(put)
	}
}

func (t *taskTable) dropOldest(put putRow) {
	old := t.ended[0]
	t.ended[0] = nil
	t.ended = t.ended[1:]
	delete(t.byID, old.ID)
	put(taskKey(old.ID), nil)
}

// forget drops what is remembered of targets.
func (t *taskTable) forget(which func(target) bool, put putRow) {
	for at := range t.failures {
		if which(at) {
			delete(t.failures, at)
			put(kindKey(keyFailure, at), nil)
		}
	}
	for at := range t.noops {
		if which(at) {
			delete(t.noops, at)
			put(kindKey(keyNoop, at), nil)
		}
	}
}

const taskVersion = 1

// encode returns the task, version 1: version:u, kind:u, target, options, flags:u (1 manual, 2 unchanged), state:u, attempts:u, three
// times:v, class, message, queued by:u, finished by:u, finished in log time:v. Strings have their length:u before them.
func (t *Task) encode() []byte {
	e := encoder{}
	e.u(taskVersion, uint64(t.Kind))
	e.str(t.Target)
	e.str(t.Options)
	flags := uint64(0)
	if t.Manual {
		flags |= 1
	}
	if t.Unchanged {
		flags |= 2
	}
	e.u(flags, uint64(t.State), uint64(t.Attempts))
	e.v(t.QueuedAt, t.StartedAt, t.FinishedAt)
	e.str(t.Class)
	e.str(t.Message)
	e.u(uint64(t.queuedSeq), uint64(t.finishedSeq))
	e.v(t.finishedLog)
	return e.b
}

func decodeTask(id ulid.ULID, b []byte) (*Task, error) {
	d := decoder{b: b}
	d.version(taskVersion)
	t := &Task{ID: id, Kind: log.TaskKind(d.u()), Target: d.str(), Options: d.str()}
	flags := d.u()
	t.Manual, t.Unchanged = flags&1 != 0, flags&2 != 0
	t.State, t.Attempts = TaskState(d.u()), int(d.u())
	t.QueuedAt, t.StartedAt, t.FinishedAt = d.v(), d.v(), d.v()
	t.Class, t.Message = d.str(), d.str()
	t.queuedSeq, t.finishedSeq, t.finishedLog = log.Seq(d.u()), log.Seq(d.u()), d.v()
	if d.err == nil && (t.State < TaskQueued || t.State > TaskFailed || flags > 3) {
		d.fail("unknown state")
	}
	return t, d.end()
}

// restore reads the table from its rows.
func (t *taskTable) restore(rows Rows) error {
	tasks := rows.Each([]byte{keyTask}, nil, func(k, v []byte) (bool, error) {
		var id ulid.ULID
		if len(k) != 1+len(id) {
			return false, ErrCorrupt
		}
		copy(id[:], k[1:])
		task, err := decodeTask(id, v)
		if err != nil {
			return false, err
		}
		t.set(task, func(_, _ []byte) {})
		return true, nil
	})
	slices.SortFunc(t.ended, func(a, b *Task) int { return cmp.Compare(a.finishedSeq, b.finishedSeq) })
	failures := rows.Each([]byte{keyFailure}, nil, func(k, v []byte) (bool, error) {
		at, err := parseKindKey(k)
		d := decoder{b: v}
		t.failures[at] = failure{count: d.u(), last: d.v(), class: d.str()}
		return true, errors.Join(err, d.end())
	})
	noops := rows.Each([]byte{keyNoop}, nil, func(k, v []byte) (bool, error) {
		at, err := parseKindKey(k)
		d := decoder{b: v}
		t.noops[at] = noop{version: log.Seq(d.u()), options: d.str()}
		return true, errors.Join(err, d.end())
	})
	return errors.Join(tasks, failures, noops)
}
