package main

// What an answer to a random request may be, and what must be in the log for it.

import (
	"bytes"
	encbinary "encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"tidemark/log"
	"tidemark/transport/remotewrite"
)

// itemKey stands for one sample or native histogram: its series, its time, and every bit of its value.
type itemKey uint64

// keys makes itemKeys. Two of the same seed agree.
type keys struct {
	seed    maphash.Seed
	pairs   [][2]string
	scratch []byte
}

func (k *keys) begin() { k.pairs = k.pairs[:0] }

func (k *keys) label(name, value string) {
	if value != "" { // as good as absent
		k.pairs = append(k.pairs, [2]string{name, value})
	}
}

// series returns what all keys of a series begin with, in memory that the next call uses again.
func (k *keys) series() []byte {
	slices.SortFunc(k.pairs, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	b := k.scratch[:0]
	for _, p := range k.pairs {
		b = append(append(append(append(b, p[0]...), 0xff), p[1]...), 0xff) // no UTF-8 text holds that byte
	}
	k.scratch = b
	return b
}

func (k *keys) of(series []byte, kind byte, t int64, bits uint64) itemKey {
	b := encbinary.LittleEndian.AppendUint64(append(series, kind), uint64(t))
	return itemKey(maphash.Bytes(k.seed, encbinary.LittleEndian.AppendUint64(b, bits)))
}

// sentItems is what one worker has sent: what was acknowledged, and what may be in the log besides, in part.
type sentItems struct {
	keys
	acked, maybe []itemKey

	found     []itemKey // of the request at hand
	v1        prompb.WriteRequest
	v2        writev2.Request
	plain     []byte
	responder responder
	body      partialBody
	counts    map[string]uint64
	findings  []string
}

// maxReference bounds what is decoded for comparison; what is larger is refused by its declared size in this test's service.
const maxReference = 8 << 20

// reference decodes a request as Prometheus does and returns how many samples it holds; ok is false if it cannot be decoded.
func (s *sentItems) reference(q *madeRequest) (samples int, ok bool) {
	s.found = s.found[:0]
	plain := q.plain
	if slices.Contains(q.faults, "snappy") {
		n, err := snappy.DecodedLen(q.body)
		if err != nil || n > maxReference {
			return 0, false
		}
		if s.plain, err = snappy.Decode(s.plain[:cap(s.plain)], q.body); err != nil {
			return 0, false
		}
		plain = s.plain
	}
	if strings.Contains(q.contentType, "write.v2") {
		return s.reference2(plain)
	}
	s.v1.Reset()
	if err := s.v1.Unmarshal(plain); err != nil {
		return 0, false
	}
	for _, ts := range s.v1.Timeseries {
		s.begin()
		for _, l := range ts.Labels {
			s.label(l.Name, l.Value)
		}
		prefix := s.series()
		samples += len(ts.Samples)
		for _, x := range ts.Samples {
			s.found = append(s.found, s.of(prefix, 's', x.Timestamp, math.Float64bits(x.Value)))
		}
		for _, h := range ts.Histograms {
			s.found = append(s.found, s.of(prefix, 'h', h.Timestamp, 0))
		}
	}
	return samples, true
}

func (s *sentItems) reference2(plain []byte) (samples int, ok bool) {
	s.v2.Reset()
	if err := s.v2.Unmarshal(plain); err != nil {
		return 0, false
	}
	ok = true
	symbol := func(ref uint32) string {
		if int(ref) >= len(s.v2.Symbols) {
			ok = false
			return ""
		}
		return s.v2.Symbols[ref]
	}
	for _, ts := range s.v2.Timeseries {
		s.begin()
		ok = ok && len(ts.LabelsRefs)%2 == 0
		for i := 0; i+1 < len(ts.LabelsRefs); i += 2 {
			s.label(symbol(ts.LabelsRefs[i]), symbol(ts.LabelsRefs[i+1]))
		}
		prefix := s.series()
		samples += len(ts.Samples)
		for _, x := range ts.Samples {
			s.found = append(s.found, s.of(prefix, 's', x.Timestamp, math.Float64bits(x.Value)))
		}
		for _, h := range ts.Histograms {
			s.found = append(s.found, s.of(prefix, 'h', h.Timestamp, 0))
		}
	}
	return samples, ok
}

// responder is the client's end of an answer.
type responder struct {
	header http.Header
	code   int
	text   []byte // its beginning
}

func (w *responder) reset() {
	if w.header == nil {
		w.header = make(http.Header)
	}
	clear(w.header)
	w.code, w.text = 0, w.text[:0]
}

func (w *responder) Header() http.Header { return w.header }

func (w *responder) WriteHeader(code int) {
	if w.code == 0 && code >= http.StatusOK {
		w.code = code
	}
}

func (w *responder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.text = append(w.text, p[:min(len(p), 300-min(300, len(w.text)))]...)
	return len(p), nil
}

// partialBody is a body that may end before its declared length, as net/http hands it to handlers.
type partialBody struct {
	bytes.Reader
	cut bool
}

func (b *partialBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.cut && errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *partialBody) Close() error { return nil }

func arrived(method string, u *url.URL, header http.Header, body io.ReadCloser, length int64) *http.Request {
	return &http.Request{
		Method: method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: body, ContentLength: length,
		Host: "127.0.0.1:9697", RemoteAddr: "127.0.0.1:40000", RequestURI: u.RequestURI(),
	}
}

func (s *sentItems) finding(format string, args ...any) {
	if s.counts["findings"]++; len(s.findings) < maxFindings {
		s.findings = append(s.findings, fmt.Sprintf(format, args...))
	}
}

var writeURL = url.URL{Path: remotewrite.Path}

// write sends one write request and judges the answer.
func (s *sentItems) write(h http.Handler, q *madeRequest) {
	header := make(http.Header, 3)
	set := func(name, value string) {
		if value != "" {
			header[name] = []string{value}
		}
	}
	set("Content-Type", q.contentType)
	set("Content-Encoding", q.encoding)
	set("X-Prometheus-Remote-Write-Version", q.versionHeader)
	s.body.Reset(q.body)
	s.body.cut = q.cut
	s.responder.reset()
	u := writeURL
	h.ServeHTTP(&s.responder, arrived(q.method, &u, header, &s.body, q.length))

	code := s.responder.code
	s.counts["writes"]++
	s.counts["writes answered "+strconv.Itoa(code)]++
	samples, decoded := s.reference(q)
	say := func(what string) {
		s.finding("%s: %d %q to version %d with %v, %s %q %q %q %d bytes declared %d: %x", what, code, s.responder.text, q.version, q.faults,
			q.method, q.contentType, q.encoding, q.versionHeader, len(q.body), q.length, q.body[:min(len(q.body), 400)])
	}
	switch code {
	case http.StatusNoContent:
		if !decoded {
			say("acknowledged, and not even to be decoded")
		}
		if q.version == 2 && strings.Contains(q.contentType, "write.v2") {
			if n := s.responder.header.Get("X-Prometheus-Remote-Write-Samples-Written"); n != strconv.Itoa(samples) {
				say(fmt.Sprintf("%s samples are said to be written of %d", n, samples))
			}
		}
		s.acked = append(s.acked, s.found...)
		return
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusMethodNotAllowed:
		if q.proper {
			say("a proper request is refused")
		}
	default:
		say("no such answer is foreseen")
	}
	s.maybe = append(s.maybe, s.found...)
}

// ask sends one request that reads or acts, and judges the answer.
func (s *sentItems) ask(h http.Handler, method, path, params string) {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return // net/http would not have let it through
	}
	header := http.Header{}
	s.body.Reset(nil)
	s.body.cut = false
	length := int64(0)
	if method == http.MethodPost {
		header.Set("Content-Type", "application/x-www-form-urlencoded")
		s.body.Reset([]byte(params))
		length = int64(len(params))
	} else {
		u.RawQuery = params
	}
	s.responder.reset()
	h.ServeHTTP(&s.responder, arrived(method, u, header, &s.body, length))
	code := s.responder.code
	if code == 0 {
		code = http.StatusOK // as net/http takes it
	}
	s.counts["other requests"]++
	s.counts["other requests answered "+strconv.Itoa(code)]++
	switch {
	case code/100 == 5 && strings.Contains(string(s.responder.text), `"errorType":"timeout"`):
	case code == http.StatusServiceUnavailable && path == "/api/v1/admin/snapshot": // as Prometheus says that it is not enabled
	case code/100 == 5:
		s.finding("%s %s %s: %d %s", method, path, params, code, s.responder.text)
	case code == http.StatusOK && path == "/api/v1/precompute/watermark":
		s.counts["barriers"]++
	}
}

