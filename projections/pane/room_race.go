//go:build race

package pane

import "math"

// spoil has whoever reads on after a release fall on his face.
func (c *roomChunk) spoil() {
	for i := range c.t {
		c.t[i], c.v[i] = math.MaxInt64, math.NaN()
	}
}
