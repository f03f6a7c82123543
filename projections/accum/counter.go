package accum

import (
	"math"
	"time"
)

// nearEdge is how far the first or last sample may be from the edge of the range, in average distances between samples,
// for the range to count as covered to that edge (Prometheus: 10 % more than the average distance).
const nearEdge = 1.1

// extrapolated is rate, increase and delta.
func (d *data) extrapolated(f Func, e *ends, rangeStart, rangeEnd int64) (float64, bool, error) {
	if e.count < 2 {
		return 0, false, nil
	}
	growth := e.last.V - e.first.V
	if f != Delta {
		var err error
		if growth, err = d.addCorrections(growth); err != nil {
			return 0, false, err
		}
	}
	return extrapolate(f, growth, e, rangeStart, rangeEnd), true, nil
}

// extrapolate makes the result of rate, increase and delta out of the growth between the first and the last sample.
func extrapolate(f Func, growth float64, e *ends, rangeStart, rangeEnd int64) float64 {
	var c coverage
	c.set(spacing{count: e.count, sampled: e.last.T - e.first.T, before: e.first.T - rangeStart, after: rangeEnd - e.last.T})
	return c.extrapolate(f, growth, e.first.V)
}

// spacing is how samples lie in a range, in ms: from the first to the last, and between these and the edges.
type spacing struct{ count, sampled, before, after int64 }

// coverage is what extrapolation makes of a spacing, in seconds: how much of the range counts as covered.
type coverage struct {
	of                      spacing
	sampled, toStart, toEnd float64
	whole                   float64 // the range itself
}

func (c *coverage) set(s spacing) {
	c.of = s
	c.sampled = seconds(s.sampled)
	average := c.sampled / float64(s.count-1)
	threshold := average * nearEdge
	if c.toStart = seconds(s.before); c.toStart >= threshold {
		c.toStart = average / 2
	}
	if c.toEnd = seconds(s.after); c.toEnd >= threshold {
		c.toEnd = average / 2
	}
	c.whole = (time.Duration(s.before+s.sampled+s.after) * time.Millisecond).Seconds()
}

func (c *coverage) extrapolate(f Func, growth, first float64) float64 {
	toStart := c.toStart
	if f != Delta && growth > 0 && first >= 0 {
		// A counter cannot have been below zero: where its slope leads to zero, the series starts.
		if toZero := c.sampled * (first / growth); toZero < toStart {
			toStart = toZero
		}
	}
	factor := (c.sampled + toStart + c.toEnd) / c.sampled
	if f == Rate {
		factor /= c.whole
	}
	return growth * factor
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// addCorrections adds to growth the value before each reset, in time order, as Prometheus does.
func (d *data) addCorrections(growth float64) (float64, error) {
	k := walk{d: d}
	prev := math.NaN() // nothing is less than NaN: no reset before the first sample
	for s, ok := k.next(); ok; s, ok = k.next() {
		c := s.columns
		if plantedPaneLocal {
			prev = math.NaN()
		}
		if c == nil {
			for _, v := range s.v {
				if isReset(prev, v) {
					growth += prev
				}
				prev = v
			}
			continue
		}
		if isReset(prev, c.First.V) {
			growth += prev
		}
		if c.lumpMayOverflow(growth) {
			return 0, ErrNeedsSamples
		}
		if c.Resets > 0 {
			growth += c.Correction
		}
		prev = c.Last.V
	}
	return growth, nil
}

// lumpMayOverflow says that adding the correction to growth in one lump may overflow where adding its parts would not, or
// the other way round.
func (c *Columns) lumpMayOverflow(growth float64) bool {
	if c.Wide == nil || c.Resets < 2 {
		return false
	}
	bound := float64(c.Resets) * max(math.Abs(c.Min), math.Abs(c.Max))
	return !(math.Abs(growth)+bound <= math.MaxFloat64)
}

// instantSlope is irate and idelta, of the last two samples.
func instantSlope(f Func, e *ends) (float64, bool) {
	if e.count < 2 {
		return 0, false
	}
	growth := e.last.V - e.prev.V
	if f == Idelta {
		return growth, true
	}
	if isReset(e.prev.V, e.last.V) {
		growth = e.last.V
	}
	return growth / seconds(e.last.T-e.prev.T), true
}

func (d *data) resets() int64 {
	n := int64(0)
	k := walk{d: d}
	prev := math.NaN()
	for s, ok := k.next(); ok; s, ok = k.next() {
		if c := s.columns; c != nil {
			if isReset(prev, c.First.V) {
				n++
			}
			n += c.Resets
			prev = c.Last.V
			continue
		}
		for _, v := range s.v {
			if isReset(prev, v) {
				n++
			}
			prev = v
		}
	}
	return n
}

func (d *data) changes() int64 {
	n := int64(0)
	k := walk{d: d}
	started, prev := false, 0.0
	for s, ok := k.next(); ok; s, ok = k.next() {
		if c := s.columns; c != nil {
			if started && isChange(prev, c.First.V) {
				n++
			}
			n += c.Changes
			started, prev = true, c.Last.V
			continue
		}
		for _, v := range s.v {
			if started && isChange(prev, v) {
				n++
			}
			started, prev = true, v
		}
	}
	return n
}
