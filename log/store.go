package log

// The directory and the Pebble store in it.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	lockFile    = "LOCK"
	storeDir    = "store"
	storeNewDir = "store.new"
	repairDir   = "store.repair"
	asidePrefix = "damaged-"

	prefixEvent  = 'e'
	prefixHash   = 'h'
	prefixMeta   = 'm'
	prefixSeries = 's'
)

func eventKey(seq Seq) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixEvent}, uint64(seq))
}

func seriesKey(ref SeriesRef) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixSeries}, uint64(ref))
}

func hashKey(h Hash) []byte { return append([]byte{prefixHash}, h[:]...) }

// metaSize is the length of the meta record of a log that was never truncated, and truncatedSize what a truncation adds, with beganSize
// behind it unless it was one by the first release.
const (
	metaSize      = 17
	truncatedSize = len(Hash{}) + 8
	beganSize     = 8
)

// meta is the value of the key 'm'.
type meta struct {
	floor Seq
	seed  uint64
	// Of the events before the floor; on disk only if it is beyond 1.
	prev   Hash
	newest int64
	began  int64 // see origin
}

func (m meta) encode() []byte {
	b := []byte{storeFormat}
	b = binary.BigEndian.AppendUint64(b, uint64(m.floor))
	b = binary.BigEndian.AppendUint64(b, m.seed)
	if m.floor > 1 {
		b = append(b, m.prev[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(m.newest))
		b = binary.BigEndian.AppendUint64(b, uint64(m.began))
	}
	return b
}

func decodeMeta(b []byte) (meta, error) {
	switch {
	case len(b) > 0 && b[0] > storeFormat:
		return meta{}, fmt.Errorf("%w: %d, not %d", ErrNewerFormat, b[0], storeFormat)
	case len(b) != metaSize && len(b) != metaSize+truncatedSize && len(b) != metaSize+truncatedSize+beganSize:
		return meta{}, corrupt(0, "meta record has %d bytes", len(b))
	}
	m := meta{floor: Seq(binary.BigEndian.Uint64(b[1:])), seed: binary.BigEndian.Uint64(b[9:])}
	if m.floor == 0 || (m.floor > 1) != (len(b) > metaSize) {
		return meta{}, corrupt(0, "meta record has %d bytes and the floor %d", len(b), m.floor)
	}
	if copy(m.prev[:], b[metaSize:]) > 0 {
		m.newest = int64(binary.BigEndian.Uint64(b[metaSize+len(m.prev):]))
	}
	switch len(b) {
	case metaSize + truncatedSize:
		m.began = beganUnknown
	case metaSize + truncatedSize + beganSize:
		m.began = int64(binary.BigEndian.Uint64(b[metaSize+truncatedSize:]))
	}
	return m, nil
}

// inspect looks at dir without changing anything. exists is whether there is a store.
func inspect(fs vfs.FS, dir string) (exists bool, note headNote, err error) {
	info, err := fs.Stat(dir)
	if oserror.IsNotExist(err) {
		return false, headNote{}, nil
	} else if err != nil {
		return false, headNote{}, fmt.Errorf("log directory: %w", err)
	}
	if !info.IsDir() {
		return false, headNote{}, fmt.Errorf("log directory %s: %w: it is a file", dir, ErrNotALog)
	}
	names, err := fs.List(dir)
	if err != nil {
		return false, headNote{}, fmt.Errorf("log directory %s: %w", dir, err)
	}
	slices.Sort(names)
	exists = slices.Contains(names, storeDir)
	if exists {
		err = inspectStore(fs, dir)
	} else if slices.Contains(names, repairDir) {
		err = fmt.Errorf("log directory %s: %w", dir, ErrRepairing)
	} else {
		for _, name := range names {
			switch name {
			case lockFile, headFile, headTemp, storeNewDir, "lost+found":
			default:
				return false, headNote{}, fmt.Errorf("log directory %s: %w: it holds %s and no store", dir, ErrNotALog, name)
			}
		}
	}
	if err != nil {
		return false, headNote{}, err
	}
	note, err = readHead(fs, dir)
	switch {
	case oserror.IsNotExist(err) && exists:
		return false, headNote{}, corrupt(0, "%s is missing", fs.PathJoin(dir, headFile))
	case oserror.IsNotExist(err):
		return false, headNote{}, nil
	case err != nil:
		return false, headNote{}, err
	case !exists && note.seq > 0:
		return false, headNote{}, &ShortLogError{Want: note.seq, What: fs.PathJoin(dir, headFile)}
	}
	return exists, note, nil
}

// inspectStore names what Pebble would take as a reason to begin anew or to come up short.
func inspectStore(fs vfs.FS, dir string) error {
	path := fs.PathJoin(dir, storeDir)
	names, err := fs.List(path)
	if err != nil {
		return fmt.Errorf("log store %s: %w", path, err)
	}
	// A store without any WAL is sound: recovery removes the old ones before it makes a new one. Whether one is missing is
	// for the HEAD note to tell.
	for _, prefix := range [...]string{"marker.format-version.", "marker.manifest.", "MANIFEST-"} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			return corrupt(0, "no %s* in %s", prefix, path)
		}
	}
	return nil
}

