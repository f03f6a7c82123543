package log

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// L1, L2: a copy that is made while the log is written is a log: whole, with the same identity and the same events, up to one
// that was durable when it was asked for or came after.
func TestL2_Checkpoint(t *testing.T) {
	noLeak(t)
	fs := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: fs}))
	writes(t, r.Log, 0, 100)
	if err := r.Truncate(20); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					b := NewWriteBuilder()
					ref, err := r.Dictionary().Resolve(Hash{byte(w), byte(i), byte(i >> 8)}, series(1000+w*10_000+i))
					if err != nil {
						t.Error(err)
						return
					}
					b.Series(ref)
					b.Sample(int64(i), 1)
					if _, err := r.Append(context.Background(), b.Finish()); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 5 {
		dir := fmt.Sprintf("copy-%d", i)
		before := r.Head()
		seq, err := r.Checkpoint(dir)
		if err != nil || seq < before {
			t.Fatalf("checkpoint: %d, %v; the log was at %d", seq, err, before)
		}
		// It survives a crash, and is one more log that can be opened and written.
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		c := start(mustOpen(t, dir, Options{FS: crashed}))
		if c.Head() != seq || c.Floor() != 21 || string(c.Identity()) != string(r.Identity()) {
			t.Errorf("the copy holds %d to %d, not 21 to %d", c.Floor(), c.Head(), seq)
		}
		want, err := r.HashAt(seq)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.HashAt(seq); err != nil || got != want {
			t.Errorf("event %d is %x in the copy, %x in the log (%v)", seq, got, want, err)
		}
		if n := len(readAll(t, c.Log, 0)); n != int(seq-20) {
			t.Errorf("%d events in the copy, not %d", n, seq-20)
		}
		writes(t, c.Log, 50_000, 3)
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	writers.Wait()
	if _, err := r.Checkpoint("copy-0"); err == nil {
		t.Error("a copy was written over another")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// elsewhere fails what is written below a directory.
type elsewhere struct{ dir string }

func (e elsewhere) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpCreate:
		if strings.HasPrefix(op.Path, e.dir) {
			return syscall.ENOSPC
		}
	}
	return nil
}

func (e elsewhere) String() string { return "elsewhere" }

// L4: a copy that fails for want of space poisons nothing: the log goes on.
func TestL4_CheckpointThatFails(t *testing.T) {
	noLeak(t)
	fs := vfs.NewCrashableMem()
	r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(fs, elsewhere{"copy"})}))
	writes(t, r.Log, 0, 50)
	if _, err := r.Checkpoint("copy"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a copy without space: %v", err)
	}
	if err := r.Err(); err != nil {
		t.Fatalf("the log itself: %v", err)
	}
	if last := writes(t, r.Log, 50, 50); last != 100 {
		t.Errorf("the log is at %d", last)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}
