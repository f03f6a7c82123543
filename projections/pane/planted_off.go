//go:build !planted

package pane

// Bugs that the campaign plants to see itself find them: see planted_on.go. Here they are not.
const (
	plantedRecentLost        = false
	plantedTickLate          = false
	plantedTruncatedDivision = false
	plantedCheckpointAhead   = false
	plantedLateAfter         = false
	plantedBarrierWide       = false
	plantedFastClock         = false
	plantedUnsorted          = false
	plantedTailReturns       = false
	plantedConflictWins      = false
	plantedDuplicateTouches  = false
	plantedDowntimeCloses    = false
	plantedRetentionEager    = false
	plantedDirtyForgotten    = false
)
