package bucket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

const (
	testViews = "/data/views"
	testBases = "/data/base"
)

func openAt(t *testing.T, fs vfs.FS, dir string) *Store {
	t.Helper()
	check(t, fs.MkdirAll("/data", 0o755))
	check(t, syncDirectory(fs, "/")) // the log makes its ancestors durable before there is anything to seal
	s, err := Open(dir, identity, Options{FS: fs})
	check(t, err)
	return s
}

// advance commits one more checkpoint of both shards and makes it durable.
func advance(t *testing.T, s *Store, seq uint64) {
	t.Helper()
	for shard := range 2 {
		fill(t, s, rand.New(rand.NewPCG(seq, uint64(shard))), Key{Stream: 3, Block: int64(seq % 3)}, shard, seq, 1)
	}
	check(t, s.Flush(t.Context()))
	s.Durable(seq)
}

func everything(t *testing.T, s *Store) string {
	t.Helper()
	const far = 1 << 62
	return dump(t, s, 3, Grid{Width: 1}, -1, 4*EndsPerBlock, []ShardView{{PieceSeq: far}, {PieceSeq: far}})
}

// P9: what is sealed comes back as it was, whatever became of the views; one base is kept, and it is of the newest checkpoint.
func TestP9_SealAndRestore(t *testing.T) {
	fs := vfs.NewMem()
	s := openAt(t, fs, testViews)
	opts := Options{FS: fs}
	if _, err := NewestBase(testBases, opts); !errors.Is(err, ErrNoBase) {
		t.Fatal(err)
	}
	var want string
	for seq := uint64(1); seq <= 12; seq++ {
		advance(t, s, seq)
		if seq%4 != 0 {
			continue
		}
		want = everything(t, s)
		for range 2 { // the second time it stands already
			b, err := s.Seal(testBases, seq-1)
			check(t, err)
			if b.Seq != seq || b.Floor != seq-1 || b.Bytes() == 0 || b.Path != fmt.Sprintf("%s/%d", testBases, seq) {
				t.Fatalf("%+v", b)
			}
		}
		names, err := fs.List(testBases)
		check(t, err)
		if len(names) != 1 {
			t.Fatalf("bases: %v", names)
		}
	}
	advance(t, s, 13)
	c := NewCompactor(s, CompactorOptions{MinPieces: 2})
	check(t, c.Pass(t.Context())) // removes tables that the base shares
	check(t, s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
	check(t, s.Close())

	for _, spoil := range []func(){
		func() {},
		func() { check(t, fs.RemoveAll(testViews)) },
		func() { check(t, fs.MkdirAll(testViews+restoreSuffix+"/left/over", 0o755)) },
	} {
		spoil()
		b, err := RestoreBase(testBases, testViews, identity, 13, opts)
		check(t, err)
		s = openAt(t, fs, testViews)
		if got := everything(t, s); b.Seq != 12 || got != want {
			t.Fatalf("sequence %d:\n got %s\nwant %s", b.Seq, got, want)
		}
		if seq, _, ok, err := s.State(1); seq != 12 || !ok || err != nil {
			t.Fatal(seq, ok, err)
		}
		check(t, s.Close())
	}
	if _, err := RestoreBase(testBases, testViews, identity, 14, opts); !errors.Is(err, ErrNoBase) {
		t.Fatalf("a base that ends before the log begins: %v", err)
	}
	if _, err := RestoreBase(testBases, testViews, []byte("another"), 1, opts); !errors.Is(err, ErrOtherLog) {
		t.Fatal(err)
	}
}

// P9: a byte that is not what was sealed, a file too few or too many: the base is named, the views stay, and it is not mistaken for
// damage of the views, which would be answered by discarding them.
func TestP9_DamagedBaseIsNamed(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openAt(t, fs, testViews)
	for seq := uint64(1); seq <= 5; seq++ {
		advance(t, s, seq)
	}
	b, err := s.Seal(testBases, 1)
	check(t, err)
	check(t, s.Close())
	rng := rand.New(rand.NewPCG(3, 3))
	try := func(what, path string, spoil func(fs *vfs.MemFS)) {
		t.Helper()
		image := fs.CrashClone(vfs.CrashCloneCfg{})
		spoil(image)
		_, err := RestoreBase(testBases, testViews, identity, 1, Options{FS: image})
		var bad *BaseError
		if !errors.As(err, &bad) || !strings.HasPrefix(bad.Path, path) || Damaged(err) {
			t.Errorf("%s: %v", what, err)
		}
		check(t, openAt(t, image, testViews).Close())
		if !strings.Contains(what, "/views/") {
			return
		}
		_, err = OpenBase(b, Options{FS: image})
		if !errors.As(err, &bad) {
			t.Errorf("%s: opened: %v", what, err)
		}
		_, err = BeginRebuild(testViews, Work{Identity: identity}, &b, Options{FS: image})
		if !errors.As(err, &bad) || exists(image, RebuildDir(testViews)) {
			t.Errorf("%s: a rebuild: %v", what, err)
		}
	}
	files := []string{b.Path + "/BASE"}
	for _, f := range b.Files {
		files = append(files, b.Path+"/views/"+f.Name)
	}
	if len(files) < 4 {
		t.Fatal(files)
	}
	for _, name := range files {
		content := contentOf(t, fs, name)
		for range 8 {
			bit := rng.IntN(8 * max(1, len(content)))
			if len(content) == 0 {
				break
			}
			try(fmt.Sprintf("bit %d of %s", bit, name), name, func(fs *vfs.MemFS) {
				c := bytes.Clone(content)
				c[bit/8] ^= 1 << (bit % 8)
				check(t, writeSynced(fs, name, bytes.NewReader(c)))
			})
		}
		if len(content) > 0 {
			try("the last byte of "+name, name, func(fs *vfs.MemFS) {
				check(t, writeSynced(fs, name, bytes.NewReader(content[:len(content)-1])))
			})
		}
		try("no "+name, b.Path, func(fs *vfs.MemFS) { check(t, fs.Remove(name)) })
	}
	try("one more", b.Path+"/views", func(fs *vfs.MemFS) {
		check(t, writeSynced(fs, b.Path+"/views/000099.sst", strings.NewReader("x")))
	})
	try("another name", testBases+"/77/BASE", func(fs *vfs.MemFS) { check(t, fs.Rename(b.Path, testBases+"/77")) })
}

func contentOf(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	check(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	check(t, err)
	return b
}

// P9: a crash at any operation of sealing, twice over, or of restoring, leaves a base that was sealed before or the new one, whole;
// and restoring again afterwards gives what it says.
func TestP9_CrashWhileSealingAndRestoring(t *testing.T) {
	cam := &snapshotter{fs: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(6, 6))}
	fs := errorfs.Wrap(logtest.SerialLocks(cam.fs, &cam.mu), cam)
	s := openAt(t, fs, testViews)
	want := make(map[uint64]string)
	acked := []uint64{}
	last := uint64(0)
	note := func() { // which base stood at each image
		for len(acked) < len(cam.images) {
			acked = append(acked, last)
		}
	}
	cam.on.Store(true)
	for seq := uint64(1); seq <= 3; seq++ {
		advance(t, s, seq)
		want[seq] = everything(t, s)
		b, err := s.Seal(testBases, 1)
		check(t, err)
		note()
		last = b.Seq
	}
	check(t, s.Close())
	if _, err := RestoreBase(testBases, testViews, identity, 1, Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	cam.on.Store(false)
	note()
	found := make(map[uint64]int)
	for i, image := range cam.images {
		opts := Options{FS: image}
		b, err := RestoreBase(testBases, testViews, identity, acked[i]+1, opts)
		if errors.Is(err, ErrNoBase) && acked[i] == 0 {
			found[0]++
			continue
		}
		if err != nil {
			t.Fatalf("crash at %s, base %d was sealed: %v", cam.ops[i], acked[i], err)
		}
		found[b.Seq]++
		s, err := Open(testViews, identity, opts)
		if err != nil {
			t.Fatalf("crash at %s: %v", cam.ops[i], err)
		}
		if got := everything(t, s); got != want[b.Seq] {
			t.Fatalf("crash at %s, base %d:\n got %s\nwant %s", cam.ops[i], b.Seq, got, want[b.Seq])
		}
		s.Durable(9)
		if _, err := s.Seal(testBases, 1); err != nil { // what a crash left is in nobody's way
			t.Fatalf("crash at %s: %v", cam.ops[i], err)
		}
		check(t, s.Close())
		names, err := image.List(testBases)
		if err != nil || !slices.Equal(names, []string{"9"}) {
			t.Fatalf("crash at %s: bases %v, %v", cam.ops[i], names, err)
		}
	}
	t.Logf("%d crashes; bases found: %v", len(cam.images), found)
	if len(found) != 4 {
		t.Fatal("the crashes do not show every base")
	}
}

func FuzzDecodeBase(f *testing.F) {
	b := Base{Seq: 7, Floor: 3, Identity: []byte{1, 2}, Files: []BaseFile{{"000004.sst", 88, 0xabc}, {"MANIFEST-000001", 0, 0}}}
	f.Add(b.encode())
	f.Add([]byte("tidemark base, format 2\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := decodeBase(raw)
		if err != nil {
			return
		}
		if !bytes.Equal(b.encode(), raw) {
			t.Fatalf("%q decodes and encodes to %q", raw, b.encode())
		}
		for _, f := range b.Files {
			if strings.Contains(f.Name, "/") || f.Size < 0 {
				t.Fatalf("%+v", f)
			}
		}
	})
}

// The bytes of a BASE file.
func TestGoldenBase(t *testing.T) {
	b := Base{Seq: 7, Floor: 3, Identity: []byte{1, 0xab}, Files: []BaseFile{{"000004.sst", 88, 0xabc}}}
	const want = "tidemark base, format 1\nseq 7\nfloor 3\nlog 01ab\nfile 88 00000abc 000004.sst\n"
	text := string(b.encode())
	if !strings.HasPrefix(text, want+"crc32c ") {
		t.Fatalf("%q", text)
	}
	for _, c := range []struct{ from, to string }{
		{"format 1", "format 2"}, {"seq 7", "seq 8"}, {"000004.sst", "../../x"}, {"file 88", "file -8"}, {"floor 3", "floor x"}, {"\nlog", "\n\nlog"},
	} {
		if _, err := decodeBase([]byte(strings.Replace(text, c.from, c.to, 1))); err == nil {
			t.Errorf("%s as %s decodes", c.from, c.to)
		}
	}
	if _, err := decodeBase([]byte(text + "x")); err == nil {
		t.Error("a longer file decodes")
	}
}
