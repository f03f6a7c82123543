package remotewrite

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"tidemark/log"
)

// inflight bounds the number of requests under way and the memory of all of them together. Nobody waits for it: a request
// that does not fit is told to come again, so that memory and goroutines are flat under any number of senders, also while a
// disk stalls and nothing can be acknowledged.
//
// No client takes all of it: one may hold maxClient bytes and maxClientRequests requests, so that others are served while it is told
// to come again.
type inflight struct {
	max         int64
	used        atomic.Int64
	maxRequests int64
	requests    atomic.Int64

	maxClient, maxClientRequests int64
	mu                           sync.Mutex
	clients                      map[string]*holding // that have a request under way
}

// holding is what one client holds.
type holding struct{ bytes, requests int64 }

// address names who sends by the address without its port.
func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// enter counts a request of a client in, until the lease is released. It fails with errRequests or errClient.
func (f *inflight) enter(client string) (*lease, error) {
	if f.requests.Add(1) > f.maxRequests {
		f.requests.Add(-1)
		return nil, errRequests
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clients[client]
	if c == nil {
		c = &holding{}
		if f.clients == nil {
			f.clients = make(map[string]*holding)
		}
		f.clients[client] = c
	}
	if c.requests >= f.maxClientRequests {
		f.requests.Add(-1)
		return nil, errClient
	}
	c.requests++
	return &lease{of: f, client: client, holds: c}, nil
}

// lease is what one request holds of an inflight.
type lease struct {
	of     *inflight
	client string
	holds  *holding
	held   int64
}

// grow takes n more bytes, before they are allocated. It fails with errInflight or errClient.
func (l *lease) grow(n int64) error {
	f := l.of
	if used := f.used.Add(n); used > f.max {
		f.used.Add(-n)
		return errInflight
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.holds.bytes+n > f.maxClient {
		f.used.Add(-n)
		return errClient
	}
	l.holds.bytes += n
	l.held += n
	return nil
}

// release gives everything back.
func (l *lease) release() {
	f := l.of
	f.used.Add(-l.held)
	f.requests.Add(-1)
	f.mu.Lock()
	defer f.mu.Unlock()
	l.holds.bytes -= l.held
	if l.holds.requests--; l.holds.requests == 0 {
		delete(f.clients, l.client)
	}
}

// What the parts of an event take in memory, in bytes, in the builder and in the finished event together. Strings and
// histograms are copied out of the body and are counted by its length.
const (
	eventBytesPerItem   = 128 // a histogram or an exemplar; a sample takes half
	eventBytesPerSeries = 128
)

// eventBytes estimates what an event of a request takes. In version 2.0 strings are counted as often as they are named.
func eventBytes(c Counts, decoded int) int64 {
	items := int64(c.Samples)/2 + int64(c.Histograms) + int64(c.Exemplars) + int64(c.Metadata)
	return int64(decoded) + c.Expanded + items*eventBytesPerItem + int64(c.Series)*eventBytesPerSeries
}

// Bounds of what idle arenas keep.
const (
	pooledArenas  = 16
	pooledBody    = 1 << 20
	pooledDecoded = 4 << 20
	pooledSamples = 50_000
	pooledSymbols = 100_000
)

// arena is the memory of one request, used again by later ones.
type arena struct {
	body, decoded []byte
	scan          Scanner
	symbols       Symbols
	reader        labelReader
	histogram     histogramReader
	builder       *log.WriteBuilder
	exemplar      []byte
	metadata      []log.Metadata
	order         order
}

// arenas is a pool with a bound, so that what a burst of requests needed does not stay.
type arenas struct {
	free   chan *arena
	reader labelReader // the limits
}

func newArenas(limits labelReader) *arenas {
	return &arenas{free: make(chan *arena, pooledArenas), reader: limits}
}

func (p *arenas) get() *arena {
	select {
	case a := <-p.free:
		return a
	default:
		return &arena{reader: p.reader, builder: log.NewWriteBuilder()}
	}
}

func (p *arenas) put(a *arena) {
	if cap(a.body) > pooledBody {
		a.body = nil
	}
	if cap(a.decoded) > pooledDecoded || cap(a.scan.scratch) > pooledDecoded || cap(a.exemplar) > pooledDecoded {
		// Of what was decoded, labels, exemplars, histograms and the scanner's scratch are parts: they grow and go together.
		a.decoded, a.exemplar, a.scan, a.reader, a.histogram = nil, nil, Scanner{}, p.reader, histogramReader{}
	}
	if cap(a.symbols.at) > pooledSymbols {
		a.symbols = Symbols{}
	}
	a.symbols.body = nil
	if a.builder.Samples() > pooledSamples || len(a.metadata) > pooledSamples {
		a.builder, a.metadata = log.NewWriteBuilder(), nil
	}
	if a.order.release(); cap(a.order.met) > pooledSamples {
		a.order.met = nil
	}
	a.builder.Reset()
	a.scan.Reset(nil, Counts{})
	clear(a.metadata)
	a.metadata = a.metadata[:0]
	select {
	case p.free <- a:
	default:
	}
}
