package bucket

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A base is a sealed copy of the views, from which the log goes on where it was truncated:
//
//	base/<sequence>/BASE      text, written last: format, sequence, floor, identity of the log, and name, size and crc32c of
//	                          every file of the copy; with a crc32c of its own
//	base/<sequence>/views/    a store like any other
//	base/sealing/             one that is being made; holds nothing that counts
//
// A base stands once its directory has its name. Everything in it is synced before, and the directory after. Its tables are hard
// links to those of the store where the file system has them; neither side ever changes a table.
const (
	// sealFlushTimeout bounds what sealing waits for the disk.
	sealFlushTimeout = 30 * time.Second

	baseFile      = "BASE"
	baseViews     = "views"
	baseSealing   = "sealing"
	baseMagic     = "tidemark base, format "
	baseFormat    = 1
	maxBaseBytes  = 64 << 20   // of a BASE file
	restoreSuffix = ".restore" // of the directory in which views are put together
	copyBuffer    = 1 << 20
)

// ErrNoBase says that there is no base.
var ErrNoBase = errors.New("bucket: there is no base")

// BaseError says what is wrong with a base. It is never repaired and never passed over: below the log's floor it is the only copy.
type BaseError struct {
	Path   string // of the file or directory
	Reason string
}

func (e *BaseError) Error() string { return fmt.Sprintf("base is damaged: %s: %s", e.Path, e.Reason) }

// Base describes a base.
type Base struct {
	Path     string
	Seq      uint64 // every shard reflects the events up to here; some may reflect more
	Floor    uint64 // of the log when it was sealed
	Identity []byte // of the log
	Files    []BaseFile
}

// BaseFile is one file of the copy.
type BaseFile struct {
	Name string
	Size int64 // bytes
	Sum  uint32
}

// Bytes returns the size of the copy.
func (b *Base) Bytes() int64 {
	var n int64
	for _, f := range b.Files {
		n += f.Size
	}
	return n
}

func (b *Base) encode() []byte {
	var s []byte
	s = fmt.Appendf(s, "%s%d\nseq %d\nfloor %d\nlog %x\n", baseMagic, baseFormat, b.Seq, b.Floor, b.Identity)
	for _, f := range b.Files {
		s = fmt.Appendf(s, "file %d %08x %s\n", f.Size, f.Sum, f.Name)
	}
	return fmt.Appendf(s, "crc32c %08x\n", crc32.Checksum(s, castagnoli))
}

func decodeBase(b []byte) (Base, error) {
	var base Base
	lines := strings.Split(string(b), "\n")
	var format int
	if n, err := fmt.Sscanf(lines[0], baseMagic+"%d", &format); n != 1 || err != nil {
		return base, errors.New("not the description of a base")
	}
	if format != baseFormat {
		return base, fmt.Errorf("format %d, not %d", format, baseFormat)
	}
	for _, line := range lines[1:] {
		word, rest, _ := strings.Cut(line, " ")
		var err error
		switch word {
		case "seq":
			base.Seq, err = strconv.ParseUint(rest, 10, 64)
		case "floor":
			base.Floor, err = strconv.ParseUint(rest, 10, 64)
		case "log":
			base.Identity, err = hex.DecodeString(rest)
		case "file":
			var f BaseFile
			_, err = fmt.Sscanf(rest, "%d %08x %s", &f.Size, &f.Sum, &f.Name)
			if err == nil && (f.Size < 0 || f.Name != baseName(f.Name)) {
				err = errors.New("not a file name")
			}
			base.Files = append(base.Files, f)
		}
		if err != nil {
			return base, fmt.Errorf("line %q: %w", line, err)
		}
	}
	// Whatever was misread or left over does not come out again as it was.
	if !bytes.Equal(base.encode(), b) {
		return base, errors.New("its crc32c does not match")
	}
	return base, nil
}

// baseName returns the last element of a path.
func baseName(name string) string {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return ""
	}
	return name
}

// Seal makes everything that is committed durable and seals it as a base in dir, in the place of any that stands there. floor is
// that of the log. The base reflects the checkpoints that Durable has told of; the log may be truncated through its sequence.
func (s *Store) Seal(dir string, floor uint64) (Base, error) {
	b, err := s.seal(dir, floor)
	if err != nil {
		return Base{}, fmt.Errorf("bucket: seal base: %w", err)
	}
	return b, nil
}

