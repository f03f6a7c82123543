package master

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
)

// M1: one round is one commit, for any number of experiments, and writes the rows that changed, the header and the point of the history.
// Seen to fail with a commit per row in commit, and with unchanged rows put into work.changed.
func TestM1_OneRoundIsOneCommit(t *testing.T) {
	for _, n := range []int{1, 50, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := startRig(t)
			r.many(n)
			for round := range 5 {
				before, puts := r.rows.counted()
				if round > 0 && round < 3 {
					r.write(numbered(0), 1)
				}
				res := r.round()
				commits, after := r.rows.counted()
				changed := n
				switch {
				case round >= 3:
					changed = 0
				case round > 0:
					changed = 1
				}
				if commits-before != 1 || after-puts != changed+2 {
					t.Fatalf("round %d: %d commits with %d rows, not one with %d and two", round, commits-before, after-puts, changed)
				}
				if res.Observed != changed || res.Skipped != n-changed || res.Scanned != n {
					t.Fatalf("round %d: %+v", round, res)
				}
			}
			if v := r.master.Snapshot().Version; v != 5 {
				t.Fatalf("version %d after 5 rounds over %d rows", v, n)
			}
		})
	}
}

// M1: an unchanged experiment is not read at all: the counting source sees nothing. Seen to fail with the comparison of versions in
// newWork taken away.
func TestM1_UnchangedIsNotObserved(t *testing.T) {
	r := startRig(t)
	r.many(40)
	r.round()
	r.model.observed = 0
	for range 10 {
		r.round()
	}
	if r.model.observed != 0 {
		t.Fatalf("%d reads of experiments that did not change", r.model.observed)
	}
	r.write(numbered(7), 3)
	r.round()
	if r.model.observed != 1 || r.master.Snapshot().row(numbered(7)).Samples != 4 {
		t.Fatalf("%d reads, %+v", r.model.observed, r.master.Snapshot().row(numbered(7)))
	}
}

// A row of an older format has no version: it matches nothing, and is observed once. Seen to fail without the test for version 0.
func TestM1_RowWithoutAVersionIsObservedOnce(t *testing.T) {
	r := startRig(t)
	r.many(2)
	r.round()
	r.master.snap.Load().rows[0].Version = 0
	r.model.x[numbered(0)].Version = 0
	r.model.observed = 0
	if r.round(); r.model.observed != 1 {
		t.Fatalf("%d reads", r.model.observed)
	}
}

// M3: a failed reading keeps the row with its error, a round in which all fail keeps the table, and a table that is empty for good is
// written through. Seen to fail without the row that observe keeps, and without errNothingLeft.
func TestM3_WhatFailsKeepsWhatWasKnown(t *testing.T) {
	r := startRig(t)
	r.many(3)
	r.round()
	for i := range 3 {
		r.write(numbered(i), 10)
	}
	r.pass(time.Second)
	r.model.fail = func(name string) error {
		if name == numbered(1) {
			return errors.New("<broken>")
		}
		return nil
	}
	if res := r.round(); res.Failed != 1 || res.Observed != 2 || res.Scanned != 3 {
		t.Fatalf("%+v", res)
	}
	row := r.master.Snapshot().row(numbered(1))
	if row.Samples != 1 || row.Err != "observe: <broken>" || row.ObservedAt != 1_700_000_000_000 {
		t.Fatalf("%+v", row)
	}
	r.model.fail = func(string) error { return errors.New("all broken") }
	if _, err := r.master.Round(r.ctx()); err == nil {
		t.Fatal("a round without versions succeeded")
	}
	r.model.fail = func(name string) error {
		if name == "versions" {
			return nil
		}
		return errors.New("all broken")
	}
	for i := range 3 {
		r.write(numbered(i), 10)
	}
	if res := r.round(); res.Failed != 3 || r.list(ListRequest{}).Total != 3 {
		t.Fatalf("%+v", res)
	}
	// What was never read has no row, and what was is gone from the source: nothing may be left of the table by that.
	clear(r.model.x)
	r.write("new", 1)
	if _, err := r.master.Round(r.ctx()); !errors.Is(err, errNothingLeft) || r.list(ListRequest{}).Total != 3 {
		t.Fatalf("%v", err)
	}
	r.model.fail = nil
	clear(r.model.x)
	if res := r.round(); res.Scanned != 0 || r.list(ListRequest{}).Total != 0 {
		t.Fatalf("%+v", res)
	}
}

// E03 in the table: the failing one of 100 keeps its values, says that it is stale and why, and when it was read.
func TestCase_E03_FailingExperimentStays(t *testing.T) {
	r := startRig(t)
	r.many(100)
	r.round()
	read := r.now.Load()
	r.pass(time.Minute)
	for i := range 100 {
		r.write(numbered(i), 1)
	}
	r.model.fail = func(name string) error {
		if name == numbered(42) {
			return errors.New("disk <b>gone</b>")
		}
		return nil
	}
	r.round()
	p := r.list(ListRequest{Limit: 200})
	i := slices.IndexFunc(p.Rows, func(r *Row) bool { return r.Err != "" })
	if p.Total != 100 || len(p.Rows) != 100 || i != 42 || p.Rows[i].Samples != 1 || p.Rows[i].ObservedAt != read || p.Rows[41].ObservedAt == read {
		t.Fatalf("%d rows of %d, the failing one at %d", len(p.Rows), p.Total, i)
	}
}

