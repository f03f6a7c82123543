package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/alecthomas/units"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	promslogflag "github.com/prometheus/common/promslog/flag"

	"tidemark/log"
	"tidemark/projections/plan"
	"tidemark/projections/query"
	"tidemark/transport"
	"tidemark/transport/api"
	"tidemark/transport/remotewrite"
	"tidemark/transport/upstream"
)

const (
	defaultConfigFile = "tidemark.yml"
	// shutdownTimeout bounds how long requests under way may take at the end; then their connections are cut.
	shutdownTimeout = 8 * time.Second
)

// Bounds of the queries at one time where no flag says how many. More of them than processors answer nothing sooner, and whatever else has
// work for a moment, as a write has at each of its steps, waits behind all of them: with 20 instead of 4 on two processors the p99 of a write
// beside them was about twice as long (`tidemark bench isolation`, single runs on a busy machine). Half of them are one client's: with fewer
// than these, a dashboard's look-ups would wait for two long queries of the same dashboard.
const (
	queriesPerProcessor = 2
	leastQueries        = 8
	mostQueries         = 20 // as in Prometheus
)

// maxQueries is how many queries there may be at one time.
func (f *serveFlags) maxQueries() int {
	if f.concurrency > 0 {
		return f.concurrency
	}
	return queriesOn(runtime.GOMAXPROCS(0))
}

func queriesOn(processors int) int {
	return min(mostQueries, max(leastQueries, queriesPerProcessor*processors))
}

// serveFlags are the flags of serve.
type serveFlags struct {
	configFile    string
	configGiven   bool
	storagePath   string
	listenAddress string
	externalURL   *url.URL
	routePrefix   string
	corsOrigin    string
	lifecycle     bool
	adminAPI      bool
	webConfig     string
	timeouts      transport.Timeouts
	maxConns      int

	routePrefixGiven bool

	minFree units.Base2Bytes
	ballast units.Base2Bytes
	maxLag  time.Duration
	workers int
	ckpt    time.Duration

	lookback    time.Duration
	timeout     time.Duration
	maxSamples  int
	concurrency int

	readSamples, readConcurrency, readFrame int

	maxBody, maxDecoded, maxInflight units.Base2Bytes
	maxFuture                        time.Duration
	maxSeries, maxRequestSamples     int
	maxRequests                      int
	maxLabels, maxName, maxValue     int
	maxExperimentSeries              int
	maxExperiments                   int
	rateLimit, clientShare           float64
	queryShare                       float64

	log   promslog.Config
	flags map[string]string // as given, for /api/v1/status/flags

	listening func(net.Addr)
	around    surroundings
}

// surroundings is what the service takes from the machine. The zero value is the machine; tests put their own in its place.
type surroundings struct {
	now            func() time.Time     // nil: time.Now
	monotonic      func() time.Duration // of log time; nil: the machine's
	disk           vfs.FS               // of the storage directory; nil: the file system
	logFS, viewsFS vfs.FS               // of one part of it; nil: disk
	freeBytes      func(path string) (uint64, error)
	serving        func(http.Handler) // told what is served; nil: nobody is
}

func (s *surroundings) time() time.Time {
	if s.now == nil {
		return time.Now()
	}
	return s.now()
}

// storage is where the storage directory lies.
func (s *surroundings) storage() vfs.FS {
	if s.disk == nil {
		return vfs.Default
	}
	return s.disk
}

// logDisk and viewsDisk are where its parts lie.
func (s *surroundings) logDisk() vfs.FS {
	if s.logFS == nil {
		return s.storage()
	}
	return s.logFS
}

func (s *surroundings) viewsDisk() vfs.FS {
	if s.viewsFS == nil {
		return s.storage()
	}
	return s.viewsFS
}

func newServe(app *kingpin.Application) command { return serveCommand(app, func(net.Addr) {}) }

