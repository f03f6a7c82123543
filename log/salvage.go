package log

// Reading a store that may be damaged.
//
// Pebble opens a store as a whole or not at all, and a table or a WAL that is missing or damaged takes with it what lies in
// others. Here the files are read one by one instead, without asking which of them count: an event is written once and never
// changed, it carries its own crc and the hash of its predecessor, and so it is right wherever it is found.

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// salvage reads what can be read of the files in a store's directory.
type salvage struct {
	fs      vfs.FS
	dir     string
	options sstable.ReaderOptions
	tables  []string // paths
	wals    wal.Logs

	meta   meta
	hasKey bool // meta was found

	sources sourceHeap     // that have an event to give
	broken  []*tableSource // that failed at some place and may go on behind it
}

// eventSource gives the events of one file in the order of their sequences.
type eventSource interface {
	// at returns the event it stands at; the bytes are valid until the next call of advance.
	at() (Seq, []byte)
	// advance moves to the first event at or after seq; false at the end, and where the file cannot be read.
	advance(seq Seq) bool
	close()
}

// newSalvage lists the files and finds the meta record.
func newSalvage(fs vfs.FS, dir string, po *pebble.Options) (*salvage, error) {
	po.EnsureDefaults()
	s := &salvage{fs: fs, dir: dir, options: po.MakeReaderOptions()}
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			s.tables = append(s.tables, fs.PathJoin(dir, name))
		}
	}
	if s.wals, err = wal.Scan(wal.Dir{FS: fs, Dirname: dir}); err != nil {
		return nil, err
	}
	if err := s.entries(prefixMeta, s.foundMeta); err != nil {
		return nil, err
	}
	return s, nil
}

// foundMeta keeps the record with the highest floor: the floor only rises, and the key never changes.
func (s *salvage) foundMeta(_, value []byte) error {
	m, err := decodeMeta(value)
	if errors.Is(err, ErrNewerFormat) {
		return err
	}
	if err == nil && (!s.hasKey || m.floor > s.meta.floor) {
		s.meta, s.hasKey = m, true
	}
	return nil
}

// entries calls use for every entry under a prefix that can be read, in no order, some of them more than once.
func (s *salvage) entries(prefix byte, use func(key, value []byte) error) error {
	for _, path := range s.tables {
		t := &tableSource{s: s, path: path}
		err := guardPanic(func() error { return t.scan(prefix, use) })
		t.close()
		if err != nil && !errors.Is(err, errUnreadable) {
			return err
		}
	}
	for _, w := range s.wals {
		r := newWALSource(w)
		var err error
		for err == nil {
			err = r.batch(func(key, value []byte) error {
				if len(key) > 0 && key[0] == prefix {
					return use(key, value)
				}
				return nil
			})
		}
		r.close()
		if !errors.Is(err, errUnreadable) {
			return err
		}
	}
	return nil
}

// start makes the events readable from the first on. A table is open only while its turn lasts.
func (s *salvage) start() {
	for _, path := range s.tables {
		t := &tableSource{s: s, path: path}
		s.add(t, 0)
		t.raw = bytes.Clone(t.raw)
		t.close()
	}
	for _, w := range s.wals {
		s.add(newWALSource(w), 0)
	}
}

// add makes a source ready at the first event at or after seq, and puts away what it cannot give.
func (s *salvage) add(src eventSource, seq Seq) {
	if src.advance(seq) {
		heap.Push(&s.sources, src)
		return
	}
	if t, ok := src.(*tableSource); ok && t.failed {
		s.broken = append(s.broken, t)
	}
	src.close()
}

// next returns an event at seq, or else the first that any file holds behind it; false if there is none. The calls must
// come with sequences that never decrease.
func (s *salvage) next(seq Seq) (Seq, []byte, bool) {
	for len(s.sources) > 0 {
		if got, _ := s.sources[0].at(); got >= seq {
			break
		}
		s.add(heap.Pop(&s.sources).(eventSource), seq)
	}
	if got, raw, ok := s.top(); ok && got == seq {
		return got, raw, true
	}
	s.retry(seq) // what is missing may be in a table that failed at another place
	return s.top()
}

func (s *salvage) top() (Seq, []byte, bool) {
	if len(s.sources) == 0 {
		return 0, nil, false
	}
	got, raw := s.sources[0].at()
	return got, raw, true
}

