// Package master is the control plane's view of experiments: the sets of series that carry one value of the experiment label.
//
// It is a projection of the same log as everything else. What is counted of an experiment by its series stands in the checkpoints
// of the panes' shards (Source); what maintenance did to it, and its tasks, Fold takes from the log itself. A scan round brings both
// together, once in a while, into an immutable Snapshot, which is what is listed. Nobody who lists waits for anything.
//
// Invariants; tests carry their names.
//
//	M1   One round is at most one commit, of the rows that changed, and a header. An unchanged experiment is not observed.
//	M2   The version of a row is the sequence of the last event that changed any other column.
//	M3   What failed keeps what was known: an experiment its row, a round the snapshot.
//	M4   The snapshot is swapped after its commit, and only then.
//	M5   Retired means: nothing open, nothing uncompacted, and no accepted sample since. It is decided by the fold of the event, so that
//	     a sample that races it is counted, once, and the experiment is hot.
//	M6   A retired experiment costs a round nothing. Reading about it writes nothing. Its counters survive, and its return.
//	M7   No lock is held while a store, the log or the panes are waited for.
//	M8   A task is queued once for a kind and a target, runs once at a time, and one task at a time runs for an experiment.
//	M9   Who is claimed has its place already; a place that is taken is never waited for.
//	M10  Sweeps read an index over all experiments, hot or not, worst first.
//	M11  Upkeep can be cut off anywhere, goes on where it was, and says what it has left to do even while it does not run.
//	M12  The rows and the retired set are a function of the events.
//
// Life cycle: New, then a projections.Runner over the Fold, then Run (blocks). Snapshots may be read at once: the last one of the
// process before is there after Load.
//
// Keys of the rows, in two spaces of the views' store. Names are escaped: a zero byte is 0 255, and 0 1 ends the name, so that keys
// sort as names do. Integers in keys are big-endian, others are varints (v: zigzag, u: unsigned).
//
//	fold:
//	  "m"              → format:u = 1, sequence:u of the last event that is in the rows, epoch:u, experiment label: rest
//	  "r" name         → record of an experiment
//	  "t" ULID:16      → task
//	  "f" kind:1 name  → failures of tasks in a row
//	  "n" kind:1 name  → the last task that changed nothing
//	snapshots:
//	  "v" version:8    → header of a snapshot
//	  "s" name version:8 → row as of that version; empty: the experiment left the table
//	  "u"              → cursor of upkeep
//	  "y" version:8    → point of the history: totals, and the samples that each row had gained
package master
