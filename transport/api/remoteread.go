package api

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
)

// The bounds of remote read where ReadLimits say nothing else; they are Prometheus'.
const (
	DefaultReadSamples     = 50_000_000
	DefaultReadConcurrency = 10
	DefaultReadFrameBytes  = 1 << 20
)

// ReadLimits bound remote read. The zero value is usable.
type ReadLimits struct {
	Samples     int // of one answer that is not streamed; 0 = DefaultReadSamples
	Concurrency int // requests at one time, others wait; 0 = DefaultReadConcurrency
	FrameBytes  int // of a frame of a streamed answer; 0 = DefaultReadFrameBytes
}

func (l ReadLimits) withDefaults() ReadLimits {
	if l.Samples == 0 {
		l.Samples = DefaultReadSamples
	}
	if l.Concurrency == 0 {
		l.Concurrency = DefaultReadConcurrency
	}
	if l.FrameBytes == 0 {
		l.FrameBytes = DefaultReadFrameBytes
	}
	return l
}

// ChunkCopy is an exact copy that can be read by the chunk, too.
type ChunkCopy interface {
	Copy
	storage.ChunkQueryable
}

// whole lets nobody read times of which samples may be missing.
type whole struct{ ChunkCopy }

func (c whole) check(mint int64) error {
	if oldest := c.Oldest(); oldest != math.MinInt64 && mint <= oldest {
		return fmt.Errorf("before_retention: samples at or before %d ms may be missing, and the request begins at %d ms", oldest, mint)
	}
	return nil
}

// Querier implements storage.Queryable.
func (c whole) Querier(mint, maxt int64) (storage.Querier, error) {
	if err := c.check(mint); err != nil {
		return nil, err
	}
	return c.ChunkCopy.Querier(mint, maxt)
}

// ChunkQuerier implements storage.ChunkQueryable.
func (c whole) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	if err := c.check(mint); err != nil {
		return nil, err
	}
	return c.ChunkCopy.ChunkQuerier(mint, maxt)
}

// NewRemoteRead returns the handler of /api/v1/read over an exact copy: Prometheus' own, which answers with samples or streams chunks. Every
// write that was acknowledged before is in the answer. logger is told of answers that break off.
func NewRemoteRead(c ChunkCopy, limits ReadLimits, logger *slog.Logger, reg prometheus.Registerer) http.Handler {
	limits = limits.withDefaults()
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	read := remote.NewReadHandler(logger, reg, whole{c}, func() config.Config { return config.DefaultConfig }, limits.Samples, limits.Concurrency, limits.FrameBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := c.Wait(r.Context(), true); err != nil {
			e := classify(err)
			http.Error(w, e.Error(), e.StatusCode())
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, MaxFormBytes)
		read.ServeHTTP(flusher{w}, r)
	})
}

// flusher reaches the connection through what lies around a response.
type flusher struct{ http.ResponseWriter }

// Flush implements http.Flusher.
func (f flusher) Flush() {
	if err := http.NewResponseController(f.ResponseWriter).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		panic(http.ErrAbortHandler) // the client is gone; the answer cannot be finished
	}
}
