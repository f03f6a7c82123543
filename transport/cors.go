package transport

import (
	"net/http"
	"regexp"
)

// cors invites scripts of the origins that a pattern names, and nobody without one (T3).
type cors struct {
	origin *regexp.Regexp
}

// exposed are the headers of ours that scripts may read.
const exposed = "Date, X-Tidemark-Route, X-Tidemark-Seq, X-Tidemark-Complete-Through"

func (c cors) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); c.origin != nil && origin != "" {
			head.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, Origin")
			head.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
			head.Set("Access-Control-Expose-Headers", exposed)
			if c.origin.MatchString(origin) {
				head.Set("Access-Control-Allow-Origin", origin)
			}
		}
		h.ServeHTTP(w, r)
	})
}

// ParseOrigin compiles the pattern of an option like --web.cors.origin: anchored at both ends; "" is nil, no origin.
func ParseOrigin(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil
	}
	return regexp.Compile("^(?:" + pattern + ")$")
}
