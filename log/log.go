package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Log is an open log. All methods may be called from several goroutines.
type Log struct {
	opts     Options
	dir      string
	readOnly bool
	logger   *slog.Logger
	lock     io.Closer
	store    store
	guard    *storeGuard
	dict     *Dictionary
	origin   atomic.Pointer[origin]
	clock    *clock
	note     headNote // as read at Open; afterwards the noter's own

	queue    chan *appendRequest
	stopping chan struct{} // closed when Run begins to end: nothing more is accepted
	runDone  chan struct{} // closed when Run has ended
	idle     chan struct{} // closed when the actors of Run have ended: before runDone, unless the log is poisoned
	closing  chan struct{} // closed by Close
	closed   sync.Once
	closeErr error
	started  atomic.Bool

	settling sync.Mutex
	settled  <-chan struct{} // closed when the flush under way is done; nil if none is
	began    struct {        // what Began has found
		sync.Mutex
		known bool
		at    int64 // ms
		next  Seq   // there is no write before it
	}
	truncating sync.Mutex // held while Truncate is at work; for good, if the store never answers it

	poison     atomic.Pointer[poisonError]
	poisonedCh chan struct{}

	durable durable
	counts  counters
}

type poisonError struct{ err error }

// Open opens the log in dir and makes one if dir is missing or empty. It starts nothing. It fails, with nothing on disk
// changed, with ErrNotALog, ErrNewerFormat, ErrLocked, ErrNotWritable, a *ShortLogError or a *CorruptionError.
//
// The store is opened for reading first: when the log turns out to be short or damaged, it must not have been "recovered",
// so that whoever took a file away can put it back.
func Open(dir string, opts Options) (*Log, error) {
	l, err := open(dir, opts.withDefaults())
	return l, oneLine(err)
}

func open(dir string, opts Options) (*Log, error) {
	fs := opts.FS
	exists, _, err := inspect(fs, dir)
	if err != nil {
		return nil, err
	}
	if err := makeDirectory(fs, dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(fs, dir)
	if err != nil {
		return nil, err
	}
	l, err := openLocked(dir, opts, exists)
	if errors.Is(err, errStuck) {
		return nil, err // the lock stays, like the goroutines that may still hold files
	} else if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l.lock = lock
	return l, nil
}

func openLocked(dir string, opts Options, existed bool) (*Log, error) {
	// Again, under the lock: another process may have made the store in the meantime.
	exists, note, err := inspect(opts.FS, dir)
	if err != nil {
		return nil, err
	}
	if existed && !exists {
		return nil, fmt.Errorf("log directory %s: the store has gone", dir)
	}
	guard := newStoreGuard(opts.Logger)
	if exists {
		if err := probe(dir, opts, note); err != nil {
			return nil, err
		}
		for _, unfinished := range [...]string{storeNewDir, repairDir} {
			if err := opts.FS.RemoveAll(opts.FS.PathJoin(dir, unfinished)); err != nil {
				return nil, notWritable(dir, err)
			}
		}
	} else if err := createStore(opts, dir, guard); err != nil {
		return nil, err
	}
	if err := syncDirectories(opts.FS, dir); err != nil {
		return nil, err
	}
	return openStore(dir, opts, note, guard, false)
}

// probe opens the store for reading and makes every check that a start makes.
func probe(dir string, opts Options, note headNote) error {
	guard := newStoreGuard(opts.Logger)
	l, err := openStore(dir, opts, note, guard, true)
	if err != nil {
		return err
	}
	return guard.run(l.store.close)
}

// OpenReadOnly opens an existing log for the offline tools. It takes the lock and changes nothing.
func OpenReadOnly(dir string, opts Options) (*Log, error) {
	l, err := openReadOnly(dir, opts.withDefaults())
	return l, oneLine(err)
}

func openReadOnly(dir string, opts Options) (*Log, error) {
	exists, note, err := inspect(opts.FS, dir)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, fmt.Errorf("log directory %s: %w: it has no store", dir, ErrNotALog)
	}
	lock, err := lockDirectory(opts.FS, dir)
	if err != nil {
		return nil, err
	}
	l, err := openStore(dir, opts, note, newStoreGuard(opts.Logger), true)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l.lock = lock
	return l, nil
}

// openStore opens dir/store and checks that the log is whole.
func openStore(dir string, opts Options, note headNote, guard *storeGuard, readOnly bool) (*Log, error) {
	return openStoreAt(opts.FS.PathJoin(dir, storeDir), dir, opts, note, guard, readOnly)
}

