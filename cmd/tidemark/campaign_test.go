package main

// The campaign proves the claims of durability and determinism by trying: scripts over the whole service, with a crash before every
// file operation, every operation failing once, files at rest harmed, and writes late and again, all beside a naive model.
//
//	go test ./cmd/tidemark -run TestCampaign               a slice, as it runs with all tests
//	make campaign SEEDS=a-b DURATION=d [MODE=crash|…|kill] long; goes on where the ledger says that it stopped
//	CAMPAIGN_MODE=crash CAMPAIGN_SEEDS=7-7 CAMPAIGN_AT='views table write #3' …   one crash alone
//
// The long run gives every few seeds to a process of its own, so that what a failed disk leaves behind ends with it, and so that a
// panic is a finding and not the end.

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// campaignMode is one way of trying a seed.
type campaignMode struct {
	name  string
	try   func(c *trials, seed uint64)
	chunk uint64 // seeds that one process takes
}

var campaignModes = []campaignMode{
	{"crash", (*trials).crashes, 2},
	{"fault", (*trials).faults, 1},
	{"damage", func(c *trials, seed uint64) { c.damages(seed, 60) }, 10},
	{"late", func(c *trials, seed uint64) { c.lates(seed, 2000) }, 20},
	{"model", (*trials).beside, 20},
	{"kill", nil, 5}, // real processes, see kill_test.go
}

// lengthOf is the number of moves of a seed's script.
func lengthOf(seed uint64) int { return 40 + int(seed%5)*30 }

// beside plays a long script beside the model and does nothing to the disk.
func (c *trials) beside(seed uint64) {
	_, p, err := record(newScript(seed, 4*c.length), c.plans)
	c.model(p)
	c.add("scripts beside the model", 1)
	if err != nil {
		c.find("model, %v", err)
	}
}

// TestCampaign is the slice of the campaign that runs with all tests: a seed of the day for each mode.
func TestCampaign(t *testing.T) {
	seed := uint64(time.Now().UTC().YearDay())
	if text := os.Getenv("TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TEST_SEED=%d", seed)
	for _, m := range campaignModes {
		if m.try == nil {
			continue // a test of its own
		}
		t.Run(m.name, func(t *testing.T) {
			c, err := newTrials(sliceLength)
			if err != nil {
				t.Fatal(err)
			}
			c.slice = true
			if m.name == "fault" {
				// In a process of its own: goroutines of Pebble hang on failed disks for good.
				t.Setenv("CAMPAIGN_SLICE", "1")
				r := runChunk(t, m, seed, seed)
				c.counts, c.findings = r.Counts, r.Findings
			} else {
				m.try(c, seed)
			}
			for _, f := range c.findings {
				t.Error(f)
			}
			if len(c.counts) == 0 {
				t.Error("nothing was tried")
			}
			t.Logf("%v", c.counts)
		})
	}
}

// ledgerLine is one line of the ledger.
type ledgerLine struct {
	Date     string            `json:"date"`
	Mode     string            `json:"mode"`
	From     uint64            `json:"from"` // seeds, both included
	To       uint64            `json:"to"`
	Target   string            `json:"target,omitempty"` // of the fuzzer
	Commit   string            `json:"commit"`
	Seconds  int64             `json:"seconds"`
	Counts   map[string]uint64 `json:"counts"`
	Findings []string          `json:"findings,omitempty"`
	Found    string            `json:"found,omitempty"` // of a planted bug: what gave it away
}

// ledger is the file to which runs are appended.
type ledger struct{ path string }

func (l ledger) lines() ([]ledgerLine, error) {
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []ledgerLine
	for line := range bytes.Lines(b) {
		var x ledgerLine
		if err := json.Unmarshal(line, &x); err != nil {
			return nil, fmt.Errorf("%s: %w", l.path, err)
		}
		out = append(out, x)
	}
	return out, nil
}

func (l ledger) add(x ledgerLine) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	return errors.Join(enc.Encode(x), f.Close())
}

const (
	ledgerEvery  = 10 * time.Minute // a line at least so often
	chunkTimeout = 20 * time.Minute
	maxFindings  = 20
	sliceLength  = 25 // moves
)

