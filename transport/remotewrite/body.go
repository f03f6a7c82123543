package remotewrite

// data path 1 of 6: decode and check.

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang/snappy"
)

// Content types, and the messages that their parameter names.
const (
	mediaType = "application/x-protobuf"
	messageV1 = "prometheus.WriteRequest"
	messageV2 = "io.prometheus.write.v2.Request"
)

// version is which of the two messages a body holds.
type version uint8

const (
	version1 version = 1
	version2 version = 2
)

// negotiate judges the headers that say how a body is to be read, and returns which message it is. What is absent means
// version 1.0 in snappy, as old senders leave it; what is wrong is refused before anything is read. Content-Type decides; a
// version header that contradicts it is wrong. The version is right also with an error that another header is to blame for.
func negotiate(header http.Header) (version, error) {
	v, err := contentType(header.Values("Content-Type"))
	if err != nil {
		return v, err
	}
	if named := header.Get("X-Prometheus-Remote-Write-Version"); named != "" {
		major, rest, ok := strings.Cut(named, ".")
		switch {
		case !ok || rest == "":
			return v, v.unsupported()
		case v == version2 && major == "2":
		case v == version1 && (major == "0" || major == "1"): // senders of 1.0 say 0.1.0; some say an older draft or 1.0.0
		default:
			return v, v.unsupported()
		}
	}
	return v, contentEncoding(header.Values("Content-Encoding"))
}

// unsupported says which version header goes with the message.
func (v version) unsupported() error {
	if v == version2 {
		return errVersion2
	}
	return errVersion
}

func contentType(values []string) (version, error) {
	if len(values) > 1 {
		return version1, errMediaType
	}
	if len(values) == 0 || values[0] == "" {
		return version1, nil
	}
	media, params, err := mime.ParseMediaType(values[0])
	if err != nil || media != mediaType {
		return version1, errMediaType
	}
	switch message, given := params["proto"]; {
	case !given, message == messageV1:
		return version1, nil
	case message == messageV2:
		return version2, nil
	default:
		return version1, errMessage
	}
}

func contentEncoding(values []string) error {
	switch coding := strings.TrimSpace(strings.Join(values, ", ")); {
	case coding == "", strings.EqualFold(coding, "snappy"):
		return nil
	default:
		return &encodingError{coding: coding}
	}
}

// firstRead is how much memory a body gets before any of it has come. From there on it doubles with what has come, so that
// a sender holds no more than twice what it has sent, whatever length it declared.
const firstRead = 16 << 10

// readBody reads the body of r into a.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request, a *arena, l *lease) error {
	control := http.NewResponseController(w)
	// Deadlines are on the clock of the system, whatever Options.Now says. A writer without deadlines has no connection that
	// could be slow.
	_ = control.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout))
	body := http.MaxBytesReader(w, r.Body, h.opts.MaxBodyBytes)
	a.body = a.body[:0]
	for granted := 0; ; {
		if len(a.body) == granted {
			step := int64(max(firstRead, granted))
			step = min(step, h.opts.MaxBodyBytes+1-int64(granted))
			if err := l.grow(step); err != nil {
				return err
			}
			granted += int(step)
			a.body = slices.Grow(a.body, int(step))
		}
		n, err := body.Read(a.body[len(a.body):granted])
		a.body = a.body[:len(a.body)+n]
		if err == io.EOF {
			// The deadline must not end the request while it waits for the log. After an error it stays: net/http reads on for what
			// is left of the body, and would wait for it for ever.
			_ = control.SetReadDeadline(time.Time{})
			h.metrics.bodyBytes.Add(float64(len(a.body)))
			return nil
		}
		if err != nil {
			return bodyError(err, h.opts.MaxBodyBytes)
		}
	}
}

// maxSnappyRatio is how much a snappy block can grow at most: its best element makes 64 bytes of 3.
const maxSnappyRatio = 64 / 3.0

// framedSnappy begins a snappy stream, which is not what the protocol asks for.
var framedSnappy = []byte("\xff\x06\x00\x00sNaPpY")

// decompress decodes a.body into a.decoded. The length that a block declares is believed only as far as its own length
// makes it possible.
func (h *Handler) decompress(a *arena, l *lease) error {
	a.decoded = a.decoded[:0]
	if len(a.body) == 0 {
		return errEmptyBody
	}
	if bytes.HasPrefix(a.body, framedSnappy) {
		return errFramed
	}
	n, err := snappy.DecodedLen(a.body)
	if err != nil {
		return errSnappy
	}
	if int64(n) > h.opts.MaxDecodedBytes {
		return &sizeError{what: "bytes after decompression", got: int64(n), limit: h.opts.MaxDecodedBytes}
	}
	if float64(n) > maxSnappyRatio*float64(len(a.body)) {
		return errSnappy
	}
	if err := l.grow(int64(n)); err != nil {
		return err
	}
	if cap(a.decoded) < n {
		a.decoded = make([]byte, n)
	}
	if a.decoded, err = snappy.Decode(a.decoded[:n], a.body); err != nil {
		a.decoded = nil
		return errSnappy
	}
	h.metrics.decodedBytes.Add(float64(n))
	return nil
}
