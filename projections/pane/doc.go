// Package pane folds the log into panes: it opens buckets, closes them, and publishes what they hold.
//
// The fold is Shard: a state machine over events, without clock, I/O or goroutine. Series belong to one of Shards shards by
// their reference; a shard's content depends on the events alone, not on how many workers there are, which batches the
// events came in, or where the process was restarted. Projection runs the shards on a few workers, writes checkpoints shard
// by shard, and answers reads as of one log sequence.
//
// Per series there is one run of raw samples, which covers the union of its streams' open buckets and tails; per series and
// stream there are the open buckets, the largest filing time seen (maxF) and the closure watermark c. A bucket is folded
// from the run when it closes, and again when a late sample corrects it, so every family is exact.
//
// Invariants.
//
//	P1  State after event n is a function of events 1..n.
//	P2  One series' time never closes another series' bucket.
//	P3  A bucket is published when it closes, visible to every read whose sequence is at or behind the event that closed it.
//	P4  c never decreases; a bucket with E ≤ c never opens again.
//	P5  routed = applied + duplicate + conflict + late dropped + late uncorrectable, per stream, over samples that are no stale markers.
//	P6  A read sees every shard as of one sequence.
//	P7  A checkpoint holds a shard's state, what it closed, and the sequence, in one batch.
//	P8  A bucket that an expired event removed is never read, digested, opened, corrected or marked again, whether its bytes are
//	    still on disk or not; they are deleted once every restart and every reader is behind the event.
//	P9  Behind a heal event, the buckets into which samples up to it were refused as late are what they would be with these samples
//	    in their place in time, and not marked; nothing else changes. What a heal changes is found from the events alone, each time.
//	P10 What is counted of an experiment (Experiment) is part of the shard's state: its row lands in the same batch, and its version
//	    is the last event that changed any of it. Streams of later generations are counted like all others, from their handing over on.
//	P11 A read of open buckets takes no copy in the worker and sees none of what comes after its sequence.
//
// Life cycle of a Projection: New, Restore, Run (blocks), with Apply called by the runner in log order.
package pane
