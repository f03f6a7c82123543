package bucket

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
)

func windowsOf(t *testing.T, s *Store, head uint64) *Windows {
	t.Helper()
	w, err := NewWindows(s, head)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func value(i int, v float64) StepValue { return StepValue{labels.FromStrings("i", fmt.Sprint(i)), v} }

func showSteps(t *testing.T, w *Windows, record uint64, from, to int64) string {
	t.Helper()
	steps, sets, err := w.Steps(context.Background(), record, from, to, 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for _, s := range steps {
		out += fmt.Sprintf("%d@%d", s.Time, s.AsOf)
		if s.Refused {
			out += " refused"
		}
		if s.Notes {
			out += " notes"
		}
		for i, n := range s.Series {
			out += fmt.Sprintf(" %s=%v", sets[n], s.Floats[i])
		}
		out += "; "
	}
	return out
}

// A step is read as it was written last, beside those of no other record, also after a restart.
func TestWindows_PutAndRead(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs)
	w := windowsOf(t, s, 100)
	if err := w.Put(1, []Step{
		{Time: -30_000, AsOf: 5, Values: []StepValue{value(1, 1.5), value(2, math.Inf(1))}},
		{Time: 0, AsOf: 5},
		{Time: 30_000, AsOf: 6, Refused: true},
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Put(2, []Step{{Time: 0, AsOf: 7, Notes: true, Values: []StepValue{value(9, -1)}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Put(1, []Step{{Time: 0, AsOf: 9, Values: []StepValue{value(2, 2), value(3, 3)}}}); err != nil {
		t.Fatal(err)
	}
	const one = `-30000@5 {i="1"}=1.5 {i="2"}=+Inf; 0@9 {i="2"}=2 {i="3"}=3; 30000@6 refused; `
	check := func(w *Windows) {
		t.Helper()
		if got := showSteps(t, w, 1, math.MinInt64, math.MaxInt64); got != one {
			t.Errorf("record 1: %s", got)
		}
		if got := showSteps(t, w, 1, -29_999, 0); got != `0@9 {i="2"}=2 {i="3"}=3; ` {
			t.Errorf("record 1 in part: %s", got)
		}
		if got := showSteps(t, w, 2, math.MinInt64, math.MaxInt64); got != `0@7 notes {i="9"}=-1; ` {
			t.Errorf("record 2: %s", got)
		}
		sparse, _, err := w.Steps(context.Background(), 1, -30_000, math.MaxInt64, 60_000, 2)
		if err != nil || len(sparse) != 2 || sparse[0].Time != -30_000 || sparse[1].Time != 30_000 {
			t.Errorf("every second step: %v, %v", sparse, err)
		}
		asOf, err := w.AsOf(context.Background(), 1, math.MinInt64, 0)
		if err != nil || len(asOf) != 2 || asOf[-30_000] != 5 || asOf[0] != 9 {
			t.Errorf("as of: %v, %v", asOf, err)
		}
		if _, _, err := w.Steps(context.Background(), 1, math.MinInt64, math.MaxInt64, 1, 3); !errors.Is(err, ErrTooManyValues) {
			t.Errorf("4 values where 3 are wanted: %v", err)
		}
	}
	check(w)
	if err := errors.Join(s.Flush(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, fs)
	w = windowsOf(t, s, 9)
	check(w)
	if err := w.Expire(1, 0); err != nil {
		t.Fatal(err)
	}
	if got := showSteps(t, w, 1, math.MinInt64, math.MaxInt64); got != `0@9 {i="2"}=2 {i="3"}=3; 30000@6 refused; ` {
		t.Errorf("expired: %s", got)
	}
	if err := w.Keep(map[uint64]struct{}{2: {}}); err != nil {
		t.Fatal(err)
	}
	if got := showSteps(t, w, 1, math.MinInt64, math.MaxInt64) + showSteps(t, w, 2, 0, 0); got != `0@7 notes {i="9"}=-1; ` {
		t.Errorf("kept: %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Steps as of events that the log does not have are of another history: all that is recorded goes.
func TestWindows_AheadOfTheLog(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	w := windowsOf(t, s, 100)
	if err := w.Put(1, []Step{{Time: 0, AsOf: 50}, {Time: 1000, AsOf: 40}}); err != nil {
		t.Fatal(err)
	}
	if got := showSteps(t, windowsOf(t, s, 50), 1, 0, 1000); got != "0@50; 1000@40; " {
		t.Errorf("with the log at 50: %s", got)
	}
	if got := showSteps(t, windowsOf(t, s, 49), 1, 0, 1000); got != "" {
		t.Errorf("with the log at 49: %s", got)
	}
}

// A crash takes batches from the end: whatever is left, every step has the label sets of its series, and none is changed.
func TestWindows_Crash(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		fs := vfs.NewCrashableMem()
		s := open(t, fs)
		w := windowsOf(t, s, 1000)
		for k := range 200 {
			step := Step{Time: int64(k) * 1000, AsOf: uint64(k), Values: []StepValue{value(k, float64(k)), value(k/2, 1)}}
			if err := w.Put(uint64(k%3), []Step{step}); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(40) == 0 {
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		disk := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed%3) * 50, RNG: rng})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := Open("views", identity, Options{FS: disk})
		if Damaged(err) {
			continue // discarded and folded again
		}
		if err != nil {
			t.Fatal(err)
		}
		w = windowsOf(t, s, 1000)
		for record := range uint64(3) {
			steps, sets, err := w.Steps(context.Background(), record, 0, math.MaxInt64, 1, 1000)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, st := range steps {
				k := int(st.Time / 1000)
				if st.AsOf != uint64(k) || len(st.Series) != 2 || !labels.Equal(sets[st.Series[0]], value(k, 0).Labels) || st.Floats[0] != float64(k) {
					t.Fatalf("seed %d: %+v", seed, st)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The bytes of a step are pinned.
func TestWindows_StepBytes(t *testing.T) {
	ws := &windowSeries{byHash: make(map[uint64][]uint32)}
	b, err := ws.encode(7, &Step{Time: 1, AsOf: 300, Notes: true, Values: []StepValue{value(1, 1), value(2, -2)}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b), "01ac02020200000000000000f03f0100000000000000c0"; got != want {
		t.Errorf("step: %s, want %s", got, want)
	}
	if b, err = ws.encode(7, &Step{Time: 1, AsOf: 300, Doubts: 1 << 7, Values: []StepValue{value(1, 1)}}); err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b), "01ac02048001"+"0100000000000000f03f"; got != want {
		t.Errorf("step with doubts: %s, want %s", got, want)
	}
	if got, want := hex.EncodeToString(ws.unstored[1].value), "01690132"; got != want {
		t.Errorf("label set: %s, want %s", got, want)
	}
}

// FuzzStep holds that no bytes make the decoders fail other than with their error, and that what decodes encodes to the same.
func FuzzStep(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add([]byte("\x01\xac\x02\x02\x02\x00\x00\x00\x00\x00\x00\x00\xf0\x3f\x01\x00\x00\x00\x00\x00\x00\x00\xc0"), []byte("\x01i\x012"))
	f.Add([]byte("\x01\x05\x04\x01\x00"), []byte{})
	f.Add([]byte("\x01\x05\x01\x00"), []byte("\x01a\x01b\x01b\x01c"))
	f.Add([]byte("\x01\x05\x00\xff\xff\xff\xff\x0f"), []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, step, set []byte) {
		sets := []labels.Labels{labels.FromStrings("a", "b"), labels.EmptyLabels()}
		s, err := decodeStep(step, len(sets), false)
		if err != nil && !errors.Is(err, ErrCorruptStep) {
			t.Fatal(err)
		}
		if err == nil {
			ws := &windowSeries{byHash: make(map[uint64][]uint32)}
			ws.add(sets[0])
			ws.add(sets[1])
			for i, n := range s.Series {
				s.Values = append(s.Values, StepValue{sets[n], s.Floats[i]})
			}
			b, err := ws.encode(1, &s.Step)
			if err != nil {
				t.Fatal(err)
			}
			again, err := decodeStep(b, len(sets), false)
			if s.Values = nil; err != nil || fmt.Sprint(again) != fmt.Sprint(s) {
				t.Fatalf("%v: %v, %v", s, again, err)
			}
		}
		ls, err := decodeLabels(set)
		if err != nil && !errors.Is(err, ErrCorruptStep) {
			t.Fatal(err)
		}
		if err == nil {
			if back, err := decodeLabels(appendLabels(nil, ls)); err != nil || !labels.Equal(back, ls) {
				t.Fatalf("%v: %v, %v", ls, back, err)
			}
		}
	})
}
