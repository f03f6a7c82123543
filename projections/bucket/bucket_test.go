package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

var identity = []byte("the log under test")

func open(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open("views", identity, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(tb *Table, k Key, ref uint64, idx int, text string) {
	tb.Put(k, ref, idx, func(dst []byte) []byte { return append(dst, text...) })
}

// dump collects everything of a stream as text.
func dump(t *testing.T, s *Store, stream uint64, g Grid, from, to int64, shards []ShardView) string {
	t.Helper()
	var out string
	if err := s.Collect(context.Background(), stream, g, from, to, shards, func(shard int, b Bucket) error {
		out += fmt.Sprintf("%d/%d@%d=%s", shard, b.Ref, b.End, b.Pane)
		if b.Incomplete {
			out += "!"
		}
		out += " "
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGridLocatesBelowZero(t *testing.T) {
	g := Grid{Origin: -3000, Width: 10_000}
	for k := int64(-70); k <= 70; k++ {
		end := g.Origin + k*g.Width
		block, idx := g.Locate(end)
		if idx < 0 || idx >= EndsPerBlock || g.End(block, idx) != end {
			t.Fatalf("end %d: block %d, index %d, back %d", end, block, idx, g.End(block, idx))
		}
	}
}

// P1: per series and end the newest pane wins: over entries of one table, over pieces, and tables over pieces. Marks stay.
func TestP1_NewestWins(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	g := Grid{Width: 10}
	k := Key{Stream: 7}
	first := NewTable()
	put(first, k, 64, 1, "a")
	put(first, k, 64, 1, "b")
	put(first, k, 64, 2, "c")
	put(first, k, 128, 1, "d")
	if err := s.Commit(Checkpoint{Shard: 0, Seq: 5, State: []byte("five"), Tables: []*Table{first}}); err != nil {
		t.Fatal(err)
	}
	second := NewTable()
	put(second, k, 64, 2, "e")
	second.MarkIncomplete(k, 128, 1)
	second.MarkIncomplete(k, 128, 3)
	if err := s.Commit(Checkpoint{Shard: 0, Seq: 9, State: []byte("nine"), Tables: []*Table{second}}); err != nil {
		t.Fatal(err)
	}
	memory := NewTable()
	put(memory, k, 128, 1, "f")
	var v View
	memory.AddTo(&v, 7, 0, 0)
	for _, c := range []struct {
		view ShardView
		want string
	}{
		{ShardView{PieceSeq: 9, View: v}, "0/64@10=b 0/64@20=e 0/128@10=f! 0/128@30=! "},
		{ShardView{PieceSeq: 9}, "0/64@10=b 0/64@20=e 0/128@10=d! 0/128@30=! "},
		{ShardView{PieceSeq: 8}, "0/64@10=b 0/64@20=c 0/128@10=d "}, // a reader from before the second checkpoint
		{ShardView{PieceSeq: 4}, ""},
		{ShardView{PieceSeq: 9, Refs: []uint64{128}}, "0/128@10=d! 0/128@30=! "},
		{ShardView{PieceSeq: 9, Refs: []uint64{}}, ""},
	} {
		if got := dump(t, s, 7, g, 0, 320, []ShardView{c.view}); got != c.want {
			t.Errorf("%+v:\n got %s\nwant %s", c.view, got, c.want)
		}
	}
	counted := []ShardView{{PieceSeq: 9, View: v}}
	if dump(t, s, 7, g, 0, 1000, counted); counted[0].Pieces != 2 {
		t.Errorf("%d pieces were read", counted[0].Pieces)
	}
	if got := dump(t, s, 7, g, 10, 20, []ShardView{{PieceSeq: 9}}); got != "0/64@20=e " {
		t.Errorf("(10,20]: %s", got)
	}
	if seq, state, ok, err := s.State(0); seq != 9 || string(state) != "nine" || !ok || err != nil {
		t.Errorf("state: %d %s %v %v", seq, state, ok, err)
	}
	if _, _, ok, err := s.State(1); ok || err != nil {
		t.Errorf("state of another shard: %v %v", ok, err)
	}
}

// P10: a bucket is incomplete if its last mark is newer than its last healing, over any distribution of the two over tables and
// pieces, before and after any compaction.
func TestP10_MarksAndHealing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	k, g := Key{Stream: 7}, Grid{Width: 10}
	incomplete, takenBack := 0, 0
	for range 40 {
		s := open(t, vfs.NewMem())
		marks, panes := map[int]bool{}, map[int]string{}
		for seq := uint64(1); seq <= 12; seq++ {
			tb := NewTable()
			for range rng.IntN(6) {
				switch idx := rng.IntN(5); rng.IntN(3) {
				case 0:
					put(tb, k, 64, idx, fmt.Sprint(seq))
					panes[idx] = fmt.Sprint(seq)
				case 1:
					tb.MarkIncomplete(k, 64, idx)
					marks[idx] = true
					incomplete++
				default:
					tb.Heal(k, 64, idx)
					if marks[idx] {
						takenBack++
					}
					delete(marks, idx)
				}
			}
			if err := s.Commit(Checkpoint{Shard: 0, Seq: seq, Tables: []*Table{tb}}); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(4) == 0 {
				s.Durable(seq)
				if _, err := s.Compact(k, 0); err != nil {
					t.Fatal(err)
				}
			}
			want := ""
			for idx := range 5 {
				if panes[idx] == "" && !marks[idx] {
					continue
				}
				want += fmt.Sprintf("0/64@%d=%s", 10*idx, panes[idx])
				if marks[idx] {
					want += "!"
				}
				want += " "
			}
			for _, refs := range [][]uint64{nil, {63, 64}} {
				if got := dump(t, s, 7, g, -10, 320, []ShardView{{PieceSeq: seq, Refs: refs}}); got != want {
					t.Fatalf("at %d:\n got %s\nwant %s", seq, got, want)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if incomplete < 50 || takenBack < 50 {
		t.Errorf("%d marks, %d taken back: this tests too little", incomplete, takenBack)
	}
}

// P2: a view does not see what is put after it was taken, also in the chunk that it shares.
func TestP2_ViewsAreImmutable(t *testing.T) {
	tb := NewTable()
	k := Key{Stream: 1, Block: 2}
	put(tb, k, 1, 0, "one")
	var v View
	tb.AddTo(&v, 1, 0, 5)
	put(tb, k, 1, 0, "two")
	put(tb, k, 2, 0, "three")
	var got string
	if err := v.Each(Grid{Width: 1}, func(b Bucket) error {
		got += fmt.Sprintf("%d=%s ", b.Ref, b.Pane)
		return nil
	}); err != nil || got != "1=one " {
		t.Fatal(got, err)
	}
}

// P4: a piece's bytes do not depend on the order of its entries, as long as the newest stays the newest.
func TestP4_PieceBytesDoNotDependOnOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type e struct {
		ref uint64
		idx int
	}
	var all []e
	for r := uint64(1); r < 200; r++ {
		for i := range EndsPerBlock {
			if rng.IntN(3) == 0 {
				all = append(all, e{r * 64, i})
			}
		}
	}
	var want []byte
	for range 5 {
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		tb := NewTable()
		for _, x := range all {
			put(tb, Key{}, x.ref, x.idx, "old")
			put(tb, Key{}, x.ref, x.idx, fmt.Sprint(x.ref, x.idx))
		}
		got := new(layout).appendPiece(nil, tb.blocks[Key{}])
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Fatal("the same content in another order gives other bytes")
		}
	}
	items, err := appendPieceItems(nil, want)
	if err != nil || len(items) != len(all) {
		t.Fatalf("%d items of %d, %v", len(items), len(all), err)
	}
}

// P3, and what a crash leaves: after Flush everything committed is there; before it a shard stands at one checkpoint or
// another, state and pieces together.
func TestP3_CheckpointsAreWhole(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs)
	g := Grid{Width: 10}
	for seq := uint64(1); seq <= 20; seq++ {
		tb := NewTable()
		put(tb, Key{Stream: 3}, 64, int(seq), fmt.Sprint(seq))
		if err := s.Commit(Checkpoint{Shard: 0, Seq: seq, State: fmt.Append(nil, seq), Tables: []*Table{tb}}); err != nil {
			t.Fatal(err)
		}
		if seq == 10 {
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after := open(t, crashed)
	defer after.Close()
	seq, state, ok, err := after.State(0)
	if err != nil || !ok || seq < 10 || string(state) != fmt.Sprint(seq) {
		t.Fatalf("state %s of %d, %v %v", state, seq, ok, err)
	}
	var want string
	for i := uint64(1); i <= seq; i++ {
		want += fmt.Sprintf("0/64@%d=%d ", i*10, i)
	}
	if got := dump(t, after, 3, g, 0, 1000, []ShardView{{PieceSeq: seq}}); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestRandomHistoryAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := open(t, vfs.NewMem())
	defer s.Close()
	g := Grid{Origin: 5, Width: 10}
	type at struct {
		shard int
		ref   uint64
		end   int64
	}
	model := map[at]string{}
	views := make([]ShardView, 4)
	tables := make([]*Table, 4)
	for i := range tables {
		tables[i] = NewTable()
	}
	for n := range 3000 {
		shard := rng.IntN(4)
		ref := uint64(1+rng.IntN(20))*4 + uint64(shard)
		end := g.Origin + int64(rng.IntN(400)-200)*g.Width
		block, idx := g.Locate(end)
		put(tables[shard], Key{Stream: 9, Block: block}, ref, idx, fmt.Sprint(n))
		model[at{shard, ref, end}] = fmt.Sprint(n)
		if rng.IntN(100) == 0 {
			views[shard].PieceSeq = uint64(n + 1)
			if err := s.Commit(Checkpoint{Shard: shard, Seq: uint64(n + 1), Tables: []*Table{tables[shard]}}); err != nil {
				t.Fatal(err)
			}
			tables[shard] = NewTable()
		}
		if rng.IntN(200) != 0 {
			continue
		}
		from := g.Origin + int64(rng.IntN(400)-200)*g.Width
		to := from + int64(1+rng.IntN(300))*g.Width
		lo, _ := g.Locate(from + g.Width)
		hi, _ := g.Locate(to)
		for i := range views {
			views[i].View = View{}
			tables[i].AddTo(&views[i].View, 9, lo, hi)
		}
		want := 0
		for a := range model {
			if a.end > from && a.end <= to {
				want++
			}
		}
		last := map[uint64]int64{}
		if err := s.Collect(context.Background(), 9, g, from, to, views, func(shard int, b Bucket) error {
			want--
			if v := model[at{shard, b.Ref, b.End}]; v != string(b.Pane) {
				return fmt.Errorf("series %d at %d is %s, want %s", b.Ref, b.End, b.Pane, v)
			}
			if l, ok := last[b.Ref]; ok && l >= b.End {
				return fmt.Errorf("series %d: end %d behind %d", b.Ref, b.End, l)
			}
			last[b.Ref] = b.End
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want != 0 {
			t.Fatalf("(%d,%d]: %d buckets are missing or too many", from, to, want)
		}
	}
}

// The views of one log are never read beside another, nor those of another format.
func TestOtherLogAndFormatAreRefused(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs)
	if err := errors.Join(s.Flush(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("views", []byte("another"), Options{FS: fs}); !errors.Is(err, ErrOtherLog) {
		t.Fatal(err)
	}
	s = open(t, fs)
	if err := errors.Join(s.db.Set([]byte{keyMeta}, append([]byte{storeVersion + 1}, identity...), pebble.NoSync), s.Flush(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("views", identity, Options{FS: fs}); !errors.Is(err, ErrVersion) {
		t.Fatal(err)
	}
}

// A bit that flips in a table of the store is found, as damage and not as a number.
func TestCase_B28_FlippedBitInViews(t *testing.T) {
	for bit := range 40 {
		fs := vfs.NewMem()
		s := open(t, fs)
		tb := NewTable()
		for r := uint64(1); r < 400; r++ {
			put(tb, Key{Stream: 3}, r*64, int(r)%EndsPerBlock, fmt.Sprintf("pane %d", r))
		}
		if err := errors.Join(s.Commit(Checkpoint{Seq: 1, Tables: []*Table{tb}}), s.Flush(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
		flip(t, fs, bit)
		s, err := Open("views", identity, Options{FS: fs})
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			continue
		}
		n := 0
		err = s.Collect(context.Background(), 3, Grid{Width: 1}, -100, 100, []ShardView{{PieceSeq: 1}}, func(_ int, b Bucket) error {
			if string(b.Pane) != fmt.Sprintf("pane %d", b.Ref/64) {
				return fmt.Errorf("wrong number %s for %d", b.Pane, b.Ref)
			}
			n++
			return nil
		})
		if err == nil && n != 399 {
			t.Errorf("bit %d: %d of 399 panes and no error", bit, n)
		}
		if err != nil && !Damaged(err) {
			t.Errorf("bit %d: %v is not called damage", bit, err)
		}
		s.Close()
	}
}

// flip flips one bit of the largest table.
func flip(t *testing.T, fs *vfs.MemFS, n int) {
	t.Helper()
	names, err := fs.List("views")
	if err != nil {
		t.Fatal(err)
	}
	name, size := "", int64(0)
	for _, f := range names {
		if st, err := fs.Stat("views/" + f); err == nil && len(f) > 4 && f[len(f)-4:] == ".sst" && st.Size() > size {
			name, size = "views/"+f, st.Size()
		}
	}
	if name == "" {
		t.Fatal("no table")
	}
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := size * int64(n) / 40
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << (n % 8)
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func FuzzPiece(f *testing.F) {
	tb := NewTable()
	put(tb, Key{}, 64, 3, "abc")
	put(tb, Key{}, 128, 31, "d")
	tb.MarkIncomplete(Key{}, 128, 0)
	f.Add(new(layout).appendPiece(nil, tb.blocks[Key{}]))
	tb.Heal(Key{}, 64, 3)
	tb.Heal(Key{}, 128, 0)
	tb.MarkIncomplete(Key{}, 128, 0)
	f.Add(new(layout).appendPiece(nil, tb.blocks[Key{}]))
	f.Add([]byte{pieceVersion, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		// Most inputs fail their checksum; the rest of the decoder is reached with one that fits.
		if _, err := appendPieceItems(nil, p); err != nil && !errors.Is(err, ErrCorruptPiece) {
			t.Fatal(err)
		}
		sealed := seal(append([]byte{pieceVersion}, p...))
		items, err := appendPieceItems(nil, sealed)
		if err != nil {
			if !errors.Is(err, ErrCorruptPiece) {
				t.Fatal(err)
			}
			return
		}
		again := NewTable()
		for _, it := range items {
			switch it.kind {
			case mark:
				again.MarkIncomplete(Key{}, it.ref, int(it.idx))
			case healed:
				again.Heal(Key{}, it.ref, int(it.idx))
			default:
				put(again, Key{}, it.ref, int(it.idx), string(it.payload))
			}
		}
		back, err := appendPieceItems(nil, new(layout).appendPiece(nil, again.blocks[Key{}]))
		if err != nil || len(back) != len(items) {
			t.Fatalf("%d items, %d after a round trip, %v", len(items), len(back), err)
		}
	})
}
