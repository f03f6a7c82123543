package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"tidemark/log"
)

// Build says which program answers. Clients choose their features by Version; there are no feature flags beside it, because
// some clients take a service that lists any for another product.
type Build struct {
	Version   string `json:"version"`
	Revision  string `json:"revision"`
	Branch    string `json:"branch"`
	BuildUser string `json:"buildUser"`
	BuildDate string `json:"buildDate"`
	GoVersion string `json:"goVersion"`
}

// WithFallback fills what the linker was not told from what the Go command recorded.
func (b Build) WithFallback() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return b.fill(info)
}

func (b Build) fill(info *debug.BuildInfo) Build {
	set := func(to *string, v string) {
		if *to == "" {
			*to = v
		}
	}
	set(&b.Version, info.Main.Version)
	set(&b.GoVersion, info.GoVersion)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			set(&b.Revision, s.Value)
		case "vcs.time":
			set(&b.BuildDate, s.Value)
		}
	}
	set(&b.Version, "(devel)")
	set(&b.GoVersion, runtime.Version())
	return b
}

// RuntimeState is what the process knows about its own life.
type RuntimeState struct {
	Start          time.Time
	LastConfig     time.Time // when the configuration in force was read
	ReloadOK       bool      // the last reload succeeded, or there was none
	Retention      string    // in words
	CorruptionSeen int64
}

// runtimeInfo has Prometheus' members.
type runtimeInfo struct {
	StartTime           time.Time `json:"startTime"`
	CWD                 string    `json:"CWD"`
	Hostname            string    `json:"hostname"`
	ServerTime          time.Time `json:"serverTime"`
	ReloadConfigSuccess bool      `json:"reloadConfigSuccess"`
	LastConfigTime      time.Time `json:"lastConfigTime"`
	CorruptionCount     int64     `json:"corruptionCount"`
	GoroutineCount      int       `json:"goroutineCount"`
	GOMAXPROCS          int       `json:"GOMAXPROCS"`
	GOMEMLIMIT          int64     `json:"GOMEMLIMIT"`
	GOGC                string    `json:"GOGC"`
	GODEBUG             string    `json:"GODEBUG"`
	StorageRetention    string    `json:"storageRetention"`
}

// Process is what the status endpoints show. Config returns the configuration as YAML with its secrets already redacted.
type Process struct {
	Build   Build
	Flags   map[string]string
	Config  func() string
	Runtime func() RuntimeState
	Now     func() time.Time
}

// BuildInfo returns the handler of /api/v1/status/buildinfo.
func (p Process) BuildInfo() http.Handler {
	build := p.Build.WithFallback()
	return newStatus(func(context.Context, any) (any, error) { return build, nil })
}

// FlagsInForce returns the handler of /api/v1/status/flags.
func (p Process) FlagsInForce() http.Handler {
	flags := p.Flags
	if flags == nil {
		flags = map[string]string{}
	}
	return newStatus(func(context.Context, any) (any, error) { return flags, nil })
}

// ConfigInForce returns the handler of /api/v1/status/config.
func (p Process) ConfigInForce() http.Handler {
	return newStatus(func(context.Context, any) (any, error) {
		var text string
		if p.Config != nil {
			text = p.Config()
		}
		return map[string]string{"yaml": text}, nil
	})
}

// RuntimeInfo returns the handler of /api/v1/status/runtimeinfo.
func (p Process) RuntimeInfo() http.Handler {
	return newStatus(func(context.Context, any) (any, error) {
		var s RuntimeState
		if p.Runtime != nil {
			s = p.Runtime()
		}
		info := runtimeInfo{
			StartTime: s.Start.UTC(), ServerTime: p.Now().UTC(), LastConfigTime: s.LastConfig.UTC(),
			ReloadConfigSuccess: s.ReloadOK, CorruptionCount: s.CorruptionSeen, StorageRetention: s.Retention,
			GoroutineCount: runtime.NumGoroutine(), GOMAXPROCS: runtime.GOMAXPROCS(0), GOMEMLIMIT: debug.SetMemoryLimit(-1),
			GOGC: os.Getenv("GOGC"), GODEBUG: os.Getenv("GODEBUG"),
		}
		var err error
		if info.CWD, err = os.Getwd(); err != nil {
			return nil, err
		}
		info.Hostname, err = os.Hostname()
		return info, err
	})
}

