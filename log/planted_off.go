//go:build !planted

package log

// Bugs that the campaign plants to see itself find them: see planted_on.go. Here they are not.
const (
	plantedAckBeforeSync   = false
	plantedFatalReturns    = false
	plantedNoDirectorySync = false
	plantedHeadAhead       = false
	plantedShortAccepted   = false
	plantedRandomSeed      = false
)
