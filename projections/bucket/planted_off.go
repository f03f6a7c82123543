//go:build !planted

package bucket

// Bugs that the campaign plants to see itself find them: see planted_on.go. Here they are not.
const (
	plantedStateApart      = false
	plantedCompactionLoses = false
)