func (s *Store) seal(dir string, floor uint64) (Base, error) {
	s.sealing.Lock()
	defer s.sealing.Unlock()
	bound, cancel := context.WithTimeout(context.Background(), sealFlushTimeout)
	defer cancel()
	if err := s.Flush(bound); err != nil {
		return Base{}, err
	}
	s.pins.mu.Lock()
	b := Base{Seq: s.pins.durable, Floor: floor, Identity: s.identity}
	s.pins.mu.Unlock()
	b.Path = s.fs.PathJoin(dir, strconv.FormatUint(b.Seq, 10))
	if standing, err := readBase(s.fs, b.Path); err == nil && bytes.Equal(standing.Identity, b.Identity) {
		return standing, settleBase(s.fs, dir, b.Seq) // it holds all that this one would
	}
	work := s.fs.PathJoin(dir, baseSealing)
	if err := s.fs.RemoveAll(work); err != nil {
		return Base{}, err
	}
	if err := s.fs.MkdirAll(work, 0o755); err != nil {
		return Base{}, err
	}
	views := s.fs.PathJoin(work, baseViews)
	if err := s.db.Checkpoint(views); err != nil {
		return Base{}, err
	}
	if err := s.health.readable(); err != nil {
		return Base{}, err
	}
	if err := b.describe(s.fs, views); err != nil {
		return Base{}, err
	}
	if err := writeSynced(s.fs, s.fs.PathJoin(work, baseFile), bytes.NewReader(b.encode())); err != nil {
		return Base{}, err
	}
	if err := errors.Join(syncDirectory(s.fs, views), syncDirectory(s.fs, work)); err != nil {
		return Base{}, err
	}
	if err := s.fs.RemoveAll(b.Path); err != nil { // a damaged one of the same sequence
		return Base{}, err
	}
	if err := s.fs.Rename(work, b.Path); err != nil {
		return Base{}, err
	}
	return b, settleBase(s.fs, dir, b.Seq)
}

// settleBase makes the name of a base durable and then removes the bases before it: one is kept.
func settleBase(fs vfs.FS, dir string, seq uint64) error {
	if err := errors.Join(syncDirectory(fs, dir), syncDirectory(fs, fs.PathDir(dir))); err != nil {
		return err
	}
	seqs, err := listBases(fs, dir)
	if err != nil {
		return err
	}
	for _, old := range seqs {
		if old < seq {
			if err := fs.RemoveAll(fs.PathJoin(dir, strconv.FormatUint(old, 10))); err != nil {
				return err
			}
		}
	}
	return nil
}

// describe lists the files of the copy, with their sums. They are read in full: what is sealed has been seen.
func (b *Base) describe(fs vfs.FS, views string) error {
	names, err := fs.List(views)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		f := BaseFile{Name: name}
		if f.Size, f.Sum, err = sumFile(fs, fs.PathJoin(views, name), io.Discard); err != nil {
			return err
		}
		b.Files = append(b.Files, f)
	}
	return nil
}

// NewestBase describes the newest base in dir. It fails with ErrNoBase, or with a *BaseError if that base cannot be read.
func NewestBase(dir string, opts Options) (Base, error) {
	fs := opts.fs()
	seqs, err := listBases(fs, dir)
	if err != nil {
		return Base{}, err
	}
	if len(seqs) == 0 {
		return Base{}, fmt.Errorf("%w in %s", ErrNoBase, dir)
	}
	return readBase(fs, fs.PathJoin(dir, strconv.FormatUint(slices.Max(seqs), 10)))
}

func listBases(fs vfs.FS, dir string) ([]uint64, error) {
	names, err := fs.List(dir)
	if oserror.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bucket: list bases: %w", err)
	}
	var seqs []uint64
	for _, name := range names {
		if seq, err := strconv.ParseUint(name, 10, 64); err == nil && strconv.FormatUint(seq, 10) == name {
			seqs = append(seqs, seq)
		}
	}
	return seqs, nil
}

func readBase(fs vfs.FS, path string) (Base, error) {
	name := fs.PathJoin(path, baseFile)
	bad := func(err error) (Base, error) { return Base{}, &BaseError{Path: name, Reason: err.Error()} }
	f, err := fs.Open(name)
	if err != nil {
		return bad(err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBaseBytes))
	if err = errors.Join(err, f.Close()); err != nil {
		return bad(err)
	}
	b, err := decodeBase(text)
	if err == nil && strconv.FormatUint(b.Seq, 10) != fs.PathBase(path) {
		err = fmt.Errorf("it is of sequence %d", b.Seq)
	}
	if err != nil {
		return bad(err)
	}
	b.Path = path
	return b, nil
}

// BaseOf describes the newest base in dir from which the log with this identity goes on: ErrOtherLog if the newest is of another
// one, ErrNoBase if there is none or it does not reach the log's floor, a *BaseError if its description is damaged.
func BaseOf(dir string, identity []byte, floor uint64, opts Options) (Base, error) {
	b, err := NewestBase(dir, opts)
	switch {
	case err != nil:
		return Base{}, err
	case !bytes.Equal(b.Identity, identity):
		return Base{}, fmt.Errorf("base %s: %w", b.Path, ErrOtherLog)
	case b.Seq+1 < floor:
		return Base{}, fmt.Errorf("%w that reaches the log, which begins at %d: %s ends at %d", ErrNoBase, floor, b.Path, b.Seq)
	}
	return b, nil
}

