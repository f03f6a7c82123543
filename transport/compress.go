package transport

import (
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"

	"tidemark/transport/upstream"
)

// compressor compresses answers for clients that take gzip (T2).
type compressor struct {
	writers sync.Pool // of *gzip.Writer
}

// gzipLevel makes answers a quarter of their size, as the default level does, at a third of its processor time.
const gzipLevel = 2

func newCompressor() *compressor {
	return &compressor{writers: sync.Pool{New: func() any {
		z, err := gzip.NewWriterLevel(nil, gzipLevel)
		if err != nil {
			panic("T2: the level is one that there is: " + err.Error())
		}
		return z
	}}}
}

func (c *compressor) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if r.Method == http.MethodHead || !upstream.AcceptsGzip(r.Header) {
			h.ServeHTTP(w, r)
			return
		}
		z := &gzipWriter{ResponseWriter: w, pool: &c.writers}
		defer z.close()
		h.ServeHTTP(z, r)
	})
}

// gzipWriter decides at the header whether the body is compressed: not if it has no body or is compressed already.
type gzipWriter struct {
	http.ResponseWriter
	pool    *sync.Pool
	zip     *gzip.Writer
	decided bool
}

func (g *gzipWriter) WriteHeader(code int) {
	if !g.decided && code >= http.StatusOK {
		g.decided = true
		h := g.Header()
		bodiless := code == http.StatusNoContent || code == http.StatusNotModified
		if !bodiless && h.Get("Content-Encoding") == "" {
			h.Set("Content-Encoding", "gzip")
			h.Del("Content-Length")
			g.zip = g.pool.Get().(*gzip.Writer)
			g.zip.Reset(g.ResponseWriter)
		}
	}
	g.ResponseWriter.WriteHeader(code)
}

func (g *gzipWriter) Write(p []byte) (int, error) {
	if !g.decided {
		g.WriteHeader(http.StatusOK)
	}
	if g.zip == nil {
		return g.ResponseWriter.Write(p)
	}
	return g.zip.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (g *gzipWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *gzipWriter) close() {
	if g.zip != nil {
		_ = g.zip.Close() // fails only when the client has left
		g.pool.Put(g.zip)
		g.zip = nil
	}
}
