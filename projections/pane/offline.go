package pane

// What the offline tools need of the projection.

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// stateBytesPerSeries is about what a series takes in a shard's encoded state.
const stateBytesPerSeries = 256

// RunReadOnly is Run for views that must stay as they are: the workers fold until ctx ends, and nothing is written. What they
// close stays in memory.
func (p *Projection) RunReadOnly(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, w := range p.workers {
		g.Go(func() error { return w.run(gctx) })
	}
	g.Go(func() error { return p.index.Run(gctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Held implements projections.Writer: the bytes of the buckets that closed since the last checkpoint. As a checkpoint writes
// the state of every shard too, it is worth while only when it frees more than that: Held returns 0 before.
func (p *Projection) Held(ctx context.Context) (int64, error) {
	var held, state atomic.Int64
	_, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		n := s.table.Memory()
		for _, t := range sh.leaving {
			n += t.Memory()
		}
		held.Add(n)
		state.Add(stateBytesPerSeries * int64(s.resident()))
	})
	if held.Load() < state.Load() {
		return 0, err
	}
	return held.Load(), err
}

// Plus returns the digest of two sets of buckets together.
func (d Sum) Plus(o Sum) Sum {
	var carry uint64
	d.Lo, carry = bits.Add64(d.Lo, o.Lo, 0)
	d.Hi, _ = bits.Add64(d.Hi, o.Hi, carry)
	d.Buckets += o.Buckets
	return d
}
