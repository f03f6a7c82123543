package pane

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

// everySeries knows a label set for every reference.
type everySeries struct{}

func (everySeries) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	if ref%3 == 0 {
		return labels.FromStrings("__name__", "other"), true
	}
	return labels.FromStrings("__name__", "m", "experiment", string(rune('a'+ref%7))), true
}

// stateExample returns the state of shard 1 after a bit of everything.
func stateExample(t testing.TB) []byte {
	var g group
	g[1] = NewShard(1, everySeries{})
	b := log.NewWriteBuilder()
	for _, ref := range []log.SeriesRef{1, 65, 129, 1 + 64*300} {
		b.Series(ref)
		for i, v := range []float64{1, -0.5, math.Inf(1), math.Float64frombits(staleBits), math.NaN(), 1e300} {
			b.Sample(int64(i)*7_000-5_000, v)
		}
		b.Histogram(log.Histogram{Ref: ref, Time: 40_000})
	}
	w := b.Finish()
	for i, body := range []log.Body{
		&log.Start{Reason: log.StartProcess}, newPlan(named("m", 10_000), plan.Stream{
			Matchers: []plan.Matcher{{Type: "=~", Name: "experiment", Value: ".+"}}, PaneMillis: 60_000, LatenessMillis: 5_000,
		}), w, &log.Watermark{Time: 12_000, Experiment: "c", Scoped: true}, &log.Watermark{Time: 11_000}, w, &log.Tick{},
	} {
		ev := &log.Event{Seq: log.Seq(i + 1), LogTime: int64(i) * 1000, WallTime: 100_000, Body: body}
		if _, err := g.apply(ev, i == 5, nil); err != nil {
			t.Fatal(err)
		}
	}
	return g[1].Encode()
}

// P7: what was encoded decodes to the same state; what is cut or changed is refused or decodes to a state that encodes again.
func TestP7_StateRoundTrip(t *testing.T) {
	state := stateExample(t)
	s, err := DecodeShard(1, everySeries{}, state)
	if err != nil || !bytes.Equal(s.Encode(), state) {
		t.Fatalf("the state does not round-trip: %v", err)
	}
	for n := range state {
		if _, err := DecodeShard(1, everySeries{}, state[:n]); !errors.Is(err, ErrCorruptState) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(state), err)
		}
	}
	if _, err := DecodeShard(2, everySeries{}, state); !errors.Is(err, ErrCorruptState) {
		t.Fatalf("another shard took the state: %v", err)
	}
}

func FuzzDecodeShard(f *testing.F) {
	f.Add(stateExample(f))
	f.Add(NewShard(1, everySeries{}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeShard(1, everySeries{}, b)
		if err != nil {
			if !errors.Is(err, ErrCorruptState) {
				t.Fatalf("%v is not called corrupt", err)
			}
			return
		}
		again, err := DecodeShard(1, everySeries{}, s.Encode())
		if err != nil || !bytes.Equal(again.Encode(), s.Encode()) {
			t.Fatalf("a decoded state does not round-trip: %v", err)
		}
	})
}
