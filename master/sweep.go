package master

import (
	"cmp"
	"context"
	"slices"

	"tidemark/log"
)

const (
	// compactAt and compactWorst are the corrections from which an experiment, or one bucket of it, is compacted.
	compactAt    = 16
	compactWorst = 4
	// publishAt is the number of open panes from which an experiment is looked at.
	publishAt = 8
	// maxNew bounds the tasks that one sweep adds.
	maxNew = 256
)

// Load is what maintenance may have to do for an experiment.
type Load struct {
	Name        string
	Corrections uint64 // that no compaction has covered
	WorstBucket uint64 // most of them of one bucket
	Pending     int    // open buckets
	StuckAt     int64  // log time from which the earliest is open for twice as long as it may be, ms
}

// Loads is the index over all experiments, hot or not, that have something open or uncompacted.
type Loads interface {
	Loads(ctx context.Context) ([]Load, error)
}

// SweepResult says what a sweep did.
type SweepResult struct {
	Candidates int // with something to do
	Queued     int // new tasks
	Live       int // whose task is queued or running already
	Cooling    int // passed over after failures
	Unchanged  int // passed over because the same work changed nothing
}

// Sweep queues compactions and publications that are due, the worst first (M10).
func (m *Master) Sweep(ctx context.Context) (compact, publish SweepResult, err error) {
	loads, err := m.loads.Loads(ctx)
	if err != nil {
		return compact, publish, err
	}
	now := m.events.LogTime()
	compact, err = m.sweep(ctx, log.TaskCompact, now, compactable(loads))
	if err != nil {
		return compact, publish, err
	}
	publish, err = m.sweep(ctx, log.TaskPublish, now, stuck(loads, now))
	return compact, publish, err
}

// compactable are the candidates of the compaction sweep, worst first, then by name.
func compactable(loads []Load) []Load {
	var out []Load
	for _, l := range loads {
		if l.Corrections >= compactAt || l.WorstBucket >= compactWorst {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Load) int {
		return cmp.Or(cmp.Compare(b.Corrections, a.Corrections), cmp.Compare(b.WorstBucket, a.WorstBucket), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// stuck are the candidates of the publish sweep, worst first, then by name.
func stuck(loads []Load, now int64) []Load {
	var out []Load
	for _, l := range loads {
		if l.Pending >= publishAt && l.StuckAt <= now {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Load) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.StuckAt, b.StuckAt), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// sweep queues tasks for candidates until it has queued as many new ones as it may. What is queued, running, cooling down or known to
// change nothing costs none of them, so the tail is reached.
func (m *Master) sweep(ctx context.Context, kind log.TaskKind, now int64, candidates []Load) (SweepResult, error) {
	res := SweepResult{Candidates: len(candidates)}
	for _, c := range candidates {
		if res.Queued == maxNew {
			break
		}
		at := target{kind, c.Name}
		if m.fold.liveTask(at) != nil {
			res.Live++
			continue
		}
		failed, unchanged := m.fold.memory(at)
		if failed.until() > now {
			res.Cooling++
			continue
		}
		if unchanged.version > 0 && unchanged.options == "" {
			row, err := m.observe(ctx, c.Name)
			if err != nil {
				return res, err
			}
			if row != nil && row.Version == unchanged.version {
				res.Unchanged++
				continue
			}
		}
		_, created, err := m.enqueue(ctx, at, "", false)
		if err != nil {
			return res, err
		}
		if created {
			res.Queued++
		}
	}
	return res, nil
}
