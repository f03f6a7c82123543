package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"

	kithttp "github.com/go-kit/kit/transport/http"
	"github.com/oklog/ulid/v2"

	"tidemark/log"
	"tidemark/master"
)

// maxTaskBytes bounds the body of a request for a task.
const maxTaskBytes = 64 << 10

// TaskQueue is where tasks are queued and looked up.
type TaskQueue interface {
	Enqueue(ctx context.Context, kind log.TaskKind, name string) (task *master.Task, created bool, err error)
	Tasks(master.TaskRequest) (*master.TaskPage, error)
	Task(ulid.ULID) (*master.Task, error)
}

// Scheduler is what decides when tasks run.
type Scheduler interface {
	Cooldowns() []master.Cooldown
	Pause()
	Resume()
}

// Tasks is what the routes about tasks need.
type Tasks struct {
	Queue     TaskQueue
	Scheduler Scheduler
}

type taskRow struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`   // compact, publish or rescan
	Target    string `json:"target"` // an experiment
	State     string `json:"state"`  // queued, running, done or failed
	Manual    bool   `json:"manual"` // a person asked for it
	Attempts  int    `json:"attempts"`
	Queued    *int64 `json:"queued_at_ms"`
	Started   *int64 `json:"started_at_ms"`
	Finished  *int64 `json:"finished_at_ms"`
	Class     string `json:"error_class,omitempty"`
	Error     string `json:"error,omitempty"`
	Message   string `json:"message,omitempty"` // what was done
	Unchanged bool   `json:"unchanged"`         // there was nothing to do
}

func taskOf(t *master.Task) taskRow {
	row := taskRow{
		ID: t.ID.String(), Kind: t.Kind.String(), Target: t.Target, State: t.State.String(), Manual: t.Manual, Attempts: t.Attempts,
		Queued: at(t.QueuedAt), Started: at(t.StartedAt), Finished: at(t.FinishedAt), Class: t.Class, Unchanged: t.Unchanged,
	}
	if t.State == master.TaskFailed {
		row.Error = t.Message
	} else {
		row.Message = t.Message
	}
	return row
}

// NewTaskPost returns the handler of POST /api/v1/tasks.
func NewTaskPost(x Tasks) http.Handler {
	queue := func(ctx context.Context, request any) (any, error) {
		q := request.(taskPost)
		t, _, err := x.Queue.Enqueue(ctx, q.kind, q.target)
		if err != nil {
			return nil, masterError(err)
		}
		return taskOf(t), nil
	}
	return kithttp.NewServer(queue, decodeTaskPost, encodeAccepted, kithttp.ServerErrorEncoder(EncodeError))
}

// NewTaskList returns the handler of GET /api/v1/tasks.
func NewTaskList(x Tasks) http.Handler {
	list := func(_ context.Context, request any) (any, error) {
		p, err := x.Queue.Tasks(request.(master.TaskRequest))
		if err != nil {
			return nil, masterError(err)
		}
		rows := make([]taskRow, len(p.Tasks))
		for i, t := range p.Tasks {
			rows[i] = taskOf(t)
		}
		return map[string]any{
			"tasks": rows, "total": p.Total, "limit": p.Limit, "offset": p.Offset, "queued": p.Queued, "running": p.Running, "paused": p.Paused,
		}, nil
	}
	return kithttp.NewServer(list, decodeTaskList, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// NewTask returns the handler of GET /api/v1/tasks/{id}.
func NewTask(x Tasks) http.Handler {
	one := func(_ context.Context, request any) (any, error) {
		t, err := x.Queue.Task(request.(ulid.ULID))
		if err != nil {
			return nil, masterError(err)
		}
		return taskOf(t), nil
	}
	decode := func(_ context.Context, r *http.Request) (any, error) {
		id, err := ulid.ParseStrict(r.PathValue("id"))
		if err != nil {
			return nil, &Error{Type: TypeNotFound, Err: master.ErrUnknownTask}
		}
		return id, nil
	}
	return kithttp.NewServer(one, decode, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

type cooldownRow struct {
	Kind     string `json:"kind"`
	Target   string `json:"target"`
	Failures uint64 `json:"failures"` // in a row
	Class    string `json:"error_class"`
	Left     int64  `json:"left_ms"`
}

// NewCooldowns returns the handler of GET /api/v1/scheduler/cooldowns.
func NewCooldowns(x Tasks) http.Handler {
	return newStatus(func(context.Context, any) (any, error) {
		rows := []cooldownRow{}
		for _, c := range x.Scheduler.Cooldowns() {
			rows = append(rows, cooldownRow{c.Kind.String(), c.Target, c.Failures, c.Class, c.Left})
		}
		return map[string]any{"cooldowns": rows}, nil
	})
}

// NewPause returns the handlers of POST /api/v1/tasks/pause and POST /api/v1/tasks/resume.
func NewPause(x Tasks) (pause, resume http.Handler) {
	switched := func(f func(), paused bool) http.Handler {
		return newStatus(func(context.Context, any) (any, error) {
			f()
			return map[string]bool{"paused": paused}, nil
		})
	}
	return switched(x.Scheduler.Pause, true), switched(x.Scheduler.Resume, false)
}

type taskPost struct {
	kind   log.TaskKind
	target string
}

// decodeTaskPost reads {"kind": …, "target": …}, or a form with the same members.
func decodeTaskPost(_ context.Context, r *http.Request) (any, error) {
	var body struct {
		Kind   string `json:"kind"`
		Target string `json:"target"`
	}
	if mt, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mt == "application/json" {
		b, err := io.ReadAll(io.LimitReader(r.Body, maxTaskBytes+1))
		switch {
		case err != nil:
			return nil, badData("error reading the request body: %w", err)
		case len(b) > maxTaskBytes:
			e := badData("request body larger than %d bytes", maxTaskBytes)
			e.Status = http.StatusRequestEntityTooLarge
			return nil, e
		}
		if err := json.Unmarshal(b, &body); err != nil {
			return nil, badData("the body is no JSON object with the strings kind and target: %w", err)
		}
	} else {
		f, perr := readForm(nil, r)
		if perr != nil {
			return nil, perr
		}
		body.Kind, body.Target = f.Get("kind"), f.Get("target")
	}
	q := taskPost{target: body.Target}
	for _, k := range []log.TaskKind{log.TaskCompact, log.TaskPublish, log.TaskRescan} {
		if k.String() == body.Kind {
			q.kind = k
		}
	}
	if q.kind == 0 {
		return nil, invalidParam("kind", errors.New("neither compact, publish nor rescan"))
	}
	if q.target == "" {
		return nil, invalidParam("target", errors.New("empty; it is the name of an experiment"))
	}
	return q, nil
}

func decodeTaskList(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	q := master.TaskRequest{Target: f.Get("target")}
	if v := f.Get("state"); v != "" {
		for s := master.TaskQueued; s <= master.TaskFailed; s++ {
			if s.String() == v {
				q.State = s
			}
		}
		if q.State == 0 {
			return nil, invalidParam("state", errors.New("neither queued, running, done nor failed"))
		}
	}
	if err := f.whole("limit", 1, master.MaxLimit, &q.Limit); err != nil {
		return nil, err
	}
	if err := f.page("offset", &q.Offset); err != nil {
		return nil, err
	}
	return q, nil
}

// encodeAccepted is encodeData with 202: what was asked for is not done yet.
func encodeAccepted(ctx context.Context, w http.ResponseWriter, response any) error {
	return encodeData(ctx, accepted{w}, response)
}

type accepted struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a accepted) WriteHeader(int) { a.ResponseWriter.WriteHeader(http.StatusAccepted) }
