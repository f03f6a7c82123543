package pane

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// An order is found once for each list of series, also beside others, and what is asked for stays while others come and go; the room is
// bounded.
func TestOrders(t *testing.T) {
	var o orders
	sorts := 0
	list := func(seed uint64, n int) []uint64 {
		rng := rand.New(rand.NewPCG(seed, 1))
		refs := make([]uint64, n)
		for i := range refs {
			refs[i] = rng.Uint64N(1 << 40)
		}
		return refs
	}
	order := func(refs []uint64) []uint32 {
		at := make([]uint32, len(refs))
		for i := range at {
			at[i] = uint32(i)
		}
		// Any order that depends on the references alone.
		slices.SortFunc(at, func(x, y uint32) int { return int(int64(refs[x]%997) - int64(refs[y]%997)) })
		return at
	}
	ask := func(refs []uint64) {
		got := o.of(refs, func() []uint32 { sorts++; return order(refs) })
		if !slices.Equal(got, order(refs)) {
			t.Fatalf("%d series are in another order", len(refs))
		}
	}
	hot := list(0, 5000)
	for seed := range uint64(600) {
		ask(list(seed+1, 5000))
		ask(hot)
		if o.size > maxOrdered {
			t.Fatalf("%d positions are held", o.size)
		}
	}
	if sorts != 601 {
		t.Errorf("%d sorts of 601 lists", sorts)
	}
	// One series more, one less, two that have changed places: other lists.
	for _, other := range [][]uint64{hot[:4999], append(slices.Clone(hot), 1), append([]uint64{hot[1], hot[0]}, hot[2:]...)} {
		ask(other)
	}
	if sorts != 604 {
		t.Errorf("%d sorts", sorts)
	}
	few := list(9, leastOrdered-1)
	if ask(few); o.young != nil {
		ask(few)
	}
	if sorts != 606 {
		t.Errorf("%d sorts: a short list is sorted each time", sorts)
	}

	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			for seed := range uint64(300) {
				refs := list(1000+(seed+g)%50, 3000)
				if got := o.of(refs, func() []uint32 { return order(refs) }); !slices.Equal(got, order(refs)) {
					t.Error("another order")
				}
			}
		})
	}
	all.Wait()
}
