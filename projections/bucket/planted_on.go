//go:build planted

package bucket

import "os"

// The bugs that the campaign plants in this package. TIDEMARK_PLANTED names the one that is in force.
var (
	plantedStateApart      = os.Getenv("TIDEMARK_PLANTED") == "state-apart"      // state and pieces are committed apart
	plantedCompactionLoses = os.Getenv("TIDEMARK_PLANTED") == "compaction-loses" // compaction drops the newest piece
)
