package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/prometheus/promql"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
)

// peerFlags are the flags of bench peers.
type peerFlags struct {
	series   int
	history  time.Duration
	runs     int
	requests int
	limit    time.Duration
	with     string
}

func newBenchPeers(group *kingpin.CmdClause) command {
	f := &peerFlags{}
	c := group.Command("peers", "Measure Tidemark beside Prometheus and VictoriaMetrics, as they are installed, on the same samples and the same questions, one after "+
		"the other, and print a table. Each is a process of its own with default settings. Want a machine that does nothing else.")
	c.Flag("series", "Series.").Default("10000").IntVar(&f.series)
	c.Flag("history", "Event time that is written before questions are asked, a sample every 15 s.").Default("1h30m").DurationVar(&f.history)
	c.Flag("runs", "Runs of each.").Default("3").IntVar(&f.runs)
	c.Flag("requests", "How often each question is asked in a run, at most.").Default("100").IntVar(&f.requests)
	c.Flag("query-time", "How long each question is asked in a run, at most, beyond the first time.").Default("5s").DurationVar(&f.limit)
	c.Flag("with", "Which to measure, separated by commas; those that are not installed are left out.").Default(strings.Join(peerNames(), ",")).StringVar(&f.with)
	return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
		if f.series < 300 || f.series > maxLoadSeries || f.runs < 1 || f.runs > 100 || f.requests < 1 || f.requests > maxBenchOperations ||
			f.limit < 0 || f.history < 10*time.Minute || f.history > 48*time.Hour {
			return &exitError{exitUsage, errors.New("--series from 300, --runs from 1 to 100, --history from 10m to 48h, please")}
		}
		return f.run(ctx, &bench{report: newReport(io.Discard), progress: stderr}, stdout)
	}}
}

// peer is something to measure.
type peer struct {
	name string
	// serve returns the command line that serves at an address, and the files that it wants in its directory.
	serve func(addr, dir string) (argv []string, files map[string]string)
	// ready is the path that answers 200 when it is.
	ready string
	// apply returns when everything acknowledged is applied, up to a time in ms; until then the clock of the load runs.
	apply func(ctx context.Context, s *service, end int64) error
	// settle returns when questions can be asked; the clock stands.
	settle  func(ctx context.Context, s *service) error
	version []string // command line that prints it
}

func atOnce(context.Context, *service, int64) error { return nil }

func asItIs(context.Context, *service) error { return nil }

// own says that a peer is Tidemark.
func (p *peer) own() bool { return strings.HasPrefix(p.name, peerTidemark) }

// dashboardConfig plans the eight questions of the dashboard.
func dashboardConfig(layout string, exact bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exact: {local: %v}\nmaterializations:\n", exact)
	for i, q := range dashboard {
		fmt.Fprintf(&b, "  - {name: dashboard_%d, expr: '%s', every: 15s, layout: %s}\n", i, q, layout)
	}
	return b.String()
}

// dashboard is what is asked.
var dashboard = []string{
	"quantile_over_time(0.95, m[5m])",
	"avg_over_time(m[5m])",
	"sum by (job) (rate(c[5m]))",
	"sum by (experiment) (increase(c[5m]))",
	"max by (experiment) (max_over_time(m[5m]))",
	"count by (job) (m)",
	"topk(10, sum by (experiment) (rate(c[5m])))",
	"histogram_quantile(0.99, sum by (le) (rate(b_bucket[5m])))",
}

const (
	peerTidemark   = "tidemark"
	peerWindows    = "tidemark-windows"
	peerDefaults   = "tidemark-exact"
	peerPrometheus = "prometheus"
	peerVictoria   = "victoria-metrics"
)

func peerNames() []string {
	return []string{peerTidemark, peerWindows, peerDefaults, peerPrometheus, peerVictoria}
}

