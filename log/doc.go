// Package log is the durable, ordered sequence of everything that Tidemark was told: the only truth, from which all
// else is folded.
//
// # Contract
//
// An event is a Body (a write, a watermark, a start, a tick, a drain, a plan, an expiry, a heal, a compaction, a retirement, a step of
// a task) that the log has put into order. Its
// sequence is dense from 1. Append returns when the event is fsynced, and never before. The invariants, which the tests
// name:
//
//   - L1 Durable: what was acknowledged is there after any crash, whole and bit for bit.
//   - L2 Ordered: sequences are dense, log time never decreases, and each event carries the hash of its encoded
//     predecessor, so that a hole, a swap or a shortened log is found and not skipped.
//   - L3 Atomic: one Body is one event is all or nothing, and so is what one AppendAll was given.
//   - L4 Poisoned: after the first failed write or fsync nothing is acknowledged any more until the log is opened again.
//   - L5 Visible when durable: readers and subscribers never see an event before its fsync.
//   - L6 Defined at first use: the label set of a series lies in the dictionary and in the Defs of the first event that
//     uses the series, all in one batch.
//   - L7 Refuse, never guess: an unknown version or kind, a damaged event, a log that ends before a note or a checkpoint
//     says it should, a foreign directory or a newer format is a named error, and nothing on disk is changed.
//   - L8 Bounded: the queue, a batch, the shared tail, the dictionary's caches and every decoded length have named bounds; what tells
//     new series from those in the store takes 1.5 to 3 bytes for each.
//   - L9 Truncated on purpose: below the floor there is nothing, above it everything, and the first event kept follows the one
//     that was removed last. Whoever asks for less than the floor is told so.
//
// # Life cycle
//
//	Open ──► (Run) ──► Append … ──► cancel Run's context ──► Close
//	            └────► poisoned: Run returns the error; Append fails; reading goes on until Close
//
// Open makes or recovers the store and starts nothing. Run holds the three actors: the committer, which stamps waiting
// bodies and hands them to the store in one batch; the syncer, which waits for the fsyncs in order, moves the head and
// answers; and the noter, which writes the HEAD note. A Log may be read before Run is called and after it has returned.
//
// Checkpoint copies a log while it is written; the copy is a log of its own. A Census is told of the series that come and go, and may
// refuse new ones.
//
// # Files
//
//	dir/LOCK        held while a process has the log open
//	dir/HEAD        text: format, newest durable sequence, hash of that event, crc32c. Written at creation, at most once a
//	                second while the head moves, and when Run ends. A start refuses when the log ends before it
//	dir/store/      a Pebble store at the newest format
//	dir/store.new/  a store that is being made; holds nothing acknowledged; removed and made again at the next start
//	dir/store.repair/     a store that Repair makes; while dir/store exists, it holds nothing that counts
//	dir/damaged-<time>/   what Repair has moved aside: the store, the HEAD note, and what was lost, in words. Never removed
//
// Repair copies the longest verified prefix, found file by file (an event proves itself, wherever it lies), into store.repair
// and syncs it. Then it moves the store into damaged-<time>, rewrites HEAD and renames store.repair to store, in this order and
// each durably; without a store, no start succeeds, and Repair goes on. The key of the series hash is kept, so that what was
// folded from the log stays valid where it is not ahead of the new end. Repair never runs by itself.
//
// The store is made in store.new, closed, renamed and opened again, because Pebble raises the format of a new store only
// after it has created its first WAL, and damage in the middle of a WAL of the older format reads as its end.
//
// Keys of the store (integers big-endian):
//
//	m                  meta: format u8, floor u64, key of the series hash u64; if the floor is beyond 1 also the hash of the
//	                   event before it, 16 bytes, with which the chain begins, and the largest sample time before it, i64
//	e seq u64          an encoded event
//	s ref u64          labels of a series
//	h hash 16 bytes    keyed hash of encoded labels → ref u64
//
// # Bytes of an event, format 1
//
// Fixed integers are little-endian; uv is an unsigned varint, zz a zigzag varint, str a uv length and that many bytes.
//
//	version u8 = 1 | kind u8 | ULID 16 | log time i64 | wall time i64 | predecessor hash 16 | payload | crc32c u32
//
// The crc covers the sequence (8 bytes, big-endian) and everything before it, so that an event under a wrong key is found.
// The predecessor hash is the XXH3-128 of the whole encoded predecessor, zero for the first event.
//
//	start      reason u8
//	watermark  time zz | scoped u8 | experiment str, if scoped
//	tick       nothing
//	drain      nothing
//	plan       the spec
//	expired    stream 8 | origin zz | width zz | through zz
//	heal       through uv | from uv
//	compacted  experiment str | through uv | pieces uv | bytes read uv | bytes written uv
//	experiment_retired  experiment str | at version uv | last write zz | closed through zz | parts uv | each: shard uv, series uv,
//	           samples uv, buckets uv | only if there are any, of later generations of streams: parts uv | each: generation uv, shard uv,
//	           buckets uv
//	task_queued    ULID 16 | kind u8 | manual u8 | target str | options str
//	task_started   ULID 16
//	task_finished  ULID 16 | bit 0 failed, bit 1 unchanged: u8 | version uv | error class str | message str
//	write      columns | definitions
//
// Columns of a write:
//
//	content hash 16
//	sections u8        bit 0 samples, 1 start times, 2 exemplars, 3 histograms, 4 metadata; others refuse
//	samples            runs uv (R) | samples uv (N) | R reference gaps uv, ≥ 1 | R run lengths uv, ≥ 1, absent if N = R
//	times              mode u8: 0 all equal: zz; 1: N zz: the first of a run less the first of the run before it; a later
//	                   one less the sample before it and less the last such difference
//	values             see below
//	start times        N zz, each less the one before it
//	exemplars          count uv | each: ref uv, time zz, value 8, labels
//	histograms         count uv | each: ref uv, time zz, str
//	metadata           count uv | each: family, type, help, unit str
//	labels             count uv | each: name str, value str
//
// Values: mode u8. A value v has exponent e (0…6) if v = m/10^e bit for bit for an integer |m| ≤ 2^53; the smallest such e
// is its own. −0, NaNs, infinities and what has no exponent are raw.
//
//	0…6    exponent of the column | exceptions uv (X) | X gaps uv (distance from the one before, less one) | N−X mantissas
//	       zz | X raw values 8 bytes
//	16…22  the same with exponent mode−16, each mantissa less the one before it in its run (exceptions left out)
//	7      N raw values
//	8      N nibbles, low first: own exponent, or 7 for raw | mantissas zz | raw values
//
// The writer takes the shortest of these. Definitions: count uv | each: reference gap uv, labels.
//
// Numbers that are retired keep their slot. testdata holds an encoded log of each format.
package log