// lockDirectory keeps other processes out. The directory must exist.
func lockDirectory(fs vfs.FS, dir string) (io.Closer, error) {
	lock, err := fs.Lock(fs.PathJoin(dir, lockFile))
	if err == nil {
		return lock, nil
	}
	var pathError *iofs.PathError
	switch {
	case errors.As(err, &pathError):
		return nil, notWritable(dir, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES), strings.Contains(err.Error(), "held by current process"):
		return nil, fmt.Errorf("log directory %s: %w", dir, ErrLocked)
	}
	return nil, fmt.Errorf("log directory %s: lock: %w", dir, err)
}

func notWritable(dir string, err error) error {
	if oserror.IsPermission(err) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("log directory %s: %w: %v", dir, ErrNotWritable, err)
	}
	return fmt.Errorf("log directory %s: %w", dir, err)
}

// makeDirectory makes dir and its ancestors.
func makeDirectory(fs vfs.FS, dir string) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return notWritable(dir, err)
	}
	return nil
}

// syncDirectories makes the entries of dir and of its ancestors durable. It runs at every start: an earlier one may have
// ended between making an entry and syncing it. Ancestors that may not be opened were not made by us.
func syncDirectories(fs vfs.FS, dir string) error {
	if err := syncDir(fs, dir); err != nil {
		return fmt.Errorf("log directory %s: sync: %w", dir, err)
	}
	for {
		parent := fs.PathDir(dir)
		if parent == dir {
			return nil
		}
		dir = parent
		if err := syncDir(fs, dir); err != nil && !oserror.IsPermission(err) {
			return fmt.Errorf("directory %s: sync: %w", dir, err)
		}
	}
}

// createStore makes an empty store and moves it to its place. Nothing in store.new is ever worth keeping.
func createStore(opts Options, dir string, guard *storeGuard) error {
	fs := opts.FS
	if err := writeHead(fs, dir, headNote{}); err != nil {
		return notWritable(dir, err)
	}
	path := fs.PathJoin(dir, storeNewDir)
	if err := fs.RemoveAll(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	seed, err := newSeed(opts)
	if err != nil {
		return err
	}
	po := pebbleOptions(opts, guard, path)
	po.ErrorIfExists = true
	m := meta{floor: 1, seed: seed}
	err = guard.run(func() error {
		db, err := openPebble(path, po)
		if err != nil {
			return err
		}
		return errors.Join(db.Set([]byte{prefixMeta}, m.encode(), pebble.Sync), db.Close())
	})
	if err != nil {
		return fmt.Errorf("create log store %s: %w", path, err)
	}
	return fs.Rename(path, fs.PathJoin(dir, storeDir))
}

// newSeed draws the key of the series hash.
func newSeed(opts Options) (uint64, error) {
	var seed [8]byte
	if _, err := io.ReadFull(opts.Entropy, seed[:]); err != nil {
		return 0, fmt.Errorf("key of the series hash: %w", err)
	}
	return binary.BigEndian.Uint64(seed[:]), nil
}

func pebbleOptions(opts Options, guard *storeGuard, path string) *pebble.Options {
	po := &pebble.Options{
		FS:                          storeFS{opts.FS, guard, path},
		CacheSize:                   opts.CacheBytes,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      guard,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 4,
		MaxOpenFiles:                maxOpenFiles,
		L0CompactionFileThreshold:   maxRestartTables,
	}
	for i := range po.Levels {
		po.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.ZstdCompression }
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	po.EventListener = &pebble.EventListener{
		BackgroundError: guard.backgroundError,
		// Whoever reads a damaged table gets the error. The default would hand it to Fatalf besides, as if a write had failed.
		DataCorruption: func(pebble.DataCorruptionInfo) {},
	}
	return po
}

// store guards the database against use after Close.
type store struct {
	mu    sync.Mutex
	db    *pebble.DB // nil when closed
	users sync.WaitGroup
}

// acquire returns the database; release must follow. It may be nested: a Close in between makes the inner one fail.
func (s *store) acquire() (*pebble.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil, ErrClosed
	}
	s.users.Add(1)
	return s.db, nil
}

func (s *store) release() { s.users.Done() }

func (s *store) get(key []byte, use func(value []byte) error) (bool, error) {
	db, err := s.acquire()
	if err != nil {
		return false, err
	}
	defer s.release()
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, errors.Join(use(value), closer.Close())
}

// iterate calls use for every key in [lower, upper) until it says false; begin, if any, once the view is fixed.
func (s *store) iterate(lower, upper []byte, use func(key, value []byte) (bool, error), begin func()) (err error) {
	db, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if begin != nil {
		begin()
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if more, err := use(it.Key(), value); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// close waits for whoever uses the database and closes it.
func (s *store) close() error {
	s.mu.Lock()
	db := s.db
	s.db = nil
	s.mu.Unlock()
	if db == nil {
		return nil
	}
	s.users.Wait()
	return db.Close()
}
