//go:build planted

package main

import "os"

// The bugs that the campaign plants in this package. TIDEMARK_PLANTED names the one that is in force.
var (
	plantedDedupeAtDoor = os.Getenv("TIDEMARK_PLANTED") == "dedupe-at-door" // a retry is acknowledged at the door without being written
)
