package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

func newTestHeal(fs vfs.FS) *rebuild {
	r := newTestRebuild(fs)
	r.healing, r.workers = true, 2
	return r
}

func headOf(t *testing.T, fs vfs.FS) log.Seq {
	t.Helper()
	o, err := openOffline(fs, offlinePath, 1, discard())
	if err != nil {
		t.Fatal(err)
	}
	head := o.events.Head()
	if err := o.close(); err != nil {
		t.Fatal(err)
	}
	return head
}

// wantEverywhere holds that a digest comes out of the views, out of a start, out of a rebuild, and out of all of them without the
// views.
func wantEverywhere(t *testing.T, fs *vfs.MemFS, want string) {
	t.Helper()
	if got := offlineDigest(t, fs, "text"); got != want {
		t.Errorf("digest:\n%s\nnot\n%s", got, want)
	}
	wantStart(t, crashed(fs), want)
	r := newTestRebuild(crashed(fs))
	r.verify = true
	if stdout, _ := r.must(t); strings.Contains(stdout, "different") {
		t.Errorf("verified:\n%s", stdout)
	}
	lost := crashed(fs)
	if err := lost.RemoveAll(offlinePath + "/views"); err != nil {
		t.Fatal(err)
	}
	if got := offlineDigest(t, lost, "text"); got != want {
		t.Errorf("digest without views:\n%s\nnot\n%s", got, want)
	}
	newTestRebuild(lost).must(t)
	if got := offlineDigest(t, lost, "text"); got != want {
		t.Errorf("rebuilt:\n%s\nnot\n%s", got, want)
	}
}

// A heal changes what is published, says by how much, and stands in the log: a start, a rebuild, and what is written and lost after it
// give the same digest. A second one has nothing left to do until something is late again.
func TestHealIsHonouredByWhateverFolds(t *testing.T) {
	fs, before := offlineDisk(t, 400)
	stdout, stderr := newTestHeal(fs).must(t)
	healed := offlineDigest(t, fs, "text")
	for _, want := range []string{"materialization   first ", "unplanned stream ", "all ", "The heal stands in the log at sequence 401", "reflects the log up to sequence 401"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("does not say %q:\n%s", want, stdout)
		}
	}
	if !strings.Contains(stderr, "pass 1\n") || !strings.Contains(stderr, "pass 2\n") || headOf(t, fs) != 401 {
		t.Errorf("%s", stderr)
	}
	if strings.ReplaceAll(healed, "seq 401", "seq 400") == before {
		t.Fatal("nothing was late: this tests nothing")
	}
	wantEverywhere(t, fs, healed)
	stdout, _ = newTestHeal(fs).must(t)
	if !strings.Contains(stdout, "Nothing is left to heal") || headOf(t, fs) != 401 {
		t.Errorf("a second heal:\n%s", stdout)
	}

	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[log.Seq]log.Seq{0: 401, 400: 401, 401: 0} {
		if at, err := healAfter(g.events, from); err != nil || at != want {
			t.Errorf("the first heal after %d is at %d, not %d: %v", from, at, want, err)
		}
	}
	ctx := offlineContext(t)
	if err := moreHistory(ctx, g, 120); err != nil {
		t.Fatal(err)
	}
	want, err := g.print(ctx)
	if err != nil {
		t.Fatal(err)
	}
	image := crashed(fs)
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	wantEverywhere(t, image, want)
	newTestHeal(image).must(t)
	again := offlineDigest(t, image, "text")
	if again == want {
		t.Error("the second heal changes nothing")
	}
	wantEverywhere(t, image, again)
}

// A heal goes back to the newest base. What fell into buckets of before stays refused, and the heal says so. A base that is sealed
// behind it holds what it has healed.
func TestHealBesideABaseAndTruncation(t *testing.T) {
	for _, cut := range []log.Seq{0, 150} {
		fs, _ := offlineDisk(t, 250)
		sealBase(t, fs, cut)
		more := func() {
			g, err := startFoldRig(fs)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(moreHistory(offlineContext(t), g, 150), g.stop()); err != nil {
				t.Fatal(err)
			}
		}
		more()
		stdout, _ := newTestHeal(fs).must(t)
		if !strings.Contains(stdout, "fall into buckets of before the base, which ends at sequence 250, and stay refused") {
			t.Errorf("%s", stdout)
		}
		healed := offlineDigest(t, fs, "text")
		wantEverywhere(t, fs, healed)

		base := sealBase(t, fs, 300) // behind the heal
		if base.Seq != 399 {
			t.Fatalf("base of %d", base.Seq)
		}
		wantEverywhere(t, fs, healed)
		more()
		newTestHeal(fs).must(t)
		wantEverywhere(t, fs, offlineDigest(t, fs, "text"))
	}
}

