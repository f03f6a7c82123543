package log

// The files of a store, each read by itself.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

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
