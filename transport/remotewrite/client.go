package remotewrite

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
)

// Series is what Encode takes: samples of one label set.
type Series struct {
	Labels  labels.Labels
	Samples []Sample
}

// Encode returns the body of a Remote Write 1.0 request.
func Encode(series []Series) []byte {
	return snappy.Encode(nil, encode(nil, series))
}

// encode appends a prometheus.WriteRequest message.
func encode(b []byte, series []Series) []byte {
	var message, sample []byte
	for _, s := range series {
		message = message[:0]
		s.Labels.Range(func(l labels.Label) {
			message = appendLabel(message, l.Name, l.Value)
		})
		for _, x := range s.Samples {
			sample = appendSample(sample[:0], x)
			message = append(message, tagSample, byte(len(sample)))
			message = append(message, sample...)
		}
		b = append(b, requestSeries<<3|byte(wireBytes))
		b = binary.AppendUvarint(b, uint64(len(message)))
		b = append(b, message...)
	}
	return b
}

// longestSample is the length of a Sample message with all its fields at their longest.
const longestSample = 31

// appendSample appends a Sample message, which is never longer than longestSample.
func appendSample(b []byte, s Sample) []byte {
	if bits := math.Float64bits(s.Value); bits != 0 {
		b = binary.LittleEndian.AppendUint64(append(b, tagSampleValue), bits)
	}
	if s.Time != 0 {
		b = binary.AppendUvarint(append(b, tagSampleTime), uint64(s.Time))
	}
	if s.Start != 0 {
		b = binary.AppendUvarint(append(b, tagSampleStart), uint64(s.Start))
	}
	return b
}

// Client sends requests to one receiver.
type Client struct {
	URL  string       // with the path
	HTTP *http.Client // nil: http.DefaultClient
}

// A StatusError is an answer other than 2xx.
type StatusError struct {
	Code       int
	RetryAfter time.Duration // 0: none was asked for
	Message    string        // at most 1 KiB
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("remote write: status %d: %s", e.Code, e.Message)
}

// Write sends series in one request and returns when the receiver has acknowledged it. An answer other than 2xx is a
// *StatusError. Write never repeats a request.
func (c *Client) Write(ctx context.Context, series []Series) error {
	return c.Send(ctx, Encode(series))
}

// Send is Write with a body that Encode has made.
func (c *Client) Send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("remote write: %w", err)
	}
	req.Header.Set("Content-Type", mediaType)
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	req.Header.Set("User-Agent", "tidemark")
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("remote write: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if res.StatusCode/100 == 2 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remote write: status %d: %w", res.StatusCode, err)
	}
	e := &StatusError{Code: res.StatusCode, Message: strings.TrimSpace(string(text))}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	return e
}
