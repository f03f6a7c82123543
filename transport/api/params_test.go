package api

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// FuzzTime: whatever parses is a time whose milliseconds fit, and printing those gives the same time again.
func FuzzTime(f *testing.F) {
	for _, s := range []string{
		"0", "1435781451.781", "2015-07-01T20:10:51.781Z", "2015-07-01T22:10:51.781+02:00", "-1.5", "1e9", "NaN", "-Inf", "9.3e15", "9.2e15",
		"-292273086-05-16T16:47:06Z", "292277025-08-18T07:12:54.999999999Z", "0x1p10", "1_000", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, err := parseTime(s)
		if err != nil {
			return
		}
		ms := at.UnixMilli()
		if at.Before(minTime().Add(-time.Hour)) && at.Year() < -300_000_000 {
			t.Fatalf("%q became %d s", s, at.Unix())
		}
		if math.Abs(float64(ms)) > 1e14 {
			return // floats hold no milliseconds there
		}
		again, err := parseTime(string(appendTimestamp(nil, ms)))
		if err != nil || again.UnixMilli() != ms {
			t.Fatalf("%q is %d ms, printed and read again %v, %v", s, ms, again, err)
		}
	})
}

// FuzzDuration: what parses as a number has that many seconds, and nothing overflows silently.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"60", "60s", "1m30s", "0.5", "1e1", "-1", "1e20", "NaN", "1x", "", "106751d", "9223372036", "9223372037", "-9223372037"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			return
		}
		if n, err := strconv.ParseFloat(s, 64); err == nil {
			if diff := math.Abs(d.Seconds() - n); diff > 1e-9+math.Abs(n)*1e-12 {
				t.Fatalf("%q became %s", s, d)
			}
		} else if d < 0 {
			t.Fatalf("%q became %s", s, d)
		}
	})
}

// FuzzWatermark: H2 for any query string: what is not exactly one plain integer is refused, and an integer comes through.
func FuzzWatermark(f *testing.F) {
	for _, s := range []string{"time_ms=1", "time_ms=-1", "time_ms=%2B1", "time_ms=1&time_ms=1", "time_ms=9223372036854775808", "time_ms=1;x", "a=%zz", "time_ms=01"} {
		f.Add(s, "")
		f.Add("", s)
	}
	f.Fuzz(func(t *testing.T, query, body string) {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/precompute/watermark", strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		got, err := decodeWatermark(t.Context(), r)
		if err != nil {
			if classify(err).StatusCode()/100 != 4 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		q := got.(watermarkRequest)
		if q.timeout <= 0 || q.timeout > MaxBarrierTimeout {
			t.Fatalf("timeout %s", q.timeout)
		}
		digits := strconv.FormatInt(q.Time, 10)
		if !strings.Contains(unescape(query+"&"+body), strings.TrimPrefix(digits, "-")) {
			t.Fatalf("%q with %q became %s", query, body, digits)
		}
	})
}

// unescape undoes percent encoding piece by piece, as far as there is any.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// FuzzText: both kinds of string are JSON that reads back as what was written.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", `<b>&"\`, "\n\r\t\b\f\x00\x1f\x7f", "é日本\u2028\u2029𝄞", "\xff\xfe", "a\xc3", "\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		escaped := appendEscaped(nil, s)
		if err := json.Unmarshal(escaped, &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Fatalf("%q became %s, read as %q, %v", s, escaped, got, err)
		}
		if strings.ContainsAny(string(escaped), "<>&\u2028\u2029") {
			t.Fatalf("%q became %s, which HTML would read", s, escaped)
		}
		if !utf8.ValidString(s) {
			return // labels are UTF-8: the receiver sees to it
		}
		plain := appendPlain(nil, s)
		if err := json.Unmarshal(plain, &got); err != nil || got != s {
			t.Fatalf("%q became %s, read as %q, %v", s, plain, got, err)
		}
	})
}

// TestEncoderHandsOnInPieces holds that an answer of any size takes a bounded buffer, and that the pieces are the whole.
func TestEncoderHandsOnInPieces(t *testing.T) {
	m := bigMatrix(50, 2000)
	var w chunks
	(&encoder{w: &w}).encode(&answer{value: m})
	if w.largest > flushBytes+1024 {
		t.Errorf("a piece of %d bytes, bound %d", w.largest, flushBytes)
	}
	var got struct {
		Data struct {
			Result []struct{ Values [][]any }
		}
	}
	if err := json.Unmarshal(w.Bytes(), &got); err != nil || len(got.Data.Result) != 50 || len(got.Data.Result[49].Values) != 2000 {
		t.Errorf("%d series, %v", len(got.Data.Result), err)
	}
}

