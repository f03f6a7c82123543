package transport

import (
	"errors"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// DefaultMaxConnections bounds the connections of a server without flags.
const DefaultMaxConnections = 4096

// limited is a listener that bounds connections (T1): each holds a file descriptor, and the stores need theirs. What is beyond the
// bound is closed at once, so that a client learns of it and nobody waits behind it. Half of all is the most that one address
// gets, so that one cannot keep the others out.
type limited struct {
	net.Listener
	max     int
	refused prometheus.Counter

	mu    sync.Mutex
	total int
	of    map[string]int // by address
}

// Limit returns a listener with at most max connections at a time. Its metrics are registered with reg.
func Limit(l net.Listener, max int, reg prometheus.Registerer) (net.Listener, error) {
	b := &limited{Listener: l, max: max, of: make(map[string]int), refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tidemark_http_connections_refused_total", Help: "Connections that were closed at once because there were too many.",
	})}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemark_http_connections", Help: "Connections that are open."}, func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(b.total)
	})
	return b, errors.Join(reg.Register(b.refused), reg.Register(open))
}

// Accept implements net.Listener.
func (b *limited) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = c.RemoteAddr().String()
		}
		if b.enter(host) {
			return &counted{Conn: c, leave: sync.OnceFunc(func() { b.leave(host) })}, nil
		}
		b.refused.Inc()
		_ = c.Close() // it was never used
	}
}

func (b *limited) enter(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total >= b.max || b.of[host] >= max(1, b.max/2) {
		return false
	}
	b.total++
	b.of[host]++
	return true
}

func (b *limited) leave(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.of[host]--; b.of[host] == 0 {
		delete(b.of, host)
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
