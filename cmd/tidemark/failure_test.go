package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/log"
)

// broken wraps a file system whose writes below a path fail while the toggle is on.
func broken(fs vfs.FS, suffix string) (vfs.FS, *errorfs.Toggle) {
	fails := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, suffix) {
			return errorfs.ErrInjected
		}
		return nil
	})}
	return errorfs.Wrap(fs, fails), fails
}

// A checkpoint that fails stops neither ingest nor barriers nor queries; it is counted, the service says that it is not well,
// and it heals with the disk. Nothing is lost by a crash in between.
func TestFailingCheckpoint(t *testing.T) {
	for _, suffix := range []string{".sst", ""} {
		t.Run("files*"+suffix, func(t *testing.T) { failingCheckpoint(t, suffix) })
	}
}

func failingCheckpoint(t *testing.T, suffix string) {
	s := wipeable(t, setup{config: panesOfAMinute, flags: []string{"--projection.checkpoint-interval=64ms"}})
	mem := s.around.viewsFS
	var fails *errorfs.Toggle
	s.around.viewsFS, fails = broken(mem, suffix)
	v := startService(t, s)
	failures := func() float64 { return v.numbers().of(t, "projection_checkpoint_consecutive_failures") }
	round := func(from, to int64) {
		t.Helper()
		for k := from; k < to; k++ {
			v.send(sent{`m{i="a"}`, k*60_000 + 1000, 1}, sent{`c`, k*60_000 + 2000, float64(k)})
			if o := v.barrier((k + 1) * 60_000); o.Closed != 2 {
				t.Fatalf("bucket %d: %+v", k, o)
			}
			v.want(`count_over_time(m[1m])`, (k+1)*60_000, map[string]float64{`{i="a"}`: 1})
		}
		v.want(`sum_over_time(m[10m])`, to*60_000, map[string]float64{`{i="a"}`: 10})
	}
	round(0, 10)
	v.eventually("a checkpoint succeeds", func() bool { return v.node.panes.Durable() > 0 })
	fails.On()
	v.eventually("checkpoints fail", func() bool { return failures() >= failuresToReport })
	round(10, 20)
	if code, body := v.get("/-/ready"); code != 503 || !strings.Contains(body, "checkpoints") {
		t.Errorf("ready: %d, %s", code, body)
	}
	before, at := v.digest(), v.headSeq()
	fails.Off()
	if suffix == ".sst" {
		v.eventually("checkpoints succeed again", func() bool { return failures() == 0 && uint64(v.node.panes.Durable()) >= at })
		if code, body := v.get("/-/ready"); code != 200 {
			t.Errorf("ready: %d, %s", code, body)
		}
		if n := v.node.panes.Waiting(); n != 0 {
			t.Errorf("%d bytes still wait", n)
		}
		round(20, 30)
		v.mustStop()
		return
	}
	// The store's own list of files could not be written: that lasts until the next start, which folds again what is missing.
	v.setup.around.viewsFS = mem
	v = v.crash()
	if after := v.digest(); after != before {
		t.Errorf("published %s before the crash and %s after it", before, after)
	}
	round(20, 30)
}

// What cannot be written to the views is bounded: beyond it writes wait at their senders.
func TestUnwrittenBucketsAreBounded(t *testing.T) {
	s := wipeable(t, setup{config: panesOfAMinute, flags: []string{"--projection.checkpoint-interval=64ms"}})
	var fails *errorfs.Toggle
	s.around.viewsFS, fails = broken(s.around.viewsFS, ".sst")
	s.opened = func(n *node) { n.gate.maxWaiting = 1000 }
	v := startService(t, s)
	fails.On()
	v.eventually("checkpoints fail", func() bool { return v.node.panes.CheckpointFailures() > 0 })
	k, refused := int64(0), 0
	v.eventually("writes are refused", func() bool {
		k++
		if code := v.sendFor(sent{`m`, k * 60_000, 1}); code == 503 {
			refused++
		} else if code != 204 {
			t.Fatalf("status %d", code)
		}
		return refused > 0
	})
	fails.Off()
	v.eventually("writes are taken", func() bool { return v.sendFor(sent{`m`, (k + 1) * 60_000, 1}) == 204 })
}

// A projection that stops takes the service down with it neither: writes are taken, and whoever needs the fold is told. It
// is the same after a restart, as the fold is.
func TestStoppedProjection(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	v.send(sent{`m`, 1000, 1})
	v.barrier(60_000)
	// A plan that does not decode.
	if _, err := v.node.events.Append(t.Context(), &log.Plan{Spec: []byte("none")}); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		v.eventually("the projection has stopped", func() bool { return v.node.stopped() != nil })
		v.eventually("the control plane has stopped", func() bool { return v.node.masterStopped.Load() != nil })
		if a := v.instant(`count_over_time(m[1m])`, 60_000); a.code != 500 || a.errorType != "internal" || !strings.Contains(a.Err.Error(), "plan at") {
			t.Errorf("query: %d %s %v", a.code, a.errorType, a.Err)
		}
		code, _, body := v.form("/api/v1/precompute/watermark", "time_ms", "1")
		if a := decodeAnswer(t, code, nil, body); code != 500 || a.errorType != "internal" || !strings.Contains(a.Err.Error(), "plan at") {
			t.Errorf("barrier: %d %s", code, body)
		}
		v.send(sent{`m`, 2000, 1})
		if code, body := v.get("/-/ready"); code != 503 || !strings.Contains(body, "plan at") {
			t.Errorf("ready: %d, %s", code, body)
		}
		if code, _ := v.get("/-/healthy"); code != 200 {
			t.Errorf("healthy: %d", code)
		}
		if v.numbers().of(t, "log_head_seq") == 0 {
			t.Error("no metrics")
		}
	}
	check()
	if err := v.stop(); err == nil || !strings.Contains(err.Error(), "plan at") {
		t.Errorf("stop: %v", err)
	}
	again, err := openService(t, v.setup)
	if err != nil {
		t.Fatal(err)
	}
	v = again
	v.eventually("writes are taken", func() bool { return v.node.gate.open.Load() })
	check()
}

// A log that cannot be written acknowledges nothing more, tells barriers to come again, and ends the process with its own
// code.
func TestPoisonedLog(t *testing.T) {
	for _, call := range []string{"write", "barrier"} {
		t.Run(call, func(t *testing.T) {
			s := wipeable(t, setup{config: panesOfAMinute})
			mem := s.around.logFS
			var fails *errorfs.Toggle
			s.around.logFS, fails = broken(mem, ".log")
			v := startService(t, s)
			v.send(sent{`m`, 1000, 1})
			fails.On()
			if call == "write" {
				if code := v.sendFor(sent{`m`, 2000, 1}); code != 503 {
					t.Errorf("write: status %d", code)
				}
			} else {
				code, header, body := v.form("/api/v1/precompute/watermark", "time_ms", "60000")
				if a := decodeAnswer(t, code, header, body); code != 503 || a.errorType != "unavailable" || header.Get("Retry-After") == "" {
					t.Errorf("barrier: %d %s", code, body)
				}
			}
			<-v.ended
			if !errors.Is(v.err, log.ErrPoisoned) || exitCode(v.err) != exitPoisoned {
				t.Errorf("ended with %v", v.err)
			}
			v.setup.around.logFS = mem
			v = v.crash()
			v.barrier(60_000)
			v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 1})
		})
	}
}
