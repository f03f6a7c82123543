//go:build planted

package pane

import "os"

// The bugs that the campaign plants in this package. TIDEMARK_PLANTED names the one that is in force.
var (
	plantedRecentLost        = os.Getenv("TIDEMARK_PLANTED") == "recent-lost"        // the hashes of recent writes are not part of a checkpoint
	plantedTickLate          = os.Getenv("TIDEMARK_PLANTED") == "tick-late"          // a bucket is due one millisecond late
	plantedTruncatedDivision = os.Getenv("TIDEMARK_PLANTED") == "truncated-division" // division truncates towards zero instead of down
	plantedCheckpointAhead   = os.Getenv("TIDEMARK_PLANTED") == "checkpoint-ahead"   // a checkpoint bears the sequence behind its own
	plantedLateAfter         = os.Getenv("TIDEMARK_PLANTED") == "late-after"         // lateness is judged against the state behind each sample instead of before the event
	plantedBarrierWide       = os.Getenv("TIDEMARK_PLANTED") == "barrier-wide"       // a barrier closes what ends one millisecond later
	plantedFastClock         = os.Getenv("TIDEMARK_PLANTED") == "fast-clock"         // one fast clock moves the frontier
	plantedUnsorted          = os.Getenv("TIDEMARK_PLANTED") == "unsorted"           // the samples of an event are taken in the wrong order
	plantedTailReturns       = os.Getenv("TIDEMARK_PLANTED") == "tail-returns"       // a tail that was given up stands again after a restart
	plantedConflictWins      = os.Getenv("TIDEMARK_PLANTED") == "conflict-wins"      // a conflict overwrites the first value
	plantedDuplicateTouches  = os.Getenv("TIDEMARK_PLANTED") == "duplicate-touches"  // a duplicate keeps a bucket open
	plantedDowntimeCloses    = os.Getenv("TIDEMARK_PLANTED") == "downtime-closes"    // ages count through downtime
	plantedRetentionEager    = os.Getenv("TIDEMARK_PLANTED") == "retention-eager"    // retention deletes one block too many
	plantedDirtyForgotten    = os.Getenv("TIDEMARK_PLANTED") == "dirty-forgotten"    // a correction does not make recorded steps dirty
)
