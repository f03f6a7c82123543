package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrapeTimeout bounds what a scrape waits for the workers; without their answer their numbers are left out.
const scrapeTimeout = 5 * time.Second

// collector reads the numbers of the log and the panes when it is asked, so that a dead loop shows.
type collector struct {
	n    *node
	desc map[string]*prometheus.Desc
}

func newCollector(n *node) *collector {
	c := &collector{n: n, desc: make(map[string]*prometheus.Desc)}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"config_last_reload_successful", "1 if the configuration was read without an error the last time. Alert on 0.", nil},
		{"config_last_reload_success_timestamp_seconds", "When the configuration in force was read, in seconds since the epoch.", nil},
		{"log_head_seq", "Sequence of the newest durable event.", nil},
		{"log_floor_seq", "Sequence of the oldest event kept.", nil},
		{"log_events_total", "Events made durable by this process.", nil},
		{"log_samples_total", "Samples made durable by this process.", nil},
		{"log_event_bytes_total", "Encoded bytes of the events made durable by this process, before compression.", nil},
		{"log_batches_total", "Batches made durable by this process: one fsync each.", nil},
		{"log_commit_seconds_total", "Time from gathering a batch until it was durable, summed over batches.", nil},
		{"log_queue_length", "Appends that wait for the committer.", nil},
		{"log_disk_bytes", "Size of the log's files, with what has been written of those that grow.", nil},
		{"log_poisoned", "1 after a failed write of the log: nothing more is acknowledged. Alert on it.", nil},
		{"log_free_bytes", "Free space on the disk of the log.", nil},
		{"series", "Series in the index.", nil},
		{"projection_applied_seq", "Last event that the projection has applied.", []string{"projection"}},
		{"projection_durable_seq", "Event from which the projection replays after a crash.", []string{"projection"}},
		{"projection_lag_seconds", "Age of the oldest event that the projection has not applied. Alert when it grows.", []string{"projection"}},
		{"projection_checkpoint_consecutive_failures", "Checkpoints that failed in a row. Alert on it.", []string{"projection"}},
		{"projection_checkpoint_hold_seconds", "For how long at most one worker of the fold stood still for the last checkpoint.", []string{"projection"}},
		{"pane_open_buckets", "Buckets that still take samples.", nil},
		{"pane_series", "Series with state in a pane stream, summed over streams.", nil},
		{"pane_samples_total", "Samples that reached a pane stream, by what became of them, summed over streams.", []string{"result"}},
		{"pane_corrected_samples_total", "Samples applied to a bucket that was closed; part of those applied.", nil},
		{"pane_stale_markers_total", "Stale markers that reached a pane stream, summed over streams.", nil},
		{"pane_unplanned_samples_total", "Samples that no pane stream takes.", nil},
		{"pane_closed_buckets_total", "Buckets closed.", nil},
		{"views_disk_bytes", "Size of the files of the views.", nil},
		{"views_compactions_total", "Compactions of pieces: each leaves one piece where there were several.", nil},
		{"views_compacted_pieces_total", "Pieces merged by compactions.", nil},
		{"views_compaction_read_bytes_total", "Bytes of pieces that compactions read.", nil},
		{"views_compaction_written_bytes_total", "Bytes of pieces that compactions wrote.", nil},
		{"views_compaction_pending", "Places in the views that are due for compaction. Alert when it grows.", nil},
		{"log_truncations_total", "Truncations of the log by age or size.", nil},
		{"log_truncation_consecutive_failures", "Times in a row that the log was due for truncation and could not be truncated. Alert on it.", nil},
		{"log_size_limit_bytes", "Size by which the log is truncated; writes are refused a quarter above it.", nil},
		{"log_series_forgotten_total", "Series removed from the dictionary, because nothing names them any more.", nil},
		{"log_base_seq", "Sequence of the base that this process sealed last.", nil},
		{"views_expired_events_total", "Retention deletes appended to the log: each removes the older buckets of one stream.", nil},
		{"views_expired_deletes_total", "Ranges of pieces deleted after retention.", nil},
		{"views_expiry_consecutive_failures", "Passes of retention that failed in a row. Alert on it.", nil},
		{"views_compaction_consecutive_failures", "Passes of compaction that failed in a row. Alert on it.", nil},
		{"sample_appended_total", "Samples and native histograms appended to the exact copy, by how they came.", []string{"order"}},
		{"sample_repeated_total", "Samples for whose time the exact copy had one already.", nil},
		{"sample_refused_total", "Samples that the exact copy does not have. Answers from it that reach back to them are refused.", nil},
		{"sample_exemplars_total", "Exemplars of the exact copy, by what became of them.", []string{"result"}},
		{"sample_head_series", "Series that the exact copy holds in memory.", nil},
		{"sample_blocks", "Blocks of the exact copy on disk.", nil},
		{"sample_disk_bytes", "Size of the exact copy on disk.", nil},
	} {
		c.desc[d.name] = prometheus.NewDesc("tidemark_"+d.name, d.help, d.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], prometheus.GaugeValue, v, labels...)
	}
	counter := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], prometheus.CounterValue, v, labels...)
	}
	loaded := c.n.current.Load()
	gauge("config_last_reload_successful", boolean(loaded.ok))
	gauge("config_last_reload_success_timestamp_seconds", float64(loaded.at.UnixMilli())/1000)
	m := c.n.events.Metrics()
	gauge("log_head_seq", float64(m.Head))
	gauge("log_floor_seq", float64(m.Floor))
	counter("log_events_total", float64(m.Events))
	counter("log_samples_total", float64(m.Samples))
	counter("log_event_bytes_total", float64(m.EventBytes))
	counter("log_batches_total", float64(m.Batches))
	counter("log_commit_seconds_total", m.CommitTime.Seconds())
	gauge("log_queue_length", float64(m.Queue))
	gauge("log_disk_bytes", float64(m.DiskBytes))
	gauge("log_poisoned", boolean(m.Poisoned))
	gauge("log_free_bytes", float64(c.n.gate.free.Load()))
	gauge("series", float64(c.n.index.Len()))
	gauge("views_disk_bytes", float64(c.n.views.Bytes()))
	c.copy(gauge, counter)
	c.maintenance(gauge, counter)
	c.panes(gauge, counter)
}

