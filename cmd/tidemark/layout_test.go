package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imports says which of our packages each package may import, tests included. The data path runs one way.
var imports = map[string][]string{
	"log":                         {"log/logtest"},
	"log/logtest":                 {},
	"projections/accum":           {},
	"projections/plan":            {"projections/accum"},
	"projections/bucket":          {"log/logtest", "projections/accum"},
	"projections/series":          {"log"},
	"projections":                 {"log"},
	"projections/pane":            {"log", "log/logtest", "projections", "projections/accum", "projections/bucket", "projections/plan", "projections/series"},
	"projections/query":           {"log", "projections/accum", "projections/bucket", "projections/pane", "projections/plan", "projections/series", "projections/query/oracle", "projections/query/querytest"},
	"projections/query/oracle":    {},
	"projections/query/querytest": {"projections/query/oracle", "log", "projections/accum", "projections/pane", "projections/plan", "projections/query"},
	"projections/window":          {"log", "projections", "projections/bucket", "projections/pane", "projections/plan", "projections/query", "projections/query/oracle", "projections/query/querytest", "projections/series"},
	"projections/sample":          {"log", "projections"},
	"master":                      {"log", "log/logtest", "projections", "projections/bucket"},
	"transport":                   {"log", "master", "projections/plan", "projections/query", "projections/query/querytest", "transport"},
	"cmd":                         {"*"},
}

// rule finds the entry for a package: its own, or that of the nearest directory above it.
func rule(pkg string) (string, []string) {
	for p := pkg; p != "."; p = filepath.Dir(p) {
		if allowed, ok := imports[p]; ok {
			return p, allowed
		}
	}
	return "", nil
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsRunOneWay(t *testing.T) {
	top := root(t)
	seen := 0
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(top, filepath.Dir(path))
		if err != nil {
			return err
		}
		of, allowed := rule(rel)
		if of == "" {
			t.Errorf("%s: no rule says what %s may import", path, rel)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, im := range file.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			if p == "log" {
				t.Errorf("%s imports the standard package log", path)
			}
			ours, ok := strings.CutPrefix(p, "tidemark/")
			if !ok {
				continue
			}
			seen++
			if rel == ours || slices.Contains(allowed, "*") {
				continue
			}
			// Naming a directory allows what lies below it, unless that has a rule of its own.
			if to, _ := rule(ours); !slices.Contains(allowed, ours) && !(slices.Contains(allowed, to)) {
				t.Errorf("%s: %s may not import %s", path, rel, ours)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Fatalf("saw %d imports of our own packages: the walk misses the tree", seen)
	}
}

// prompb and go-kit stop at the transport; the queries' engine is not linked into the log.
func TestForeignPackagesStopWhereTheyBelong(t *testing.T) {
	top := root(t)
	for _, c := range []struct{ foreign, where string }{
		{"github.com/go-kit/kit", "transport"},
		{"github.com/prometheus/prometheus/prompb", "transport"},
		{"github.com/prometheus/prometheus/promql\"", "projections transport cmd"},
		{"github.com/alecthomas/kingpin/v2", "cmd"},
		{"github.com/cockroachdb/pebble/v2", "log projections cmd"},
	} {
		found := false
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "layout_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), "\""+c.foreign) {
				return err
			}
			found = true
			rel, err := filepath.Rel(top, path)
			if err != nil {
				return err
			}
			head, _, _ := strings.Cut(rel, string(filepath.Separator))
			if !slices.Contains(strings.Fields(c.where), head) && !strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s imports %s, which stops at %s", rel, c.foreign, c.where)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			t.Errorf("nothing imports %s: the rule tests nothing", c.foreign)
		}
	}
}

// The top level is as it was laid out, and holds no Go file.
func TestTopLevel(t *testing.T) {
	want := strings.Fields("cmd log projections transport master testdata go.mod go.sum Makefile README.md LICENSE")
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(want, e.Name()) && e.Name() != "data" {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
}
