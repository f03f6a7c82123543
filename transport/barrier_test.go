package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tidemark/log"
	"tidemark/transport/api"
)

const mark = "/api/v1/precompute/watermark"

func TestCase_C05_WatermarkParameters(t *testing.T) {
	w := newWorld(t, Options{})
	for _, q := range []string{
		"", "time_ms=", "time_ms=abc", "time_ms=12.5", "time_ms=1e12", "time_ms=0x10", "time_ms=%2060000", "time_ms=60000%20", "time_ms=60_000",
		"time_ms=9223372036854775808", "time_ms=-9223372036854775809", "time_ms=1&time_ms=2", "time_ms=1&time_ms=", "time_ms=%2B60000", "time_ms=+60000",
		"time_ms=-", "time_ms=--1", "time_ms=%zz", "time_ms=%D9%A1", "time_ms=1&timeout=x", "time_ms=1&timeout=0", "time_ms=1&timeout=-1s",
		"time_ms=1&experiment=", "time_ms=1&experiment=a&experiment=b", "time_ms=1&experiment=%ff",
	} {
		w.wantError(w.do(http.MethodPost, mark+"?"+q, ""), 400, "bad_data", "")
		w.wantError(w.do(http.MethodPost, mark, q, "Content-Type", "application/x-www-form-urlencoded"), 400, "bad_data", "")
	}
	// A misspelt parameter would make a barrier for all of one for an experiment.
	for _, name := range []string{"experment", "Experiment", "time-ms", "query", "dedup"} {
		w.wantError(w.do(http.MethodPost, mark+"?time_ms=1&"+name+"=a", ""), 400, "bad_data", name)
		w.wantError(w.do(http.MethodPost, mark+"?time_ms=1", name+"=a", "Content-Type", "application/x-www-form-urlencoded"), 400, "bad_data", name)
	}
	for _, kind := range []string{"application/json", "text/plain", ""} {
		w.wantError(w.do(http.MethodPost, mark+"?time_ms=1", `{"experiment":"a"}`, "Content-Type", kind), 400, "bad_data", "application/x-www-form-urlencoded")
	}
	w.wantError(w.do(http.MethodPost, mark+"?time_ms=1", "time_ms=2", "Content-Type", "application/x-www-form-urlencoded"), 400, "bad_data", "given 2 times")
	r := w.get(mark + "?time_ms=1")
	w.wantError(r, 405, "bad_data", "method not allowed")
	if r.header.Get("Allow") != "POST, OPTIONS" {
		t.Errorf("Allow %q", r.header.Get("Allow"))
	}
	if len(w.barrier.marks) != 0 {
		t.Fatalf("H2: %v was appended by refused requests", w.barrier.marks)
	}
	w.wantCode(w.do(http.MethodPost, mark+"?time_ms=-1", ""), 200)
	w.wantCode(w.do(http.MethodPost, mark+"?time_ms=-9223372036854775808", ""), 200)
	w.wantCode(w.do(http.MethodPost, mark+"?time_ms=9223372036854775807", ""), 200)
	w.wantCode(w.post(mark, "time_ms", "60000"), 200)
	w.wantCode(w.do(http.MethodPost, mark+"?time_ms=60000&timeout=1.5", ""), 200)
	w.wantCode(w.post(mark, "time_ms", "60000", "experiment", "run 7"), 200)
	if want := []int64{-1, -1 << 63, 1<<63 - 1, 60000, 60000, 60000}; !slices.Equal(w.barrier.marks, want) {
		t.Errorf("appended %v, want %v", w.barrier.marks, want)
	}
	if want := []string{"", "", "", "", "", "run 7"}; !slices.Equal(w.barrier.experiments, want) {
		t.Errorf("for experiments %q, want %q", w.barrier.experiments, want)
	}
}

