package main

// The fuzzing of the Remote Write scanners, on record: FuzzScan and FuzzScan2 of package remotewrite, guided by the coverage of the scanners
// and of the generated decoders beside them (mode fuzz of the ledger), or driven by a seed alone, which is several times as fast and learns
// nothing (mode tapes).
//
//	make fuzz-scan COUNT=50000000 DURATION=2h [SEED=s TAPES=1]

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fuzzRound is how many executions one process of the fuzzer makes before the ledger is asked whether a line is due. A number and not a time:
// see FUZZTIME in the Makefile.
const fuzzRound = 1_000_000

var fuzzTargets = []string{"FuzzScan", "FuzzScan2"}

// scanFuzzer runs the test binary of package remotewrite.
type scanFuzzer struct {
	binary, dir string // dir is the package's, where the fuzzer looks for inputs and leaves those that fail
	cache       string // inputs that it has learned
}

// fuzzed is what a round says of itself.
type fuzzed struct {
	counts  map[string]uint64
	finding string
}

// guided has the native fuzzer make n executions of a target.
func (f scanFuzzer) guided(t *testing.T, target string, n uint64) fuzzed {
	said, counts, err := f.run(t, "-test.run=^$", "-test.fuzz=^"+target+"$", fmt.Sprintf("-test.fuzztime=%dx", n), "-test.fuzzminimizetime=100x",
		"-test.fuzzcachedir="+f.cache)
	executions, entries, perr := fuzzProgress(said)
	if err = errors.Join(err, perr); err != nil {
		return fuzzed{counts, fmt.Sprintf("%s: %v: %s", target, err, failureIn(said))}
	}
	counts["executions"], counts["new corpus entries"] = executions, entries
	return fuzzed{counts: counts}
}

// seeded has the loop over tapes and damaged seeds make n executions of a target.
func (f scanFuzzer) seeded(t *testing.T, target string, seed, n uint64) fuzzed {
	said, counts, err := f.run(t, "-test.run=^TestR1_Tapes_Long$/^"+target+"$", fmt.Sprintf("-tapes=%d", n), fmt.Sprintf("-tapes-seed=%d", seed))
	if err == nil && counts["executions"] != n {
		err = fmt.Errorf("%d executions, not %d", counts["executions"], n)
	}
	if err != nil {
		return fuzzed{counts, fmt.Sprintf("%s, seed %d: %v: %s", target, seed, err, failureIn(said))}
	}
	return fuzzed{counts: counts}
}

// run starts the binary and adds up what its processes have counted.
func (f scanFuzzer) run(t *testing.T, args ...string) (said string, counts map[string]uint64, err error) {
	dir := t.TempDir()
	cmd := exec.Command(f.binary, append(args, "-test.timeout=0")...)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "FUZZ_COUNTS="+dir, "GOGC=400") // what lives is little, what is made is not
	out, err := cmd.CombinedOutput()
	counts = map[string]uint64{}
	files, gerr := filepath.Glob(filepath.Join(dir, "*.json"))
	err = errors.Join(err, gerr)
	for _, name := range files {
		var mine map[string]uint64
		b, rerr := os.ReadFile(name)
		if rerr == nil {
			rerr = json.Unmarshal(b, &mine)
		}
		err = errors.Join(err, rerr)
		for k, n := range mine {
			if n > 0 {
				counts[k] += n
			}
		}
	}
	return string(out), counts, err
}

var fuzzSays = regexp.MustCompile(`execs: (\d+) \(\d+/sec\), new interesting: (\d+) \(total: \d+\)`)

// fuzzProgress reads the last count of executions, and of new inputs that reach new code, from what the fuzzer prints.
func fuzzProgress(said string) (executions, entries uint64, err error) {
	all := fuzzSays.FindAllStringSubmatch(said, -1)
	if len(all) == 0 {
		return 0, 0, errors.New("the fuzzer does not say what it did")
	}
	last := all[len(all)-1]
	executions, err = strconv.ParseUint(last[1], 10, 64)
	entries, err2 := strconv.ParseUint(last[2], 10, 64)
	return executions, entries, errors.Join(err, err2)
}

