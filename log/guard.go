package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// storeGuard stands between Pebble and the log when something fails. Pebble's answer to a failed WAL or MANIFEST is
// Logger.Fatalf or a panic, and it expects the process to end there; our process goes on until its owner ends it. So there
// are two answers.
//
// While the store is being opened or made, the goroutine that failed is stopped where it stands, and run gives up on the
// store with an error: were Fatalf to return, Open would try the same flush for ever.
//
// Once attached, a failure poisons the log (L4) before Pebble hears of it. There is one place where Pebble must not hear of it
// at all: when Apply has to change to a new WAL, it panics with a mutex unlocked that is unlocked again on the way up, and
// nothing recovers from that. So the failure of a WAL is held back until no Apply is under way; if it is Apply itself that
// waits for the answer, it waits for good, and Run leaves it behind.
type storeGuard struct {
	logger *slog.Logger
	fs     vfs.FS        // of the store, whose torn tails are spoken of; nil: they are not
	broken chan struct{} // closed by the first Fatalf
	done   chan struct{} // closed before the store is closed
	once   sync.Once     // of done
	halted atomic.Bool

	applying sync.Mutex // held during Apply

	mu        sync.Mutex
	err       error
	poison    func(error)
	lastError time.Time // when backgroundError last said something
}

// backgroundErrorEvery bounds how often one lasting fault is logged.
const backgroundErrorEvery = time.Second

func newStoreGuard(logger *slog.Logger) *storeGuard {
	return &storeGuard{logger: logger, broken: make(chan struct{}), done: make(chan struct{})}
}

func (g *storeGuard) Infof(format string, args ...any) {
	if !g.tornTail(args) && g.logger.Enabled(context.Background(), slog.LevelDebug) {
		g.logger.Debug(fmt.Sprintf(format, args...))
	}
}

// walTrailer is the most that a WAL which was closed in order has behind its last record.
const walTrailer = 32

// tornTail says how much of a WAL was ignored, if what Pebble says is where the replay of one has ended, and that is not at its end. Pebble
// says the same in the same words of every WAL, and of a whole one it reads like damage.
func (g *storeGuard) tornTail(args []any) bool {
	for _, arg := range args {
		at, ok := arg.(wal.Offset)
		if !ok || g.fs == nil {
			continue
		}
		info, err := g.fs.Stat(at.PhysicalFile)
		if err != nil {
			return false // it is gone; whoever needs it will say
		}
		if left := info.Size() - at.Physical; left > walTrailer {
			g.logger.Info("The end of a WAL holds no whole record, as after a crash, and was ignored; nothing acknowledged was in it",
				"file", at.PhysicalFile, "bytes", left)
			return true
		}
	}
	return false
}

func (g *storeGuard) Errorf(format string, args ...any) {
	g.logger.Error(fmt.Sprintf(format, args...))
}

func (g *storeGuard) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if plantedFatalReturns {
		return
	}
	g.mu.Lock()
	if g.err == nil {
		g.err = err
		close(g.broken)
	}
	poison := g.poison
	g.mu.Unlock()
	if poison == nil {
		select {}
	}
	poison(err)
}

// ended returns why nothing is written to the store any more, or nil. Pebble itself would go on: a flush whose MANIFEST could not
// be synced is tried again, and then it stands in the MANIFEST twice, or half, and no start can read the store.
func (g *storeGuard) ended() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.poison == nil {
		return nil
	}
	return g.err
}

// finish lets go of what waits for the end of a store that has failed. It comes before the store is closed.
func (g *storeGuard) finish() { g.once.Do(func() { close(g.done) }) }

// walFailed takes the error of a WAL, nil included, and returns it.
func (g *storeGuard) walFailed(err error) error {
	if err == nil || plantedFatalReturns {
		return err
	}
	g.mu.Lock()
	poison := g.poison
	if poison != nil && g.err == nil {
		g.err = err
	}
	g.mu.Unlock()
	if poison != nil {
		poison(err)
		g.applying.Lock()
		defer g.applying.Unlock()
	}
	return err
}

// halt is Fatalf for a goroutine of Pebble that must never go on.
func (g *storeGuard) halt(err error) {
	g.halted.Store(true)
	g.Fatalf("%w", err)
	select {}
}

// backgroundError takes what a flush or a Pebble compaction could not do. Pebble tries it again at once and for ever, also
// when Open waits for it. Once the log is open that loses nothing: the WAL is kept, and appends wait when too much piles up.
func (g *storeGuard) backgroundError(err error) {
	g.mu.Lock()
	opening := g.poison == nil
	now := time.Now()
	quiet := now.Sub(g.lastError) < backgroundErrorEvery
	if !quiet {
		g.lastError = now
	}
	g.mu.Unlock()
	if opening {
		g.Fatalf("%w", err)
	}
	if !quiet {
		g.Errorf("the log's store cannot flush or compact, and tries again: %v", err)
	}
}

// errStuck: the store failed while it was opened, and goroutines of Pebble hold it, stopped, until the process ends.
var errStuck = errors.New("store failed")

func (g *storeGuard) stuck() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errStuck, g.err)
}

// run runs f unless Fatalf is called, in which case it does not wait for it. It makes an error of the panic by which Pebble
// reports that a directory cannot be synced.
func (g *storeGuard) run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("pebble: %v", r)
			}
		}()
		done <- f()
	}()
	select {
	case <-g.broken:
		return g.stuck()
	case err := <-done:
		return errors.Join(g.stuck(), err)
	}
}

// attach sends failures to poison from now on. It fails if there was one before.
func (g *storeGuard) attach(poison func(error)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return fmt.Errorf("%w: %w", errStuck, g.err)
	}
	g.poison = poison
	return nil
}
