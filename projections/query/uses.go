package query

// This file is data path 6 of 6: answer. It counts what answered, without a lock while queries are answered.

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Uses says how often a materialization answered a part of a query since the process began, and how often it could not though it holds
// what the part reads, by reason. A part that a stream answers counts for every materialization that has the stream.
type Uses struct {
	Hits   int64
	Misses map[string]int64 // by the Reason constants; none that are 0
}

// reasons are those for which a materialization may not answer.
var reasons = [...]string{
	ReasonMaterializing, ReasonOffGrid, ReasonBeforeRetention, ReasonUnpublished, ReasonLateUncorrectable, ReasonNativeHistogram,
	ReasonNeedsSamples, ReasonUnsupportedFunction, ReasonNonConstantArgument, ReasonNoMaterialization,
}

// uses are the counters of one materialization.
type uses struct {
	hits   atomic.Int64
	misses [len(reasons)]atomic.Int64
}

func (u *uses) miss(reason string) {
	for i, r := range reasons {
		if r == reason {
			u.misses[i].Add(1)
		}
	}
}

// tally keeps the counters of every materialization that was in a plan, across plans.
type tally struct {
	mu sync.Mutex // taken when a plan is new, and when somebody asks
	by map[string]*uses
}

func (t *tally) of(name string) *uses {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[string]*uses{}
	}
	u := t.by[name]
	if u == nil {
		u = &uses{}
		t.by[name] = u
	}
	return u
}

// Uses returns what is counted of a materialization, by its name in the plan.
func (e *Engine) Uses(name string) Uses {
	u := e.uses.of(name)
	out := Uses{Hits: u.hits.Load(), Misses: map[string]int64{}}
	for i, r := range reasons {
		if n := u.misses[i].Load(); n > 0 {
			out.Misses[r] = n
		}
	}
	return out
}

// count counts what answered the parts of a request that is answered, or what missed; d may be nil.
func (d *demand) count(parts []part, err error) {
	var miss *MissError
	if d == nil || err != nil && !errors.As(err, &miss) {
		return
	}
	for i := range parts {
		if l := parts[i].leaf; l != nil {
			d.countLeaf(l, parts[i].miss, err != nil)
		}
	}
	for _, in := range d.order {
		if in.missed != "" {
			in.material.uses.miss(in.missed)
		}
	}
}

// countLeaf counts for those who hold what a leaf reads. Where the request failed, the leaf may have been answered, too: nothing is counted
// then.
func (d *demand) countLeaf(l *leaf, miss *MissError, failed bool) {
	switch {
	case l.raw != nil && !l.beside && miss == nil:
		miss = l.raw
	case failed && miss == nil:
		miss = l.first
	}
	switch {
	case miss != nil && miss.Reason == reasonAsked:
	case miss != nil && l.lacks != nil:
		l.lacks.uses.miss(miss.Reason)
	case miss != nil:
		seen := map[*uses]bool{}
		for _, s := range append(l.near[:len(l.near):len(l.near)], l.streams...) {
			for _, u := range d.x.owners[s.ID] {
				if !seen[u] {
					seen[u] = true
					u.miss(miss.Reason)
				}
			}
		}
	case failed || l.steps.count() == 0:
	case l.whole != nil:
		l.whole.material.uses.hits.Add(1)
	case len(l.reads) > 0:
		for _, in := range l.named {
			if in.missed == "" {
				in.material.uses.hits.Add(1)
			}
		}
	default:
		for _, u := range d.x.owners[l.streams[l.chosen].ID] {
			u.hits.Add(1)
		}
	}
}
