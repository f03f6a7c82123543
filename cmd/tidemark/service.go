package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/query/oracle"
	"tidemark/transport/api"
	"tidemark/transport/remotewrite"
)

// maxQueryBytes bounds an answer to a query that a client of this command holds.
const maxQueryBytes = 256 << 20

// service is a client of a running service.
type service struct {
	url  string
	http *http.Client
}

// newService returns a client that keeps up to conns connections.
func newService(base string, conns int) *service {
	return &service{
		url: strings.TrimRight(base, "/"),
		http: &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: conns, DisableCompression: true,
		}},
	}
}

func (s *service) close() { s.http.CloseIdleConnections() }

// writer returns the client for Remote Write.
func (s *service) writer() *remotewrite.Client {
	return &remotewrite.Client{URL: s.url + remotewrite.Path, HTTP: s.http}
}

// ready asks whether a service answers 200 at a path.
func (s *service) ready(ctx context.Context, path string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return false, err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswerBytes))
	return res.StatusCode == http.StatusOK, err
}

// reply is the answer to a query.
type reply struct {
	outcome oracle.Outcome // Err is set where the service answers with an error
	route   string         // or the reason of a miss, where there is no answer
	took    time.Duration  // from the request to the last byte of the answer
}

// envelope is what every route under /api/v1 answers.
type envelope struct {
	Status    string          `json:"status"`
	ErrorType string          `json:"errorType"`
	Error     string          `json:"error"`
	Data      json.RawMessage `json:"data"`
	Warnings  []string        `json:"warnings"`
	Infos     []string        `json:"infos"`
}

// post posts a form and reads the whole answer into body.
func (s *service) post(ctx context.Context, path string, form url.Values, body *bytes.Buffer) (res *http.Response, took time.Duration, err error) {
	u := s.url + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	began := time.Now()
	res, err = s.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	body.Reset()
	n, err := body.ReadFrom(io.LimitReader(res.Body, maxQueryBytes+1))
	took = time.Since(began)
	if err == nil && n > maxQueryBytes {
		err = fmt.Errorf("the answer has more than %d bytes", maxQueryBytes)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", u, err)
	}
	return res, took, nil
}

// call posts a form and reads the envelope of the answer.
func (s *service) call(ctx context.Context, path string, form url.Values) (*envelope, *http.Response, time.Duration, error) {
	var body bytes.Buffer
	res, took, err := s.post(ctx, path, form, &body)
	if err != nil {
		return nil, nil, 0, err
	}
	var e envelope
	if err := json.Unmarshal(body.Bytes(), &e); err != nil {
		return nil, nil, 0, fmt.Errorf("%s%s: status %s with an answer that is no JSON", s.url, path, res.Status)
	}
	return &e, res, took, nil
}

// missReason finds the reason in the text of a miss, as query.MissError writes it.
func missReason(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, "not answerable from panes (")
	if !ok {
		return "", false
	}
	reason, _, ok := strings.Cut(rest, ")")
	return reason, ok
}

// ask puts a query. It fails only where the service gives no answer that can be read.
func (s *service) ask(ctx context.Context, q oracle.Query) (reply, error) {
	path, form := queryForm(q)
	e, res, took, err := s.call(ctx, path, form)
	if err != nil {
		return reply{}, err
	}
	r := reply{route: res.Header.Get(api.HeaderRoute), took: took}
	if res.StatusCode != http.StatusOK {
		r.route = fmt.Sprintf("status %d", res.StatusCode)
		if reason, ok := missReason(e.Error); ok {
			r.route = reason
		}
		r.outcome.Err = errors.New(e.Error)
		return r, nil
	}
	r.outcome.Warnings, r.outcome.Infos = slices.Sorted(slices.Values(e.Warnings)), slices.Sorted(slices.Values(e.Infos))
	if r.outcome.Value, err = decodeValue(e.Data); err != nil {
		return reply{}, fmt.Errorf("%s%s: %w", s.url, path, err)
	}
	return r, nil
}

// again puts a query whose answer was looked at before, and reads it into body. It looks at nothing but the status and the route.
func (s *service) again(ctx context.Context, q oracle.Query, body *bytes.Buffer) (reply, error) {
	path, form := queryForm(q)
	res, took, err := s.post(ctx, path, form, body)
	if err != nil {
		return reply{}, err
	}
	r := reply{route: res.Header.Get(api.HeaderRoute), took: took}
	if res.StatusCode != http.StatusOK {
		r.outcome.Err = fmt.Errorf("status %s", res.Status)
	}
	return r, nil
}

// seconds renders milliseconds as the API takes times and steps.
func seconds(ms int64) string {
	return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64)
}

// barrierAnswer is the data of a barrier's answer.
type barrierAnswer struct {
	Seq             uint64 `json:"seq"`
	ClosedBuckets   int64  `json:"closed_buckets"`
	CompleteThrough *int64 `json:"complete_through_ms"` // null: nothing is proven
}

// watermark says that everything up to t, in ms, has been written, and waits until it is published.
func (s *service) watermark(ctx context.Context, t int64, timeout time.Duration) (barrierAnswer, time.Duration, error) {
	var a barrierAnswer
	e, res, took, err := s.call(ctx, "/api/v1/precompute/watermark", url.Values{
		"time_ms": {strconv.FormatInt(t, 10)}, "timeout": {timeout.String()},
	})
	if err != nil {
		return a, 0, err
	}
	if res.StatusCode != http.StatusOK {
		return a, 0, fmt.Errorf("barrier at %d: status %d: %s", t, res.StatusCode, e.Error)
	}
	return a, took, json.Unmarshal(e.Data, &a)
}

// point is [seconds, "value"].
type point promql.FPoint

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(b []byte) error {
	var t float64
	var v string
	if err := json.Unmarshal(b, &[2]any{&t, &v}); err != nil {
		return err
	}
	f, err := strconv.ParseFloat(v, 64)
	p.T, p.F = int64(math.Round(t*1000)), f
	return err
}

// decodeValue reads the data of an answer to a query.
func decodeValue(data []byte) (parser.Value, error) {
	var head struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, err
	}
	if head.ResultType == "scalar" {
		var p point
		err := json.Unmarshal(head.Result, &p)
		return promql.Scalar{T: p.T, V: p.F}, err
	}
	var series []struct {
		Metric labels.Labels `json:"metric"`
		Value  point         `json:"value"`
		Values []point       `json:"values"`
	}
	if err := json.Unmarshal(head.Result, &series); err != nil {
		return nil, err
	}
	switch head.ResultType {
	case "vector":
		v := make(promql.Vector, len(series))
		for i, s := range series {
			v[i] = promql.Sample{Metric: s.Metric, T: s.Value.T, F: s.Value.F}
		}
		return v, nil
	case "matrix":
		m := make(promql.Matrix, len(series))
		for i, s := range series {
			m[i] = promql.Series{Metric: s.Metric, Floats: make([]promql.FPoint, len(s.Values))}
			for j, p := range s.Values {
				m[i].Floats[j] = promql.FPoint(p)
			}
		}
		return m, nil
	}
	return nil, fmt.Errorf("result of unexpected type %q", head.ResultType)
}
