package transport

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"tidemark/transport/api"
)

// errCrossSite is what a page of another site is told that wants this service to do something.
var errCrossSite = errors.New("a page of another origin may not do this; requests that no browser sends are not concerned")

// sameOrigin keeps pages of other sites from acting through the browser of somebody who can reach this service (T5). Programs
// are not concerned: they send no Sec-Fetch-Site and no Origin.
type sameOrigin struct {
	check *http.CrossOriginProtection
}

// newSameOrigin returns the check. Pages under externalURL are of this service too, whatever name a proxy has made of it.
func newSameOrigin(externalURL *url.URL) (sameOrigin, error) {
	s := sameOrigin{http.NewCrossOriginProtection()}
	if externalURL == nil {
		return s, nil
	}
	if err := s.check.AddTrustedOrigin(externalURL.Scheme + "://" + externalURL.Host); err != nil {
		return s, fmt.Errorf("transport: external URL: %w", err)
	}
	return s, nil
}

// wrap lets a request through to h, or answers it with 403.
func (s sameOrigin) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.check.Check(r); err != nil {
			api.WriteError(w, &api.Error{Type: api.TypeBadData, Status: http.StatusForbidden, Err: errCrossSite})
			return
		}
		h.ServeHTTP(w, r)
	})
}
