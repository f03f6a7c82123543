package bucket

// Views that are made anew beside those in force.

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	rebuildSuffix = ".rebuild"
	oldSuffix     = ".old"

	workFile     = "WORK"
	workTemp     = "WORK.tmp"
	workMagic    = "tidemark rebuild of views"
	maxWorkBytes = 4096
)

// Work says what a rebuild folds. Two with the same Work fold the same events in the same way.
type Work struct {
	Identity []byte   // of the log
	Through  uint64   // the last event
	Hash     [16]byte // of that event; as each event names its predecessor's, it stands for all of them
	Program  string   // the version that folds; another one may fold otherwise
	Base     uint64   // sequence of the base that it starts from; 0: from the first event
}

func (w Work) encode() []byte {
	s := fmt.Sprintf("%s, format %d\nlog %x\nthrough %d\nhash %x\nprogram %q\nbase %d\n",
		workMagic, storeVersion, w.Identity, w.Through, w.Hash, w.Program, w.Base)
	return fmt.Appendf(nil, "%scrc32c %08x\n", s, crc32.Checksum([]byte(s), castagnoli))
}

// RebuildDir is where the rebuild of the views in dir folds.
func RebuildDir(dir string) string { return dir + rebuildSuffix }

func oldDir(dir string) string { return dir + oldSuffix }

// BeginRebuild makes room for the rebuild of the views in dir. Where an earlier one with the same work was interrupted, it
// keeps what that one has folded, and resumes is true; anything else is removed (P6). Settle must come first. With a base it starts
// from a copy of it, every byte of which is checked: a *BaseError if one is not what was sealed.
func BeginRebuild(dir string, w Work, base *Base, opts Options) (resumes bool, err error) {
	if base != nil {
		w.Base = base.Seq
	}
	fs := opts.fs()
	path := RebuildDir(dir)
	note := w.encode()
	if found, err := readWork(fs, path); err == nil && string(found) == string(note) {
		return true, nil
	}
	if err := DropRebuild(dir, opts); err != nil {
		return false, err
	}
	if err := errors.Join(fs.MkdirAll(path, 0o755), syncDir(fs, fs.PathDir(path))); err != nil {
		return false, fmt.Errorf("bucket: make %s: %w", path, err)
	}
	if base != nil {
		if err := base.copyTo(fs, path); err != nil {
			return false, errors.Join(err, fs.RemoveAll(path))
		}
	}
	// The note comes last: without it, nothing that is there is gone on with.
	if err := writeWork(fs, path, note); err != nil {
		return false, fmt.Errorf("bucket: note of %s: %w", path, err)
	}
	return false, nil
}

// DropRebuild removes what a rebuild has folded, if anything.
func DropRebuild(dir string, opts Options) error {
	fs := opts.fs()
	path := RebuildDir(dir)
	var err error
	if note := fs.PathJoin(path, workFile); exists(fs, note) {
		// The note goes first: what is half removed must not be gone on with.
		err = errors.Join(fs.Remove(note), syncDir(fs, path))
	}
	if err == nil {
		err = fs.RemoveAll(path)
	}
	if err != nil {
		return fmt.Errorf("bucket: remove %s: %w", path, err)
	}
	return nil
}

// Swap puts what the rebuild has folded in the place of the views in dir. Both must be closed, and the rebuild flushed.
//
// The order is what makes it safe. While dir exists it is whole, and it is what counts: at first the old, then the new views.
// It is missing only between two renames, and then dir.old says that dir.rebuild was complete.
func Swap(dir string, opts Options) error {
	fs := opts.fs()
	parent := fs.PathDir(dir)
	if err := fs.RemoveAll(oldDir(dir)); err != nil {
		return fmt.Errorf("bucket: remove %s: %w", oldDir(dir), err)
	}
	if err := syncDir(fs, parent); err != nil {
		return fmt.Errorf("bucket: sync %s: %w", parent, err)
	}
	if exists(fs, dir) {
		if err := errors.Join(fs.Rename(dir, oldDir(dir)), syncDir(fs, parent)); err != nil {
			return fmt.Errorf("bucket: move %s aside: %w", dir, err)
		}
	}
	return putInPlace(fs, dir)
}

func putInPlace(fs vfs.FS, dir string) error {
	if err := errors.Join(fs.Rename(RebuildDir(dir), dir), syncDir(fs, fs.PathDir(dir))); err != nil {
		return fmt.Errorf("bucket: put %s in place: %w", RebuildDir(dir), err)
	}
	return tidy(fs, dir)
}

// tidy removes what Swap leaves behind.
func tidy(fs vfs.FS, dir string) error {
	if err := fs.Remove(fs.PathJoin(dir, workFile)); err != nil && !oserror.IsNotExist(err) {
		return fmt.Errorf("bucket: remove the note of %s: %w", dir, err)
	}
	if err := fs.RemoveAll(oldDir(dir)); err != nil {
		return fmt.Errorf("bucket: remove %s: %w", oldDir(dir), err)
	}
	return nil
}

// Settle ends a Swap that a crash has interrupted; it must come before anything else that is done with the views in dir. It
// does nothing where there was none.
func Settle(dir string, opts Options) error {
	fs := opts.fs()
	if exists(fs, dir) {
		if !exists(fs, oldDir(dir)) {
			return nil
		}
		// What is removed next was replaced for good only once its successor's name is on disk.
		if err := syncDir(fs, fs.PathDir(dir)); err != nil {
			return fmt.Errorf("bucket: sync the parent of %s: %w", dir, err)
		}
		return tidy(fs, dir)
	}
	switch InForce(dir, opts) {
	case RebuildDir(dir):
		return putInPlace(fs, dir)
	case oldDir(dir):
		if err := errors.Join(fs.Rename(oldDir(dir), dir), syncDir(fs, fs.PathDir(dir))); err != nil {
			return fmt.Errorf("bucket: put %s back: %w", oldDir(dir), err)
		}
	}
	return nil
}

// InForce returns the directory that Settle would leave as the views in dir, and changes nothing; "" if there are none.
func InForce(dir string, opts Options) string {
	fs := opts.fs()
	switch {
	case exists(fs, dir):
		return dir
	case !exists(fs, oldDir(dir)):
		return ""
	case exists(fs, RebuildDir(dir)):
		return RebuildDir(dir)
	}
	return oldDir(dir)
}

func readWork(fs vfs.FS, dir string) ([]byte, error) {
	f, err := fs.Open(fs.PathJoin(dir, workFile))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxWorkBytes))
	return b, errors.Join(err, f.Close())
}

// writeWork makes the note appear as a whole.
func writeWork(fs vfs.FS, dir string, note []byte) error {
	temp := fs.PathJoin(dir, workTemp)
	f, err := fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(note)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return errors.Join(fs.Rename(temp, fs.PathJoin(dir, workFile)), syncDir(fs, dir))
}

// exists reports whether something has the name; when in doubt, yes, so that the next step meets the error.
func exists(fs vfs.FS, path string) bool {
	_, err := fs.Stat(path)
	return !oserror.IsNotExist(err)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (o Options) fs() vfs.FS {
	if o.FS == nil {
		return vfs.Default
	}
	return o.FS
}
