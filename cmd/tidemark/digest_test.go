package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
)

// The digest of the command is that of the live run: after a clean stop, after a crash that took what no checkpoint held, and
// without any views. It leaves every file as it was.
func TestDigestIsThatOfTheLiveRun(t *testing.T) {
	fs, want := offlineDisk(t, 400)
	running, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	behind := crashed(fs)
	if err := running.stop(); err != nil {
		t.Fatal(err)
	}
	noViews := crashed(fs)
	if err := noViews.RemoveAll(offlinePath + "/views"); err != nil {
		t.Fatal(err)
	}
	cut := crashed(fs) // a rebuild was cut off between its two renames
	if err := errors.Join(
		(&rebuild{fs: cut, path: offlinePath, verify: true, now: fixedTime}).run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)),
	); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cut.Rename(offlinePath+"/views", offlinePath+"/views.rebuild"), cut.MkdirAll(offlinePath+"/views.old", 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, fs := range map[string]*vfs.MemFS{"stopped": fs, "behind": behind, "no views": noViews, "in a swap": cut} {
		before := filesIn(t, fs, offlinePath)
		if got := offlineDigest(t, fs, "text"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
		wantSameFiles(t, before, filesIn(t, fs, offlinePath))
	}
}

// Both forms say the same.
func TestDigestFormats(t *testing.T) {
	fs, text := offlineDisk(t, 200)
	var out struct {
		Seq              log.Seq
		Digest           string
		Buckets          uint64
		Materializations []digestRow
		UnplannedStreams []digestRow `json:"unplanned_streams"`
	}
	if err := json.Unmarshal([]byte(offlineDigest(t, fs, "json")), &out); err != nil {
		t.Fatal(err)
	}
	if out.Seq != 200 || len(out.Materializations) != 2 || out.Materializations[0].Name != "first" || len(out.UnplannedStreams) != 1 {
		t.Errorf("%+v", out)
	}
	for _, r := range append(append(out.Materializations, out.UnplannedStreams...), digestRow{Digest: out.Digest}) {
		if len(r.Digest) != 32 || !strings.Contains(text, r.Digest) {
			t.Errorf("%s with digest %q is not in\n%s", r.Name, r.Digest, text)
		}
	}
}

// While a service has the log, the tools refuse with one clear line.
func TestOfflineToolsRefuseARunningService(t *testing.T) {
	fs, _ := offlineDisk(t, 200)
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"digest":  digest(t.Context(), fs, offlinePath, "text", new(bytes.Buffer)),
		"rebuild": (&rebuild{fs: fs, path: offlinePath, now: fixedTime}).run(t.Context(), new(bytes.Buffer), new(bytes.Buffer)),
		"repair":  repairLog(fs, offlinePath, nil, new(bytes.Buffer)),
	} {
		if !errors.Is(err, log.ErrLocked) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), offlinePath) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := fs.List(offlinePath); err != nil || len(names) != 2 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
}
