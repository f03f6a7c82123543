// Package accum folds the samples of one closed bucket into a pane and reads PromQL's range functions out of panes.
package accum

// MaxSamples is the largest number of samples (stale markers included) that a pane keeps as they are. Above it a pane holds Columns.
const MaxSamples = 16

// MaxValues is the largest number of values that Columns keep exactly, for quantiles.
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
