package bucket

import "testing"

// What is listed by prefix must not meet keys of another kind.
func TestKeyPrefixesAreDistinct(t *testing.T) {
	seen := map[byte]string{}
	for name, key := range map[string]byte{
		"meta": keyMeta, "checkpoint": keyCheckpoint, "recent": keyRecent, "piece": keyPiece, "leave": keyLeave, "evicted": keyEvicted,
		"experiment": keyExperiment, "experiment of a generation": keyLaterCount, "evicted of a generation": keyLaterGone,
		"generation": keyGeneration, "row": keyRow, "window": keyWindowStep, "window label": keyWindowSeries, "window newest": keyWindowNewest,
	} {
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s share the prefix %q", name, other, key)
		}
		seen[key] = name
	}
}