// serveCommand is serve; listening is called with the address once it is bound.
func serveCommand(app *kingpin.Application, listening func(net.Addr)) command {
	f := &serveFlags{listening: listening}
	c := f.declare(app)
	return command{c, func(ctx context.Context, _, stderr io.Writer) error {
		f.log.Writer = stderr
		f.flags = flagValues(c.Model())
		if err := f.checkExternalURL(); err != nil {
			return &exitError{exitUsage, err}
		}
		return f.withRemedy(f.serve(ctx))
	}}
}

// withRemedy adds to the error of a damaged log what to do about it.
func (f *serveFlags) withRemedy(err error) error {
	var damage *log.CorruptionError
	var short *log.ShortLogError
	if !errors.As(err, &damage) && !errors.As(err, &short) {
		return err
	}
	return fmt.Errorf("%w. `tidemark log verify --repair --storage.path=%s` keeps what is sound of the log, moves the rest aside and says what is lost; "+
		"without --repair it only looks", err, f.storagePath)
}

// declare declares the command with its flags.
func (f *serveFlags) declare(app *kingpin.Application) *kingpin.CmdClause {
	c := app.Command("serve", "Take remote write, keep the log, fold it into panes, answer queries.")
	rw := remotewrite.DefaultOptions()
	c.Flag("config.file", "Configuration file. Without it "+defaultConfigFile+" is read if it is there.").IsSetByUser(&f.configGiven).Default(defaultConfigFile).StringVar(&f.configFile)
	c.Flag("storage.path", "Directory of the log and what is folded from it.").Default("data").StringVar(&f.storagePath)
	c.Flag("web.listen-address", "Address to listen on.").Default("127.0.0.1:9697").StringVar(&f.listenAddress)
	c.Flag("web.external-url", "Where browsers reach this service, if a proxy stands in between.").URLVar(&f.externalURL)
	c.Flag("web.route-prefix", "Prefix of all paths. The path of --web.external-url by default.").IsSetByUser(&f.routePrefixGiven).Default("").StringVar(&f.routePrefix)
	c.Flag("web.cors.origin", "Regular expression, anchored, of the origins whose scripts may read. None by default.").Default("").StringVar(&f.corsOrigin)

	c.Flag("web.config.file", "File with TLS, client certificates, users and HTTP/2, as Prometheus takes it. What users may do stands under access in the configuration.").Default("").StringVar(&f.webConfig)
	t := transport.DefaultTimeouts()
	c.Flag("web.read-header-timeout", "How long the header of a request may take to arrive.").Default(t.ReadHeader.String()).DurationVar(&f.timeouts.ReadHeader)
	c.Flag("web.read-timeout", "How long a request may take to arrive, body included.").Default(t.Read.String()).DurationVar(&f.timeouts.Read)
	c.Flag("web.write-timeout", "How long a client may leave a piece of an answer untaken.").Default(t.Write.String()).DurationVar(&f.timeouts.Write)
	c.Flag("web.idle-timeout", "How long a silent connection is kept.").Default(t.Idle.String()).DurationVar(&f.timeouts.Idle)
	c.Flag("web.max-connections", "Connections at one time, of which one address gets half; others are closed at once.").Default(strconv.Itoa(transport.DefaultMaxConnections)).IntVar(&f.maxConns)
	c.Flag("web.enable-admin-api", "Let POST "+transport.SnapshotPath+" make backups.").Default("false").BoolVar(&f.adminAPI)
	c.Flag("web.enable-lifecycle", "Let POST or PUT /-/reload read the configuration again, as SIGHUP does.").Default("false").BoolVar(&f.lifecycle)

	c.Flag("log.min-free-bytes", "Writes get 503 while the disk of the log has less space than this.").Default("256MiB").BytesVar(&f.minFree)
	c.Flag("storage.ballast-bytes", "Size of a file that is let go when a start finds the disk full. 0 = none.").Default("16MiB").BytesVar(&f.ballast)
	c.Flag("projection.max-lag", "Writes get 503 while a projection is further behind the log than this. 0 = never.").Default("30s").DurationVar(&f.maxLag)
	c.Flag("projection.workers", "Goroutines that fold. 0 = one for each CPU.").Default("0").IntVar(&f.workers)
	c.Flag("projection.checkpoint-interval", "Time in which every shard is written once.").Default("15s").DurationVar(&f.ckpt)

	c.Flag("query.lookback-delta", "How far an instant selector looks back.").Default("5m").DurationVar(&f.lookback)
	c.Flag("query.timeout", "Bound of one query.").Default("2m").DurationVar(&f.timeout)
	c.Flag("query.max-samples", "Samples that one query may hold.").Default("50000000").IntVar(&f.maxSamples)
	c.Flag("query.max-concurrency", fmt.Sprintf("Queries at one time; others wait. 0 = %d for each CPU, from %d to %d.", queriesPerProcessor, leastQueries, mostQueries)).
		Default("0").IntVar(&f.concurrency)

	c.Flag("query.max-client-share", "Part of the queries at one time, from 0 to 1, that one user or address may have; others of it wait.").Default("0.5").Float64Var(&f.queryShare)

	c.Flag("storage.remote.read-sample-limit", "Samples that one remote read may answer with, unless it is streamed.").Default(strconv.Itoa(api.DefaultReadSamples)).IntVar(&f.readSamples)
	c.Flag("storage.remote.read-concurrent-limit", "Remote reads at one time; others wait.").Default(strconv.Itoa(api.DefaultReadConcurrency)).IntVar(&f.readConcurrency)
	c.Flag("storage.remote.read-max-bytes-in-frame", "Bytes of a frame of a streamed remote read.").Default(strconv.Itoa(api.DefaultReadFrameBytes)).IntVar(&f.readFrame)

	size := func(name, help string, def int64, to *units.Base2Bytes) {
		c.Flag(name, help).Default(units.Base2Bytes(def).String()).BytesVar(to)
	}
	size("write.max-body-bytes", "Largest body of a write, as it comes.", rw.MaxBodyBytes, &f.maxBody)
	size("write.max-decoded-bytes", "Largest body of a write, decompressed.", rw.MaxDecodedBytes, &f.maxDecoded)
	size("write.max-inflight-bytes", "Memory of all writes under way; beyond it 503.", rw.MaxInflightBytes, &f.maxInflight)
	c.Flag("write.max-client-share", "Part of the writes under way, from 0 to 1, that one user or address may have; beyond it 503.").Default(strconv.FormatFloat(rw.MaxClientShare, 'g', -1, 64)).Float64Var(&f.clientShare)
	c.Flag("write.max-future", "How far ahead of the clock a sample may be. 0 = any distance.").Default(rw.MaxFuture.String()).DurationVar(&f.maxFuture)
	count := func(name, help string, def int, to *int) { c.Flag(name, help).Default(strconv.Itoa(def)).IntVar(to) }
	count("write.max-inflight-requests", "Writes under way; beyond it 503.", rw.MaxInflightRequests, &f.maxRequests)
	count("write.max-series", "Series of one request.", rw.MaxSeries, &f.maxSeries)
	count("write.max-samples", "Samples of one request.", rw.MaxSamples, &f.maxRequestSamples)
	count("write.max-labels", "Labels of one series.", rw.MaxLabels, &f.maxLabels)
	count("write.max-label-name-bytes", "Length of a label name.", rw.MaxLabelNameBytes, &f.maxName)
	count("write.max-label-value-bytes", "Length of a label value.", rw.MaxLabelValueBytes, &f.maxValue)
	count("write.max-series-per-experiment", "Series with one value of the experiment label; new ones beyond it are refused. 0 = any number.", 1_000_000, &f.maxExperimentSeries)
	count("write.max-experiments", "Values of the experiment label; series of new ones beyond it are refused. 0 = any number.", 100_000, &f.maxExperiments)
	c.Flag("write.rate-limit", "Requests per second; beyond it 503. 0 = no limit.").Default("0").Float64Var(&f.rateLimit)
	promslogflag.AddFlags(app, &f.log)
	return c
}

