package sample

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// The bounds where Options say nothing else.
const (
	DefaultRetention = 15 * 24 * time.Hour
	DefaultMaxBytes  = 50 << 30
	// DefaultMaxSeries bounds the series of the TSDB's head, which is what its memory depends on.
	DefaultMaxSeries = 4 << 20

	defaultCheckpointInterval = 15 * time.Second
	// lateInterval is the least time between two compactions of what came out of order, each of which leaves a block.
	lateInterval = 2 * time.Minute
	// maxExemplars is the number of exemplars that are kept, the newest.
	maxExemplars = 100_000
	// maxKnown bounds the series whose reference in the TSDB is remembered; beyond it all are forgotten, which costs a lookup each.
	maxKnown = 1 << 20
	// maxFamilies and maxPerFamily bound the metadata.
	maxFamilies  = 100_000
	maxPerFamily = 16
)

// Log is what the copy asks of the log besides its events.
type Log interface {
	Head() log.Seq
	// Origin returns the first sequence that the log holds, and a bound, in ms, of the times of all samples before it.
	Origin() (floor log.Seq, newest int64)
	Identity() []byte
}

// Labels finds the label set of a series that an event uses. *log.Dictionary is one.
type Labels interface {
	Labels(ref log.SeriesRef) (labels.Labels, bool, error)
}

// HistogramDecoder reads a native histogram as the log keeps it: one of the two results is set.
type HistogramDecoder func(proto []byte) (*histogram.Histogram, *histogram.FloatHistogram, error)

// Options of a Projection. The zero value is usable.
type Options struct {
	Retention          time.Duration    // of samples, counted back from the newest; default DefaultRetention
	MaxBytes           int64            // of the TSDB on disk; default DefaultMaxBytes
	MaxSeries          uint64           // in the head; default DefaultMaxSeries
	CheckpointInterval time.Duration    // default 15s. Negative: only at the end
	Histograms         HistogramDecoder // nil: native histograms are refused
	Logger             *slog.Logger     // default: discards

	lateInterval time.Duration // default lateInterval
}

func (o Options) withDefaults() Options {
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxSeries == 0 {
		o.MaxSeries = DefaultMaxSeries
	}
	if o.CheckpointInterval == 0 {
		o.CheckpointInterval = defaultCheckpointInterval
	}
	if o.lateInterval == 0 {
		o.lateInterval = lateInterval
	}
	if o.Histograms == nil {
		o.Histograms = func([]byte) (*histogram.Histogram, *histogram.FloatHistogram, error) { return nil, nil, errNoDecoder }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

var errNoDecoder = errors.New("native histograms are not taken")
