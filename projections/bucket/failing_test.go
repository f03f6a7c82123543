package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openOn(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open("views", []byte("log"), Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkpoint commits a state and one pane of series 7 under a sequence.
func checkpoint(s *Store, seq uint64) error {
	tab := NewTable()
	tab.Put(Key{Stream: 1}, 7, 3, func(dst []byte) []byte { return append(dst, byte(seq)) })
	return s.Commit(Checkpoint{Seq: seq, State: []byte{byte(seq)}, Tables: []*Table{tab}})
}

// read returns the pane of series 7 as the pieces up to a sequence hold it.
func read(s *Store, seq uint64) (pane []byte, err error) {
	err = s.Collect(context.Background(), 1, Grid{Width: 10}, 0, 1000, []ShardView{{PieceSeq: seq}}, func(_ int, b Bucket) error {
		pane = append([]byte(nil), b.Pane...)
		return nil
	})
	return pane, err
}

// A flush that fails is an error and not a wait, nothing piles up behind it, what stands can be read, and the store heals
// with the disk.
func TestFlushFailsAndHeals(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fails := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".sst") {
			return errorfs.ErrInjected
		}
		return nil
	})}
	s := openOn(t, errorfs.Wrap(mem, fails))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := errors.Join(checkpoint(s, 1), s.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	fails.On()
	if err := checkpoint(s, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("flush on a broken disk: %v", err)
	}
	if err := checkpoint(s, 3); err == nil {
		t.Error("a commit behind a flush that fails")
	}
	if p, err := read(s, 2); err != nil || string(p) != "\x02" {
		t.Errorf("read beside a failing flush: %q, %v", p, err)
	}
	if err := s.Flush(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("second flush on a broken disk: %v", err)
	}
	fails.Off()
	for s.Flush(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatal("the store does not heal")
		}
	}
	if err := errors.Join(checkpoint(s, 4), s.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openOn(t, left)
	seq, state, ok, err := s.State(0)
	if seq != 4 || string(state) != "\x04" || !ok || err != nil {
		t.Errorf("after a crash: state %q of %d, %v, %v", state, seq, ok, err)
	}
	if p, err := read(s, 4); err != nil || string(p) != "\x04" {
		t.Errorf("after a crash: %q, %v", p, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A flush that does not end gives up with its context, and nothing is committed until it has ended.
func TestFlushGivesUpWithItsContext(t *testing.T) {
	release := make(chan struct{})
	var slow errorfs.Toggle
	slow.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			<-release
		}
		return nil
	})
	s := openOn(t, errorfs.Wrap(vfs.NewMem(), &slow))
	if err := checkpoint(s, 1); err != nil {
		t.Fatal(err)
	}
	slow.On()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush: %v", err)
	}
	if err := checkpoint(s, 2); err == nil {
		t.Error("a commit behind a flush that has not ended")
	}
	slow.Off()
	close(release)
	if err := errors.Join(s.Flush(t.Context()), checkpoint(s, 3), s.Flush(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

// A table that is damaged is never read as if it were not: not at the start, and not when it is found later.
func TestDamageEndsReading(t *testing.T) {
	mem := vfs.NewMem()
	s := openOn(t, mem)
	if err := errors.Join(checkpoint(s, 1), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if p, err := read(s, 1); err != nil || string(p) != "\x01" {
		t.Fatalf("%q, %v", p, err)
	}
	// What Pebble calls fatal and is no damage ends writing alone.
	s.health.Fatalf("MANIFEST sync failed: %v", errorfs.ErrInjected)
	if err := checkpoint(s, 2); err == nil || !strings.Contains(err.Error(), "MANIFEST") {
		t.Errorf("commit: %v", err)
	}
	if p, err := read(s, 1); err != nil || string(p) != "\x01" {
		t.Errorf("%q, %v", p, err)
	}
	s.health.listener().DataCorruption(pebble.DataCorruptionInfo{Path: "views/000005.sst", Details: errorfs.ErrInjected})
	if p, err := read(s, 1); err == nil || !strings.Contains(err.Error(), "000005.sst") {
		t.Errorf("read %q, %v", p, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("views")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".sst") {
			flipFile(t, mem, mem.PathJoin("views", n))
		}
	}
	if _, err = Open("views", []byte("log"), Options{FS: mem}); err == nil {
		t.Error("a store whose only table is damaged opens")
	}
}

// flipFile changes the first byte of a file's first block.
func flipFile(t *testing.T, fs vfs.FS, name string) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	b[2] ^= 0x40
	w, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// While a store is being opened a flush that fails ends that, and stands still until the store is open. Whatever else fails in the background
// goes on: somebody may wait for it, as a store that is closed because it turned out to be damaged does. Seen to fail with all of it held up.
func TestOnlyAFailedFlushIsHeldUpByAnOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(slog.New(slog.DiscardHandler))
		l := h.listener()
		l.BackgroundError(errors.New("reading the statistics of a table"))
		failed := errors.New("no space left")
		l.FlushEnd(pebble.FlushInfo{Err: failed})
		var over atomic.Bool
		go func() {
			l.BackgroundError(fmt.Errorf("flush: %w", failed))
			over.Store(true)
		}()
		synctest.Wait()
		if over.Load() || len(h.notOpened) != 1 {
			t.Errorf("over %v, %d errors for who opens", over.Load(), len(h.notOpened))
		}
		close(h.opened)
		synctest.Wait()
		if !over.Load() {
			t.Error("it stands still though the store is open")
		}
		l.BackgroundError(failed)
	})
}
