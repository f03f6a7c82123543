package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// cutOffTimeout bounds what is waited for requests whose connections were cut: they read stores that are closed next.
const cutOffTimeout = 2 * time.Second

// requests serves HTTP and knows which handlers run.
type requests struct {
	server  *http.Server
	running sync.WaitGroup
	cutOff  context.CancelFunc // ends the context of every request
}

// newRequests takes a server over and puts itself before its handler.
func newRequests(server *http.Server) *requests {
	r := &requests{server: server}
	inner := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.running.Add(1)
		defer r.running.Done()
		inner.ServeHTTP(w, req)
	})
	var base context.Context
	base, r.cutOff = context.WithCancel(context.Background())
	server.BaseContext = func(net.Listener) context.Context { return base }
	return r
}

// stop lets requests under way end for as long as patience, then cuts their connections and ends their contexts. It returns
// whether every handler has ended.
func (r *requests) stop(patience time.Duration) bool {
	bound, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer r.cutOff()
	if r.server.Shutdown(bound) == nil {
		return true
	}
	r.cutOff()
	r.server.Close()
	ended := make(chan struct{})
	go func() {
		r.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(cutOffTimeout):
		return false
	}
}
