package log

import (
	"path"
	"runtime"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// storeFS is the file system of the store. It tells the guard of every failure of a WAL or of an fsync of the directory
// before Pebble hears of it, so that the poison stands first (L4); and it changes one order.
//
// A marker is the file whose name says which MANIFEST is in force. Pebble makes the MANIFEST and the marker and syncs the
// directory once, so that it relies on the file system to keep their order in a crash in between. Journals do; nothing
// promises it, and a marker without its file makes the store unreadable. So the directory is synced before a marker is made.
//
// What Pebble writes elsewhere, for a checkpoint, says nothing about the store.
type storeFS struct {
	vfs.FS
	guard *storeGuard
	root  string // of the store
}

// elsewhere says whether a file lies outside the store's directory.
func (fs storeFS) elsewhere(name string) bool { return fs.PathDir(name) != fs.root && name != fs.root }

// Create implements vfs.FS.
func (fs storeFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.elsewhere(name) {
		return fs.FS.Create(name, category)
	}
	if err := fs.guard.ended(); err != nil {
		if path.Ext(name) == ".sst" {
			<-fs.guard.done // else Pebble would try again without a pause
		}
		return nil, err
	}
	if strings.HasPrefix(fs.PathBase(name), "marker.") {
		if err := syncDir(fs.FS, fs.PathDir(name)); err != nil {
			return nil, err
		}
	}
	f, err := fs.FS.Create(name, category)
	if err == nil && strings.HasPrefix(fs.PathBase(name), "MANIFEST-") {
		return manifestFile{File: f, guard: fs.guard}, nil
	}
	return fs.wal(name, f, err)
}

// Remove implements vfs.FS. A store that has failed keeps all its files.
func (fs storeFS) Remove(name string) error {
	if err := fs.guard.ended(); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

// ReuseForWrite implements vfs.FS.
func (fs storeFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, category)
	return fs.wal(newname, f, err)
}

func (fs storeFS) wal(name string, f vfs.File, err error) (vfs.File, error) {
	switch {
	case path.Ext(name) != ".log":
		return f, err
	case err != nil:
		return nil, fs.guard.walFailed(err)
	default:
		return walFile{File: f, guard: fs.guard}, nil
	}
}

// OpenDir implements vfs.FS.
func (fs storeFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil || fs.elsewhere(name) {
		return f, err
	}
	return storeDirectory{File: f, guard: fs.guard}, nil
}

// Unwrap implements vfs.FS.
func (fs storeFS) Unwrap() vfs.FS { return fs.FS }

type storeDirectory struct {
	vfs.File
	guard *storeGuard
}

// Sync implements vfs.File. When Pebble moves a marker it answers an error with a panic, in a goroutine of its own; the
// goroutine is stopped instead.
func (d storeDirectory) Sync() error {
	err := d.File.Sync()
	if err != nil && movesMarker() {
		d.guard.halt(err)
	}
	return d.guard.walFailed(err)
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

// manifestFile is a MANIFEST that is written. Once the store has failed nothing is added to it.
type manifestFile struct {
	vfs.File
	guard *storeGuard
}

// Write implements vfs.File.
func (f manifestFile) Write(p []byte) (int, error) {
	if err := f.guard.ended(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// Sync implements vfs.File.
func (f manifestFile) Sync() error {
	if err := f.guard.ended(); err != nil {
		return err
	}
	return f.File.Sync()
}

// walFile is a WAL that is written.
type walFile struct {
	vfs.File
	guard *storeGuard
}

// Write implements vfs.File.
func (f walFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.guard.walFailed(err)
}

// Sync implements vfs.File.
func (f walFile) Sync() error { return f.guard.walFailed(f.File.Sync()) }

// SyncData implements vfs.File.
func (f walFile) SyncData() error { return f.guard.walFailed(f.File.SyncData()) }

// SyncTo implements vfs.File.
func (f walFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.guard.walFailed(err)
}

// Close implements vfs.File.
func (f walFile) Close() error { return f.guard.walFailed(f.File.Close()) }