// allPeers are what can be measured: Tidemark with panes, with recorded windows, and with panes beside the exact copy; and the others
// as their packages have them, but for ports, directories and what makes them take samples of last year.
func allPeers(self string) map[string]*peer {
	own := func(name, config string, settle func(context.Context, *service) error) *peer {
		return &peer{
			name: name, ready: "/-/ready", apply: applied, settle: settle, version: []string{self, "--version"},
			serve: func(addr, dir string) ([]string, map[string]string) {
				file := filepath.Join(dir, defaultConfigFile)
				return []string{self, "serve", "--config.file", file, "--storage.path", filepath.Join(dir, ownStorage), "--web.listen-address", addr},
					map[string]string{file: config}
			},
		}
	}
	return map[string]*peer{
		peerTidemark: own(peerTidemark, dashboardConfig("panes", false), asItIs),
		peerWindows:  own(peerWindows, dashboardConfig("full_window", false), recorded),
		peerDefaults: own(peerDefaults, dashboardConfig("panes", true), asItIs),
		peerPrometheus: {
			name: peerPrometheus, ready: "/-/ready", version: []string{"prometheus", "--version"},
			apply: atOnce, settle: asItIs,
			serve: func(addr, dir string) ([]string, map[string]string) {
				file := filepath.Join(dir, "prometheus.yml")
				return []string{"prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, ownStorage), "--web.listen-address", addr,
					"--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y"}, map[string]string{file: "global: {}\n"}
			},
		},
		peerVictoria: {
			name: peerVictoria, ready: "/health", version: []string{"victoria-metrics", "-version"}, apply: atOnce,
			settle: func(ctx context.Context, s *service) error { return s.get(ctx, "/internal/force_flush") },
			serve: func(addr, dir string) ([]string, map[string]string) {
				return []string{"victoria-metrics", "-storageDataPath=" + filepath.Join(dir, ownStorage), "-httpListenAddr=" + addr,
					"-retentionPeriod=100y", "-search.disableCache"}, nil
			},
		},
	}
}

// get asks for a page and wants 200.
func (s *service) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s: status %d", path, res.StatusCode)
	}
	return nil
}

// applied returns when every projection has applied the load, and everything is published.
func applied(ctx context.Context, s *service, end int64) error {
	if _, _, err := s.watermark(ctx, end, publishTimeout); err != nil {
		return err
	}
	return waitFor(ctx, readyPoll, func() (bool, error) {
		var state struct {
			Projections []struct {
				Lag int64 `json:"lag_events"`
			}
		}
		err := s.data(ctx, "/api/v1/status/log", &state)
		behind := int64(0)
		for _, p := range state.Projections {
			behind += p.Lag
		}
		return behind == 0, err
	})
}

// recorded returns when everything that is published is recorded: when for two intervals of the windows nothing more was.
func recorded(ctx context.Context, s *service) error {
	before, since := -1.0, time.Now()
	return waitFor(ctx, time.Second, func() (bool, error) {
		steps, err := s.metric(ctx, "tidemark_window_recorded_steps_total")
		if err != nil {
			return false, err
		}
		pending, err := s.metric(ctx, "tidemark_window_pending_steps")
		if steps != before || pending != 0 {
			before, since = steps, time.Now()
		}
		return time.Since(since) > 2*loadEvery, err
	})
}

// waitFor asks again and again.
func waitFor(ctx context.Context, pause time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	every := time.NewTicker(pause)
	defer every.Stop()
	for {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// data gets a route and decodes its data.
func (s *service) data(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var e envelope
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswerBytes)).Decode(&e); err != nil {
		return fmt.Errorf("%s: status %d: %w", path, res.StatusCode, err)
	}
	return json.Unmarshal(e.Data, into)
}

// peerRun is what one run of one peer has given.
type peerRun struct {
	write, small    float64 // samples/s
	p99             time.Duration
	cpu             float64 // s per million samples, of the large requests
	step            float64 // s of CPU that a step of all series takes until everything is recorded
	bytes           float64 // on disk, per sample, after a clean stop
	instant, ranged [8]asked
	answers         [8]int // series of each range answer
}

// asked is how long a question took.
type asked struct{ p50, p99 time.Duration }

// run measures all, one run of each after the other, and prints the table.
func (f *peerFlags) run(ctx context.Context, b *bench, stdout io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all := allPeers(self)
	var names []string
	for _, name := range strings.Split(f.with, ",") {
		p := all[name]
		if p == nil {
			return &exitError{exitUsage, fmt.Errorf("--with: %q is none of %s", name, strings.Join(peerNames(), ", "))}
		}
		if _, err := exec.LookPath(p.version[0]); err != nil {
			b.step("%s is not installed and is left out", name)
			continue
		}
		names = append(names, name)
	}
	runs := make(map[string][]peerRun)
	for n := range f.runs {
		for _, name := range names {
			b.step("run %d of %d: %s", n+1, f.runs, name)
			r, err := f.measure(ctx, b, all[name])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			runs[name] = append(runs[name], *r)
		}
	}
	if err := sameAnswers(names, runs); err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintf(stdout, "%s: %s\n", name, versionOf(ctx, all[name].version))
	}
	printPeers(stdout, f, names, runs)
	return nil
}

