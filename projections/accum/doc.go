// Package accum folds the samples of one closed bucket into a pane and reads PromQL's range functions out of panes.
//
// Contract. A value read from panes equals what the engine of Prometheus 3 computes from the samples themselves:
// |a−b| ≤ 1e-12·max(|a|, |b|, Σ|terms|), and bit for bit for counts, min, max, first, last, present, changes and resets.
// Where columns cannot answer, Eval says so (ErrNeedsSamples). It approximates quantiles over panes of more than MaxValues
// values, and nothing else, to SketchError, and says so (Evaluator.Sketched).
//
// Life cycle. When a bucket closes, its samples go once through Fold. The pane is encoded beside the end of its bucket,
// and read back into a Window, which gathers the panes of one series. A Cursor cuts the Window into the windows of the
// steps of a query, and an Evaluator evaluates a function over each. Nothing here has a clock, a lock or a goroutine;
// a Pane and a Window are values, an Evaluator holds scratch space and belongs to one goroutine.
//
// Invariants:
//
//	A1  Times within a pane, and within a window, increase strictly.
//	A2  Any cut of the samples into panes gives the answer of the samples uncut, or an error: merging is in time order,
//	    the gap between two panes is bridged, nothing is carried from pane to pane.
//	A3  A stale marker is never aggregated. It only decides Instant and Timestamp, when it is the newest in the window.
//	A4  Decoding what was encoded gives the same pane bit for bit, and the same samples always give the same bytes.
//	A5  Decoding never reads beyond its input and never allocates by a length that the input does not bear out.
//	A6  Eval depends on its arguments alone: equal windows give equal bits.
//
// # Bytes
//
// An encoded pane stands alone; its length follows from its content. uvarint and varint are those of encoding/binary
// (varint is zigzag). All arithmetic on times wraps modulo 2^64, so any time relative to any end survives.
//
//	tag      1 byte: bits 7..5 the version, 2; bit 4 set if native histograms fell into the bucket; bits 3..0 the shape
//
//	shape 0  columns
//	shape 1  no sample
//	shape 2+s (s in 0..6)  one sample: time, varint m; the value is m/10^s
//	shape 9  one sample: time, value as 8 bytes, little endian
//	shape 10 2..16 samples: 1 byte (bits 4..0 the count, bits 7..5 s), times, then varint m of the first value and
//	         the difference to the previous m for each further one; the value is m/10^s
//	shape 11 2..16 samples: 1 byte (the count), times, then each value's bits xor those of the previous (of 0 for the
//	         first): 1 byte (bits 7..4 the number of leading zero bytes, bits 3..0 of trailing ones; 0x80 for no
//	         difference), then the bytes between, most significant first
//	shapes 12..15 are not used
//
//	time     uvarint end − t
//	times    the first as above, then uvarint t2 − t1, then for each further one a varint, the change of that difference
//
// Columns are, in this order:
//
//	flags    1 byte: 1 a marker fell into the bucket, 2 resets, 4 changes, 8 compensation, 16 wide; the rest is zero
//	marker   if flagged: time of the newest stale marker
//	count    uvarint, samples without markers; nothing follows a 0
//	times    of the last sample; then uvarint last − previous to last (count ≥ 2), uvarint previous − first (count ≥ 3)
//	scalars  first, previous to last (count ≥ 3), last (count ≥ 2), min, max, sum
//	         then what is flagged: compensation; resets as uvarint and their correction as a scalar; changes as uvarint;
//	         the wide sum, its compensation, and the lowest and the highest of its partial sums
//	values   if count ≤ 256: 1 byte, s in 0..6 (then values as in shape 10) or 15 (as in shape 11)
//	sketch   if count > 256: 1 byte, the accuracy, 1; then uvarints: NaNs, −∞s, zeros, +∞s; then the bins of negative and
//	         those of positive values, by increasing value: their number, and for each the index of its magnitude (varint; then
//	         uvarint, the distance from the one before) and uvarint the count. The index of v is floor(ln v / ln γ), where
//	         γ = (1+α)/(1−α) and α = 0.005
//
//	scalar   1 byte: s in 0..6, then varint m; or 15, then 8 bytes, little endian
package accum
