//go:build !planted

package main

// Bugs that the campaign plants to see itself find them: see planted_on.go. Here they are not.
const (
	plantedDedupeAtDoor = false
)
