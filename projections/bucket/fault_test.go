package bucket

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// kthFails fails the k-th operation that writes, once or from then on, until it is cleared.
type kthFails struct {
	k      int
	sticky bool
	err    error

	mu      sync.Mutex
	seen    int
	hit     string
	cleared bool
}

func (f *kthFails) String() string { return "the k-th fails" }

// MaybeError implements errorfs.Injector.
func (f *kthFails) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpLock {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cleared {
		return nil
	}
	if f.seen++; f.seen == f.k || f.sticky && f.seen > f.k {
		if f.hit == "" {
			f.hit = fmt.Sprintf("operation %d of kind %d on %s", f.seen, op.Kind, op.Path)
		}
		return f.err
	}
	return nil
}

func (f *kthFails) set(cleared bool) (hit string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleared = cleared
	return f.hit
}

// A fault at every operation of a store that is open, on a disk that stays broken or is sound at once: nothing panics, whatever
// Flush has confirmed is there after a crash, and what is there can be read and merged, or is called damaged.
func TestFaultAtEveryOperation(t *testing.T) {
	if logtest.RaceDetector {
		t.Skip("Pebble's own checks, which the race detector switches on, panic at what a failed write leaves of a compaction: run without it")
	}
	for _, kind := range []struct {
		sticky bool
		err    error
	}{{true, syscall.ENOSPC}, {false, syscall.EIO}} {
		for k := 1; ; k++ {
			f := &kthFails{k: k, sticky: kind.sticky, err: kind.err, cleared: true}
			if hit := faultOnce(t, f); hit == "" {
				if k < 20 {
					t.Fatalf("%d faults: they did not reach the flushes", k-1)
				}
				t.Logf("%v: %d faults", kind.err, k-1)
				break
			}
		}
	}
}

func faultOnce(t *testing.T, f *kthFails) (hit string) {
	mem := vfs.NewCrashableMem()
	first := openOn(t, mem) // the first flush of a store that was there before begins a new MANIFEST
	if err := errors.Join(checkpoint(first, 1), first.Flush(t.Context()), first.Close()); err != nil {
		t.Fatal(err)
	}
	s := openOn(t, errorfs.Wrap(mem, f))
	f.set(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	durable := byte(1)
	for seq := byte(2); seq <= 6; seq++ {
		if checkpoint(s, uint64(seq)) == nil && s.Flush(ctx) == nil {
			durable = seq
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: a flush does not end", f.set(true))
		}
	}
	hit = f.set(true)
	if checkpoint(s, 7) == nil && s.Flush(ctx) == nil {
		durable = 7
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil && hit == "" {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatalf("%s: the store does not close", hit)
	}
	for _, keep := range []int{0, 100} {
		left := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rand.New(rand.NewPCG(1, 2))})
		s, err := Open("views", []byte("log"), Options{FS: left})
		if errors.Is(err, ErrDamaged) && hit != "" {
			continue // it is folded again
		}
		if err != nil {
			t.Fatalf("%s, %d%% kept: %v", hit, keep, err)
		}
		if err := s.db.Compact(ctx, []byte{0}, []byte{255}, false); err != nil {
			t.Fatalf("%s, %d%% kept: merge: %v", hit, keep, err)
		}
		p, err := read(s, 100)
		if err != nil || len(p) > 1 || durable > 0 && (len(p) == 0 || p[0] < durable) {
			t.Fatalf("%s, %d%% kept: %d was durable, read %v, %v", hit, keep, durable, p, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return hit
}
