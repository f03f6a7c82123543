// Package bucket stores published buckets: the panes of closed buckets, per stream and series.
//
// A Table holds what one shard closed since its last checkpoint, in memory. A checkpoint writes it as pieces, one for each
// (stream, block of 32 ends, shard), together with the shard's state and sequence, in one Pebble batch. A piece names
// (series, end) pairs and holds the complete pane of each; per series and end the newest piece wins, and a table is newer
// than every piece. Corrections are therefore whole panes again, never differences.
//
// The store has no write-ahead log and is never fsynced per write: Flush makes everything committed before it durable. What
// a crash takes is folded again from the log. The whole directory may be deleted; it is then rebuilt.
//
// A rebuild folds the log into a directory of its own, which then takes the place of the views (Work, Swap, Settle). Beside
// the views, named after their directory:
//
//	views/            what is read
//	views.rebuild/    what a rebuild folds, and may go on with after an interruption; with the note WORK
//	views.old/        what a rebuild has replaced, while it is removed
//
// Invariants.
//
//	P1  Per (stream, series, end) readers see one pane: the newest as of their view.
//	P2  Readers hold immutable memory; a Table only ever appends behind what a view has seen.
//	P3  State, pieces and sequence of a shard land in one batch, or not at all.
//	P4  A piece's bytes do not depend on the order in which its entries were put.
//	P5  After a crash anywhere in Swap, Settle finds the old views or the new ones, whole, and nothing in between.
//	P6  Views whose note is not that of the work at hand are never gone on with.
//	P7  Maintenance (Compact, Expire) changes no reader's answer: it keeps to the durable checkpoint and to what readers have
//	    pinned, and what it writes lands in one batch that first looks again at what it replaces. See pins for the proof.
//	P9  A base is whole or is not there: see Seal. It is written down in base.go.
//	P10 A bucket is incomplete if a mark is newer than whatever healed it, in whichever pieces and tables the two stand, and wherever
//	    compaction puts them.
//
// Bytes in the store (integers in keys are big-endian; signed ones have their sign bit flipped so that they sort):
//
//	"m"                                   → format version (1 byte), identity of the log (rest)
//	"c" shard:1                           → seq:8, state of the shard (projections/pane)
//	"c" shard:1 generation:8              → the same of a shard of a generation
//	"g" generation:8                      → seq:8, note of projections/pane: how far a generation came that is folded in the background
//	"h" seq:8                             → log time:8, and for a write event the hash of its content:16 (a start event has none)
//	"x" shard:1 name                      → what the shard has counted of an experiment (projections/pane)
//	"X" generation:8 shard:1 name         → the same of a shard of a later generation
//	"o" space:1 key                       → row of a read model beside the panes (see Rows)
//	"p" stream:8 block:8 shard:1 seq:8    → piece
//	"d" stream:8 block:8 shard:1          → the series whose last block in the stream it is, as they were evicted, one behind the other:
//	                                        ref:uvarint, blocks before it:uvarint, hash of the group:4
//	"v" ref:8                             → of an evicted series: version:1 = 1, seq:uvarint, streams:uvarint, then each:
//	                                        stream:8, closure watermark:varint (ms)
//	"V" generation:8 ref:8                → the same of a series that a later generation has evicted
//	"w" record:8 step:8                   → recorded step (see Windows)
//	"l" record:8 number:4                 → label set of an output series: per label, by name, length:uvarint and bytes of name and value
//	"H" record:8                          → since:8: the record is whole (see Windows.SetWhole)
//	"W"                                   → the newest sequence that any recorded step is as of:8
//
// Piece, version 1:
//
//	version:1 = 1
//	series:uvarint
//	per series, by increasing ref:
//	  ref delta:uvarint (the first from 0)
//	  mask:uvarint      bit i+1: a pane ends at the block's i-th end; bit 0: an incomplete mask follows; bit 33: a healed mask follows
//	  incomplete:uvarint, only with bit 0: bit i: the bucket at the block's i-th end lost late samples
//	  healed:uvarint, only with bit 33: bit i: incomplete masks of older pieces do not count for the block's i-th end
//	  per set bit of the mask, increasing: length:uvarint, pane (projections/accum)
//	crc32c of everything before:4, little-endian
package bucket
