package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func streamOf(ms ...Matcher) Stream {
	return Stream{Matchers: ms, PaneMillis: 15_000, Closed: Right, Late: Correct, RetentionMillis: 3_600_000}.Resolved()
}

// TestCase_A48_NoCollisionsOfJoinedKeys: whatever the values hold, different selectors are different streams.
func TestCase_A48_NoCollisionsOfJoinedKeys(t *testing.T) {
	var all []Stream
	for _, sep := range []string{";", ",", "|", "\x00", "ÿ", ":", "=", "1:", "2:="} {
		all = append(all,
			streamOf(Matcher{"=", "x", "a" + sep + "b"}, Matcher{"=", "y", "c"}),
			streamOf(Matcher{"=", "x", "a"}, Matcher{"=", "y", "b" + sep + "c"}),
		)
	}
	all = append(all,
		streamOf(Matcher{"=", "x", ""}, Matcher{"=", "y", "ab"}),
		streamOf(Matcher{"=", "x", "a"}, Matcher{"=", "y", "b"}),
		streamOf(Matcher{"=", "x", "ab"}, Matcher{"=", "y", ""}),
		streamOf(Matcher{"=", "x", "ab"}),
		streamOf(Matcher{"!=", "x", "ab"}),
		streamOf(Matcher{"=~", "x", "ab"}),
		streamOf(Matcher{"!~", "x", "ab"}),
		streamOf(Matcher{"=", "=x", "ab"}),
		streamOf(Matcher{"=", "x", "=ab"}),
	)
	ids := make(map[StreamID]string)
	identities := make(map[string]bool)
	for _, s := range all {
		if other, ok := ids[s.ID]; ok {
			t.Errorf("%q and %q have one id", s.Identity(), other)
		}
		ids[s.ID] = s.Identity()
		identities[s.Identity()] = true
	}
	if len(identities) != len(all) {
		t.Errorf("%d streams have %d identities", len(all), len(identities))
	}
}

// TestPL1_WhatMakesAStream: each part of the identity changes it, and retention does not.
func TestPL1_WhatMakesAStream(t *testing.T) {
	base := streamOf(Matcher{"=", "__name__", "m"})
	changes := map[string]func(*Stream){
		"selector":   func(s *Stream) { s.Matchers = []Matcher{{"=", "__name__", "n"}} },
		"pane":       func(s *Stream) { s.PaneMillis++ },
		"origin":     func(s *Stream) { s.OriginMillis++ },
		"membership": func(s *Stream) { s.Closed = Left },
		"lateness":   func(s *Stream) { s.LatenessMillis++ },
		"policy":     func(s *Stream) { s.Late = Drop },
	}
	seen := map[StreamID]string{base.ID: "base"}
	for name, change := range changes {
		s := base
		change(&s)
		s = s.Resolved()
		if other, ok := seen[s.ID]; ok {
			t.Errorf("%s has the id of %s", name, other)
		}
		seen[s.ID] = name
	}
	kept := base
	kept.RetentionMillis *= 2
	if kept = kept.Resolved(); kept.ID != base.ID {
		t.Errorf("retention changes the id")
	}
	mixed := streamOf(Matcher{"=", "b", "2"}, Matcher{"=", "a", "1"}, Matcher{"=", "b", "2"})
	if sorted := streamOf(Matcher{"=", "a", "1"}, Matcher{"=", "b", "2"}); mixed.ID != sorted.ID {
		t.Errorf("order and repeats of matchers change the id: %q, %q", mixed.Identity(), sorted.Identity())
	}
}