// reject passes over the event that next returned: another file may hold a better one.
func (s *salvage) reject() {
	src := heap.Pop(&s.sources).(eventSource)
	got, _ := src.at()
	s.add(src, got+1)
}

// retry makes the tables that failed go on at seq, or at the first place behind it where they can be read, as long as that is
// before what the other files hold.
func (s *salvage) retry(seq Seq) {
	broken := s.broken
	s.broken = nil
	for _, t := range broken {
		limit := seq + maxSkip
		if got, _, ok := s.top(); ok {
			limit = got
		}
		switch {
		case t.skip(seq, limit):
			heap.Push(&s.sources, eventSource(t))
		case t.failed:
			s.broken = append(s.broken, t)
		}
	}
}

func (s *salvage) close() {
	for _, src := range s.sources {
		src.close()
	}
	for _, t := range s.broken {
		t.close()
	}
}

// maxSkip bounds how far behind a damaged place of a table its next event is looked for.
const maxSkip = 1 << 32

// errUnreadable ends a file: at its end, or where it is damaged.
var errUnreadable = errors.New("nothing more can be read")

// guardPanic makes an error of a panic: the code below trusts bytes whose checksum is right, and here nothing is to be trusted.
func guardPanic(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errUnreadable, r)
		}
	}()
	return f()
}

// tableSource reads one table. It is open only while it gives events.
type tableSource struct {
	s      *salvage
	path   string
	reader *sstable.Reader
	it     sstable.Iterator
	seq    Seq
	raw    []byte
	failed bool // rather than at its end
}

func (t *tableSource) open(prefix byte) error {
	f, err := t.s.fs.Open(t.path)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errUnreadable, err), f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, t.s.options)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errUnreadable, err), readable.Close())
	}
	t.reader = r
	if t.it, err = r.NewIter(sstable.NoTransforms, []byte{prefix}, []byte{prefix + 1}, sstable.AssertNoBlobHandles); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

// scan calls use for every entry under a prefix.
func (t *tableSource) scan(prefix byte, use func(key, value []byte) error) error {
	if err := t.open(prefix); err != nil {
		return err
	}
	for kv := t.it.SeekGE([]byte{prefix}, 0); kv != nil; kv = t.it.Next() {
		if kv.Kind() != pebble.InternalKeyKindSet {
			continue
		}
		value, _, err := kv.Value(nil)
		if err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		if err := use(kv.K.UserKey, value); err != nil {
			return err
		}
	}
	return nil
}

func (t *tableSource) at() (Seq, []byte) { return t.seq, t.raw }

func (t *tableSource) advance(seq Seq) bool {
	err := guardPanic(func() error { return t.move(seq) })
	if err == nil {
		return true
	}
	t.failed = !errors.Is(err, io.EOF)
	t.close()
	return false
}

func (t *tableSource) move(seq Seq) error {
	if t.it == nil {
		if err := t.open(prefixEvent); err != nil {
			return err
		}
	}
	for kv := t.it.SeekGE(eventKey(seq), 0); kv != nil; kv = t.it.Next() {
		if kv.Kind() != pebble.InternalKeyKindSet || len(kv.K.UserKey) != 9 {
			continue
		}
		value, _, err := kv.Value(nil)
		if err != nil {
			return err
		}
		t.seq, t.raw = Seq(binary.BigEndian.Uint64(kv.K.UserKey[1:])), value
		return nil
	}
	if err := t.it.Error(); err != nil {
		return err
	}
	return io.EOF
}

// skip advances to the first event in [seq, limit) that can be read; damage ends at some place, which it finds by doubling
// and halving.
func (t *tableSource) skip(seq, limit Seq) bool {
	bad, step := seq, Seq(1) // what lies at bad cannot be read
	if t.advance(seq) {
		return true
	}
	for t.failed && bad+step < limit {
		if !t.advance(bad + step) {
			bad, step = bad+step, 2*step
			continue
		}
		good := bad + step
		for bad+1 < good {
			if mid := bad + (good-bad)/2; t.advance(mid) {
				good = mid
			} else {
				bad = mid
			}
		}
		return t.advance(good)
	}
	return false
}

func (t *tableSource) close() {
	_ = guardPanic(func() error {
		if t.it != nil {
			_ = t.it.Close()
		}
		if t.reader != nil {
			_ = t.reader.Close()
		}
		return nil
	})
	t.it, t.reader = nil, nil
}

