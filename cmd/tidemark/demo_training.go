package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"tidemark/projections/query/oracle"
	"tidemark/transport/remotewrite"
)

// The event time of the demo, in ms.
const (
	epochMillis  = int64(150_000)
	scrapeMillis = int64(5_000)
	gridMillis   = int64(15_000) // of the panes, and of the steps of range queries
	// requestMillis is how much event time goes into one request.
	requestMillis = int64(30_000)
	// restartMillis is how long the task that restarts is away.
	restartMillis = int64(20_000)
)

// training plays tasks that are scraped every five seconds: each has a few counters and gauges, tasks begin and end at
// different times, some are gone without a word, and one is restarted, so that its counters begin anew.
type training struct {
	rng   *rand.Rand
	tasks []*task
	all   []oracle.Series // every sample so far, for the oracle
}

// task is one training task. It is scraped at phase + k·scrapeMillis, in event time, within (from, to].
type task struct {
	phase    int64
	from, to int64
	says     bool  // its last scrape is followed by stale markers
	restart  int64 // when its counters begin anew; math.MaxInt64: never
	pace     float64
	series   []playedSeries
	ended    bool
}

// playedSeries is a series of a task, with its next value.
type playedSeries struct {
	at   int // in training.all
	kind func(t *task, rng *rand.Rand, v float64) float64
	v    float64
}

// newTraining plans n tasks over (from, to].
func newTraining(n int, from, to int64, seed uint64) *training {
	tr := &training{rng: rand.New(rand.NewPCG(seed, 0))}
	length := to - from
	for i := range n {
		t := &task{phase: tr.rng.Int64N(scrapeMillis), from: from, to: math.MaxInt64, restart: math.MaxInt64, pace: 0.5 + tr.rng.Float64()}
		if i == 0 {
			t.phase = 0 // so that samples stand exactly on the edges of panes, too
		}
		if i%6 == 5 {
			t.from += tr.rng.Int64N(length / 2)
		}
		if i%3 != 0 {
			t.to = t.from + (to-t.from)/4 + tr.rng.Int64N((to-t.from)*3/4)
			t.says = i%2 == 0
		}
		if i == n/2 {
			t.restart = t.from + (min(t.to, to)-t.from)/2
		}
		tr.add(t, i)
		tr.tasks = append(tr.tasks, t)
	}
	return tr
}

// add makes the series of task i.
func (tr *training) add(t *task, i int) {
	experiment := []string{"baseline", "wide", "distilled"}[i%3]
	series := func(name string, kind func(*task, *rand.Rand, float64) float64, v float64, more ...string) {
		ls := labels.FromStrings(append([]string{
			"__name__", name, "experiment", experiment, "task", fmt.Sprintf("task-%02d", i), "region", []string{"north", "south"}[i%2],
		}, more...)...)
		t.series = append(t.series, playedSeries{at: len(tr.all), kind: kind, v: v})
		tr.all = append(tr.all, oracle.Series{Labels: ls})
	}
	for _, worker := range []string{"0", "1"} {
		series("training_samples_total", samplesSeen, 0, "worker", worker)
		series("training_step_seconds", stepSeconds, 0, "worker", worker)
	}
	series("training_steps_total", stepsSeen, 0)
	series("training_loss", loss, 4)
	series("training_running", running, 0)
}

func samplesSeen(t *task, rng *rand.Rand, v float64) float64 {
	return v + 32*math.Floor(t.pace*(10+10*rng.Float64()))
}

func stepsSeen(t *task, rng *rand.Rand, v float64) float64 {
	return v + math.Floor(t.pace*(10+10*rng.Float64()))
}

// stepSeconds is a latency to the millisecond, with a long tail.
func stepSeconds(t *task, rng *rand.Rand, _ float64) float64 {
	return math.Round(1000*(0.2/t.pace+0.05*rng.ExpFloat64())) / 1000
}

func loss(t *task, rng *rand.Rand, v float64) float64 {
	return math.Round(1e4*(v*(1-0.004*t.pace)+0.02*rng.NormFloat64()*v)) / 1e4
}

func running(*task, *rand.Rand, float64) float64 { return 1 }

// restarted says whether a counter of this series begins anew with its task.
func (tr *training) restarted(s *playedSeries) bool {
	switch tr.all[s.at].Labels.Get("__name__") {
	case "training_samples_total", "training_steps_total":
		return true
	}
	return false
}

// play makes the samples of (from, to], keeps them for the oracle, and returns them as requests in the order of their time.
func (tr *training) play(from, to int64) (requests [][]remotewrite.Series, samples int) {
	for ; from < to; from += requestMillis {
		var request []remotewrite.Series
		for _, t := range tr.tasks {
			request = append(request, tr.scrape(t, from, min(from+requestMillis, to))...)
		}
		if len(request) == 0 {
			continue
		}
		for _, s := range request {
			samples += len(s.Samples)
		}
		requests = append(requests, request)
	}
	return requests, samples
}

// scrape makes what one task says in (from, to].
func (tr *training) scrape(t *task, from, to int64) []remotewrite.Series {
	out := make([]remotewrite.Series, len(t.series))
	for i, s := range t.series {
		out[i].Labels = tr.all[s.at].Labels
	}
	first := from + scrapeMillis - floorMod(from-t.phase, scrapeMillis)
	for at := first; at <= to && !t.ended; at += scrapeMillis {
		if at <= t.from || at > t.restart-restartMillis && at <= t.restart {
			continue
		}
		for i := range t.series {
			s := &t.series[i]
			x := remotewrite.Sample{Time: at, Value: math.Float64frombits(value.StaleNaN)}
			if at <= t.to {
				if at-scrapeMillis <= t.restart && at > t.restart && tr.restarted(s) {
					s.v = 0
				}
				s.v = s.kind(t, tr.rng, s.v)
				x.Value = s.v
			} else if !t.says {
				continue
			}
			out[i].Samples = append(out[i].Samples, x)
			kept := &tr.all[s.at]
			kept.T, kept.V = append(kept.T, at), append(kept.V, x.Value)
		}
		t.ended = at > t.to
	}
	return slices.DeleteFunc(out, func(s remotewrite.Series) bool { return len(s.Samples) == 0 })
}

// runningIn counts the tasks that write in (from, to].
func (tr *training) runningIn(from, to int64) int {
	n := 0
	for _, t := range tr.tasks {
		if t.from < to && t.to > from {
			n++
		}
	}
	return n
}

func floorMod(a, b int64) int64 { return (a%b + b) % b }
