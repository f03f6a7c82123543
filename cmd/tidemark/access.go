package main

// Who may connect, and what they may do.

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"
	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"

	"tidemark/projections/plan"
	"tidemark/transport"
	"tidemark/transport/upstream"
)

// maxWebConfigBytes bounds the file of --web.config.file.
const maxWebConfigBytes = 4 << 20

// webUsers is what this package reads of a file that belongs to the exporter toolkit: how clients say who they are.
type webUsers struct {
	Users map[string]any `yaml:"basic_auth_users"`
	TLS   struct {
		ClientAuth string `yaml:"client_auth_type"`
	} `yaml:"tls_server_config"`
	RateLimit struct {
		Interval any `yaml:"interval"`
	} `yaml:"rate_limit"`
}

// named says whether the layer before the handler finds out who a client is.
func (w *webUsers) named() bool {
	return len(w.Users) > 0 || slices.Contains([]string{"VerifyClientCertIfGiven", "RequireAndVerifyClientCert"}, w.TLS.ClientAuth)
}

func readWebUsers(path string) (*webUsers, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() > maxWebConfigBytes {
		return nil, errors.Join(err, fmt.Errorf("%s: more than %d bytes", path, maxWebConfigBytes))
	}
	var w webUsers
	if err := yaml.NewDecoder(f).Decode(&w); err != nil {
		return nil, fmt.Errorf("%s: it is no web configuration", path) // the decoder repeats what the file holds
	}
	return &w, nil
}

// checkWeb refuses what the toolkit would refuse only when it serves, and what would not protect what it seems to.
func (f *serveFlags) checkWeb(cfg *plan.Config) error {
	if f.webConfig == "" {
		if len(cfg.Access) > 0 {
			return errors.New("access names users, but without --web.config.file nobody can say who they are")
		}
		return nil
	}
	if err := web.Validate(f.webConfig); err != nil {
		return fmt.Errorf("--web.config.file: %w", err)
	}
	w, err := readWebUsers(f.webConfig)
	switch {
	case err != nil:
		return fmt.Errorf("--web.config.file: %w", err)
	case w.RateLimit.Interval != nil:
		return errors.New("--web.config.file: rate_limit answers 429, for which senders drop samples; use --write.rate-limit, which answers 503")
	case len(cfg.Access) > 0 && !w.named():
		return errors.New("access names users, but --web.config.file has neither basic_auth_users nor client certificates that are verified")
	}
	return nil
}

// serveWeb serves with what the web configuration asks for.
func (f *serveFlags) serveWeb(server *http.Server, l net.Listener, logger *slog.Logger) error {
	if f.webConfig == "" {
		return server.Serve(l)
	}
	return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &f.webConfig}, logger)
}

// permissions answers for the users of the configuration in force. It implements transport.Access.
type permissions struct {
	users func() plan.Access
	path  string // of the web configuration

	mu    sync.Mutex
	at    time.Time // of the file, as it was read last
	size  int64
	basic bool // it has users
}

// access returns the permissions of a service.
func (f *serveFlags) access(n *node) *permissions {
	return &permissions{users: func() plan.Access { return n.current.Load().cfg.Access }, path: f.webConfig}
}

// client tells senders apart: by the user that was checked, else by their address.
func (f *serveFlags) client(n *node) func(*http.Request) string {
	p := f.access(n)
	return func(r *http.Request) string {
		if name, ok := p.user(r); ok {
			return "user " + name
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			return r.RemoteAddr
		}
		return host
	}
}

// Allows implements transport.Access.
func (p *permissions) Allows(r *http.Request, want transport.Permission) bool {
	users := p.users()
	if len(users) == 0 {
		return true
	}
	name, ok := p.user(r)
	if !ok {
		return false
	}
	given := users[name]
	return slices.Contains(given, want.String()) || slices.Contains(given, plan.AccessAdmin)
}

// user returns who a request comes from. The toolkit has checked the header of basic authentication if and only if its file has
// users, which it reads for every request; the TLS handshake has checked the certificate.
func (p *permissions) user(r *http.Request) (string, bool) {
	if p.usersAreChecked() {
		name, _, ok := r.BasicAuth()
		return name, ok
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return r.TLS.VerifiedChains[0][0].Subject.CommonName, true
	}
	return "", false
}

func (p *permissions) usersAreChecked() bool {
	if p.path == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st, err := os.Stat(p.path)
	if err != nil {
		return false
	}
	if st.ModTime().Equal(p.at) && st.Size() == p.size {
		return p.basic
	}
	w, err := readWebUsers(p.path)
	if err != nil {
		return false
	}
	p.at, p.size, p.basic = st.ModTime(), st.Size(), len(w.Users) > 0
	return p.basic
}

// newUpstream returns the client of the exact Prometheus, with its credentials.
func newUpstream(c *plan.Config, opts upstream.Options) (*upstream.Client, error) {
	if file := c.Exact.HTTPConfigFile; file != "" {
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.Dir, file)
		}
		cfg, _, err := config.LoadHTTPConfigFile(file)
		if err != nil {
			return nil, fmt.Errorf("exact.http_config_file: %w", err)
		}
		if opts.Transport, err = config.NewRoundTripperFromConfig(*cfg, "upstream"); err != nil {
			return nil, fmt.Errorf("exact.http_config_file: %w", err)
		}
	}
	return upstream.New(c.Exact.Upstream.Reveal().String(), opts)
}

// remote is how a command reaches a running service.
type remote struct {
	url, httpConfig string
}

func (r *remote) declare(c *kingpin.CmdClause) {
	c.Flag("url", "Where the service listens.").Default(defaultURL).StringVar(&r.url)
	r.declareCredentials(c)
}

func (r *remote) declareCredentials(c *kingpin.CmdClause) {
	c.Flag("http.config.file", "File with credentials and TLS for the service, as promtool takes it.").Default("").StringVar(&r.httpConfig)
}

// service returns a client of its whole interface.
func (r *remote) service() (*service, error) {
	client, err := r.client()
	if err != nil {
		return nil, err
	}
	return &service{url: strings.TrimRight(r.url, "/"), http: client}, nil
}

func (r *remote) client() (*http.Client, error) {
	if r.httpConfig == "" {
		return http.DefaultClient, nil
	}
	cfg, _, err := config.LoadHTTPConfigFile(r.httpConfig)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("--http.config.file: %w", err)}
	}
	client, err := config.NewClientFromConfig(*cfg, "tidemark")
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("--http.config.file: %w", err)}
	}
	return client, nil
}
