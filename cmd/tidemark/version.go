package main

import (
	"fmt"

	"tidemark/transport/api"
)

// Set by the linker; what is empty is filled from what the Go command recorded.
var (
	version   string
	revision  string
	branch    string
	buildUser string
	buildDate string
)

// build says what this binary is.
func build() api.Build {
	return api.Build{
		Version: version, Revision: revision, Branch: branch, BuildUser: buildUser, BuildDate: buildDate,
	}.WithFallback()
}

func versionText() string {
	b := build()
	return fmt.Sprintf("tidemark, version %s (branch: %s, revision: %s)\n  build user: %s\n  build date: %s\n  go version: %s",
		b.Version, b.Branch, b.Revision, b.BuildUser, b.BuildDate, b.GoVersion)
}