// checkExternalURL reads --web.external-url, whose path is the prefix of all paths unless one was given.
func (f *serveFlags) checkExternalURL() error {
	u := f.externalURL
	switch {
	case u == nil:
		return nil
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "", u.User != nil:
		return fmt.Errorf("--web.external-url: %q is not the URL of a web server", u.Redacted())
	case !f.routePrefixGiven:
		f.routePrefix = u.Path
	}
	return nil
}

// flagValues lists flags with their values, as /api/v1/status/flags shows them.
func flagValues(m *kingpin.CmdModel) map[string]string {
	out := make(map[string]string)
	for _, fl := range m.Flags {
		if !fl.Hidden && fl.Name != "help" {
			out[fl.Name] = fl.Value.String()
		}
	}
	return out
}

// loadPlan reads the configuration and builds the plan.
func (f *serveFlags) loadPlan() (*plan.Config, *plan.Plan, plan.Report, error) {
	bad := func(err error) error { return &exitError{exitUsage, err} }
	switch _, err := os.Stat(f.configFile); {
	case err == nil:
		f.configGiven = true // a reload that does not find it any more is no wish for an empty plan
	case f.configGiven:
		return nil, nil, plan.Report{}, bad(err)
	}
	cfg, err := plan.Load(f.configFile)
	if err != nil {
		return nil, nil, plan.Report{}, bad(err)
	}
	cfg.Lookback, cfg.MaxFuture = plan.Duration(f.lookback), plan.Duration(f.maxFuture)
	p, report, err := plan.Build(cfg)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, nil, plan.Report{}, bad(err)
	}
	return cfg, p, report, nil
}

