package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLoadAbsentAndEmpty: both are the defaults, and only the first has no path.
func TestLoadAbsentAndEmpty(t *testing.T) {
	dir := t.TempDir()
	absent, err := Load(filepath.Join(dir, "absent.yml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "empty.yml")
	write(t, path, "")
	empty, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := Default().String(); absent.String() != want || empty.String() != want {
		t.Errorf("absent:\n%s\nempty:\n%s\nwant:\n%s", absent, empty, want)
	}
	if absent.Path != "" || empty.Path != path || absent.Dir != dir || empty.Dir != dir {
		t.Errorf("absent %q in %q, empty %q in %q", absent.Path, absent.Dir, empty.Path, empty.Dir)
	}
	p, _, err := Build(absent)
	if err != nil {
		t.Fatal(err)
	}
	want := &Plan{
		Format: 1, ExperimentLabel: "experiment", LookbackMillis: 300_000, IdleTimeoutMillis: 60_000, IdleGraceMillis: 5_000,
		OpenGraceMillis: 5_000, HorizonMillis: 600_000, ClockSkewMillis: 60_000, MaxFutureMillis: 600_000,
	}
	if !p.Equal(want) {
		t.Errorf("the plan of no configuration is %s", p.Encode())
	}
}

// TestLoadNamesTheFile: in every kind of error.
func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yml")
	write(t, bad, "a: 1\n")
	large := filepath.Join(dir, "large.yml")
	write(t, large, "# "+strings.Repeat("x", MaxConfigBytes))
	for path, want := range map[string]string{
		bad:   ":1: unknown field a",
		large: fmt.Sprintf(": more than %d bytes", MaxConfigBytes),
		dir:   ": is a directory",
	} {
		_, err := Load(path)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.File != path || err.Error() != path+want {
			t.Errorf("%v, want %s%s", err, path, want)
		}
	}
	if _, err := Parse(make([]byte, MaxConfigBytes+1), dir); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a text beyond the bound: %v", err)
	}
}

// TestRuleFilesAreRelativeToTheConfiguration: also from a directory whose name looks like a pattern, and with absolute ones.
func TestRuleFilesAreRelativeToTheConfiguration(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*?")
	path := filepath.Join(dir, "tidemark.yml")
	write(t, filepath.Join(dir, "rules", "one.yml"), "groups: [{name: g, rules: [{record: r1, expr: up}]}]\n")
	other := filepath.Join(t.TempDir(), "two.yml")
	write(t, other, "groups: [{name: g, rules: [{record: r2, expr: up}]}]\n")
	write(t, path, "rule_files: [rules/*.yml, "+other+"]\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rules) != 2 || r.Rules[0].File != filepath.Join("rules", "one.yml") || r.Rules[1].File != other {
		t.Errorf("%+v", r.Rules)
	}
}

