package main

// What the campaign does to the disk: crashes at a file operation, operations that fail, damage to files at rest.

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log/logtest"
)

// opPoint names a file operation of a run: the n-th of its kind on files of one kind.
type opPoint struct {
	file, op string
	n        int
}

func (o opPoint) String() string { return fmt.Sprintf("%s %s #%d", o.file, o.op, o.n) }

// fileKind says what a file of the storage directory is.
func fileKind(name string) string {
	rest := strings.TrimPrefix(name, worldPath+"/")
	part, inside, _ := strings.Cut(rest, "/")
	base := path.Base(name)
	kind := "directory"
	switch {
	case inside == "" && part != rest, rest == name:
	case strings.HasPrefix(base, "marker."):
		kind = "marker"
	case strings.HasPrefix(base, "MANIFEST-"):
		kind = "manifest"
	case strings.HasPrefix(base, "OPTIONS-"):
		kind = "options"
	case path.Ext(base) == ".log":
		kind = "wal"
	case path.Ext(base) == ".sst":
		kind = "table"
	case strings.HasPrefix(base, "HEAD"), base == "BASE", base == "LOCK":
		kind = strings.TrimSuffix(base, ".tmp")
	case inside != "" && path.Ext(base) != "":
		kind = path.Ext(base)
	}
	return part + " " + kind
}

var opNames = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpRemove: "remove", errorfs.OpRemoveAll: "remove-all", errorfs.OpRename: "rename",
	errorfs.OpReuseForWrite: "reuse", errorfs.OpMkdirAll: "mkdir", errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write-at",
	errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "sync-data", errorfs.OpFileSyncTo: "sync-to", errorfs.OpFilePreallocate: "preallocate",
	errorfs.OpFileFlush: "flush", errorfs.OpFileClose: "close", errorfs.OpLock: "lock",
}

func opName(k errorfs.OpKind) string {
	if s, ok := opNames[k]; ok {
		return s
	}
	return fmt.Sprint("op-", int(k))
}

// tap sees every operation that writes, before it happens.
type tap struct {
	mu    sync.Mutex
	count map[opPoint]int
	total int
	look  func(total int, at opPoint, op errorfs.Op) error // under mu
}

func newTap(look func(total int, at opPoint, op errorfs.Op) error) *tap {
	return &tap{count: map[opPoint]int{}, look: look}
}

// over returns a disk whose operations the tap sees.
func (t *tap) over(disk vfs.FS) vfs.FS { return errorfs.Wrap(logtest.SerialLocks(disk, &t.mu), t) }

func (t *tap) String() string { return "tap" }

// MaybeError implements errorfs.Injector.
func (t *tap) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	if op.Kind == errorfs.OpLink {
		return syscall.EXDEV // the disk in memory cannot be copied while it makes a link; so tables are copied
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := opPoint{file: fileKind(op.Path), op: opName(op.Kind)}
	t.count[at]++
	t.total++
	at.n = t.count[at]
	if t.look == nil {
		return nil
	}
	return t.look(t.total, at, op)
}

// faultKind is a way in which operations fail.
type faultKind struct {
	name   string
	sticky bool // it goes on failing
	err    error
	sync   bool // fsyncs only
	short  bool // a write writes half of its bytes before it fails
}

var faultKinds = []faultKind{
	{name: "ENOSPC", sticky: true, err: syscall.ENOSPC},
	{name: "EIO on write", err: syscall.EIO},
	{name: "EIO on fsync", err: syscall.EIO, sync: true},
	{name: "short write", err: syscall.ENOSPC, short: true},
}

// failing is a disk whose k-th operation of a kind fails.
type failing struct {
	vfs.FS
	kind faultKind
	k    int

	mu      sync.Mutex
	seen    int
	hit     opPoint
	cleared bool
}

type diskError struct {
	err error
	at  opPoint
}

func (e *diskError) Error() string { return fmt.Sprintf("%s: %v", e.at, e.err) }
func (e *diskError) Unwrap() error { return e.err }

