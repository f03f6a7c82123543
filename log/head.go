package log

// The HEAD note beside the store.

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	headFile    = "HEAD"
	headTemp    = "HEAD.tmp"
	headMagic   = "tidemark log, format "
	headMaxSize = 4096
	storeFormat = 1
)

// headNote says how far the log reached when it was written.
type headNote struct {
	seq  Seq
	hash Hash // of the encoded event; zero when seq is 0
}

func (n headNote) encode() []byte {
	s := fmt.Sprintf("%s%d\nseq %d\nhash %x\n", headMagic, storeFormat, n.seq, n.hash)
	return fmt.Appendf(nil, "%scrc32c %08x\n", s, crc32.Checksum([]byte(s), castagnoli))
}

func decodeHead(b []byte) (headNote, error) {
	line, rest, _ := strings.Cut(string(b), "\n")
	var format int
	if n, err := fmt.Sscanf(line, headMagic+"%d", &format); n != 1 || err != nil {
		return headNote{}, errors.New("not a head note")
	}
	if format > storeFormat {
		return headNote{}, fmt.Errorf("%w: %d, not %d", ErrNewerFormat, format, storeFormat)
	}
	var n headNote
	var hash string
	var crc uint32
	if _, err := fmt.Sscanf(rest, "seq %d\nhash %32s\ncrc32c %08x\n", &n.seq, &hash, &crc); err != nil {
		return headNote{}, errors.New("head note is damaged")
	}
	if h, err := hex.DecodeString(hash); err != nil || copy(n.hash[:], h) != len(n.hash) {
		return headNote{}, errors.New("head note is damaged")
	}
	if string(n.encode()) != string(b) {
		return headNote{}, errors.New("head note is damaged: its crc32c does not match")
	}
	return n, nil
}

func readHead(fs vfs.FS, dir string) (headNote, error) {
	path := fs.PathJoin(dir, headFile)
	f, err := fs.Open(path)
	if err != nil {
		return headNote{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, headMaxSize))
	if err = errors.Join(err, f.Close()); err != nil {
		return headNote{}, err
	}
	n, err := decodeHead(b)
	if err != nil {
		return headNote{}, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// writeHead replaces the note as a whole: a crash leaves the old one or the new one.
func writeHead(fs vfs.FS, dir string, n headNote) error {
	temp := fs.PathJoin(dir, headTemp)
	f, err := fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(n.encode())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(temp, fs.PathJoin(dir, headFile)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

func syncDir(fs vfs.FS, dir string) error {
	if plantedNoDirectorySync {
		return nil
	}
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// noteHeads writes the HEAD note when the head moves, at most once a noteInterval, and at the end.
func (l *Log) noteHeads(end <-chan struct{}) error {
	timer := time.NewTimer(noteInterval)
	defer timer.Stop()
	for {
		seq, hash, wake := l.durable.position()
		if seq == l.note.seq {
			select {
			case <-wake:
				continue
			case <-end:
			}
			if l.Head() == l.note.seq {
				return nil
			}
			continue
		}
		err := l.writeNote(headNote{seq: seq, hash: hash})
		if err != nil {
			l.counts.noteFailures.Add(1)
			l.logger.Warn("cannot write the HEAD note of the log; a start could not tell if its end were lost", "err", err)
		}
		timer.Reset(noteInterval)
		select {
		case <-timer.C:
		case <-end:
			if seq, hash, _ = l.durable.position(); seq != l.note.seq && l.Err() == nil {
				return l.writeNote(headNote{seq: seq, hash: hash})
			}
			return nil
		}
	}
}

func (l *Log) writeNote(n headNote) error {
	if l.Err() != nil {
		return nil // the note is not for a store in doubt
	}
	if err := writeHead(l.opts.FS, l.dir, n); err != nil {
		return fmt.Errorf("HEAD note of the log: %w", err)
	}
	l.note = n
	return nil
}
