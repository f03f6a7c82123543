package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// contents lists the files below a directory with their sizes and times.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var sb strings.Builder
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&sb, path, info.Size(), info.ModTime())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sb.String()
}

// B04: a start on a full disk ends at once, with the path and the free bytes, and changes nothing; with some space the service
// starts, refuses writes and answers queries; with enough, everything goes on.
func TestCase_B04_StartOnAFullDisk(t *testing.T) {
	s := setup{dir: t.TempDir(), config: panesOfAMinute}
	v := startService(t, s)
	v.send(sent{`m{i="a"}`, 5000, 1})
	v.barrier(60_000)
	v.mustStop()

	before := contents(t, filepath.Join(s.dir, "data"))
	s.around.freeBytes = func(string) (uint64, error) { return 12_345, nil }
	_, err := openService(t, s)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(s.dir, "data")) || !strings.Contains(err.Error(), "12345 bytes are free") {
		t.Fatalf("got %v", err)
	}
	if after := contents(t, filepath.Join(s.dir, "data")); after != before {
		t.Errorf("the refused start changed files:\n%s\nbefore:\n%s", after, before)
	}

	s.around.freeBytes = func(string) (uint64, error) { return 16 << 20, nil }
	v, err = openService(t, s)
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("not ready for the disk", func() bool {
		code, body := v.get("/-/ready")
		return code == 503 && strings.Contains(body, "disk is below its reserve") && !strings.Contains(body, "replaying")
	})
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 1})
	v.mustStop()

	s.around.freeBytes = nil
	v = startService(t, s)
	v.send(sent{`m{i="a"}`, 65_000, 1})
	v.barrier(120_000)
	v.want(`count_over_time(m[2m])`, 120_000, map[string]float64{`{i="a"}`: 2})

	if err := checkSpace(filepath.Join(s.dir, "not", "there"), func(at string) (uint64, error) {
		if at != s.dir {
			t.Errorf("asked for %s", at)
		}
		return 0, nil
	}); err == nil {
		t.Error("a directory that is still to be made has no space either")
	}
}
