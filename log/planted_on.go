//go:build planted

package log

import "os"

// The bugs that the campaign plants in this package. TIDEMARK_PLANTED names the one that is in force.
var (
	plantedAckBeforeSync   = os.Getenv("TIDEMARK_PLANTED") == "ack-before-sync"   // a write is acknowledged before its fsync
	plantedFatalReturns    = os.Getenv("TIDEMARK_PLANTED") == "fatal-returns"     // what Pebble calls fatal is logged, and the log goes on
	plantedNoDirectorySync = os.Getenv("TIDEMARK_PLANTED") == "no-directory-sync" // directories are not synced
	plantedHeadAhead       = os.Getenv("TIDEMARK_PLANTED") == "head-ahead"        // the HEAD note is written before the fsync of what it names
	plantedShortAccepted   = os.Getenv("TIDEMARK_PLANTED") == "short-accepted"    // a log that ends before its HEAD note is opened
	plantedRandomSeed      = os.Getenv("TIDEMARK_PLANTED") == "random-seed"       // the key of the series hash is drawn anew at each start
)
