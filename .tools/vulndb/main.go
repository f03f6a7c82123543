// Command vulndb makes of the module golang.org/x/vulndb a database of vulnerabilities that govulncheck can read from the disk, so
// that whoever reaches the module proxy needs no other server.
//
//	vulndb FROM TO
//
// FROM is the directory of the module. In TO it writes what https://go.dev/security/vuln/database describes:
//
//	index/db.json, index/modules.json, index/vulns.json, ID/<id>.json
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// entry is what the indexes need of a report.
type entry struct {
	ID        string     `json:"id"`
	Modified  time.Time  `json:"modified"`
	Withdrawn *time.Time `json:"withdrawn"`
	Aliases   []string   `json:"aliases"`
	Affected  []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
	} `json:"affected"`
}

type vuln struct {
	ID       string    `json:"id"`
	Modified time.Time `json:"modified"`
	Aliases  []string  `json:"aliases,omitempty"`
}

type module struct {
	Path  string `json:"path"`
	Vulns []vuln `json:"vulns"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: vulndb FROM TO")
		os.Exit(2)
	}
	n, err := convert(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulndb:", err)
		os.Exit(1)
	}
	fmt.Printf("%d reports\n", n)
}

func convert(from, to string) (int, error) {
	reports, err := filepath.Glob(filepath.Join(from, "data", "osv", "*.json"))
	if err == nil && len(reports) == 0 {
		err = fmt.Errorf("no reports in %s", from)
	}
	if err = errors.Join(err, os.RemoveAll(to), os.MkdirAll(filepath.Join(to, "ID"), 0o755), os.MkdirAll(filepath.Join(to, "index"), 0o755)); err != nil {
		return 0, err
	}
	var newest time.Time
	var vulns []vuln
	modules := map[string]*module{}
	for _, path := range reports {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		var e entry
		if err := json.Unmarshal(b, &e); err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if e.Modified.After(newest) {
			newest = e.Modified
		}
		vulns = append(vulns, vuln{e.ID, e.Modified, e.Aliases})
		if e.Withdrawn == nil {
			for _, a := range e.Affected {
				m := modules[a.Package.Name]
				if m == nil {
					m = &module{Path: a.Package.Name}
					modules[a.Package.Name] = m
				}
				if !slices.ContainsFunc(m.Vulns, func(v vuln) bool { return v.ID == e.ID }) {
					m.Vulns = append(m.Vulns, vuln{ID: e.ID, Modified: e.Modified})
				}
			}
		}
		if err := os.WriteFile(filepath.Join(to, "ID", e.ID+".json"), b, 0o644); err != nil {
			return 0, err
		}
	}
	var list []*module
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		list = append(list, modules[path])
	}
	for name, v := range map[string]any{"db": map[string]time.Time{"modified": newest}, "modules": list, "vulns": vulns} {
		b, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, "index", name+".json"), b, 0o644)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(reports), nil
}
