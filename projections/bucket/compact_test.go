package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// fill commits n checkpoints of one shard, each with random panes and marks of one block.
func fill(t *testing.T, s *Store, rng *rand.Rand, k Key, shard int, first uint64, n int) {
	t.Helper()
	for i := range n {
		tb := NewTable()
		for range 1 + rng.IntN(20) {
			ref, idx := uint64(64*(1+rng.IntN(6))+shard), rng.IntN(EndsPerBlock)
			if rng.IntN(5) == 0 {
				tb.MarkIncomplete(k, ref, idx)
			} else {
				put(tb, k, ref, idx, fmt.Sprintf("%d.%d", first+uint64(i), rng.IntN(100)))
			}
		}
		if err := s.Commit(Checkpoint{Shard: shard, Seq: first + uint64(i), State: []byte("s"), Tables: []*Table{tb}}); err != nil {
			t.Fatal(err)
		}
	}
}

func pieces(t *testing.T, s *Store) int {
	t.Helper()
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, st := range stats {
		n += st.Pieces
	}
	return n
}

// P5: whatever was compacted and when, every view from the durable checkpoint on reads the same.
func TestP5_CompactionChangesNoAnswer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s, plain := open(t, vfs.NewMem()), open(t, vfs.NewMem())
	defer s.Close()
	defer plain.Close()
	g := Grid{Width: 10}
	merged := 0
	const rounds = 30
	for round := range rounds {
		k := Key{Stream: 7, Block: int64(rng.IntN(3) - 1)}
		shard, n := rng.IntN(2), 1+rng.IntN(6)
		state := rng.Uint64()
		fill(t, s, rand.New(rand.NewPCG(state, 2)), k, shard, uint64(100*round+1), n)
		fill(t, plain, rand.New(rand.NewPCG(state, 2)), k, shard, uint64(100*round+1), n)
		durable := uint64(100 * rng.IntN(round+1))
		if round == rounds-1 {
			durable = 100 * rounds // so that it is not up to chance whether much is merged
		}
		s.Durable(durable)
		for b := int64(-1); b <= 1; b++ {
			for shard := range 2 {
				c, err := s.Compact(Key{Stream: 7, Block: b}, shard)
				if err != nil {
					t.Fatal(err)
				}
				merged += c.Pieces
			}
		}
		for range 10 {
			seq := s.pins.durable + rng.Uint64N(400)
			views := []ShardView{{PieceSeq: seq}, {PieceSeq: seq}}
			got, want := dump(t, s, 7, g, -320, 640, views), dump(t, plain, 7, g, -320, 640, views)
			if got != want {
				t.Fatalf("round %d, view at %d, durable %d:\n got %s\nwant %s", round, seq, s.pins.durable, got, want)
			}
		}
	}
	if merged < 50 || pieces(t, s) >= pieces(t, plain)/2 {
		t.Fatalf("%d pieces merged, %d left of %d", merged, pieces(t, s), pieces(t, plain))
	}
}

// P5: what is beyond the durable checkpoint, or pinned, is left alone; what is compacted is keyed as the newest of its inputs.
func TestP5_CompactionKeepsToDurableAndPins(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	k := Key{Stream: 1}
	fill(t, s, rand.New(rand.NewPCG(1, 1)), k, 0, 1, 9)
	compact := func(want int) {
		t.Helper()
		if c, err := s.Compact(k, 0); err != nil || c.Pieces != want {
			t.Fatalf("%+v, %v; want %d pieces", c, err, want)
		}
	}
	compact(0)
	s.Durable(3)
	unpin := s.Pin()
	s.Durable(7)
	compact(3)
	compact(0)
	view := []ShardView{{PieceSeq: 3}}
	before := dump(t, s, 1, Grid{Width: 1}, 0, 31, view)
	unpin()
	unpin() // a second call must not release another's pin
	again := s.Pin()
	compact(5) // 3, as merged before, to 7
	again()
	if n := pieces(t, s); n != 3 {
		t.Fatalf("%d pieces left", n)
	}
	// The view of a reader that let go of its pin fails; it does not answer from what is left.
	err := s.Collect(context.Background(), 1, Grid{Width: 1}, 0, 31, view, func(int, Bucket) error { return nil })
	if !errors.Is(err, ErrStaleView) {
		t.Fatalf("a stale view: %v", err)
	}
	if before == "" || dump(t, s, 1, Grid{Width: 1}, 0, 31, []ShardView{{PieceSeq: 7}}) == "" {
		t.Fatal("nothing was read")
	}
}