// TestRuleFilesAreBounded: their size, and their number.
func TestRuleFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "large.yml"), "# "+strings.Repeat("x", MaxRuleFileBytes))
	c, err := Parse([]byte("rule_files: [large.yml]"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Build(c); err == nil || err.Error() != fmt.Sprintf("large.yml: more than %d bytes", MaxRuleFileBytes) {
		t.Errorf("%v", err)
	}
	for i := range MaxRuleFiles + 1 {
		write(t, filepath.Join(dir, "many", fmt.Sprintf("%d.yml", i)), "")
	}
	if c, err = Parse([]byte("rule_files: [many/*.yml]"), dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Build(c); err == nil || !strings.Contains(err.Error(), "more than 1000 rule files") {
		t.Errorf("%v", err)
	}
}

// TestPL6_CredentialsAreNotPrinted: in no form that Go prints, logs or encodes.
func TestPL6_CredentialsAreNotPrinted(t *testing.T) {
	c, err := Parse([]byte("exact: {upstream: 'https://user:secret@host:9090/path?token=secret'}"), ".")
	if err != nil {
		t.Fatal(err)
	}
	u := c.Exact.Upstream
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("config", "url", u, "exact", c.Exact)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", "url", u, "exact", c.Exact)
	for name, text := range map[string]string{
		"String": c.String(), "url": u.String(), "json": string(asJSON), "slog": log.String(),
		"v": fmt.Sprintf("%v %+v %#v", u, u, u), "config": fmt.Sprintf("%v %+v %#v", *c, *c, *c),
		"exact": fmt.Sprintf("%v %+v %#v", c.Exact, c.Exact, c.Exact),
	} {
		if strings.Contains(text, "secret") || strings.Contains(text, "user") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if !strings.Contains(c.String(), "host:9090/path") {
		t.Errorf("the host is hidden too: %s", c)
	}
	if got := u.Reveal().String(); got != "https://user:secret@host:9090/path?token=secret" {
		t.Errorf("Reveal: %s", got)
	}
	u.Reveal().Host = "elsewhere"
	if u.Reveal().Host != "host:9090" {
		t.Error("what Reveal returns is shared")
	}
	var none URL
	if !none.IsZero() || none.Reveal() != nil || none.String() != "" || u.IsZero() {
		t.Error("the zero URL")
	}
}

// TestSizes: units, and what is not a size.
func TestSizes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0B": 0, "1B": 1, "1023B": 1023, "1KiB": 1 << 10, "50GiB": 50 << 30, "3TiB": 3 << 40, "8388607TiB": 8388607 << 40,
	} {
		got, err := parseBytes(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		if back, err := parseBytes(got.String()); err != nil || back != got {
			t.Errorf("%d is printed as %s", got, got)
		}
	}
	for _, text := range []string{"", "1", "B", "GiB", "1GB", "1gib", "1 GiB", "1.5GiB", "-1B", "+1B", "1GiBB", "1BGiB", "8388608TiB", "9223372036854775808B", "1e3B"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

// TestHandMadeConfig: a configuration that was not read from a file is checked by Build all the same.
func TestHandMadeConfig(t *testing.T) {
	c := Default()
	c.Materializations = []Entry{{
		Name: "a", Expr: "rate(m[5m])", Every: Duration(15 * time.Second), Layout: LayoutPanes, Closed: Right, Late: Correct,
		Retention: DefaultRetention,
	}}
	if _, _, err := Build(c); err != nil {
		t.Error(err)
	}
	c.Materializations[0].Every = 0
	c.Lookback = 0
	_, _, err := Build(c)
	want := "--query.lookback-delta: 0s, at least 1ms\n" +
		"materializations[0].every: missing; write the step of the dashboards and rules that read it"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// FuzzParseConfig: nothing panics; what is accepted prints as a configuration that is accepted too and is the same; and a
// plan that is built holds PL1, PL2 and PL4.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte("exact: {local: true, upstream: http://a:b@c}\nlog: {max_size: 1GiB}\n"))
	f.Add([]byte("materializations:\n- &a {name: b, expr: 'rate(m[5m] offset 1m)', every: 15s}\n- {<<: *a, name: c}\n"))
	f.Add([]byte("materializations:\n- {name: b, expr: 'max_over_time(m[1h:1m]) / n @ end()', every: 7s, retention: 1y}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte("[0]:"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b, ".")
		if err != nil {
			for _, e := range flatten(err) {
				if ce := new(ConfigError); !errors.As(e, &ce) {
					t.Fatalf("%T: %v", e, e)
				}
			}
			return
		}
		again, err := Parse([]byte(c.String()), ".")
		if err != nil || again.String() != c.String() {
			t.Fatalf("%v:\n%s", err, c)
		}
		c.RuleFiles = nil // they would be read from the disk of who runs this
		p, report, err := Build(c)
		if err != nil {
			return
		}
		if len(report.Entries) != len(c.Materializations) {
			t.Fatalf("%d of %d entries reported", len(report.Entries), len(c.Materializations))
		}
		for _, e := range report.Entries {
			for _, l := range e.Leaves {
				if l.PaneMillis < MinPaneMillis || l.PanesPerWindow < 1 || l.PanesPerWindow > MaxPanes {
					t.Fatalf("PL4: %+v", l)
				}
			}
		}
		if back, err := Decode(p.Encode()); err != nil || !back.Equal(p) {
			t.Fatalf("PL2: %v", err)
		}
	})
}