// failureIn cuts out of what a test prints where it says why it failed.
func failureIn(said string) string {
	return fmt.Sprintf("%.1000s", said[max(0, strings.Index(said, "--- FAIL")):])
}

func TestFuzzProgress(t *testing.T) {
	const said = "fuzz: elapsed: 3s, execs: 57013 (18998/sec), new interesting: 139 (total: 195)\nfuzz: elapsed: 5s, execs: 100000 (23585/sec), new interesting: 179 (total: 235)\nPASS\n"
	if executions, entries, err := fuzzProgress(said); err != nil || executions != 100_000 || entries != 179 {
		t.Errorf("%d, %d, %v", executions, entries, err)
	}
	if _, _, err := fuzzProgress("PASS\n"); err == nil {
		t.Error("silence is taken for a count")
	}
}

// TestFuzz_Long makes FUZZ_COUNT executions over all targets, or as many as FUZZ_DURATION lets it, and appends a line for each target to the
// ledger of the campaign, at least every ten minutes: `make fuzz-scan`.
func TestFuzz_Long(t *testing.T) {
	text := os.Getenv("FUZZ_COUNT")
	if text == "" {
		t.Skip("FUZZ_COUNT is not set; `make fuzz-scan` sets it")
	}
	count, err := strconv.ParseUint(text, 10, 64)
	seed, serr := strconv.ParseUint(os.Getenv("FUZZ_SEED"), 10, 64)
	duration, derr := time.ParseDuration(os.Getenv("FUZZ_DURATION"))
	if err := errors.Join(err, serr, derr); err != nil {
		t.Fatal(err)
	}
	l := ledger{path: filepath.Join(root(t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		l.path = path
	}
	f := scanFuzzer{binary: os.Getenv("FUZZ_BINARY"), cache: os.Getenv("FUZZ_CACHE"), dir: filepath.Join(root(t), "transport", "remotewrite")}
	mode, round := "fuzz", func(target string, _, n uint64) fuzzed { return f.guided(t, target, n) }
	if os.Getenv("FUZZ_TAPES") != "" {
		mode, round = "tapes", func(target string, seed, n uint64) fuzzed { return f.seeded(t, target, seed, n) }
	}

	end := time.Now().Add(duration)
	share := (count + uint64(len(fuzzTargets)) - 1) / uint64(len(fuzzTargets)) // of each target
	done := map[string]uint64{}
	for !t.Failed() && time.Now().Before(end) && done[fuzzTargets[len(fuzzTargets)-1]] < share {
		for _, target := range fuzzTargets {
			began := time.Now()
			x := ledgerLine{Date: began.UTC().Format(time.RFC3339), Mode: mode, Target: target, Commit: os.Getenv("CAMPAIGN_COMMIT"), Counts: map[string]uint64{}}
			if mode == "tapes" {
				x.From, x.To = seed, seed
			}
			for len(x.Findings) == 0 && done[target] < share && time.Now().Before(end) && time.Since(began) < ledgerEvery/time.Duration(len(fuzzTargets)) {
				if mode == "tapes" {
					x.To = seed
				}
				got := round(target, seed, min(fuzzRound, share-done[target]))
				seed++
				for k, n := range got.counts {
					x.Counts[k] += n
				}
				done[target] += max(1, got.counts["executions"])
				if got.finding != "" {
					t.Errorf("FINDING: %s", got.finding)
					x.Findings = append(x.Findings, fmt.Sprintf("%.600s", got.finding))
				}
			}
			if len(x.Counts) == 0 && len(x.Findings) == 0 {
				continue
			}
			x.Seconds = int64(time.Since(began).Seconds())
			if err := l.add(x); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d of %d executions: %v", target, done[target], share, x.Counts)
		}
	}
}