func (f *serveFlags) serve(ctx context.Context) error {
	listen := func() (net.Listener, error) { return net.Listen("tcp", f.listenAddress) }
	return f.serveOn(ctx, listen, promslog.New(&f.log), func(*node) {})
}

// serveOn opens everything, serves until ctx ends or a part fails, and closes everything. opened is called once with what was
// opened, before any of it runs.
func (f *serveFlags) serveOn(ctx context.Context, listen func() (net.Listener, error), logger *slog.Logger, opened func(*node)) error {
	cfg, p, report, err := f.loadPlan()
	if err != nil {
		return err
	}
	var origin *regexp.Regexp
	if f.corsOrigin != "" {
		if origin, err = transport.ParseOrigin(f.corsOrigin); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	if !(f.queryShare > 0 && f.queryShare <= 1) {
		return &exitError{exitUsage, errors.New("--query.max-client-share must be above 0 and at most 1")}
	}
	if err := f.checkWeb(cfg); err != nil {
		return &exitError{exitUsage, err}
	}
	// From here on a hangup is a wish to reload and not the end, however long the log takes to open.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	// The port is bound before anything is opened, so that a sender waits instead of being turned away.
	listener, err := listen()
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer listener.Close()
	f.listening(listener.Addr())
	logger.Info("Starting Tidemark", "version", build().Version, "revision", build().Revision, "config", f.configRead(), "storage", absolute(f.storagePath))
	reportFindings(logger, report)

	n, err := openNode(f, cfg, p, logger)
	if err != nil {
		return err
	}
	n.current.Store(&loaded{cfg: cfg, plan: p, at: n.started, report: report, ok: true})
	handler, err := f.handler(n, cfg, origin)
	if err != nil {
		return errors.Join(err, n.close())
	}
	if f.around.serving != nil {
		f.around.serving(handler)
	}
	bounded, err := transport.Limit(listener, f.maxConns, n.registry)
	if err != nil {
		return errors.Join(err, n.close())
	}
	opened(n)
	reload := func(ctx context.Context) error { return reloadOnHangup(ctx, hangup, n) }
	err = f.runGroup(ctx, n, transport.Server(handler, f.timeouts), bounded, reload, logger)
	if cerr := n.close(); err == nil {
		err = cerr
	}
	if err == nil {
		logger.Info("Stopped")
	}
	return err
}

// configRead says which configuration file was read, after loadPlan.
func (f *serveFlags) configRead() string {
	if !f.configGiven {
		return "none: there is no " + absolute(f.configFile)
	}
	return absolute(f.configFile)
}

// absolute is a path as it is found from anywhere, or as it was given if the process does not know where it stands.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func reportFindings(logger *slog.Logger, report plan.Report) {
	if n := report.Skipped(); n > 0 {
		logger.Warn("Some rules do not become recorded windows; `tidemark check rules` says which and why", "rules", n)
	}
	if n := report.Twice(); n > 0 {
		logger.Warn("Some rules record the same name with the same labels as an earlier one, whose values are read where both have some; `tidemark check rules` says which", "rules", n)
	}
	if n := len(report.Notes); n > 0 {
		logger.Warn("Something in the rule files has no effect; `tidemark check config` says all of it", "notes", n, "first", report.Notes[0])
	}
}

