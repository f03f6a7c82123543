package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// problems collects what is wrong with a configuration.
type problems struct {
	cfg  *Config
	errs []error
}

func (p *problems) add(path []any, format string, args ...any) {
	_, line := find(p.cfg.root, path...)
	p.errs = append(p.errs, &ConfigError{
		File: p.cfg.file, Line: line, Field: fieldName(path...), Msg: fmt.Sprintf(format, args...),
	})
}

// has says that the document has a value at the path. A null is none.
func (c *Config) has(path ...any) bool {
	n, _ := find(c.root, path...)
	return n != nil && n.ShortTag() != "!!null" && n.Kind != yaml.Kind(0)
}

// Validate checks all that can be checked without parsing expressions and reading rule files. Errors are of type
// *ConfigError, joined if there are several.
func (c *Config) Validate() error {
	p := &problems{cfg: c}
	c.validateTop(p)
	if n := len(c.Materializations); n > MaxMaterializations {
		p.add([]any{"materializations"}, "%d entries, at most %d", n, MaxMaterializations)
	}
	names := make(map[string]int, len(c.Materializations))
	for i := range c.Materializations {
		e := &c.Materializations[i]
		validateEntry(p, i, e)
		if first, ok := names[e.Name]; ok && e.Name != "" {
			p.add([]any{"materializations", i, "name"}, "%q is also the name of materializations[%d]", e.Name, first)
		} else {
			names[e.Name] = i
		}
	}
	return errors.Join(p.errs...)
}

func (c *Config) validateAccess(p *problems) {
	if n := len(c.Access); n > maxUsers {
		p.add([]any{"access"}, "%d users, at most %d", n, maxUsers)
	}
	for _, user := range slices.Sorted(maps.Keys(c.Access)) {
		at := []any{"access", user}
		if user == "" || len(user) > MaxNameBytes {
			p.add(at, "the name of a user has 1 to %d bytes", MaxNameBytes)
		}
		if len(c.Access[user]) == 0 {
			p.add(at, "empty; give any of %s, %s and %s", AccessRead, AccessWrite, AccessAdmin)
		}
		for i, given := range c.Access[user] {
			if given != AccessRead && given != AccessWrite && given != AccessAdmin {
				p.add(append(at, i), "%q is none of %s, %s and %s", given, AccessRead, AccessWrite, AccessAdmin)
			}
		}
	}
}

func (c *Config) validateTop(p *problems) {
	label := []any{"experiment_label"}
	switch {
	case c.ExperimentLabel == "":
		p.add(label, "empty")
	case len(c.ExperimentLabel) > MaxNameBytes:
		p.add(label, "%d bytes, at most %d", len(c.ExperimentLabel), MaxNameBytes)
	case !model.LegacyValidation.IsValidLabelName(c.ExperimentLabel):
		p.add(label, "%q is not a label name", c.ExperimentLabel)
	case strings.HasPrefix(c.ExperimentLabel, "__"):
		p.add(label, "%q is reserved: names that begin with __ are", c.ExperimentLabel)
	}
	if n := len(c.RuleFiles); n > MaxRuleFiles {
		p.add([]any{"rule_files"}, "%d patterns, at most %d", n, MaxRuleFiles)
	}
	c.validateAccess(p)
	if c.Exact.HTTPConfigFile != "" && c.Exact.Upstream.IsZero() {
		p.add([]any{"exact", "http_config_file"}, "there is no upstream that it could be for")
	}
	if u := c.Query.Unpublished; u != UnpublishedLive && u != UnpublishedForward {
		p.add([]any{"query", "unpublished"}, "%q is neither %s nor %s", u, UnpublishedLive, UnpublishedForward)
	}
	for _, d := range []struct {
		path []any
		v    Duration
		min  int64
	}{
		{[]any{"timers", "idle_timeout"}, c.Timers.IdleTimeout, 0},
		{[]any{"timers", "idle_grace"}, c.Timers.IdleGrace, 0},
		{[]any{"timers", "open_grace"}, c.Timers.OpenGrace, 0},
		{[]any{"correction_horizon"}, c.CorrectionHorizon, 0},
		{[]any{"query", "log_threshold"}, c.Query.LogThreshold, 0},
		{[]any{"clock_skew"}, c.ClockSkew, 0},
		{[]any{"log", "retention"}, c.Log.Retention, 1},
		{[]any{"exact", "retention"}, c.Exact.Retention, MinExactRetentionMillis},
		{[]any{"evaluation_interval"}, c.EvaluationInterval, MinPaneMillis},
		{[]any{"stats", "scan_interval"}, c.Stats.ScanInterval, 0},
		{[]any{"stats", "retire_after"}, c.Stats.RetireAfter, 0},
		{[]any{"stats", "sweep_interval"}, c.Stats.SweepInterval, 0},
		{[]any{"--query.lookback-delta"}, c.Lookback, 1},
		{[]any{"--write.max-future"}, c.MaxFuture, 0},
	} {
		p.duration(d.path, d.v, d.min)
	}
	if n := c.Stats.AuditEvery; n < 0 || n > maxAuditEvery {
		p.add([]any{"stats", "audit_every"}, "%d, not between 0 and %d", n, maxAuditEvery)
	}
	if c.Exact.MaxSize <= 0 {
		p.add([]any{"exact", "max_size"}, "%s, at least 1B", c.Exact.MaxSize)
	}
	if c.Log.MaxSize <= 0 {
		p.add([]any{"log", "max_size"}, "%s, at least 1B", c.Log.MaxSize)
	}
}

