package log

// Reading a store that may be damaged.
//
// Pebble opens a store as a whole or not at all, and a table or a WAL that is missing or damaged takes with it what lies in
// others. Here the files are read one by one instead, without asking which of them count: an event is written once and never
// changed, it carries its own crc and the hash of its predecessor, and so it is right wherever it is found.

import (
	"bytes"
	"container/heap"
	"errors"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
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
