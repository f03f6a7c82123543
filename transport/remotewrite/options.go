package remotewrite

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Options are the bounds of a Handler. DefaultOptions returns usable ones; New refuses what makes no sense.
type Options struct {
	MaxBodyBytes     int64 // of a request as it comes; beyond it 413
	MaxDecodedBytes  int64 // of a request after decompression, and of what the references of version 2.0 stand for; beyond it 413
	MaxInflightBytes int64 // memory of all requests together; beyond it 503
	// MaxInflightRequests is how many requests may be under way, most of them waiting for their fsync; beyond it 503.
	MaxInflightRequests int

	// MaxClientShare is how much of both one client may take, as a fraction of 1, so that one cannot keep all others out; but always
	// as much as the largest allowed request takes.
	MaxClientShare float64
	// Client names who sends a request; nil: by its address. A name that the sender may choose freely would be no bound.
	Client func(*http.Request) string

	MaxSeries  int // series and metadata entries of a request; beyond it 413
	MaxSamples int // samples, histograms and exemplars of a request; beyond it 413

	MaxLabels          int // labels of a series; beyond it the series is refused
	MaxLabelNameBytes  int
	MaxLabelValueBytes int

	// MaxFuture is how far ahead of the clock a timestamp may be; 0 means any distance.
	MaxFuture time.Duration
	// BodyTimeout is how long a body may take to arrive.
	BodyTimeout time.Duration
	// RateLimit is in requests per second, with bursts of RateBurst; 0 means no limit.
	RateLimit float64
	RateBurst int

	// Now is the clock of MaxFuture and of the durations; nil means time.Now.
	Now func() time.Time
}

// DefaultOptions returns the bounds of a server without configuration.
func DefaultOptions() Options {
	return Options{
		MaxBodyBytes:        16 << 20,
		MaxDecodedBytes:     32 << 20,
		MaxInflightBytes:    256 << 20,
		MaxInflightRequests: 1000,
		MaxClientShare:      0.5,
		MaxSeries:           100_000,
		MaxSamples:          500_000,
		MaxLabels:           128,
		MaxLabelNameBytes:   1 << 10,
		MaxLabelValueBytes:  4 << 10,
		MaxFuture:           10 * time.Minute,
		BodyTimeout:         30 * time.Second,
	}
}

// maxLabelBytes keeps every label far below what labels.Labels can hold (16 MiB).
const maxLabelBytes = 1 << 20

func (o *Options) validate() error {
	for _, p := range []struct {
		name  string
		value int64
	}{
		{"MaxBodyBytes", o.MaxBodyBytes},
		{"MaxDecodedBytes", o.MaxDecodedBytes},
		{"MaxInflightRequests", int64(o.MaxInflightRequests)},
		{"MaxSeries", int64(o.MaxSeries)},
		{"MaxSamples", int64(o.MaxSamples)},
		{"MaxLabels", int64(o.MaxLabels)},
		{"MaxLabelNameBytes", int64(o.MaxLabelNameBytes)},
		{"MaxLabelValueBytes", int64(o.MaxLabelValueBytes)},
		{"BodyTimeout", int64(o.BodyTimeout)},
	} {
		if p.value <= 0 {
			return fmt.Errorf("%s must be above 0", p.name)
		}
	}
	if o.MaxLabelNameBytes > maxLabelBytes || o.MaxLabelValueBytes > maxLabelBytes {
		return fmt.Errorf("MaxLabelNameBytes and MaxLabelValueBytes must be at most %d", maxLabelBytes)
	}
	if !(o.MaxClientShare > 0 && o.MaxClientShare <= 1) {
		return errors.New("MaxClientShare must be above 0 and at most 1")
	}
	if o.MaxFuture < 0 || o.RateLimit < 0 {
		return errors.New("MaxFuture and RateLimit must not be negative")
	}
	if o.RateLimit > 0 && o.RateBurst < 1 {
		return errors.New("RateBurst must be at least 1 with a RateLimit")
	}
	// A request that could never be admitted would be sent again for ever.
	if need := o.largestRequest(); need > o.MaxInflightBytes {
		return fmt.Errorf("MaxInflightBytes must be at least %d, which the largest allowed request takes", need)
	}
	return nil
}

// largestRequest is the most that one request takes from MaxInflightBytes.
func (o *Options) largestRequest() int64 {
	c := Counts{Series: o.MaxSeries, Histograms: o.MaxSamples, Expanded: o.MaxDecodedBytes}
	symbols := min(maxSymbols, o.MaxDecodedBytes/2) // a symbol takes two bytes at least
	return o.MaxBodyBytes + 1 + o.MaxDecodedBytes + symbols*symbolBytes + eventBytes(c, int(o.MaxDecodedBytes))
}

// clientBytes is the most that one client takes from MaxInflightBytes.
func (o *Options) clientBytes() int64 {
	return max(o.largestRequest(), int64(float64(o.MaxInflightBytes)*o.MaxClientShare))
}
