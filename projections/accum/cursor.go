package accum

import "sort"

// Cut returns the part of w in (start, end], in ms. It shares w's space. A column pane belongs to the part that its End
// is in: the caller sees to it that range functions get windows which no column pane straddles (the grid of the panes
// divides them). For Instant and Timestamp a straddling column pane is harmless.
func (w *Window) Cut(start, end int64) Window {
	lo := sort.Search(len(w.T), func(i int) bool { return w.T[i] > start })
	hi := lo + sort.Search(len(w.T)-lo, func(i int) bool { return w.T[lo+i] > end })
	colLo := sort.Search(len(w.Cols), func(i int) bool { return w.Cols[i].End > start })
	colHi := colLo + sort.Search(len(w.Cols)-colLo, func(i int) bool { return w.Cols[colLo+i].End > end })
	return w.slice(lo, hi, colLo, colHi)
}

func (w *Window) slice(lo, hi, colLo, colHi int) Window {
	return Window{T: w.T[lo:hi:hi], V: w.V[lo:hi:hi], Cols: w.Cols[colLo:colHi:colHi]}
}

// Cursor cuts one window into the windows of successive steps without looking at any sample twice.
type Cursor struct {
	// Edge moves the bounds for samples, and only for these, back by so many ms: with 1, Cut returns the part in [start, end).
	// Column panes belong to the part that the end of their bucket is in, whichever edge the bucket owns. Reset sets it to 0.
	Edge int64

	w            *Window
	lo, hi       int
	colLo, colHi int
}

// Reset puts the cursor before the first sample of w, which must not change while the cursor is used.
func (c *Cursor) Reset(w *Window) { *c = Cursor{w: w} }

// Cut is Window.Cut for bounds that never decrease from one call to the next, with start ≤ end.
func (c *Cursor) Cut(start, end int64) Window {
	w := c.w
	for c.lo < len(w.T) && w.T[c.lo] <= start-c.Edge {
		c.lo++
	}
	for c.hi < len(w.T) && w.T[c.hi] <= end-c.Edge {
		c.hi++
	}
	for c.colLo < len(w.Cols) && w.Cols[c.colLo].End <= start {
		c.colLo++
	}
	for c.colHi < len(w.Cols) && w.Cols[c.colHi].End <= end {
		c.colHi++
	}
	return w.slice(c.lo, c.hi, c.colLo, c.colHi)
}