// TestCampaign_Long runs where CAMPAIGN_SEEDS says what to try.
func TestCampaign_Long(t *testing.T) {
	seeds := os.Getenv("CAMPAIGN_SEEDS")
	if seeds == "" {
		t.Skip("CAMPAIGN_SEEDS is not set; `make campaign` sets it")
	}
	var from, to uint64
	if n, err := fmt.Sscanf(seeds, "%d-%d", &from, &to); n != 2 || err != nil {
		t.Fatalf("CAMPAIGN_SEEDS=%s: %v", seeds, err)
	}
	duration, err := time.ParseDuration(os.Getenv("CAMPAIGN_DURATION"))
	if err != nil {
		t.Fatal(err)
	}
	l := ledger{path: filepath.Join(root(t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		l.path = path
	}
	var modes []campaignMode
	for _, m := range campaignModes {
		if name := os.Getenv("CAMPAIGN_MODE"); name == "" && m.try != nil || name == m.name {
			modes = append(modes, m)
		}
	}
	if len(modes) == 0 {
		t.Fatalf("no mode %s", os.Getenv("CAMPAIGN_MODE"))
	}
	for _, m := range modes {
		runLong(t, l, m, from, to, duration/time.Duration(len(modes)))
	}
}

// runLong tries the seeds of a mode that the ledger does not have for this commit.
func runLong(t *testing.T, l ledger, m campaignMode, from, to uint64, duration time.Duration) {
	commit := os.Getenv("CAMPAIGN_COMMIT")
	lines, err := l.lines()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range lines {
		if x.Mode == m.name && x.Commit == commit && x.From <= from && x.To >= from && x.To < to {
			from = x.To + 1
		}
	}
	end := time.Now().Add(duration)
	for from <= to && time.Now().Before(end) {
		began := time.Now()
		x := ledgerLine{Date: began.UTC().Format(time.RFC3339), Mode: m.name, From: from, Commit: commit, Counts: map[string]uint64{}}
		for from <= to && time.Now().Before(end) && time.Since(began) < ledgerEvery {
			last := min(from+m.chunk-1, to)
			got := runChunk(t, m, from, last)
			for k, n := range got.Counts {
				x.Counts[k] += n
			}
			for _, f := range got.Findings {
				t.Errorf("FINDING: %s", f)
				if len(x.Findings) < maxFindings {
					x.Findings = append(x.Findings, fmt.Sprintf("%.400s", f))
				}
			}
			x.To, from = last, last+1
		}
		x.Seconds = int64(time.Since(began).Seconds())
		if err := l.add(x); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %d to %d: %v", m.name, x.From, x.To, x.Counts)
	}
}

// chunkResult is what a process says of its seeds.
type chunkResult struct {
	Counts   map[string]uint64
	Findings []string
}

// runChunk gives seeds to a process.
func runChunk(t *testing.T, m campaignMode, from, to uint64) chunkResult {
	out := filepath.Join(t.TempDir(), "result")
	cmd := exec.Command(os.Args[0], "-test.run=^TestCampaign_Chunk$", "-test.timeout="+chunkTimeout.String())
	cmd.Env = append(os.Environ(), "CAMPAIGN_CHUNK="+out, "CAMPAIGN_MODE="+m.name, fmt.Sprintf("CAMPAIGN_SEEDS=%d-%d", from, to))
	said, err := cmd.CombinedOutput()
	var r chunkResult
	b, rerr := os.ReadFile(out)
	if rerr == nil {
		rerr = json.Unmarshal(b, &r)
	}
	if rerr != nil || err != nil && len(r.Findings) == 0 {
		text := string(said)
		r.Findings = append(r.Findings, fmt.Sprintf("%s, seeds %d to %d: the process ended: %v: %.1500s", m.name, from, to, err, text[max(0, strings.Index(text, "panic: ")):]))
	}
	return r
}

// TestCampaign_Chunk is one process of a long run.
func TestCampaign_Chunk(t *testing.T) {
	out := os.Getenv("CAMPAIGN_CHUNK")
	if out == "" {
		t.Skip("CAMPAIGN_CHUNK is not set; TestCampaign_Long sets it for the process that it starts")
	}
	var from, to uint64
	if _, err := fmt.Sscanf(os.Getenv("CAMPAIGN_SEEDS"), "%d-%d", &from, &to); err != nil {
		t.Fatal(err)
	}
	total := newTally()
	for seed := from; seed <= to; seed++ {
		c, err := newTrials(lengthOf(seed))
		if err != nil {
			t.Fatal(err)
		}
		c.tally = total
		if os.Getenv("CAMPAIGN_FIRST") != "" {
			c.most = 1
		}
		if os.Getenv("CAMPAIGN_SLICE") != "" {
			c.length, c.slice = sliceLength, true
		}
		if at := os.Getenv("CAMPAIGN_AT"); at != "" {
			c.only = parsePoint(t, at)
		}
		for _, m := range campaignModes {
			switch {
			case m.name != os.Getenv("CAMPAIGN_MODE"):
			case m.try == nil:
				for what, n := range killed(t, seed) {
					c.add(what, n)
				}
			default:
				m.try(c, seed)
			}
		}
		b, err := json.Marshal(chunkResult{total.counts, total.findings})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(out, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range total.findings {
		t.Errorf("%.2000s", f)
	}
	if t.Failed() || flag.Lookup("test.cpuprofile").Value.String() != "" {
		return
	}
	if os.Getenv("CAMPAIGN_MODE") == "kill" {
		return // its directories and processes are to go
	}
	// What hangs on failed disks ends with the process, and so does the check that nothing hangs.
	os.Exit(0)
}

// parsePoint reads what opPoint.String writes.
func parsePoint(t *testing.T, text string) *opPoint {
	head, n, ok := strings.Cut(text, " #")
	i := strings.LastIndexByte(head, ' ')
	number, err := strconv.Atoi(n)
	if !ok || i < 0 || err != nil {
		t.Fatalf("%q is no point like \"views table write #3\"", text)
	}
	return &opPoint{file: head[:i], op: head[i+1:], n: number}
}
