package main

// What must not depend on whether, when and how often a process has died.

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const restartPanes = `
exact: {local: false}
correction_horizon: 10s
materializations:
  - {name: counter, expr: "increase(c[2m])", every: 1m}
  - {name: gauge, expr: "sum_over_time(m[1m])", every: 1m}
`

// ends are the ways from one process to the next; the first is none.
var ends = map[string]func(*site, *process) *process{
	"same process": func(_ *site, p *process) *process { return p },
	"SIGTERM":      func(s *site, p *process) *process { s.stop(p); return s.serveReady() },
	"kill -9":      func(_ *site, p *process) *process { p.kill(); return nil },
	"views lost": func(s *site, p *process) *process {
		p.kill()
		if err := os.RemoveAll(filepath.Join(s.dir, "data", viewsDir)); err != nil {
			s.t.Fatal(err)
		}
		return nil
	},
}

// acrossEnds runs a story with each way of ending in its middle.
func acrossEnds(t *testing.T, config string, story func(*testing.T, *site, func())) {
	for name, end := range ends {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := newSite(t, config, "--log.level=warn")
			p := s.serveReady()
			story(t, s, func() {
				if p = end(s, p); p == nil {
					p = s.serveReady()
				}
			})
			s.stop(p)
			verifyLog(t, s)
		})
	}
}

func (s *site) mustWrite(name string, at int64, v float64) {
	s.t.Helper()
	if code := s.write(name, at, v); code != http.StatusNoContent {
		s.t.Fatalf("%s %g@%d: status %d", name, v, at, code)
	}
}

func (s *site) mustBarrier(at int64) {
	s.t.Helper()
	if through, err := s.barrier(at); err != nil || through < at {
		s.t.Fatalf("barrier at %d: complete through %d, %v", at, through, err)
	}
}

// TestCase_A09_ResentAcrossTheEnd holds that a batch counts once, however often it comes, before and after an end.
func TestCase_A09_ResentAcrossTheEnd(t *testing.T) {
	acrossEnds(t, oneStream, func(_ *testing.T, s *site, end func()) {
		for n := range 6 {
			if n == 3 {
				end()
			}
			for i := range 3 {
				s.mustWrite("m", int64(1_000_001+i), float64(i+1))
			}
		}
		s.mustBarrier(1_010_000)
		s.mustWrite("m", 1_000_002, 2) // late now, and known all the same
		s.wantWarm("sum_over_time(m[1m])", 1_010_000, "6")
		s.wantWarm("count_over_time(m[1m])", 1_010_000, "3")
		s.wantWarm("max_over_time(m[1m])", 1_010_000, "3")
		if n := s.metric(`tidemark_pane_samples_total{result="duplicate"}`); n != 16 {
			s.t.Errorf("%g duplicates, want 16", n)
		}
	})
}

// TestCase_B32_OpenPaneAcrossTheEnd holds that a pane that is open at the end stays open, and becomes one bucket with what came
// before and after.
func TestCase_B32_OpenPaneAcrossTheEnd(t *testing.T) {
	acrossEnds(t, restartPanes, func(t *testing.T, s *site, end func()) {
		for i := range 3 {
			s.mustWrite("m", int64(1_000_000+i), 1)
		}
		end()
		if r, _ := s.published("sum_over_time(m[1m])", 1_020_000); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "unpublished") {
			t.Errorf("an open pane was published: %d %s", r.code, r.body)
		}
		for i := range 2 {
			s.mustWrite("m", int64(1_010_000+i), 1)
		}
		s.mustBarrier(1_020_000)
		s.wantWarm("count_over_time(m[1m])", 1_020_000, "5")
		if n := s.metric("tidemark_pane_closed_buckets_total"); n != 1 {
			t.Errorf("%g buckets were closed, want 1", n)
		}
	})
}

// TestCase_C25_CounterAcrossTheEnd holds that a counter grows across an end by what it grew, not by its whole value.
func TestCase_C25_CounterAcrossTheEnd(t *testing.T) {
	acrossEnds(t, restartPanes, func(t *testing.T, s *site, end func()) {
		s.mustWrite("c", 10_000, 100)
		s.mustWrite("c", 50_000, 160)
		end()
		s.mustWrite("c", 70_000, 200)
		s.mustWrite("c", 110_000, 260)
		s.mustBarrier(120_000)
		// 160 over the 100 s between the samples, and 10 s of the same slope on either side.
		s.wantWarm("increase(c[2m])", 120_000, "192")
		s.wantWarm("delta(c[2m])", 120_000, "192")
		s.wantWarm("resets(c[2m])", 120_000, "0")
	})
}

