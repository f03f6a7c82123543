package log

import (
	"context"
	"errors"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// TestL4_NothingIsWrittenBehindAFailure fails one operation on the MANIFEST while the log's store flushes and merges, on a disk that is sound again at
// once. Pebble would try again, and leave a MANIFEST that holds the change twice, which no start can read. A poisoned log writes nothing more to its store, so that the next start finds what was acknowledged.
func TestL4_NothingIsWrittenBehindAFailure(t *testing.T) {
	if logtest.RaceDetector {
		t.Skip("Pebble's own checks, which the race detector switches on, panic at what a failed MANIFEST leaves of a merge: run without it")
	}
	noLeak(t)
	// Every start leaves a table; there are as many as Pebble merges, so that there is something to take out of the MANIFEST, too.
	before, promised := vfs.NewCrashableMem(), &promise{}
	for range maxRestartTables + 1 {
		r := start(mustOpen(t, testDir, Options{FS: before}))
		workload(r.Log, promised, 1, 1, 1000)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	for k := int64(1); ; k++ {
		f := &fault{k: k, err: syscall.EIO, match: func(op errorfs.Op) bool {
			return isWrite(op) && op.Kind != errorfs.OpFileClose && strings.HasPrefix(path.Base(op.Path), "MANIFEST-")
		}}
		f.cleared.Store(true)
		mem := before.CrashClone(vfs.CrashCloneCfg{})
		r := start(mustOpen(t, testDir, Options{FS: errorfs.Wrap(mem, f)}))
		p := &promise{acked: promised.snapshot()}
		workload(r.Log, p, 1, 4, 1000)
		if err := r.Settle(t.Context()); err != nil { // with it the store has begun a MANIFEST of its own
			t.Fatal(err)
		}
		f.cleared.Store(false)
		// The second is what Pebble itself does with a merge that has failed; in a poisoned log it does not get anywhere.
		for range 2 {
			bound, cancel := context.WithTimeout(t.Context(), time.Second/2)
			_ = r.store.db.Compact(bound, []byte{0}, []byte{255}, false)
			cancel()
		}
		hit := f.hit.Load()
		if err := r.stop(); err != nil && !(hit && errors.Is(err, ErrPoisoned)) {
			t.Fatalf("fault %d, met: %v: Run says %v", k, hit, err)
		}
		im := image{fs: mem.CrashClone(vfs.CrashCloneCfg{}), acked: p.snapshot(), op: "the end"}
		checkImage(t, im)
		if !hit {
			if k < 2 {
				t.Fatalf("%d faults: they did not reach the flush", k-1)
			}
			return
		}
	}
}
