package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The reference that the command prints is a configuration that it accepts.
func TestConfigReference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reference.yml")
	if err := os.WriteFile(path, []byte(printed(t, "config-reference")), 0o600); err != nil {
		t.Fatal(err)
	}
	printed(t, "check", "config", path)
}

// The unit and the container file start the service with flags that it has.
func TestPackagingFitsTheFlags(t *testing.T) {
	help := printed(t, "help", "serve")
	flag := regexp.MustCompile(`--([a-z.-]+)=`)
	n := 0
	for _, name := range []string{"tidemark.service", "Containerfile"} {
		for line := range strings.Lines(printed(t, "assets", name)) {
			if strings.HasPrefix(line, "#") || !strings.Contains(line, "serve") {
				continue
			}
			for _, m := range flag.FindAllStringSubmatch(line, -1) {
				if n++; !strings.Contains(help, "--"+m[1]+"=") {
					t.Errorf("%s uses --%s, which is not a flag", name, m[1])
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("%d flags", n)
	}
}
