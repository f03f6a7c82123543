// Command tidemark is a durable, replayable precomputation service for PromQL.
//
// This package is the wiring: flags, configuration, the order in which parts start and stop, and the tools around them. What
// the parts do is in log, projections and transport.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"

	"tidemark/log"
)

// Exit codes.
const (
	exitOK       = 0
	exitFailure  = 1 // an error at run time or at start
	exitUsage    = 2 // bad flags or configuration
	exitFindings = 3 // check found something to say, and nothing wrong
	exitPoisoned = 4 // a write of the log failed: the process must start anew
)

// exitError carries an exit code to main.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func main() {
	// The first signal stops in order; the second ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is a subcommand: it declares its flags on construction and does its work in run.
type command struct {
	clause *kingpin.CmdClause
	run    func(ctx context.Context, stdout, stderr io.Writer) error
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := kingpin.New("tidemark", "A durable, replayable precomputation service for PromQL.")
	app.HelpFlag.Short('h')
	app.UsageWriter(stdout).ErrorWriter(stderr)
	printed := false
	app.Terminate(func(int) { printed = true }) // --help and --version; kingpin would end the process
	app.Version(versionText())

	commands := []command{
		newServe(app), newWatermark(app), newDrain(app), newCheckConfig(app), newCheckRules(app), newConfigReference(app),
		newLogStat(app), newLogVerify(app), newLogDump(app), newLogTruncate(app), newRebuild(app), newDigest(app), newBackup(app), newRestore(app),
		newDemo(app), newAssets(app),
		newExplain(app), newSuggest(app),
	}
	commands = append(commands, newBench(app)...)
	name, err := app.Parse(args)
	if printed {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "tidemark: error: %s\n", err)
		return exitUsage
	}
	for _, c := range commands {
		if c.clause.FullCommand() != name {
			continue
		}
		err := c.run(ctx, stdout, stderr)
		if err != nil {
			fmt.Fprintf(stderr, "tidemark: error: %s\n", err)
		}
		return exitCode(err)
	}
	panic("every clause has a command: " + name)
}

func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, log.ErrPoisoned):
		return exitPoisoned
	}
	return exitFailure
}
