package main

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var caseLine = regexp.MustCompile(`^([A-E]\d\d) \| (\S.*\S) \| (TestCase_\w+)$`)

// The list of cases is true: every test that it names is in the tree, and is named after its case.
func TestCasesList(t *testing.T) {
	tests := testFunctions(t, filepath.Join("..", ".."))
	f, err := os.Open(filepath.Join("testdata", "cases.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[string]bool{}
	n, last := 0, ""
	for in := bufio.NewScanner(f); in.Scan(); {
		line := in.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := caseLine.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%q is not: case | outcome | test", line)
			continue
		}
		id, test := m[1], m[3]
		switch {
		case !tests[test]:
			t.Errorf("%s: there is no %s", id, test)
		case !slices.Contains(strings.Split(test, "_"), id):
			t.Errorf("%s: %s is not named after it", id, test)
		case seen[id+test]:
			t.Errorf("%s is listed twice with %s", id, test)
		case id < last:
			t.Errorf("%s stands behind %s", id, last)
		}
		seen[id+test], last = true, id
		n++
	}
	if n == 0 {
		t.Error("no case is listed")
	}
}

// testFunctions returns the names of all test functions below root.
func testFunctions(t *testing.T, root string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				out[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
