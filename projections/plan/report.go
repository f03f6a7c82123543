package plan

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Report says what became of each entry of tidemark.yml and of each rule.
type Report struct {
	Entries []Finding   // in the order of the file
	Rules   []Finding   // recording rules, by file, group and position
	Alerts  []AlertRule // ignored
	Notes   []string    // on rule files as a whole
}

// Finding is one entry or one recording rule. A rule becomes a recorded window.
type Finding struct {
	File   string            // as the configuration was given; a rule file, relative to it where that is possible
	Line   int               // 0 if unknown
	Group  string            // of a rule
	Name   string            // of the entry, or what the rule records
	Expr   string            // as it is written
	Every  int64             // ms
	Limit  int               // of a rule's group, as it is written; 0: none. It is shown, and not held
	Labels map[string]string // that a rule adds

	Materialization string // its name in the plan, if it can be materialized

	Leaves  []LeafFinding // what answers it; empty if Reasons is not
	Reasons []string      // why it cannot be materialized
	Fault   string        // of a rule: the one of them that is a fault of its own, and not what panes cannot do; "" if none is
	Notes   []string      // what is worth knowing though it works
	Twice   string        // of a rule: where an earlier one stands that records the same name with the same labels; "" if none does
}

// LeafFinding is a leaf that a stream answers.
type LeafFinding struct {
	Expr           string   // as the parser prints it
	Reads          []string // the names that it reads instead of a stream
	Stream         StreamID // what it reads
	PaneMillis     int64
	PanesPerWindow int64
	Shared         int // how many materializations read the stream
}

// AlertRule is an alerting rule. Tidemark evaluates none.
type AlertRule struct {
	File  string
	Line  int
	Group string
	Name  string
}

// Skipped returns the number of recording rules that cannot become recorded windows.
func (r *Report) Skipped() int {
	n := 0
	for i := range r.Rules {
		if len(r.Rules[i].Reasons) > 0 {
			n++
		}
	}
	return n
}

// Twice returns the number of recording rules that record the same name with the same labels as an earlier one. That is no fault: rules
// may share a name if their expressions give different series. Where they do not, the value of the earlier one is read.
func (r *Report) Twice() int {
	n := 0
	for i := range r.Rules {
		if r.Rules[i].Twice != "" {
			n++
		}
	}
	return n
}

// Err returns the faults of the recording rules: those that are not valid, as Prometheus sees them, and those that read themselves.
// Whoever would put the plan in force must not: what the rule said before would be dropped without a word. Rules that are valid and
// cannot become panes are none; the exact source answers them. The errors are of type *ConfigError, joined if there are several.
func (r *Report) Err() error {
	var errs []error
	for i := range r.Rules {
		if f := &r.Rules[i]; f.Fault != "" {
			errs = append(errs, &ConfigError{File: f.File, Line: f.Line, Msg: fmt.Sprintf("group %q: %s: %s", f.Group, f.shownName(), f.Fault)})
		}
	}
	return errors.Join(errs...)
}

// String returns the report as `tidemark check` prints it, with a line break at the end; it is empty if there is nothing
// to say.
func (r *Report) String() string {
	var b strings.Builder
	if len(r.Entries) > 0 {
		b.WriteString("materializations\n")
		for i := range r.Entries {
			r.Entries[i].write(&b)
		}
	}
	if len(r.Rules) > 0 {
		fmt.Fprintf(&b, "recording rules: %d become recorded windows, %d are skipped\n", len(r.Rules)-r.Skipped(), r.Skipped())
		for i := range r.Rules {
			r.Rules[i].write(&b)
		}
	}
	if len(r.Alerts) > 0 {
		b.WriteString("alerting rules, ignored\n")
		for _, a := range r.Alerts {
			fmt.Fprintf(&b, "  %s: group %q: %s\n", place(a.File, a.Line), a.Group, a.Name)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

func (f *Finding) write(b *strings.Builder) {
	b.WriteString("  ")
	if p := place(f.File, f.Line); p != "" {
		b.WriteString(p + ": ")
	}
	if f.Group != "" {
		fmt.Fprintf(b, "group %q: ", f.Group)
	}
	fmt.Fprintf(b, "%s every %s\n", f.shownName(), millis(f.Every))
	for _, l := range f.Leaves {
		if len(l.Reads) > 0 {
			fmt.Fprintf(b, "    %s: reads %s\n", shorten(l.Expr), strings.Join(l.Reads, ", "))
			continue
		}
		fmt.Fprintf(b, "    %s: stream %s, %s of %s", shorten(l.Expr), l.Stream, count(l.PanesPerWindow, "pane"), millis(l.PaneMillis))
		if l.Shared > 1 {
			fmt.Fprintf(b, ", shared by %d", l.Shared)
		}
		b.WriteByte('\n')
	}
	for _, reason := range f.Reasons {
		what := "no panes"
		if f.Group != "" {
			what = "skipped"
		}
		fmt.Fprintf(b, "    %s: %s\n", what, reason)
	}
	for _, n := range f.Notes {
		fmt.Fprintf(b, "    note: %s\n", n)
	}
	if f.Twice != "" {
		fmt.Fprintf(b, "    warning: the rule at %s records the same name with the same labels; where both give a series a value, only that rule's is read\n", f.Twice)
	}
}

func (f *Finding) shownName() string {
	if f.Name == "" {
		return "(no name)" // of an invalid rule
	}
	return f.Name
}

func place(file string, line int) string {
	if file == "" || line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxShown is the longest expression that a report or an error repeats, in bytes.
const maxShown = 160

func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

// millis writes a number of milliseconds in Prometheus' syntax.
func millis(ms int64) string {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	if ms > most || ms < -most {
		return fmt.Sprintf("%dms", ms)
	}
	return model.Duration(time.Duration(ms) * time.Millisecond).String()
}
