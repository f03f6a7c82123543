package bucket

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// P1: items come by (ref, end), and those of one place by their age, whether or not places fit into numbers.
func TestP1_ItemsAreSortedByPlaceAndAge(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, far := range []uint64{1, 1 << 20, 1 << 59} {
		items := make([]item, 3000)
		for i := range items {
			items[i] = item{ref: 7 + far*rng.Uint64N(16), idx: uint8(rng.IntN(EndsPerBlock)), payload: []byte(strconv.Itoa(i))}
		}
		want := slices.Clone(items)
		slices.SortStableFunc(want, func(a, b item) int { return cmp.Or(cmp.Compare(a.ref, b.ref), cmp.Compare(a.idx, b.idx)) })
		for again := range 2 { // the second time they are in order
			if items = sortItems(items); !slices.EqualFunc(items, want, func(a, b item) bool { return string(a.payload) == string(b.payload) }) {
				t.Fatalf("refs %d apart, time %d: not in order", far, again)
			}
		}
	}
}
