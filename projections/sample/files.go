package sample

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"tidemark/log"
)

// The files beside the TSDB.
const (
	checkpointFile = "CHECKPOINT"
	appliedFile    = "APPLIED"
	metadataFile   = "METADATA"
	tsdbDir        = "tsdb"

	fileVersion = 1
	maxFile     = 256 << 20 // bytes of any of them
)

// ErrOtherLog: the copy was made of another log.
var ErrOtherLog = errors.New("sample: the copy was made of another log")

// errDamaged: a file of the copy cannot be read as what it should be. The copy is then folded anew.
var errDamaged = errors.New("sample: damaged")

// checkpoint says what is durable.
type checkpoint struct {
	identity []byte
	seq      log.Seq
	expired  int64 // ms; samples at or before it may have been deleted, or never were in the copy
	refused  int64 // ms; the newest sample that was refused
}

// applied says how far events were applied.
type applied struct {
	closed  bool // in order: all of it is in the files
	seq     log.Seq
	refused int64
}

func (c *checkpoint) encode() []byte {
	b := append([]byte{fileVersion, byte(len(c.identity))}, c.identity...)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.seq))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.expired))
	return seal(binary.LittleEndian.AppendUint64(b, uint64(c.refused)))
}

func (a *applied) encode() []byte {
	b := []byte{fileVersion, 0}
	if a.closed {
		b[1] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(a.seq))
	return seal(binary.LittleEndian.AppendUint64(b, uint64(a.refused)))
}

func decodeCheckpoint(b []byte) (c checkpoint, err error) {
	r, err := unseal(b)
	if err != nil {
		return c, err
	}
	c.identity = []byte(r.short())
	c.seq, c.expired, c.refused = log.Seq(r.u64()), int64(r.u64()), int64(r.u64())
	return c, r.end()
}

func decodeApplied(b []byte) (a applied, err error) {
	r, err := unseal(b)
	if err != nil {
		return a, err
	}
	closed := r.take(1)[0]
	a.closed, r.bad = closed == 1, r.bad || closed > 1
	a.seq, a.refused = log.Seq(r.u64()), int64(r.u64())
	return a, r.end()
}

func encodeMetadata(all []log.Metadata) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{fileVersion}, uint32(len(all)))
	for _, m := range all {
		for _, s := range [...]string{m.Family, m.Type, m.Help, m.Unit} {
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
		}
	}
	return seal(b)
}

func decodeMetadata(b []byte) ([]log.Metadata, error) {
	r, err := unseal(b)
	if err != nil {
		return nil, err
	}
	const least = 4 * 4 // bytes of an entry
	n := int(r.u32())
	if n > len(r.rest)/least {
		return nil, errDamaged
	}
	all := make([]log.Metadata, n)
	for i := range all {
		m := &all[i]
		m.Family, m.Type, m.Help, m.Unit = r.long(), r.long(), r.long(), r.long()
	}
	return all, r.end()
}

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func seal(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, castagnoli(b)) }

// fields reads what seal has closed. After the first failure everything reads as zero.
type fields struct {
	rest []byte
	bad  bool
}

func unseal(b []byte) (*fields, error) {
	n := len(b) - 4
	if n < 1 || castagnoli(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errDamaged
	}
	if b[0] != fileVersion {
		return nil, fmt.Errorf("%w: version %d, this program knows %d", errDamaged, b[0], fileVersion)
	}
	return &fields{rest: b[1:n]}, nil
}

func (f *fields) take(n int) []byte {
	if f.bad || n > len(f.rest) {
		f.bad = true
		return make([]byte, min(n, 8))
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) u64() uint64   { return binary.LittleEndian.Uint64(f.take(8)) }
func (f *fields) u32() uint32   { return binary.LittleEndian.Uint32(f.take(4)) }
func (f *fields) short() string { return f.text(int(f.take(1)[0])) }

func (f *fields) long() string {
	n := f.u32()
	if uint64(n) > uint64(len(f.rest)) {
		f.bad = true
		return ""
	}
	return f.text(int(n))
}

func (f *fields) text(n int) string {
	if n > len(f.rest) {
		f.bad = true
		return ""
	}
	return string(f.take(n))
}

func (f *fields) end() error {
	if f.bad || len(f.rest) > 0 {
		return errDamaged
	}
	return nil
}

// readFile reads a file of the copy; nil if it is not there.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s: %w: %d bytes", path, errDamaged, st.Size())
	}
	return os.ReadFile(path)
}

// replaceFile puts a file in the place of another, durably: after a crash one of the two is there, whole.
func replaceFile(dir, name string, b []byte) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncPath(dir)
}

// syncPath syncs a file or a directory, whoever has written to it.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
