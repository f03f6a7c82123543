//go:build race

package logtest

// RaceDetector says that the tests run under the race detector, which also switches Pebble's own checks on, and with which stores keep in
// Go's heap what they otherwise keep beside it.
const RaceDetector = true
