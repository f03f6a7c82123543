package plan

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Bounds of the configuration.
const (
	MaxConfigBytes      = 4 << 20  // of tidemark.yml
	MaxRuleFileBytes    = 16 << 20 // of one rule file
	MaxRuleFiles        = 1000
	MaxMaterializations = 10000 // entries and rules together
	MaxExprBytes        = 64 << 10
	MaxNameBytes        = 256 // of a materialization or the experiment label
	// MaxDurationMillis bounds every configured duration: 100 years of 365 days.
	MaxDurationMillis int64 = 100 * 365 * 24 * 3600 * 1000
)

// The layouts of a materialization.
const (
	LayoutPanes      = "panes"
	LayoutFullWindow = "full_window"
)

// The values of query.unpublished.
const (
	UnpublishedLive    = "live"    // steps that are not published yet are answered from open panes
	UnpublishedForward = "forward" // they are a miss: the exact source answers
)

// Defaults. The retention is that of an entry without one, and of every rule.
const (
	DefaultRetention = Duration(7 * 24 * time.Hour)
	// DefaultExactRetention is that of the exact copy, and MinExactRetentionMillis the least: a block's width.
	DefaultExactRetention   = Duration(15 * 24 * time.Hour)
	MinExactRetentionMillis = 2 * 60 * 60 * 1000
	DefaultLookback         = Duration(5 * time.Minute)
	DefaultMaxFuture        = Duration(10 * time.Minute)
)

// Config is tidemark.yml, and the two settings of the plan that are flags.
type Config struct {
	ExperimentLabel    string    `yaml:"experiment_label" help:"label whose values barriers, limits and the table of experiments go by"`
	RuleFiles          []string  `yaml:"rule_files,omitempty" help:"globs of Prometheus rule files, relative to this file: recording rules become recorded windows, alerting rules are listed and ignored"`
	Materializations   []Entry   `yaml:"materializations,omitempty" help:"what is folded into panes ahead of the queries"`
	Exact              Exact     `yaml:"exact" help:"where queries are answered that panes cannot answer"`
	Query              Query     `yaml:"query" help:"the query planner"`
	Timers             Timers    `yaml:"timers" help:"when silent or slow buckets close by log time"`
	CorrectionHorizon  Duration  `yaml:"correction_horizon" help:"how far behind a late sample is still folded in exactly"`
	ClockSkew          Duration  `yaml:"clock_skew" help:"how far ahead of the clock one series may move the frontier"`
	Log                LogLimits `yaml:"log" help:"what the event log retains: whichever is reached first"`
	Stats              Stats     `yaml:"stats" help:"the table of experiments, their maintenance and retirement"`
	EvaluationInterval Duration  `yaml:"evaluation_interval" help:"of rule groups without one, and of subqueries without a step"`
	Access             Access    `yaml:"access,omitempty" help:"what users may do: any of read, write and admin, by the name of basic authentication or of the client certificate; without it whoever may connect may do everything"`

	Lookback  Duration `yaml:"-"` // of instant selectors; the flag --query.lookback-delta
	MaxFuture Duration `yaml:"-"` // how far ahead of the clock a sample may be, 0 = unbounded; the flag --write.max-future

	Path string `yaml:"-"` // the file that was read; empty if there was none
	Dir  string `yaml:"-"` // what rule_files are relative to

	file string     // what errors call the file
	root *yaml.Node // the document, for line numbers; nil for a Config that was not read
}

// Entry is one element of materializations.
type Entry struct {
	Name            string     `yaml:"name" help:"by which its values can be read as a metric"`
	Expr            string     `yaml:"expr" help:"PromQL"`
	Every           Duration   `yaml:"every" help:"step of its grid, at least 1s: that of the dashboards and rules that read it"`
	Layout          string     `yaml:"layout" help:"panes, or full_window: values recorded per step"`
	Closed          Membership `yaml:"closed" help:"which edge a window owns: right, as Prometheus, or left"`
	AllowedLateness Duration   `yaml:"allowed_lateness" help:"how long a bucket waits for late samples before it closes"`
	Late            LatePolicy `yaml:"late" help:"what happens to a sample that comes behind its bucket: correct or drop"`
	Retention       Duration   `yaml:"retention" help:"how long what is published is kept, at least 1s"`
}

// Exact says where queries are answered that panes cannot answer.
type Exact struct {
	Local     bool     `yaml:"local" help:"keep an exact copy of the samples; false by default where there is an upstream"`
	Retention Duration `yaml:"retention" help:"of the copy, counted back from its newest sample, at least 2h"`
	MaxSize   Bytes    `yaml:"max_size" help:"of the copy on disk"`
	Upstream  URL      `yaml:"upstream" help:"URL of a Prometheus with the same samples"`
	// HTTPConfigFile has what the upstream asks of a client: credentials from files, TLS. It is a file such as promtool takes.
	HTTPConfigFile string `yaml:"http_config_file,omitempty" help:"credentials and TLS of the upstream, in a file as promtool takes it, relative to this file"`
}

// Access gives users their permissions: the names of basic authentication, or the common names of client certificates, with any
// of read, write and admin. admin includes the others. It is no part of a plan: nothing is folded by it.
type Access map[string][]string

// The permissions that Access gives.
const (
	AccessRead  = "read"
	AccessWrite = "write"
	AccessAdmin = "admin"
)

// maxUsers bounds the users of Access.
const maxUsers = 10_000