// logged returns what is in a log, as the log says it when it is read.
func logged(l *log.Log, k keys) (items []itemKey, barriers uint64, err error) {
	series := map[log.SeriesRef][]byte{}
	r := l.NewReader(1)
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return items, barriers, nil
		}
		if err != nil {
			return items, barriers, err
		}
		switch w := e.Body.(type) {
		case *log.Watermark:
			barriers++
		case *log.Write:
			for _, d := range w.Defs {
				k.begin()
				d.Labels.Range(func(l labels.Label) { k.label(l.Name, l.Value) })
				series[d.Ref] = slices.Clone(k.series())
			}
			begin := uint32(0)
			for i, ref := range w.Refs {
				for at := begin; at < w.Ends[i]; at++ {
					items = append(items, k.of(series[ref], 's', w.Times[at], math.Float64bits(w.Values[at])))
				}
				begin = w.Ends[i]
			}
			for _, h := range w.Histograms {
				items = append(items, k.of(series[h.Ref], 'h', h.Time, 0))
			}
		}
	}
}

// account compares, as multisets, what is in the log with what was acknowledged and with what may be there besides. missing was
// acknowledged and is not there; strange is there and was sent by nobody, or is there more often than it was sent.
func account(items, acked, maybe []itemKey) (missing, strange []itemKey) {
	for _, s := range [][]itemKey{items, acked, maybe} {
		slices.Sort(s)
	}
	i, a, m := 0, 0, 0
	for i < len(items) || a < len(acked) {
		if i == len(items) || a < len(acked) && acked[a] < items[i] {
			missing = append(missing, acked[a])
			a++
			continue
		}
		if a < len(acked) && acked[a] == items[i] {
			i, a = i+1, a+1
			continue
		}
		for m < len(maybe) && maybe[m] < items[i] {
			m++
		}
		if m < len(maybe) && maybe[m] == items[i] {
			m++
		} else {
			strange = append(strange, items[i])
		}
		i++
	}
	return missing, strange
}
