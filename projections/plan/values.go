package plan

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Duration is a length of time, written in Prometheus' syntax: 15s, 1h30m, 7d.
type Duration time.Duration

// Milliseconds returns the duration in whole milliseconds.
func (d Duration) Milliseconds() int64 { return time.Duration(d).Milliseconds() }

// String returns the duration in Prometheus' syntax.
func (d Duration) String() string { return model.Duration(d).String() }

// MarshalYAML writes the duration in Prometheus' syntax.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// UnmarshalYAML reads a duration in Prometheus' syntax.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, func(s string) error {
		v, err := model.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%w; write it like 15s, 5m or 7d", err)
		}
		*d = Duration(v)
		return nil
	})
}

// Bytes is a size in bytes, written like 50GiB.
type Bytes int64

type byteUnit struct {
	suffix string
	shift  uint
}

// byteUnits returns the units of sizes, the largest first. Decimal units are left out: GB means 10^9 to some readers and
// 2^30 to Prometheus.
func byteUnits() []byteUnit {
	return []byteUnit{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}
}

// String returns the size in the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits() {
		if b != 0 && b%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", b>>u.shift, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", int64(b))
}

// MarshalYAML writes the size with its unit.
func (b Bytes) MarshalYAML() (any, error) { return b.String(), nil }

// UnmarshalYAML reads a size with its unit.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, func(s string) error {
		v, err := parseBytes(s)
		if err != nil {
			return err
		}
		*b = v
		return nil
	})
}

func parseBytes(s string) (Bytes, error) {
	digits := strings.TrimRight(s, "TGMKiB")
	for _, u := range byteUnits() {
		if s[len(digits):] != u.suffix {
			continue
		}
		v, err := strconv.ParseUint(digits, 10, 63)
		if err != nil {
			break
		}
		if v > math.MaxInt64>>u.shift {
			return 0, fmt.Errorf("size %q is out of range", s)
		}
		return Bytes(v << u.shift), nil
	}
	return 0, fmt.Errorf("not a size: %q; write a whole number of B, KiB, MiB, GiB or TiB", s)
}

// hidden stands for what must not be printed.
const hidden = "xxxxx"

// URL is the address of a Prometheus. It prints without credentials; Reveal returns it with them.
type URL struct {
	url *url.URL
}

// ParseURL reads an absolute http or https URL. Errors do not repeat it, because it may hold a password.
func ParseURL(s string) (URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return URL{}, errors.New("not a valid URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return URL{}, errors.New("not a URL that begins with http:// or https://")
	case u.Hostname() == "":
		return URL{}, errors.New("a URL without a host")
	case u.Fragment != "":
		return URL{}, errors.New("a URL with a fragment")
	}
	return URL{url: u}, nil
}

// IsZero says that there is no URL.
func (u URL) IsZero() bool { return u.url == nil }

// Reveal returns a copy of the URL with its credentials, nil if there is none. It is for making requests, not for printing.
func (u URL) Reveal() *url.URL {
	if u.url == nil {
		return nil
	}
	c := *u.url // the Userinfo behind it cannot be changed
	return &c
}

// String returns the URL with user, password and query hidden.
func (u URL) String() string {
	if u.url == nil {
		return ""
	}
	c := *u.url
	if c.User != nil {
		c.User = url.User(hidden)
	}
	if c.RawQuery != "" {
		c.RawQuery = hidden
	}
	return c.String()
}

// GoString hides what String hides, for %#v.
func (u URL) GoString() string { return strconv.Quote(u.String()) }

// MarshalText hides what String hides, for JSON and for slog.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// MarshalYAML hides what String hides.
func (u URL) MarshalYAML() (any, error) { return u.String(), nil }

// UnmarshalYAML reads a URL; an empty one is none.
func (u *URL) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, func(s string) error {
		if s == "" {
			*u = URL{}
			return nil
		}
		v, err := ParseURL(s)
		if err != nil {
			return err
		}
		*u = v
		return nil
	})
}

// UnmarshalYAML reads which edge a bucket owns. Its values are checked by Validate, which knows the field.
func (m *Membership) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, func(s string) error { *m = Membership(s); return nil })
}

// UnmarshalYAML reads what happens to late samples. Its values are checked by Validate, which knows the field.
func (p *LatePolicy) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, func(s string) error { *p = LatePolicy(s); return nil })
}

var _ encoding.TextMarshaler = URL{}
