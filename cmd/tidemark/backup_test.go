package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/transport"
)

// TestBackupUnderLoad makes backups of a service that is written all the while, restores them into empty places, and holds that each
// has exactly what its source had at the backup's sequence: the same events, the same digest of what is published. A service goes
// on from it, and has every sample that was acknowledged before the backup was asked for.
func TestBackupUnderLoad(t *testing.T) {
	seed := seedOf(t)
	s := newSite(t, loadConfig, "--projection.checkpoint-interval=500ms", "--log.level=warn", "--web.enable-admin-api")
	begin := (time.Now().Add(-time.Hour).UnixMilli()/widePane)*widePane + 2_345
	p := s.serveReady()
	l := startLoad(t, s, 3, begin, seed)
	var made []transport.Snapshot
	for n := range 2 {
		poll(t, readyWithin, "load", func() (bool, string) {
			at := l.settledThrough()
			return at > begin+int64(n+1)*8_000, ""
		})
		if n == 1 {
			if _, err := s.barrier(begin + 4_000); err != nil { // some buckets are closed
				t.Fatal(err)
			}
		}
		code, out, errs := s.tool("backup", "--url="+s.url())
		var b transport.Snapshot
		if err := json.Unmarshal([]byte(out), &b); code != exitOK || err != nil || b.Seq == 0 {
			t.Fatalf("backup: %d, %v, %s%s", code, err, out, errs)
		}
		made = append(made, b)
	}
	l.halt()
	s.stop(p)

	for _, b := range made {
		from := b.Path
		if !filepath.IsAbs(from) { // whoever asked need not know where the service stands
			t.Errorf("the path %q is relative", from)
		}
		r := newSite(t, loadConfig, "--log.level=warn")
		if code, out, errs := r.tool("restore", "--from="+from); code != exitOK || !strings.Contains(out, "events up to") {
			t.Fatalf("restore: %d %s%s", code, out, errs)
		}
		quiet := slog.New(slog.DiscardHandler)
		source, err := openOffline(vfs.Default, filepath.Join(s.dir, "data"), 2, quiet)
		if err != nil {
			t.Fatal(err)
		}
		restored, err := openOffline(vfs.Default, filepath.Join(r.dir, "data"), 2, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if restored.events.Head() != log.Seq(b.Seq) {
			t.Errorf("the restored log is at %d, the backup at %d", restored.events.Head(), b.Seq)
		}
		was, err := source.events.HashAt(log.Seq(b.Seq))
		if err != nil {
			t.Fatal(err)
		}
		if is, err := restored.events.HashAt(log.Seq(b.Seq)); err != nil || is != was {
			t.Errorf("event %d differs (%v)", b.Seq, err)
		}
		want, err := source.afresh(t.Context(), log.Seq(b.Seq))
		if err != nil {
			t.Fatal(err)
		}
		got, err := restored.standing(t.Context(), log.Seq(b.Seq)) // from the views of the backup on
		if err != nil {
			t.Fatal(err)
		}
		if got.digest.All != want.digest.All || want.digest.All.Buckets == 0 {
			t.Errorf("backup at %d: digest %+v, the source had %+v", b.Seq, got.digest.All, want.digest.All)
		}
		t.Logf("at %d: %d buckets", b.Seq, want.digest.All.Buckets)
		if err := source.close(); err != nil {
			t.Error(err)
		}
		if err := restored.close(); err != nil {
			t.Error(err)
		}
		p := r.serveReady()
		if through, err := r.barrier(begin + 10_000); err != nil || through < begin+10_000 {
			t.Errorf("barrier on the restored service: %d, %v", through, err)
		}
		if code := r.write("m", begin+20_000, 1); code != http.StatusNoContent {
			t.Errorf("write to the restored service: %d", code)
		}
		r.stop(p)
		if code, _, errs := r.tool("log", "verify"); code != exitOK {
			t.Errorf("log verify: %d %s", code, errs)
		}
	}
}

// A backup that is not whole, or not one, is refused, and so is a place that is not empty; nothing is left behind.
func TestRestoreRefuses(t *testing.T) {
	s := newSite(t, oneStream, "--log.level=warn", "--web.enable-admin-api")
	p := s.serveReady()
	for i := range 20 {
		if code := s.write("m", int64(1_000_000+i*1000), 1); code != http.StatusNoContent {
			t.Fatal(code)
		}
	}
	code, out, errs := s.tool("backup", "--url="+s.url())
	var b transport.Snapshot
	if err := json.Unmarshal([]byte(out), &b); code != exitOK || err != nil {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	s.stop(p)
	good := b.Path
	restoreTo := func(from, path string) error { return restore(from, path, io.Discard) }
	if err := restoreTo(good, filepath.Join(s.dir, "data")); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("onto the source: %v", err)
	}
	copied := func() string {
		dir := filepath.Join(t.TempDir(), "backup")
		if err := copyTree(good, dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, spoil := range map[string]func(dir string) error{
		"no note": func(dir string) error { return os.Remove(filepath.Join(dir, backupFile)) },
		"foreign": func(dir string) error { return os.WriteFile(filepath.Join(dir, backupFile), []byte("hello\n"), 0o600) },
		"newer": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, backupFile), []byte("tidemark backup, format 9\nseq 1\nviews 1\ncrc32c 00000000\n"), 0o600)
		},
		"other count": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, backupFile), backupNote{seq: b.Seq + 1}.encode(), 0o600)
		},
		"no log": func(dir string) error { return os.RemoveAll(filepath.Join(dir, logDir, "store")) },
		"views": func(dir string) error {
			views, err := filepath.Glob(filepath.Join(dir, baseDir, "*", "views", "*.sst"))
			if err != nil || len(views) == 0 {
				return err
			}
			return os.Truncate(views[0], 0)
		},
	} {
		dir, to := copied(), filepath.Join(t.TempDir(), "data")
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if err := restoreTo(dir, to); err == nil {
			t.Errorf("%s: restored", name)
		}
		if left, _ := filepath.Glob(to + "*"); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
	if err := restoreTo(copied(), filepath.Join(t.TempDir(), "data")); err != nil {
		t.Error(err)
	}
	// Without the flag there are no backups.
	off := newSite(t, oneStream, "--log.level=warn")
	p = off.serveReady()
	if code, _, errs := off.tool("backup", "--url="+off.url()); code != exitFailure || !strings.Contains(errs, "--web.enable-admin-api") {
		t.Errorf("%d %s", code, errs)
	}
	off.stop(p)
}
