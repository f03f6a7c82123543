//go:build !race

package logtest

// RaceDetector says that the tests run under the race detector.
const RaceDetector = false
