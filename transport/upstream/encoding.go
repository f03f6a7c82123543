package upstream

import (
	"net/http"
	"strconv"
	"strings"
)

// AcceptsGzip reports whether the Accept-Encoding of a request takes gzip: named, or by "*", with a weight above 0. It
// allocates nothing, however long the header.
func AcceptsGzip(h http.Header) bool {
	star := false
	for _, line := range h.Values("Accept-Encoding") {
		for item := range strings.SplitSeq(line, ",") {
			coding, params, _ := strings.Cut(item, ";")
			coding = strings.TrimSpace(coding)
			switch {
			case strings.EqualFold(coding, "gzip"), strings.EqualFold(coding, "x-gzip"):
				return weight(params) > 0
			case coding == "*":
				star = weight(params) > 0
			}
		}
	}
	return star
}

// weight reads q; a missing or unreadable one is 1, as RFC 9110 has it for a missing one.
func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(p), "=")
		if ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				return q
			}
		}
	}
	return 1
}
