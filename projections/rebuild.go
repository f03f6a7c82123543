package projections

// The offline fold: the loop of the Runner without a service around it. It ends where it is told to.

import (
	"context"
	"errors"
	"fmt"
	"io"

	"tidemark/log"
)

const (
	// DefaultPace is the number of events that are read between two looks at what the projection holds back, and
	// paceSamples the number of samples, whichever comes first.
	DefaultPace = 1 << 13
	paceSamples = 1 << 19
	// maxPaces is how many times as much may be folded while the projection writes; then reading waits for it.
	maxPaces = 8
	// DefaultHeldBytes is what a projection may hold back in memory before it is made to write it.
	DefaultHeldBytes = 32 << 20
)

// History is the log as the offline fold reads it.
type History interface {
	NewReader(from log.Seq) *log.Reader
}

// Writer is a projection that holds back what it has folded until it is told to write it.
type Writer interface {
	// Held returns the bytes of memory that a checkpoint would free.
	Held(ctx context.Context) (int64, error)
	// Checkpoint writes everything folded so far, durably. What comes in meanwhile may be folded beside it.
	Checkpoint(ctx context.Context) error
}

// ReplayOptions of Replay. The zero value is usable.
type ReplayOptions struct {
	Writer    Writer                                // nil: what is folded stays in memory
	HeldBytes int64                                 // default DefaultHeldBytes
	Pace      int                                   // default DefaultPace
	Observe   func(through log.Seq, samples uint64) // called after each batch, with the samples in it; may be nil
}

func (o ReplayOptions) withDefaults() ReplayOptions {
	if o.HeldBytes <= 0 {
		o.HeldBytes = DefaultHeldBytes
	}
	if o.Pace <= 0 {
		o.Pace = DefaultPace
	}
	if o.Observe == nil {
		o.Observe = func(log.Seq, uint64) {}
	}
	return o
}

// Replay folds the events after from up to and including through into a running projection, as fast as it can, and returns
// when they are applied (R1). With a Writer, the memory that the projection holds back is bounded by HeldBytes and what it
// makes of maxPaces times Pace, and a little.
func Replay(ctx context.Context, history History, p Projection, from, through log.Seq, opts ReplayOptions) error {
	opts = opts.withDefaults()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	looks := make(chan struct{}, maxPaces)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range looks {
			if err := opts.look(ctx); err != nil {
				cancel(fmt.Errorf("projection %s: checkpoint: %w", p.Name(), err))
				return
			}
		}
	}()
	err := opts.feed(ctx, history, p, from, through, looks)
	close(looks)
	if err != nil {
		cancel(err) // the first cause stays
	}
	<-written
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return wait(ctx, p, through)
}

// look makes the projection write when it holds back too much.
func (o *ReplayOptions) look(ctx context.Context) error {
	if o.Writer == nil {
		return nil
	}
	held, err := o.Writer.Held(ctx)
	if err != nil || held < o.HeldBytes {
		return err
	}
	return o.Writer.Checkpoint(ctx)
}

// feed hands the events to the projection, and asks for a look now and then.
func (o *ReplayOptions) feed(ctx context.Context, history History, p Projection, from, through log.Seq, looks chan<- struct{}) error {
	reader := history.NewReader(from + 1)
	var events int // since the last look
	var samples uint64
	for at := from; at < through; {
		batch, n, err := nextBatch(reader, int(min(batchEvents, through-at)))
		if err != nil {
			return fmt.Errorf("projection %s: read log: %w", p.Name(), err)
		}
		if err := p.Apply(ctx, batch); err != nil {
			return fmt.Errorf("projection %s: %w", p.Name(), err)
		}
		at = batch[len(batch)-1].Seq
		o.Observe(at, n)
		if events, samples = events+len(batch), samples+n; events >= o.Pace || samples >= paceSamples {
			events, samples = 0, 0
			select {
			case looks <- struct{}{}: // waits while a look is under way and maxPaces are due: that is the bound
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// nextBatch reads limit events, fewer only before an error, which comes again.
func nextBatch(r *log.Reader, limit int) (batch []*log.Event, samples uint64, err error) {
	batch = make([]*log.Event, 0, limit)
	for len(batch) < limit {
		e, err := r.Next()
		if err != nil {
			if len(batch) > 0 {
				break
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, 0, err
		}
		if w, ok := e.Body.(*log.Write); ok {
			samples += uint64(len(w.Times))
		}
		batch = append(batch, e)
	}
	return batch, samples, nil
}
