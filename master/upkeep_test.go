package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
)

// stored counts what the store holds of snapshots.
func (r *rig) stored() (headers, rows int) {
	r.t.Helper()
	count := func(tag byte) (n int) {
		if err := r.rows.Each([]byte{tag}, nil, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
			r.t.Fatal(err)
		}
		return n
	}
	return count(keyHeader), count(keyRow)
}

// M11: after upkeep over 120 rounds at most two versions live, and the rows are as many as there are experiments, and those that changed
// last. Seen to fail with reclaim returning at once.
func TestM11_TwoVersionsLive(t *testing.T) {
	r := startRig(t)
	r.many(30)
	for round := range 120 {
		r.write(numbered(round%30), 1)
		if round%40 == 39 {
			delete(r.model.x, numbered(round%30)) // it leaves, and comes back with its next sample
		}
		r.round()
		if round%30 == 29 {
			if err := r.master.Upkeep(r.ctx()); err != nil {
				t.Fatal(err)
			}
		}
	}
	headers, rows := r.stored()
	if headers != liveVersions || rows > 30+2 || r.master.upkeep.unreclaimed() != 0 || r.master.upkeep.removed != 118 {
		t.Fatalf("%d versions, %d rows, %d not reclaimed, %d removed", headers, rows, r.master.upkeep.unreclaimed(), r.master.upkeep.removed)
	}
	a, b := r.master.Snapshot(), r.another().Snapshot()
	if a.Header != b.Header || len(a.rows) != len(b.rows) || len(a.rows) < 27 {
		t.Fatalf("%+v with %d rows, %+v with %d", a.Header, len(a.rows), b.Header, len(b.rows))
	}
	for i := range a.rows {
		if *a.rows[i] != *b.rows[i] {
			t.Errorf("%+v\n%+v", a.rows[i], b.rows[i])
		}
	}
}

// M11: upkeep that is cut off at any chunk goes on from there in another process, and what is left counts rounds made while nothing ran.
// Seen to fail with the cursor not written.
func TestM11_UpkeepResumesAtAnyChunk(t *testing.T) {
	r := startRig(t)
	r.many(2*upkeepKeys + 10)
	for range 3 {
		seq := r.append(&log.Tick{})
		for _, o := range r.model.x {
			o.Samples++
			o.Version = seq
		}
		r.round()
	}
	for i := range 7 {
		r.write(numbered(i), 1)
		r.round()
	}
	if n := r.another().upkeep.unreclaimed(); n != 8 || r.master.upkeep.unreclaimed() != 8 {
		t.Fatalf("%d are not reclaimed", n)
	}
	commits, _ := r.rows.counted()
	killed := errors.New("killed")
	chunks := 0
	for ; ; chunks++ {
		done := 0
		r.rows.fail = func(int) error {
			if done++; done > 1 {
				return killed // one chunk each time
			}
			return nil
		}
		m := r.another()
		err := m.Upkeep(r.ctx())
		if err == nil {
			break
		}
		if !errors.Is(err, killed) || m.upkeep.inRow != 1 {
			t.Fatal(err)
		}
		if chunks > 50 {
			t.Fatal("it does not come to its end")
		}
	}
	after, _ := r.rows.counted()
	if chunks < 4 {
		t.Fatalf("%d chunks, %d commits", chunks, after-commits)
	}
	r.rows.fail = nil
	m := r.another()
	if headers, rows := r.stored(); headers != liveVersions || rows > 2*upkeepKeys+10+1 || m.upkeep.unreclaimed() != 0 {
		t.Fatalf("%d versions, %d rows, %d not reclaimed", headers, rows, m.upkeep.unreclaimed())
	}
	if len(m.Snapshot().rows) != 2*upkeepKeys+10 || m.Snapshot().row(numbered(3)).Samples != r.model.x[numbered(3)].Samples {
		t.Fatal("upkeep has taken what is live")
	}
}

// Points of the history that are older than a day go, from memory and from the store.
func TestHistoryKeepsADay(t *testing.T) {
	r := startRig(t)
	r.many(3)
	for range 400 {
		r.pass(5 * time.Minute)
		r.write(numbered(1), 300)
		r.round()
	}
	if err := r.master.Upkeep(r.ctx()); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := r.rows.Each([]byte{keyPoint}, nil, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	if h := r.master.History(); n != 289 || len(h) != 289 || h[288].Gained != 300 || h[288].Samples != 400*300+3 {
		t.Fatalf("%d points stored, %d in memory", n, len(r.master.History()))
	}
	_, rates, _, err := r.master.Rates(numbered(1), 24)
	if err != nil || len(rates) != 24 {
		t.Fatal(rates, err)
	}
	for _, v := range rates {
		if v < 0.99 || v > 1.01 {
			t.Fatalf("300 samples in 5 minutes are %v", rates)
		}
	}
	if _, rates, _, _ := r.master.Rates(numbered(2), 24); slices.Max(rates) != 0 {
		t.Fatal(rates)
	}
}

// retireSome makes n experiments of which every third is retired.
func retireSome(t *testing.T, n int) *rig {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: 168 * time.Hour})
	r.many(n)
	r.round()
	r.pass(169 * time.Hour)
	for i := range n {
		if i%3 != 0 {
			r.write(numbered(i), 5)
		}
	}
	if res := r.round(); res.Retired != (n+2)/3 {
		t.Fatalf("%+v", res)
	}
	return r
}