// Streams that were added to a log with history are healed beside a base too, which holds their state once what they were folded from
// is cut away.
func TestHealReachesLaterStreamsBesideABase(t *testing.T) {
	fs, _ := offlineDisk(t, 250)
	ctx := offlineContext(t)
	run := func(f func(*foldRig) error) {
		t.Helper()
		g, err := startFoldRig(fs)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f(g), g.stop()); err != nil {
			t.Fatal(err)
		}
	}
	p, err := plan.Decode(offlinePlan(map[string][]string{"first": {"m/10", "n/15"}, "later": {"n/20"}}).Spec)
	if err != nil {
		t.Fatal(err)
	}
	p.FromSeq = 1
	run(func(g *foldRig) error {
		seq, err := g.events.Append(ctx, &log.Plan{Spec: p.Encode()})
		if err != nil {
			return err
		}
		return errors.Join(g.runner.Wait(ctx, seq), g.panes.Fold(ctx, g.events, false), moreHistory(ctx, g, 60))
	})
	if base := sealBase(t, fs, 150); base.Seq < 300 {
		t.Fatalf("base of %d", base.Seq)
	}
	for range 2 {
		run(func(g *foldRig) error { return moreHistory(ctx, g, 150) })
		before := offlineDigest(t, fs, "text")
		stdout, _ := newTestHeal(fs).must(t)
		if !regexp.MustCompile(`materialization +later +[1-9]\d* late samples +in [1-9]`).MatchString(stdout) {
			t.Fatalf("nothing of the later stream was healed:\n%s", stdout)
		}
		healed := offlineDigest(t, fs, "text")
		if healed == before {
			t.Error("nothing has changed")
		}
		wantEverywhere(t, fs, healed)
	}
}

