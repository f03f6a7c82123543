package query

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Q10: one client's queue, however long, keeps no other client waiting for more than one query.
func TestQ10_OneClientLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(4, 0.5)
		greedy, modest := WithClient(t.Context(), "greedy"), WithClient(t.Context(), "modest")
		var held []*slot
		for range 2 {
			one, err := s.acquire(greedy)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, one)
		}
		var served atomic.Int64
		for range 100 {
			go func() {
				one, err := s.acquire(greedy)
				if err != nil {
					t.Error(err)
					return
				}
				served.Add(1)
				one.release()
			}()
		}
		synctest.Wait()
		if n := served.Load(); n != 0 {
			t.Errorf("%d queries beyond the share of their client", n)
		}
		one, err := s.acquire(modest) // at once: nothing else in this bubble could let it go on
		if err != nil {
			t.Fatal(err)
		}
		one.release()
		held[0].release()
		synctest.Wait()
		if n := served.Load(); n != 100 {
			t.Errorf("%d of 100 were served by the slot that became free", n)
		}
		held[1].release()
		if len(s.clients) != 0 || len(s.turns) != 0 || s.held != 0 {
			t.Errorf("%d clients, %d turns, %d held at rest", len(s.clients), len(s.turns), s.held)
		}
	})
}

// Where the whole is full, a slot that becomes free goes to the client whose turn it is and not to the longest queue.
func TestQ10_InTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, 1)
		first, err := s.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order string
		ask := func(client string) {
			go func() {
				one, err := s.acquire(WithClient(t.Context(), client))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order += client
				mu.Unlock()
				one.release()
			}()
			synctest.Wait()
		}
		for range 5 {
			ask("a")
		}
		ask("b")
		ask("c")
		ask("b")
		first.release()
		synctest.Wait()
		if order != "abcabaaa" {
			t.Errorf("served in the order %s", order)
		}
	})
}

// A query that is given up, before or just as it is served, leaves nothing behind and loses no slot.
func TestQ10_GivenUp(t *testing.T) {
	s := newSlots(3, 0.7)
	var all sync.WaitGroup
	var most atomic.Int64
	for w := range 16 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range 2000 {
				ctx, cancel := context.WithCancel(WithClient(t.Context(), string(rune('a'+w%3))))
				if r.IntN(2) == 0 {
					go cancel()
				}
				one, err := s.acquire(ctx)
				if err != nil && KindOf(err) != KindCanceled {
					t.Error(err)
				}
				s.mu.Lock()
				most.Store(max(most.Load(), int64(s.held)))
				s.mu.Unlock()
				one.release()
				cancel()
			}
		})
	}
	all.Wait()
	if s.held != 0 || len(s.clients) != 0 || len(s.turns) != 0 {
		t.Errorf("%d held, %d clients, %d turns at rest", s.held, len(s.clients), len(s.turns))
	}
	if n := most.Load(); n != 3 {
		t.Errorf("%d held at most, of 3", n)
	}
}
