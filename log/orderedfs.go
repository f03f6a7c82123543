package log

import (
	"runtime"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// orderedFS is the file system of the store, with two answers to how Pebble moves a marker, the file whose name says which
// MANIFEST is in force.
//
// Pebble makes the MANIFEST and the marker and syncs the directory once, so that it relies on the file system to keep
// their order in a crash in between. Journals do; nothing promises it, and a marker without its file makes the store
// unreadable. So the directory is synced before a marker is made.
//
// When that last sync of the directory fails, Pebble panics, in a goroutine of its own. Here the failure stops that
// goroutine where it stands and is handed to fail, which must not return.
type orderedFS struct {
	vfs.FS
	fail func(error)
}

// Create implements vfs.FS.
func (fs orderedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(fs.PathBase(name), "marker.") {
		if err := syncDir(fs.FS, fs.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return fs.FS.Create(name, category)
}

// OpenDir implements vfs.FS.
func (fs orderedFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return orderedDir{File: f, fail: fs.fail}, nil
}

// Unwrap implements vfs.FS.
func (fs orderedFS) Unwrap() vfs.FS { return fs.FS }

type orderedDir struct {
	vfs.File
	fail func(error)
}

// Sync implements vfs.File.
func (d orderedDir) Sync() error {
	err := d.File.Sync()
	if err != nil && movesMarker() {
		d.fail(err)
	}
	return err
}

// movesMarker reports whether the caller is Pebble's marker, for which an error is a panic. It is asked only after an error.
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
