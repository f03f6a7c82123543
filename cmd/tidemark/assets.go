package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

// assetFiles are what operators use: alert rules and a dashboard on this service itself, a systemd unit, and a container file.
//
//go:embed assets
var assetFiles embed.FS

// assetNames lists the assets.
func assetNames() []string {
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic("the assets are embedded: " + err.Error())
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func newAssets(app *kingpin.Application) command {
	var name string
	names := assetNames()
	c := app.Command("assets", "Print alert rules, the Grafana dashboard, the systemd unit or the container file of this service; without a name, list them.")
	c.Arg("name", "One of "+strings.Join(names, ", ")+".").StringVar(&name)
	return command{c, func(_ context.Context, stdout, _ io.Writer) error {
		if name == "" {
			_, err := fmt.Fprintln(stdout, strings.Join(names, "\n"))
			return err
		}
		for _, n := range names {
			if n == name {
				b, err := assetFiles.ReadFile("assets/" + n)
				if err == nil {
					_, err = stdout.Write(b)
				}
				return err
			}
		}
		return &exitError{exitUsage, fmt.Errorf("there is no asset %q; there are %s", name, strings.Join(names, ", "))}
	}}
}
