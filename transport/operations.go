package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/go-kit/kit/endpoint"

	"tidemark/transport/api"
	"tidemark/transport/ui"
)

// retryReplay is when a client that met a replay should come again.
const retryReplay = 2 // seconds

// replayGate refuses queries until the projections have caught up with the log: an answer from half a fold would be wrong,
// not just old.
func replayGate(r Replay) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) {
			if progress, yes := r.Replaying(); yes {
				return nil, api.Unavailable(retryReplay, "not ready: "+progress)
			}
			return next(ctx, request)
		}
	}
}

// gated puts a go-kit middleware around a handler whose bodies are too large to be decoded and encoded by go-kit.
func gated(m endpoint.Middleware, f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve := func(context.Context, any) (any, error) {
			f(w, r)
			return nil, nil
		}
		if _, err := m(serve)(r.Context(), nil); err != nil {
			api.EncodeError(r.Context(), err, w)
		}
	})
}

// operations mounts what operators and their machines use: plain text, outside /api/v1.
func (m *mount) operations(d *Deps, o *Options) {
	m.add("/-/healthy", "healthy", gets(Anyone), plain, methods{get: http.HandlerFunc(healthy)})
	m.add("/-/ready", "ready", gets(Anyone), plain, methods{get: ready(d.Readiness, d.Replay)})
	reload := m.own.wrap(reloader(o.Reload))
	m.add("/-/reload", "reload", map[string]Permission{http.MethodPost: Administer, http.MethodPut: Administer}, plain, methods{post: reload, put: reload})
	m.profiles()
	m.act(SnapshotPath, "snapshot", Administer, snapshotter(o.Snapshot))
}

// SnapshotPath is where a backup is asked for.
const SnapshotPath = "/api/v1/admin/snapshot"

// profiles mounts what net/http/pprof shows of the process.
func (m *mount) profiles() {
	for path, f := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		m.add(path, "pprof", gets(Administer), plain, methods{get: f})
	}
}

// pages mounts the web interface. The page itself is also what some clients ask for as a sign of life.
func (m *mount) pages() error {
	pages, err := ui.New()
	if err != nil {
		return err
	}
	show := func(path string, f http.HandlerFunc) {
		m.add(path, "ui", gets(Read), m.zip.wrap, methods{get: f})
	}
	show("/{$}", pages.Page)
	show("/ui/{file...}", pages.File)
	return nil
}

func healthy(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "Tidemark is healthy.\n")
}

// ready answers 503 with one reason per line while there is any.
func ready(why Readiness, replay Replay) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reasons := why.Reasons()
		if progress, yes := replay.Replaying(); yes {
			reasons = append([]string{progress}, reasons...)
		}
		if len(reasons) == 0 {
			writeText(w, http.StatusOK, "Tidemark is ready.\n")
			return
		}
		writeText(w, http.StatusServiceUnavailable, "Tidemark is not ready:\n- "+strings.Join(reasons, "\n- ")+"\n")
	})
}

func reloader(reload func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case reload == nil:
			writeText(w, http.StatusForbidden, "The lifecycle API is not enabled; --web.enable-lifecycle enables it.\n")
		default:
			if err := reload(r.Context()); err != nil {
				writeText(w, http.StatusInternalServerError, fmt.Sprintf("failed to reload config: %v\n", err))
				return
			}
			w.WriteHeader(http.StatusOK)
		}
	})
}

// Snapshot is what a backup is told as: where it lies on the server's disk, and which position of the log it holds.
type Snapshot struct {
	Name string `json:"name"` // of the directory below backups in the storage directory
	Path string `json:"path"` // absolute, of the server's machine
	Seq  uint64 `json:"seq"`  // the newest event in it
}

// snapshotter makes backups, one request one backup. Without a way to make one it answers as the admin API of Prometheus does
// when it is not enabled.
func snapshotter(make func(context.Context) (Snapshot, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if make == nil {
			api.WriteError(w, &api.Error{Type: api.TypeUnavailable, Err: errors.New("admin APIs disabled; --web.enable-admin-api enables them")})
			return
		}
		s, err := make(r.Context())
		if err != nil {
			api.EncodeError(r.Context(), err, w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct { // a client that has left is told nothing
			Status string   `json:"status"`
			Data   Snapshot `json:"data"`
		}{"success", s})
	})
}

func writeText(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a client that has left is told nothing
}
