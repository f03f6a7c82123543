package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

const (
	dashboardJobs        = 10
	dashboardExperiments = 200
)

// dashboardEdges are the bounds of the histograms' buckets.
var dashboardEdges = []string{"0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "+Inf"}

// newDashboardLoad makes the series that the dashboard is about, by turns: gauges m, lognormally distributed; counters c; and the buckets
// b_bucket of classic histograms, whose counts grow with their bounds.
func newDashboardLoad(shape loadShape, every time.Duration, now time.Time) *load {
	l := &load{
		loadShape: shape, every: every.Milliseconds(), start: now.Add(-loadAge).UnixMilli() / loadGrid * loadGrid, value: dashboardValue,
	}
	for i := range shape.series {
		n := i / 3
		of := n // the job and the experiment of a histogram are those of all its buckets
		lb := []string{"__name__", []string{"m", "c", "b_bucket"}[i%3]}
		if i%3 == 2 {
			of = n / len(dashboardEdges)
			lb = append(lb, "le", dashboardEdges[n%len(dashboardEdges)])
		}
		lb = append(lb, "instance", fmt.Sprintf("10.0.%d.%d:9100", of/250%250, of%250), "job", fmt.Sprintf("job-%d", of%dashboardJobs), "experiment", fmt.Sprintf("exp-%03d", of/dashboardJobs%dashboardExperiments),
			"series", strconv.Itoa(of))
		for k := len(lb) / 2; k < shape.labels; k++ {
			lb = append(lb, fmt.Sprintf("label_%02d", k), fmt.Sprintf("value-%02d-of-a-label", k))
		}
		l.sets = append(l.sets, remotewrite.Precode(labels.FromStrings(lb...)))
	}
	l.share()
	return l
}

// dashboardValue is the value of a series in a round.
func dashboardValue(series int, round int64, before float64, random uint64) float64 {
	switch series % 3 {
	case 0: // exp of a sum of uniform numbers, with three decimals
		sum := float64(random&0xffff+random>>16&0xffff+random>>32&0xffff+random>>48) / 65536
		return math.Round(math.Exp(sum-2)*50_000) / 1000
	case 1:
		return before + float64(random&63)
	}
	n := series / 3
	of, edge := uint64(n/len(dashboardEdges)), n%len(dashboardEdges)
	return before + float64((of*31+uint64(round)*17)%7*uint64(edge+1)) // the same for all buckets of a histogram, but for their bounds
}
