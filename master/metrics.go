package master

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/log"
)

// Metrics reads the numbers of a Master when it is asked, so that a loop that has died shows. No metric has an experiment as a label.
type Metrics struct {
	m    *Master
	desc map[string]*prometheus.Desc
}

// NewMetrics returns a collector of a master's numbers.
func NewMetrics(m *Master) *Metrics {
	c := &Metrics{m: m, desc: make(map[string]*prometheus.Desc)}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"stats_version", "Version of the table of experiments: one for each commit. It climbs by design and is no signal.", nil},
		{"stats_unreclaimed_versions", "Superseded versions of the table that upkeep has not reclaimed, counted also while it does not run. Alert when it grows: TidemarkStatsNotReclaimed.", nil},
		{"stats_maintenance_consecutive_failures", "Passes of upkeep that failed in a row. Alert on it: TidemarkStatsMaintenanceFails.", nil},
		{"stats_maintenance_failures_total", "Passes of upkeep that failed.", nil},
		{"stats_versions_removed_total", "Versions of the table that upkeep has reclaimed.", nil},
		{"stats_maintenance_duration_seconds", "Duration of the last pass of upkeep.", nil},
		{"stats_last_success_timestamp_seconds", "Time of the last pass of upkeep that succeeded; 0 before the first.", nil},
		{"stats_drift_total", "Unchanged rows that an audit found to differ from what is counted: a version did not cover a change. Alert on any: TidemarkStatsDrift.", nil},
		{"scan_duration_seconds", "Duration of the last scan round.", nil},
		{"scan_age_seconds", "Time since the table was scanned. Alert when it exceeds several intervals: TidemarkScanStale.", nil},
		{"scan_rounds_total", "Scan rounds.", nil},
		{"scan_consecutive_failures", "Scan rounds that failed in a row; the table stays as it was. Alert on it: TidemarkScanFails.", nil},
		{"scan_observe_failures_total", "Experiments that a round could not read, and whose row was kept.", nil},
		{"scan_experiments_skipped", "Experiments that the last round did not read, because nothing had changed. Its share of all near 1 is healthy.", nil},
		{"scan_experiments_observed", "Experiments that the last round read.", nil},
		{"experiments", "Experiments by state.", []string{"state"}},
		{"experiments_retired_total", "Experiments retired.", nil},
		{"experiments_returned_total", "Retired experiments that returned with a sample.", nil},
		{"retire_failures_total", "Retirements that failed; the row stays, and the next round tries again.", nil},
		{"tasks_total", "Tasks that ended, by kind and result.", []string{"kind", "result"}},
		{"task_queue_depth", "Tasks that wait. Alert when it grows: TidemarkTasksPileUp.", nil},
		{"tasks_running", "Tasks that run.", nil},
		{"tasks_paused", "1 while no task is claimed, because somebody has said so.", nil},
		{"task_cooldowns", "Targets that sweeps pass over, because their tasks have failed three times or more in a row. Alert on it: TidemarkTasksFail.", nil},
		{"sweep_failures_total", "Sweeps that failed.", nil},
	} {
		c.desc[d.name] = prometheus.NewDesc("tidemark_"+d.name, d.help, d.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], prometheus.GaugeValue, v, labels...)
	}
	counter := func(name string, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], prometheus.CounterValue, float64(v), labels...)
	}
	m := c.m
	s := m.snap.Load()
	hot, retired := s.Counts()
	gauge("stats_version", float64(s.Version))
	gauge("experiments", float64(hot), Hot.String())
	gauge("experiments", float64(retired), Retired.String())
	if s.ScannedAt != never {
		gauge("scan_age_seconds", float64(m.opts.Now().UnixMilli()-s.ScannedAt)/1000)
	}
	m.upkeep.collect(gauge, counter)
	m.counters.collect(gauge, counter)
	m.fold.mu.RLock()
	waiting, live := len(m.fold.tasks.waiting), len(m.fold.tasks.live)
	m.fold.mu.RUnlock()
	gauge("task_queue_depth", float64(waiting))
	gauge("tasks_running", float64(live-waiting))
	paused := 0.0
	if m.exec.isPaused() {
		paused = 1
	}
	gauge("tasks_paused", paused)
	gauge("task_cooldowns", float64(len(m.Cooldowns())))
}

func (u *upkeep) collect(gauge func(string, float64, ...string), counter func(string, uint64, ...string)) {
	gauge("stats_unreclaimed_versions", float64(u.unreclaimed()))
	u.mu.Lock()
	defer u.mu.Unlock()
	gauge("stats_maintenance_consecutive_failures", float64(u.inRow))
	counter("stats_maintenance_failures_total", u.failures)
	counter("stats_versions_removed_total", u.removed)
	gauge("stats_maintenance_duration_seconds", u.lastTook.Seconds())
	at := 0.0
	if !u.lastSuccess.IsZero() {
		at = float64(u.lastSuccess.UnixMilli()) / 1000
	}
	gauge("stats_last_success_timestamp_seconds", at)
}

func (c *counters) collect(gauge func(string, float64, ...string), counter func(string, uint64, ...string)) {
	counter("experiments_retired_total", c.retired.Load())
	counter("experiments_returned_total", c.returned.Load())
	counter("retire_failures_total", c.retireFailures.Load())
	counter("stats_drift_total", c.drift.Load())
	counter("sweep_failures_total", c.sweepFailures.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	gauge("scan_duration_seconds", c.lastTook.Seconds())
	counter("scan_rounds_total", c.rounds)
	gauge("scan_consecutive_failures", float64(c.failedInRow))
	counter("scan_observe_failures_total", c.observeErr)
	gauge("scan_experiments_skipped", float64(c.last.Skipped))
	gauge("scan_experiments_observed", float64(c.last.Observed))
	for _, k := range []log.TaskKind{log.TaskCompact, log.TaskPublish, log.TaskRescan} {
		counter("tasks_total", c.tasks[k][0], k.String(), TaskDone.String())
		counter("tasks_total", c.tasks[k][1], k.String(), TaskFailed.String())
	}
}
