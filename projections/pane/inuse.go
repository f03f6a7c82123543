package pane

import "sync"

// inUse is the names of the experiments that shards of the first generation count, for who must know of one without waiting for a worker.
// It is no part of any state. A nil inUse remembers nothing.
type inUse struct {
	mu     sync.RWMutex
	shards map[string]int // that count it
	drops  int            // since the map was made
}

func (u *inUse) add(name string) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shards == nil {
		u.shards = make(map[string]int)
	}
	u.shards[name]++
}

func (u *inUse) remove(name string) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shards[name]--; u.shards[name] > 0 {
		return
	}
	delete(u.shards, name)
	if u.drops++; u.drops >= leastRepack && u.drops > 3*len(u.shards) {
		u.shards, u.drops = regrown(u.shards), 0
	}
}

func (u *inUse) has(name string) bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.shards[name] > 0
}

// Counts says whether anything is counted of an experiment, by the events that are applied. It waits for no worker.
func (p *Projection) Counts(name string) bool { return p.inUse.has(name) }
