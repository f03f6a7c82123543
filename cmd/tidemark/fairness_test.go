package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	"tidemark/log"
	"tidemark/projections"
)

// paused is a projection that a test can stop where it stands.
type paused struct {
	projections.Projection
	sync.RWMutex
}

// Apply implements projections.Projection.
func (p *paused) Apply(ctx context.Context, events []*log.Event) error {
	p.RLock()
	defer p.RUnlock()
	return p.Projection.Apply(ctx, events)
}

// askFrom sends a query from a loopback address, which is by what clients without a user are told apart.
func (v *hosted) askFrom(address, expr string) (int, string) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	tr := &http.Transport{DialContext: d.DialContext}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get(v.base + "/api/v1/query?time=60&query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// waitingForPlace counts the goroutines of this process that wait for a place among the queries.
func waitingForPlace() int {
	buf := make([]byte, 4<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "query.(*slot).take(")
}

// One client's queries that take long, however many, do not keep another client's from being answered (Q10).
func TestOneClientsQueriesLeaveRoom(t *testing.T) {
	p := &paused{}
	v := startService(t, setup{
		config: panesOfAMinute + "query: {unpublished: live}\n", flags: []string{"--query.max-concurrency=2"},
		opened: func(n *node) {
			p.Projection = n.panes
			n.runner = projections.NewRunner(n.events, p)
			if err := n.runner.Restore(); err != nil {
				t.Error(err)
			}
		},
	})
	const many = 6
	p.Lock()
	v.send(sent{`m`, 1000, 7}) // queries wait until it is folded
	answers := make(chan string, many)
	for range many {
		go func() {
			_, body := v.askFrom("127.0.0.2", "sum_over_time(m[1m])")
			answers <- body
		}()
	}
	// All have asked when so many wait as would if one client might have both places.
	v.eventually("the long queries are under way", func() bool { return waitingForPlace() >= many-2 })
	if code, body := v.askFrom("127.0.0.3", "vector(1)"); code != http.StatusOK {
		t.Errorf("the other client: %d %s", code, body)
	}
	v.eventually("all queries of the busy client wait but one", func() bool { return waitingForPlace() == many-1 })
	p.Unlock()
	for range many {
		if body := <-answers; !strings.Contains(body, `"7"`) {
			t.Errorf("a long query in the end: %s", body)
		}
	}
	v.mustStop()
}