// gone is a client that has left after the first piece.
type gone struct{ writes int }

func (g *gone) Write([]byte) (int, error) {
	g.writes++
	return 0, http.ErrHandlerTimeout
}

func TestEncoderStopsWritingToAClientThatIsGone(t *testing.T) {
	g := &gone{}
	(&encoder{w: g}).encode(&answer{value: bigMatrix(50, 2000)})
	if g.writes != 1 {
		t.Errorf("%d writes after a failed one", g.writes-1)
	}
}

// Values are written as strconv writes them, and times with the digits that they have, whatever was written before.
func TestValuesAndTimesAreWrittenInFull(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	want := func(v float64) string {
		format := byte('f')
		if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
			format = 'e'
		}
		return strconv.Quote(strconv.FormatFloat(v, format, -1, 64))
	}
	var times timeTexts
	check := func(v float64, at int64) {
		t.Helper()
		for _, v := range []float64{v, -v, math.Nextafter(v, math.Inf(1)), math.Nextafter(v, math.Inf(-1))} {
			if got := string(appendValue(nil, v)); got != want(v) {
				t.Fatalf("%x is written %s, want %s", math.Float64bits(v), got, want(v))
			}
		}
		for range 2 {
			if got, want := string(times.append(nil, at)), string(appendTimestamp(nil, at)); got != want {
				t.Fatalf("%d is written %s, want %s", at, got, want)
			}
		}
	}
	for _, v := range []float64{0, math.NaN(), math.Inf(1), 0.001, 0.0005, 0.1, 1e9, 1e12, 1e12 - 0.001, 999_999_999_999.999, 1e15, 1e21, 1e-7, math.MaxFloat64, math.SmallestNonzeroFloat64} {
		check(v, math.MinInt64)
	}
	for range 200_000 {
		at := rng.Int64()
		check(math.Float64frombits(rng.Uint64()), at-rng.Int64())
		check(float64(rng.Int64N(1<<rng.IntN(55)+1))/1000, at>>rng.IntN(64))
		check(math.Exp(60*rng.Float64()-20), 0)
		check(float64(rng.Int64N(1<<rng.IntN(50)+1))*0.001, 1_700_000_000_000+rng.Int64N(10_000)*500)
	}
}

func TestUnknownValuesAreRefusedBeforeTheFirstByte(t *testing.T) {
	for _, v := range []parser.Value{nil, odd{}} {
		if err := (&answer{value: v}).check(); err == nil {
			t.Errorf("H5: %T was accepted", v)
		}
	}
}

type odd struct{ promql.Scalar }

func bigMatrix(series, points int) promql.Matrix {
	m := make(promql.Matrix, series)
	for i := range m {
		m[i].Metric = labels.FromStrings("__name__", "http_requests_total", "instance", "10.0.0.1:9090", "series", strconv.Itoa(i))
		for k := range points {
			m[i].Floats = append(m[i].Floats, promql.FPoint{T: int64(k) * 15_000, F: float64(k) * 1.25})
		}
	}
	return m
}

// BenchmarkEncode encodes an hour of 100 series. Averages have all the digits that there are.
func BenchmarkEncode(b *testing.B) {
	const series, points = 100, 241
	m := bigMatrix(series, points)
	for _, c := range []struct {
		op    string
		value func(n int) float64
	}{
		{"averages", func(n int) float64 { return math.Exp(float64(n*104729%1000)/250) / 3 }},
		{"decimals", func(n int) float64 { return float64(n*104729%1_000_000) / 1000 }},
		{"counters", func(n int) float64 { return float64(n * 104729) }},
	} {
		for i := range m {
			for k := range m[i].Floats {
				m[i].Floats[k].F = c.value(i*points + k)
			}
		}
		b.Run(fmt.Sprintf("op=encode-%s/series=%d/points=%d", c.op, series, points), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				(&encoder{w: io.Discard, buf: make([]byte, 0, 4<<10)}).encode(&answer{value: m})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/series/points, "ns/point")
		})
	}
}

func TestBuildFallback(t *testing.T) {
	given := Build{Version: "1", Revision: "2", Branch: "3", BuildUser: "4", BuildDate: "5", GoVersion: "6"}
	if got := given.WithFallback(); got != given {
		t.Errorf("the linker's words were changed: %+v", got)
	}
	if got := (Build{}).WithFallback(); got.Version == "" || !strings.HasPrefix(got.GoVersion, "go") {
		t.Errorf("fallback %+v", got)
	}
}