func TestCase_C04_WatermarkUnits(t *testing.T) {
	w := newWorld(t, Options{}) // now is 1435781460000
	for at, says := range map[string]string{
		"1435781460":            "looks like seconds",
		"1435781460000000":      "looks like microseconds",
		"1435781460000000000":   "looks like nanoseconds",
		"9223372036854775807":   "largest integer",
		"1435785060001":         "more than 1h0m0s ahead of now",
		"1435785060000":         "",
		"1435781460000":         "",
		"60000":                 "",
		"0":                     "",
		"-1435781460":           "",
		"-9223372036854775808":  "",
		"4102444800000":         "ahead of now", // the year 2100
		"-62135596800000":       "",
		"143578146000000000000": "does not fit",
	} {
		r := w.do(http.MethodPost, mark+"?time_ms="+at, "")
		if says == "does not fit" {
			w.wantError(r, 400, "bad_data", says)
			continue
		}
		w.wantCode(r, 200)
		warned := strings.Contains(r.body, `,"warnings":["`)
		if warned != (says != "") || !strings.Contains(r.body, says) {
			t.Errorf("time_ms=%s: %s, want a warning that says %q", at, r.body, says)
		}
	}
}

func TestCase_C06_WatermarkRegress(t *testing.T) {
	w := newWorld(t, Options{})
	through := []string{"120000", "120000", "120000", "120001"}
	for i, at := range []string{"120000", "60000", "120000", "120001"} {
		w.want(w.do(http.MethodPost, mark+"?time_ms="+at, ""),
			`{"status":"success","data":{"seq":`+string(rune('1'+i))+`,"closed_buckets":3,"complete_through_ms":`+through[i]+`}}`)
	}
}

// TestBarrierThenQuery holds that the first query after the 200 reads what the barrier closed.
func TestBarrierThenQuery(t *testing.T) {
	w := newWorld(t, Options{})
	at := now.UnixMilli() + 60_000
	ask := func() reply {
		return w.get("/api/v1/query", "query", `count_over_time(m{i="a"}[1m])`, "time", "1435781520")
	}
	w.wantError(ask(), 422, "execution", "unpublished")
	w.wantCode(w.post(mark, "time_ms", "1435781520000"), 200)
	w.want(ask(), vector())
	if w.barrier.through != at {
		t.Errorf("complete through %d, want %d", w.barrier.through, at)
	}
}

// A barrier that proves nothing names no time: the API has null where there is none.
func TestBarrierThatProvesNothing(t *testing.T) {
	w := newWorld(t, Options{})
	w.want(w.do(http.MethodPost, mark+"?time_ms=-9223372036854775808", ""), `{"status":"success","data":{"seq":1,"closed_buckets":3,"complete_through_ms":null}}`)
}

func TestBarrierFailures(t *testing.T) {
	w := newWorld(t, Options{})
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	w.barrier.hold = hang
	w.wantError(w.do(http.MethodPost, mark+"?time_ms=77&timeout=20ms", ""), 503, "timeout", "the watermark 77 stays in the log")
	w.wantError(w.do(http.MethodPost, "/api/v1/precompute/drain?timeout=0.02", ""), 503, "timeout", "the drain stays in the log")
	w.barrier.hold = func(context.Context) error { return errors.New("worker 3: shard 17 cannot be published") }
	w.wantError(w.do(http.MethodPost, mark+"?time_ms=78", ""), 500, "internal", "shard 17")
	w.barrier.hold = func(context.Context) error { return api.ErrSealed }
	w.wantError(w.do(http.MethodPost, mark+"?time_ms=79", ""), 409, "unavailable", "sealed")
	w.barrier.hold = func(context.Context) error { return fmt.Errorf("append: %w", log.ErrPoisoned) }
	r := w.do(http.MethodPost, mark+"?time_ms=80", "")
	w.wantError(r, 503, "unavailable", "poisoned")
	if r.header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
	}
	if want := []int64{77, 78, 79, 80}; !slices.Equal(w.barrier.marks, want) {
		t.Errorf("appended %v, want %v", w.barrier.marks, want)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t, Options{})
	w.wantError(w.get("/api/v1/precompute/drain"), 405, "bad_data", "method")
	w.wantError(w.post("/api/v1/precompute/drain", "experiment", "e"), 400, "bad_data", "experiment")
	w.wantError(w.post("/api/v1/precompute/drain", "timeout", "soon"), 400, "bad_data", "timeout")
	w.wantError(w.post("/api/v1/precompute/drain", "experment", "e"), 400, "bad_data", "experment")
	if w.barrier.drains != 0 {
		t.Fatal("H2: a refused request drained")
	}
	w.want(w.post("/api/v1/precompute/drain"), `{"status":"success","data":{"seq":9,"closed_buckets":1,"complete_through_ms":5},"warnings":["one \u003cwarning\u003e"]}`)
}