// duration checks that a duration lies within [least, MaxDurationMillis] milliseconds.
func (p *problems) duration(path []any, d Duration, least int64) {
	switch ms := d.Milliseconds(); {
	case ms < least:
		p.add(path, "%s, at least %s", d, millis(least))
	case ms > MaxDurationMillis:
		p.add(path, "%s, at most %s", d, millis(MaxDurationMillis))
	}
}

func validateEntry(p *problems, i int, e *Entry) {
	at := func(field string) []any { return []any{"materializations", i, field} }
	if reason := badName(e.Name); reason != "" {
		p.add(at("name"), "%s", reason)
	}
	switch {
	case strings.TrimSpace(e.Expr) == "":
		p.add(at("expr"), "empty")
	case len(e.Expr) > MaxExprBytes:
		p.add(at("expr"), "%d bytes, at most %d", len(e.Expr), MaxExprBytes)
	}
	if e.Every == 0 && !p.cfg.has(at("every")...) {
		p.add(at("every"), "missing; write the step of the dashboards and rules that read it")
	} else {
		p.duration(at("every"), e.Every, MinPaneMillis)
	}
	p.duration(at("allowed_lateness"), e.AllowedLateness, 0)
	p.duration(at("retention"), e.Retention, MinPaneMillis)
	if e.Layout != LayoutPanes && e.Layout != LayoutFullWindow {
		p.add(at("layout"), "%q is neither %s nor %s", e.Layout, LayoutPanes, LayoutFullWindow)
	}
	if e.Closed != Right && e.Closed != Left {
		p.add(at("closed"), "%q is neither %s nor %s", e.Closed, Right, Left)
	}
	if e.Late != Correct && e.Late != Drop {
		p.add(at("late"), "%q is neither %s nor %s", e.Late, Correct, Drop)
	}
}

// badName says why a name cannot be that of a materialization, which is read as a metric. It is empty if it can.
func badName(name string) string {
	switch {
	case name == "":
		return "empty"
	case len(name) > MaxNameBytes:
		return fmt.Sprintf("%d bytes, at most %d", len(name), MaxNameBytes)
	case !utf8.ValidString(name) || !model.LegacyValidation.IsValidMetricName(name):
		return fmt.Sprintf("%q is not a metric name", name)
	case strings.HasPrefix(name, "__"), name == "ALERTS", name == "ALERTS_FOR_STATE":
		return fmt.Sprintf("%q is reserved", name)
	}
	// Inf and NaN are metric names by their letters, and numbers to PromQL.
	e, err := NewParser().ParseExpr(name)
	if vs, ok := e.(*parser.VectorSelector); err != nil || !ok || vs.Name != name {
		return fmt.Sprintf("%q cannot be read as a metric: PromQL gives it another meaning", name)
	}
	return ""
}
