package transport

import (
	"io"
	"net/http"
	"time"
)

// The bounds of a connection (T1). The server has neither ReadTimeout nor WriteTimeout: a barrier or a query may rightly take
// minutes, a ReadTimeout would go on while the handler works and cancel it as if the client had left, and a WriteTimeout
// would count the work too. BodyTimeout ends with the body, and WriteTimeout counts from one piece of an answer to the next.
const (
	// ReadHeaderTimeout bounds a slow header.
	ReadHeaderTimeout = 10 * time.Second
	// BodyTimeout bounds a slow body, from the first look at it to its end.
	BodyTimeout = time.Minute
	// WriteTimeout bounds how long a client may leave one piece of an answer untaken.
	WriteTimeout = time.Minute
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
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
	}
}

// bounds are BodyTimeout and WriteTimeout, or shorter ones in tests.
type bounds struct{ body, write time.Duration }

// wrap gives the body of every request and each piece of every answer their time.
func (b bounds) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			if c.SetReadDeadline(time.Now().Add(b.body)) == nil {
				r.Body = &timedBody{ReadCloser: r.Body, conn: c}
			}
		}
		h.ServeHTTP(&timedWriter{ResponseWriter: w, conn: c, limit: b.write}, r)
	})
}

// timedBody lifts the deadline of the connection when the body has come to its end.
type timedBody struct {
	io.ReadCloser
	conn *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.conn.SetReadDeadline(time.Time{}) // a connection that is gone needs no deadline
	}
	return n, err
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