func (c *collector) maintenance(gauge, counter func(string, float64, ...string)) {
	st := c.n.compact.Stats()
	counter("views_compactions_total", float64(st.Compactions))
	counter("views_compacted_pieces_total", float64(st.Pieces))
	counter("views_compaction_read_bytes_total", float64(st.Read))
	counter("views_compaction_written_bytes_total", float64(st.Written))
	gauge("views_compaction_pending", float64(st.Pending))
	gauge("views_compaction_consecutive_failures", float64(st.Failures))
	k := c.n.keeper
	counter("log_truncations_total", float64(k.truncations.Load()))
	gauge("log_truncation_consecutive_failures", float64(k.failures.Load()))
	gauge("log_size_limit_bytes", float64(k.limits().size))
	gauge("log_base_seq", float64(k.base.Load()))
	counter("log_series_forgotten_total", float64(k.forgetter.Forgotten()))
	x := c.n.expirer.Stats()
	counter("views_expired_events_total", float64(x.Events))
	counter("views_expired_deletes_total", float64(x.Deletes))
	gauge("views_expiry_consecutive_failures", float64(x.Failures))
}

func (c *collector) panes(gauge, counter func(string, float64, ...string)) {
	p := c.n.panes
	applied, _ := p.Applied()
	gauge("projection_applied_seq", float64(applied), p.Name())
	gauge("projection_durable_seq", float64(p.Durable()), p.Name())
	gauge("projection_lag_seconds", c.n.lag.lag(c.n.gate.now()).Seconds(), p.Name())
	gauge("projection_checkpoint_consecutive_failures", float64(p.CheckpointFailures()), p.Name())
	gauge("projection_checkpoint_hold_seconds", p.LongestHold().Seconds(), p.Name())

	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	_, streams, unplanned, err := p.Streams(ctx)
	if err != nil {
		return
	}
	var open, series int
	var closed, corrected, stale uint64
	results := make(map[string]uint64)
	for i := range streams {
		s := &streams[i]
		open, series, closed = open+s.Open, series+s.Series, closed+s.Counts.Closed
		corrected, stale = corrected+s.Counts.Corrected, stale+s.Counts.Stale
		for result, n := range map[string]uint64{
			"applied": s.Counts.Applied, "duplicate": s.Counts.Duplicate, "conflict": s.Counts.Conflict,
			"late_dropped": s.Counts.LateDropped, "late_uncorrectable": s.Counts.LateUncorrectable,
		} {
			results[result] += n
		}
	}
	gauge("pane_open_buckets", float64(open))
	gauge("pane_series", float64(series))
	counter("pane_unplanned_samples_total", float64(unplanned))
	counter("pane_closed_buckets_total", float64(closed))
	counter("pane_corrected_samples_total", float64(corrected))
	counter("pane_stale_markers_total", float64(stale))
	for result, n := range results {
		counter("pane_samples_total", float64(n), result)
	}
}

func (c *collector) copy(gauge, counter func(string, float64, ...string)) {
	x := c.n.copy
	if x == nil {
		return
	}
	applied, _ := x.samples.Applied()
	gauge("projection_applied_seq", float64(applied), x.samples.Name())
	gauge("projection_durable_seq", float64(x.samples.Durable()), x.samples.Name())
	gauge("projection_lag_seconds", x.lag.lag(c.n.gate.now()).Seconds(), x.samples.Name())
	gauge("projection_checkpoint_consecutive_failures", float64(x.samples.CheckpointFailures()), x.samples.Name())
	s := x.samples.Stats()
	counter("sample_appended_total", float64(s.Appended), "in_order")
	counter("sample_appended_total", float64(s.Late), "late")
	counter("sample_repeated_total", float64(s.Repeated))
	counter("sample_refused_total", float64(s.Refused))
	counter("sample_exemplars_total", float64(s.Exemplars), "appended")
	counter("sample_exemplars_total", float64(s.ExemplarsRefused), "refused")
	gauge("sample_head_series", float64(s.HeadSeries))
	gauge("sample_blocks", float64(s.Blocks))
	gauge("sample_disk_bytes", float64(s.Bytes))
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
