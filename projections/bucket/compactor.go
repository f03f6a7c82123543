package bucket

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// Defaults of a Compactor.
const (
	defaultCompactEvery = 5 * time.Second
	defaultPassBytes    = 256 << 20
	defaultSweepKeys    = 1 << 14
)

// CompactorOptions of NewCompactor. The zero value is usable.
type CompactorOptions struct {
	Interval  time.Duration // between passes, default 5s
	MinPieces int           // pieces in one place that make it worth merging, at least 2, default 8
	PassBytes int64         // of pieces read in one pass, default 256 MiB; the next pass goes on
	SweepKeys int           // of all pieces looked at in one pass, for places that no checkpoint of this process touched; default 16384
	Logger    *slog.Logger  // default: discards
}

// CompactorStats are the numbers of a Compactor since it was made.
type CompactorStats struct {
	Compactions   uint64
	Pieces        uint64 // merged
	Read, Written uint64 // bytes of pieces
	Failures      uint64 // consecutive passes with an error
	Pending       int    // places that are due now
}

// Compactor merges pieces in the background: without it every checkpoint would leave one for each shard and block that it
// touched, and readers would open dozens where one does. It finds the places that checkpoints have filled, and goes round all
// of the store in small steps for the rest: what an earlier process left, or what was read at the time.
type Compactor struct {
	store *Store
	opts  CompactorOptions

	cursor []byte // where the round goes on

	compactions, pieces, read, written, failures atomic.Uint64
}

// NewCompactor returns a compactor of a store; Run starts it.
func NewCompactor(s *Store, opts CompactorOptions) *Compactor {
	if opts.Interval <= 0 {
		opts.Interval = defaultCompactEvery
	}
	if opts.MinPieces == 0 {
		opts.MinPieces = defaultMinPieces
	}
	opts.MinPieces = max(opts.MinPieces, 2)
	if opts.PassBytes <= 0 {
		opts.PassBytes = defaultPassBytes
	}
	if opts.SweepKeys <= 0 {
		opts.SweepKeys = defaultSweepKeys
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Compactor{store: s, opts: opts}
}

// Stats returns the current numbers.
func (c *Compactor) Stats() CompactorStats {
	return CompactorStats{
		Compactions: c.compactions.Load(), Pieces: c.pieces.Load(), Read: c.read.Load(), Written: c.written.Load(),
		Failures: c.failures.Load(), Pending: len(c.store.crowded(c.opts.MinPieces)),
	}
}

// Run makes a pass every interval until ctx ends, and returns nil then. A pass that fails is logged and counted; readers are not
// concerned by it.
func (c *Compactor) Run(ctx context.Context) error {
	every := time.NewTicker(c.opts.Interval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		err := c.Pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			n := c.failures.Add(1)
			c.opts.Logger.Error("compaction of pieces failed", "consecutive", n, "err", err)
		default:
			c.failures.Store(0)
		}
	}
}

// Pass merges what is due, the places with the most pieces first, within the bounds of one pass. It goes on after an error, and
// returns all of them.
func (c *Compactor) Pass(ctx context.Context) error {
	type due struct {
		spot   spot
		pieces int
	}
	var todo []due
	for _, sp := range c.store.crowded(c.opts.MinPieces) {
		todo = append(todo, due{sp, c.opts.MinPieces})
	}
	next, err := c.store.survey(ctx, c.cursor, c.opts.SweepKeys, c.store.pins.limit(), func(sp spot, pieces int) {
		if pieces >= c.opts.MinPieces {
			todo = append(todo, due{sp, pieces})
		}
	})
	if err != nil {
		return err
	}
	c.cursor = next
	slices.SortFunc(todo, func(a, b due) int {
		return cmp.Or(cmp.Compare(b.pieces, a.pieces), cmp.Compare(a.spot.key.Stream, b.spot.key.Stream),
			cmp.Compare(a.spot.key.Block, b.spot.key.Block), cmp.Compare(a.spot.shard, b.spot.shard))
	})
	var errs []error
	left := c.opts.PassBytes
	for _, d := range todo {
		if left <= 0 || ctx.Err() != nil {
			break // what a checkpoint touched is still remembered, the rest is found in the next round
		}
		done, err := c.store.Compact(d.spot.key, d.spot.shard)
		if err != nil || done.TooLarge {
			c.store.settled(d.spot, c.opts.MinPieces) // not at once again: its next turn is in the next round
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		left -= done.Read
		c.store.settled(d.spot, max(0, done.Pieces-1))
		if done.Pieces > 0 {
			c.compactions.Add(1)
			c.pieces.Add(uint64(done.Pieces))
			c.read.Add(uint64(done.Read))
			c.written.Add(uint64(done.Written))
		}
	}
	return errors.Join(errs...)
}