// TestCase_C31_LateAcrossTheEnd holds that what is late before an end is late after it.
func TestCase_C31_LateAcrossTheEnd(t *testing.T) {
	acrossEnds(t, restartPanes, func(t *testing.T, s *site, end func()) {
		s.mustWrite("m", 50_000, 5)
		s.mustWrite("m", 110_000, 7)
		s.mustBarrier(120_000)
		s.wantWarm("sum_over_time(m[1m])", 60_000, "5")
		end()
		s.wantWarm("sum_over_time(m[1m])", 60_000, "5")
		s.mustWrite("m", 30_000, 1)
		if r, _ := s.instant("sum_over_time(m[1m])", 60_000); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "late_uncorrectable") {
			t.Errorf("a bucket that lost a late sample: %d %s", r.code, r.body)
		}
		s.wantWarm("sum_over_time(m[1m])", 120_000, "7")
		if n := s.metric(`tidemark_pane_samples_total{result="late_uncorrectable"}`); n != 1 {
			t.Errorf("%g late samples, want 1", n)
		}
	})
}

// TestCase_B11_KilledWhileStarting kills start after start, and holds that the last one has everything and that the files that
// they leave behind do not grow in number without end.
func TestCase_B11_KilledWhileStarting(t *testing.T) {
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	s := newSite(t, oneStream, "--log.level=warn", "--projection.checkpoint-interval=200ms")
	p := s.serveReady()
	const samples = 50
	for i := range samples {
		s.mustWrite("m", int64(1_000_001+i), 1)
	}
	p.kill()
	files := func() int {
		names, err := os.ReadDir(filepath.Join(s.dir, "data", logDir, "store"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := files()
	for n := range 18 {
		p = s.serve()
		if n < 13 {
			s.awaitReady(p) // with an event of its own in the log
		} else {
			select {
			case <-time.After(time.Duration(rng.IntN(150)) * time.Millisecond):
			case <-p.exited:
				t.Fatalf("a start ended by itself with %d", p.cmd.ProcessState.ExitCode())
			}
		}
		p.kill()
	}
	p = s.serveReady()
	s.mustBarrier(1_010_000)
	s.wantWarm("sum_over_time(m[1m])", 1_010_000, fmt.Sprint(samples))
	// Each start makes a table of what the one before has logged, and eight are merged; Pebble does so behind the start.
	poll(t, readyWithin, "as few files as ever", func() (bool, string) {
		n := files()
		return n <= before+8+2, fmt.Sprintf("%d files in the store before the starts that died, %d after", before, n)
	})
	s.stop(p)
	verifyLog(t, s)
}

// TestCase_B15_MissingFile takes away one file of the log after the other. No start may come up with less than was acknowledged.
func TestCase_B15_MissingFile(t *testing.T) {
	s := newSite(t, oneStream, "--log.level=warn")
	p := s.serveReady()
	const samples = 50
	for i := range samples {
		s.mustWrite("m", int64(1_000_001+i), 1)
	}
	s.stop(p)
	whole, live := filepath.Join(s.dir, "whole"), filepath.Join(s.dir, "data")
	if err := os.Rename(live, whole); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, pattern := range []string{"HEAD", "store/MANIFEST-*", "store/marker.*", "store/*.sst", "store/*.log", "store/OPTIONS-*", "LOCK"} {
		found, err := filepath.Glob(filepath.Join(whole, logDir, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	refused := 0
	for _, path := range files {
		name, err := filepath.Rel(whole, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(live, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(live, name)); err != nil {
			t.Fatal(err)
		}
		p := s.serve()
		ready := false
		poll(t, readyWithin, name, func() (bool, string) {
			select {
			case <-p.exited:
				return true, ""
			default:
			}
			r, err := fetch(s.http, http.MethodGet, s.url()+"/-/ready", nil)
			ready = err == nil && r.code == http.StatusOK
			return ready, fmt.Sprint(err, r.body)
		})
		if !ready {
			refused++
			if code := p.wait(exitWithin); code != exitFailure || !strings.Contains(p.out.String(), "tidemark: error: ") {
				t.Errorf("without %s: exit code %d\n%s", name, code, lastLines(p.out.String(), 5))
			}
		} else {
			s.mustBarrier(1_010_000)
			s.wantWarm("sum_over_time(m[1m])", 1_010_000, fmt.Sprint(samples))
			s.stop(p)
			t.Logf("without %s everything is there all the same", name)
		}
		if err := os.RemoveAll(live); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("no file was missed")
	}
}
