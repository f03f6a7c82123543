package bucket

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// ErrStaleView says that a view is older than maintenance that has been done since: it was taken without a pin. Take another.
var ErrStaleView = errors.New("bucket: the view is older than the pieces that are left")

// pins tell maintenance what readers may still ask for. A reader counts the pieces up to a sequence, per shard, that it took
// when its view was taken (ShardView.PieceSeq); replacing a piece by one with a later sequence, or removing one, must not happen
// under it. The sequence of a shard's newest piece never decreases and is never below the durable checkpoint. So a view that is
// taken after Pin counts, in every shard, at least the pieces up to what was durable at Pin, and maintenance that keeps to the
// least of those over all pins, and to what is durable now, changes nothing that a view can tell (P5).
//
// A reader that forgets to pin is found by check: it fails instead of answering from half of the pieces.
type pins struct {
	mu      sync.Mutex
	durable uint64         // every shard's checkpoint up to here is on disk
	held    map[uint64]int // number of pins, by what was durable when they were taken
	changed uint64         // the latest sequence up to which maintenance may have changed pieces
}

// Durable notes that the checkpoints of all shards up to seq survive a crash. Maintenance touches nothing beyond it.
func (s *Store) Durable(seq uint64) {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	s.pins.durable = max(s.pins.durable, seq)
}

// Pin holds maintenance back for a reader. It must be called before the reader takes its views, and the returned function once
// after its last Collect.
func (s *Store) Pin() (unpin func()) {
	p := &s.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(map[uint64]int)
	}
	at := p.durable
	p.held[at]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held[at]--; p.held[at] == 0 {
			delete(p.held, at)
		}
	})
}

// limit returns the sequence up to which pieces may be changed now. It stays right until the next call: later pins begin at
// what is durable by then.
func (p *pins) limit() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	least := p.durable
	for at := range p.held {
		least = min(least, at)
	}
	return least
}

// changing notes, before it is done, that pieces up to seq are changed.
func (p *pins) changing(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = max(p.changed, seq)
}

// check fails if a view may miss pieces. It is called once the reader's iterator stands, which no later change reaches.
func (p *pins) check(shards []ShardView) error {
	least := uint64(math.MaxUint64)
	for i := range shards {
		least = min(least, shards[i].PieceSeq)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if least < p.changed {
		return fmt.Errorf("%w: it reaches %d, pieces up to %d were changed", ErrStaleView, least, p.changed)
	}
	return nil
}