// M4: a commit that fails keeps the snapshot; the failure is counted, and the next round makes up for it. Seen to fail with the swap
// before the commit.
func TestM4_FailedCommitKeepsTheSnapshot(t *testing.T) {
	r := startRig(t)
	r.many(3)
	r.round()
	before := r.master.Snapshot()
	r.write(numbered(1), 5)
	commits, _ := r.rows.counted()
	r.rows.fail = func(n int) error {
		if n == commits+1 {
			return errors.New("no space")
		}
		return nil
	}
	if _, err := r.master.Round(r.ctx()); err == nil {
		t.Fatal("the round succeeded")
	}
	if r.master.Snapshot() != before || r.master.counters.failedInRow != 1 {
		t.Fatal("the snapshot was swapped, or the failure not counted")
	}
	if res := r.round(); res.Observed != 1 || r.master.Snapshot().row(numbered(1)).Samples != 6 || r.master.counters.failedInRow != 0 {
		t.Fatalf("%+v", res)
	}
}

// The table is there after a restart, as it was.
func TestM4_SnapshotSurvivesARestart(t *testing.T) {
	r := startRig(t)
	r.many(10)
	r.round()
	r.write(numbered(3), 4)
	clearName := numbered(9)
	delete(r.model.x, clearName)
	r.round()
	m := r.another()
	a, b := r.master.Snapshot(), m.Snapshot()
	if a.Header != b.Header || len(a.rows) != len(b.rows) || len(b.rows) != 9 {
		t.Fatalf("%+v with %d rows, %+v with %d", a.Header, len(a.rows), b.Header, len(b.rows))
	}
	for i := range a.rows {
		if *a.rows[i] != *b.rows[i] {
			t.Errorf("%+v\n%+v", a.rows[i], b.rows[i])
		}
	}
	if x, y := r.master.History(), m.History(); !slices.Equal(x, y) || len(x) != 2 {
		t.Errorf("%+v\n%+v", x, y)
	}
}

// The auditor reads unchanged rows in turn, corrects one whose version did not cover a change, and counts it. Seen to fail with audit
// switched off.
func TestM2_AuditFindsDrift(t *testing.T) {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, AuditEvery: 1})
	r.many(10)
	r.round()
	r.model.x[numbered(6)].Buckets = 77 // and its version says nothing
	drifted := 0
	for range 5 {
		drifted += r.round().Drifted
	}
	if drifted != 1 || r.master.Snapshot().row(numbered(6)).Buckets != 77 || r.master.counters.drift.Load() != 1 {
		t.Fatalf("%d, %+v", drifted, r.master.Snapshot().row(numbered(6)))
	}
}

// M7: list and detail answer while scans, retirements, compactions and upkeep hang, with what the last finished round said; E04 asks for
// the same. Seen to fail with the round's turn taken by List.
func TestM7_ReadersWaitForNothing(t *testing.T) { readersWaitForNothing(t) }

func TestCase_E04_ListBehindAHangingScan(t *testing.T) { readersWaitForNothing(t) }

func readersWaitForNothing(t *testing.T) {
	r := startRigOn(t, vfs.NewMem(), Settings{ScanInterval: time.Minute, RetireAfter: time.Hour})
	r.many(20)
	r.round()
	r.pass(2 * time.Hour)
	for i := range 10 {
		r.write(numbered(i), 1)
	}
	if res := r.round(); res.Retired != 10 {
		t.Fatalf("%+v", res)
	}
	for i := range 5 {
		r.change(numbered(i), func(o *Observation) { o.Corrections, o.LastCorrectedAt = 20, 1 })
	}
	want := r.master.Snapshot().AsOf
	release, commit := make(chan struct{}), make(chan struct{})
	r.model.mu.Lock()
	r.model.hang = release
	r.model.mu.Unlock()
	r.rows.mu.Lock()
	r.rows.hang = commit
	r.rows.mu.Unlock()
	done := make(chan error, 4)
	ctx := r.ctx()
	go func() { _, err := r.master.Round(ctx); done <- err }()
	go func() { _, err := r.master.Rescan(ctx, numbered(1)); done <- err }()
	go func() { _, _, err := r.master.compact(ctx, numbered(2)); done <- err }()
	go func() { done <- r.master.Upkeep(ctx) }()
	for range 100 {
		p, err := r.master.List(ctx, ListRequest{Search: "run-"})
		if err != nil || p.Total != 20 || p.AsOf != want {
			t.Fatalf("%+v, %v", p, err)
		}
		for _, i := range []int{1, 15} {
			if _, err := r.master.Get(numbered(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(commit)
	close(release)
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// 30,000 experiments of which 1 % changed: 300 are observed, 29,700 skipped; and once the history spans its day, hundreds of rounds more
// leave the heap as it is. Seen to fail
// with newWork putting everything into todo, and with history keeping its points for ever.
func TestM1_CostsWhatChanged(t *testing.T) {
	const day = 300 // rounds of 5 minutes; the history is full then
	rounds := 3 * day
	if testing.Short() {
		rounds = 60 // and nothing is said about the heap
	}
	r := startRig(t)
	const n = 30_000
	r.many(n)
	r.round()
	var afterDay uint64
	for round := 1; round <= rounds; round++ {
		seq := r.append(&log.Tick{})
		for i := range n / 100 {
			o := r.model.x[numbered((round*n/100+i)%n)]
			o.Samples++
			o.Version = seq
		}
		r.pass(5 * time.Minute)
		if round == rounds || round <= 2 {
			if res := r.round(); res.Observed != 300 || res.Skipped != 29_700 {
				t.Fatalf("round %d: %+v", round, res)
			}
		} else {
			r.round()
		}
		if round%10 == 0 {
			if err := r.master.Upkeep(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if round == day {
			afterDay = heap()
		}
	}
	if now := heap(); rounds > day && now > afterDay+afterDay/10 {
		t.Errorf("heap of %d after %d rounds, %d after %d", afterDay, day, now, rounds)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
