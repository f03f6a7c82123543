package master

import "sync"

// upkeep knows which snapshot versions the store holds.
type upkeep struct {
	mu             sync.Mutex
	oldest, newest uint64 // versions with a header; 0: none
}

func (u *upkeep) found(oldest, newest uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.oldest, u.newest = oldest, newest
}

func (u *upkeep) committed(version uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.newest = version
	if u.oldest == 0 {
		u.oldest = version
	}
}
