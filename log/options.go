package log

import (
	"bufio"
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Defaults and bounds.
const (
	DefaultMaxEventBytes   = 64 << 20 // encoded columns of one event
	DefaultTailBytes       = 64 << 20 // decoded recent events, shared by all subscribers
	DefaultDictionaryCache = 1 << 20  // aliases held in memory, about 100 bytes each; where more are in use, up to maxDictionaryCache
	DefaultCacheBytes      = 64 << 20 // the store's block cache

	maxDictionaryCache = 1 << 24

	queueLength    = 256      // appends that wait for the committer; more block
	maxBatchEvents = 1024     // of one Pebble batch
	maxBatchBytes  = 16 << 20 // likewise; one larger append makes a batch of its own
	maxUnsynced    = 4        // batches between the committer and the syncer
	maxTailEvents  = 1 << 14  // of the shared tail: of small events, too, it is to hold seconds and not a hoard
	noteInterval   = time.Second
	poisonGrace    = time.Second // for which a poisoned Run waits for what is in the store's hands

	memTableBytes = 32 << 20
	maxOpenFiles  = 512
	// Every start turns the WAL of the one before into a table, however little is in it. From so many on they are merged.
	maxRestartTables = 8
)

// Options of Open. The zero value of each field means its default.
type Options struct {
	FS              vfs.FS               // default vfs.Default
	Now             func() time.Time     // wall clock; default time.Now
	Monotonic       func() time.Duration // since any fixed point, never going back; default from time.Since
	Logger          *slog.Logger         // default: discard
	OnPoison        func(error)          // called once, from any goroutine, when the log is poisoned; must not block
	Room            func(Body) error     // why the disk has no room for an event now: it is refused, and the log goes on; default: there is room
	Entropy         io.Reader            // for ULIDs and the key of the series hash; default crypto/rand
	MaxEventBytes   int                  // default DefaultMaxEventBytes
	TailBytes       int64                // default DefaultTailBytes
	DictionaryCache int                  // default DefaultDictionaryCache
	CacheBytes      int64                // default DefaultCacheBytes
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Monotonic == nil {
		start := time.Now()
		o.Monotonic = func() time.Duration { return time.Since(start) }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnPoison == nil {
		o.OnPoison = func(error) {}
	}
	if o.Room == nil {
		o.Room = func(Body) error { return nil }
	}
	if o.Entropy == nil {
		o.Entropy = bufio.NewReader(rand.Reader)
	}
	if o.MaxEventBytes <= 0 {
		o.MaxEventBytes = DefaultMaxEventBytes
	}
	if o.TailBytes <= 0 {
		o.TailBytes = DefaultTailBytes
	}
	if o.DictionaryCache <= 0 {
		o.DictionaryCache = DefaultDictionaryCache
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	return o
}