func openStoreAt(path, dir string, opts Options, note headNote, guard *storeGuard, readOnly bool) (*Log, error) {
	po := pebbleOptions(opts, guard, path)
	po.ErrorIfNotExists = true
	po.ReadOnly = readOnly
	if !readOnly {
		guard.fs = opts.FS // it may speak of torn tails: each is read twice at a start, for reading only first
	}
	opened := make(chan *pebble.DB, 1)
	err := guard.run(func() error {
		db, err := openPebble(path, po)
		opened <- db
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open log store %s (%s says that the log reaches %d): %w", path, headFile, note.seq, err)
	}
	l := &Log{
		opts: opts, dir: dir, readOnly: readOnly, logger: opts.Logger, note: note, guard: guard,
		queue:    make(chan *appendRequest, queueLength),
		stopping: make(chan struct{}), runDone: make(chan struct{}), idle: make(chan struct{}), closing: make(chan struct{}),
		poisonedCh: make(chan struct{}),
	}
	l.store.db = <-opened
	l.durable.wake = make(chan struct{})
	l.durable.tail.limit = opts.TailBytes
	if err := l.load(path, note); err != nil {
		return nil, errors.Join(err, guard.run(l.store.close))
	}
	if err := guard.attach(l.setPoison); err != nil {
		return nil, fmt.Errorf("open log store %s: %w", path, err)
	}
	return l, nil
}

// load reads what the log needs to go on, and makes the checks of a start (L7).
func (l *Log) load(path string, note headNote) error {
	var m meta
	found, err := l.store.get([]byte{prefixMeta}, func(value []byte) (err error) {
		m, err = decodeMeta(value)
		return err
	})
	if err != nil {
		return fmt.Errorf("log store %s: %w", path, err)
	}
	if !found {
		return corrupt(0, "%s has no meta record", path)
	}
	if err := checkTables(l.store.db, l.opts.FS, path); err != nil {
		return err
	}
	if plantedRandomSeed {
		if m.seed, err = newSeed(l.opts); err != nil {
			return err
		}
	}
	l.origin.Store(newOrigin(m))
	end, err := checkEnd(&l.store, m, note, l.opts.FS.PathJoin(l.dir, headFile))
	if err != nil {
		return err
	}
	l.durable.head, l.durable.hash = end.seq, end.hash
	next, err := nextRef(l.store.db)
	if err != nil {
		return err
	}
	l.dict = newDictionary(&l.store, m.seed, l.opts.DictionaryCache, next)
	l.dict.now = l.opts.Monotonic
	l.clock = newClock(l.opts, end.logTime)
	return nil
}

// checkTables names a table that is missing or has another size than the store thinks.
func checkTables(db *pebble.DB, fs vfs.FS, path string) error {
	tables, err := liveTables(db, fs, path)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		info, err := fs.Stat(name)
		if err != nil {
			// A store that is open for writing may have merged the table into another in the meantime.
			now, lerr := liveTables(db, fs, path)
			if lerr != nil {
				return lerr
			}
			if _, live := now[name]; !live {
				continue
			}
			return &CorruptionError{Reason: "a table cannot be read", Err: err}
		}
		if size := tables[name]; uint64(info.Size()) != size {
			return corrupt(0, "%s has %d bytes, not %d", name, info.Size(), size)
		}
	}
	return nil
}

// liveTables returns the tables that the store stands on, with their sizes, but for virtual ones: Pebble checks the whole of
// which they are a part.
func liveTables(db *pebble.DB, fs vfs.FS, path string) (map[string]uint64, error) {
	levels, err := db.SSTables()
	if err != nil {
		return nil, fmt.Errorf("log store %s: %w", path, err)
	}
	out := make(map[string]uint64)
	for _, level := range levels {
		for _, t := range level {
			if !t.Virtual {
				out[fs.PathJoin(path, fmt.Sprintf("%s.sst", t.BackingSSTNum))] = t.Size
			}
		}
	}
	return out, nil
}

type logEnd struct {
	seq     Seq
	hash    Hash
	logTime int64
}