// runGroup runs the parts until one ends or ctx does. They stop from the outside in: requests, then folds with their last
// checkpoint, then the log. A projection that stops does not end the service: what was written stays safe and is taken on,
// queries and barriers are told why there is no answer, and the service is not ready.
func (f *serveFlags) runGroup(
	ctx context.Context, n *node, server *http.Server, listener net.Listener, reload func(context.Context) error, logger *slog.Logger,
) error {
	var g run.Group
	var faults faults
	add := func(f func(context.Context) error) { g.Add(actor(faults.note(f))) }
	served := newRequests(server)
	stop, cancel := context.WithCancel(ctx)
	g.Add(func() error { <-stop.Done(); return nil }, func(error) { cancel() })
	g.Add(func() error {
		logger.Info("Listening", "address", listener.Addr().String())
		return f.serveWeb(server, listener, logger)
	}, func(error) {
		logger.Info("Stopping")
		if !served.stop(shutdownTimeout) {
			logger.Warn("Some requests do not end; the stores are closed under them")
		}
	})
	add(reload)
	add(n.gate.watch)
	add(n.pulse.run)
	add(n.outlive(n.startUp))
	add(n.census.run)
	add(n.outlive(n.ticker.Run))
	add(n.outlive(n.compact.Run))
	add(n.outlive(n.expirer.Run))
	add(n.outlive(n.keeper.run))
	add(n.outlive(n.runRecorder))
	add(n.outlive(n.runBackfills))
	add(n.runMaster)
	add(n.outlive(n.runner.Run))
	add(n.outlive(n.panes.Run))
	add(n.copy.follow)
	add(n.copy.run)
	add(n.events.Run)
	err := g.Run()
	switch {
	case n.events.Err() != nil:
		return n.events.Err()
	case faults.first() != nil:
		return faults.first()
	case err != nil && !errors.Is(err, http.ErrServerClosed):
		return err
	}
	return errors.Join(n.stopped(), n.copy.stopped()) // nil, unless a projection had stopped before all else did
}

// faults keeps what members of a run.Group return, which itself tells of the first that ends only: a last checkpoint fails
// when all else has ended in order.
type faults struct {
	mu   sync.Mutex
	errs []error
}

func (f *faults) note(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		if err != nil && !errors.Is(err, context.Canceled) {
			f.mu.Lock()
			f.errs = append(f.errs, err)
			f.mu.Unlock()
		}
		return err
	}
}

func (f *faults) first() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) == 0 {
		return nil
	}
	return f.errs[0]
}

// actor makes a member of a run.Group of a function that ends with its context. Interrupting it waits until it has ended, so
// that members stop one after the other.
func actor(f func(context.Context) error) (func() error, func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	return func() error {
			defer close(done)
			return f(ctx)
		}, func(error) {
			cancel()
			<-done
		}
}

