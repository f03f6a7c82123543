//go:build !planted

package accum

// Bugs that the campaign plants to see itself find them: see planted_on.go. Here they are not.
const (
	plantedPaneLocal   = false
	plantedMapOrder    = false
	plantedStaleCounts = false
)
