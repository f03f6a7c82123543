package main

import (
	"net"
	"net/http"
	"testing"
	"time"

	"tidemark/transport"
)

// A handler that runs when patience is over is told by its context, and waited for.
func TestRequestsStop(t *testing.T) {
	began, ended := make(chan struct{}), false
	r := newRequests(transport.Server(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		close(began)
		<-req.Context().Done()
		ended = true
	}), transport.DefaultTimeouts()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(l) }()
	asked := make(chan error, 1)
	go func() {
		_, err := http.Post("http://"+l.Addr().String(), "text/plain", nil)
		asked <- err
	}()
	<-began
	if !r.stop(time.Millisecond) || !ended {
		t.Error("the handler was left running")
	}
	if err := <-asked; err == nil {
		t.Error("the client has an answer")
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()

}

// Stopping while a barrier waits for a fold that does not come ends in bounded time, in order.
func TestStopWhileABarrierWaits(t *testing.T) {
	t.Parallel() // it waits for the patience of a stop
	h := &held{pass: make(chan struct{})}
	v, err := openService(t, setup{config: panesOfAMinute, opened: h.hold(t)})
	if err != nil {
		t.Fatal(err)
	}
	v.eventually("writes are taken", func() bool { return v.node.gate.open.Load() })
	before := v.headSeq()
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := v.http.Post(v.base+"/api/v1/precompute/watermark?time_ms=1", "", nil)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == 200 {
				t.Error("the barrier succeeded without the fold")
			}
		}
	}()
	v.eventually("the watermark is in the log", func() bool { return v.headSeq() > before })
	v.mustStop()
	<-done
}
