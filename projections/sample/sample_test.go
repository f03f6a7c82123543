package sample

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"tidemark/log"
)

// history is a random order of arrival: steady series and lagging ones, repeats, conflicts, stale markers, samples hours late.
type history struct {
	rng *rand.Rand
	now int64
	old []float
}

func (h *history) next() []float {
	h.now += h.rng.Int64N(360_000) // some fifteen hours in all, so that the head is cut into blocks on the way
	var out []float
	for range 1 + h.rng.IntN(30) {
		f := float{series: fmt.Sprint(h.rng.IntN(12)), t: h.now, v: float64(h.rng.IntN(50))}
		switch h.rng.IntN(10) {
		case 0:
			f.v = math.Float64frombits(value.StaleNaN)
		case 1:
			f.v = math.NaN()
		case 2, 3:
			f.t -= h.rng.Int64N(300_000)
		case 4:
			f.t -= h.rng.Int64N(12 * 3_600_000)
		case 5, 6:
			if len(h.old) > 0 { // again, or another value for the same time
				f = h.old[h.rng.IntN(len(h.old))]
				if h.rng.IntN(2) == 0 {
					f.v++
				}
			}
		case 7:
			f.t -= f.t % 60_000 // times that meet
		}
		out = append(out, f)
	}
	h.old = append(h.old, out...)
	return out
}

