package transport

import (
	"net/http"
	"time"
)

// Timeouts are the bounds of a connection (T1). The server has no WriteTimeout of its own: it would count the work too, and a
// barrier or a query may rightly take minutes. Ours counts from one piece of an answer to the next.
type Timeouts struct {
	ReadHeader time.Duration // of a slow header
	Read       time.Duration // of a slow request, body included; net/http lifts it at the end of the body
	Write      time.Duration // how long a client may leave one piece of an answer untaken
	Idle       time.Duration // how long a silent connection is kept
}

// DefaultTimeouts returns the bounds of a server without flags.
func DefaultTimeouts() Timeouts {
	return Timeouts{ReadHeader: 10 * time.Second, Read: time.Minute, Write: time.Minute, Idle: 2 * time.Minute}
}

// MaxHeaderBytes bounds the header with the URL in it: queries sent by GET may be long.
const MaxHeaderBytes = 256 << 10

// Server returns a server with these bounds. It is not started.
func Server(h http.Handler, t Timeouts) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: t.ReadHeader,
		ReadTimeout:       t.Read,
		IdleTimeout:       t.Idle,
		MaxHeaderBytes:    MaxHeaderBytes,
	}
}

// boundWrites gives each piece of every answer its time.
func boundWrites(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&timedWriter{ResponseWriter: w, conn: http.NewResponseController(w), limit: limit}, r)
	})
}

// timedWriter moves the deadline of the connection on with each piece.
type timedWriter struct {
	http.ResponseWriter
	conn  *http.ResponseController
	limit time.Duration
}

func (t *timedWriter) WriteHeader(code int) {
	t.move()
	t.ResponseWriter.WriteHeader(code)
}

func (t *timedWriter) Write(p []byte) (int, error) {
	t.move()
	return t.ResponseWriter.Write(p)
}

func (t *timedWriter) move() {
	_ = t.conn.SetWriteDeadline(time.Now().Add(t.limit)) // a connection that has none is not one to a client
}

// Unwrap lets http.ResponseController reach the connection.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
