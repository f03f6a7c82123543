package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tidemark/transport/api"
)

// lockedBuffer is a writer for the log of a service, which goes on while a test reads.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// ruled is a directory with the rule file r.yml, for the configuration of a service.
func ruled(t *testing.T, rules string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A rule that reads only other rules is published as far as they are, one that reads nothing is published through no time at all, and
// neither stands behind a number that means none.
func TestFrontierOfRulesThatReadRules(t *testing.T) {
	v := startService(t, setup{dir: ruled(t, `
groups:
  - name: g
    interval: 1m
    rules:
      - {record: "a:m:sum", expr: "sum by (i) (sum_over_time(m[1m]))"}
      - {record: "b:m:max", expr: 'max(a:m:sum)'}
      - {record: "c:m:min", expr: 'min(b:m:max) + min(a:m:sum)'}
      - {record: "one", expr: "vector(1)"}
`), config: "rule_files: [r.yml]"})
	frontiers := func() string {
		out := ""
		for _, name := range []string{"g/a:m:sum", "g/b:m:max", "g/c:m:min", "g/one"} {
			m, ok := v.materializations()[name]
			if !ok {
				t.Fatalf("%s is not listed", name)
			}
			text, err := json.Marshal(m.Frontier)
			if err != nil {
				t.Fatal(err)
			}
			out += name + " " + string(text) + "\n"
		}
		return out
	}
	if got, want := frontiers(), "g/a:m:sum null\ng/b:m:max null\ng/c:m:min null\ng/one null\n"; got != want {
		t.Errorf("before anything is written:\n%s", got)
	}
	v.send(sent{`m{i="a"}`, 60_000, 1}, sent{`m{i="a"}`, 90_000, 2})
	v.barrier(120_000)
	if got, want := frontiers(), "g/a:m:sum 120000\ng/b:m:max 120000\ng/c:m:min 120000\ng/one null\n"; got != want {
		t.Errorf("behind a barrier:\n%s", got)
	}
}

// A barrier over nothing that is materialized proves nothing, and says so with null; so does the command, which prints what it is told.
func TestBarrierWithoutMaterializations(t *testing.T) {
	v := startService(t, setup{})
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"watermark", "--time-ms=now", "--url=" + v.base}, &out, io.Discard); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	if got := out.String(); !strings.Contains(got, `"complete_through_ms":null`) {
		t.Errorf("%s", got)
	}
	if r := v.logStatus().Barriers.Recent[0]; r.CompleteThrough != nil {
		t.Errorf("remembered as complete through %d", *r.CompleteThrough)
	}
}

// The limit of a rule group is not held: it is shown as it is written, and a start and a reload say that something has no effect.
func TestLimitOfARuleGroupIsNotPassedOver(t *testing.T) {
	const group = "groups: [{name: g, %LIMIT rules: [{record: 'a:m', expr: 'max_over_time(m[1m])'}]}]\n"
	dir := ruled(t, strings.Replace(group, "%LIMIT", "limit: 7,", 1))
	var told lockedBuffer
	v := startService(t, setup{dir: dir, config: "rule_files: [r.yml]", logger: slog.New(slog.NewTextHandler(&told, nil))})
	limit := func() int {
		var answer struct {
			Data struct{ Groups []api.RuleGroup }
		}
		_, body := v.get("/api/v1/rules")
		if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Data.Groups) != 1 {
			t.Fatalf("%v in %s", err, body)
		}
		return answer.Data.Groups[0].Limit
	}
	said := func(n string) bool { return strings.Contains(told.String(), `limit `+n+` is not held`) }
	if got := limit(); got != 7 || !said("7") {
		t.Errorf("limit %d, the log says\n%s", got, told.String())
	}
	if err := os.WriteFile(filepath.Join(dir, "r.yml"), []byte(strings.Replace(group, "%LIMIT", "limit: 8,", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.node.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got != 8 || !said("8") {
		t.Errorf("limit %d after a reload, the log says\n%s", got, told.String())
	}
}

// The first line of the log names the files that the service works on, wherever it was started.
func TestStartNamesConfigurationAndStorage(t *testing.T) {
	var told lockedBuffer
	v := startService(t, setup{logger: slog.New(slog.NewTextHandler(&told, nil))})
	first, _, _ := strings.Cut(told.String(), "\n")
	for _, want := range []string{"level=INFO", "config=" + filepath.Join(v.setup.dir, "tidemark.yml"), "storage=" + filepath.Join(v.setup.dir, "data")} {
		if !strings.Contains(first, want) {
			t.Errorf("%s is not in %s", want, first)
		}
	}
	f := parseServe(t)
	f.configFile = filepath.Join(t.TempDir(), "tidemark.yml")
	if _, _, _, err := f.loadPlan(); err != nil {
		t.Fatal(err)
	}
	if got := f.configRead(); got != "none: there is no "+f.configFile {
		t.Errorf("without a file: %s", got)
	}
	f.storagePath = "data"
	if got := absolute(f.storagePath); !filepath.IsAbs(got) || !strings.HasSuffix(got, "/data") {
		t.Errorf("storage at %s", got)
	}
}
