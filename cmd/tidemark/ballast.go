package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// ballastName is a file in the storage directory that holds nothing but space. A start that finds none lets it go, so that what has
// to be written before anything can be given back can be; the service then answers queries and refuses writes until there is
// room. It is made again as soon as the disk has room for it above the reserve, without anybody's help.
const ballastName = "BALLAST"

// ballast keeps the file.
type ballast struct {
	path   string
	size   int64 // bytes; 0: none is kept
	logger *slog.Logger
}

func newBallast(dir string, size int64, logger *slog.Logger) *ballast {
	return &ballast{path: filepath.Join(dir, ballastName), size: size, logger: logger}
}

// release removes the file if it is there and says whether it was.
func (b *ballast) release() (bool, error) {
	err := os.Remove(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		b.logger.Warn("The disk is full; the ballast was let go", "path", b.path)
	}
	return err == nil, err
}

// keep makes the file if it is not there as a whole and the disk has room for it: free bytes, of which reserve are not to be touched.
func (b *ballast) keep(free, reserve uint64) error {
	st, err := os.Stat(b.path)
	switch {
	case err == nil && st.Size() == b.size:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case b.size == 0:
		return os.RemoveAll(b.path)
	case free < reserve+2*uint64(b.size):
		return nil
	}
	return errors.Join(b.make(), syncPath(filepath.Dir(b.path)))
}

func (b *ballast) make() (err error) {
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(fmt.Errorf("ballast: %w", err), os.Remove(b.path))
		}
	}()
	// Written and not only reserved: not every file system can reserve, and a file with holes holds nothing.
	zeros := make([]byte, 1<<20)
	for left := b.size; left > 0; {
		n := min(left, int64(len(zeros)))
		if _, err := f.Write(zeros[:n]); err != nil {
			return err
		}
		left -= n
	}
	return f.Sync()
}

func syncPath(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
