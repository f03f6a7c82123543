package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/util/logging"
)

// QueryLog writes queries that took long to a file, a JSON object a line, in the format of Prometheus' query log. Beside Prometheus'
// members a line has tidemark: the route, the reason of a miss and how long all of it took. A nil one writes nothing.
type QueryLog struct {
	failed prometheus.Counter

	mu    sync.RWMutex
	file  *logging.JSONFileLogger // nil: none is open
	least time.Duration
}

// NewQueryLog returns a log that has no file yet.
func NewQueryLog(reg prometheus.Registerer) (*QueryLog, error) {
	l := &QueryLog{failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tidemark_query_log_failures_total",
		Help: "Queries that could not be written to the query log.",
	})}
	if err := reg.Register(l.failed); err != nil {
		return nil, fmt.Errorf("query log: %w", err)
	}
	return l, nil
}

// Open goes on in the file at path, made if it is not there, with queries that take least or longer; with an empty path nothing is written.
// The file is opened anew even if it is the same, since it may have been moved away. After an error the log stays as it is.
func (l *QueryLog) Open(path string, least time.Duration) error {
	file, err := logging.NewJSONFileLogger(path)
	if err != nil {
		return fmt.Errorf("query log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.file
	l.file, l.least = file, least
	if before != nil {
		if err := before.Close(); err != nil {
			return fmt.Errorf("query log: %w", err)
		}
	}
	return nil
}

// Close closes the file.
func (l *QueryLog) Close() error { return l.Open("", 0) }

// note writes a query, if it took long enough.
func (l *QueryLog) note(r *http.Request, expr string, q *question, out *outcome, took time.Duration) {
	if l == nil {
		return
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.file == nil || took < l.least {
		return
	}
	const layout = "2006-01-02T15:04:05.000Z07:00"
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "promql query logged", 0)
	line.AddAttrs(slog.Any("params", map[string]any{
		"query": expr, "start": q.start.UTC().Format(layout), "end": q.end.UTC().Format(layout), "step": q.step.Seconds(),
	}))
	if out.err != nil {
		line.AddAttrs(slog.String("error", out.err.Error()))
	}
	if out.stats != nil && out.stats.BuiltinStats != nil {
		line.AddAttrs(slog.Any("stats", out.stats.BuiltinStats))
	}
	ip, _, _ := net.SplitHostPort(r.RemoteAddr) // a server has none that cannot be split
	line.AddAttrs(
		slog.Any("httpRequest", map[string]string{"clientIP": ip, "method": r.Method, "path": r.URL.Path}),
		slog.Any("tidemark", map[string]any{"route": out.route, "miss": out.miss, "totalTime": took.Seconds()}),
	)
	if err := l.file.Handle(context.Background(), line); err != nil {
		l.failed.Inc()
	}
}
