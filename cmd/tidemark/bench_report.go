package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"
)

// report prints figures, one a line, in the format of Go's benchmarks, so that benchstat can compare runs.
type report struct{ w io.Writer }

func newReport(w io.Writer) *report {
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\npkg: tidemark\n", runtime.GOOS, runtime.GOARCH)
	return &report{w}
}

// figure prints one figure; n is how many operations it comes from.
func (r *report) figure(name string, n uint64, value float64, unit string) {
	text := fmt.Sprintf("%.0f", value)
	switch {
	case math.Abs(value) < 10:
		text = fmt.Sprintf("%.3f", value)
	case math.Abs(value) < 1000:
		text = fmt.Sprintf("%.1f", value)
	}
	full := fmt.Sprintf("Benchmark%s-%d", name, runtime.GOMAXPROCS(0))
	fmt.Fprintf(r.w, "%-64s %8d %12s %s\n", full, n, text, unit)
}

// latency prints quantiles in a unit that is per long.
func (r *report) latency(name string, l *latencies, per time.Duration, unit string) {
	in := func(d time.Duration) float64 { return float64(d) / float64(per) }
	r.figure(name, l.n, in(l.quantile(0.5)), "p50-"+unit)
	r.figure(name, l.n, in(l.quantile(0.99)), "p99-"+unit)
	r.figure(name, l.n, in(l.max), "max-"+unit)
}

const (
	// Each bucket of latencies is this much wider than the one before: quantiles are within one percent.
	latencyGrowth = 1.02
	// latencyBuckets reach beyond an hour.
	latencyBuckets = 1472
	// exactLatencies are kept as they are: up to this number quantiles are exact.
	exactLatencies = 4096
)

// latencies are durations in a bounded space, however many there are. The zero value is empty.
type latencies struct {
	exact  []time.Duration // the first of them
	counts [latencyBuckets]uint64
	n      uint64
	max    time.Duration
}

func (l *latencies) add(d time.Duration) {
	if len(l.exact) < exactLatencies {
		l.exact = append(l.exact, d)
	}
	i := int(math.Log(max(1, float64(d))) / math.Log(latencyGrowth))
	l.counts[min(i, latencyBuckets-1)]++
	l.n++
	l.max = max(l.max, d)
}

func (l *latencies) merge(o *latencies) {
	l.exact = append(l.exact, o.exact[:min(len(o.exact), exactLatencies-len(l.exact))]...)
	for i, n := range o.counts {
		l.counts[i] += n
	}
	l.n += o.n
	l.max = max(l.max, o.max)
}

// quantile returns the q-quantile, exactly or to one percent; 0 if there is nothing.
func (l *latencies) quantile(q float64) time.Duration {
	rank := uint64(max(1, math.Ceil(q*float64(l.n))))
	if l.n > 0 && l.n == uint64(len(l.exact)) {
		return slices.Sorted(slices.Values(l.exact))[rank-1]
	}
	seen := uint64(0)
	for i, n := range l.counts {
		if seen += n; n > 0 && seen >= rank {
			return min(l.max, time.Duration(math.Pow(latencyGrowth, float64(i)+0.5)))
		}
	}
	return 0
}
