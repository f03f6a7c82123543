package transport

import (
	"net/http"
	"strings"

	"github.com/go-kit/kit/endpoint"

	"tidemark/projections/query"
	"tidemark/transport/api"
)

// mount collects what the routes are wrapped in, innermost last: counting, cross-origin headers, compression, the method
// table and, for what reads projections, the replay gate.
type mount struct {
	mux     *http.ServeMux
	observe *observer
	zip     *compressor
	cors    cors
	own     sameOrigin
	gate    endpoint.Middleware
	client  func(*http.Request) string
	access  Access  // nil: everybody may do everything
	routes  []Route // what was mounted
}

// experiments mounts the control plane. What only shows the table is there during a replay: it is what was known before.
func (m *mount) experiments(x *api.Experiments) {
	if x == nil {
		return
	}
	post := func(path, name string, h http.Handler) { m.act(path, name, Administer, gated(m.gate, h.ServeHTTP)) }
	m.info("/api/v1/experiments", "experiments", api.NewExperimentList(*x))
	m.info("/api/v1/experiments/{name}", "experiment", api.NewExperiment(*x))
	m.info("/api/v1/experiments/{name}/rates", "experiment_rates", api.NewExperimentRates(*x))
	m.info("/api/v1/stats/history", "stats_history", api.NewStatsHistory(*x))
	post("/api/v1/experiments/{name}/rescan", "experiment_rescan", api.NewExperimentRescan(*x))
	post("/api/v1/rescan", "rescan", api.NewRescan(*x))
}

// tasks mounts the queue of tasks and what decides when they run.
func (m *mount) tasks(x *api.Tasks) {
	if x == nil {
		return
	}
	m.add("/api/v1/tasks", "tasks", map[string]Permission{http.MethodGet: Read, http.MethodPost: Administer}, m.inAPI,
		methods{get: api.NewTaskList(*x), post: m.own.wrap(gated(m.gate, api.NewTaskPost(*x).ServeHTTP)), json: true})
	m.info("/api/v1/tasks/{id}", "task", api.NewTask(*x))
	m.info("/api/v1/scheduler/cooldowns", "cooldowns", api.NewCooldowns(*x))
	pause, resume := api.NewPause(*x)
	m.act("/api/v1/tasks/pause", "tasks_pause", Administer, pause)
	m.act("/api/v1/tasks/resume", "tasks_resume", Administer, resume)
}

// methods is a path's table of methods. HEAD is GET without a body, which net/http leaves out by itself.
type methods struct {
	get, post, put http.Handler
	json           bool // a wrong method is answered with an envelope
}

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var h http.Handler
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		h = m.get
	case http.MethodPost:
		h = m.post
	case http.MethodPut:
		h = m.put
	case http.MethodOptions:
		w.Header().Set("Allow", m.allow())
		w.WriteHeader(http.StatusNoContent)
		return
	}
	switch {
	case h != nil:
		h.ServeHTTP(w, r)
	case m.json:
		w.Header().Set("Allow", m.allow())
		api.MethodNotAllowed(w)
	default:
		w.Header().Set("Allow", m.allow())
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

func (m methods) allow() string {
	var have []string
	if m.get != nil {
		have = append(have, http.MethodGet, http.MethodHead)
	}
	if m.post != nil {
		have = append(have, http.MethodPost)
	}
	if m.put != nil {
		have = append(have, http.MethodPut)
	}
	return strings.Join(append(have, http.MethodOptions), ", ")
}

// anyMethod serves every method alike, preflights excepted.
func anyMethod(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		f(w, r)
	})
}

// read mounts a route of the query API for GET and form POST, behind the replay gate.
func (m *mount) read(path, name string, f http.HandlerFunc) {
	h := gated(m.gate, func(w http.ResponseWriter, r *http.Request) {
		f(w, r.WithContext(query.WithClient(r.Context(), m.client(r))))
	})
	m.add(path, name, map[string]Permission{http.MethodGet: Read, http.MethodPost: Read}, m.inAPI, methods{get: h, post: h, json: true})
}

// info mounts a route that only shows something.
func (m *mount) info(path, name string, h http.Handler) {
	m.add(path, name, gets(Read), m.inAPI, methods{get: h, json: true})
}

// act mounts a route that changes something: POST alone, and not for pages of other sites (T5).
func (m *mount) act(path, name string, p Permission, h http.Handler) {
	m.add(path, name, posts(p), m.inAPI, methods{post: m.own.wrap(h), json: true})
}

func (m *mount) queries(a *api.API, o *Options) {
	m.read("/api/v1/query", "query", a.Instant)
	m.read("/api/v1/query_range", "query_range", a.Range)
	m.read("/api/v1/query_exemplars", "query_exemplars", a.Exemplars)
	m.read("/api/v1/format_query", "format_query", a.FormatQuery)
	m.read("/api/v1/parse_query", "parse_query", a.ParseQuery)
	m.read("/api/v1/series", "series", a.Series)
	m.read("/api/v1/labels", "labels", a.LabelNames)
	m.read("/api/v1/label/{name}/values", "label_values", a.LabelValues)
	if o.Explain != nil {
		m.read("/api/v1/explain", "explain", a.NewExplain(o.Explain).ServeHTTP)
	}
}

// copies mounts what hands out samples as they are, for other servers. Remote read compresses by itself.
func (m *mount) copies(a *api.API, d *Deps, o *Options) {
	if o.Copy != nil {
		m.add("/federate", "federate", gets(Read), m.zip.wrap, methods{get: gated(m.gate, a.Federate)})
	}
	if o.Read != nil {
		read := api.NewRemoteRead(o.Read, o.ReadLimits, o.Logger, d.Registerer)
		m.add("/api/v1/read", "read", posts(Read), plain, methods{post: gated(m.gate, read.ServeHTTP), json: true})
	}
}

func (m *mount) status(d *Deps, o *Options) {
	p := api.Process{Build: o.Build, Flags: o.Flags, Config: o.Config, Runtime: o.Runtime, Now: o.Now}
	m.info("/api/v1/status/buildinfo", "status", p.BuildInfo())
	m.info("/api/v1/status/runtimeinfo", "status", p.RuntimeInfo())
	m.info("/api/v1/status/flags", "status", p.FlagsInForce())
	m.info("/api/v1/status/config", "status", p.ConfigInForce())
	m.info("/api/v1/status/tsdb", "status", api.NewTSDBStatus(o.TSDB))
	m.info("/api/v1/metadata", "metadata", api.NewMetadata(o.Metadata))
	m.info("/api/v1/rules", "rules", api.NewRules(o.Rules))
	m.info("/api/v1/alerts", "alerts", api.Alerts())
	m.info("/api/v1/materializations", "materializations", api.NewMaterializations(o.Materializations))
	if o.LogStatus != nil {
		m.info("/api/v1/status/log", "status", api.NewLogStatus(o.LogStatus))
	}
	m.act("/api/v1/precompute/watermark", "watermark", Write, api.NewWatermark(d.Barrier, o.Now))
	m.act("/api/v1/precompute/drain", "drain", Administer, api.NewDrain(d.Barrier))
}
