package bucket

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A disk that fails does not hold up whoever writes a checkpoint: Flush gives up, nothing more piles up in memory, reading goes on,
// and when the disk works again so does the store, with all that was committed.
func TestStuckFlush(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	s, err := Open("views", identity, Options{FS: fs, FlushTimeout: 50 * time.Millisecond})
	check(t, err)
	k := Key{Stream: 1}
	rng := rand.New(rand.NewPCG(1, 1))
	fill(t, s, rng, k, 0, 1, 4)
	broken.Store(true)
	for range 20 { // more often than Pebble lets flushes wait
		if err := s.Flush(); !errors.Is(err, ErrStuck) {
			t.Fatal(err)
		}
	}
	if err := s.Commit(Checkpoint{Seq: 5}); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	if _, err := s.Compact(k, 0); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	if _, err := s.Expire(1, 0, 0); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	if _, err := s.Seal("base", 1); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	views := []ShardView{{PieceSeq: 4}}
	want := dump(t, s, 1, Grid{Width: 1}, -1, 32, views)
	if want == "" {
		t.Fatal("nothing is read")
	}
	broken.Store(false)
	for deadline := time.Now().Add(30 * time.Second); ; {
		if err := s.Flush(); err == nil {
			break
		} else if !errors.Is(err, ErrStuck) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	fill(t, s, rng, k, 0, 5, 1)
	if got := dump(t, s, 1, Grid{Width: 1}, -1, 32, views); got != want {
		t.Fatalf("\n got %s\nwant %s", got, want)
	}
	check(t, s.Close())
}
