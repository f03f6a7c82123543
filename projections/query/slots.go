package query

import (
	"context"
	"sync"
)

// slots bounds the queries that are evaluated at one time, and those of one client, so that whoever asks for much leaves room for others.
// A slot is taken for the whole of a request, the read included. Who finds none waits. A slot that becomes free goes to the clients in
// turn, and of one client to the query that has waited longest: a long queue of one delays another by one query at most.
//
// Q10: no client holds more than its share, and no slot is free while somebody waits who may have it.
//
// As promql.QueryTracker it has nothing left to do but tell its size.
type slots struct {
	max, share int

	mu      sync.Mutex
	held    int
	clients map[string]*holder // that hold a slot or wait for one
	turns   []*holder          // those that wait, the next to be served first
}

// holder is one client.
type holder struct {
	name    string
	held    int
	waiting []chan struct{} // each closed when its query has a slot
}

func newSlots(max int, share float64) *slots {
	s := &slots{max: max, share: int(float64(max) * share), clients: make(map[string]*holder)}
	s.share = min(max, s.share)
	if s.share < 1 {
		s.share = 1
	}
	return s
}

// clientKey is the key of a context under which it says for whom a query is.
type clientKey struct{}

// WithClient says for whom the queries of a context are. Those that do not say are all of one client.
func WithClient(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, name)
}

func (s *slots) acquire(ctx context.Context) (*slot, error) {
	name, _ := ctx.Value(clientKey{}).(string)
	held := &slot{all: s, client: name}
	return held, held.take(ctx)
}

// slot is that of one request.
type slot struct {
	all    *slots
	client string
	holder *holder // nil while it is not held
}

func (s *slot) take(ctx context.Context) error {
	h, granted := s.all.ask(s.client)
	select {
	case <-granted:
		s.holder = h
		return nil
	default:
	}
	select {
	case <-granted:
		s.holder = h
		return nil
	case <-ctx.Done():
		s.all.leave(h, granted)
		return ended(ctx, "query queue")
	}
}

// release gives the slot back, if it is held.
func (s *slot) release() {
	if s.holder != nil {
		s.all.giveBack(s.holder)
		s.holder = nil
	}
}

// ask puts a query of a client into the queue and serves who is next.
func (s *slots) ask(client string) (*holder, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.clients[client]
	if h == nil {
		h = &holder{name: client}
		s.clients[client] = h
	}
	if len(h.waiting) == 0 {
		s.turns = append(s.turns, h)
	}
	granted := make(chan struct{})
	h.waiting = append(h.waiting, granted)
	s.serve()
	return h, granted
}

// serve gives free slots to the clients in turn.
func (s *slots) serve() {
	for i := 0; s.held < s.max && i < len(s.turns); {
		h := s.turns[i]
		if h.held >= s.share {
			i++
			continue
		}
		close(h.waiting[0])
		h.waiting = h.waiting[1:]
		h.held++
		s.held++
		s.turns = append(s.turns[:i], s.turns[i+1:]...)
		if len(h.waiting) > 0 {
			s.turns = append(s.turns, h)
		}
	}
}

// leave takes a query that waits no longer out of the queue; one that has just been given a slot gives it back.
func (s *slots) leave(h *holder, granted chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range h.waiting {
		if w != granted {
			continue
		}
		h.waiting = append(h.waiting[:i:i], h.waiting[i+1:]...)
		if len(h.waiting) == 0 {
			for at, turn := range s.turns {
				if turn == h {
					s.turns = append(s.turns[:at], s.turns[at+1:]...)
					break
				}
			}
		}
		s.forget(h)
		return
	}
	s.drop(h)
}

func (s *slots) giveBack(h *holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(h)
}

func (s *slots) drop(h *holder) {
	h.held--
	s.held--
	s.forget(h)
	s.serve()
}

func (s *slots) forget(h *holder) {
	if h.held == 0 && len(h.waiting) == 0 {
		delete(s.clients, h.name)
	}
}

// GetMaxConcurrent implements promql.QueryTracker.
func (s *slots) GetMaxConcurrent() int { return s.max }

// Insert implements promql.QueryTracker.
func (s *slots) Insert(context.Context, string) (int, error) { return 0, nil }

// Delete implements promql.QueryTracker.
func (s *slots) Delete(int) {}

// Close implements promql.QueryTracker.
func (s *slots) Close() error { return nil }
