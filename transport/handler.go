package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/storage"

	"tidemark/transport/api"
)

// Readiness says why the service is not ready, in words; no reasons means that it is.
type Readiness interface {
	Reasons() []string
}

// Replay says whether the projections still catch up with the log as it stood at the start.
type Replay interface {
	// Replaying returns the progress in words ("replaying: 120000 of 500000 events, 3s left") and whether it goes on.
	Replaying() (progress string, yes bool)
}

// Deps are the collaborators without which there is no service.
type Deps struct {
	Engine     api.Engine
	Series     api.SeriesIndex
	Barrier    api.Barrier
	Readiness  Readiness
	Replay     Replay
	Write      http.Handler // the remote-write receiver; it answers for its own methods, encodings and bounds
	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
}

func (d *Deps) validate() error {
	for _, c := range []struct {
		name    string
		missing bool
	}{
		{"Engine", d.Engine == nil}, {"Series", d.Series == nil}, {"Barrier", d.Barrier == nil},
		{"Readiness", d.Readiness == nil}, {"Replay", d.Replay == nil}, {"Write", d.Write == nil},
		{"Gatherer", d.Gatherer == nil}, {"Registerer", d.Registerer == nil},
	} {
		if c.missing {
			return fmt.Errorf("transport: Deps.%s is missing", c.name)
		}
	}
	return nil
}

// Options of a handler. The zero value is usable: no upstream, no prefix, no foreign origins.
type Options struct {
	Upstream         api.Forwarder             // where queries go that panes cannot answer; nil: they are errors
	Copy             api.Copy                  // the exact copy that the engine has; nil: none
	Recorded         api.Recorded              // lists what is recorded; nil: nothing is
	Exemplars        storage.ExemplarQueryable // nil: none are kept
	QueryLog         *api.QueryLog             // nil: none is kept
	Read             api.ChunkCopy             // the exact copy, for remote read; nil: /api/v1/read is not there
	ReadLimits       api.ReadLimits
	Lookback         time.Duration                           // of instant selectors; 0 = 5m
	Logger           *slog.Logger                            // nil: none
	TSDB             func(int) api.Cardinality               // of its head; nil: it is empty
	Explain          api.Explainer                           // nil: /api/v1/explain is not there
	Metadata         api.MetadataSource                      // nil: none is known
	Materializations api.Materializations                    // nil: none are listed
	Rules            api.RuleLister                          // nil: none are listed
	Experiments      *api.Experiments                        // nil: their routes are not there
	Tasks            *api.Tasks                              // nil: their routes are not there
	Reload           func(context.Context) error             // nil: /-/reload answers 403
	Snapshot         func(context.Context) (Snapshot, error) // nil: backups are not enabled
	Access           Access                                  // nil: everybody may do everything
	WriteTimeout     time.Duration                           // how long a client may leave one piece of an answer untaken; 0 = DefaultTimeouts
	LogStatus        api.LogStatusSource                     // nil: /api/v1/status/log is not there
	RoutePrefix      string                                  // "" or "/": none; else like /tidemark
	ExternalURL      *url.URL                                // where browsers reach this service, if a proxy gives it another name; nil: as they are heard
	CORSOrigin       *regexp.Regexp                          // origins whose scripts may read; nil: none. It must be anchored.
	Client           func(*http.Request) string              // who asks; nil: the address without its port. A name that it may choose freely would be no bound
	QueryTimeout     time.Duration                           // 0 = api.DefaultQueryTimeout
	Build            api.Build                               // empty members are filled from what the Go command recorded
	Flags            map[string]string
	Config           func() string // as YAML, secrets already redacted
	Runtime          func() api.RuntimeState
	Now              func() time.Time // nil = time.Now
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Client == nil {
		o.Client = func(r *http.Request) string {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			if err != nil {
				return r.RemoteAddr
			}
			return host
		}
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = DefaultTimeouts().Write
	}
	o.RoutePrefix = "/" + strings.Trim(o.RoutePrefix, "/")
	if o.RoutePrefix == "/" {
		o.RoutePrefix = ""
	}
	return o
}

func (o Options) validate() error {
	if strings.ContainsAny(o.RoutePrefix, "{} ?#") {
		return fmt.Errorf("transport: route prefix %q is not a plain path", o.RoutePrefix)
	}
	return nil
}

// Handler is the whole interface.
type Handler struct {
	http.Handler
	routes []Route
}

// Routes lists what is mounted, with what each asks for.
func (h *Handler) Routes() []Route { return slices.Clone(h.routes) }

// NewHandler mounts everything.
func NewHandler(d Deps, o Options) (*Handler, error) {
	o = o.withDefaults()
	if err := errors.Join(d.validate(), o.validate()); err != nil {
		return nil, err
	}
	queries, err := api.New(d.Engine, d.Series, api.Options{
		Upstream: o.Upstream, Copy: o.Copy, Recorded: o.Recorded, Exemplars: o.Exemplars, Log: o.QueryLog, Lookback: o.Lookback, QueryTimeout: o.QueryTimeout, Now: o.Now, Registerer: d.Registerer,
	})
	if err != nil {
		return nil, err
	}
	observe, err := newObserver(d.Registerer, o.Now)
	if err != nil {
		return nil, err
	}
	own, err := newSameOrigin(o.ExternalURL)
	if err != nil {
		return nil, err
	}
	m := &mount{
		mux: http.NewServeMux(), observe: observe, zip: newCompressor(),
		cors: cors{origin: o.CORSOrigin}, own: own, gate: replayGate(d.Replay), access: o.Access, client: o.Client,
	}
	m.queries(queries, &o)
	m.status(&d, &o)
	m.experiments(o.Experiments)
	m.tasks(o.Tasks)
	m.operations(&d, &o)
	if err := m.pages(); err != nil {
		return nil, err
	}
	m.add("/api/v1/write", "write", posts(Write), plain, own.wrap(d.Write))
	m.copies(queries, &d, &o)
	m.add("/metrics", "metrics", gets(Read), plain, methods{get: promhttp.HandlerFor(d.Gatherer, promhttp.HandlerOpts{})})
	m.add("/api/v1/", "unknown", gets(Anyone), m.inAPI, anyMethod(api.NotFound))
	return &Handler{boundWrites(withPrefix(o.RoutePrefix, m.mux), o.WriteTimeout), m.routes}, nil
}

// withPrefix serves h below prefix, and leads from / to there.
func withPrefix(prefix string, h http.Handler) http.Handler {
	if prefix == "" {
		return h
	}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, h))
	mux.Handle("/{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
	return mux
}
