package plan

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"
)

// rule is a recording rule as its file has it.
type rule struct {
	file    string // as it is printed
	line    int
	group   string
	record  string
	expr    string
	every   int64 // ms
	limit   int   // of the group
	labels  map[string]string
	invalid []string // why it is not a valid rule
}

// ruleSet is what all rule files hold.
type ruleSet struct {
	rules  []rule
	alerts []AlertRule
	notes  []string
}

// loadRules reads the rule files. A file that cannot be read or is not a rule file is an error; an invalid rule in it is
// kept with the reason.
func loadRules(c *Config) (*ruleSet, error) {
	p := &problems{cfg: c}
	set := new(ruleSet)
	var files []string
	for i, pattern := range c.RuleFiles {
		at := []any{"rule_files", i}
		full := pattern
		if !filepath.IsAbs(full) {
			full = filepath.Join(quoteMeta(c.Dir), pattern)
		}
		matches, err := filepath.Glob(full)
		switch {
		case pattern == "":
			p.add(at, "empty")
		case err != nil:
			p.add(at, "%q is not a pattern of file names", pattern)
		case len(matches) == 0 && !strings.ContainsAny(pattern, globMeta):
			p.add(at, "%s: no such file", pattern)
		case len(matches) == 0:
			set.notes = append(set.notes, fmt.Sprintf("no file matches %s", pattern))
		}
		for _, m := range matches {
			if !slices.Contains(files, m) {
				files = append(files, m)
			}
		}
		if len(files) > MaxRuleFiles {
			p.add(at, "more than %d rule files", MaxRuleFiles)
			break
		}
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range files {
		errs = append(errs, set.read(f, c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if n := len(set.rules) + len(c.Materializations); n > MaxMaterializations {
		return nil, &ConfigError{File: c.file, Msg: fmt.Sprintf("%d entries and rules, at most %d", n, MaxMaterializations)}
	}
	return set, nil
}

// read adds what one rule file holds.
func (set *ruleSet) read(path string, c *Config) error {
	file := shown(path, c.Dir)
	text, err := readBounded(path, MaxRuleFileBytes)
	if err != nil {
		return &ConfigError{File: file, Msg: err.Error()}
	}
	root, more, err := document(text)
	switch {
	case err != nil:
		return &ConfigError{File: file, Msg: err.Error()}
	case more: // as in Prometheus
		set.notes = append(set.notes, file+": only the first YAML document is read")
	}
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, NewParser(), slog.New(slog.DiscardHandler))
	type key struct {
		group string
		rule  int // from 1
	}
	invalid := make(map[key][]string)
	var fatal []error
	add := func(e *ConfigError) {
		// The file is decoded twice, and some faults are found twice.
		if !slices.ContainsFunc(fatal, func(f error) bool { return f.Error() == e.Error() }) {
			fatal = append(fatal, e)
		}
	}
	for _, err := range errs {
		var re *rulefmt.Error
		var te *yaml.TypeError
		switch {
		case errors.As(err, &re):
			k := key{re.Group, re.Rule}
			invalid[k] = append(invalid[k], shorten(errors.Unwrap(&re.Err).Error())) // without its position: the report has it
		case errors.As(err, &te):
			for _, msg := range te.Errors {
				add(typeError(root, file, msg))
			}
		default:
			add(&ConfigError{File: file, Msg: strings.TrimPrefix(err.Error(), "0:0: ")})
		}
	}
	if len(fatal) > 0 {
		return errors.Join(fatal...)
	}
	for gi, g := range groups.Groups {
		every := g.Interval.Milliseconds()
		if every == 0 {
			every = c.EvaluationInterval.Milliseconds()
		}
		if g.QueryOffset != nil && *g.QueryOffset != 0 {
			set.notes = append(set.notes, fmt.Sprintf("%s: group %q: query_offset %s has no effect on panes", file, g.Name, g.QueryOffset))
		}
		if g.Limit > 0 && slices.ContainsFunc(g.Rules, func(r rulefmt.Rule) bool { return r.Record != "" }) {
			set.notes = append(set.notes, fmt.Sprintf("%s: group %q: limit %d is not held: a rule that gives more series is recorded with all of them", file, g.Name, g.Limit))
		}
		for ri, r := range g.Rules {
			_, line := find(root, "groups", gi, "rules", ri)
			bad := invalid[key{g.Name, ri + 1}]
			if r.Alert != "" && r.Record == "" {
				set.alerts = append(set.alerts, AlertRule{File: file, Line: line, Group: g.Name, Name: r.Alert})
				continue
			}
			labels := maps.Clone(g.Labels)
			if labels == nil {
				labels = make(map[string]string)
			}
			maps.Copy(labels, r.Labels)
			set.rules = append(set.rules, rule{
				file: file, line: line, group: g.Name, record: r.Record, expr: r.Expr,
				every: every, limit: g.Limit, labels: labels, invalid: bad,
			})
		}
	}
	return nil
}

// globMeta are the characters that have a meaning in a pattern of file names.
const globMeta = `*?[\`

// quoteMeta makes a pattern that matches one path: a directory may have any name.
func quoteMeta(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if strings.IndexByte(globMeta, path[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// shown returns a path as it is printed: relative to dir if it lies below it.
func shown(path, dir string) string {
	rel, err := filepath.Rel(dir, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(os.PathSeparator)) {
		return path
	}
	return rel
}
