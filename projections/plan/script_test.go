package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*.txt. Each script has a directory of its own. Commands:
//
//	file path=rules/a.yml    write a rule file
//	config                   parse the input as tidemark.yml, print what is in force
//	build [lookback=5m]      the same, then build: print report and plan, or report and error
//	leaves                   parse each line as an expression, print its leaves
//	diff                     build the configurations on both sides of a line "===", print what changes
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		s := script{dir: t.TempDir()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			return strings.ReplaceAll(out, s.dir+string(os.PathSeparator), "")
		})
	})
}

type script struct {
	dir string
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "file":
		var path string
		d.ScanArgs(t, "path", &path)
		path = filepath.Join(s.dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(d.Input+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return ""
	case "config":
		c, err := Parse([]byte(d.Input), s.dir)
		if err != nil {
			return showError(t, err)
		}
		return c.String()
	case "build":
		c, err := Parse([]byte(d.Input), s.dir)
		if err != nil {
			return showError(t, err)
		}
		if d.HasArg("lookback") {
			var lookback string
			d.ScanArgs(t, "lookback", &lookback)
			v, err := time.ParseDuration(lookback)
			if err != nil {
				t.Fatal(err)
			}
			c.Lookback = Duration(v)
		}
		p, report, err := Build(c)
		if err != nil {
			if p != nil {
				t.Fatal("PL5: a plan beside an error")
			}
			return report.String() + showError(t, err)
		}
		faults := ""
		if err := report.Err(); err != nil {
			faults = showError(t, err)
		}
		return report.String() + faults + showPlan(p)
	case "leaves":
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			b.WriteString(showLeaves(t, strings.TrimSpace(line)))
		}
		return b.String()
	case "diff":
		before, after, _ := strings.Cut(d.Input, "===\n")
		return showChanges(Diff(s.plan(t, before), s.plan(t, after)))
	default:
		t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

func (s *script) plan(t *testing.T, text string) *Plan {
	t.Helper()
	c, err := Parse([]byte(text), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// showError prints one line to an error, and holds every error to its type.
func showError(t *testing.T, err error) string {
	t.Helper()
	var b strings.Builder
	for _, e := range flatten(err) {
		var ce *ConfigError
		if !errors.As(e, &ce) {
			t.Errorf("%v is a %T, want *ConfigError", e, e)
		}
		fmt.Fprintf(&b, "error: %s\n", e)
	}
	return b.String()
}

func flatten(err error) []error {
	j, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range j.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}

func showPlan(p *Plan) string {
	var b strings.Builder
	fmt.Fprintln(&b, "plan")
	for _, s := range p.Streams {
		fmt.Fprintf(&b, "  stream %s:", s.ID)
		for _, m := range s.Matchers {
			fmt.Fprintf(&b, " %s%s%q", m.Name, m.Type, m.Value)
		}
		fmt.Fprintf(&b, " pane=%s origin=%d closed=%s lateness=%s late=%s retention=%s\n",
			millis(s.PaneMillis), s.OriginMillis, s.Closed, millis(s.LatenessMillis), s.Late, millis(s.RetentionMillis))
	}
	for _, m := range p.Materializations {
		fmt.Fprintf(&b, "  %s: %s every=%s layout=%s", m.Name, m.Expr, millis(m.EveryMillis), m.Layout)
		if m.Record != "" {
			fmt.Fprintf(&b, " record=%s labels=%v", m.Record, m.Labels)
		}
		fmt.Fprintf(&b, " retention=%s streams=%v", millis(m.RetentionMillis), m.Streams)
		if len(m.Reads) > 0 {
			fmt.Fprintf(&b, " reads=%v", m.Reads)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func showLeaves(t *testing.T, text string) string {
	var b strings.Builder
	fmt.Fprintln(&b, text)
	e, err := NewParser().ParseExpr(text)
	if err != nil {
		fmt.Fprintf(&b, "  %v\n", err)
		return b.String()
	}
	leaves, err := Leaves(e, 5*time.Minute)
	if err != nil {
		fmt.Fprintf(&b, "  %v\n", err)
		return b.String()
	}
	if e2, err := NewParser().ParseExpr(text); err != nil || e.String() != e2.String() {
		t.Errorf("%s: Leaves changed the expression into %s", text, e)
	}
	for _, l := range leaves {
		fmt.Fprintf(&b, "  %s: range=%s", l.Node, millis(l.RangeMillis))
		if l.Func != "" {
			fmt.Fprintf(&b, " func=%s", l.Func)
		}
		if l.Instant {
			b.WriteString(" instant")
		}
		if l.Arg != nil {
			fmt.Fprintf(&b, " arg=%s", l.Arg)
		}
		if l.OffsetMillis != 0 {
			fmt.Fprintf(&b, " offset=%s", millis(l.OffsetMillis))
		}
		if l.At != nil {
			fmt.Fprintf(&b, " at=%d", *l.At)
		}
		if l.StartOrEnd != 0 {
			fmt.Fprintf(&b, " at=%s()", l.StartOrEnd)
		}
		if l.InSubquery {
			fmt.Fprintf(&b, " step=%s", millis(l.StepMillis))
		}
		fmt.Fprintf(&b, " reach=%s depth=%d", millis(l.ReachMillis), len(l.Path))
		if l.SamplesOnly {
			b.WriteString(" samples-only")
		}
		if l.Reason != "" {
			fmt.Fprintf(&b, " no: %s", l.Reason)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func showChanges(c Changes) string {
	var b strings.Builder
	list := func(what string, n int, v any) {
		if n > 0 {
			fmt.Fprintf(&b, "%s: %v\n", what, v)
		}
	}
	list("streams added", len(c.StreamsAdded), c.StreamsAdded)
	list("streams removed", len(c.StreamsRemoved), c.StreamsRemoved)
	list("streams kept", len(c.StreamsKept), c.StreamsKept)
	list("retention changed", len(c.RetentionChanged), c.RetentionChanged)
	list("added", len(c.MaterializationsAdded), c.MaterializationsAdded)
	list("removed", len(c.MaterializationsRemoved), c.MaterializationsRemoved)
	list("changed", len(c.MaterializationsChanged), c.MaterializationsChanged)
	if c.Settings {
		fmt.Fprintln(&b, "settings changed")
	}
	if c.Empty() {
		fmt.Fprintln(&b, "nothing changes")
	}
	return b.String()
}
