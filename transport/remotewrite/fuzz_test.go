package remotewrite

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
)

// An input of FuzzScan and FuzzScan2 is a body as it is, behind a zero, or else a tape from which a maker writes a body: then nearly
// every mutation of the input is another request that is read to its end, and not a length that fits no more.
const bodyAsItIs = 0

// bodyOf makes of an input of the fuzzer the body that it stands for, in scratch if it is not part of the input.
func bodyOf(m *maker, input []byte) []byte {
	if len(input) == 0 || input[0] == bodyAsItIs {
		return input[min(1, len(input)):]
	}
	return m.write(input)
}

// tapes are inputs that fall by chance, of lengths that rise.
func tapes(seed uint64, n int) (out [][]byte) {
	r := rand.New(rand.NewPCG(seed, 5))
	for i := range n {
		b := make([]byte, 16+8*(i%48))
		for j := range b {
			b[j] = byte(r.IntN(256))
		}
		b[0] |= 1
		out = append(out, b)
	}
	return out
}

func seeds1(t testing.TB) [][]byte {
	out := tapes(1, 96)
	asIs := func(b []byte) { out = append(out, append([]byte{bodyAsItIs}, b...)) }
	for seed := range uint64(20) {
		asIs(marshal(t, randomRequest(rand.New(rand.NewPCG(seed, 3)))))
		asIs(marshal(t, &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{Histograms: []prompb.Histogram{randomHistogram(rand.New(rand.NewPCG(seed, 4)))}}}}))
	}
	for _, c := range wireCases {
		asIs(unhex(t, strings.ReplaceAll(c.body, " ", "")))
	}
	return out
}

func seeds2(t testing.TB) [][]byte {
	out := tapes(2, 96)
	asIs := func(b []byte) { out = append(out, append([]byte{bodyAsItIs}, b...)) }
	for seed := range uint64(20) {
		asIs(marshal2(t, randomRequest2(rand.New(rand.NewPCG(seed, 3)))))
	}
	for _, hex := range []string{
		"", "2200", "22002a00", "2a00", "2201782a00", "2a020801", "2a020a00", "2a030a01ff", "22002a042a020801", "2a0a0affffffffffffffffff01",
	} {
		asIs(unhex(t, hex))
	}
	return out
}

// FuzzScan holds R1 for version 1.0: see differ.compare1 for what is compared with the generated decoder of Prometheus.
func FuzzScan(f *testing.F) { fuzzScan(f, seeds1(f), request1Fields, (*differ).compare1) }

// FuzzScan2 is FuzzScan for version 2.0.
func FuzzScan2(f *testing.F) { fuzzScan(f, seeds2(f), request2Fields, (*differ).compare2) }

func fuzzScan(f *testing.F, seeds [][]byte, fields []madeField, compare func(*differ, []byte) (verdict, error)) {
	for _, s := range seeds {
		f.Add(s)
	}
	d := newDiffer()
	m := &maker{fields: fields}
	f.Cleanup(func() { saveCounts(f, d.counts()) })
	f.Fuzz(func(t *testing.T, input []byte) {
		body := bodyOf(m, input)
		if _, err := compare(d, body); err != nil {
			t.Fatalf("%v\nthe body: %x", err, body)
		}
	})
}

