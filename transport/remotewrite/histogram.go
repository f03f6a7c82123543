package remotewrite

import (
	"fmt"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
)

// DecodeHistogram reads a native histogram as it stands in the log. One of its results is set: the second for a histogram with float
// counts.
func DecodeHistogram(proto []byte) (*histogram.Histogram, *histogram.FloatHistogram, error) {
	var h prompb.Histogram
	if err := h.Unmarshal(proto); err != nil {
		return nil, nil, fmt.Errorf("native histogram: %w", err)
	}
	if h.IsFloatHistogram() {
		return nil, h.ToFloatHistogram(), nil
	}
	return h.ToIntHistogram(), nil, nil
}
