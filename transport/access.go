package transport

import (
	"errors"
	"net/http"

	"tidemark/transport/api"
)

// Permission is what a route asks of who calls it.
type Permission uint8

// The permissions, each of which includes those before it only where Access says so. The zero value is none of them: a route
// must name what it asks for.
const (
	_          Permission = iota
	Anyone                // whoever may connect at all: signs of life, and what does not exist
	Read                  // queries, lists, status, metrics and the pages
	Write                 // what producers send: samples and watermarks
	Administer            // what changes the service or looks into the process
)

// String returns the permission as the configuration names it.
func (p Permission) String() string {
	switch p {
	case Anyone:
		return "anyone"
	case Read:
		return "read"
	case Write:
		return "write"
	case Administer:
		return "admin"
	default:
		return "none"
	}
}

// Access decides who may do what. Whoever implements it knows which layer has checked who a request comes from.
type Access interface {
	Allows(r *http.Request, p Permission) bool
}

// Route is one place of the interface, and what it asks for by method. HEAD is as GET.
type Route struct {
	Pattern string // as of http.ServeMux, without the prefix of all paths
	Methods map[string]Permission
}

var errForbidden = errors.New("this user may not do that")

// What the common kinds of routes ask for.
func gets(p Permission) map[string]Permission  { return map[string]Permission{http.MethodGet: p} }
func posts(p Permission) map[string]Permission { return map[string]Permission{http.MethodPost: p} }

// add mounts a route. Its handler is reached through the counting, then the layers, then the guard, and there is no other way.
func (m *mount) add(pattern, name string, methods map[string]Permission, layers func(http.Handler) http.Handler, h http.Handler) {
	for method, p := range methods {
		if p < Anyone || p > Administer {
			panic("transport: T6: " + method + " " + pattern + " asks for nothing")
		}
	}
	route := Route{pattern, methods}
	m.routes = append(m.routes, route)
	m.mux.Handle(pattern, m.observe.wrap(name, layers(m.guard(route, h))))
}

// plain is the layers of a route outside /api/v1.
func plain(h http.Handler) http.Handler { return h }

// inAPI is the layers of a route under /api/v1.
func (m *mount) inAPI(h http.Handler) http.Handler { return m.cors.wrap(m.zip.wrap(h)) }

// guard lets a request through to h if its user may do what its method asks for (T6). A method that a route does not have asks
// for the least that one of its methods does: who may not use a route does not learn more of it.
func (m *mount) guard(route Route, h http.Handler) http.Handler {
	if m.access == nil {
		return h
	}
	least := Administer
	for _, p := range route.Methods {
		least = min(least, p)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		p, ok := route.Methods[method]
		if !ok {
			p = least
		}
		if p != Anyone && !m.access.Allows(r, p) {
			api.WriteError(w, &api.Error{Type: api.TypeBadData, Status: http.StatusForbidden, Err: errForbidden})
			return
		}
		h.ServeHTTP(w, r)
	})
}
