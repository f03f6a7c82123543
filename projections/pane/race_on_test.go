//go:build race

package pane

// raceDetector says that the tests run under the race detector, where the stores keep in Go's heap what they otherwise keep beside it.
const raceDetector = true
