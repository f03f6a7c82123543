package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Answer is an answer of the upstream, complete and checked, as it came.
type Answer struct {
	Status   int
	Encoding string // "" or gzip
	Type     string // Content-Type
	Body     []byte
	extra    http.Header
}

// passed are the headers of an answer that mean something to the client; the rest belong to the connection.
var passed = []string{"Retry-After", "Cache-Control", "Www-Authenticate"}

// WriteTo writes status, headers and body. Headers set before stay unless the answer has its own.
func (a *Answer) WriteTo(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range a.extra {
		h[name] = values
	}
	h.Set("Content-Type", a.Type)
	if a.Encoding != "" {
		h.Set("Content-Encoding", a.Encoding)
	}
	h.Set("Content-Length", strconv.Itoa(len(a.Body)))
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // a client that has left is told nothing
}

// read takes the whole answer and checks it (U1, U3).
func (c *Client) read(ctx context.Context, resp *http.Response, gzipWelcome bool) (*Answer, error) {
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return nil, c.fail(KindBadAnswer, fmt.Errorf("answered with a redirect (%s), which is not followed", status(resp)))
	}
	raw, err := readBounded(resp.Body, c.opts.MaxResponseBytes)
	if err != nil {
		return nil, c.unread(ctx, err)
	}
	ans := &Answer{Status: resp.StatusCode, Type: "application/json", Body: raw, extra: http.Header{}}
	for _, name := range passed {
		if v := resp.Header.Values(name); len(v) > 0 {
			ans.extra[name] = v
		}
	}
	plain := raw
	switch enc := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
	case "gzip":
		if plain, err = gunzip(raw, c.opts.MaxResponseBytes); err != nil {
			return nil, c.unread(ctx, err)
		}
		if gzipWelcome {
			ans.Encoding = enc
		} else {
			ans.Body = plain
		}
	default:
		return nil, c.fail(KindBadAnswer, fmt.Errorf("answered %s in the encoding %q, which was not asked for", status(resp), enc))
	}
	if resp.Request.Method == http.MethodHead {
		return ans, nil // headers only: there is nothing to check
	}
	if err := checkEnvelope(plain); err != nil {
		return nil, c.fail(KindBadAnswer, fmt.Errorf("answered %s without a Prometheus result (%s): %w", status(resp), contentType(resp), err))
	}
	return ans, nil
}

var (
	errTooLarge = errors.New("the answer is larger than the bound")
	errBadGzip  = errors.New("the answer is broken gzip")
)

func (c *Client) unread(ctx context.Context, err error) *Error {
	switch {
	case errors.Is(err, errTooLarge):
		return c.fail(KindTooLarge, fmt.Errorf("%w of %d bytes", errTooLarge, c.opts.MaxResponseBytes))
	case errors.Is(err, errBadGzip):
		return c.fail(KindBadAnswer, err)
	default:
		return c.broken(ctx, fmt.Errorf("the answer broke off: %w", err))
	}
}

func readBounded(r io.Reader, bound int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, bound+1))
	if err == nil && int64(len(b)) > bound {
		err = errTooLarge
	}
	return b, err
}

func gunzip(b []byte, bound int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, errBadGzip
	}
	plain, err := readBounded(z, bound)
	if err != nil && !errors.Is(err, errTooLarge) {
		return nil, errBadGzip
	}
	return plain, err
}

// checkEnvelope accepts a complete JSON object whose status is one of Prometheus' two.
func checkEnvelope(b []byte) error {
	var envelope struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(b, &envelope); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return errors.New("it is not complete JSON")
		}
		return errors.New("it is not an object with a status")
	}
	if envelope.Status != "success" && envelope.Status != "error" {
		return errors.New("its status is neither success nor error")
	}
	return nil
}

func status(resp *http.Response) string {
	if text := http.StatusText(resp.StatusCode); text != "" {
		return fmt.Sprintf("%d %s", resp.StatusCode, text)
	}
	return strconv.Itoa(resp.StatusCode)
}

// contentType names what came, cut short: it is the upstream's text in our message.
func contentType(resp *http.Response) string {
	const longest = 64
	t := resp.Header.Get("Content-Type")
	switch {
	case t == "":
		return "no content type"
	case len(t) > longest:
		return t[:longest] + "…"
	}
	return t
}
