package query

// This file is data path 6 of 6: answer. It tells the steps for which open panes are read.

import "slices"

// liveSteps are those steps of a request at which some leaf reads a window that is not published.
type liveSteps struct {
	outer steps
	at    []bool // by step; nil: none
}

// reset forgets all; l may be nil.
func (l *liveSteps) reset() {
	if l != nil {
		l.at = nil
	}
}

// count returns how many steps are live; l may be nil.
func (l *liveSteps) count() (n int) {
	if l == nil {
		return 0
	}
	for _, live := range l.at {
		if live {
			n++
		}
	}
	return n
}

// mark notes that a leaf which is evaluated at s is live at the time t of these. Where its times are not those of the request, every
// step from there on may depend on it.
func (l *liveSteps) mark(s steps, t int64) {
	n := l.outer.count()
	if n == 0 {
		return
	}
	if l.at == nil {
		l.at = make([]bool, n)
	}
	if s.start == l.outer.start && (s.every == l.outer.every || n == 1) && s.count() == n {
		l.at[(t-s.start)/s.every] = true
		return
	}
	k := int64(0)
	if s.count() > 1 && t > l.outer.start { // one that is evaluated once counts for all
		k = (t - l.outer.start + l.outer.every - 1) / l.outer.every
	}
	for k = min(k, n-1); k < n; k++ {
		l.at[k] = true
	}
}

// note marks the steps at which l reads a window that is not published.
func (l *leaf) note(a *Answer, live *liveSteps) {
	var open []int64
	for i := range a.Series {
		open = append(open, a.Series[i].Open...)
	}
	slices.Sort(open)
	open = slices.Compact(open)
	times := l.dataTimes()
	for k, n := int64(0), times.count(); k < n; k++ {
		e := times.at(k)
		i, _ := slices.BinarySearch(open, e-l.window+1) // the first bucket that ends in the window
		if e > a.Frontier || i < len(open) && open[i] <= e {
			live.mark(l.steps, l.steps.at(k))
		}
	}
}
