package main

// peersConfig plans panes for what Prometheus scrapes of itself and of two node exporters; the exact source is added.
const peersConfig = `
materializations:
  - {name: t_cpu_by_mode, expr: "sum by (mode) (rate(node_cpu_seconds_total[10s]))", every: 5s}
  - {name: t_cpu, expr: "increase(node_cpu_seconds_total[20s])", every: 1s}
  - {name: t_switches, expr: "irate(node_context_switches_total[10s])", every: 1s}
  - {name: t_memory, expr: "avg_over_time(node_memory_MemAvailable_bytes[20s])", every: 5s}
  - {name: t_load, expr: "quantile_over_time(0.9, node_load1[20s])", every: 5s}
  - {name: t_loads, expr: "{__name__=~\"node_load1|node_load5\"}", every: 5s}
  - {name: t_network, expr: "sum by (device) (rate(node_network_receive_bytes_total[20s]))", every: 5s}
  - {name: t_latency, expr: "histogram_quantile(0.9, rate(prometheus_http_request_duration_seconds_bucket{handler=\"/metrics\"}[20s]))", every: 5s}
  - {name: t_appended, expr: "rate(prometheus_tsdb_head_samples_appended_total[20s])", every: 5s}
  - {name: t_head_series, expr: "last_over_time(prometheus_tsdb_head_series[10s])", every: 1s}
  - {name: t_up, expr: "up", every: 1s}
  - {name: t_scrape_duration, expr: "max_over_time(scrape_duration_seconds[20s])", every: 1s}
  - {name: t_scrape_samples, expr: "scrape_samples_scraped", every: 1s}
  - {name: t_scrape_added, expr: "sum_over_time(scrape_series_added[20s])", every: 5s}
  - {name: t_resident, expr: "process_resident_memory_bytes", every: 1s}
  - {name: t_heap, expr: "sum by (job) (go_memstats_heap_alloc_bytes)", every: 5s}
  - {name: t_goroutines, expr: "delta(go_goroutines[10s])", every: 5s}
  - {name: t_everything, expr: "count_over_time({job=~\".+\"}[10s])", every: 5s}
`

// planned is a query that panes answer.
type planned struct {
	expr        string
	everySecond bool    // its streams have panes of a second
	terms       float64 // a bound of Σ|terms| behind its values, where that is more than the values themselves
}

