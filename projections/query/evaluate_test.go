package query

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"pgregory.net/rapid"

	"tidemark/projections/accum"
)

// TestQ6_CancelWhileEvaluating holds that the evaluation of leaves looks at its context: a caller who is gone costs at most
// checkEvery evaluations more, and absence is no exception.
func TestQ6_CancelWhileEvaluating(t *testing.T) {
	var w accum.Window
	for at := int64(0); at < 10*checkEvery; at++ {
		w.T, w.V = append(w.T, at*1000), append(w.V, 1)
	}
	series := []Series{{Labels: labels.FromStrings("i", "0"), Window: w}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, fn := range []accum.Func{accum.Count, accum.Absent, accum.Instant} {
		v := evaluation{sweep: sweep{ctx: ctx}, budget: 1 << 30}
		l := &leaf{fn: fn, window: 1000, steps: steps{start: 1000, end: 9 * checkEvery * 1000, every: 1000}}
		_, err := v.leaf(l, series)
		var canceled promql.ErrQueryCanceled
		if !errors.As(err, &canceled) {
			t.Errorf("Q6: %s: %v", fn, err)
		}
		if made := max(len(v.found.At), 1<<30-v.budget); made > checkEvery {
			t.Errorf("Q6: %s: %d points made", fn, made)
		}
	}
}

// TestNarrower holds that a selector is never matched to a stream that lacks some of its series: what the query's matchers
// select, the stream's select too.
func TestNarrower(t *testing.T) {
	names, values := []string{"a", "b"}, []string{"", "x", "y", "xy"}
	patterns := append([]string{"x|y", "x.*", ".+", ".*", "x?y?", "(x|)y", "[xy]", "(?i)X"}, values...)
	matchers := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *labels.Matcher {
		typ := labels.MatchType(rapid.IntRange(0, 3).Draw(t, "type"))
		value := rapid.SampledFrom(values).Draw(t, "value")
		if typ == labels.MatchRegexp || typ == labels.MatchNotRegexp {
			value = rapid.SampledFrom(patterns).Draw(t, "pattern")
		}
		return labels.MustNewMatcher(typ, rapid.SampledFrom(names).Draw(t, "name"), value)
	}), 0, 3)
	selects := func(ms []*labels.Matcher, l map[string]string) bool {
		return !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(l[m.Name]) })
	}
	said := 0
	rapid.Check(t, func(t *rapid.T) {
		query, held := matchers.Draw(t, "query"), matchers.Draw(t, "held")
		if !narrower(query, held) {
			return
		}
		said++
		for _, a := range values {
			for _, b := range values {
				if l := map[string]string{"a": a, "b": b}; selects(query, l) && !selects(held, l) {
					t.Fatalf("%v is not narrower than %v: it selects %v", query, held, l)
				}
			}
		}
	})
	if said == 0 {
		t.Error("no matchers were found narrower: the check has lost its force")
	}
}

// TestQ2_Overlapped holds the arithmetic of completeness against the definition: some window (e−R, e] overlaps the bucket.
func TestQ2_Overlapped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pane = 10
		grid := func(name string, lo, hi int) int64 { return pane * int64(rapid.IntRange(lo, hi).Draw(t, name)) }
		times := steps{start: grid("start", -20, 20), every: grid("every", 1, 8)}
		times.end = times.start + int64(rapid.IntRange(0, 300).Draw(t, "length"))
		l := &leaf{window: int64(rapid.IntRange(1, 120).Draw(t, "window"))}
		b := grid("bucket", -40, 60)
		want := false
		for k := range times.count() {
			// Both are half-open, so they overlap where each begins before the other ends.
			e := times.at(k)
			want = want || (e-l.window < b && b-pane < e)
		}
		if _, got := l.overlapped(times, []int64{b}); got != want {
			t.Fatalf("windows of %d at %+v over the bucket ending at %d: %v", l.window, times, b, got)
		}
	})
}
