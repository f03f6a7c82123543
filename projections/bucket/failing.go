package bucket

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// flushRetry is the time between two attempts of Pebble to flush while they fail: it would try without a pause.
const flushRetry = 500 * time.Millisecond

// health is what is known of a store's background work.
//
// A flush that fails is tried again by Pebble until it succeeds; meanwhile nothing more is committed, as it would only pile
// up in memory, and the store heals when the disk does. What Pebble calls fatal ends writing for good: the views are not the
// truth, so the process goes on, and what stands can still be read. Damage, at last, ends reading too: a wrong answer is
// worse than none.
type health struct {
	logger  *slog.Logger
	fatal   atomic.Pointer[error] // writes
	damage  atomic.Pointer[error] // reads and writes
	over    chan struct{}         // closed when writing has ended for good, by either
	end     sync.Once             // closes over
	closing chan struct{}

	opened    chan struct{} // closed when pebble.Open has returned
	notOpened chan error    // receives why it never will

	mu       sync.Mutex
	attempt  error         // of the last flush that ended
	flushErr error         // why flushing fails now; nil while it does not
	fault    chan struct{} // closed and replaced by each failed flush
}

func newHealth(logger *slog.Logger) *health {
	return &health{
		logger: logger, over: make(chan struct{}), closing: make(chan struct{}), fault: make(chan struct{}),
		opened: make(chan struct{}), notOpened: make(chan error, 1),
	}
}

// writable returns why nothing can be written now.
func (h *health) writable() error {
	if err := h.ended(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flushErr != nil {
		return fmt.Errorf("%w: %w", ErrStuck, h.flushErr)
	}
	return nil
}

// ended returns why nothing will be written any more.
func (h *health) ended() error {
	if err := h.readable(); err != nil {
		return err
	}
	if e := h.fatal.Load(); e != nil {
		return *e
	}
	return nil
}

// readable returns why nothing can be read.
func (h *health) readable() error {
	if e := h.damage.Load(); e != nil {
		return *e
	}
	return nil
}

// nextFault is closed when a flush fails next.
func (h *health) nextFault() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault
}

// heldUp keeps a flush that has failed while the store is being opened, which Pebble would try again without end, until the store is open.
// Where Open waits for that flush, that is never. Other work in the background is not held up: when it fails, Open has returned, or will.
func (h *health) heldUp(err error) {
	h.mu.Lock()
	flushing := h.attempt != nil && errors.Is(err, h.attempt)
	h.mu.Unlock()
	if !flushing {
		return
	}
	select {
	case <-h.opened:
		return
	default:
	}
	select {
	case h.notOpened <- err:
	default:
	}
	<-h.opened
}

// listener tells of background work. Pebble calls it with its lock held: once the store is open, it never blocks.
func (h *health) listener() *pebble.EventListener {
	return &pebble.EventListener{
		FlushEnd: func(info pebble.FlushInfo) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.attempt = info.Err
			if info.Err == nil {
				h.flushErr = nil
			}
		},
		// A flush that had nothing to write ends with an error too, but only real ones come here.
		BackgroundError: func(err error) {
			h.heldUp(err)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.attempt == nil || !errors.Is(err, h.attempt) {
				h.logger.Error("views store: background work failed", "err", err)
				return
			}
			if h.flushErr == nil {
				h.logger.Error("views store: flush fails and is tried again", "err", err)
			}
			h.flushErr = err
			close(h.fault)
			h.fault = make(chan struct{})
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			h.keep(&h.damage, fmt.Errorf("%w: %s", ErrDamaged, info))
		},
	}
}

func (h *health) keep(at *atomic.Pointer[error], err error) {
	if at.CompareAndSwap(nil, &err) {
		h.end.Do(func() { close(h.over) })
		h.logger.Error("views store failed", "err", err)
	}
}

// Infof implements pebble.Logger.
func (h *health) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (h *health) Errorf(format string, args ...any) {
	h.logger.Error("views store", "err", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. It returns. A MANIFEST that cannot be written is no fault of what stands in the tables;
// of anything else nothing good can be assumed.
func (h *health) Fatalf(format string, args ...any) {
	reason := fmt.Sprintf(format, args...) // of a MANIFEST the format is bare
	err := fmt.Errorf("bucket: views store failed: %s", reason)
	if strings.HasPrefix(reason, "MANIFEST ") {
		h.keep(&h.fatal, err)
		return
	}
	h.keep(&h.damage, err)
}

// calmFS holds new tables back for a moment while flushes fail.
type calmFS struct {
	vfs.FS
	health *health
}

// Create implements vfs.FS. Once writing has ended for good, no table is made any more: a flush that Pebble tries again after its
// MANIFEST has failed may stand in it twice, and then the next start panics over two tables with the same keys.
func (c calmFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	table := strings.HasSuffix(name, ".sst")
	if err := c.health.ended(); err != nil {
		if table {
			<-c.health.closing
		}
		return nil, err
	}
	c.health.mu.Lock()
	failing := c.health.flushErr != nil
	c.health.mu.Unlock()
	if failing && table {
		pause := time.NewTimer(flushRetry)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-c.health.closing:
		}
	}
	f, err := c.FS.Create(name, category)
	if err == nil && strings.HasPrefix(c.PathBase(name), "MANIFEST-") {
		return calmManifest{f, c.health}, nil
	}
	return f, err
}

// calmManifest is a MANIFEST. After a write to it has failed nothing is added to it.
type calmManifest struct {
	vfs.File
	health *health
}

// Write implements vfs.File.
func (m calmManifest) Write(p []byte) (int, error) {
	if err := m.health.ended(); err != nil {
		return 0, err
	}
	return m.File.Write(p)
}

// OpenDir implements vfs.FS.
func (c calmFS) OpenDir(name string) (vfs.File, error) {
	f, err := c.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return calmDirectory{f, c.health}, nil
}

// calmDirectory is a directory of the store. When Pebble moves a marker, which says what MANIFEST is in force, it answers a failed
// fsync of the directory with a panic. The views are not worth that: it is told that all is well, and from then on nothing is
// committed, so that nothing relies on what may not be on disk.
type calmDirectory struct {
	vfs.File
	health *health
}

// Sync implements vfs.File.
func (d calmDirectory) Sync() error {
	err := d.File.Sync()
	if err == nil || !movesMarker() {
		return err
	}
	d.health.keep(&d.health.fatal, fmt.Errorf("bucket: views store failed: sync of its directory: %w", err))
	return nil
}

// movesMarker reports whether the caller is Pebble's marker. It is asked only after an error.
func movesMarker() bool {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "atomicfs.(*Marker).Move") {
			return true
		}
		if !more {
			return false
		}
	}
}

// Unwrap implements vfs.FS.
func (c calmFS) Unwrap() vfs.FS { return c.FS }