// walBlock is the size of the blocks of a WAL. A chunk never crosses them, so that reading may begin at any.
const walBlock = 32 << 10

// walSource reads one WAL: first to last batch, as they were written, and beyond what is damaged.
type walSource struct {
	fs     vfs.FS
	path   string
	num    uint64
	file   vfs.File
	reader *record.Reader // of the blocks from base on
	base   int64
	buf    bytes.Buffer
	queue  []walEvent // of the batch that was read last
}

type walEvent struct {
	seq Seq
	raw []byte
}

func newWALSource(w wal.LogicalLog) *walSource {
	fs, path := w.SegmentLocation(0) // without failover there is no other
	return &walSource{fs: fs, path: path, num: uint64(w.Num)}
}

// newRecordReader infers the type of a WAL's number, which Pebble keeps to itself.
func newRecordReader[N ~uint64](make func(io.Reader, N) *record.Reader, r io.Reader, num uint64) *record.Reader {
	return make(r, N(num))
}

// record reads the next record into buf.
func (w *walSource) record() error {
	if w.file == nil {
		var err error
		if w.file, err = w.fs.Open(w.path); err != nil {
			return err
		}
		if err := w.begin(0); err != nil {
			return err
		}
	}
	for {
		at := w.base + w.reader.Offset()
		r, err := w.reader.Next()
		if err == nil {
			w.buf.Reset()
			_, err = w.buf.ReadFrom(r)
		}
		if err == nil || errors.Is(err, io.EOF) {
			return err
		}
		if err := w.begin(at/walBlock + 1); err != nil {
			return err
		}
	}
}

// begin goes on at the first block from the given one on that was written for this WAL: the rest of the file may be zeros, or
// what another WAL has left in it. It fails with io.EOF if there is none.
func (w *walSource) begin(block int64) error {
	const logNumber = 7 // where it stands in a chunk's header, 4 bytes
	for ; ; block++ {
		var header [logNumber + 4]byte
		if n, err := w.file.ReadAt(header[:], block*walBlock); n < len(header) {
			return cmp.Or(err, io.EOF)
		}
		if binary.LittleEndian.Uint32(header[logNumber:]) == uint32(w.num) {
			w.base = block * walBlock
			rest := io.NewSectionReader(w.file, w.base, math.MaxInt64-w.base)
			w.reader = newRecordReader(record.NewReader, rest, w.num)
			return nil
		}
	}
}

func (w *walSource) at() (Seq, []byte) { return w.queue[0].seq, w.queue[0].raw }

func (w *walSource) advance(seq Seq) bool {
	for {
		for len(w.queue) > 0 {
			if w.queue[0].seq >= seq {
				return true
			}
			w.queue = w.queue[1:]
		}
		if err := w.batch(w.take); err != nil {
			return false
		}
	}
}

func (w *walSource) take(key, value []byte) error {
	if len(key) == 9 && key[0] == prefixEvent {
		w.queue = append(w.queue, walEvent{seq: Seq(binary.BigEndian.Uint64(key[1:])), raw: bytes.Clone(value)})
	}
	return nil
}

// batch calls use for the entries of the next batch that can be read. It fails with errUnreadable at the end.
func (w *walSource) batch(use func(key, value []byte) error) error {
	return guardPanic(func() error {
		if err := w.record(); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		if w.buf.Len() < batchrepr.HeaderLen {
			return fmt.Errorf("%w: a batch of %d bytes", errUnreadable, w.buf.Len())
		}
		entries := batchrepr.Read(w.buf.Bytes())
		for {
			kind, key, value, ok, err := entries.Next()
			if err != nil {
				return fmt.Errorf("%w: %w", errUnreadable, err)
			}
			if !ok {
				return nil
			}
			if kind == pebble.InternalKeyKindSet {
				if err := use(key, value); err != nil {
					return err
				}
			}
		}
	})
}

func (w *walSource) close() {
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
}

// sourceHeap orders sources by the event they stand at.
type sourceHeap []eventSource

func (h sourceHeap) Len() int { return len(h) }
func (h sourceHeap) Less(i, j int) bool {
	a, _ := h[i].at()
	b, _ := h[j].at()
	return a < b
}
func (h sourceHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *sourceHeap) Push(x any)   { *h = append(*h, x.(eventSource)) }
func (h *sourceHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