// M6: every match is on exactly one page, for every limit, over hot and retired ones in one order of names, with the exact total.
// Seen to fail with retired ones behind the hot ones.
func TestM6_EveryMatchOnExactlyOnePage(t *testing.T) {
	r := retireSome(t, 100)
	for _, search := range []string{"run-", "7", "run-00009", "nothing"} {
		var want []string
		for i := range 100 {
			if strings.Contains(numbered(i), search) {
				want = append(want, numbered(i))
			}
		}
		for limit := 1; limit <= MaxLimit; limit++ {
			if len(want) > limit*40 && limit > 3 {
				continue
			}
			var got []string
			for offset := 0; ; offset += limit {
				p := r.list(ListRequest{Search: search, Limit: limit, Offset: offset})
				if p.Total != len(want) {
					t.Fatalf("total %d, not %d", p.Total, len(want))
				}
				for _, row := range p.Rows {
					got = append(got, row.Name)
				}
				if len(p.Rows) < limit {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("limit %d: %v", limit, got)
			}
		}
	}
}

// M6, E06: retired experiments leave the table and stay findable, cost 100 rounds no read, and reading about them writes nothing; their
// counters survive. Seen to fail with retired names observed in newWork.
func TestM6_RetiredCostsNothingAndIsFound(t *testing.T) {
	r := retireSome(t, 15)
	name := numbered(3)
	r.round()
	r.model.observed = 0
	before := r.events.Head()
	commits, puts := r.rows.counted()
	for range 100 {
		r.round()
	}
	if c, p := r.rows.counted(); r.model.observed != 0 || c-commits != 100 || p-puts != 200 {
		t.Fatalf("%d reads, %d commits of %d rows", r.model.observed, c-commits, p-puts)
	}
	commits, _ = r.rows.counted()
	if p := r.list(ListRequest{}); p.Total != 10 || p.Hot != 10 || p.Gone != 5 {
		t.Fatalf("%+v", p)
	}
	if p := r.list(ListRequest{State: WhichAll}); p.Total != 15 {
		t.Fatalf("%+v", p)
	}
	p := r.list(ListRequest{Search: name})
	if p.Total != 1 || p.Rows[0].State != Retired || p.Rows[0].Samples != 1 || p.Rows[0].Series != 1 {
		t.Fatalf("%+v", p.Rows)
	}
	for range 10 {
		row, err := r.master.Fresh(r.ctx(), name)
		if err != nil || row.State != Retired || row.Samples != 1 {
			t.Fatalf("%+v, %v", row, err)
		}
		if row, err = r.master.Rescan(r.ctx(), name); err != nil || row.State != Retired {
			t.Fatalf("%+v, %v", row, err)
		}
	}
	if c, _ := r.rows.counted(); c != commits || r.events.Head() != before {
		t.Fatal("reading about a retired experiment has written something")
	}
	if _, err := r.master.Get("never seen"); !errors.Is(err, ErrUnknown) {
		t.Fatal(err)
	}
}

func TestCase_E06_RetiredExperimentsAreFound(t *testing.T) {
	r := retireSome(t, 15)
	for _, tc := range []struct {
		q    ListRequest
		want int
	}{{ListRequest{}, 10}, {ListRequest{Search: numbered(3)}, 1}, {ListRequest{State: WhichAll}, 15}, {ListRequest{State: WhichRetired}, 5}} {
		if p := r.list(tc.q); p.Total != tc.want || p.Gone != 5 {
			t.Errorf("%+v: %d", tc.q, p.Total)
		}
	}
	if row, err := r.master.Get(numbered(3)); err != nil || row.State != Retired || row.RetiredAt == never {
		t.Errorf("%+v, %v", row, err)
	}
}

// M5, E08: a sample that comes between the last look and the event is counted, once, and the experiment is hot; a retired one returns with
// its next sample, with its counters, and its return is counted once. Seen to fail with the model's, and the panes', comparison with
// AtVersion taken away.
func TestM5_SampleThatRacesTheRetirement(t *testing.T) {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: time.Hour})
	r.many(2)
	r.round()
	r.pass(2 * time.Hour)
	racing := &racingLog{Log: r.events, before: func() { r.write(numbered(1), 7) }, name: numbered(1)}
	r.master.events = racing
	if res := r.round(); res.Retired != 1 || res.Scanned != 1 {
		t.Fatalf("%+v", res)
	}
	row := r.master.Snapshot().row(numbered(1))
	if row == nil || row.Samples != 8 || row.Series != 1 || row.State != Hot {
		t.Fatalf("%+v", row)
	}
	if got, err := r.master.Get(numbered(0)); err != nil || got.State != Retired {
		t.Fatalf("%+v, %v", got, err)
	}
	r.master.events = r.events
	r.model.observed = 0
	r.change(numbered(0), func(o *Observation) {
		o.Samples, o.LastWrite, o.LastWriteLogTime = 4, r.now.Load(), r.events.LogTime()
	})
	r.round()
	row = r.master.Snapshot().row(numbered(0))
	if row == nil || row.Samples != 5 || row.Series != 1 || r.master.counters.returned.Load() != 1 || r.list(ListRequest{State: WhichAll}).Total != 2 {
		t.Fatalf("%+v, returned %d", row, r.master.counters.returned.Load())
	}
}

