package main

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"tidemark/log"
	"tidemark/transport/api"
)

// maxRecentBarriers bounds the barriers that are shown.
const maxRecentBarriers = 100

// recentBarriers remembers the newest barriers that were asked for, and what became of them.
type recentBarriers struct {
	mu   sync.Mutex
	list []api.RecentBarrier // the oldest first
}

// note adds a barrier that has ended.
func (r *recentBarriers) note(b api.RecentBarrier, res api.BarrierResult, took time.Duration, err error) {
	b.TookMillis = milliseconds(took)
	if err != nil {
		b.Error = err.Error()
	} else {
		b.Seq, b.Closed = res.Seq, res.ClosedBuckets
		if res.CompleteThrough != math.MinInt64 {
			b.CompleteThrough = &res.CompleteThrough
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == maxRecentBarriers {
		r.list = append(r.list[:0], r.list[1:]...)
	}
	r.list = append(r.list, b)
}

// newest returns them, the newest first.
func (r *recentBarriers) newest() []api.RecentBarrier {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.list)
	slices.Reverse(out)
	return out
}

// LogStatus implements api.LogStatusSource. Nothing in it waits for a worker.
func (n *node) LogStatus(context.Context) (api.LogStatus, error) {
	m := n.events.Metrics()
	s := api.LogStatus{
		AsOf: n.gate.now().UnixMilli(), Reasons: n.Reasons(),
		Log: api.LogState{
			Head: m.Head, Floor: m.Floor, Time: n.events.LogTime(), Events: m.Events, Samples: m.Samples, Series: n.index.Len(),
			Queue: m.Queue, DiskBytes: m.DiskBytes, FreeBytes: n.gate.free.Load(), MinFreeBytes: n.gate.minFree, Poisoned: m.Poisoned,
		},
		Rates:       n.pulse.rates(),
		Projections: n.projections(),
		Views:       n.viewsState(),
		Barriers: api.Barriers{
			ExperimentLabel: n.current.Load().cfg.ExperimentLabel, Recent: n.barrier.recent.newest(),
		},
	}
	if progress, yes := n.Replaying(); yes {
		s.Reasons = append([]string{progress}, s.Reasons...)
	}
	s.Ready = len(s.Reasons) == 0
	s.Truncation = n.truncation(m.KeptBytes, s.Projections)
	return s, nil
}

// follower is a projection, seen from outside.
type follower interface {
	Name() string
	Applied() (log.Seq, error)
}

// projections lists those that there are.
func (n *node) projections() []api.ProjectionState {
	out := []api.ProjectionState{n.projection(n.panes, n.runner.Ready(), n.lag, n.panes.Durable(), int64(n.panes.CheckpointFailures()))}
	if c := n.copy; c != nil {
		out = append(out, n.projection(c.samples, c.ready(), c.lag, c.samples.Durable(), c.samples.CheckpointFailures()))
	}
	return append(out, n.projection(n.fold, n.folding.Ready(), nil, n.fold.Saved(), 0))
}

// projection describes one. Without a meter its lag is told in events alone.
func (n *node) projection(p follower, ready bool, lag *lagMeter, durable log.Seq, failures int64) api.ProjectionState {
	applied, err := p.Applied()
	s := api.ProjectionState{Name: p.Name(), State: "following", Applied: applied, Durable: durable, CheckpointFailures: failures}
	if lag != nil {
		s.LagSeconds = lag.lag(n.gate.now()).Seconds()
	}
	if head := n.events.Head(); head > applied {
		s.LagEvents = int64(head - applied)
	}
	switch {
	case err != nil:
		s.State, s.Error = "stopped", err.Error()
	case !ready:
		s.State = "replaying"
	}
	return s
}

func (n *node) viewsState() api.ViewsState {
	c := n.compact.Stats()
	s := api.ViewsState{
		DiskBytes: n.views.Bytes(), PendingCompactions: c.Pending, CompactionFailures: c.Failures, ExpiryFailures: n.expirer.Stats().Failures,
	}
	if n.recorder != nil {
		steps, _ := n.recorder.Lag()
		s.PendingSteps, s.RecordingFailures = int64(steps), n.recorder.Failures()
	}
	return s
}

// truncation says by what the log is cut and who needs it still: a restart replays from the checkpoints on. A base is no hold:
// one is sealed whenever the log is cut.
func (n *node) truncation(kept uint64, projections []api.ProjectionState) api.Truncation {
	k, l := n.keeper, n.limits()
	t := api.Truncation{
		Retention: l.age.Milliseconds(), MaxBytes: l.size, KeptBytes: kept, Base: log.Seq(k.base.Load()),
		Count: k.truncations.Load(), Failures: k.failures.Load(),
	}
	for _, p := range projections {
		t.Holds = append(t.Holds, api.Hold{By: "checkpoint of " + p.Name, From: p.Durable + 1})
	}
	if text := k.lastError.Load(); text != nil {
		t.LastError = *text
	}
	slices.SortFunc(t.Holds, func(a, b api.Hold) int { return cmp.Compare(a.From, b.From) })
	return t
}
