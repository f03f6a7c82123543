package transport

import (
	"context"
	"fmt"
	"net/http"
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
	text := func(path, name string, t methods) { m.mux.Handle(path, m.observe.wrap(name, t)) }
	text("/-/healthy", "healthy", methods{get: http.HandlerFunc(healthy)})
	text("/-/ready", "ready", methods{get: ready(d.Readiness, d.Replay)})
	reload := m.own.wrap(reloader(o.Reload))
	text("/-/reload", "reload", methods{post: reload, put: reload})
}

// pages mounts the web interface. The page itself is also what some clients ask for as a sign of life.
func (m *mount) pages() error {
	pages, err := ui.New()
	if err != nil {
		return err
	}
	show := func(path string, f http.HandlerFunc) {
		m.mux.Handle(path, m.observe.wrap("ui", m.zip.wrap(methods{get: f})))
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

func writeText(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a client that has left is told nothing
}