// OpenBase opens the views in a base, of which it checks every byte, and changes nothing: a *BaseError if one is not what was
// sealed.
func OpenBase(b Base, opts Options) (*Store, error) {
	fs := opts.fs()
	for _, f := range b.Files {
		name := fs.PathJoin(b.Path, baseViews, f.Name)
		size, sum, err := sumFile(fs, name, io.Discard)
		if err := b.judge(f, name, size, sum, err); err != nil {
			return nil, fmt.Errorf("bucket: open base: %w", err)
		}
	}
	opts.FS = lockless{fs}
	return OpenReadOnly(fs.PathJoin(b.Path, baseViews), b.Identity, opts)
}

// lockless leaves no lock file behind: nothing ever writes to a base, and whoever looks at one holds the lock of the log.
type lockless struct{ vfs.FS }

func (lockless) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// RestoreBase puts the newest base in dir in the place of the views in viewsDir, whatever is there. identity and floor are those of
// the log: ErrOtherLog if the base is of another one, ErrNoBase if there is none that reaches the floor, a *BaseError if a byte
// of it is not what was sealed. Then nothing has changed. A crash leaves the old views, none, or those of the base.
func RestoreBase(dir, viewsDir string, identity []byte, floor uint64, opts Options) (Base, error) {
	fs := opts.fs()
	b, err := BaseOf(dir, identity, floor, opts)
	if err != nil {
		return Base{}, err
	}
	work := viewsDir + restoreSuffix
	if err := errors.Join(fs.RemoveAll(work), fs.MkdirAll(work, 0o755)); err != nil {
		return Base{}, fmt.Errorf("bucket: restore base: %w", err)
	}
	if err := b.copyTo(fs, work); err != nil {
		return Base{}, errors.Join(err, fs.RemoveAll(work))
	}
	err = fs.RemoveAll(viewsDir)
	if err == nil {
		err = fs.Rename(work, viewsDir)
	}
	if err == nil {
		err = syncDirectory(fs, fs.PathDir(viewsDir))
	}
	if err != nil {
		return Base{}, fmt.Errorf("bucket: restore base: %w", err)
	}
	return b, nil
}

// copyTo copies the files of the base, and checks every byte of them.
func (b *Base) copyTo(fs vfs.FS, work string) error {
	views := fs.PathJoin(b.Path, baseViews)
	names, err := fs.List(views)
	if err != nil {
		return &BaseError{Path: views, Reason: err.Error()}
	}
	if len(names) != len(b.Files) {
		return &BaseError{Path: views, Reason: fmt.Sprintf("%d files, not %d", len(names), len(b.Files))}
	}
	for _, f := range b.Files {
		name := fs.PathJoin(views, f.Name)
		size, sum, err := copyFile(fs, name, fs.PathJoin(work, f.Name))
		if err := b.judge(f, name, size, sum, err); err != nil {
			return fmt.Errorf("bucket: restore base: %w", err)
		}
	}
	if err := syncDirectory(fs, work); err != nil {
		return fmt.Errorf("bucket: restore base: %w", err)
	}
	return nil
}

// judge compares a file of the base with what was sealed.
func (b *Base) judge(f BaseFile, name string, size int64, sum uint32, err error) error {
	switch {
	case oserror.IsNotExist(err):
		return &BaseError{Path: name, Reason: "missing"}
	case err != nil:
		return fmt.Errorf("read %s: %w", name, err)
	case size != f.Size:
		return &BaseError{Path: name, Reason: fmt.Sprintf("%d bytes, not %d", size, f.Size)}
	case sum != f.Sum:
		return &BaseError{Path: name, Reason: fmt.Sprintf("crc32c is %08x, not %08x", sum, f.Sum)}
	}
	return nil
}

// sumFile copies a file to w and returns its size and crc32c.
func sumFile(fs vfs.FS, name string, w io.Writer) (int64, uint32, error) {
	f, err := fs.Open(name, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, err
	}
	sum := crc32.New(castagnoli)
	n, err := io.CopyBuffer(io.MultiWriter(sum, w), onlyReader{f}, make([]byte, copyBuffer))
	return n, sum.Sum32(), errors.Join(err, f.Close())
}

// onlyReader hides other methods of a file, by which io.CopyBuffer would leave its buffer unused.
type onlyReader struct{ io.Reader }

func copyFile(fs vfs.FS, from, to string) (size int64, sum uint32, err error) {
	out, err := fs.Create(to, vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0, 0, err
	}
	size, sum, err = sumFile(fs, from, out)
	if err == nil {
		err = out.Sync()
	}
	return size, sum, errors.Join(err, out.Close())
}

func writeSynced(fs vfs.FS, name string, content io.Reader) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDirectory(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