// The base that a heal goes back to is not replaced before what the heal changes is on disk.
func TestHealKeepsItsBase(t *testing.T) {
	fs, _ := offlineDisk(t, 250)
	sealBase(t, fs, 150)
	g, err := startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(moreHistory(offlineContext(t), g, 60), g.stop()); err != nil {
		t.Fatal(err)
	}
	crash := crashed(fs)
	newTestHeal(fs).must(t)
	want := offlineDigest(t, fs, "text")
	if err := fs.RemoveAll(offlinePath + "/views"); err != nil {
		t.Fatal(err)
	}
	// As a crash right behind the append leaves it: the heal in the log, and the views as they were.
	if _, err := vfs.Clone(crash, fs, offlinePath+"/views", offlinePath+"/views", vfs.CloneSync); err != nil {
		t.Fatal(err)
	}
	if got := offlineDigest(t, fs, "text"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	g, err = startFoldRig(fs)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{
		events: g.events, durable: g.panes.Durable, views: g.views, bases: offlinePath + "/base", logger: discard(),
		limits: func() limits { return limits{size: 1} }, since: g.events.Head(),
		planning: new(sync.Mutex), settled: func() bool { return true }, wanted: g.panes.Wanted,
	}
	ctx := offlineContext(t)
	if err := g.runner.Wait(ctx, k.since); err != nil {
		t.Fatal(err)
	}
	newest := func() uint64 {
		b, err := bucket.NewestBase(k.bases, bucket.Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return b.Seq
	}
	if err := k.keep(ctx); err != nil || newest() != 250 {
		t.Fatalf("before a checkpoint: base of %d, %v", newest(), err)
	}
	if err := g.panes.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	if err := k.keep(ctx); err != nil || newest() != uint64(k.since) || g.events.Floor() < 300 {
		t.Fatalf("base of %d, %v", newest(), err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	wantEverywhere(t, fs, want)
}

// A crash at any moment of a heal leaves the log and what is folded from it as they were, or healed.
func TestHealCrashes(t *testing.T) {
	fs, before := offlineDisk(t, 250)
	done := crashed(fs)
	newTestHeal(done).must(t)
	after := offlineDigest(t, done, "text")
	for i, percent := range []int{0, 50, 100} {
		cam := &diskCamera{fs: crashed(fs), percent: percent, every: 9, rng: newRand(uint64(i))}
		newTestHeal(wrapCamera(cam)).must(t)
		old := 0
		for k, img := range cam.images {
			want := before
			if headOf(t, crashed(img)) == 251 {
				want = after
			} else {
				old++
			}
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
			if k%3 == 0 {
				wantStart(t, crashed(img), want)
			}
			if k%3 == 1 {
				newTestRebuild(img).must(t)
			} else {
				newTestHeal(img).must(t)
				want = after
			}
			if got := offlineDigest(t, img, "text"); got != want {
				t.Fatalf("%d%%, crash before %s, and then: got\n%s\nwant\n%s", percent, cam.names[k], got, want)
			}
		}
		t.Logf("%d%%: %d images, %d of before", percent, len(cam.images), old)
		if len(cam.images) < 20 || old == 0 || old == len(cam.images) {
			t.Errorf("this tests too little")
		}
	}
}

// What does not go together is refused before anything is opened, and where there is no log none is made.
func TestHealRefuses(t *testing.T) {
	fs, _ := offlineDisk(t, 30)
	before := filesIn(t, fs, offlinePath)
	for _, change := range []func(*rebuild){func(r *rebuild) { r.verify = true }, func(r *rebuild) { r.until = 20 }} {
		r := newTestHeal(fs)
		change(r)
		if err := r.run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)); exitCode(err) != exitUsage {
			t.Errorf("%v", err)
		}
	}
	wantSameFiles(t, before, filesIn(t, fs, offlinePath))
	empty := vfs.NewMem()
	if err := newTestHeal(empty).run(offlineContext(t), new(bytes.Buffer), new(bytes.Buffer)); err == nil {
		t.Error("heals what is not there")
	}
	if names, err := empty.List("/"); err != nil || len(names) != 0 {
		t.Errorf("it makes %v, %v", names, err)
	}
}

// Over the service: a late sample beyond correction makes a window unanswerable and a recorded value old; after a heal both are
// right, and remain so when the views are lost.
func TestHealMakesAnswersAndRecordsRight(t *testing.T) {
	s := newSite(t, `
exact: {local: false}
materializations:
  - {name: gauge, expr: "sum_over_time(m[1m])", every: 1m}
  - {name: wide, expr: "sum(max_over_time(m[1m]))", every: 1m, layout: full_window}
`, "--log.level=warn")
	p := s.serveReady()
	for _, at := range []int64{50_000, 110_000, 1_210_000} {
		s.mustWrite("m", at, 5)
	}
	s.mustBarrier(1_260_000)
	s.wantWarm("wide", 60_000, "5")
	s.mustWrite("m", 30_000, 9)
	missing := func(expr string) {
		t.Helper()
		if r, _ := s.instant(expr, 60_000); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "late_uncorrectable") {
			t.Errorf("%s: %d %s", expr, r.code, r.body)
		}
	}
	missing("sum_over_time(m[1m])")
	if code, _, stderr := s.tool("rebuild", "--heal"); code != exitFailure {
		t.Errorf("a heal beside the service: code %d, %s", code, stderr)
	}
	s.stop(p)
	code, stdout, stderr := s.tool("rebuild", "--heal")
	if code != exitOK || !strings.Contains(stdout, "materialization  gauge") {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	t.Log(stdout)
	right := func() {
		t.Helper()
		s.wantWarm("sum_over_time(m[1m])", 60_000, "14")
		s.wantWarm("wide", 60_000, "9")
		s.wantWarm("sum(max_over_time(m[1m]))", 60_000, "9")
		s.wantWarm("sum_over_time(m[1m])", 120_000, "5")
	}
	p = s.serveReady()
	right()
	p.kill()
	if err := os.RemoveAll(filepath.Join(s.dir, "data", viewsDir)); err != nil {
		t.Fatal(err)
	}
	p = s.serveReady()
	right()
	s.stop(p)
	verifyLog(t, s)
}

// A heal reaches streams that were added to a log with history, from whatever the log is folded; those that are added behind it refuse
// what came too late there, until the next one.
func TestHealReachesLaterStreams(t *testing.T) {
	const first = "exact: {local: false}\nmaterializations:\n  - {name: gauge, expr: 'sum_over_time(m[1m])', every: 1m}\n"
	s := newSite(t, first, "--log.level=warn")
	p := s.serveReady()
	both := func(at int64, v float64) {
		t.Helper()
		s.mustWrite("m", at, v)
		s.mustWrite("n", at, v)
	}
	both(50_000, 5)
	both(110_000, 5)
	s.stop(p)
	s.configure(first + "  - {name: later, expr: 'count_over_time(n[2m])', every: 2m}\n")
	p = s.serveReady()
	serving := func() {
		t.Helper()
		poll(t, time.Minute, "the history of the later stream", func() (bool, string) {
			body := s.must(http.MethodGet, "/api/v1/materializations").body
			return strings.Count(body, `"state":"`+stateServing+`"`) == 2, body
		})
	}
	serving()
	both(1_210_000, 5)
	s.mustBarrier(1_260_000)
	s.wantWarm("count_over_time(n[2m])", 120_000, "2")
	both(30_000, 9) // too late
	s.stop(p)
	code, stdout, stderr := s.tool("rebuild", "--heal")
	if code != exitOK || !regexp.MustCompile(`materialization +later +1 late samples +in 1 buckets +1 differ +1 were incomplete`).MatchString(stdout) {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	p = s.serveReady()
	for _, how := range []string{"healed", "deleted"} {
		if how == "deleted" {
			p.kill()
			if err := os.RemoveAll(filepath.Join(s.dir, "data", viewsDir)); err != nil {
				t.Fatal(err)
			}
			p = s.serveReady()
		}
		serving()
		s.wantWarm("sum_over_time(m[1m])", 60_000, "14")
		s.wantWarm("count_over_time(n[2m])", 120_000, "3")
	}
	s.stop(p)
	if code, stdout, stderr := s.tool("rebuild", "--verify"); code != exitOK {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}