// checkEnd finds the end of the log and checks that it begins at the floor, reaches the HEAD note, and is dense and
// chained behind it.
func checkEnd(s *store, m meta, note headNote, notePath string) (logEnd, error) {
	floor := m.floor
	var end logEnd
	first := true
	one := func(key, value []byte) (bool, error) {
		first = false
		if seq, err := seqOf(key); err != nil || seq != floor {
			return false, corrupt(floor, "the first event has the key %x", key)
		}
		if floor == 1 {
			return false, nil
		}
		e, err := DecodeEvent(floor, value)
		if err == nil && e.Prev != m.prev {
			err = corrupt(floor, "predecessor hash is %x; where the log was truncated it was %x", e.Prev, m.prev)
		}
		return false, err
	}
	if err := s.iterate(eventKey(0), []byte{prefixEvent + 1}, one, nil); err != nil {
		return end, err
	}
	last, err := lastSeq(s)
	if err != nil {
		return end, err
	}
	if plantedShortAccepted {
		note.seq = min(note.seq, last)
	}
	if note.seq > last {
		return end, &ShortLogError{Have: last, Want: note.seq, What: notePath}
	}
	if first && floor > 1 {
		return end, corrupt(floor, "event is missing") // the newest is never truncated
	}
	if first {
		return end, nil
	}
	at := max(note.seq, floor)
	check := func(key, value []byte) (bool, error) {
		seq, err := seqOf(key)
		if err != nil || seq != at {
			return false, corrupt(at, "event is missing")
		}
		e, err := DecodeEvent(seq, value)
		if err != nil {
			return false, err
		}
		if end.seq != 0 && e.Prev != end.hash {
			return false, corrupt(seq, "predecessor hash is %x, not %x", e.Prev, end.hash)
		}
		end = logEnd{seq: seq, hash: EventHash(value), logTime: e.LogTime}
		if seq == note.seq && end.hash != note.hash && !plantedShortAccepted {
			return false, corrupt(seq, "the event is not the one that %s names", notePath)
		}
		at++
		return true, nil
	}
	if err := s.iterate(eventKey(at), []byte{prefixEvent + 1}, check, nil); err != nil {
		return end, err
	}
	if end.seq != last {
		return end, corrupt(at, "event is missing")
	}
	return end, nil
}

func seqOf(key []byte) (Seq, error) {
	if len(key) != 9 {
		return 0, corrupt(0, "event key %x", key)
	}
	return Seq(binary.BigEndian.Uint64(key[1:])), nil
}

func lastSeq(s *store) (Seq, error) {
	n, err := lastNumber(s.db, prefixEvent)
	return Seq(n), err
}

func nextRef(db *pebble.DB) (SeriesRef, error) {
	n, err := lastNumber(db, prefixSeries)
	return SeriesRef(n) + 1, err
}

// lastNumber returns the number in the last key of a prefix, 0 if there is none.
func lastNumber(db *pebble.DB, prefix byte) (n uint64, err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if !it.Last() {
		return 0, it.Error()
	}
	if len(it.Key()) != 9 {
		return 0, corrupt(0, "key %x", it.Key())
	}
	return binary.BigEndian.Uint64(it.Key()[1:]), nil
}

// Head returns the newest durable sequence; 0 if the log is empty.
func (l *Log) Head() Seq {
	l.durable.RLock()
	defer l.durable.RUnlock()
	return l.durable.head
}

// Floor returns the first sequence that the log still holds, or would hold.
func (l *Log) Floor() Seq { return l.origin.Load().floor }

// Origin returns the first sequence that the log holds and the largest sample time in any event before it, in ms: MinInt64
// if there was none, MaxInt64 if it is not known because an event was damaged when it was truncated.
func (l *Log) Origin() (floor Seq, newest int64) {
	o := l.origin.Load()
	return o.floor, o.newest
}

// LogTime returns the current log time in ms: what the committer would stamp now.
func (l *Log) LogTime() int64 { return l.clock.now() }

// Dictionary returns the log's series.
func (l *Log) Dictionary() *Dictionary { return l.dict }

// Err returns the error by which the log was poisoned, or nil. It wraps ErrPoisoned.
func (l *Log) Err() error {
	if p := l.poison.Load(); p != nil {
		return p.err
	}
	return nil
}

// setPoison keeps the first error (L4). From here on nothing is acknowledged.
func (l *Log) setPoison(cause error) {
	p := &poisonError{err: fmt.Errorf("%w: %w", ErrPoisoned, cause)}
	if l.poison.CompareAndSwap(nil, p) {
		close(l.poisonedCh)
		l.opts.OnPoison(p.err)
	}
}

// CheckAtLeast fails with a *ShortLogError when the log ends before seq, which what has as its checkpoint.
func (l *Log) CheckAtLeast(seq Seq, what string) error {
	if head := l.Head(); head < seq {
		return &ShortLogError{Have: head, Want: seq, What: what}
	}
	return nil
}

// Close ends Run if it is running, waits for it, and closes the store. Reading fails with ErrClosed afterwards. A poisoned
// log may be beyond closing: then it stays locked until the process ends.
func (l *Log) Close() error {
	l.closed.Do(func() {
		close(l.closing)
		if l.started.Load() {
			<-l.runDone
		}
		l.guard.finish()
		if l.Err() != nil {
			l.abandon()
			return
		}
		l.closeErr = l.store.close()
		if l.lock != nil {
			l.closeErr = errors.Join(l.closeErr, l.lock.Close())
		}
	})
	return l.closeErr
}

// abandon closes a poisoned store if nothing of it is stuck. What goes wrong has been said by Err.
func (l *Log) abandon() {
	if l.started.Load() {
		select {
		case <-l.idle:
		default:
			return
		}
	}
	if l.guard.halted.Load() || !l.truncating.TryLock() {
		return
	}
	l.truncating.Unlock()
	defer func() { _ = recover() }()
	_ = l.store.close()
	_ = l.lock.Close()
}
