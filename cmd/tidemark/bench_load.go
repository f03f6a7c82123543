package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"tidemark/transport/remotewrite"
)

const (
	loadMetric = "tidemark_bench"
	loadGroups = 100
	// loadAge is how long ago, in event time, a load begins: far enough that it does not reach the present.
	loadAge = 365 * 24 * time.Hour
	// loadGrid, in ms, divides the beginning of every load, so that its windows lie on the grids of its panes.
	loadGrid = int64(3_600_000)

	minLoadLabels  = 4
	maxLoadLabels  = 64
	maxLoadSeries  = 5_000_000
	maxLoadBatch   = 50_000
	maxLoadSenders = 256

	// refusedPause is how long a sender waits that was refused and not told for how long.
	refusedPause = 100 * time.Millisecond
	// maxRefused bounds how often one request is repeated.
	maxRefused = 1000
)

// errPresent ends a load whose event time has reached the present.
var errPresent = errors.New("the load has caught up with the present: give it more series, or less time")

// loadShape is what a load looks like.
type loadShape struct {
	series     int
	labels     int // of a series, the name included
	perRequest int // samples, each an entry of its own as in what Prometheus sends
	senders    int
}

func (s loadShape) check() error {
	for _, b := range []struct {
		flag          string
		v, least, max int
	}{
		{"series", s.series, 1, maxLoadSeries}, {"labels", s.labels, minLoadLabels, maxLoadLabels},
		{"per-request", s.perRequest, 1, maxLoadBatch}, {"senders", s.senders, 1, maxLoadSenders},
	} {
		if b.v < b.least || b.v > b.max {
			return &exitError{exitUsage, fmt.Errorf("--%s must be from %d to %d", b.flag, b.least, b.max)}
		}
	}
	if s.senders > s.series {
		return &exitError{exitUsage, fmt.Errorf("--series must be at least --senders, since each series has one sender")}
	}
	return nil
}

// load writes samples of its own series, whose label sets are encoded once. Each series belongs to one sender, which walks
// through its series in turn: so every series is sent in the order of time, whatever the others do.
type load struct {
	loadShape
	run   string // value of the label run: two loads have no series in common
	start int64  // ms; the k-th sample of a series is at start + offset + k·every
	every int64  // ms
	sets  []remotewrite.Precoded
	value func(series int, round int64, before float64, random uint64) float64
	lanes []*lane
}

// lane is what one sender has sent. Only it writes here.
type lane struct {
	sets   []remotewrite.Precoded
	first  int // number of the lane's first series
	values []float64
	next   int   // the series whose turn it is
	round  int64 // samples that each series has had
	rng    uint64

	loadResult
	body, sent []byte
}

// newLoad makes the series of a load.
func newLoad(shape loadShape, every time.Duration, now time.Time) *load {
	l := &load{
		loadShape: shape, run: strconv.FormatInt(now.UnixNano(), 36), every: every.Milliseconds(),
		start: now.Add(-loadAge).UnixMilli() / loadGrid * loadGrid, value: halfCounters,
	}
	more := make([]string, 0, 2*maxLoadLabels)
	for i := minLoadLabels; i < shape.labels; i++ {
		more = append(more, fmt.Sprintf("label_%02d", i), fmt.Sprintf("value-%02d-of-a-label", i))
	}
	for i := range shape.series {
		l.sets = append(l.sets, remotewrite.Precode(labels.FromStrings(append([]string{
			"__name__", loadMetric, "run", l.run, "group", strconv.Itoa(i % loadGroups), "series", strconv.Itoa(i),
		}, more...)...)))
	}
	l.share()
	return l
}

// share gives each sender its series.
func (l *load) share() {
	for k := range l.senders {
		lo, hi := k*l.series/l.senders, (k+1)*l.series/l.senders
		l.lanes = append(l.lanes, &lane{sets: l.sets[lo:hi], first: lo, values: make([]float64, hi-lo), rng: uint64(k)*0x9e3779b97f4a7c15 + 1})
	}
}

