package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/plan"
)

const (
	defaultURL = "http://127.0.0.1:9697"
	// barrierTimeout bounds a call from the command line; the server's own bound is shorter.
	barrierTimeout = time.Minute
	maxAnswerBytes = 1 << 20
)

func newWatermark(app *kingpin.Application) command {
	var to remote
	var at, experiment string
	var scoped bool
	c := app.Command("watermark", "Tell a running service that everything up to a time has been written, and wait until it is published.")
	to.declare(c)
	c.Flag("time-ms", "Event time in milliseconds since the epoch, or now.").Required().StringVar(&at)
	c.Flag("experiment", "Only for the series of this experiment.").IsSetByUser(&scoped).StringVar(&experiment)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		if at == "now" {
			at = strconv.FormatInt(time.Now().UnixMilli(), 10)
		}
		if _, err := strconv.ParseInt(at, 10, 64); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--time-ms: %q is neither a number of milliseconds nor now", at)}
		}
		form := url.Values{"time_ms": {at}}
		if scoped && experiment == "" { // as of a shell variable that is not set: a barrier for all is not what is meant
			return &exitError{exitUsage, errors.New("--experiment: no experiment has an empty name; without the flag the barrier is for all")}
		}
		if scoped {
			form.Set("experiment", experiment)
		}
		return to.post(ctx, "/api/v1/precompute/watermark", form, stdout)
	}}
}

func newDrain(app *kingpin.Application) command {
	var to remote
	c := app.Command("drain", "Close every open bucket of a running service and seal its input until it is started again.")
	to.declare(c)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		return to.post(ctx, "/api/v1/precompute/drain", nil, stdout)
	}}
}

// post calls a route, prints what it says, and fails unless it succeeded.
func (r *remote) post(ctx context.Context, path string, form url.Values, stdout io.Writer) error {
	client, err := r.client()
	if err != nil {
		return err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, barrierTimeout)
		defer cancel()
	}
	u := strings.TrimRight(r.url, "/") + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, strings.NewReader(form.Encode()))
	if err != nil {
		return &exitError{exitUsage, err}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%s: %w", u, err)
	}
	var answer struct {
		Data     json.RawMessage `json:"data"`
		Error    string          `json:"error"`
		Warnings []string        `json:"warnings"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: status %s with an answer that is no JSON", u, res.Status)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s", u, res.StatusCode, answer.Error)
	}
	for _, w := range answer.Warnings {
		fmt.Fprintln(stdout, "warning:", w)
	}
	_, err = fmt.Fprintf(stdout, "%s\n", answer.Data)
	return err
}

// checkGroup finds or makes the command that groups the checks, and logGroup that of the log.
func checkGroup(app *kingpin.Application) *kingpin.CmdClause {
	if c := app.GetCommand("check"); c != nil {
		return c
	}
	return app.Command("check", "Check files without starting anything. Exit code 3: findings only.")
}

func newCheckConfig(app *kingpin.Application) command {
	var path string
	c := checkGroup(app).Command("config", "Check a configuration file and the rule files that it names.")
	c.Arg("file", "Configuration file.").Default(defaultConfigFile).ExistingFileVar(&path)
	return command{c, func(_ context.Context, stdout, _ io.Writer) error {
		cfg, err := plan.Load(path)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if !cfg.Exact.Local && cfg.Exact.Upstream.IsZero() {
			fmt.Fprintln(stdout, "note: exact: there is neither a local copy nor an upstream; only what is materialized can be answered")
		}
		return checkPlan(cfg, path, stdout)
	}}
}

func newConfigReference(app *kingpin.Application) command {
	c := app.Command("config-reference", "Print a configuration with every key that there is, its help and its default.")
	return command{c, func(_ context.Context, stdout, _ io.Writer) error { return plan.WriteReference(stdout) }}
}

func newCheckRules(app *kingpin.Application) command {
	var paths []string
	var interval time.Duration
	c := checkGroup(app).Command("rules", "Say for each rule of Prometheus rule files what it becomes, or why it cannot.")
	c.Arg("files", "Rule files.").Required().ExistingFilesVar(&paths)
	c.Flag("evaluation-interval", "Interval of groups without one.").Default("1m").DurationVar(&interval)
	return command{c, func(_ context.Context, stdout, _ io.Writer) error {
		cfg := plan.Default()
		cfg.EvaluationInterval = plan.Duration(interval)
		for _, p := range paths {
			abs, err := filepath.Abs(p)
			if err != nil {
				return err
			}
			cfg.RuleFiles = append(cfg.RuleFiles, abs)
		}
		return checkPlan(cfg, strings.Join(paths, ", "), stdout)
	}}
}

// checkPlan prints what becomes of a configuration, and at the end, unless something is found, that it is sound.
func checkPlan(cfg *plan.Config, name string, stdout io.Writer) error {
	_, report, err := plan.Build(cfg)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if _, err := io.WriteString(stdout, report.String()); err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return &exitError{exitUsage, err}
	}
	if n := report.Skipped(); n > 0 {
		return &exitError{exitFindings, fmt.Errorf("%d of the rules do not become recorded windows", n)}
	}
	_, err = fmt.Fprintf(stdout, "SUCCESS: %s: materializations: %d, recording rules: %d\n", name, len(report.Entries), len(report.Rules))
	return err
}

func logGroup(app *kingpin.Application) *kingpin.CmdClause {
	if c := app.GetCommand("log"); c != nil {
		return c
	}
	return app.Command("log", "Look into a log that no process has open.")
}

func storageFlag(c *kingpin.CmdClause, to *string) {
	c.Flag("storage.path", "Directory of the log and what is folded from it.").Default("data").StringVar(to)
}

func newLogStat(app *kingpin.Application) command {
	var dir string
	c := logGroup(app).Command("stat", "Print the extent and size of the log as JSON.")
	storageFlag(c, &dir)
	return command{c, func(_ context.Context, stdout, _ io.Writer) (err error) {
		l, err := log.OpenReadOnly(filepath.Join(dir, logDir), log.Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		st, err := l.Stat()
		if err != nil {
			return err
		}
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(st)
	}}
}

func newLogDump(app *kingpin.Application) command {
	var dir string
	var from, to uint64
	c := logGroup(app).Command("dump", "Print events, one JSON object a line.")
	storageFlag(c, &dir)
	c.Flag("from", "First sequence. 0 = the first that the log still has.").Default("0").Uint64Var(&from)
	c.Flag("to", "Last sequence. 0 = to the end.").Default("0").Uint64Var(&to)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) (err error) {
		l, err := log.OpenReadOnly(filepath.Join(dir, logDir), log.Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		var lookupErr error
		lookup := func(ref log.SeriesRef) (labels.Labels, bool) {
			ls, ok, err := l.Dictionary().Labels(ref)
			lookupErr = errors.Join(lookupErr, err)
			return ls, ok
		}
		r := l.NewReader(log.Seq(from))
		for ctx.Err() == nil {
			ev, err := r.Next()
			if errors.Is(err, io.EOF) || err == nil && to > 0 && uint64(ev.Seq) > to {
				return nil
			}
			if err != nil {
				return err
			}
			if err := errors.Join(log.DumpJSON(stdout, ev, lookup), lookupErr); err != nil {
				return err
			}
		}
		return ctx.Err()
	}}
}