// fail counts an operation and says whether it fails.
func (f *failing) fail(at opPoint, op errorfs.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	isSync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
	switch {
	case f.cleared, f.kind.sync && !isSync, f.kind.short && op.Kind != errorfs.OpFileWrite:
		return nil
	case op.Kind == errorfs.OpFileClose, op.Kind == errorfs.OpLock:
		return nil
	}
	f.seen++
	if f.seen == f.k || f.kind.sticky && f.seen > f.k {
		if f.hit.n == 0 {
			f.hit = at
		}
		return &diskError{f.kind.err, at}
	}
	return nil
}

func (f *failing) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleared = true
}

func (f *failing) met() (opPoint, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit, f.hit.n > 0
}

// newFailing wraps a disk so that operation k of the kind fails.
func newFailing(disk *vfs.MemFS, kind faultKind, k int) (*failing, vfs.FS) {
	f := &failing{kind: kind, k: k}
	var under vfs.FS = disk
	if kind.short {
		under = shortFS{disk, f}
	}
	return f, errorfs.Wrap(under, newTap(func(_ int, at opPoint, op errorfs.Op) error {
		if kind.short {
			return nil // shortFS does it
		}
		return f.fail(at, op)
	}))
}

// shortFS writes half of what a failing write is given.
type shortFS struct {
	vfs.FS
	f *failing
}

// Create implements vfs.FS.
func (s shortFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := s.FS.Create(name, c)
	return shortFile{file, s.f, name}, err
}

// ReuseForWrite implements vfs.FS.
func (s shortFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := s.FS.ReuseForWrite(old, name, c)
	return shortFile{file, s.f, name}, err
}

// Unwrap implements vfs.FS.
func (s shortFS) Unwrap() vfs.FS { return s.FS }

type shortFile struct {
	vfs.File
	f    *failing
	name string
}

// Write implements vfs.File.
func (s shortFile) Write(p []byte) (int, error) {
	if err := s.f.fail(opPoint{fileKind(s.name), "write", 1}, errorfs.Op{Kind: errorfs.OpFileWrite, Path: s.name}); err != nil {
		n, werr := s.File.Write(p[:len(p)/2])
		return n, errors.Join(err, werr)
	}
	return s.File.Write(p)
}

// copyDisk returns a disk with the same content, all of it synced.
func copyDisk(disk *vfs.MemFS) *vfs.MemFS {
	return disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

// files lists every file below a directory.
func filesBelow(fs vfs.FS, dir string) ([]string, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		full := fs.PathJoin(dir, name)
		info, err := fs.Stat(full)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			out = append(out, full)
			continue
		}
		below, err := filesBelow(fs, full)
		if err != nil {
			return nil, err
		}
		out = append(out, below...)
	}
	return out, nil
}

// damage does one thing to a file at rest and says what.
func damage(disk *vfs.MemFS, rng *rand.Rand) (string, error) {
	files, err := filesBelow(disk, worldPath)
	if err != nil {
		return "", err
	}
	// A kind of file first, so that the many tables do not hide the few notes.
	kinds := map[string][]string{}
	for _, f := range files {
		kinds[fileKind(f)] = append(kinds[fileKind(f)], f)
	}
	names := sortedKeys(kinds)
	kind := names[rng.IntN(len(names))]
	name := kinds[kind][rng.IntN(len(kinds[kind]))]
	content, err := readWhole(disk, name)
	if err != nil {
		return "", err
	}
	what := rng.IntN(8)
	switch {
	case what == 0:
		return "missing " + kind + " " + name, disk.Remove(name)
	case len(content) == 0:
		return "grown " + kind + " " + name, writeWhole(disk, name, []byte{byte(rng.IntN(256))})
	case what == 1:
		n := rng.IntN(len(content))
		return fmt.Sprintf("cut %s %s to %d of %d", kind, name, n, len(content)), writeWhole(disk, name, content[:n])
	case what == 2:
		at := rng.IntN(len(content))
		n := min(len(content)-at, 1+rng.IntN(64))
		clear(content[at : at+n])
		return fmt.Sprintf("zeroed %s %s at %d of %d, %d bytes", kind, name, at, len(content), n), writeWhole(disk, name, content)
	default:
		at := rng.IntN(len(content))
		content[at] ^= 1 << rng.IntN(8)
		return fmt.Sprintf("flipped %s %s at %d of %d", kind, name, at, len(content)), writeWhole(disk, name, content)
	}
}

func readWhole(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func writeWhole(fs vfs.FS, name string, b []byte) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