// halfCounters makes every other series a counter of integers, and the others gauges with two decimals.
func halfCounters(series int, _ int64, before float64, random uint64) float64 {
	if series%2 == 0 {
		return before + float64(random&63)
	}
	return float64(random%10_000) / 100
}

// selector selects the series of this load, with more matchers.
func (l *load) selector(more string) string {
	return fmt.Sprintf("%s{run=%q%s}", loadMetric, l.run, more)
}

// at returns the time of the samples of a round.
func (l *load) at(round int64) int64 { return l.start + l.every/2 + round*l.every }

// end returns a time on loadGrid behind every sample sent.
func (l *load) end() int64 {
	last := int64(0)
	for _, a := range l.lanes {
		last = max(last, l.at(a.round))
	}
	return last/loadGrid*loadGrid + loadGrid
}

// fill appends the next entries to the lane's body, none of a round beyond limit, and returns their number.
func (a *lane) fill(l *load, limit int64) int {
	a.body = a.body[:0]
	n := 0
	for ; n < l.perRequest && a.round < limit; n++ {
		a.rng ^= a.rng << 13
		a.rng ^= a.rng >> 7
		a.rng ^= a.rng << 17
		a.values[a.next] = l.value(a.first+a.next, a.round, a.values[a.next], a.rng)
		a.body = remotewrite.AppendSeries(a.body, a.sets[a.next], remotewrite.Sample{Time: l.at(a.round), Value: a.values[a.next]})
		if a.next++; a.next == len(a.sets) {
			a.next, a.round = 0, a.round+1
		}
	}
	return n
}

// send sends until each series has had limit samples or go on says no. A request that is refused for now is repeated.
func (a *lane) send(ctx context.Context, l *load, client *remotewrite.Client, limit int64, goOn func() bool) error {
	present := time.Now().UnixMilli() - loadGrid
	for goOn() {
		if l.at(a.round) > present {
			return errPresent
		}
		n := a.fill(l, limit)
		if n == 0 {
			return nil
		}
		a.sent = remotewrite.Compress(a.sent, a.body)
		if err := a.acknowledged(ctx, client); err != nil {
			return err
		}
		a.requests++
		a.samples += uint64(n)
	}
	return nil
}

// acknowledged returns once the request is.
func (a *lane) acknowledged(ctx context.Context, client *remotewrite.Client) error {
	for range maxRefused {
		began := time.Now()
		err := client.Send(ctx, a.sent)
		if err == nil {
			a.took.add(time.Since(began))
			return nil
		}
		var status *remotewrite.StatusError
		if !errors.As(err, &status) || status.Code < 500 {
			return err
		}
		a.refused++
		pause := time.NewTimer(max(refusedPause, status.RetryAfter))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
	return fmt.Errorf("a request was refused %d times", maxRefused)
}

// loadResult is what a load has sent in one go.
type loadResult struct {
	samples  uint64 // acknowledged
	requests uint64 // acknowledged
	refused  uint64 // answers other than 2xx
	took     latencies
	elapsed  time.Duration // from the first request to the last acknowledgement; not known of a lane
}

// forDuration sends from all senders for a time. Requests under way at its end are waited for and count.
func (l *load) forDuration(ctx context.Context, s *service, d time.Duration) (loadResult, error) {
	var over atomic.Bool
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	return l.send(ctx, s, 1<<62, func() bool { return !over.Load() })
}

// rounds sends until each series has had n samples in all.
func (l *load) rounds(ctx context.Context, s *service, n int64) (loadResult, error) {
	return l.send(ctx, s, n, func() bool { return true })
}

func (l *load) send(ctx context.Context, s *service, limit int64, goOn func() bool) (loadResult, error) {
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for _, a := range l.lanes {
		a.loadResult = loadResult{}
		g.Go(func() error { return a.send(ctx, l, s.writer(), limit, goOn) })
	}
	err := g.Wait()
	res := loadResult{elapsed: time.Since(began)}
	for _, a := range l.lanes {
		res.samples, res.requests, res.refused = res.samples+a.samples, res.requests+a.requests, res.refused+a.refused
		res.took.merge(&a.took)
	}
	return res, err
}
