// Package logtest has what the tests of several packages need of a disk in memory. Nothing but tests imports it.
package logtest

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SerialLocks returns fs for whoever takes crash images of it with mu held. While a vfs.MemFS locks, links or reuses a file, it read-locks a
// mutex of its own twice, and would wait for ever for an image that was begun in between: these operations are done with mu held too.
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

// Link implements vfs.FS.
func (f serialLocks) Link(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.Link(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (f serialLocks) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.ReuseForWrite(oldname, newname, category)
}