// reloadOnHangup reads the configuration again at each SIGHUP.
func reloadOnHangup(ctx context.Context, hangup <-chan os.Signal, n *node) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			_ = n.reloadLoudly(ctx)
		}
	}
}

// handler mounts the HTTP interface.
func (f *serveFlags) handler(n *node, cfg *plan.Config, origin *regexp.Regexp) (*transport.Handler, error) {
	// The body of a write has a time of its own, which must not lengthen that of all requests.
	patience := remotewrite.DefaultOptions().BodyTimeout
	if f.timeouts.Read > 0 {
		patience = min(patience, f.timeouts.Read)
	}
	write, err := remotewrite.New(n.gate, n.events.Dictionary(), n.gate, n.registry, remotewrite.Options{
		MaxBodyBytes: int64(f.maxBody), MaxDecodedBytes: int64(f.maxDecoded), MaxInflightBytes: int64(f.maxInflight),
		MaxInflightRequests: f.maxRequests, MaxSeries: f.maxSeries, MaxSamples: f.maxRequestSamples,
		MaxLabels: f.maxLabels, MaxLabelNameBytes: f.maxName, MaxLabelValueBytes: f.maxValue,
		MaxClientShare: f.clientShare, Client: f.client(n),
		MaxFuture: f.maxFuture, Now: f.around.time, BodyTimeout: patience,
		RateLimit: f.rateLimit, RateBurst: max(1, int(f.rateLimit)),
	})
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	opts := transport.Options{
		Client: f.client(n), Access: f.access(n), WriteTimeout: f.timeouts.Write,
		Materializations: n, Rules: n, Experiments: n.experiments(), Tasks: n.tasks(), LogStatus: n,
		QueryLog: n.queryLog, Lookback: f.lookback, Logger: n.logger, RoutePrefix: f.routePrefix, ExternalURL: f.externalURL, CORSOrigin: origin, QueryTimeout: f.timeout,
		Build: build(), Flags: f.flags, Config: n.configText, Runtime: n.runtimeState, Now: f.around.time,
	}
	if f.lifecycle {
		opts.Reload = n.reloadLoudly
	}
	if f.adminAPI {
		opts.Snapshot = n.snapshot
	}
	var began func() (int64, error)
	if !cfg.Exact.Upstream.IsZero() {
		up, err := newUpstream(cfg, upstream.Options{Timeout: f.timeout, Registerer: n.registry})
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		opts.Upstream = up
		began = n.events.Began // what came before, the upstream has
	}
	var exact query.Exact
	if n.copy != nil {
		exact = n.copy.samples
		opts.Exemplars, opts.TSDB, opts.Metadata = n.copy.samples, n.copy.cardinality, n.copy.samples
	}
	engine := query.New(n.panes, query.Options{
		Exact: exact, Began: began, Live: n.answersLive, Timeout: f.timeout, MaxSamples: f.maxSamples, LookbackDelta: f.lookback, MaxConcurrency: f.maxQueries(), MaxClientShare: f.queryShare,
		SubqueryStep: func(int64) int64 { return time.Duration(cfg.EvaluationInterval).Milliseconds() },
		Registerer:   n.registry, Records: n.windows,
	})
	if err := n.recordWindows(engine); err != nil {
		return nil, err
	}
	opts.Explain, opts.Recorded = engine, engine
	if n.copy != nil {
		all := engine.Everything(n.copy.samples)
		opts.Copy, opts.Read = all, all
		opts.ReadLimits = api.ReadLimits{Samples: f.readSamples, Concurrency: f.readConcurrency, FrameBytes: f.readFrame}
	}
	return transport.NewHandler(transport.Deps{
		Engine: engine, Series: n.index, Barrier: n.barrier, Readiness: n, Replay: n, Write: write,
		Gatherer: n.registry, Registerer: prometheus.WrapRegistererWith(nil, n.registry),
	}, opts)
}
