package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// spoil overwrites four bytes in the middle of every file of a directory whose name ends so.
func spoil(t *testing.T, fs vfs.FS, dir, suffix string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n, suffix) {
			continue
		}
		p := fs.PathJoin(dir, n)
		info, err := fs.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fs.OpenReadWrite(p, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, info.Size()/2)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func repaired(t *testing.T, fs vfs.FS) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := repairLog(fs, offlinePath, nil, &out)
	t.Log(out.String())
	return out.String(), err
}

// sealBase cuts the log of a disk through an event, as the keeper of a service does.
func sealBase(t *testing.T, fs vfs.FS, through log.Seq) bucket.Base {
	t.Helper()
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	ctx := offlineContext(t)
	err = errors.Join(g.runner.Wait(ctx, g.events.Head()), g.panes.Checkpoint(ctx))
	if err != nil {
		t.Fatal(err)
	}
	base, err := g.views.Seal(offlinePath+"/base", uint64(g.events.Floor()))
	if err == nil && through > 0 {
		err = g.events.Truncate(through)
	}
	if err = errors.Join(err, g.stop()); err != nil {
		t.Fatal(err)
	}
	return base
}

// After a repair that cut the log behind what the views reflect they are moved aside, with the damaged log, and a start folds them
// from what is left; so does a rebuild, even where an older one was left unfinished. Cut off before it came to the views, the repair
// is made good by the next.
func TestRepairMovesViewsThatAreAheadAside(t *testing.T) {
	fs, _ := offlineDisk(t, 400)
	spoil(t, fs, offlinePath+"/log/store", ".log")
	cut := crashed(fs)
	if _, err := log.Repair(offlinePath+"/log", log.Options{FS: cut}, nil); err != nil {
		t.Fatal(err)
	}
	var short *log.ShortLogError
	if _, err := startFoldRig(cut); !errors.As(err, &short) {
		t.Errorf("a start with views that are ahead: %v", err)
	}
	if err := digest(t.Context(), cut, offlinePath, "text", new(bytes.Buffer)); !errors.As(err, &short) || !strings.Contains(err.Error(), "tidemark rebuild") {
		t.Errorf("a digest with views that are ahead: %v", err)
	}
	for what, fs := range map[string]*vfs.MemFS{"whole": crashed(fs), "cut off": cut} {
		said, err := repaired(t, fs)
		if err != nil || !strings.Contains(said, "Moved aside, because the views reflect sequence 400") {
			t.Fatalf("%s: %v", what, err)
		}
		if what == "whole" && !strings.Contains(said, "Lost: sequences ") {
			t.Errorf("%s: says nothing of what was lost", what)
		}
		want := offlineDigest(t, fs, "text")
		wantStart(t, fs, want)
		newTestRebuild(fs).must(t)
		if got := offlineDigest(t, fs, "text"); got != want {
			t.Errorf("%s: rebuilt:\n%s\nnot\n%s", what, got, want)
		}
		before := filesIn(t, fs, offlinePath)
		if said, err := repaired(t, fs); err != nil || !strings.Contains(said, "sound") || !strings.Contains(said, "stay valid") {
			t.Errorf("%s: repair of a sound log: %v", what, err)
		}
		wantSameFiles(t, before, filesIn(t, fs, offlinePath))
	}
}

// A base that is ahead of the repaired log is moved aside while the log still holds everything. Below the floor it is the only copy:
// then it stays, and the repair says with both numbers that nothing can start.
func TestRepairWithABaseThatIsAhead(t *testing.T) {
	fs, _ := offlineDisk(t, 400)
	base := sealBase(t, fs, 0)
	if base.Seq != 400 {
		t.Fatal(base.Seq)
	}
	spoil(t, fs, offlinePath+"/log/store", ".sst")
	said, err := repaired(t, fs)
	if err != nil || !strings.Contains(said, "Moved aside, because the base reflects sequence 400") || !strings.Contains(said, "because the views reflect") {
		t.Fatal(err)
	}
	wantStart(t, fs, offlineDigest(t, fs, "text"))

	fs, _ = offlineDisk(t, 400)
	sealBase(t, fs, 20)
	spoil(t, fs, offlinePath+"/log/store", ".sst")
	before := filesIn(t, fs, offlinePath+"/base")
	if _, err := repaired(t, fs); err == nil || !strings.Contains(err.Error(), "reflects sequence 400, and the log is left with 21 to ") {
		t.Errorf("%v", err)
	}
	wantSameFiles(t, before, filesIn(t, fs, offlinePath+"/base"))
}

