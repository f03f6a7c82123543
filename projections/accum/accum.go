package accum

// MaxSamples is the largest number of samples (stale markers included) that a pane keeps as they are. Above it a pane holds Columns.
const MaxSamples = 16

// MaxValues is the largest number of values that Columns keep exactly, for quantiles. Above it they keep a Sketch of them.
const MaxValues = 256

// ColumnPane is a pane of more than MaxSamples samples, filed under the end of its bucket.
type ColumnPane struct {
	End     int64 // ms, the bucket's inclusive end
	Columns *Columns
}

// Window is what one series has in one query window, in time order: samples from panes that hold samples (and from raw
// storage), and columns from the others. A column pane lies entirely before, between or after the samples around it.
type Window struct {
	T    []int64   // ms, increasing; stale markers included
	V    []float64 // parallel to T
	Cols []ColumnPane
}

// Pane is what a closed bucket of one series holds: its samples where they are at most MaxSamples, else Columns.
// A pane is not modified once made, so it may be shared.
type Pane struct {
	T       []int64   // ms, strictly increasing; stale markers included
	V       []float64 // parallel to T
	Columns *Columns  // nil where T and V say all

	// HasHistogram says that native-histogram samples fell into the bucket, which a pane does not hold. Fold leaves it
	// false; it is encoded with the pane. An evaluation over such a bucket cannot be answered from panes.
	HasHistogram bool
}

// Sample is one sample of a series.
type Sample struct {
	T int64 // ms
	V float64
}

// Columns is what remains of a bucket of more than MaxSamples samples. Stale markers count only for Marker.
type Columns struct {
	Count int64 // samples; the fields below are zero when it is 0

	First Sample
	Prev  Sample // the previous to last; equal to First when Count is 2, zero when it is 1
	Last  Sample

	Min, Max float64 // NaN only where every value is NaN

	Sum, Comp float64 // the compensated sum is Sum + Comp, or Sum alone where that is ±Inf
	Wide      *Wide   // non-nil where Sum may have overflowed, or may make another sum overflow

	Resets     int64   // samples below the one before them
	Correction float64 // Σ of the values just before a reset
	Changes    int64   // samples that differ from the one before them; NaN equals NaN

	HasMarker bool
	Marker    int64 // ms, the newest stale marker's time, if HasMarker

	Values []float64 // every value, sorted (NaN first), where Count ≤ MaxValues; else nil
	Sketch *Sketch   // where Count > MaxValues; else nil
}

// Wide is the sum of values of very large magnitude, every one multiplied by 2^-64 so that it cannot overflow, with
// what is needed to tell whether the sum of the values themselves would.
type Wide struct {
	Sum, Comp float64
	Low, High float64 // the least and the greatest partial sum, before any that is not finite; Low ≤ 0 ≤ High
}

// Append adds a pane behind what the window holds. end is the inclusive end of the pane's bucket, in ms; panes come in
// the order of their ends. The window takes copies of samples and shares Columns.
func (w *Window) Append(p *Pane, end int64) {
	if p.Columns != nil {
		w.Cols = append(w.Cols, ColumnPane{End: end, Columns: p.Columns})
		return
	}
	w.T = append(w.T, p.T...)
	w.V = append(w.V, p.V...)
}

// Reset empties the window and keeps its space.
func (w *Window) Reset() {
	clear(w.Cols) // lets go of the columns
	w.T, w.V, w.Cols = w.T[:0], w.V[:0], w.Cols[:0]
}
