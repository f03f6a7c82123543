package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/transport/remotewrite"
)

// census counts the series of each experiment and refuses those beyond the limits. It implements log.Census.
//
// It hears of every series that comes after it began. Those before it are counted by run, once, in the background; until that is
// done, fewer are counted than there are, and none is refused wrongly. Series without the experiment label are not counted.
type census struct {
	label                     string // as of the start
	maxSeries, maxExperiments int    // 0: any number
	dictionary                *log.Dictionary
	begin                     log.SeriesRef
	logger                    *slog.Logger

	mu     sync.Mutex
	series map[string]int
}

// newCensus returns a census that counts from now on.
func newCensus(label string, maxSeries, maxExperiments int, d *log.Dictionary, logger *slog.Logger) *census {
	c := &census{logger: logger, label: label, maxSeries: maxSeries, maxExperiments: maxExperiments, dictionary: d, series: make(map[string]int)}
	if maxSeries > 0 || maxExperiments > 0 {
		c.begin = d.SetCensus(c)
	}
	return c
}

// Admit implements log.Census.
func (c *census) Admit(ls labels.Labels) error {
	name := ls.Get(c.label)
	if name == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, known := c.series[name]
	switch {
	case !known && c.maxExperiments > 0 && len(c.series) >= c.maxExperiments:
		return &remotewrite.LimitError{Reason: remotewrite.ReasonExperiments, Experiment: name, Limit: c.maxExperiments}
	case c.maxSeries > 0 && n >= c.maxSeries:
		return &remotewrite.LimitError{Reason: remotewrite.ReasonExperimentSeries, Experiment: name, Limit: c.maxSeries}
	}
	c.series[name] = n + 1
	return nil
}

// Left implements log.Census.
func (c *census) Left(ls labels.Labels) {
	name := ls.Get(c.label)
	if name == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.series[name]--; c.series[name] <= 0 {
		delete(c.series, name)
	}
}

// run counts the series that were there before, and waits until ctx ends.
func (c *census) run(ctx context.Context) error {
	if c.begin > 0 {
		err := c.dictionary.All(func(ref log.SeriesRef, ls labels.Labels) bool {
			if ref >= c.begin || ctx.Err() != nil {
				return false
			}
			if name := ls.Get(c.label); name != "" {
				c.mu.Lock()
				c.series[name]++
				c.mu.Unlock()
			}
			return true
		})
		if err != nil && ctx.Err() == nil {
			c.logger.Warn("The series that were there before cannot be counted; the limits of experiments hold for new ones alone", "err", err)
		}
	}
	<-ctx.Done()
	return nil
}
