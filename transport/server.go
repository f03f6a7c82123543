package transport

import (
	"net/http"
	"time"
)

// The bounds of a connection (T1). There is no WriteTimeout: a barrier or a query may rightly take minutes, and each has a
// deadline of its own, after which it answers.
const (
	// ReadHeaderTimeout bounds a slow header.
	ReadHeaderTimeout = 10 * time.Second
	// ReadTimeout bounds a slow request, body included.
	ReadTimeout = time.Minute
	// IdleTimeout is how long a silent connection is kept.
	IdleTimeout = 2 * time.Minute
	// MaxHeaderBytes bounds the header with the URL in it: queries sent by GET may be long.
	MaxHeaderBytes = 256 << 10
)

// Server returns a server with this package's bounds. It is not started.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: ReadHeaderTimeout,
		ReadTimeout:       ReadTimeout,
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
	}
}