// versionOf returns the first line that a program prints of its version, or what its package says where it does not know.
func versionOf(ctx context.Context, argv []string) string {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err == nil && line != "" {
		return line
	}
	if out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f=${Version}", argv[0]).Output(); err == nil {
		return string(out)
	}
	return "of unknown version"
}

// measure is one run: small requests into one process, large ones into another, which then answers.
func (f *peerFlags) measure(ctx context.Context, b *bench, p *peer) (*peerRun, error) {
	r := &peerRun{}
	every := loadEvery
	rounds := int64(f.history / every)
	if err := inScratch(func(dir string) error {
		return p.on(ctx, dir, func(c *child, s *service) error {
			l := newDashboardLoad(loadShape{series: f.series, labels: 10, perRequest: 100, senders: 16}, every, time.Now())
			took, res, err := p.load(ctx, s, l, min(rounds, 60))
			r.small = float64(res.samples) / took.Seconds()
			return err
		})
	}); err != nil {
		return nil, err
	}
	err := inScratch(func(dir string) error {
		var samples uint64
		err := p.on(ctx, dir, func(c *child, s *service) error {
			l := newDashboardLoad(loadShape{series: f.series, labels: 10, perRequest: 2000, senders: 8}, every, time.Now())
			cpu := c.processor()
			took, res, err := p.load(ctx, s, l, rounds)
			if err != nil {
				return err
			}
			samples = res.samples
			r.write, r.p99 = float64(samples)/took.Seconds(), res.took.quantile(0.99)
			r.cpu = (c.processor() - cpu).Seconds() / float64(samples) * 1e6
			if err := p.settle(ctx, s); err != nil {
				return err
			}
			r.step = (c.processor() - cpu).Seconds() / float64(rounds)
			return f.ask(ctx, p, s, l.start+rounds*every.Milliseconds(), r)
		})
		if err != nil {
			return err
		}
		size, err := sizeOf(filepath.Join(dir, ownStorage))
		r.bytes = float64(size) / float64(samples)
		return err
	})
	return r, err
}

// load writes rounds samples of each series and returns how long it took until all of them were acknowledged and applied.
func (p *peer) load(ctx context.Context, s *service, l *load, rounds int64) (time.Duration, loadResult, error) {
	began := time.Now()
	res, err := l.rounds(ctx, s, rounds)
	if err == nil {
		err = p.apply(ctx, s, l.start+rounds*l.every)
	}
	return time.Since(began), res, err
}

// ask asks the dashboard's questions for the last hour up to end, ms, and for end alone. Tidemark's answers must be warm.
func (f *peerFlags) ask(ctx context.Context, p *peer, s *service, end int64, r *peerRun) error {
	var body bytes.Buffer
	span := min(int64(3_600_000), f.history.Milliseconds()-300_000)
	for i, expr := range dashboard {
		for _, q := range []struct {
			q    oracle.Query
			into *asked
		}{
			{oracle.Query{Expr: expr, Start: end}, &r.instant[i]},
			{oracle.Query{Expr: expr, Start: end - span, End: end, Step: 15_000}, &r.ranged[i]},
		} {
			// The first answer is looked at. What this process does with answers must not weigh on what they take, so the others are not.
			answer, err := s.ask(ctx, q.q)
			if m, ok := answer.outcome.Value.(promql.Matrix); ok {
				r.answers[i] = len(m)
			}
			answer.outcome.Value = nil
			runtime.GC()
			var took latencies
			for began := time.Now(); ; answer, err = s.again(ctx, q.q, &body) {
				if err != nil {
					return err
				}
				if answer.outcome.Err != nil {
					return fmt.Errorf("%s: %w", expr, answer.outcome.Err)
				}
				if p.own() && answer.route != query.RouteWarm {
					return fmt.Errorf("%s: the answer is not warm, but %s", expr, answer.route)
				}
				took.add(answer.took)
				if took.n >= uint64(f.requests) || time.Since(began) >= f.limit {
					break
				}
			}
			*q.into = asked{took.quantile(0.5), took.quantile(0.99)}
		}
	}
	return nil
}