// A rebuild starts from the newest base, whatever the views are; with the log cut there is no other way. Below the base it refuses
// with both numbers.
func TestRebuildStartsFromTheBase(t *testing.T) {
	for _, cut := range []log.Seq{0, 150} {
		fs, _ := offlineDisk(t, 250)
		base := sealBase(t, fs, cut)
		g, err := startFoldRig(fs)
		if err != nil {
			t.Fatal(err)
		}
		ctx := offlineContext(t)
		if err := moreHistory(ctx, g, 120); err != nil {
			t.Fatal(err)
		}
		want, err := g.print(ctx)
		if err = errors.Join(err, g.stop()); err != nil {
			t.Fatal(err)
		}
		for _, lost := range []bool{false, true} {
			fs := crashed(fs)
			if lost {
				if err := fs.RemoveAll(offlinePath + "/views"); err != nil {
					t.Fatal(err)
				}
				if got := offlineDigest(t, fs, "text"); got != want {
					t.Errorf("cut %d: digest without views:\n%s\nnot\n%s", cut, got, want)
				}
			}
			_, stderr := newTestRebuild(fs).must(t)
			if !strings.Contains(stderr, "starting from base "+base.Path) || !strings.Contains(stderr, "going on after sequence 250") {
				t.Errorf("cut %d: %s", cut, stderr)
			}
			if got := offlineDigest(t, fs, "text"); got != want {
				t.Errorf("cut %d: rebuilt:\n%s\nnot\n%s", cut, got, want)
			}
			wantStart(t, fs, want)
			r := newTestRebuild(fs)
			r.verify = true
			if stdout, _ := r.must(t); strings.Contains(stdout, "different") {
				t.Errorf("cut %d: %s", cut, stdout)
			}
			r.until = 249
			err := r.run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer))
			if exitCode(err) != exitUsage || !strings.Contains(err.Error(), "sequence 249 is below the base from which a rebuild starts, which reflects sequence 250") {
				t.Errorf("cut %d: below the base: %v", cut, err)
			}
		}
	}
}

// A rebuild that starts from a base and is interrupted at any operation goes on, and leaves the views alone until it is done.
func TestRebuildFromABaseResumes(t *testing.T) {
	fs, _ := offlineDisk(t, 250)
	sealBase(t, fs, 150)
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	ctx := offlineContext(t)
	if err := moreHistory(ctx, g, 60); err != nil {
		t.Fatal(err)
	}
	want, err := g.print(ctx)
	if err = errors.Join(err, g.stop()); err != nil {
		t.Fatal(err)
	}
	for i, percent := range []int{0, 100} {
		cam := &diskCamera{fs: crashed(fs), percent: percent, every: 9, rng: newRand(uint64(i))}
		r := newTestRebuild(wrapCamera(cam))
		r.must(t)
		for k, img := range cam.images {
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
			newTestRebuild(img).must(t)
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s, rebuilt: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
		}
		if len(cam.images) < 10 {
			t.Errorf("only %d images", len(cam.images))
		}
	}
}

// A damaged base is named and nothing is folded, whether the log could do without it or not. The views stay.
func TestRebuildNamesADamagedBase(t *testing.T) {
	for _, c := range []struct {
		cut  log.Seq
		says string
	}{{0, "the log still begins at sequence 1"}, {150, "the log begins at sequence 151"}} {
		fs, _ := offlineDisk(t, 250)
		base := sealBase(t, fs, c.cut)
		spoil(t, fs, base.Path+"/views", ".sst")
		before := filesIn(t, fs, offlinePath)
		err := newTestRebuild(fs).run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer))
		var bad *bucket.BaseError
		if !errors.As(err, &bad) || !strings.HasPrefix(bad.Path, base.Path) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v", err)
		}
		wantSameFiles(t, before, filesIn(t, fs, offlinePath))
	}
	fs, _ := offlineDisk(t, 250)
	sealBase(t, fs, 150)
	if err := fs.RemoveAll(offlinePath + "/base"); err != nil {
		t.Fatal(err)
	}
	if err := newTestRebuild(fs).run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)); !errors.Is(err, bucket.ErrNoBase) {
		t.Errorf("without the base: %v", err)
	}
	o, err := openOffline(fs, offlinePath, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.afresh(context.Background(), 250); !errors.Is(err, bucket.ErrNoBase) {
		t.Errorf("without the base: %v", err)
	}
	if err := o.close(); err != nil {
		t.Fatal(err)
	}
}