// The copy equals a model that keeps the first value for each series and time, over random histories with all that can happen.
func TestE1_FirstWinsInWhateverOrder(t *testing.T) {
	for _, seed := range []uint64{1, 2, uint64(time.Now().UnixNano())} {
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, Options{})
		h := &history{rng: rng, now: rng.Int64N(2_000_000_000_000)}
		want := content{}
		for range 300 {
			event := h.next()
			want.first(event)
			r.floats(event...)
			switch rng.IntN(100) {
			case 0:
				if err := r.copy.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
			case 1:
				r.caughtUp()
				r.stop()
				r.start()
			case 2, 3:
				r.crash()
			case 4:
				r.caughtUp()
				if err := r.copy.maintain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		r.want(want)
		if s := r.copy.Stats(); s.Refused != 0 || s.Blocks == 0 {
			t.Errorf("seed %d: %+v: nothing is to be refused, and blocks are to be cut", seed, s)
		}
		if oldest := r.copy.Oldest(); oldest != math.MinInt64 {
			t.Errorf("seed %d: a gap up to %d where none is", seed, oldest)
		}
		before := r.copy.db
		r.stop()
		if err := Discard(r.dir); err != nil {
			t.Fatal(err)
		}
		r.start()
		if r.copy.db == before {
			t.Fatal("the copy was not made anew")
		}
		r.want(want) // E4
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// Whatever is applied again after a kill changes nothing, and nothing is lost, as often as it happens: what came out of order before
// the checkpoint stands in blocks, and what came after it is applied again.
func TestE3_ApplyingAgainChangesNothing(t *testing.T) {
	r := newRig(t, Options{})
	want := content{}
	put := func(fs ...float) {
		want.first(fs)
		r.floats(fs...)
	}
	for i := range 3 {
		at := int64(i) * 10_000
		put(float{"a", at + 1000, 1}, float{"a", at + 2000, 2}, float{"b", at + 1000, 3})
		put(float{"a", at + 1500, 4}, float{"a", at + 1000, 5})
		put(float{"a", at + 1500, 6}, float{"b", at + 900, 7})
		r.crash()
		r.want(want)
		if s := r.copy.Stats(); s.Repeated == 0 {
			t.Errorf("%+v: nothing was applied again, so the test says nothing", s)
		}
		if err := r.copy.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := r.copy.Durable(); at != r.log.Head() {
			t.Errorf("%d of %d events are durable", at, r.log.Head())
		}
		r.crash()
		r.want(want)
		if s := r.copy.Stats(); s.Appended+s.Late+s.Repeated != 0 {
			t.Errorf("%+v: applied again, though it is durable", s)
		}
	}
}

// While samples come out of order, the checkpoint stays behind their last compaction; a stop in order needs none.
func TestE3_CheckpointsWaitForWhatIsOutOfOrder(t *testing.T) {
	r := newRig(t, Options{lateInterval: time.Hour})
	check := func() log.Seq {
		t.Helper()
		r.caughtUp()
		if err := r.copy.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		return r.copy.Durable()
	}
	first := r.floats(float{"a", 2000, 1})
	if at := check(); at != first {
		t.Fatalf("%d is durable", at)
	}
	second := r.floats(float{"a", 1000, 2})
	if at := check(); at != second {
		t.Fatalf("%d is durable after the first compaction", at)
	}
	r.floats(float{"a", 1500, 3})
	if at := check(); at != second {
		t.Fatalf("%d is durable", at)
	}
	want := content{"a": {2000: bits(1), 1000: bits(2), 1500: bits(3)}}
	r.crash()
	r.want(want)
	r.stop()
	r.start()
	if s := r.copy.Stats(); s.Appended+s.Late+s.Repeated != 0 || r.copy.Durable() != r.log.Head() {
		t.Errorf("%+v, %d durable, after a stop in order", s, r.copy.Durable())
	}
	r.want(want)
}

func TestE2_TooOldIsKnown(t *testing.T) {
	r := newRig(t, Options{Retention: time.Hour})
	const now = 1_700_000_000_000
	r.floats(float{"a", now, 1})
	r.floats(float{"a", now - 30*60_000, 2})
	r.caughtUp()
	if oldest := r.copy.Oldest(); oldest != math.MinInt64 {
		t.Fatalf("a gap up to %d where none is", oldest)
	}
	r.floats(float{"a", now - 61*60_000, 3}, float{"b", now - 90*60_000, 3})
	r.caughtUp()
	if oldest := r.copy.Oldest(); oldest != now-61*60_000 {
		t.Fatalf("a gap up to %d", oldest)
	}
	for range 2 {
		r.crash()
		if oldest := r.copy.Oldest(); oldest != now-61*60_000 {
			t.Fatalf("after a crash a gap up to %d", oldest)
		}
		r.caughtUp()
		r.stop()
		r.start()
	}
	r.want(content{"a": {now: bits(1), now - 30*60_000: bits(2)}})
}

func TestE2_TooManySeriesAreKnown(t *testing.T) {
	r := newRig(t, Options{MaxSeries: 3})
	for i := range 5 {
		r.floats(float{fmt.Sprint(i), int64(1000 + i), 1})
	}
	r.caughtUp()
	if s := r.copy.Stats(); s.Refused != 2 || s.HeadSeries != 3 || s.Oldest != 1004 {
		t.Errorf("%+v", s)
	}
}

func TestE2_RetentionIsKnownBeforeItDeletes(t *testing.T) {
	r := newRig(t, Options{Retention: 4 * time.Hour})
	const hour = 3_600_000
	for i := range int64(24 * 12) {
		r.floats(float{"a", i * hour / 12, float64(i)})
	}
	r.caughtUp()
	for range 2 { // what the first makes, the second may delete
		if err := r.copy.maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	oldest := r.copy.Oldest()
	if oldest < 0 || oldest > 20*hour {
		t.Fatalf("a gap up to %d", oldest)
	}
	got := r.read()["a"]
	for i := range int64(24 * 12) {
		at := i * hour / 12
		if _, ok := got[at]; !ok && at > oldest {
			t.Fatalf("nothing at %d, and the gap ends at %d", at, oldest)
		}
	}
	if _, ok := got[0]; ok {
		t.Fatal("nothing was deleted")
	}
	r.crash()
	if again := r.copy.Oldest(); again < oldest {
		t.Errorf("after a crash the gap ends at %d, not at %d", again, oldest)
	}
}

// A copy that begins in the middle of the log lacks what came before.
func TestE2_BegunInTheMiddle(t *testing.T) {
	r := newRig(t, Options{})
	r.floats(float{"a", 1000, 1})
	r.floats(float{"a", 2000, 2})
	r.floats(float{"a", 3000, 3})
	r.caughtUp()
	r.stop()
	if err := r.log.Truncate(2); err != nil {
		t.Fatal(err)
	}
	r.start() // it has what was removed
	r.want(content{"a": {1000: bits(1), 2000: bits(2), 3000: bits(3)}})
	if got := r.copy.Oldest(); got != math.MinInt64 {
		t.Errorf("a gap up to %d where none is", got)
	}
	r.stop()
	if err := Discard(r.dir); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.want(content{"a": {3000: bits(3)}})
	if got := r.copy.Oldest(); got != 2000 {
		t.Errorf("the gap ends at %d", got)
	}
}

// A copy that the log has left behind is begun anew.
func TestE2_LeftBehind(t *testing.T) {
	r := newRig(t, Options{})
	r.floats(float{"a", 1000, 1})
	r.caughtUp()
	r.stop()
	r.floats(float{"a", 2000, 2})
	r.floats(float{"a", 3000, 3})
	r.floats(float{"a", 4000, 4})
	if err := r.log.Truncate(3); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.want(content{"a": {4000: bits(4)}})
	if got := r.copy.Oldest(); got != 3000 {
		t.Errorf("the gap ends at %d", got)
	}
}

func TestE4_DamageIsFoldedAgain(t *testing.T) {
	flip := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, path)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 0x10
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, harm := range map[string]func(*testing.T, string){
		"checkpoint": flip(checkpointFile),
		"metadata":   flip(metadataFile),
		"applied":    flip(appliedFile),
		"wal":        flip("tsdb/wal/00000000"),
		"no tsdb": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, checkpointFile)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			want := content{}
			for i := range int64(50) {
				f := float{fmt.Sprint(i % 5), 1000 * i, float64(i)}
				want.first([]float{f})
				r.floats(f)
			}
			r.write(func(b *log.WriteBuilder, _ func(string) log.SeriesRef) {
				b.Metadata(log.Metadata{Family: "m", Type: "counter", Help: "Seconds.", Unit: "seconds"})
			})
			r.caughtUp()
			r.stop()
			harm(t, r.dir)
			r.start()
			r.want(want)
			if got, err := r.copy.Metadata(t.Context(), "m"); err != nil || len(got) != 1 {
				t.Errorf("metadata: %v, %v", got, err)
			}
		})
	}
}

