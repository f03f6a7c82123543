package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"
)

// The bounds of a Client where Options say nothing else.
const (
	DefaultTimeout          = 2 * time.Minute
	DefaultMaxResponseBytes = 64 << 20
	DefaultMaxFailures      = 5
	DefaultOpenFor          = 10 * time.Second
	DefaultMaxInFlight      = 20
	dialTimeout             = 5 * time.Second
	idleConnections         = 32
	idleFor                 = time.Minute
	maxHeaderBytes          = 64 << 10
)

// Options of a Client. The zero value is usable.
type Options struct {
	Timeout          time.Duration         // bound of one request; 0 = DefaultTimeout
	MaxResponseBytes int64                 // bound of one answer, and of the same decompressed; 0 = DefaultMaxResponseBytes
	MaxFailures      uint32                // in a row, until nothing is asked for a while; 0 = DefaultMaxFailures
	OpenFor          time.Duration         // how long that is; 0 = DefaultOpenFor
	MaxInFlight      int                   // requests at one time, others wait; 0 = DefaultMaxInFlight
	Transport        http.RoundTripper     // that knows the upstream's credentials and TLS; nil: one that knows none
	Registerer       prometheus.Registerer // nil: no metrics
}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.MaxFailures == 0 {
		o.MaxFailures = DefaultMaxFailures
	}
	if o.OpenFor == 0 {
		o.OpenFor = DefaultOpenFor
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	return o
}

// Client forwards requests to one upstream.
type Client struct {
	base    url.URL // without user
	user    *url.Userinfo
	name    string
	opts    Options
	http    *http.Client
	breaker *gobreaker.CircuitBreaker[*Answer]
	last    atomic.Pointer[string] // the failure that was seen last
	places  chan struct{}          // one token per request under way
	metrics *metrics
}

// New returns a client for the Prometheus at rawURL: http or https, with an optional user, password and path prefix.
func New(rawURL string, opts Options) (*Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The parser's message holds the whole URL, and with it the password.
		return nil, errors.New("upstream: the URL cannot be parsed")
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("upstream: want http://host or https://host, have scheme %q and host %q", u.Scheme, u.Host)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("upstream: the URL may not have a query or a fragment")
	}
	c := &Client{base: *u, user: u.User, opts: opts.withDefaults()}
	c.places = make(chan struct{}, c.opts.MaxInFlight)
	c.base.User = nil
	c.base.Path = strings.TrimRight(u.Path, "/")
	c.base.RawPath = strings.TrimRight(u.RawPath, "/")
	c.name = c.base.String()
	if c.opts.Transport == nil {
		c.opts.Transport = &http.Transport{
			DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout:    dialTimeout,
			MaxIdleConnsPerHost:    idleConnections,
			IdleConnTimeout:        idleFor,
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true, // answers pass as they are
			ForceAttemptHTTP2:      true,
		}
	}
	c.http = &http.Client{
		Transport:     c.opts.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if c.metrics, err = newMetrics(opts.Registerer); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	c.breaker = gobreaker.NewCircuitBreaker[*Answer](gobreaker.Settings{
		Name:          c.name,
		MaxRequests:   1,
		Timeout:       c.opts.OpenFor,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= c.opts.MaxFailures },
		IsExcluded:    excluded,
		OnStateChange: func(_ string, _, to gobreaker.State) { c.metrics.open(to == gobreaker.StateOpen) },
	})
	return c, nil
}

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Name returns the upstream's URL without credentials.
func (c *Client) Name() string { return c.name }

// Forward sends r, whose body was read into body, and returns the answer. The path of r must be without any route prefix.
// It returns within the time of ctx and of Options.Timeout. The error is always an *Error.
func (c *Client) Forward(ctx context.Context, r *http.Request, body []byte) (*Answer, error) {
	ans, err := c.breaker.Execute(func() (*Answer, error) {
		ans, err := c.send(ctx, r, body)
		if err != nil && !excluded(err) {
			text := errors.Unwrap(err).Error()
			c.last.Store(&text)
		}
		return ans, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		last := "unknown"
		if p := c.last.Load(); p != nil {
			last = *p
		}
		err = c.fail(KindOpen, fmt.Errorf("not asked after %d failures in a row; the last was: %s", c.opts.MaxFailures, last))
	}
	c.metrics.count(err)
	if err != nil {
		return nil, err
	}
	return ans, nil
}

func (c *Client) fail(k Kind, err error) *Error {
	e := &Error{Kind: k, Upstream: c.name, Err: err}
	if k == KindOpen {
		e.RetryAfter = c.opts.OpenFor
	}
	return e
}

// errSlow is the cause when the client's own bound ended a request, not the caller's.
var errSlow = errors.New("no complete answer in time")

// excluded tells the breaker which failures say nothing about the upstream (U5).
func excluded(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	return e.Kind == KindCanceled || e.Kind == KindTooLarge || e.Kind == KindTimeout && !errors.Is(e.Err, errSlow)
}

// send makes one attempt.
func (c *Client) send(ctx context.Context, r *http.Request, body []byte) (*Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.Timeout, errSlow)
	defer cancel()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return nil, c.broken(ctx, ctx.Err())
	}
	req, err := c.request(ctx, r, body)
	if err != nil {
		return nil, c.fail(KindUnreachable, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	defer resp.Body.Close()
	return c.read(ctx, resp, AcceptsGzip(r.Header))
}

// broken words a failure on the way. The error of net/http is unwrapped, because it repeats the whole URL.
func (c *Client) broken(ctx context.Context, err error) *Error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	switch {
	case ctx.Err() == nil:
		return c.fail(KindUnreachable, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return c.fail(KindCanceled, context.Canceled)
	case errors.Is(context.Cause(ctx), errSlow):
		return c.fail(KindTimeout, fmt.Errorf("%w (%s)", errSlow, c.opts.Timeout))
	default:
		return c.fail(KindTimeout, context.DeadlineExceeded)
	}
}

func (c *Client) request(ctx context.Context, r *http.Request, body []byte) (*http.Request, error) {
	u := c.base
	u.Path += r.URL.Path
	if c.base.RawPath != "" || r.URL.RawPath != "" {
		u.RawPath = c.base.EscapedPath() + r.URL.EscapedPath()
	}
	u.RawQuery = r.URL.RawQuery
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the request cannot be formed")
	}
	for _, name := range []string{"Authorization", "X-Scope-Orgid", "Content-Type", "Cache-Control", "User-Agent"} {
		if v := r.Header.Values(name); len(v) > 0 {
			req.Header[name] = v
		}
	}
	if c.user != nil && req.Header.Get("Authorization") == "" {
		password, _ := c.user.Password()
		req.SetBasicAuth(c.user.Username(), password)
	}
	encoding := "identity"
	if AcceptsGzip(r.Header) {
		encoding = "gzip"
	}
	req.Header.Set("Accept-Encoding", encoding)
	return req, nil
}