var plannedQueries = []planned{
	// Counters.
	{expr: `sum by (mode) (rate(node_cpu_seconds_total[10s]))`, everySecond: true},
	{expr: `sum without (cpu, instance) (rate(node_cpu_seconds_total[20s]))`},
	{expr: `rate(node_cpu_seconds_total{mode="idle"}[10s])`, everySecond: true},
	{expr: `increase(node_cpu_seconds_total{mode=~"user|system"}[20s])`, everySecond: true},
	{expr: `100 * (1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[20s])))`, terms: 200},
	{expr: `count(rate(node_cpu_seconds_total[10s]) > 0)`, everySecond: true},
	{expr: `max by (instance) (increase(node_cpu_seconds_total[20s])) - min by (instance) (increase(node_cpu_seconds_total[20s]))`, terms: 100},
	{expr: `quantile(0.5, rate(node_cpu_seconds_total{mode!="idle"}[20s]))`},
	{expr: `irate(node_context_switches_total[10s])`, everySecond: true},
	{expr: `idelta(node_context_switches_total[10s])`, everySecond: true},
	{expr: `resets(node_context_switches_total[20s]) + changes(node_context_switches_total[20s])`},
	{expr: `rate(node_context_switches_total[10s]) / ignoring (mode) group_right sum by (instance, job, mode) (rate(node_cpu_seconds_total{mode="idle"}[10s]))`},
	{expr: `sum by (device) (rate(node_network_receive_bytes_total[20s]))`},
	{expr: `rate(prometheus_tsdb_head_samples_appended_total[20s])`},
	{expr: `increase(prometheus_tsdb_head_samples_appended_total[10s]) > 0`},
	// Histograms. The quantile is one whose rank is no whole number of observations: there the last digit decides.
	{expr: `histogram_quantile(0.907, sum by (le) (rate(prometheus_http_request_duration_seconds_bucket{handler="/metrics"}[20s])))`},
	{expr: `rate(prometheus_http_request_duration_seconds_bucket{handler="/metrics",le="+Inf"}[20s])`},
	// Gauges over time.
	{expr: `avg_over_time(node_memory_MemAvailable_bytes[20s])`},
	{expr: `max_over_time(node_memory_MemAvailable_bytes[10s]) - min_over_time(node_memory_MemAvailable_bytes[10s])`, terms: 1e12},
	{expr: `sum_over_time(node_memory_MemAvailable_bytes[20s]) / count_over_time(node_memory_MemAvailable_bytes[20s])`},
	{expr: `last_over_time(node_memory_MemAvailable_bytes[20s]) >= bool avg_over_time(node_load1[20s])`},
	{expr: `present_over_time(node_memory_MemAvailable_bytes[5s])`},
	{expr: `stddev_over_time(node_memory_MemAvailable_bytes[20s])`, terms: 1e12},
	{expr: `quantile_over_time(0.9, node_load1[20s])`},
	{expr: `quantile_over_time(0.5, node_memory_MemAvailable_bytes[10s])`},
	{expr: `changes(node_load1[20s])`},
	{expr: `last_over_time(prometheus_tsdb_head_series[10s])`, everySecond: true},
	{expr: `delta(go_goroutines[10s])`, terms: 1e4},
	{expr: `deriv(go_goroutines[20s])`, terms: 1e4},
	{expr: `predict_linear(go_goroutines[20s], 60)`, terms: 1e4},
	{expr: `avg by (job) (avg_over_time(go_goroutines[10s]))`},
	{expr: `absent_over_time(node_load1{instance="nowhere"}[10s])`},
	// What lookback finds; the target that died is gone at once.
	{expr: `node_load1`},
	{expr: `{__name__=~"node_load1|node_load5"}`},
	{expr: `node_memory_MemAvailable_bytes / 1024 / 1024`},
	{expr: `process_resident_memory_bytes`, everySecond: true},
	{expr: `sum by (job) (go_memstats_heap_alloc_bytes)`},
	{expr: `go_memstats_heap_alloc_bytes offset 5s`},
	{expr: `absent(go_goroutines{job="nothing"})`},
	{expr: `timestamp(process_resident_memory_bytes)`, everySecond: true},
	// What Prometheus says of its scrapes.
	{expr: `up`, everySecond: true},
	{expr: `timestamp(up)`, everySecond: true},
	{expr: `count by (job) (up == 1)`, everySecond: true},
	{expr: `avg_over_time(up[20s])`, everySecond: true},
	{expr: `changes(up[20s])`, everySecond: true},
	{expr: `up and on (instance) node_load1`},
	{expr: `scrape_duration_seconds`, everySecond: true},
	{expr: `timestamp(scrape_duration_seconds) - timestamp(up)`, everySecond: true, terms: 1e10},
	{expr: `max_over_time(scrape_duration_seconds[20s])`, everySecond: true},
	{expr: `scrape_samples_scraped`, everySecond: true},
	{expr: `sum(scrape_samples_scraped) by (job)`, everySecond: true},
	{expr: `sum_over_time(scrape_series_added[20s])`},
	{expr: `max_over_time(scrape_samples_post_metric_relabeling{job="node"}[10s])`},
}

// unplannedQueries are those that no pane answers. Answers of Prometheus 2 are in the order of its index, so each of these comes
// in the same order twice.
var unplannedQueries = []string{
	`go_threads`,
	`node_load15`,
	`node_memory_Cached_bytes`,
	`process_open_fds`,
	`prometheus_build_info`,
	`sum(go_memstats_mallocs_total)`,
	`rate(go_memstats_mallocs_total[10s])`,
	`max_over_time(go_threads[15s])`,
	`node_load15[10s]`,
	`avg_over_time(rate(go_memstats_mallocs_total[10s])[15s:5s])`,
	`go_threads + on (instance) group_left go_info`,
	`up * on (job, instance) go_threads`,
	`label_replace(go_threads, "host", "$1", "instance", "(.*):.*")`,
	`histogram_quantile(0.5, prometheus_http_response_size_bytes_bucket{handler="/metrics"})`,
	`count_over_time(up[3500ms])`,
}