// P5: an iterator that stands is not reached by a compaction.
func TestP5_OpenReaderIsUnaffected(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	for b := range int64(4) {
		fill(t, s, rand.New(rand.NewPCG(3, uint64(b))), Key{Stream: 1, Block: b}, 0, uint64(10*b)+1, 5)
	}
	views := []ShardView{{PieceSeq: 100}}
	want := dump(t, s, 1, Grid{Width: 1}, -1, 200, views)
	s.Durable(100)
	var got strings.Builder
	first := true
	if err := s.Collect(context.Background(), 1, Grid{Width: 1}, -1, 200, views, func(shard int, b Bucket) error {
		if first {
			first = false
			for blk := range int64(4) {
				if c, err := s.Compact(Key{Stream: 1, Block: blk}, 0); err != nil || c.Pieces != 5 {
					t.Fatal(c, err)
				}
			}
		}
		fmt.Fprintf(&got, "%d/%d@%d=%s", shard, b.Ref, b.End, b.Pane)
		if b.Incomplete {
			got.WriteString("!")
		}
		got.WriteString(" ")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got.String() != want {
		t.Fatalf("\n got %s\nwant %s", got.String(), want)
	}
}

// A compaction replaces exactly what it has read: if a piece is no longer what it was, or another lies between, nothing is written.
func TestCompactionRevalidates(t *testing.T) {
	k := Key{Stream: 1}
	for name, meddle := range map[string]func(*testing.T, *Store){
		"gone":    func(t *testing.T, s *Store) { check(t, s.db.Delete(pieceKey(k, 0, 2), pebble.NoSync)) },
		"another": func(t *testing.T, s *Store) { fill(t, s, rand.New(rand.NewPCG(9, 9)), k, 0, 2, 1) },
		"merged": func(t *testing.T, s *Store) {
			if c, err := s.Compact(k, 0); err != nil || c.Pieces != 4 {
				t.Fatal(c, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, vfs.NewMem())
			defer s.Close()
			fill(t, s, rand.New(rand.NewPCG(1, 1)), k, 0, 1, 4)
			s.Durable(4)
			inputs, _, err := s.newest(k, 0, 4, maxMergeBytes)
			check(t, err)
			meddle(t, s)
			before := rawPieces(t, s)
			if done, err := s.replace(k, 0, inputs, []byte("must not be written")); done || err != nil {
				t.Fatal(done, err)
			}
			if after := rawPieces(t, s); !slices.Equal(before, after) {
				t.Fatalf("pieces changed:\n%q\n%q", before, after)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rawPieces(t *testing.T, s *Store) []string {
	t.Helper()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyPiece}, UpperBound: []byte{keyPiece + 1}})
	check(t, err)
	defer it.Close()
	var out []string
	for it.First(); it.Valid(); it.Next() {
		out = append(out, fmt.Sprintf("%x=%x", it.Key(), it.Value()))
	}
	return out
}

// A run of pieces within the bound is merged, with the newest; what is older and larger stays.
func TestCompactionIsBounded(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	k := Key{Stream: 1}
	for i, size := range []int{5000, 100, 100, 100} {
		tb := NewTable()
		put(tb, k, 1, 0, strings.Repeat(fmt.Sprint(i), size))
		check(t, s.Commit(Checkpoint{Seq: uint64(i + 1), Tables: []*Table{tb}}))
	}
	for _, c := range []struct {
		bytes, want int
		more        bool
	}{{10_000, 4, false}, {1000, 3, true}, {150, 1, true}, {10, 0, true}} {
		in, more, err := s.newest(k, 0, 9, c.bytes)
		if err != nil || len(in) != c.want || more != c.more || len(in) > 0 && in[len(in)-1].seq != 4 {
			t.Errorf("%d bytes: %d pieces, %v, %v", c.bytes, len(in), more, err)
		}
	}
}

// The compactor finds what checkpoints filled at once, and what an earlier process left by going round, in passes that are
// bounded and go on where the last one ended.
func TestCompactorReachesEverything(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs)
	for b := range int64(20) {
		fill(t, s, rand.New(rand.NewPCG(4, uint64(b))), Key{Stream: 3, Block: b}, int(b%4), 1, 6)
	}
	check(t, s.Flush(t.Context()))
	s.Durable(6)
	c := NewCompactor(s, CompactorOptions{MinPieces: 4, PassBytes: 1, SweepKeys: 1})
	check(t, c.Pass(t.Context()))
	if st := c.Stats(); st.Compactions != 1 || st.Pieces != 6 || st.Pending != 19 || pieces(t, s) != 115 {
		t.Fatalf("one pass of one byte: %+v, %d pieces", st, pieces(t, s))
	}
	check(t, s.Flush(t.Context()))
	check(t, s.Close())

	s = open(t, fs) // knows of no checkpoint
	defer s.Close()
	s.Durable(6)
	views := make([]ShardView, 4)
	for i := range views {
		views[i].PieceSeq = 6
	}
	want := dump(t, s, 3, Grid{Width: 1}, -1, 20*EndsPerBlock, views)
	c = NewCompactor(s, CompactorOptions{MinPieces: 4, SweepKeys: 13})
	passes := 0
	for ; pieces(t, s) > 20; passes++ {
		if passes > 20 {
			t.Fatalf("%d pieces after %d passes", pieces(t, s), passes)
		}
		check(t, c.Pass(t.Context()))
	}
	if passes < 5 {
		t.Fatalf("all done in %d passes of 13 keys", passes)
	}
	if got := dump(t, s, 3, Grid{Width: 1}, -1, 20*EndsPerBlock, views); got != want {
		t.Fatalf("\n got %s\nwant %s", got, want)
	}
	before := rawPieces(t, s)
	for range 10 {
		check(t, c.Pass(t.Context())) // nothing is left to do, and nothing is done
	}
	if !slices.Equal(before, rawPieces(t, s)) {
		t.Fatal("pieces that were merged are merged again")
	}
}

// A damaged piece is named, keeps the rest from nothing, and is not read again in every pass.
func TestCompactorNamesDamage(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	fill(t, s, rand.New(rand.NewPCG(1, 1)), Key{Stream: 1}, 0, 1, 4)
	fill(t, s, rand.New(rand.NewPCG(1, 2)), Key{Stream: 2}, 0, 5, 4)
	check(t, s.db.Set(pieceKey(Key{Stream: 1}, 0, 3), []byte("not a piece"), pebble.NoSync))
	s.Durable(8)
	said := make(chan string, 100)
	c := NewCompactor(s, CompactorOptions{MinPieces: 4, Interval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(lines(said), nil))})
	err := c.Pass(t.Context())
	if !errors.Is(err, ErrCorruptPiece) || !strings.Contains(err.Error(), "stream 1, block 0, shard 0, seq 3") {
		t.Fatal(err)
	}
	if pieces(t, s) != 5 || c.Stats().Pending != 0 {
		t.Fatalf("%d pieces, %+v", pieces(t, s), c.Stats())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for i := 1; i <= 3; i++ {
		if line := <-said; !strings.Contains(line, fmt.Sprintf("consecutive=%d ", i)) || !strings.Contains(line, "seq 3") {
			t.Fatal(line)
		}
	}
	cancel()
	if err := <-done; err != nil || c.Stats().Failures < 3 {
		t.Fatal(err, c.Stats())
	}
}

// lines sends what is written to it; what nobody takes is dropped.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}

// snapshotter takes an image of the disk before every operation that writes.
type snapshotter struct {
	fs *vfs.MemFS
	on atomic.Bool

	mu     sync.Mutex // Pebble writes from several goroutines
	rng    *rand.Rand
	images []*vfs.MemFS
	ops    []string
}

func (c *snapshotter) String() string { return "snapshotter" }

// MaybeError implements errorfs.Injector; it never fails anything.
func (c *snapshotter) MaybeError(op errorfs.Op) error {
	if !c.on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, percent := range []int{0, 50, 100} {
		c.images = append(c.images, c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.rng}))
		c.ops = append(c.ops, fmt.Sprintf("%s, %d%% kept", op.Path, percent))
	}
	return nil
}

// P3, P5: a crash at any operation while pieces are compacted and flushed leaves what was durable before, read as before.
func TestP5_CrashWhileCompacting(t *testing.T) {
	cam := &snapshotter{fs: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(8, 8))}
	s := open(t, errorfs.Wrap(logtest.SerialLocks(cam.fs, &cam.mu), cam))
	for b := range int64(6) {
		fill(t, s, rand.New(rand.NewPCG(5, uint64(b))), Key{Stream: 3, Block: b}, int(b%2), uint64(1+10*b), 6)
	}
	views := []ShardView{{PieceSeq: 1000}, {PieceSeq: 1000}}
	want := dump(t, s, 3, Grid{Width: 1}, -1, 6*EndsPerBlock, views)
	check(t, s.Flush(t.Context()))
	s.Durable(1000)
	cam.on.Store(true)
	c := NewCompactor(s, CompactorOptions{MinPieces: 4, PassBytes: 1})
	for range 6 {
		check(t, c.Pass(t.Context()))
		check(t, s.Flush(t.Context()))
	}
	cam.on.Store(false)
	if pieces(t, s) != 6 {
		t.Fatalf("%d pieces", pieces(t, s))
	}
	check(t, s.Close())
	counts := make(map[int]int)
	damaged := 0
	for i, fs := range cam.images {
		s, err := Open("views", identity, Options{FS: fs})
		if errors.Is(err, ErrDamaged) {
			damaged++ // known of views that a crash caught in the middle of a MANIFEST: they are discarded, whole
			continue
		}
		if err != nil {
			t.Fatalf("crash at %s: %v", cam.ops[i], err)
		}
		if got := dump(t, s, 3, Grid{Width: 1}, -1, 6*EndsPerBlock, views); got != want {
			t.Errorf("crash at %s:\n got %s\nwant %s", cam.ops[i], got, want)
		}
		counts[pieces(t, s)]++
		check(t, s.Close())
	}
	t.Logf("%d images, %d damaged, by number of pieces: %v", len(cam.images), damaged, counts)
	if len(counts) < 4 || damaged > len(cam.images)/2 {
		t.Fatal("the crashes do not show steps in between")
	}
}
