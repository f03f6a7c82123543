// Package logtest has what the tests of several packages need of a disk in memory. Nothing but tests imports it.
package logtest

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SerialLocks returns fs with its file locks taken under mu, the mutex of whatever takes crash images of it. A vfs.MemFS reads-locks a
// mutex of its own twice while it locks a file, and would wait for ever for an image that was begun in between.
func SerialLocks(fs vfs.FS, mu sync.Locker) vfs.FS { return serialLocks{fs, mu} }

type serialLocks struct {
	vfs.FS
	mu sync.Locker
}

// Lock implements vfs.FS.
func (f serialLocks) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.Lock(name)
}