// saveCounts leaves what a process of a long run has compared in the directory that FUZZ_COUNTS names, in a file of its own.
// Without that it does nothing.
func saveCounts(t testing.TB, counts map[string]uint64) {
	dir := os.Getenv("FUZZ_COUNTS")
	if dir == "" || counts["executions"] == 0 {
		return
	}
	b, err := json.Marshal(counts)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.json", os.Getpid())), b, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

// What the fuzzer makes of its inputs reaches the code behind the checks: at least half of what a tape makes is read by both decoders, with
// everything that a request can hold in it, a good part is refused by both, and some by us alone.
func TestR1_TapesMakeRequests(t *testing.T) {
	for name, v := range map[string]struct {
		fields  []madeField
		compare func(*differ, []byte) (verdict, error)
		holds   []string
	}{
		"1.0": {request1Fields, (*differ).compare1, []string{"labels", "samples", "histograms", "exemplars", "metadata", "label sets kept", "labels encoded anew"}},
		"2.0": {request2Fields, (*differ).compare2, []string{"labels", "samples", "histograms", "exemplars", "metadata", "label sets kept", "symbols", "series refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, m := newDiffer(), &maker{fields: v.fields}
			const n = 20_000
			for i, tape := range tapes(7, n) {
				body := m.write(tape)
				if _, err := v.compare(d, body); err != nil {
					t.Fatalf("tape %d: %v\nthe body: %x", i, err, body)
				}
			}
			c := d.counts()
			for _, k := range slices.Sorted(maps.Keys(c)) {
				t.Logf("%-22s %d", k, c[k])
			}
			if c["read by both"] < n/2 || c["refused by both"] < n/20 || c["refused by us alone"] < n/200 {
				t.Errorf("%d read by both, %d refused by both, %d by us alone: too few of one kind to mean much", c["read by both"], c["refused by both"], c["refused by us alone"])
			}
			for _, what := range v.holds {
				if c[what] < n/20 {
					t.Errorf("%s: %d, too few to mean much", what, c[what])
				}
			}
		})
	}
}

var (
	longTapes     = flag.Uint64("tapes", 0, "executions of each target in TestR1_Tapes_Long")
	longTapesSeed = flag.Uint64("tapes-seed", 1, "where they begin")
)

// TestR1_Tapes_Long is FuzzScan and FuzzScan2 without what the fuzzer learns: new tapes, tapes of the seeds with bytes changed, and
// bodies of the seeds that are damaged. It is several times as fast: `make fuzz-scan TAPES=1`.
func TestR1_Tapes_Long(t *testing.T) {
	if *longTapes == 0 {
		t.Skip("-tapes is not set; `make fuzz-scan TAPES=1` sets it")
	}
	for target, v := range map[string]struct {
		seeds   [][]byte
		fields  []madeField
		compare func(*differ, []byte) (verdict, error)
	}{
		"FuzzScan":  {seeds1(t), request1Fields, (*differ).compare1},
		"FuzzScan2": {seeds2(t), request2Fields, (*differ).compare2},
	} {
		t.Run(target, func(t *testing.T) {
			d, m := newDiffer(), &maker{fields: v.fields}
			r := rand.New(rand.NewPCG(*longTapesSeed, 8))
			var input []byte
			defer func() {
				if p := recover(); p != nil {
					panic(fmt.Sprintf("%v\nthe input: %x", p, input))
				}
				saveCounts(t, d.counts())
			}()
			for n := range *longTapes {
				input = input[:0]
				if n%2 == 0 {
					for range 2 + r.IntN(48) {
						input = binary.LittleEndian.AppendUint64(input, r.Uint64())
					}
					input[0] |= 1
				} else {
					seed := v.seeds[r.IntN(len(v.seeds))]
					input = append(input, seed[0])
					input = append(input, damage(r, append([]byte(nil), seed[1:]...))...)
				}
				body := bodyOf(m, input)
				if _, err := v.compare(d, body); err != nil {
					t.Fatalf("execution %d: %v\nthe input: %x\nthe body: %x", n, err, input, body)
				}
			}
		})
	}
}

// The seeds agree, and the fuzzer's comparison says of damaged bodies what the one by text says.
func TestR1_TwoWaysToCompare(t *testing.T) {
	d := newDiffer()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 6))
		body := damage(r, marshal(t, randomRequest(r)))
		if got, err := d.compare1(body); err != nil || got != compare(t, body) {
			t.Fatalf("seed %d: %d, %v", seed, got, err)
		}
		body = damage(r, marshal2(t, randomRequest2(r)))
		if got, err := d.compare2(body); err != nil || got != compare2(t, body) {
			t.Fatalf("seed %d, version 2.0: %d, %v", seed, got, err)
		}
	}
	for _, c := range wireCases {
		body, err := hex.DecodeString(strings.ReplaceAll(c.body, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.compare1(body); err != nil || got != compare(t, body) {
			t.Fatalf("%s: %d, %v", c.name, got, err)
		}
	}
}
