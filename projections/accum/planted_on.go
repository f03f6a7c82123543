//go:build planted

package accum

import "os"

// The bugs that the campaign plants in this package. TIDEMARK_PLANTED names the one that is in force.
var (
	plantedPaneLocal   = os.Getenv("TIDEMARK_PLANTED") == "pane-local"   // a counter reset between panes is not seen
	plantedMapOrder    = os.Getenv("TIDEMARK_PLANTED") == "map-order"    // values are summed up in the order of a map
	plantedStaleCounts = os.Getenv("TIDEMARK_PLANTED") == "stale-counts" // a stale marker is aggregated
)