func TestCase_E08_WritingToARetiredExperiment(t *testing.T) {
	r := retireSome(t, 3)
	r.round()
	r.change(numbered(0), func(o *Observation) { o.Series, o.Samples, o.LastWriteLogTime = 0, 9, r.events.LogTime() })
	r.round()
	r.round()
	p := r.list(ListRequest{})
	if p.Total != 3 || p.Gone != 0 || p.Rows[0].Samples != 10 || r.master.counters.returned.Load() != 1 {
		t.Fatalf("%+v, returned %d times", p, r.master.counters.returned.Load())
	}
}

// racingLog lets a sample come just before a retirement.
type racingLog struct {
	*log.Log
	name   string
	before func()
}

func (l *racingLog) Append(ctx context.Context, body log.Body) (log.Seq, error) {
	if b, ok := body.(*log.ExperimentRetired); ok && b.Experiment == l.name && l.before != nil {
		l.before()
		l.before = nil
	}
	return l.Log.Append(ctx, body)
}

// What is open keeps its experiment, and so does a compaction that fails; with its corrections compacted it is retired.
func TestM5_RetirementInOrder(t *testing.T) {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: time.Hour})
	r.many(3)
	r.change(numbered(0), func(o *Observation) { o.Pending, o.OldestPending = 1, 5 })
	r.corrected(numbered(1), 3)
	r.pass(2 * time.Hour)
	fail := errors.New("no")
	r.model.mergeErr = nil
	r.rows.fail = nil
	r.model.fail = nil
	limit := r.master.pieces
	r.master.pieces = failingPieces{limit, fail}
	if res := r.round(); res.Retired != 1 || res.Scanned != 2 || r.master.counters.retireFailures.Load() != 1 {
		t.Fatalf("%+v", res)
	}
	r.master.pieces = limit
	if res := r.round(); res.Retired != 1 || res.Scanned != 1 {
		t.Fatalf("%+v", res)
	}
	row, err := r.master.Get(numbered(1))
	if err != nil || row.State != Retired || row.Corrections != 0 || row.Compactions != 1 || row.Pending != 0 {
		t.Fatalf("%+v, %v", row, err)
	}
	// While a task has it, it is left alone.
	r.change(numbered(0), func(o *Observation) { o.Pending, o.OldestPending = 0, never })
	if !r.master.exec.claim(numbered(0)) {
		t.Fatal("not claimed")
	}
	if res := r.round(); res.Retired != 0 || r.master.counters.retireFailures.Load() != 1 {
		t.Fatalf("%+v", res)
	}
	r.master.exec.unclaim(numbered(0))
	if res := r.round(); res.Retired != 1 || res.Scanned != 0 {
		t.Fatalf("%+v", res)
	}
}

type failingPieces struct {
	Pieces
	err error
}

func (f failingPieces) Corrected(context.Context, string) ([]Spot, error) { return nil, f.err }