// TestPL1_IdentityIsInjective reads the stream back out of its identity, which would fail if two had the same.
func TestPL1_IdentityIsInjective(t *testing.T) {
	text := rapid.StringOf(rapid.SampledFrom([]rune{'a', '1', ':', ';', '=', '"', 0, 'ÿ', '-'}))
	rapid.Check(t, func(t *rapid.T) {
		s := Stream{
			PaneMillis:     rapid.Int64().Draw(t, "pane"),
			OriginMillis:   rapid.Int64().Draw(t, "origin"),
			Closed:         Membership(text.Draw(t, "closed")),
			LatenessMillis: rapid.Int64().Draw(t, "lateness"),
			Late:           LatePolicy(text.Draw(t, "late")),
		}
		for range rapid.IntRange(0, 4).Draw(t, "matchers") {
			s.Matchers = append(s.Matchers, Matcher{text.Draw(t, "type"), text.Draw(t, "name"), text.Draw(t, "value")})
		}
		s = s.Resolved()
		got, err := parseIdentity(s.Identity())
		if err != nil {
			t.Fatal(err)
		}
		got.ID = s.ID
		if !slices.Equal(got.Matchers, s.Matchers) || fmt.Sprint(got.PaneMillis, got.OriginMillis, got.Closed, got.LatenessMillis, got.Late) !=
			fmt.Sprint(s.PaneMillis, s.OriginMillis, s.Closed, s.LatenessMillis, s.Late) {
			t.Fatalf("%q reads back as %+v, want %+v", s.Identity(), got, s)
		}
	})
}

// parseIdentity is the inverse of Identity.
func parseIdentity(id string) (Stream, error) {
	var s Stream
	var err error
	number := func(sep string) int64 {
		head, rest, ok := strings.Cut(id, sep)
		v, e := strconv.ParseInt(head, 10, 64)
		if !ok || e != nil {
			err = fmt.Errorf("no number before %q in %q", sep, id)
			return 0
		}
		id = rest
		return v
	}
	text := func() string {
		n := number(":")
		if err != nil || n < 0 || int(n) > len(id) {
			err = fmt.Errorf("no text of %d bytes in %q", n, id)
			return ""
		}
		v := id[:n]
		id = id[n:]
		return v
	}
	for n := number(";"); n > 0 && err == nil; n-- {
		s.Matchers = append(s.Matchers, Matcher{Type: text(), Name: text(), Value: text()})
	}
	s.PaneMillis, s.OriginMillis = number(";"), number(";")
	s.Closed = Membership(text())
	s.LatenessMillis = number(";")
	s.Late = LatePolicy(text())
	if err == nil && id != "" {
		err = fmt.Errorf("%q is left", id)
	}
	return s, err
}

// TestStreamIDText: an ID has one spelling.
func TestStreamIDText(t *testing.T) {
	for _, id := range []StreamID{0, 1, 1 << 63, 0x0123456789abcdef} {
		b, err := id.MarshalText()
		if err != nil || len(b) != streamIDLen {
			t.Fatalf("%q, %v", b, err)
		}
		var back StreamID
		if err := back.UnmarshalText(b); err != nil || back != id {
			t.Errorf("%q reads back as %v, %v", b, back, err)
		}
	}
	for _, bad := range []string{"", "1", "0123456789abcdeg", "0123456789abcdef0", "-123456789abcdef"} {
		var id StreamID
		if err := id.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is read as %v", bad, id)
		}
	}
}

// TestMatcherCompile: the four types, and what is not one.
func TestMatcherCompile(t *testing.T) {
	s := streamOf(Matcher{"=", "a", "x"}, Matcher{"!=", "b", "x"}, Matcher{"=~", "c", "x.*"}, Matcher{"!~", "d", "x.*"})
	ms, err := s.LabelMatchers()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`a="x"`, `b!="x"`, `c=~"x.*"`, `d!~"x.*"`} {
		if got := ms[i].String(); got != want {
			t.Errorf("matcher %d is %s, want %s", i, got, want)
		}
	}
	for _, bad := range []Matcher{{"", "a", "x"}, {"==", "a", "x"}, {"=~", "a", "("}} {
		s := streamOf(bad)
		if _, err := s.LabelMatchers(); err == nil {
			t.Errorf("%+v compiles", bad)
		}
	}
}
