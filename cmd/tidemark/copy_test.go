package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// holdCopy keeps the exact copy of the services that are started from s closed, as if opening it took for ever, until release is called.
func holdCopy(s *setup) (release func()) {
	open := make(chan struct{})
	s.opened = func(n *node) {
		panes := n.copy.await
		n.copy.await = func(ctx context.Context) error {
			select {
			case <-open:
				return panes(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return sync.OnceFunc(func() { close(open) })
}

// A service is ready when its panes have caught up, and takes writes and answers from panes, however long the exact copy takes to be
// opened and fed. What needs the copy waits for it, and keeps no place in which others could be answered; it is never answered from
// less than what was acknowledged.
func TestReadyBeforeTheExactCopy(t *testing.T) {
	const places = 2
	first := setup{
		dir: t.TempDir(), config: panesOfAMinute + "exact: {local: true}\n",
		flags: []string{fmt.Sprintf("--query.max-concurrency=%d", places)},
	}
	v := startService(t, first)
	v.send(sent{`m`, 1000, 1}, sent{`m`, 2000, 2}, sent{`other`, 1000, 7})
	v.barrier(60_000)
	local := func(at int64, want float64) {
		t.Helper()
		if a := v.instant(`sum(other)`, at); a.route != "local" || a.one(t) != want {
			t.Errorf("from the exact copy: %+v; want %g", a, want)
		}
	}
	local(1500, 7)
	v.mustStop()

	second := first
	release := holdCopy(&second)
	v = startService(t, second) // which waits until it is ready
	if v.node.copy.opened() {
		t.Fatal("the copy is open; this test is about one that is not")
	}
	panes := func() {
		t.Helper()
		if a := v.instant(`sum_over_time(m[1m])`, 60_000); a.route != "warm" || a.one(t) != 3 {
			t.Errorf("from panes: %+v", a)
		}
	}
	panes()
	v.send(sent{`other`, 3000, 8})
	if o := v.barrier(61_000); o.Complete < 60_000 {
		t.Errorf("barrier: %+v", o)
	}
	for _, path := range []string{"/metrics", "/api/v1/status/tsdb", "/api/v1/status/log"} {
		if code, body := v.get(path); code != http.StatusOK {
			t.Errorf("%s: status %d, %s", path, code, body)
		}
	}
	if _, err := v.node.copy.samples.Querier(0, 1); err == nil {
		t.Error("the copy is read before it is open")
	}

	// One that does not wait long is told why; many that wait leave the places to others.
	code, _, body := v.form("/api/v1/query", "query", "other", "time", "3.5", "timeout", "50ms")
	if code != http.StatusServiceUnavailable || !strings.Contains(string(body), `"timeout"`) || !strings.Contains(string(body), "exact copy") {
		t.Errorf("status %d, %s; want 503, timeout, and that the exact copy was waited for", code, body)
	}
	code, _, body = v.form("/api/v1/query", "query", "other", "time", "3.5", "timeout", "50ms", "consistency", "published")
	if code != http.StatusServiceUnavailable {
		t.Errorf("from a copy that is not open: status %d, %s", code, body)
	}
	var waiting sync.WaitGroup
	for range 3 * places {
		waiting.Go(func() { local(3500, 8) })
	}
	panes()
	release()
	waiting.Wait()
	v.eventually("the copy has caught up", v.node.copy.ready)
	v.mustStop()

	// A copy that never had its turn ends with the service.
	third := first
	defer holdCopy(&third)()
	v = startService(t, third)
	began := time.Now()
	v.mustStop()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("stopped after %s", took)
	}
}
