package log

import (
	"errors"
	"fmt"
)

// Checkpoint copies the log into dir while it is written. dir must not exist, and its parent must. The copy is a log of its own with
// the same identity: it has every event that was durable at the call, perhaps some that came after, and each as the log has it.
// It is opened and checked before it is given out; Checkpoint returns its newest event. Its tables are hard links to those of the
// log where the file system has them, so that it costs little until the log drops them.
//
// No log may be truncated meanwhile: ErrBusy if one is. What fails leaves the log as it was and something in dir that is to be
// removed.
func (l *Log) Checkpoint(dir string) (Seq, error) {
	seq, err := l.checkpoint(dir)
	if err != nil {
		return 0, fmt.Errorf("checkpoint of the log: %w", err)
	}
	return seq, nil
}

func (l *Log) checkpoint(dir string) (Seq, error) {
	if !l.truncating.TryLock() {
		return 0, ErrBusy
	}
	defer l.truncating.Unlock()
	fs := l.opts.FS
	if _, err := fs.Stat(dir); err == nil {
		return 0, fmt.Errorf("%s is there already", dir)
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	db, err := l.store.acquire()
	if err != nil {
		return 0, err
	}
	defer l.store.release()
	seq, hash, _ := l.durable.position()
	// Whatever is durable lies in files by now, so that nothing has to be flushed for it.
	if err := db.Checkpoint(fs.PathJoin(dir, storeDir)); err != nil {
		return 0, err
	}
	if err := errors.Join(writeHead(fs, dir, headNote{seq: seq, hash: hash}), syncDir(fs, fs.PathDir(dir))); err != nil {
		return 0, err
	}
	c, err := openReadOnly(dir, Options{FS: fs, Logger: l.logger}.withDefaults())
	if err != nil {
		return 0, err
	}
	return c.Head(), c.Close()
}
