package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

func TestCase_B08_CheckpointNewerThanTheLog(t *testing.T) {
	v := startService(t, setup{dir: t.TempDir(), config: panesOfAMinute})
	v.send(sent{`m`, 1000, 1})
	v.mustStop()
	data := filepath.Join(v.setup.dir, "data")
	older := filepath.Join(t.TempDir(), "older")
	if err := os.CopyFS(older, os.DirFS(filepath.Join(data, logDir))); err != nil {
		t.Fatal(err)
	}
	was := v.headSeq()
	v = startService(t, v.setup)
	v.send(sent{`m`, 2000, 1})
	v.mustStop()
	is := v.headSeq()
	if err := os.RemoveAll(filepath.Join(data, logDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(data, logDir), os.DirFS(older)); err != nil {
		t.Fatal(err)
	}
	_, err := openService(t, v.setup)
	if err == nil {
		t.Fatal("the service has started")
	}
	for _, number := range []uint64{was, is} {
		if !strings.Contains(err.Error(), strconv.FormatUint(number, 10)) {
			t.Errorf("%v does not name %d", err, number)
		}
	}
	// Without the views it starts, and shows what the log holds.
	if err := os.RemoveAll(filepath.Join(data, viewsDir)); err != nil {
		t.Fatal(err)
	}
	v = startService(t, v.setup)
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 1})
}

func TestCase_B09_CheckpointOlderThanTheLog(t *testing.T) {
	v := startService(t, wipeable(t, setup{config: panesOfAMinute, flags: []string{"--projection.checkpoint-interval=-1s"}}))
	for n := range int64(300) {
		v.send(sent{`m{i="a"}`, 400 * (n + 1), 1})
		if n == 60 {
			if err := v.node.panes.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	v = v.crash()
	v.barrier(120_000)
	check := func() {
		t.Helper()
		v.want(`count_over_time(m[2m])`, 120_000, map[string]float64{`{i="a"}`: 300})
		v.want(`sum_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 150})
		v.want(`sum_over_time(m[1m])`, 120_000, map[string]float64{`{i="a"}`: 150})
	}
	check()
	before := v.digest()
	v = v.crash()
	if got := v.digest(); got != before {
		t.Errorf("digest %s, after another crash %s", before, got)
	}
	check()
}

func TestCase_B21_WallClockGoesBack(t *testing.T) {
	c := newClock(100_000_000)
	v := startService(t, setup{config: panesOfAMinute, around: surroundings{now: c.now, monotonic: c.monotonic}})
	first := v.headSeq()
	for i := range int64(15) {
		switch i {
		case 5:
			c.step(-time.Hour)
		case 10:
			c.step(time.Hour)
		}
		c.pass(time.Second)
		v.send(sent{`m`, 1000 + i, 1})
		if got := v.headSeq(); got != first+uint64(i)+1 {
			t.Fatalf("write %d has sequence %d", i, got)
		}
		if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
			t.Fatalf("after write %d something is due by the clock: %v, %v", i, due, err)
		}
	}
	if lag := v.numbers().of(t, "projection_lag_seconds"); lag < 0 {
		t.Errorf("lag of %v s", lag)
	}
	// The bucket closes 65 s of log time after its first touch, whatever the wall clock says.
	c.pass(50_999 * time.Millisecond)
	if due, err := v.node.panes.Due(t.Context(), v.node.events.LogTime()); due || err != nil {
		t.Fatalf("due too early: %v, %v", due, err)
	}
	c.pass(time.Millisecond)
	v.eventually("the ticker closes the bucket", func() bool { return v.numbers().of(t, "pane_closed_buckets_total") == 1 })
	v.barrier(60_000)
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 15})
}

func TestCase_B23_VeryLargeRequest(t *testing.T) {
	v := startService(t, wipeable(t, setup{config: panesOfAMinute}))
	// 400,000 samples of 20,000 series, about 30 MiB.
	large := func(pad int) []remotewrite.Series {
		out := make([]remotewrite.Series, 20_000)
		for i := range out {
			out[i].Labels = labels.FromStrings("__name__", "m", "i", strconv.Itoa(i), "pad", strings.Repeat(strconv.Itoa(i%10), pad))
			for k := range int64(20) {
				out[i].Samples = append(out[i].Samples, remotewrite.Sample{Time: 1000 * (k + 1), Value: 1})
			}
		}
		return out
	}
	began := time.Now()
	if err := v.write.Write(t.Context(), large(1200)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took > patience {
		t.Errorf("acknowledged after %s", took)
	}
	t.Logf("acknowledged after %s", took)
	err := v.write.Write(t.Context(), large(1700))
	if status, ok := err.(*remotewrite.StatusError); !ok || status.Code != 413 {
		t.Errorf("beyond the bound: %v", err)
	}
	v = v.crash()
	v.barrier(60_000)
	v.want(`sum(count_over_time(m[1m]))`, 60_000, one(400_000))
}

func TestCase_B32_CleanStopKeepsOpenBuckets(t *testing.T) {
	v := startService(t, setup{config: panesOfAMinute})
	v.send(sent{`m`, 1000, 1}, sent{`m`, 2000, 1}, sent{`m`, 3000, 1})
	v.mustStop()
	v = startService(t, v.setup)
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 0 {
		t.Errorf("%v buckets were closed by the stop", n)
	}
	v.wantMiss(`count_over_time(m[1m])`, 60_000, "unpublished")
	v.send(sent{`m`, 4000, 1}, sent{`m`, 5000, 1})
	if o := v.barrier(60_000); o.Closed != 1 {
		t.Errorf("%+v", o)
	}
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{}`: 5})
	if n := v.numbers().of(t, "pane_closed_buckets_total"); n != 1 {
		t.Errorf("%v buckets closed, want 1", n)
	}
}
