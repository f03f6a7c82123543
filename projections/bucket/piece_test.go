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

// P4: a piece has the same bytes whether its panes find their places or are sorted, and whatever the layout was used for before.
func TestP4_LaidOutAsSorted(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var lay layout
	laid := 0
	for round := range 300 {
		tb := NewTable()
		step, series, first := uint64(1)<<rng.IntN(8), 1+rng.IntN(200), rng.Uint64N(1000)+1
		for range 1 + rng.IntN(3000) {
			put(tb, Key{}, first+step*rng.Uint64N(uint64(series)), rng.IntN(EndsPerBlock), strconv.Itoa(rng.IntN(1000)))
		}
		switch round % 10 {
		case 7:
			put(tb, Key{}, 1<<40, 3, "far")
		case 8:
			tb.MarkIncomplete(Key{}, first, 3)
		case 9:
			tb.Heal(Key{}, first, 3)
		}
		chunks := tb.blocks[Key{}]
		var items []item
		for _, c := range chunks {
			items = c.appendItems(items)
		}
		if lay.span(chunks) {
			laid++
		}
		if got, want := lay.appendPiece([]byte("x"), chunks), appendItemsPiece([]byte("x"), items); !slices.Equal(got, want) {
			t.Fatalf("round %d: %d bytes, sorted %d, or others", round, len(got), len(want))
		}
	}
	if laid < 100 || laid > 250 {
		t.Fatalf("%d of 300 were laid out", laid)
	}
}
