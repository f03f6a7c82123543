//go:build !race

package bucket

// raceDetector says that the tests run under the race detector.
const raceDetector = false