// M12: the fold made anew from the log has the same records, tasks and memory as the one that was restored from its rows.
func TestM12_ReplayMakesTheSameFold(t *testing.T) {
	r := retireSome(t, 9)
	r.corrected(numbered(1), 20)
	r.work()
	r.ended(r.enqueue(log.TaskCompact, numbered(1)).ID)
	r.ended(r.enqueue(log.TaskCompact, numbered(2)).ID)
	r.master.Pause()
	r.enqueue(log.TaskRescan, numbered(4))
	r.folded()
	restored := NewFold(r.views.Rows(FoldSpace), 1, r.fold.label, nil)
	if _, err := restored.Restore(); err != nil {
		t.Fatal(err)
	}
	anew := NewFold(r.views.Rows(77), 1, r.fold.label, nil)
	sub := r.events.Subscribe(1)
	for {
		if at, _ := anew.Applied(); at == r.events.Head() {
			break
		}
		evs, err := sub.Next(r.ctx(), 3)
		if err == nil {
			err = anew.Apply(r.ctx(), evs)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := describe(t, r.fold)
	for _, f := range []*Fold{restored, anew} {
		if got := describe(t, f); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	// Under another label all names are others.
	r.append(&log.Plan{Spec: []byte("team")})
	r.folded()
	if len(r.fold.known) != 0 || len(r.fold.tasks.noops) != 0 {
		t.Fatalf("%v", r.fold.known)
	}
}

func describe(t *testing.T, f *Fold) string {
	t.Helper()
	out := fmt.Sprintf("at %d, epoch %d\n", f.seq, f.epoch)
	for i := range 9 {
		rec, ok, err := f.record(numbered(i))
		if err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprintf("%v %+v\n", ok, rec)
	}
	for _, list := range [][]*Task{f.tasks.waiting, f.tasks.ended} {
		for _, task := range list {
			out += fmt.Sprintf("%+v\n", *task)
		}
	}
	return out + fmt.Sprintf("%v %v", f.tasks.failures, f.tasks.noops)
}

// A disk that takes no rows leaves them in memory, where they are read, and the fold goes on.
func TestM12_FoldOutlivesADiskThatFails(t *testing.T) {
	r := startRig(t)
	rows := &spyRows{Rows: r.views.Rows(78), fail: func(n int) error {
		if n < 3 {
			return errors.New("no space")
		}
		return nil
	}}
	f := NewFold(rows, 1, nil, r.master.logger)
	event := func(seq log.Seq, b log.Body) []*log.Event { return []*log.Event{{Seq: seq, WallTime: 9, Body: b}} }
	for seq := log.Seq(1); seq <= 3; seq++ {
		if err := f.Apply(r.ctx(), event(seq, &log.Compacted{Experiment: "a", Through: seq})); err != nil {
			t.Fatal(err)
		}
		rec, ok, err := f.record("a")
		if err != nil || !ok || rec.compactions != uint64(seq) {
			t.Fatalf("%+v, %v", rec, err)
		}
		if want := seq; seq < 3 && f.Saved() != 0 || seq == 3 && f.Saved() != want {
			t.Fatalf("saved %d", f.Saved())
		}
	}
}

// E01: what is stored after a thousand rounds is what ten rounds left, and each round was one commit.
func TestCase_E01_TableDoesNotGrowWithRounds(t *testing.T) {
	r := startRig(t)
	const n = 500
	r.many(n)
	var after10 int
	for round := 1; round <= 1000; round++ {
		for i := range 5 {
			r.model.x[numbered((5*round+i)%n)].Version = log.Seq(1<<40 + round)
		}
		r.round()
		if round%10 == 0 {
			if err := r.master.Upkeep(r.ctx()); err != nil {
				t.Fatal(err)
			}
		}
		if headers, rows := r.stored(); round == 10 {
			after10 = headers + rows
		} else if round == 1000 && headers+rows > 3*after10 {
			t.Fatalf("%d rows after 10 rounds, %d after 1,000", after10, headers+rows)
		}
	}
	if commits, _ := r.rows.counted(); r.master.Snapshot().Version != 1000 || commits > 1000+3*100+10 {
		t.Fatalf("version %d, %d commits", r.master.Snapshot().Version, commits)
	}
}

// E20: a new experiment is listed after the next round; a table that is older than two intervals says so, and so does one that was made
// from a fold that is behind.
func TestCase_E20_OldTableSaysSo(t *testing.T) {
	r := startRig(t)
	if p := r.list(ListRequest{}); !p.Stale || p.ScannedAt != never {
		t.Fatalf("%+v", p)
	}
	r.round()
	r.write("new", 1)
	if p := r.list(ListRequest{}); p.Stale || p.Total != 0 {
		t.Fatalf("%+v", p)
	}
	r.round()
	if p := r.list(ListRequest{}); p.Stale || p.Total != 1 || p.ScannedAt != r.now.Load() {
		t.Fatalf("%+v", p)
	}
	r.pass(2 * time.Minute)
	if r.list(ListRequest{}).Stale {
		t.Fatal("stale after two intervals")
	}
	r.pass(time.Millisecond)
	if !r.list(ListRequest{}).Stale {
		t.Fatal("not stale after more than two intervals")
	}
	r.round()
	r.master.opts.Lagging = func() bool { return true }
	if !r.list(ListRequest{}).Stale {
		t.Fatal("not stale while the fold is behind")
	}
}
