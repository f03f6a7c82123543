package master

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// M2: counts over another basis are other counts, though no event has changed them: streams that were added to a history count from the
// moment at which they are handed over. Each such experiment is read once, also by the process after. Seen to fail without the
// comparison of the basis in newWork, and without it in the row's encoding.
func TestM2_AnotherBasisIsObservedOnce(t *testing.T) {
	r := startRig(t)
	r.many(3)
	r.round()
	r.model.mu.Lock()
	r.model.x[numbered(1)].Basis, r.model.x[numbered(1)].Buckets = 7, 5
	r.model.mu.Unlock()
	if res := r.round(); res.Observed != 1 || res.Skipped != 2 {
		t.Fatalf("%+v", res)
	}
	if row := r.master.Snapshot().row(numbered(1)); row.Buckets != 5 || row.Basis != 7 {
		t.Fatalf("%+v", row)
	}
	if res := r.round(); res.Observed != 0 {
		t.Fatalf("%+v", res)
	}
	r.master = r.another()
	if res := r.round(); res.Observed != 0 || r.master.Snapshot().row(numbered(1)).Buckets != 5 {
		t.Fatalf("in another process: %+v", res)
	}
}

// M5: while streams of the plan are still being folded from the log, more may be open than is known, so nothing is retired: not in a round
// that knows it from its beginning, and not by a look that learns of it only later. Seen to fail without either.
func TestM5_BehindRetiresNothing(t *testing.T) {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: time.Hour})
	r.many(2)
	r.pass(2 * time.Hour)
	head := r.events.Head()
	r.model.behind = true
	r.model.observed = 0
	if res := r.round(); res.Retired != 0 || res.Scanned != 2 || r.model.observed != 2 {
		t.Fatalf("%+v after %d reads", res, r.model.observed)
	}
	if row, err := r.master.retireOne(r.ctx(), numbered(0), 1); err != errNotYet || r.events.Head() != head {
		t.Fatalf("%+v, %v", row, err)
	}
	r.model.behind = false
	if res := r.round(); res.Retired != 2 || r.master.counters.retireFailures.Load() != 0 {
		t.Fatalf("%+v", res)
	}
}
