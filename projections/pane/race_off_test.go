//go:build !race

package pane

// raceDetector says that the tests run under the race detector.
const raceDetector = false
