//go:build race

package bucket

// raceDetector says that the tests run under the race detector, which switches Pebble's own checks on.
const raceDetector = true
