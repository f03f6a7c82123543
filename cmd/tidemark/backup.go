package main

// Backups of a service that serves.
//
//	backups/<time>-<sequence>/BACKUP   text, written last: format, newest event, sequence of the views, crc32c
//	backups/<time>-<sequence>/log/     a copy of the log, whole and checked
//	backups/<time>-<sequence>/base/    a sealed copy of the views (see projections/bucket), no newer than the log
//	backups/making/                    one that is being made; holds nothing that counts
//
// The views are sealed before the log is copied, and nothing is truncated in between: so the log has every event that the views
// reflect and every one that they do not yet. A restore puts both into an empty place; the service folds the rest when it starts.
// Neither the exact copy of the samples nor the configuration is in a backup: the copy is folded again as far as the log reaches.

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/transport"
	"tidemark/transport/api"
)

const (
	backupsDir   = "backups"
	backupMaking = "making"
	backupFile   = "BACKUP"
	backupMagic  = "tidemark backup, format "
	backupFormat = 1

	// backupTimeout bounds what the command waits for a backup.
	backupTimeout = 10 * time.Minute
	maxNoteBytes  = 4096
)

// backupNote says what a backup holds.
type backupNote struct {
	seq, views uint64
}

func (n backupNote) encode() []byte {
	s := fmt.Appendf(nil, "%s%d\nseq %d\nviews %d\n", backupMagic, backupFormat, n.seq, n.views)
	return fmt.Appendf(s, "crc32c %08x\n", crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)))
}

func decodeBackupNote(b []byte) (backupNote, error) {
	var n backupNote
	var format int
	var sum uint32
	if _, err := fmt.Sscanf(string(b), backupMagic+"%d\nseq %d\nviews %d\ncrc32c %08x\n", &format, &n.seq, &n.views, &sum); err != nil {
		return n, errors.New("not the description of a backup")
	}
	if format > backupFormat {
		return n, fmt.Errorf("a backup of format %d, this version reads up to %d", format, backupFormat)
	}
	if string(n.encode()) != string(b) {
		return n, errors.New("its crc32c does not match")
	}
	return n, nil
}

// snapshot makes a backup below the storage directory.
func (n *node) snapshot(context.Context) (transport.Snapshot, error) {
	if !n.backing.TryLock() {
		return transport.Snapshot{}, api.Unavailable(1, "a backup is being made")
	}
	defer n.backing.Unlock()
	s, err := n.backUp(filepath.Join(n.flags.storagePath, backupsDir))
	if err == nil {
		// Whoever asked may stand in another directory than the service.
		s.Path, err = filepath.Abs(s.Path)
	}
	if err != nil {
		return s, fmt.Errorf("backup: %w", err)
	}
	n.logger.Info("Backup made", "path", s.Path, "seq", s.Seq)
	return s, nil
}

func (n *node) backUp(dir string) (s transport.Snapshot, err error) {
	n.planning.Lock() // nothing is truncated meanwhile
	defer n.planning.Unlock()
	disk := n.flags.around.storage()
	making := filepath.Join(dir, backupMaking)
	if err := errors.Join(disk.RemoveAll(making), disk.MkdirAll(making, 0o755)); err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, disk.RemoveAll(making))
		}
	}()
	base, err := n.views.Seal(filepath.Join(making, baseDir), uint64(n.events.Floor()))
	if err != nil {
		return s, err
	}
	seq, err := n.events.Checkpoint(filepath.Join(making, logDir))
	if err != nil {
		return s, err
	}
	if err := writeNote(disk, filepath.Join(making, backupFile), backupNote{seq: uint64(seq), views: base.Seq}.encode()); err != nil {
		return s, err
	}
	s = transport.Snapshot{Seq: uint64(seq), Name: n.flags.around.time().UTC().Format("20060102T150405Z") + "-" + strconv.FormatUint(uint64(seq), 10)}
	s.Path = filepath.Join(dir, s.Name)
	if _, err := disk.Stat(s.Path); err == nil {
		// Nothing has happened since one that was made in this second.
		return s, disk.RemoveAll(making)
	}
	if err := errors.Join(syncDir(disk, making), disk.Rename(making, s.Path), syncDir(disk, dir), syncDir(disk, n.flags.storagePath)); err != nil {
		return s, err
	}
	return s, nil
}

func writeNote(disk vfs.FS, name string, text []byte) error {
	f, err := disk.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(disk vfs.FS, dir string) error {
	d, err := disk.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func newBackup(app *kingpin.Application) command {
	var to remote
	c := app.Command("backup", "Have a running service make a backup below its storage directory, and print where. It needs --web.enable-admin-api.")
	to.declare(c)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, backupTimeout)
		defer cancel()
		return to.post(ctx, transport.SnapshotPath, nil, stdout)
	}}
}

func newRestore(app *kingpin.Application) command {
	var from, path string
	c := app.Command("restore", "Make the storage directory of a service from a backup. The directory must be empty or missing; the backup is not changed.")
	c.Flag("from", "Directory of the backup.").Required().ExistingDirVar(&from)
	storageFlag(c, &path)
	return command{c, func(_ context.Context, stdout, _ io.Writer) error { return restore(from, path, stdout) }}
}

// restore puts a backup into path. Everything is made beside it and takes its name at the end: a restore that was cut off leaves
// nothing that a service would start from.
func restore(from, path string, stdout io.Writer) error {
	note, err := readBackupNote(filepath.Join(from, backupFile))
	if err != nil {
		return fmt.Errorf("restore from %s: %w", from, err)
	}
	if names, err := os.ReadDir(path); err == nil && len(names) > 0 {
		return fmt.Errorf("restore to %s: it is not empty: it holds %s", path, names[0].Name())
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore: %w", err)
	}
	work := filepath.Clean(path) + ".restoring"
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := restoreInto(from, work, note); err != nil {
		return fmt.Errorf("restore from %s: %w", from, errors.Join(err, os.RemoveAll(work)))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore: %w", err)
	}
	if err := errors.Join(os.Rename(work, path), syncDir(vfs.Default, filepath.Dir(filepath.Clean(path)))); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "restored to %s: events up to %d, views as of %d; the service folds the rest when it starts\n", path, note.seq, note.views)
	return err
}

func restoreInto(from, work string, note backupNote) error {
	for _, part := range []string{logDir, baseDir} {
		if err := copyTree(filepath.Join(from, part), filepath.Join(work, part)); err != nil {
			return err
		}
	}
	l, err := log.OpenReadOnly(filepath.Join(work, logDir), log.Options{})
	if err != nil {
		return err
	}
	head, floor, identity := l.Head(), l.Floor(), l.Identity()
	if err := l.Close(); err != nil {
		return err
	}
	if uint64(head) != note.seq {
		return fmt.Errorf("its log ends at %d, and it was made at %d", head, note.seq)
	}
	_, err = bucket.RestoreBase(filepath.Join(work, baseDir), filepath.Join(work, viewsDir), identity, uint64(floor), bucket.Options{})
	return errors.Join(err, syncDir(vfs.Default, work))
}

func readBackupNote(name string) (backupNote, error) {
	f, err := os.Open(name)
	if err != nil {
		return backupNote{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNoteBytes))
	if err != nil {
		return backupNote{}, err
	}
	n, err := decodeBackupNote(b)
	if err != nil {
		return n, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// copyTree copies a directory, each file and directory synced. Lock files are left out.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rest)
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Name() == "LOCK":
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", name)
		}
		return errors.Join(copyFile(name, target), syncDir(vfs.Default, filepath.Dir(target)))
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