// Query holds the settings of the query planner.
type Query struct {
	Unpublished string `yaml:"unpublished" help:"steps that are not published yet: live answers them from open panes, forward leaves them to the exact source"`
	// LogFile is where queries are logged that took LogThreshold or longer, in the format of Prometheus' query log; relative to Dir. Empty:
	// nowhere.
	LogFile      string   `yaml:"log_file,omitempty" help:"where slow queries are logged, in the format of Prometheus' query log, relative to this file; empty: nowhere"`
	LogThreshold Duration `yaml:"log_threshold,omitempty" help:"queries that took as long or longer are logged; 0: all"`
}

// Timers close buckets by log time, when no later sample does.
type Timers struct {
	IdleTimeout Duration `yaml:"idle_timeout" help:"a stream without a sample is idle after it"`
	IdleGrace   Duration `yaml:"idle_grace" help:"how long an idle bucket waits more"`
	OpenGrace   Duration `yaml:"open_grace" help:"how long a bucket stays open at most behind its end, while samples of its series come"`
}

// Stats are the settings of the control plane's view of experiments. They are no part of a plan: nothing is folded by them.
type Stats struct {
	ScanInterval  Duration `yaml:"scan_interval" help:"between two scan rounds; 0: none but those that are asked for"`
	RetireAfter   Duration `yaml:"retire_after" help:"without an accepted sample an experiment is retired after it; 0: never"`
	SweepInterval Duration `yaml:"sweep_interval" help:"between two looks for maintenance that is due; 0: none"`
	AuditEvery    int      `yaml:"audit_every" help:"scan rounds after which some unchanged rows are read all the same; 0: never"`
}

// maxAuditEvery bounds stats.audit_every.
const maxAuditEvery = 1_000_000

// LogLimits bound what the event log retains: whichever is reached first.
type LogLimits struct {
	Retention Duration `yaml:"retention" help:"by age"`
	MaxSize   Bytes    `yaml:"max_size" help:"by size on disk"`
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		ExperimentLabel: "experiment",
		Exact:           Exact{Local: true, Retention: DefaultExactRetention, MaxSize: 50 << 30},
		Query:           Query{Unpublished: UnpublishedLive},
		Timers: Timers{
			IdleTimeout: Duration(time.Minute),
			IdleGrace:   Duration(5 * time.Second),
			OpenGrace:   Duration(5 * time.Second),
		},
		CorrectionHorizon: Duration(10 * time.Minute),
		ClockSkew:         Duration(time.Minute),
		Log:               LogLimits{Retention: Duration(24 * time.Hour), MaxSize: 50 << 30},
		Stats: Stats{
			ScanInterval: Duration(5 * time.Minute), RetireAfter: Duration(168 * time.Hour), SweepInterval: Duration(10 * time.Minute), AuditEvery: 12,
		},
		EvaluationInterval: Duration(time.Minute),
		Lookback:           DefaultLookback,
		MaxFuture:          DefaultMaxFuture,
	}
}

// Load reads the configuration from a file. An absent file is an empty one: the result is then Default, with an empty
// Path. Errors are of type *ConfigError, joined if there are several.
func Load(path string) (*Config, error) {
	dir := filepath.Dir(path)
	b, err := readBounded(path, MaxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		c := Default()
		c.Dir = dir
		return c, nil
	}
	if err != nil {
		return nil, &ConfigError{File: path, Msg: err.Error()}
	}
	c, err := parse(b, path)
	if err != nil {
		return nil, err
	}
	c.Path, c.Dir = path, dir
	return c, nil
}

// Parse reads the configuration from the text of a file in dir, and validates it as far as it can be without its rule
// files. Errors are of type *ConfigError, joined if there are several.
func Parse(text []byte, dir string) (*Config, error) {
	c, err := parse(text, "tidemark.yml")
	if err != nil {
		return nil, err
	}
	c.Dir = dir
	return c, nil
}

func parse(text []byte, file string) (*Config, error) {
	if len(text) > MaxConfigBytes {
		return nil, &ConfigError{File: file, Msg: fmt.Sprintf("%d bytes, at most %d", len(text), MaxConfigBytes)}
	}
	c := Default()
	c.file = file
	root, err := decodeStrict(text, file, c)
	if err != nil {
		return nil, err
	}
	c.root = root
	if !c.Exact.Upstream.IsZero() && !c.has("exact", "local") {
		c.Exact.Local = false
	}
	for i := range c.Materializations {
		c.entryDefaults(i)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// entryDefaults fills in what an entry leaves out. Whether retention is left out or 0 shows in the document only.
func (c *Config) entryDefaults(i int) {
	e := &c.Materializations[i]
	if e.Layout == "" && !c.has("materializations", i, "layout") {
		e.Layout = LayoutPanes
	}
	if e.Closed == "" && !c.has("materializations", i, "closed") {
		e.Closed = Right
	}
	if e.Late == "" && !c.has("materializations", i, "late") {
		e.Late = Correct
	}
	if e.Retention == 0 && !c.has("materializations", i, "retention") {
		e.Retention = DefaultRetention
	}
}

// String returns the configuration in force as YAML, defaults included and credentials left out.
func (c *Config) String() string {
	b, err := yaml.Marshal(c)
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(b)
}

// ConfigError says what is wrong with the configuration, and where.
type ConfigError struct {
	File  string // empty if the configuration was not read from a file
	Line  int    // from 1; 0 if unknown
	Field string // as in materializations[2].every; empty if it concerns the file as a whole
	Msg   string
}

// Error returns "file:line: field: message", without the parts that are unknown.
func (e *ConfigError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteString(": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// readBounded reads a whole file that has at most limit bytes. The error does not name the file.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, pathless(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, pathless(err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return b, nil
}

// pathless strips the path from an error of package os, because the caller names it.
func pathless(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
