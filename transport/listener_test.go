package transport

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// T1: connections beyond the bound are closed at once, and one address gets half of them; one that ends makes room.
func TestT1_Connections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	l, err := Limit(inner, 6, reg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	s.Listener.Close()
	s.Listener = l
	s.Config = Server(s.Config.Handler, DefaultTimeouts())
	s.Start()
	defer s.Close()
	// ask uses a connection of its own, from an address of this machine, and keeps it open.
	ask := func(from string) (net.Conn, bool) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(context.Background(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			return c, false
		}
		n, err := c.Read(make([]byte, 12))
		return c, err == nil && n == 12
	}
	var open []net.Conn
	for _, want := range []struct {
		from string
		ok   bool
	}{
		{"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", false},
		{"127.0.0.2", true}, {"127.0.0.2", true}, {"127.0.0.3", true}, {"127.0.0.3", false}, {"127.0.0.4", false},
	} {
		c, ok := ask(want.from)
		if ok != want.ok {
			t.Errorf("connection from %s: %v", want.from, ok)
		}
		if open = append(open, c); !ok {
			c.Close()
		}
	}
	if n := testutil.ToFloat64(l.(*limited).refused); n != 3 {
		t.Errorf("%v were refused", n)
	}
	open[0].Close()
	for {
		if c, ok := ask("127.0.0.4"); ok { // the server has seen that the first has gone
			c.Close()
			break
		} else {
			c.Close()
		}
	}
	for _, c := range open {
		c.Close()
	}
}