// sameAnswers holds that all have answered with the same series; by which functions' rules they fill them is each one's own. So
// VictoriaMetrics, whose rate is another, may find other series among the first ten.
func sameAnswers(names []string, runs map[string][]peerRun) error {
	for i, expr := range dashboard {
		want := -1
		for _, name := range names {
			for _, r := range runs[name] {
				if want < 0 {
					want = r.answers[i]
				}
				own := name == peerVictoria && strings.HasPrefix(expr, "topk(") && r.answers[i] > 0
				if !own && r.answers[i] != want || want == 0 {
					return fmt.Errorf("%s: %d series from %s, %d from %s: they were not asked the same", expr, want, names[0], r.answers[i], name)
				}
			}
		}
	}
	return nil
}

// sizeOf adds up the files below a directory, in bytes.
func sizeOf(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

// on runs work against a peer that serves from dir.
func (p *peer) on(ctx context.Context, dir string, work func(*child, *service) error) (err error) {
	addr, err := unusedAddress()
	if err != nil {
		return err
	}
	argv, files := p.serve(addr, dir)
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	c, err := runChild(ctx, dir, "http://"+addr, p.ready, argv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.end(os.Interrupt)) }()
	s := newService(c.url, 16)
	defer s.close()
	return work(c, s)
}

// printPeers prints a row for each figure: the median of each peer's runs with the least and the greatest, and by how many times
// Tidemark is ahead of the others.
func printPeers(w io.Writer, f *peerFlags, names []string, runs map[string][]peerRun) {
	fmt.Fprintf(w, "\n%d series, 10 labels, a sample every 15 s over %s; %d runs: median (least–greatest)\n\n| |", f.series, f.history, f.runs)
	type pair struct{ own, other string }
	var pairs []pair
	for _, own := range []string{peerTidemark, peerWindows} {
		for _, other := range []string{peerPrometheus, peerVictoria} {
			if slices.Contains(names, own) && slices.Contains(names, other) {
				pairs = append(pairs, pair{own, other})
			}
		}
	}
	for _, name := range names {
		fmt.Fprintf(w, " %s |", name)
	}
	for _, p := range pairs {
		fmt.Fprintf(w, " %s : %s |", p.own, p.other)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(names)+len(pairs)))
	row := func(title, format string, moreIsBetter bool, value func(*peerRun) float64) {
		fmt.Fprintf(w, "| %s |", title)
		medians := make(map[string]float64)
		for _, name := range names {
			least, middle, most := spread(runs[name], value)
			medians[name] = middle
			fmt.Fprintf(w, " "+format+" ("+format+"–"+format+") |", middle, least, most)
		}
		for _, p := range pairs {
			ratio := medians[p.other] / medians[p.own]
			if moreIsBetter {
				ratio = 1 / ratio
			}
			fmt.Fprintf(w, " %.2f× |", ratio)
		}
		fmt.Fprintln(w)
	}
	row("acknowledged and applied, 2,000 a request, 8 senders, k samples/s", "%.0f", true, func(r *peerRun) float64 { return r.write / 1000 })
	row("acknowledged and applied, 100 a request, 16 senders, k samples/s", "%.0f", true, func(r *peerRun) float64 { return r.small / 1000 })
	row("a request of 2,000, p99 ms", "%.1f", false, func(r *peerRun) float64 { return milliseconds(r.p99) })
	row("CPU s per million samples", "%.2f", false, func(r *peerRun) float64 { return r.cpu })
	row("CPU ms per step of all series, until everything is recorded", "%.1f", false, func(r *peerRun) float64 { return r.step * 1000 })
	row("bytes on disk per sample", "%.2f", false, func(r *peerRun) float64 { return r.bytes })
	for i, expr := range dashboard {
		row("`"+expr+"`, instant, p50 ms", "%.2f", false, func(r *peerRun) float64 { return milliseconds(r.instant[i].p50) })
		row("the same, p99 ms", "%.2f", false, func(r *peerRun) float64 { return milliseconds(r.instant[i].p99) })
		row("the same, range, p50 ms", "%.2f", false, func(r *peerRun) float64 { return milliseconds(r.ranged[i].p50) })
		row("the same, range, p99 ms", "%.2f", false, func(r *peerRun) float64 { return milliseconds(r.ranged[i].p99) })
	}
}

// spread returns the least, the median and the greatest of a figure.
func spread(runs []peerRun, value func(*peerRun) float64) (least, middle, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	var all []float64
	for i := range runs {
		v := value(&runs[i])
		least, most = min(least, v), max(most, v)
		all = append(all, v)
	}
	return least, median(all), most
}
