package accum

import (
	"math"

	"github.com/prometheus/prometheus/util/kahansum"
)

// compensated is a running compensated sum, as Prometheus keeps it.
type compensated struct {
	sum, comp float64
}

func (a *compensated) add(vs []float64) {
	for _, v := range vs {
		a.sum, a.comp = kahansum.Inc(v, a.sum, a.comp)
	}
}

func (a *compensated) addColumns(sum, comp float64) {
	a.sum, a.comp = kahansum.Inc(sum, a.sum, a.comp)
	a.comp += comp
}

func (a *compensated) total() float64 {
	if math.IsInf(a.sum, 0) {
		return a.sum
	}
	return a.sum + a.comp
}

// sum is sum_over_time. Wide columns need care: Prometheus' sum stays infinite once a partial sum has overflowed.
func (d *data) sum() (float64, error) {
	var a compensated
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		switch {
		case s.columns == nil:
			a.add(s.v)
		case s.columns.Wide == nil:
			a.addColumns(s.columns.Sum, s.columns.Comp)
		default:
			return d.wideSum()
		}
	}
	return a.total(), nil
}

// wideSum sums in the scale of Wide, in which nothing overflows, and tells from the partial sums what would have.
func (d *data) wideSum() (float64, error) {
	var a compensated
	overflow := 0 // the sign of the first overflow
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		if s.columns == nil {
			for _, v := range s.v {
				a.sum, a.comp = kahansum.Inc(v*wideScale, a.sum, a.comp)
				if overflow == 0 && isFinite(a.sum) && math.Abs(a.sum) > wideMax {
					overflow = sign(a.sum)
				}
			}
			continue
		}
		w := wideOf(s.columns)
		if overflow == 0 && isFinite(a.sum) {
			above, below := a.sum+w.High > wideMax, a.sum+w.Low < -wideMax
			switch {
			case above && below:
				return 0, ErrNeedsSamples // which came first is lost
			case above:
				overflow = 1
			case below:
				overflow = -1
			}
		}
		a.addColumns(w.Sum, w.Comp)
	}
	total := a.total()
	if overflow == 0 {
		return total / wideScale, nil
	}
	if math.IsNaN(total) || math.IsInf(total, -overflow) {
		return math.NaN(), nil // an infinite value of the other sign, or NaN, came in besides
	}
	return math.Inf(overflow), nil
}

// wideOf returns columns in the scale of Wide. Columns that are not wide cannot make a sum overflow on their own account,
// so their partial sums do not matter.
func wideOf(c *Columns) Wide {
	if c.Wide != nil {
		return *c.Wide
	}
	return Wide{Sum: c.Sum * wideScale, Comp: c.Comp * wideScale}
}

func sign(v float64) int {
	if v < 0 {
		return -1
	}
	return 1
}

// avg is avg_over_time: the mean of the compensated sum, in the scale of Wide if the sum itself overflows. (Prometheus
// then goes over to an incremental mean, which comes to the same.)
func (d *data) avg(count int64) float64 {
	var a compensated
	wide := false
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		if s.columns == nil {
			a.add(s.v)
			continue
		}
		wide = wide || s.columns.Wide != nil
		a.addColumns(s.columns.Sum, s.columns.Comp)
	}
	n := float64(count)
	if !wide && isFinite(a.sum) {
		return a.sum/n + a.comp/n
	}
	a = compensated{}
	k = walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		if s.columns == nil {
			for _, v := range s.v {
				a.sum, a.comp = kahansum.Inc(v*wideScale, a.sum, a.comp)
			}
			continue
		}
		w := wideOf(s.columns)
		a.addColumns(w.Sum, w.Comp)
	}
	return (a.sum/n + a.comp/n) / wideScale
}

// min is min_over_time: in time order, so that of equal values the first stays, and NaN only if there is nothing else.
func (d *data) min() float64 {
	acc := math.NaN()
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		if s.columns != nil {
			acc = lesser(acc, s.columns.Min)
			continue
		}
		for _, v := range s.v {
			acc = lesser(acc, v)
		}
	}
	return acc
}

// max is max_over_time.
func (d *data) max() float64 {
	acc := math.NaN()
	k := walk{d: d}
	for s, ok := k.next(); ok; s, ok = k.next() {
		if s.columns != nil {
			acc = greater(acc, s.columns.Max)
			continue
		}
		for _, v := range s.v {
			acc = greater(acc, v)
		}
	}
	return acc
}