func TestTheCopyOfAnotherLogIsLeftAlone(t *testing.T) {
	r, other := newRig(t, Options{}), newRig(t, Options{})
	r.floats(float{"a", 1000, 1})
	r.caughtUp()
	r.stop()
	other.stop()
	other.dir, r.dir = r.dir, other.dir
	if err := other.tryStart(); !errors.Is(err, ErrOtherLog) {
		t.Fatalf("got %v", err)
	}
	other.dir, r.dir = r.dir, other.dir
	r.start()
	r.want(content{"a": {1000: bits(1)}})
}

// Metadata outlive a kill, though they are written with checkpoints only: until then their event is applied again.
func TestE3_MetadataOutliveAKill(t *testing.T) {
	r := newRig(t, Options{})
	m := func(help string) log.Metadata { return log.Metadata{Family: "m", Type: "gauge", Help: help} }
	r.write(func(b *log.WriteBuilder, _ func(string) log.SeriesRef) { b.Metadata(m("old")) })
	r.write(func(b *log.WriteBuilder, _ func(string) log.SeriesRef) {
		b.Metadata(m("new"))
		b.Metadata(m("other"))
	})
	r.floats(float{"a", 1000, 1})
	for range 2 {
		r.caughtUp()
		r.crash()
		all, err := r.copy.Metadata(t.Context(), "")
		if err != nil || fmt.Sprint(all) != fmt.Sprint([]log.Metadata{m("new"), m("other")}) {
			t.Fatalf("%v, %v", all, err)
		}
		if err := r.copy.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExemplars(t *testing.T) {
	r := newRig(t, Options{})
	r.write(func(b *log.WriteBuilder, ref func(string) log.SeriesRef) {
		b.Series(ref("a"))
		b.Sample(1000, 1)
		b.Exemplar(log.Exemplar{Ref: ref("a"), Time: 900, Value: 7, Labels: labels.FromStrings("trace", "x")})
		b.Exemplar(log.Exemplar{Ref: ref("b"), Time: 900, Value: 7, Labels: labels.FromStrings("trace", "y")})
	})
	r.caughtUp()
	q, err := r.copy.ExemplarQuerier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := q.Select(0, 2000, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")})
	if err != nil || len(got) != 1 || len(got[0].Exemplars) != 1 || got[0].Exemplars[0].Value != 7 {
		t.Fatalf("%v, %v", got, err)
	}
	if s := r.copy.Stats(); s.Exemplars != 1 || s.ExemplarsRefused != 1 || s.Oldest != math.MinInt64 {
		t.Errorf("%+v: an exemplar without a series is counted, and is no gap", s)
	}
}

// The bytes on disk are those of the package comment.
func TestFilesGolden(t *testing.T) {
	c := checkpoint{identity: []byte{1, 2}, seq: 3, expired: -1, refused: 4}
	if want := "\x01\x02\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x04\x00\x00\x00\x00\x00\x00\x00"; string(c.encode()) != string(seal([]byte(want))) {
		t.Errorf("checkpoint: %x", c.encode())
	}
	a := applied{closed: true, seq: 3, refused: 4}
	if want := "\x01\x01\x03\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"; string(a.encode()) != string(seal([]byte(want))) {
		t.Errorf("applied: %x", a.encode())
	}
	m := encodeMetadata([]log.Metadata{{Family: "f", Type: "t", Help: "hh"}})
	if want := "\x01\x01\x00\x00\x00\x01\x00\x00\x00f\x01\x00\x00\x00t\x02\x00\x00\x00hh\x00\x00\x00\x00"; string(m) != string(seal([]byte(want))) {
		t.Errorf("metadata: %x", m)
	}
}

// What can be read is what would be written.
func FuzzFiles(f *testing.F) {
	c := checkpoint{identity: []byte("identity"), seq: 3, expired: math.MinInt64, refused: 4}
	a := applied{seq: 3, refused: 4}
	for _, b := range [][]byte{c.encode(), a.encode(), encodeMetadata([]log.Metadata{{Family: "f"}}), nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, in := range [][]byte{b, seal(bytes.Clone(b))} {
			if c, err := decodeCheckpoint(in); err == nil && !bytes.Equal(c.encode(), in) {
				t.Errorf("checkpoint %x", in)
			}
			if a, err := decodeApplied(in); err == nil && !bytes.Equal(a.encode(), in) {
				t.Errorf("applied %x", in)
			}
			if m, err := decodeMetadata(in); err == nil && !bytes.Equal(encodeMetadata(m), in) {
				t.Errorf("metadata %x", in)
			}
		}
	})
}