// newStatus serves an endpoint without parameters.
func newStatus(e endpoint.Endpoint) http.Handler {
	return kithttp.NewServer(e, kithttp.NopRequestDecoder, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

// encodeData wraps a response into the success envelope.
func encodeData(_ context.Context, w http.ResponseWriter, response any) error {
	var b bytes.Buffer
	b.WriteString(`{"status":"success","data":`)
	if err := json.NewEncoder(&b).Encode(response); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the encoder's newline
	b.WriteByte('}')
	writeJSON(w, http.StatusOK, b.Bytes())
	return nil
}

// Materialization is one row of /api/v1/materializations.
type Materialization struct {
	Name        string `json:"name"`
	Expr        string `json:"expr"`
	Layout      string `json:"layout"`
	Every       string `json:"every"`       // the grid's step, as a PromQL duration
	State       string `json:"state"`       // materializing, ready or serving
	Frontier    *int64 `json:"frontier_ms"` // of all that it reads; null before anything closed, and where it reads nothing
	OpenBuckets int64  `json:"open_buckets"`
	Pieces      int64  `json:"pieces"`
	Bytes       int64  `json:"bytes"`
	// QuantileError is the relative error of its quantiles over panes of more than 256 values, which are read from sketches; null
	// where the expression has no quantile_over_time.
	QuantileError *float64         `json:"quantile_error"`
	LagEvents     int64            `json:"lag_events"` // events in the log that its fold has not applied
	Hits          int64            `json:"hits"`       // parts of queries that it answered since the start of the process
	Misses        map[string]int64 `json:"misses"`     // parts that it could not answer though it holds what they read, by reason
	Backfill      *Backfill        `json:"backfill,omitempty"`
}

// Backfill says how far a materialization is folded from the log that was added over a history.
type Backfill struct {
	From   uint64   `json:"from_seq"`        // the first event that it is folded from
	Seq    uint64   `json:"seq"`             // the last event folded
	Target uint64   `json:"target_seq"`      // the newest event of the log
	Left   *float64 `json:"eta_seconds"`     // until it is there, at the rate of the last seconds; null: unknown
	Error  string   `json:"error,omitempty"` // why it does not go on; it is tried again
}

// Materializations lists what is materialized, in the order of the configuration.
type Materializations interface {
	Materializations(ctx context.Context) ([]Materialization, error)
}

// NewMaterializations returns the handler of /api/v1/materializations; m may be nil.
func NewMaterializations(m Materializations) http.Handler {
	return newStatus(func(ctx context.Context, _ any) (any, error) {
		rows := []Materialization{}
		if m != nil {
			found, err := m.Materializations(ctx)
			if err != nil {
				return nil, err
			}
			rows = append(rows, found...)
		}
		for i := range rows {
			if rows[i].Misses == nil {
				rows[i].Misses = map[string]int64{}
			}
		}
		return rows, nil
	})
}

// Alerts returns the handler of /api/v1/alerts: there are no alerts, here or ever.
func Alerts() http.Handler {
	return newStatus(func(context.Context, any) (any, error) {
		return map[string][]struct{}{"alerts": {}}, nil
	})
}

// MetadataSource knows the metadata that senders gave.
type MetadataSource interface {
	// Metadata returns what is known of a family, or of all for "", ordered by family.
	Metadata(ctx context.Context, family string) ([]log.Metadata, error)
}

// metadata is one entry of a family in /api/v1/metadata.
type metadata struct {
	Type string `json:"type"`
	Help string `json:"help"`
	Unit string `json:"unit"`
}

type metadataRequest struct {
	family           string
	limit, perFamily int // -1: no limit
}

// NewMetadata returns the handler of /api/v1/metadata; m may be nil.
func NewMetadata(m MetadataSource) http.Handler {
	return kithttp.NewServer(metadataEndpoint(m), decodeMetadata, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

func decodeMetadata(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	q := metadataRequest{family: f.Get("metric"), limit: -1, perFamily: -1}
	for _, p := range []struct {
		name string
		to   *int
	}{{"limit", &q.limit}, {"limit_per_metric", &q.perFamily}} {
		if v := f.Get(p.name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, badData("%s must be a number", p.name)
			}
			*p.to = n
		}
	}
	return q, nil
}

func metadataEndpoint(m MetadataSource) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		q := request.(metadataRequest)
		out := map[string][]metadata{}
		if m == nil {
			return out, nil
		}
		rows, err := m.Metadata(ctx, q.family)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			have, known := out[row.Family]
			if !known && q.limit >= 0 && len(out) >= q.limit {
				break
			}
			if q.perFamily > 0 && len(have) >= q.perFamily {
				continue
			}
			out[row.Family] = append(have, metadata{row.Type, row.Help, row.Unit})
		}
		return out, nil
	}
}
