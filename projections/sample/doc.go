// Package sample is the exact copy: the samples of the log in an embedded Prometheus TSDB, from which any PromQL is answered
// without an upstream.
//
// Contract. The copy is a projection of its own behind the log, and delays no acknowledgement. It holds every sample that the
// log holds, stale markers, native histograms and exemplars included, as far back as its retention and its size limit go; its
// out-of-order window is its retention. It knows what it does not hold (Oldest), so that nobody is given half an answer. It is
// not part of the digest.
//
// Invariants, by which tests are named:
//
//	E1  First wins. For one series and time the first value in log order is kept, in whatever order samples arrive, and
//	    however often the events are applied. Within one event floats come before histograms.
//	E2  Known gaps. What is refused (too old, too many series) and what retention deletes moves Oldest beyond it, durably, no
//	    later than it is gone.
//	E3  Restart. A restart goes on behind an event up to which everything is in the TSDB, whatever ended the process; applying
//	    what comes after it again changes nothing.
//	E4  Rebuilt. The directory may be deleted while no service runs: the copy is then folded again from the log.
//	E5  One at a time. Of all that moves chunks out of the head and removes its chunk files, one thing runs at a time; and until the
//	    first chunk file since the start has been begun, no event is appended beside it.
//
// E1 rests on this: TSDB takes a sample as in order only if it is newer than all that its series has, in the head as well as in
// blocks, since nothing is evicted from the head before its time. Every other sample is looked up before it is appended.
//
// # Life cycle
//
//	New ──► Check ──► Restore ──► Apply … beside Run ──► Run ends with a checkpoint ──► Close
//
// Check, which may be left out, reads the notes alone. Restore opens the TSDB, which reads all of its write-ahead log. TSDB compacts and
// expires nothing on its own: Run has it do so, and so does a Checkpoint with what came out of order. Whoever reads may do so from the
// beginning: Wait blocks until the copy is open.
//
// E5 rests on this: when TSDB has removed all chunk files there are, it begins to number them anew. An event whose late sample begins a file
// in that very moment writes to file 1 what TSDB takes to be in file 0, and the next compaction finds something else there than it must,
// which TSDB answers with a panic. The file that is written to is never removed. So once one has been begun, not all of them can be removed,
// and events need no longer wait.
//
// # Files
//
//	dir/CHECKPOINT   replaced as a whole, synced: what is durable
//	dir/APPLIED      overwritten in place: how far events were applied, and whether the copy was closed in order
//	dir/METADATA     replaced as a whole, before a CHECKPOINT that reflects it
//	dir/tsdb/        the TSDB: write-ahead logs, head chunks, blocks
//
// Integers are little-endian; each file ends in a CRC-32C of what precedes it.
//
//	CHECKPOINT   version u8 = 1 | identity of the log: length u8, bytes | sequence u64 | expired i64 | refused i64
//	APPLIED      version u8 = 1 | closed u8 | sequence u64 | refused i64
//	METADATA     version u8 = 1 | count u32 | each: family, type, help, unit: length u32, bytes
//
// What came in order is safe in TSDB's write-ahead log, and blocks are synced before they replace anything. What came out of order is
// not: after a kill, TSDB's log of it may name chunks that never reached their file, or by then hold something else. So a copy that was
// not closed in order gives that log and those chunks up, and CHECKPOINT names an event up to which everything out of order stands in
// blocks. The events behind it are applied again.
package sample
